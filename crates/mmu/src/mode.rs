// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two paging modes that KVM can switch a VM between.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// One of the two paging modes that KVM can switch a VM between. Published policies decide between these two.
/// What costs alone decide chooses from all modes that are modelled, of which these are a part.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The hardware walks tables that the hypervisor composed of the guest's and the host's.
    Shadow,
    /// The hardware walks the guest's and the host's tables (EPT, NPT).
    Nested,
}

impl Mode {
    /// Both modes, in the order of arrays that are indexed by `mode as usize`.
    pub const BOTH: [Mode; 2] = [Mode::Shadow, Mode::Nested];

    /// The other mode.
    pub fn other(self) -> Mode {
        match self {
            Mode::Shadow => Mode::Nested,
            Mode::Nested => Mode::Shadow,
        }
    }

    /// The mode of that [`name`](Mode::name).
    pub fn from_name(name: &str) -> Option<Mode> {
        Mode::BOTH.into_iter().find(|mode| mode.name() == name)
    }

    /// `shadow` or `nested`, as in every input and output.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Shadow => "shadow",
            Mode::Nested => "nested",
        }
    }
}
