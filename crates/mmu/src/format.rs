// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Page-table formats as data. One walker ([`walk`](fn@crate::walk)) serves all of them.
//!
//! Sources: Intel SDM vol. 3A chapter 4 (PAE, 4-level and 5-level paging); AMD
//! APM vol. 2 section 15.25 (nested paging uses the same formats). A level is
//! numbered by what its entries map when they are leaves: 1 = 4 KB pages.
//! Two-level 32-bit paging is not here yet: nothing uses it.

/// One level of a format.
#[derive(Debug, Clone, Copy)]
pub struct Level {
    /// Lowest address bit that selects the entry.
    pub shift: u32,
    /// Those address bits that select the entry, shifted down.
    pub mask: u64,
    /// May an entry of this level map a page itself (PS bit)?
    pub large: bool,
}

/// The most levels a format may have.
pub const MOST_LEVELS: usize = 5;

/// A page-table format.
#[derive(Debug)]
pub struct Format {
    /// Name as in the manuals.
    pub name: &'static str,
    /// Levels from the leaf (level 1) up to the root, and none above it.
    levels: [Level; MOST_LEVELS],
    depth: u8,
    /// Bits of which one at least marks an entry as present.
    pub present: u64,
    /// Bit that allows writes.
    pub write: u64,
    /// Bit that makes an entry above level 1 a leaf.
    pub page_size: u64,
    /// Accessed bit.
    pub accessed: u64,
    /// Dirty bit, of leaf entries.
    pub dirty: u64,
    /// Global bit, of leaf entries.
    pub global: u64,
    /// Bits of the physical address in an entry.
    pub address: u64,
}

const fn level(shift: u32, bits: u32, large: bool) -> Level {
    Level { shift, mask: (1 << bits) - 1, large }
}

const LONG_LEVELS: [Level; MOST_LEVELS] =
    [level(12, 9, false), level(21, 9, true), level(30, 9, true), level(39, 9, false), level(48, 9, false)];
const PAE_LEVELS: [Level; MOST_LEVELS] =
    [level(12, 9, false), level(21, 9, true), level(30, 2, false), level(32, 0, false), level(32, 0, false)];

const fn x86(name: &'static str, levels: [Level; MOST_LEVELS], depth: u8) -> Format {
    Format {
        name,
        levels,
        depth,
        present: 1,
        write: 1 << 1,
        accessed: 1 << 5,
        dirty: 1 << 6,
        page_size: 1 << 7,
        global: 1 << 8,
        address: 0x000f_ffff_ffff_f000,
    }
}

/// Four-level paging of x86-64, and AMD's nested tables for 48-bit GPAs.
pub static X86_64_4_LEVEL: Format = x86("4-level", LONG_LEVELS, 4);
/// Five-level paging of x86-64 (CR4.LA57).
pub static X86_64_5_LEVEL: Format = x86("5-level", LONG_LEVELS, 5);
/// Intel's nested tables (SDM vol. 3C, 29.3): an entry that allows reads, writes or fetches is present. There are A and
/// D bits if EPTP's bit 6 is set, and no global pages.
pub static EPT: Format =
    Format { present: 0b111, accessed: 1 << 8, dirty: 1 << 9, global: 0, ..x86("EPT", LONG_LEVELS, 4) };
/// Three-level PAE paging of 32-bit guests.
pub static PAE: Format = x86("PAE", PAE_LEVELS, 3);

impl Format {
    /// Number of levels.
    #[inline]
    pub fn depth(&self) -> u8 {
        self.depth
    }

    /// The level's description; levels count from 1.
    #[inline]
    pub fn level(&self, level: u8) -> &Level {
        &self.levels[usize::from(level) - 1]
    }

    /// Index of the entry that maps `va` in a table of `level`.
    #[inline]
    pub fn index(&self, level: u8, va: u64) -> u64 {
        let l = self.level(level);
        va >> l.shift & l.mask
    }

    /// Does this entry of `level` end a walk by mapping a page?
    #[inline]
    pub fn is_leaf(&self, level: u8, entry: u64) -> bool {
        level == 1 || (entry & self.page_size != 0 && self.level(level).large)
    }

    /// The table (or page) that an entry points to. For a large leaf the bits
    /// below its size are cleared (bit 12 is PAT there).
    #[inline]
    pub fn target(&self, level: u8, entry: u64) -> u64 {
        let base = entry & self.address;
        if level > 1 && self.is_leaf(level, entry) {
            base & !((1 << self.level(level).shift) - 1)
        } else {
            base
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn epts_entries_are_present_by_their_permissions_and_have_bits_of_their_own() {
        // Execute only, accessed and dirty, a 2 MB page with a memory type.
        let entry = 0x8000_0000_4020_03b4;
        assert_ne!(entry & EPT.present, 0);
        assert_eq!(entry & X86_64_4_LEVEL.present, 0);
        assert_eq!(entry & (EPT.accessed | EPT.dirty), 0x300);
        assert!(EPT.is_leaf(2, entry));
        assert_eq!(EPT.target(2, entry), 0x4020_0000);
        assert_eq!((EPT.depth(), EPT.write, EPT.global), (4, 2, 0));
    }
}
