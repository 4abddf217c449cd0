// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the VM at the beginning of the stream: what the host holds of its memory.

use serde::{Deserialize, Serialize};

/// What the host holds of the guest's memory when the stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case", try_from = "Written")]
pub enum VmState {
    /// The host has backed all memory, and the hypervisor's nested tables map it: a VM that has touched all of its memory.
    /// Shadow tables are empty, because they come and go with the guest's own.
    #[default]
    LongLived,
    /// The host has backed nothing: a VM in its first minutes.
    Started,
}

impl VmState {
    /// Every state, in the order of help.
    pub const ALL: [VmState; 2] = [VmState::LongLived, VmState::Started];

    /// The name on the command line and in outputs: `long-lived`.
    pub fn name(self) -> &'static str {
        match self {
            VmState::LongLived => "long-lived",
            VmState::Started => "started",
        }
    }

    /// The state of that [`name`](VmState::name).
    pub fn from_name(name: &str) -> Option<VmState> {
        VmState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// The state of documents of Bifold 0.1 without the field.
    pub fn of_older() -> VmState {
        VmState::Started
    }

    /// What the state means, as the end of a sentence that begins with the state's name.
    pub fn words(self) -> &'static str {
        match self {
            VmState::LongLived => "the host has backed the guest's memory, and nested tables map it",
            VmState::Started => "the host backs memory at its first touch",
        }
    }
}

/// A state as documents have it. Bifold 0.1 wrote whether all memory was backed.
#[derive(Deserialize)]
#[serde(untagged)]
enum Written {
    Backed(bool),
    Name(String),
}

impl TryFrom<Written> for VmState {
    type Error = &'static str;

    fn try_from(written: Written) -> Result<VmState, &'static str> {
        match written {
            Written::Backed(true) => Ok(VmState::LongLived),
            Written::Backed(false) => Ok(VmState::Started),
            Written::Name(name) => VmState::from_name(&name).ok_or("no state of a VM"),
        }
    }
}
