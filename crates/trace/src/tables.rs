// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The format of the guest's page tables, as recordings and options name it.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// The format of the guest's page tables (Intel SDM vol. 3A, chapter 4). The same from a recording's start to
/// its end.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum TableFormat {
    /// 64-bit mode with 4 levels.
    #[default]
    #[serde(rename = "4-level")]
    FourLevel,
    /// 64-bit mode with 5 levels (CR4.LA57).
    #[serde(rename = "5-level")]
    FiveLevel,
    /// 32-bit mode with entries of 8 bytes (CR4.PAE).
    #[serde(rename = "pae")]
    Pae,
    /// 32-bit mode with two levels of 4-byte entries.
    #[serde(rename = "32-bit")]
    TwoLevel,
}

impl TableFormat {
    /// All formats.
    pub const ALL: [TableFormat; 4] =
        [TableFormat::FourLevel, TableFormat::FiveLevel, TableFormat::Pae, TableFormat::TwoLevel];

    /// The name in options and recordings.
    pub fn name(self) -> &'static str {
        match self {
            TableFormat::FourLevel => "4-level",
            TableFormat::FiveLevel => "5-level",
            TableFormat::Pae => "pae",
            TableFormat::TwoLevel => "32-bit",
        }
    }

    /// The format of this name.
    pub fn from_name(name: &str) -> Option<TableFormat> {
        TableFormat::ALL.into_iter().find(|f| f.name() == name)
    }

    /// Number of levels, counting PAE's registers.
    pub fn levels(self) -> u8 {
        match self {
            TableFormat::FourLevel => 4,
            TableFormat::FiveLevel => 5,
            TableFormat::Pae => 3,
            TableFormat::TwoLevel => 2,
        }
    }

    /// A format of 64-bit mode?
    pub fn is_long(self) -> bool {
        self.levels() > 3
    }

    /// Whether Linux keeps this guest-virtual address for itself: the upper half, or in 32-bit mode the last
    /// of four gigabytes (CONFIG_VMSPLIT_3G, Debian's).
    pub fn is_kernel(self, gva: u64) -> bool {
        if self.is_long() { gva >> 63 == 1 } else { gva >= 0xc000_0000 }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_those_of_recordings() {
        for format in TableFormat::ALL {
            assert_eq!(serde_json::to_string(&format).unwrap(), format!("\"{}\"", format.name()));
            assert_eq!(TableFormat::from_name(format.name()), Some(format));
        }
        assert_eq!(TableFormat::from_name("6-level"), None);
    }

    #[test]
    fn the_kernels_addresses_depend_on_the_mode() {
        let [four, five, pae, two] = TableFormat::ALL;
        for (va, long, short) in
            [(0xbfff_ffff, false, false), (0xc000_0000, false, true), (1 << 63, true, true)]
        {
            assert_eq!((four.is_kernel(va), five.is_kernel(va)), (long, long), "{va:x}");
            assert_eq!((pae.is_kernel(va), two.is_kernel(va)), (short, short), "{va:x}");
        }
    }
}
