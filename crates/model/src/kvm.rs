// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which KVM the shadow MMU follows. The code in `shadow/` is Linux 6.1's; what a
//! later one does differently is asked for here, a method per rule, and nowhere else.
//! `docs/validation.md` shows both held against the real ones.

use serde::{Deserialize, Serialize};

/// A version of KVM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
pub enum Kvm {
    /// Linux 6.1.
    #[default]
    #[serde(rename = "linux-6.1")]
    Linux6_1,
    /// Linux 6.12.
    #[serde(rename = "linux-6.12")]
    Linux6_12,
}

impl Kvm {
    /// INVLPG zaps the entry of an unsync table and makes it again, an absent one too, if
    /// the guest's is present and accessed (6.1 `FNAME(invlpg)`). Later it syncs the
    /// entry as a CR3 load would, so an absent one stays so (6.12
    /// `__kvm_mmu_invalidate_addr`, `kvm_sync_spte`).
    pub fn invlpg_makes_absent_entries(self) -> bool {
        self == Kvm::Linux6_1
    }

    /// A sync makes every entry anew (6.1 `FNAME(sync_page)`), which takes its accessed
    /// bit and may give or take write access. Later an entry whose permissions the guest
    /// has not changed stays as it is (6.12 `FNAME(sync_spte)`).
    pub fn sync_makes_unchanged_entries(self) -> bool {
        self == Kvm::Linux6_1
    }
}
