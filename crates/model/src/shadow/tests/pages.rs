// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Leaf entries: prefetch, clean and cold pages, large pages, the budget.

use super::*;

#[test]
fn a_hidden_fault_fills_its_aligned_block_of_eight() {
    let mut m = Machine::small();
    (0..16).for_each(|n| _ = m.user(n, PAGE));
    assert_eq!(m.read(USER + 0x5000), 1);
    for n in 0..16 {
        assert_eq!(m.walk(0, USER + (n << 12)).is_some(), n < 8, "page {n}");
    }
    assert_eq!(m.walk(0, USER + 0x5000).unwrap().1 & A, A);
    assert_eq!(m.walk(0, USER).unwrap().1 & A, 0, "a prefetched entry is not accessed");
}

#[test]
fn prefetch_stops_at_the_first_neighbour_not_accessed() {
    let mut m = Machine::small();
    (0..8).for_each(|n| _ = m.user(n, if n == 3 { PAGE & !A } else { PAGE }));
    m.read(USER + 0x1000);
    let filled: Vec<u64> = (0..8).filter(|n| m.walk(0, USER + (n << 12)).is_some()).collect();
    assert_eq!(filled, [0, 1, 2]);
}

#[test]
fn prefetch_stops_at_an_absent_neighbour_even_before_the_faulting_entry() {
    let mut m = Machine::small();
    (0..8).for_each(|n| _ = m.user(n, if n == 0 { 0 } else { PAGE }));
    m.read(USER + 0x6000);
    let filled: Vec<u64> = (0..8).filter(|n| m.walk(0, USER + (n << 12)).is_some()).collect();
    assert_eq!(filled, [6]);
}

#[test]
fn prefetch_stops_at_a_neighbour_that_the_host_has_not_backed_for_writing() {
    let mut host = HostMemory::new(PageSize::Size4K, FRAMES, Default::default(), 7);
    (16..24).filter(|&f| f != 18).for_each(|f| _ = host.touch(Gpa::from_frame(f), true, 0));
    host.touch(Gpa::from_frame(18), false, 0); // the zero page will not do
    let mut m = Machine::with(&X86_64_4_LEVEL, host, PageSize::Size4K);
    (0..8).for_each(|n| _ = m.user(n, PAGE));
    m.read(USER);
    let filled: Vec<u64> = (0..8).filter(|n| m.walk(0, USER + (n << 12)).is_some()).collect();
    assert_eq!(filled, [0, 1]);
}

#[test]
fn prefetch_maps_a_synced_table_read_only() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.read(DIRECT + pte - 0x1000); // a neighbour of the table's frame or the table's block
    m.read(DIRECT + pte + 0x1000);
    if let Some((_, spte, _)) = m.walk(0, DIRECT + pte) {
        assert_eq!(spte & W, 0);
    }
    invariants::check(&m.shadow, m.world());
}

#[test]
fn a_clean_page_is_mapped_read_only_and_its_first_write_is_one_more_exit() {
    let mut m = Machine::small();
    let pte = m.user(0, PAGE & !D);
    assert_eq!(m.read(USER), 1);
    let s = m.counted(|m| assert_eq!(m.write(USER), 1));
    assert_eq!(s.exits_permission, 1);
    assert_eq!(m.guest.read(Gpa(pte)) & D, D);
    assert_eq!(m.write(USER), 0);
}

#[test]
fn a_write_to_a_clean_page_at_once_is_one_exit() {
    let mut m = Machine::small();
    m.user(0, PAGE & !(A | D));
    assert_eq!(m.write(USER), 1);
    assert_eq!(m.out.exits_hidden_fault, 1);
}

#[test]
fn a_cold_frame_costs_no_exit_of_its_own() {
    let host = HostMemory::new(PageSize::Size4K, FRAMES, Default::default(), 7);
    let mut m = Machine::with(&X86_64_4_LEVEL, host, PageSize::Size4K);
    m.user(0, PAGE);
    assert_eq!(m.write(USER), 1);
    assert_eq!((m.out.exits_hidden_fault, m.out.frames_backed), (1, 1));
}

#[test]
fn a_cold_frame_read_and_then_written_costs_three_exits_as_the_host_replaces_the_zero_page() {
    let host = HostMemory::new(PageSize::Size4K, FRAMES, Default::default(), 7);
    let mut m = Machine::with(&X86_64_4_LEVEL, host, PageSize::Size4K);
    m.user(0, PAGE);
    assert_eq!(m.read(USER), 1);
    assert_eq!(m.walk(0, USER).unwrap().1 & W, 0);
    m.shadow.take_flush();
    assert_eq!(m.write(USER), 2, "the first only replaces the page and is dropped as stale");
    assert_eq!(m.shadow.take_flush(), Flush::All);
    assert_eq!((m.out.exits_hidden_fault, m.out.frames_backed), (3, 2));
    assert_eq!(m.write(USER), 0);
}

#[test]
fn replacing_the_zero_page_unmaps_it_everywhere() {
    let host = HostMemory::new(PageSize::Size4K, FRAMES, Default::default(), 7);
    let mut m = Machine::with(&X86_64_4_LEVEL, host, PageSize::Size4K);
    m.user(0, PAGE);
    m.read(USER);
    m.read(DIRECT + (16 << 12));
    m.write(USER);
    assert_eq!(m.read(DIRECT + (16 << 12)), 1, "kvm_unmap_gfn_range took the other mapping as well");
}

#[test]
fn a_guest_2m_page_on_a_4k_host_is_a_direct_page_filled_by_blocks_of_eight() {
    let mut m = Machine::small();
    m.map(m.root, USER, (2 << 21) | PAGE, PageSize::Size2M);
    let s = m.counted(|m| assert_eq!(m.read(USER + 0x3000), 1));
    // root exists; levels 3 and 2 are shadowed, the third page is direct
    assert_eq!(s.shadow_pages_made, 3);
    assert_eq!(m.walk(0, USER + 0x3000).unwrap().2, 1);
    let filled = (0..512).filter(|n| m.walk(0, USER + (n << 12)).is_some()).count();
    assert_eq!(filled, 8);
    let s = m.counted(|m| (0..512).for_each(|n| _ = m.write(USER + (n << 12))));
    assert_eq!((s.exits_hidden_fault, s.all_exits()), (63, 63));
}

#[test]
fn direct_prefetch_skips_present_entries_and_ends_at_a_run_whose_first_frame_is_not_resident() {
    let mut host = HostMemory::new(PageSize::Size4K, FRAMES, Default::default(), 7);
    for f in [0, 1, 3, 5, 6, 7] {
        host.touch(Gpa::from_frame((2 << 9) + f), true, 0); // 2 and 4 are cold
    }
    let mut m = Machine::with(&X86_64_4_LEVEL, host, PageSize::Size4K);
    m.map(m.root, USER, (2 << 21) | PAGE, PageSize::Size2M);
    let filled =
        |m: &Machine| -> Vec<u64> { (0..8).filter(|n| m.walk(0, USER + (n << 12)).is_some()).collect() };
    m.read(USER + 0x5000);
    // Run 0..=4 as far as it is resident, then run 6..=7.
    assert_eq!(filled(&m), [0, 1, 5, 6, 7]);
    m.write(USER + 0x4000);
    // Run 2..=3 begins with a cold frame: that ends it.
    assert_eq!(filled(&m), [0, 1, 4, 5, 6, 7]);
}

#[test]
fn a_clean_guest_2m_page_gets_another_direct_page_when_it_is_written() {
    let mut m = Machine::small();
    m.map(m.root, USER, (2 << 21) | PAGE & !D, PageSize::Size2M);
    m.read(USER);
    m.shadow.take_flush();
    let s = m.counted(|m| assert_eq!(m.write(USER + 0x1000), 1));
    assert_eq!((s.exits_permission, s.shadow_pages_made, s.shadow_pages_zapped), (1, 1, 0));
    assert_eq!(m.shadow.take_flush(), Flush::All);
    assert!(m.walk(0, USER + 0x8000).is_none());
}

#[test]
fn a_guest_2m_page_on_a_2m_host_is_a_large_spte() {
    let mut m = Machine::new(PageSize::Size2M, PageSize::Size2M);
    m.map(m.root, USER, (2 << 21) | PAGE, PageSize::Size2M);
    assert_eq!(m.write(USER + 0x3000), 1);
    assert_eq!(m.walk(0, USER).unwrap().2, 2);
    assert_eq!((0..512).map(|n| m.write(USER + (n << 12))).sum::<u64>(), 0);
}

#[test]
fn guest_4k_pages_on_a_2m_host_stay_4k() {
    let mut m = Machine::new(PageSize::Size2M, PageSize::Size2M);
    m.user(0, PAGE);
    m.read(USER);
    assert_eq!(m.walk(0, USER).unwrap().2, 1);
}

#[test]
fn a_shadowed_table_inside_a_2m_frame_forbids_the_large_spte_there() {
    let mut m = Machine::new(PageSize::Size2M, PageSize::Size2M);
    let pte = m.user(0, PAGE);
    m.read(USER);
    m.read(DIRECT + pte);
    assert_eq!(m.walk(0, DIRECT + pte).unwrap().2, 1);
    m.read(DIRECT);
    assert_eq!(m.walk(0, DIRECT).unwrap().2, 2, "elsewhere it is large");
}

#[test]
fn shadowing_a_table_inside_a_large_spte_protects_it_and_the_next_write_splits_it() {
    let mut m = Machine::new(PageSize::Size2M, PageSize::Size2M);
    // A leaf table in a frame whose 2 MB hold no other table.
    let frame = 4 << 9;
    let pte = m.user(0, PAGE);
    let entries = *m.guest.entries(pte >> 12, 0).unwrap();
    m.guest.add(frame, 1, &entries);
    let window = DIRECT + (frame << 12);
    m.write(window + 0x5000);
    assert_eq!(m.walk(0, window).unwrap().2, 2);
    let pd = m.guest.read(Gpa(m.guest.read(Gpa(m.root << 12)) & !0xfff | 8)) & !0xfff;
    m.guest.store(Gpa(pd), frame << 12 | TABLE);
    m.shadow.take_flush();
    m.read(USER);
    assert_eq!(m.shadow.take_flush(), Flush::All);
    let (_, spte, level) = m.walk(0, window).unwrap();
    assert_eq!((spte & W, level), (0, 2), "protected as a whole");
    assert_eq!(m.read(window + 0x9000), 0, "reads still use it");
    let s = m.counted(|m| assert_eq!(m.write(window + 0x9000), 1));
    assert_eq!((s.exits_permission, s.shadow_pages_made), (1, 1));
    assert_eq!(m.walk(0, window + 0x9000).unwrap().2, 1);
    invariants::check(&m.shadow, m.world());
}

#[test]
fn a_guest_1g_page_takes_two_levels_of_direct_pages_on_a_4k_host_and_one_on_a_2m_host() {
    for (host, made, level) in [(PageSize::Size4K, 3, 1), (PageSize::Size2M, 2, 2)] {
        let mut m = Machine::new(host, PageSize::Size2M);
        m.map(m.root, USER, 1 << 30 | PAGE, PageSize::Size1G);
        let s = m.counted(|m| assert_eq!(m.read(USER + 0x3000), 1));
        // The guest's level-3 table, and direct pages below it.
        assert_eq!((s.shadow_pages_made, m.walk(0, USER + 0x3000).unwrap().2), (made, level));
    }
}

#[test]
fn a_large_page_that_maps_its_own_tables_is_shadowed_by_4k_entries() {
    // The direct map in 1 GB pages: the tables that map it are inside.
    let mut m = Machine::new(PageSize::Size2M, PageSize::Size1G);
    m.write(DIRECT + 0x3000);
    assert_eq!(m.walk(0, DIRECT + 0x3000).unwrap().2, 1);
}

#[test]
fn the_budget_is_two_percent_and_at_least_64_and_frees_the_oldest_to_25() {
    let mut m = Machine::small();
    assert_eq!(m.shadow.max_pages(), FRAMES as usize / 50);
    assert_eq!(Shadow::new(&X86_64_4_LEVEL, 100, 1, KvmVersion::default()).max_pages(), 64);
    let max = m.shadow.max_pages();
    for n in 0.. {
        m.user(n * 512, PAGE);
        let s = m.counted(|m| _ = m.read(USER + n * (512 << 12)));
        assert!(m.shadow.pages() <= max);
        if s.shadow_pages_zapped != 0 {
            // Under 5 were free, so it zapped until 25 were; then the fault made its own.
            assert_eq!(m.shadow.pages(), max - 25 + s.shadow_pages_made as usize);
            assert_eq!(s.shadow_pages_made, 3, "the upper levels were among the oldest");
            break;
        }
    }
    assert!(m.walk(0, USER).is_none(), "the oldest leaf table went");
    assert_eq!(m.shadow.take_flush(), Flush::All);
    let s = m.counted(|m| assert_eq!(m.read(USER + 200 * (512 << 12)), 1));
    assert_eq!(s.shadow_pages_made, 0, "a younger one waits in the hash");
    invariants::check(&m.shadow, m.world());
}

#[test]
fn cold_exits_count_blocks_used_but_filled_before_the_interval() {
    let mut m = Machine::small();
    (0..32).for_each(|n| _ = m.user(n, PAGE));
    (0..32).for_each(|n| _ = m.read(USER + (n << 12)));
    assert_eq!(m.shadow.reuse(), [], "this interval filled them itself");
    m.shadow.begin_interval();
    (0..16).for_each(|n| _ = m.read(USER + (n << 12)));
    m.user(40, PAGE);
    m.read(USER + (40 << 12));
    m.read(USER + (40 << 12));
    assert_eq!(m.shadow.reuse().iter().map(|r| r.exits).sum::<u32>(), 2);
}

#[test]
fn going_round_more_tables_than_the_budget_finds_every_one_zapped() {
    let mut m = Machine::small();
    let tables = m.shadow.max_pages() as u64 + 70;
    for n in 0..tables {
        m.map(m.root, USER + (n << 21), (n + 16) << 12 | PAGE, PageSize::Size4K);
    }
    for pass in 0..4 {
        let s = m.counted(|m| (0..tables).for_each(|n| _ = m.write(USER + (n << 21))));
        assert_eq!(s.exits_hidden_fault, tables, "pass {pass}");
    }
}
