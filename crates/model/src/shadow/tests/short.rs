// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests in 32-bit mode: roots of four entries, and tables of 4-byte entries in several shadow pages.

use super::*;
use bifold_mmu::format::{PAE, X86_32};

fn machine(format: &'static Format) -> Machine {
    Machine::with(format, warm(PageSize::Size4K), PageSize::Size4K)
}

/// The same root on the vCPU again, with what the guest has in its table now.
fn reload(m: &mut Machine) -> Sample {
    m.counted(|m| m.load_cr3(m.root))
}

#[test]
fn a_root_of_pae_has_a_shadow_page_for_each_page_directory_and_is_replaced_when_an_entry_changes() {
    let mut m = machine(&PAE);
    assert_eq!(m.shadow.pages(), 1, "the direct map's page directory");
    assert_eq!(m.shadow.root(0, Gva(USER)), None);
    m.user(0, PAGE);
    let pdpte = m.root << 12 | PAE.offset(3, USER);
    assert_eq!(m.pt_store(pdpte, m.guest.read(Gpa(pdpte))), 1, "the hidden fault of the direct map");
    assert_eq!(m.pt_store(pdpte, m.guest.read(Gpa(pdpte))), 0, "the root's table is not tracked");
    let s = reload(&mut m);
    assert_eq!((s.root_misses, s.shadow_pages_made, s.exits_cr3_write), (1, 1, 1));
    assert_eq!(m.read(USER), 1);
    let s = reload(&mut m);
    assert_eq!((s.root_misses, s.shadow_pages_made), (0, 0), "the registers have what they had");
    assert_eq!(m.read(USER), 0);
    m.guest.store(Gpa(pdpte), 0);
    assert_eq!(m.read(USER), 0, "the registers have the entry");
    assert_eq!(reload(&mut m).root_misses, 1);
    assert_eq!(m.shadow.root(0, Gva(USER)), None);
    invariants::check(&m.shadow, m.world());
}

#[test]
fn no_root_of_a_guest_in_32_bit_mode_is_cached_but_its_pages_stay() {
    for format in [&PAE, &X86_32] {
        let mut m = machine(format);
        m.user(0, PAGE);
        let other = m.space();
        m.load_cr3(other);
        m.load_cr3(m.root);
        m.read(USER);
        let s = m.counted(|m| {
            m.load_cr3(other);
            m.load_cr3(m.root);
        });
        assert_eq!((s.root_misses, s.shadow_pages_made), (2, 0));
        assert_eq!(m.read(USER), 0);
        invariants::check(&m.shadow, m.world());
    }
}

#[test]
fn a_32_bit_page_directory_has_four_shadow_pages_and_a_leaf_table_two() {
    let mut m = machine(&X86_32);
    assert_eq!(m.shadow.pages(), 4);
    let first = m.user(0, PAGE);
    m.user(512, PAGE);
    let s = m.counted(|m| assert_eq!(m.read(USER), 1));
    assert_eq!(s.shadow_pages_made, 1);
    let s = m.counted(|m| assert_eq!(m.read(USER + (512 << 12)), 1));
    assert_eq!(s.shadow_pages_made, 1, "the other half of the same table");
    assert_eq!(m.shadow.pages.shadows_of(first >> 12).len(), 2);
    // A store makes both unsync.
    m.map_protected(first);
    assert_eq!(m.counted(|m| _ = m.pt_store(first + 4 * 512, 0)).exits_unsync, 1);
    assert_eq!(m.counted(|m| m.load_cr3(m.root)).syncs, 2);
    assert!(m.walk(0, USER + (512 << 12)).is_none() && m.walk(0, USER).is_some());
    invariants::check(&m.shadow, m.world());
}

#[test]
fn a_store_to_a_32_bit_page_directory_zaps_the_two_entries_of_its_quarter() {
    let mut m = machine(&X86_32);
    for n in [0, 512, 1024] {
        m.user(n, PAGE);
        m.read(USER + (n << 12));
    }
    let pde = m.root << 12 | X86_32.offset(2, USER);
    m.read(m.direct + pde);
    let entry = m.guest.read(Gpa(pde));
    let s = m.counted(|m| assert_eq!(m.pt_store(pde, entry), 1));
    assert_eq!((s.exits_emulated_write, s.shadow_pages_zapped), (1, 0));
    let mapped = |m: &Machine| [0, 512, 1024].map(|n: u64| m.walk(0, USER + (n << 12)).is_some());
    assert_eq!(mapped(&m), [false, false, true]);
    // Each of the four pages counts the stores, but for the quarter through which the stores go
    // (`shadow_page_table_clear_flood`). The third store zaps three, which go when no root has them any more.
    m.pt_store(pde, entry);
    let s = m.counted(|m| _ = m.pt_store(pde, entry));
    assert_eq!((s.exits_emulated_write, s.shadow_pages_zapped, s.shadow_pages_made), (1, 3 + 3, 3));
    assert_eq!(mapped(&m), [false; 3]);
    m.read(USER);
    invariants::check(&m.shadow, m.world());
}

#[test]
fn a_page_of_4_mb_is_shadowed_by_two_entries_or_by_direct_pages_of_2_mb() {
    for host in [PageSize::Size4K, PageSize::Size2M] {
        let mut m = Machine::with(&X86_32, warm(host), PageSize::Size4K);
        m.map(m.root, USER, 0x40_0000 | PAGE, PageSize::Size2M);
        for half in [0, 1 << 21] {
            let at = USER + half + 0x5000;
            let s = m.counted(|m| assert_eq!(m.write(at), 1));
            assert_eq!(s.shadow_pages_made, u64::from(host == PageSize::Size4K));
            let (_, spte, level) = m.walk(0, at).unwrap();
            let gpa = Gpa(0x40_0000 + half + if level == 1 { 0x5000 } else { 0 });
            assert_eq!((level, PAE.target(level, spte)), (host.level(), m.host.hpa(gpa).0));
        }
        invariants::check(&m.shadow, m.world());
    }
}
