// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CR3 and CR4.

use super::*;
use crate::shadow::World;

#[test]
fn before_the_first_cr3_a_walk_finds_nothing_and_a_fault_maps_nothing() {
    let mut m = Machine::small();
    assert!(m.walk(1, DIRECT).is_none());
    assert_eq!(
        m.shadow.fault(
            Fault { vcpu: 1, gva: Gva(DIRECT), kind: AccessKind::Read },
            &mut m.guest,
            &mut m.host,
            &mut m.out
        ),
        Fixed::NotMapped
    );
}

#[test]
fn a_load_of_the_same_cr3_syncs_and_flushes_without_a_miss() {
    let mut m = Machine::small();
    let s = m.counted(|m| m.load_cr3(m.root));
    assert_eq!((s.exits_cr3_write, s.root_misses, s.all_exits()), (1, 0, 1));
    assert_eq!(m.shadow.take_flush(), Flush::Vcpu(0));
}

#[test]
fn four_roots_are_kept_and_the_least_recent_goes() {
    let mut m = Machine::small();
    let spaces: Vec<u64> = (0..4).map(|_| m.space()).collect();
    let first = m.root;
    spaces[..3].iter().for_each(|&r| m.load_cr3(r));
    assert_eq!(m.out.root_misses, 3);
    m.load_cr3(first); // current, and the three before it cached
    assert_eq!(m.out.root_misses, 3);
    m.load_cr3(spaces[3]); // spaces[0] goes
    assert_eq!(m.out.root_misses, 4);
    for r in [first, spaces[2], spaces[1], spaces[3]] {
        m.load_cr3(r);
    }
    assert_eq!(m.out.root_misses, 4);
    let s = m.counted(|m| m.load_cr3(spaces[0]));
    assert_eq!((s.root_misses, s.shadow_pages_made), (1, 0), "the page was still in the hash");
}

#[test]
fn a_root_is_matched_by_the_whole_cr3() {
    let mut m = Machine::small();
    m.shadow.load_cr3(0, m.root << 12 | 0x18, World { guest: &m.guest, host: &m.host }, &mut m.out);
    assert_eq!((m.out.root_misses, m.out.shadow_pages_made), (1, 0));
}

#[test]
fn a_process_switch_of_a_kpti_guest_overflows_the_cached_roots_at_three_processes() {
    let mut m = Machine::small();
    let pairs: Vec<(u64, u64)> = (0..3).map(|_| (m.space(), m.space())).collect();
    let round = |m: &mut Machine, n: usize| {
        for &(kernel, user) in &pairs[..n] {
            for root in [kernel, user, kernel, user, kernel] {
                m.load_cr3(root);
            }
        }
    };
    round(&mut m, 2);
    assert_eq!(m.counted(|m| round(m, 2)).root_misses, 0);
    round(&mut m, 3);
    assert_eq!(m.counted(|m| round(m, 3)).root_misses, 6);
}

#[test]
fn kpti_shadows_the_tables_of_a_user_page_twice_as_its_kernel_root_forbids_execution() {
    let mut m = Machine::small();
    m.user(0, PAGE);
    let user_root = m.space();
    let entry = m.guest.read(Gpa(m.root << 12));
    m.guest.store(Gpa(user_root << 12), entry);
    m.guest.store(Gpa(m.root << 12), entry | NX);
    m.read(USER);
    m.load_cr3(user_root);
    let s = m.counted(|m| assert_eq!(m.read(USER), 1));
    assert_eq!(s.shadow_pages_made, 3, "levels 3, 2 and 1 again");
    invariants::check(&m.shadow, m.world());
}

#[test]
fn one_store_makes_both_shadows_of_a_table_unsync_and_each_root_syncs_its_own() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    let user_root = m.space();
    let entry = m.guest.read(Gpa(m.root << 12));
    m.guest.store(Gpa(user_root << 12), entry);
    m.guest.store(Gpa(m.root << 12), entry | NX);
    m.read(USER);
    m.load_cr3(user_root);
    m.read(USER);
    m.read(DIRECT + pte);
    m.load_cr3(m.root);
    m.load_cr3(user_root);
    let s = m.counted(|m| _ = m.pt_store(pte, 0));
    assert_eq!(s.exits_unsync, 1);
    assert_eq!(m.counted(|m| m.load_cr3(user_root)).syncs, 1);
    assert_eq!(m.counted(|m| m.load_cr3(m.root)).syncs, 1);
    assert_eq!(m.counted(|m| m.load_cr3(user_root)).syncs, 0);
    assert!(m.walk(0, USER).is_none());
}

#[test]
fn a_global_flush_syncs_the_current_root_and_frees_unsync_cached_ones() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    let other = m.space();
    m.load_cr3(other);
    m.read(DIRECT + pte);
    m.pt_store(pte, 99 << 12 | PAGE);
    m.shadow.take_flush();
    let s = m.counted(|m| m.toggle_pge());
    assert_eq!((s.exits_cr4_write, s.syncs, s.shadow_pages_zapped), (2, 0, 0));
    assert_eq!(m.shadow.take_flush(), Flush::Vcpu(0));
    let s = m.counted(|m| m.load_cr3(m.root));
    assert_eq!((s.root_misses, s.shadow_pages_made, s.syncs), (1, 0, 1), "freed, found in the hash, synced");
}

#[test]
fn another_write_to_cr4_is_an_exit_only() {
    let mut m = Machine::small();
    let s = m.counted(|m| m.shadow.write_cr4(0, false, World { guest: &m.guest, host: &m.host }, &mut m.out));
    assert_eq!((s.exits_cr4_write, s.all_exits()), (1, 1));
    assert_eq!(m.shadow.take_flush(), Flush::None);
}

#[test]
fn zapping_the_table_under_a_root_gives_the_vcpu_a_new_one() {
    let mut m = Machine::small();
    m.read(DIRECT + (m.root << 12));
    let s = m.counted(|m| _ = m.on(0, DIRECT + (m.root << 12), AccessKind::WriteOther));
    assert_eq!(s.exits_unprotect, 1);
    assert!(s.shadow_pages_made >= 1);
    // The root is in use, hence shadowed again, hence the store was emulated in the end.
    assert_eq!(s.exits_emulated_write, 1);
    invariants::check(&m.shadow, m.world());
}

#[test]
fn vcpus_share_shadow_pages_and_each_has_its_roots() {
    let mut m = Machine::small();
    m.user(0, PAGE);
    m.read(USER);
    m.shadow.load_cr3(1, m.root << 12, World { guest: &m.guest, host: &m.host }, &mut m.out);
    assert_eq!(m.shadow.root(0, Gva(0)), m.shadow.root(1, Gva(0)));
    assert_eq!(m.on(1, USER, AccessKind::Read), 0);
    let pte = m.user(0, PAGE);
    m.on(1, DIRECT + pte, AccessKind::Write);
    m.shadow.take_flush();
    m.guest.store(Gpa(pte), 0);
    m.load_cr3(m.root);
    assert_eq!(m.shadow.take_flush(), Flush::All, "vCPU 1 loses its write access to the table");
    invariants::check(&m.shadow, m.world());
}
