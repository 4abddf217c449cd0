// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a later KVM does otherwise: the rules of [`KvmVersion`].

use super::*;

fn machine(kvm: KvmVersion) -> Machine {
    let mut m = Machine::small();
    m.shadow.kvm = kvm;
    m
}

/// An unsync leaf table whose page 1 has become accessible since it was shadowed.
fn with_a_new_entry(kvm: KvmVersion) -> Machine {
    let mut m = machine(kvm);
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.pt_store(pte + 8, 17 << 12 | PAGE);
    m
}

#[test]
fn invlpg_makes_an_absent_entry_in_6_1_and_none_in_6_12() {
    for (kvm, hidden) in [(KvmVersion::Linux6_1, 0), (KvmVersion::Linux6_12, 1)] {
        let mut m = with_a_new_entry(kvm);
        m.invlpg(USER + 0x1000);
        assert_eq!(m.counted(|m| _ = m.read(USER + 0x1000)).exits_hidden_fault, hidden, "{kvm:?}");
    }
}

#[test]
fn invlpg_follows_an_entry_that_is_there_in_both() {
    for kvm in [KvmVersion::Linux6_1, KvmVersion::Linux6_12] {
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
    for (kvm, accessed) in [(KvmVersion::Linux6_1, 0), (KvmVersion::Linux6_12, A)] {
        let mut m = with_a_new_entry(kvm);
        m.load_cr3(m.root);
        assert_eq!(m.walk(0, USER).unwrap().1 & A, accessed, "{kvm:?}");
    }
}

/// Stores that are no page-table stores, to the same entry of a table that is shadowed again
/// each time: what each exit was.
fn stores_to_one_place(kvm: KvmVersion) -> Vec<&'static str> {
    let mut m = machine(kvm);
    m.user(0, PAGE);
    let pd = m.guest.read(Gpa((m.guest.read(Gpa(m.root << 12)) & !0xfff) + 8)) & !0xfff;
    m.read(USER);
    m.read(DIRECT + pd);
    let mut seen = Vec::new();
    for _ in 0..4 {
        m.read(USER);
        let s = m.counted(|m| _ = m.on(0, DIRECT + pd + 8, AccessKind::WriteOther));
        seen.push(if s.exits_emulated_write > 0 { "emulated" } else { "retried" });
        m.load_cr3(m.root);
    }
    seen
}

#[test]
fn a_store_retried_is_emulated_once_in_6_1_and_while_it_repeats_in_6_12() {
    assert_eq!(stores_to_one_place(KvmVersion::Linux6_1), ["retried", "emulated", "retried", "emulated"]);
    assert_eq!(stores_to_one_place(KvmVersion::Linux6_12), ["retried", "emulated", "emulated", "emulated"]);
}
