// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the VM at the beginning of the stream: what the host holds of its memory.

use bifold_mmu::PageSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What the host holds of the guest's memory when the stream begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Default, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case", try_from = "Written")]
#[schemars(!try_from)]
pub enum VmState {
    /// The host has backed all memory, and the hypervisor's nested tables map it: a VM that has touched all
    /// of its memory. Shadow tables are empty, because they come and go with the guest's own.
    #[default]
    LongLived,
    /// The host has backed nothing: a VM in its first minutes. So has an outer host.
    Started,
    /// The memory is that of a snapshot, whose file the host maps for the VM (`MAP_PRIVATE`): a read maps the
    /// file's page, a write copies that page. An outer host has backed all memory.
    Restored,
    /// The memory is that of a snapshot, which a process of the host copies into the VM at each fault
    /// (`userfaultfd`). An outer host has backed all memory.
    RestoredUffd,
}

impl VmState {
    /// Every state, in the order of help.
    pub const ALL: [VmState; 4] =
        [VmState::LongLived, VmState::Started, VmState::Restored, VmState::RestoredUffd];

    /// The name on the command line and in outputs: `long-lived`.
    pub fn name(self) -> &'static str {
        match self {
            VmState::LongLived => "long-lived",
            VmState::Started => "started",
            VmState::Restored => "restored",
            VmState::RestoredUffd => "restored-uffd",
        }
    }

    /// The state of that [`name`](VmState::name).
    pub fn from_name(name: &str) -> Option<VmState> {
        VmState::ALL.into_iter().find(|state| state.name() == name)
    }

    /// Whether the host has pages of this size for memory in this state. A private mapping of a file has
    /// pages of 4 KB: Firecracker restores memory in huge pages by userfaultfd alone (its documentation of
    /// huge pages, version 1.7).
    pub fn has_pages(self, size: PageSize) -> bool {
        self != VmState::Restored || size == PageSize::Size4K
    }

    /// The state of older documents, which lack the field.
    pub fn of_older() -> VmState {
        VmState::Started
    }

    /// What the state means, as the end of a sentence that begins with the state's name.
    pub fn words(self) -> &'static str {
        match self {
            VmState::LongLived => "the host has backed the guest's memory, and nested tables map it",
            VmState::Started => "the host backs memory at its first touch",
            VmState::Restored => "memory comes from a snapshot's file at its first touch",
            VmState::RestoredUffd => "memory comes from a snapshot by userfaultfd at its first touch",
        }
    }
}

/// A state as documents have it. Older ones say whether all memory was backed.
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
