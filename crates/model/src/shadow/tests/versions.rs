// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a later KVM does otherwise: the rules of [`Kvm`].

use super::*;

fn machine(kvm: Kvm) -> Machine {
    let mut m = Machine::small();
    m.shadow.kvm = kvm;
    m
}

/// An unsync leaf table whose page 1 has become accessible since it was shadowed.
fn with_a_new_entry(kvm: Kvm) -> Machine {
    let mut m = machine(kvm);
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.pt_store(pte + 8, 17 << 12 | PAGE);
    m
}

#[test]
fn invlpg_makes_an_absent_entry_in_6_1_and_none_in_6_12() {
    for (kvm, hidden) in [(Kvm::Linux6_1, 0), (Kvm::Linux6_12, 1)] {
        let mut m = with_a_new_entry(kvm);
        m.invlpg(USER + 0x1000);
        assert_eq!(m.counted(|m| _ = m.read(USER + 0x1000)).exits_hidden_fault, hidden, "{kvm:?}");
    }
}

#[test]
fn invlpg_follows_an_entry_that_is_there_in_both() {
    for kvm in [Kvm::Linux6_1, Kvm::Linux6_12] {
        let mut m = machine(kvm);
        let pte = m.user(0, PAGE);
        m.write(USER);
        m.pt_store(pte, 16 << 12 | PAGE & !W);
        m.invlpg(USER);
        assert_eq!(m.walk(0, USER).unwrap().1 & W, 0, "{kvm:?}");
    }
}

#[test]
fn a_sync_takes_the_accessed_bit_of_an_unchanged_entry_in_6_1_and_leaves_it_in_6_12() {
    for (kvm, accessed) in [(Kvm::Linux6_1, 0), (Kvm::Linux6_12, A)] {
        let mut m = with_a_new_entry(kvm);
        m.load_cr3(m.root);
        assert_eq!(m.walk(0, USER).unwrap().1 & A, accessed, "{kvm:?}");
    }
}
