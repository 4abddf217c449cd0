// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stores to page tables, and what they cost: the rows of
//! `docs/design/model.md#shadow-paging`.

use super::*;
use crate::shadow::World;
use AccessKind::{Read, WriteOther};

#[test]
fn a_guest_fault_is_one_exit_and_reflected() {
    let mut m = Machine::small();
    let world = World { guest: &m.guest, host: &m.host };
    assert!(!m.shadow.reflect(0, Gva(USER), 0, world, &mut m.out), "of an absent entry, nothing is dropped");
    let s = m.out;
    assert_eq!((s.exits_guest_fault, s.all_exits()), (1, 1));
}

#[test]
fn an_access_that_the_guest_does_not_map_is_no_exit_here() {
    let mut m = Machine::small();
    m.user(0, P | U | A);
    assert_eq!(
        m.shadow.fault(
            Fault { vcpu: 0, gva: Gva(0x1234_5000), kind: Read },
            &mut m.guest,
            &mut m.host,
            &mut m.out
        ),
        Fixed::NotMapped
    );
    assert_eq!(
        m.shadow.fault(
            Fault { vcpu: 0, gva: Gva(USER), kind: AccessKind::Write },
            &mut m.guest,
            &mut m.host,
            &mut m.out
        ),
        Fixed::NotMapped
    );
    assert_eq!(m.out, Sample::default());
}

#[test]
fn first_touch_of_an_anonymous_page_costs_two_exits_and_a_third_for_the_first_write_to_its_table_since_the_last_sync()
 {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER); // the leaf table is shadowed
    m.map_protected(pte); // and the kernel's mapping of it is there, read-only
    let touch = |m: &mut Machine, n: u64| {
        m.counted(|m| {
            let world = World { guest: &m.guest, host: &m.host };
            m.shadow.reflect(0, Gva(USER), 0, world, &mut m.out);
            m.pt_store(pte + 8 * n, (n + 16) << 12 | PAGE & !A);
            m.write(USER + (n << 12));
        })
    };
    let s = touch(&mut m, 1);
    assert_eq!((s.exits_guest_fault, s.exits_unsync, s.exits_hidden_fault, s.all_exits()), (1, 1, 1, 3));
    let s = touch(&mut m, 2);
    assert_eq!((s.exits_guest_fault, s.exits_unsync, s.exits_hidden_fault, s.all_exits()), (1, 0, 1, 2));
    m.load_cr3(m.root); // syncs
    assert_eq!(touch(&mut m, 3).exits_unsync, 1);
}

#[test]
fn an_unsync_table_is_written_without_exits_until_it_is_synced() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.map_protected(pte);
    assert_eq!(m.pt_store(pte + 8, 17 << 12 | PAGE), 1);
    for n in 2..100 {
        assert_eq!(m.pt_store(pte + 8 * n, (n + 16) << 12 | PAGE), 0);
    }
    m.toggle_pge();
    assert_eq!(m.counted(|m| assert_eq!(m.pt_store(pte + 8, 0), 1)).exits_unsync, 1);
}

#[test]
fn a_write_to_a_table_not_shadowed_yet_costs_nothing() {
    let mut m = Machine::small();
    let pte = m.user(0, 0);
    m.write(DIRECT + pte);
    let s = m.counted(|m| {
        for n in 0..512 {
            m.pt_store((pte & !0xfff) + 8 * n, (n + 16) << 12 | PAGE);
        }
    });
    assert_eq!(s.all_exits(), 0);
    // paid now: one exit per block of 8
    let s = m.counted(|m| (0..512).for_each(|n| _ = m.read(USER + (n << 12))));
    assert_eq!((s.exits_hidden_fault, s.all_exits()), (64, 64));
}

/// Two leaf tables under one level-2 table, whose frame the kernel sees.
fn two_leaf_tables(m: &mut Machine) -> u64 {
    m.user(0, PAGE);
    m.user(512, PAGE);
    m.read(USER);
    m.read(USER + (512 << 12));
    let pdpt = m.guest.read(Gpa(m.root << 12)) & !0xfff;
    let pd = m.guest.read(Gpa(pdpt + 8)) & !0xfff;
    m.read(DIRECT + pd);
    pd
}

#[test]
fn a_write_to_a_non_leaf_table_is_emulated_and_its_entry_zapped() {
    let mut m = Machine::small();
    let pd = two_leaf_tables(&mut m);
    let entry = m.guest.read(Gpa(pd));
    let s = m.counted(|m| assert_eq!(m.pt_store(pd, entry), 1));
    assert_eq!((s.exits_emulated_write, s.all_exits(), s.shadow_pages_zapped), (1, 1, 0));
    assert_eq!(m.shadow.take_flush(), Flush::All);
    assert!(m.walk(0, USER).is_none(), "the entry is zapped though the store changed nothing");
    assert!(m.walk(0, USER + (512 << 12)).is_some());
    // The leaf table is still in the hash: one exit links it again, with all it had.
    let s = m.counted(|m| assert_eq!(m.read(USER), 1));
    assert_eq!(s.shadow_pages_made, 0);
}

#[test]
fn third_write_to_a_non_leaf_table_zaps_it_and_its_unsync_children_only() {
    let mut m = Machine::small();
    let pd = two_leaf_tables(&mut m);
    let pte = m.user(1, PAGE);
    m.read(DIRECT + pte);
    m.pt_store(pte, 0); // the first leaf table becomes unsync
    let pages = m.shadow.pages();
    let s = m.counted(|m| {
        m.pt_store(pd + 16, 0);
        m.pt_store(pd + 24, 0);
    });
    assert_eq!((s.exits_emulated_write, s.shadow_pages_zapped), (2, 0));
    let s = m.counted(|m| _ = m.pt_store(pd + 32, 0));
    assert_eq!((s.exits_emulated_write, s.shadow_pages_zapped), (1, 2));
    assert_eq!(m.shadow.pages(), pages - 2);
    assert_eq!(m.pt_store(pd + 40, 0), 1, "the kernel's mapping of it stays read-only until it faults");
    assert_eq!(m.pt_store(pd + 48, 0), 0);
    let s = m.counted(|m| _ = m.read(USER + (512 << 12)));
    assert_eq!(s.shadow_pages_made, 1, "the synced leaf table was kept");
}

#[test]
fn a_walk_through_a_non_leaf_table_resets_its_write_flooding_count() {
    let mut m = Machine::small();
    let pd = two_leaf_tables(&mut m);
    for n in 0..6 {
        m.pt_store(pd + 32, 0);
        m.map(m.root, USER + (8 + n) * 0x8000, 20 << 12 | PAGE, PageSize::Size4K);
        m.read(USER + (8 + n) * 0x8000); // a hidden fault walks through it
    }
    assert_eq!((m.out.exits_emulated_write, m.out.shadow_pages_zapped), (6, 0));
}

#[test]
fn a_store_by_another_kind_of_instruction_unprotects_the_table_and_is_retried() {
    let mut m = Machine::small();
    let pd = two_leaf_tables(&mut m);
    let s = m.counted(|m| assert_eq!(m.on(0, DIRECT + pd, WriteOther), 2));
    // The exit that unprotects it, and one for the spte that was left read-only.
    assert_eq!((s.exits_unprotect, s.exits_permission), (1, 1));
    assert_eq!(s.shadow_pages_zapped, 1);
    assert_eq!(m.on(0, DIRECT + pd + 8, WriteOther), 0);
}

#[test]
fn a_store_by_another_kind_of_instruction_to_a_leaf_table_only_makes_it_unsync() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.map_protected(pte);
    let s = m.counted(|m| assert_eq!(m.on(0, DIRECT + pte, WriteOther), 1));
    assert_eq!((s.exits_unsync, s.shadow_pages_zapped), (1, 0));
}

#[test]
fn even_a_read_that_maps_a_synced_leaf_table_makes_it_unsync() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    let s = m.counted(|m| assert_eq!(m.read(DIRECT + pte), 1));
    assert_eq!(s.exits_hidden_fault, 1, "for the missing entry, which is set writable at once");
    assert_eq!(m.pt_store(pte, 0), 0);
    assert_eq!(m.counted(|m| m.load_cr3(m.root)).syncs, 1);
}

#[test]
fn a_sync_re_reads_only_the_entries_that_the_shadow_has() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.user(64, PAGE);
    m.read(USER);
    m.read(USER + (64 << 12));
    m.read(DIRECT + pte);
    m.pt_store(pte, 99 << 12 | PAGE); // changes frames
    m.pt_store(pte + 8 * 128, 100 << 12 | PAGE); // new
    m.pt_store(pte + 8 * 64, (64 + 16) << 12 | P | U | A); // write access goes
    let s = m.counted(|m| m.load_cr3(m.root));
    assert_eq!(s.syncs, 1);
    assert!(m.walk(0, USER).is_none(), "dropped, not replaced: its frame changed");
    assert!(m.walk(0, USER + (128 << 12)).is_none(), "a new entry still costs a hidden fault");
    assert_eq!(m.walk(0, USER + (64 << 12)).unwrap().1 & W, 0);
    invariants::check(&m.shadow, m.world());
}

#[test]
fn a_sync_makes_no_table_writable() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.map_protected(pte);
    // The leaf table that maps the user's leaf table becomes unsync, and is synced.
    let at = m.guest.lookup(Gpa(m.root << 12), Gva(DIRECT + pte)).unwrap().step;
    m.pt_store(at.at, at.entry);
    let s = m.counted(|m| m.load_cr3(m.root));
    assert_eq!(s.syncs, 1);
    assert_eq!(m.walk(0, DIRECT + pte).unwrap().1 & W, 0);
    assert_eq!(m.counted(|m| m.load_cr3(m.root)).syncs, 0);
}

#[test]
fn a_sync_leaves_the_mapping_of_an_unsync_table_read_only_too() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    let alias = USER + 0x10_0000;
    m.map(m.root, alias, (pte & !0xfff) | PAGE, PageSize::Size4K);
    m.read(USER);
    m.map_protected(pte);
    m.write(alias); // unsync, while the kernel's mapping stays read-only
    let at = m.guest.lookup(Gpa(m.root << 12), Gva(DIRECT + pte)).unwrap().step;
    m.pt_store(at.at, at.entry);
    let other = m.space();
    m.load_cr3(other);
    let s = m.counted(|m| _ = m.read(DIRECT)); // links the kernel's tables, not the user's
    assert_eq!(s.syncs, 1);
    assert_eq!(m.walk(0, DIRECT + pte).unwrap().1 & W, 0);
}

#[test]
fn an_upper_table_found_in_the_hash_is_synced_before_it_is_linked() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.user(1, PAGE);
    m.read(USER);
    let pdpt = m.guest.read(Gpa(m.root << 12)) & !0xfff;
    let entry = m.guest.read(Gpa(pdpt + 8));
    m.pt_store(pte, 99 << 12 | PAGE); // the leaf table is unsync
    m.pt_store(pdpt + 8, entry); // the level-2 table is unlinked with it
    let s = m.counted(|m| m.load_cr3(m.root));
    assert_eq!(s.syncs, 0, "nothing unsync below the root");
    let s = m.counted(|m| assert_eq!(m.read(USER + 0x1000), 1));
    assert_eq!((s.syncs, s.shadow_pages_made), (1, 0));
    invariants::check(&m.shadow, m.world());
}

#[test]
fn a_leaf_table_found_unsync_is_re_read_but_stays_unsync() {
    let mut m = Machine::small();
    let pd = two_leaf_tables(&mut m);
    let pte = m.user(0, PAGE);
    m.pt_store(pte, 99 << 12 | PAGE);
    let entry = m.guest.read(Gpa(pd));
    m.pt_store(pd, entry); // unlinks it
    let s = m.counted(|m| _ = m.read(USER));
    assert_eq!(s.syncs, 1);
    assert_eq!(m.pt_store(pte, 98 << 12 | PAGE), 0);
    assert_eq!(m.counted(|m| m.load_cr3(m.root)).syncs, 1);
}

#[test]
fn a_frame_that_becomes_an_upper_table_loses_its_unsync_shadow_as_a_leaf_table() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.pt_store(pte, 0); // unsync
    let pdpt = m.guest.read(Gpa(m.root << 12)) & !0xfff;
    let frame = pte >> 12;
    m.guest.add(frame, 2, &[0; 512]);
    m.guest.store(Gpa(pdpt + 16), frame << 12 | TABLE); // 1 GB further up
    m.map(m.root, USER + (1 << 30), 20 << 12 | PAGE, PageSize::Size4K);
    let s = m.counted(|m| _ = m.read(USER + (1 << 30)));
    assert_eq!((s.shadow_pages_made, s.shadow_pages_zapped), (2, 1));
}

#[test]
fn invlpg_zaps_an_entry_of_an_unsync_table_and_refills_it_if_accessed() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.user(1, PAGE);
    m.read(USER);
    m.read(DIRECT + pte);
    m.pt_store(pte, 99 << 12 | PAGE);
    m.pt_store(pte + 8, 98 << 12 | PAGE & !A);
    m.shadow.take_flush();
    m.invlpg(USER);
    assert_eq!(m.shadow.take_flush(), Flush::All);
    assert_eq!(m.read(USER), 0, "refilled at once");
    m.invlpg(USER + 0x1000);
    assert!(m.walk(0, USER + 0x1000).is_none(), "not accessed: zapped only");
    assert_eq!((m.out.exits_invlpg, m.out.syncs), (2, 0));
}

#[test]
fn invlpg_leaves_a_synced_table_alone_and_reaches_cached_roots() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.invlpg(USER);
    assert!(m.walk(0, USER).is_some());
    m.read(DIRECT + pte);
    let other = m.space();
    m.load_cr3(other);
    m.read(DIRECT + pte);
    m.pt_store(pte, 0);
    m.invlpg(USER); // from another address space: the first root is cached
    m.load_cr3(m.root);
    assert!(m.walk(0, USER).is_none());
}

#[test]
fn a_reflected_protection_fault_zaps_the_stale_entry_in_the_current_root() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.read(DIRECT + pte);
    m.pt_store(pte, 16 << 12 | P | U | A);
    m.shadow.invalidate_gva(0, Gva(USER), World { guest: &m.guest, host: &m.host });
    assert_eq!(m.walk(0, USER).unwrap().1 & W, 0);
    assert_eq!(m.shadow.take_flush(), Flush::All);
}

#[test]
fn shadowing_a_table_write_protects_the_mappings_of_its_frame() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.write(DIRECT + pte);
    m.shadow.take_flush();
    m.read(USER);
    assert_eq!(m.shadow.take_flush(), Flush::All);
    assert_eq!(m.walk(0, DIRECT + pte).unwrap().1 & W, 0);
}
