// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Which writes to CR4 exit.

use crate::profile::Virtualization;

const PGE: u64 = 1 << 7;
/// The bits that KVM gives to guests under EPT (`KVM_POSSIBLE_CR4_GUEST_BITS`): PVI, TSD, DE, PGE, PCE,
/// OSFXSR, OSXMMEXCPT, FSGSBASE. Under shadow paging KVM keeps PGE (`set_cr4_guest_host_mask`).
const GUESTS: u64 = 1 << 1 | 1 << 2 | 1 << 3 | PGE | 1 << 8 | 1 << 9 | 1 << 10 | 1 << 16;

/// A write to CR4.
#[derive(Debug, Clone, Copy)]
pub struct Cr4Write {
    /// The value before.
    pub old: u64,
    /// The value written.
    pub new: u64,
    /// Whose rules decide whether the write exits.
    pub virtualization: Virtualization,
}

impl Cr4Write {
    /// Whether the write flushes global translations.
    pub fn flushes_global(self) -> bool {
        (self.old ^ self.new) & PGE != 0
    }

    /// Whether the write exits. Under SVM all do: KVM intercepts the instruction. Under VMX those do that
    /// change a bit of the host's (Intel SDM vol. 3, 26.1.3: the read shadow is compared).
    pub fn exits(self, nested: bool) -> bool {
        let guests = if nested { GUESTS } else { GUESTS & !PGE };
        match self.virtualization {
            Virtualization::Svm => true,
            Virtualization::Vmx => (self.old ^ self.new) & !guests != 0,
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn svm_exits_for_every_write_and_vmx_for_changes_of_the_hosts_bits() {
        const SMEP: u64 = 1 << 20;
        let exits = |virtualization, old, new| {
            let write = Cr4Write { old, new, virtualization };
            (write.exits(true), write.exits(false), write.flushes_global())
        };
        assert_eq!(exits(Virtualization::Svm, PGE, PGE), (true, true, false));
        assert_eq!(exits(Virtualization::Vmx, PGE, PGE), (false, false, false));
        assert_eq!(exits(Virtualization::Vmx, PGE, 0), (false, true, true));
        assert_eq!(exits(Virtualization::Vmx, 0, SMEP), (true, true, false));
    }
}
