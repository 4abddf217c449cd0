// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The two modes between which a policy chooses.

use serde::{Deserialize, Serialize};

/// A paging mode under a hypervisor: what a policy decides and a kernel obeys.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Mode {
    /// The hardware walks tables that the hypervisor composed of the guest's and the host's.
    Shadow,
    /// The hardware walks the guest's and the host's tables (EPT, NPT).
    Nested,
}

impl Mode {
    /// Both, in the order in which arrays per mode are indexed.
    pub const BOTH: [Mode; 2] = [Mode::Shadow, Mode::Nested];

    /// The other one.
    pub fn other(self) -> Mode {
        match self {
            Mode::Shadow => Mode::Nested,
            Mode::Nested => Mode::Shadow,
        }
    }

    /// The model's mode as one of these; native is none.
    pub fn of(mode: bifold_model::Mode) -> Option<Mode> {
        match mode {
            bifold_model::Mode::Native => None,
            bifold_model::Mode::Shadow => Some(Mode::Shadow),
            bifold_model::Mode::Nested => Some(Mode::Nested),
        }
    }

    /// `shadow` or `nested`, as in every input and output.
    pub fn name(self) -> &'static str {
        match self {
            Mode::Shadow => "shadow",
            Mode::Nested => "nested",
        }
    }
}

impl From<Mode> for bifold_model::Mode {
    fn from(mode: Mode) -> Self {
        match mode {
            Mode::Shadow => bifold_model::Mode::Shadow,
            Mode::Nested => bifold_model::Mode::Nested,
        }
    }
}
