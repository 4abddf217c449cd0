// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The versions of KVM that the shadow MMU can follow. The code in `shadow/` follows Linux 6.1.
//! Where a later version differs, `shadow/` asks a method of [`KvmVersion`]: one method per rule.
//! `docs/design/validation.md` compares both versions with the real ones.

use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// A version of KVM.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize, JsonSchema)]
pub enum KvmVersion {
    /// Linux 6.1.
    #[default]
    #[serde(rename = "linux-6.1")]
    Linux6_1,
    /// Linux 6.12.
    #[serde(rename = "linux-6.12")]
    Linux6_12,
}

impl KvmVersion {
    /// The newest version that was compared with the model.
    pub const NEWEST: KvmVersion = KvmVersion::Linux6_12;

    /// The version of a kernel with this release (`uname -r`). `None` if that kernel was not
    /// compared with the model.
    pub fn of_release(release: &str) -> Option<KvmVersion> {
        let mut parts = release.split('.');
        match (parts.next()?, parts.next()?) {
            ("6", "1") => Some(KvmVersion::Linux6_1),
            ("6", "12") => Some(KvmVersion::Linux6_12),
            _ => None,
        }
    }

    /// The version's name in a profile.
    pub fn name(self) -> &'static str {
        match self {
            KvmVersion::Linux6_1 => "linux-6.1",
            KvmVersion::Linux6_12 => "linux-6.12",
        }
    }

    /// A page that a read brings back from swap is mapped read-only, and the first write is a fault (6.1
    /// `do_swap_page`). Later it is writable at once (6.11 and newer: commit c18160dba5ff). The host's kernel
    /// is KVM's.
    pub fn swaps_in_read_only(self) -> bool {
        self == KvmVersion::Linux6_1
    }

    /// INVLPG zaps the entry of an unsync table and makes it again, an absent one too, if
    /// the guest's is present and accessed (6.1 `FNAME(invlpg)`). Later it syncs the
    /// entry as a CR3 load would, so an absent one stays so (6.12
    /// `__kvm_mmu_invalidate_addr`, `kvm_sync_spte`).
    pub fn invlpg_makes_absent_entries(self) -> bool {
        self == KvmVersion::Linux6_1
    }

    /// A sync rebuilds every entry (6.1 `FNAME(sync_page)`), which takes its accessed
    /// bit and may give or take write access. Later an entry whose permissions the guest
    /// has not changed stays as it is (6.12 `FNAME(sync_spte)`).
    pub fn sync_makes_unchanged_entries(self) -> bool {
        self == KvmVersion::Linux6_1
    }

    /// A store retried at the same place after its table was unprotected is emulated, lest
    /// it go on for ever, and the place forgotten, so that the next is retried again (6.1
    /// `retry_instruction`). Later it is remembered until another comes (6.12
    /// `kvm_mmu_write_protect_fault`).
    pub fn keeps_last_retry(self) -> bool {
        self != KvmVersion::Linux6_1
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn releases_are_told_apart_by_their_series_and_names_are_those_of_profiles() {
        assert_eq!(KvmVersion::of_release("6.1.0-56-amd64"), Some(KvmVersion::Linux6_1));
        assert_eq!(KvmVersion::of_release("6.12.95+deb12-amd64"), Some(KvmVersion::Linux6_12));
        assert_eq!(KvmVersion::of_release("6.18.1"), None);
        for kvm in [KvmVersion::Linux6_1, KvmVersion::Linux6_12] {
            assert_eq!(serde_json::to_value(kvm).unwrap(), kvm.name());
        }
    }
}
