// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Blocks of frames, states, splits and ages.

#![expect(clippy::single_range_in_vec_init, reason = "lists of ranges, which may have one")]

use super::*;
use std::collections::HashSet;

/// A page that the host cleared.
fn cleared(size: PageSize) -> Given {
    Given { size, from: Origin::Own }
}

#[test]
fn a_snapshots_pages_come_at_their_first_touch_and_a_files_once_more_for_a_write() {
    let memory = |page, vm| HostMemory::new(page, 2048, Frames::Aged, 1).of_state(vm);
    let at = Gpa(0x3000);
    let given = |from| Some(Given { size: PageSize::Size4K, from });
    let mut file = memory(PageSize::Size4K, VmState::Restored);
    assert_eq!(file.backing(at), Backing::Snapshot);
    assert_eq!((file.touch(at, false, 0), file.backing(at)), (given(Origin::File), Backing::Zero));
    assert_eq!((file.touch(at, true, 0), file.backing(at)), (given(Origin::Own), Backing::Own));
    assert_eq!(file.touch(Gpa(0x5000), true, 0), given(Origin::File), "a copy at once");
    assert_eq!(file.touch(Gpa(0x5000), true, 0), None);
    let mut uffd = memory(PageSize::Size4K, VmState::RestoredUffd);
    assert_eq!((uffd.touch(at, false, 0), uffd.backing(at)), (given(Origin::Uffd), Backing::Own));
    let mut huge = memory(PageSize::Size2M, VmState::RestoredUffd);
    assert_eq!(huge.touch(at, false, 0), Some(Given { size: PageSize::Size2M, from: Origin::Uffd }));
    assert_eq!(huge.touch(Gpa(0x1f_f000), true, 0), None);
    // A balloon's page is no page of the snapshot any more.
    uffd.take_back(3..4, Taking::Discard);
    assert_eq!(uffd.touch(at, true, 0), given(Origin::Own));
}

#[test]
fn no_two_guest_pages_share_a_host_frame() {
    for page in [PageSize::Size4K, PageSize::Size2M] {
        for placed in [Frames::Fresh, Frames::Aged] {
            let host = HostMemory::new(page, 1 << 18, placed, 42);
            let at = |n: u64| host.hpa(Gpa(n << page.shift())).0 >> page.shift();
            assert_eq!((0..100_000).map(at).collect::<HashSet<_>>().len(), 100_000);
        }
    }
}

#[test]
fn an_aged_host_has_blocks_of_each_order_in_their_shares() {
    let host = HostMemory::new(PageSize::Size4K, 1 << 20, Frames::Aged, 1);
    let mut shares = [0u32; AGED.len()];
    for n in 0..1u64 << 20 {
        let of = order(host.hpa(Gpa::from_frame(n))).unwrap();
        assert_eq!(order(host.hpa(Gpa::from_frame(n >> of << of))), Some(of), "a block has one order");
        shares[of as usize] += 1;
    }
    for (share, want) in shares.iter().zip(AGED) {
        assert!((*share as f64 / 4096.0 - f64::from(want)).abs() < 4.0, "{shares:?}");
    }
    let host = HostMemory::new(PageSize::Size4K, 1 << 20, Frames::Fresh, 1);
    assert_eq!(order(host.hpa(Gpa(0x1234_5678))), Some(9));
    assert_eq!(order(Hpa(0x1234_5678)), None, "the machine's own");
}

#[test]
fn a_read_then_a_write_of_a_cold_frame_are_two_touches() {
    let mut host = HostMemory::new(PageSize::Size4K, 16, Frames::Aged, 1);
    assert_eq!(host.touch(Gpa(0x3000), false, 0), Some(cleared(PageSize::Size4K)));
    assert_eq!(host.touch(Gpa(0x3fff), false, 0), None);
    assert_eq!(host.backing(Gpa(0x3000)), Backing::Zero);
    assert_eq!(host.touch(Gpa(0x3000), true, 0), Some(cleared(PageSize::Size4K)));
    assert_eq!(host.backing(Gpa(0x3000)), Backing::Own);
    assert_eq!(host.touch(Gpa(0x3000), true, 0), None);
}

#[test]
fn frames_held_are_pages_of_their_own_and_none_beyond_the_memory() {
    let mut host = HostMemory::new(PageSize::Size4K, 16, Frames::Aged, 1);
    host.hold(3, 2);
    host.hold(14, u64::MAX);
    host.hold(99, 1);
    let own = |n: &u64| host.backing(Gpa(n << 12)) == Backing::Own;
    assert_eq!((0..16).filter(own).collect::<Vec<_>>(), [3, 4, 14, 15]);
    let mut host = HostMemory::new(PageSize::Size2M, 2048, Frames::Aged, 1);
    host.hold(511, 2);
    assert_eq!([0u64, 1, 2].map(|n| host.backing(Gpa(n << 21)) == Backing::Own), [true, true, false]);
}

#[test]
fn a_2_mb_page_has_no_zero_page() {
    let mut host = HostMemory::new(PageSize::Size2M, 1024, Frames::Aged, 1);
    assert_eq!(host.touch(Gpa(0x3000), false, 0), Some(cleared(PageSize::Size2M)));
    assert_eq!(host.backing(Gpa(0x1f_ffff)), Backing::Own);
    assert_eq!(host.touch(Gpa(0x5000), true, 0), None);
}

/// State and page size of some frames.
fn at(host: &HostMemory, gfns: &[u64]) -> Vec<(Backing, PageSize)> {
    let of = |gfn: &u64| (host.backing(Gpa::from_frame(*gfn)), host.size_at(Gpa::from_frame(*gfn)));
    gfns.iter().map(of).collect()
}

#[test]
fn a_large_page_taken_in_part_stays_in_pieces_and_is_unmapped_whole() {
    let mut host = HostMemory::new(PageSize::Size2M, 2048, Frames::Aged, 1);
    for gfn in [0, 512, 1024] {
        host.touch(Gpa::from_frame(gfn), false, 0);
    }
    assert_eq!(host.take_back(510..514, Taking::Discard), [0..512, 512..1024]);
    let (own, absent) = (Backing::Own, Backing::Absent);
    let (small, large) = (PageSize::Size4K, PageSize::Size2M);
    assert_eq!(
        at(&host, &[509, 510, 513, 514, 1024, 1536]),
        [(own, small), (absent, small), (absent, small), (own, small), (own, large), (absent, large)]
    );
    assert_eq!(host.take_back(512..515, Taking::Discard), [514..515], "a piece that is there");
    assert_eq!(host.touch(Gpa::from_frame(512), false, 0), Some(cleared(small)));
    assert_eq!(host.backing(Gpa::from_frame(512)), Backing::Zero);
    assert_eq!(
        host.take_back(0..2048, Taking::Discard),
        (0..510)
            .chain([512])
            .chain(515..1024)
            .map(|gfn| gfn..gfn + 1)
            .chain([1024..1536])
            .collect::<Vec<_>>()
    );
    assert_eq!(at(&host, &[0, 1024]), [(absent, small), (absent, large)], "a table of 4 KB entries stays");
    assert!(host.take_back(1536..1537, Taking::Discard).is_empty(), "no page, no split");
    assert_eq!(host.touch(Gpa::from_frame(1600), false, 0), Some(cleared(large)));
}

#[test]
fn a_page_of_1_gb_splits_as_far_as_needed() {
    let mut host = HostMemory::new(PageSize::Size1G, 1 << 18, Frames::Aged, 1);
    host.touch(Gpa(0), true, 0);
    assert_eq!(host.take_back(1024..1537, Taking::Discard), [0..1 << 18]);
    let (own, absent) = (Backing::Own, Backing::Absent);
    let (small, large) = (PageSize::Size4K, PageSize::Size2M);
    assert_eq!(
        at(&host, &[0, 1024, 1535, 1536, 1537, 2048]),
        [(own, large), (absent, large), (absent, large), (absent, small), (own, small), (own, large)]
    );
}

#[test]
fn swap_takes_pages_of_the_guests_own_in_pieces_and_gives_them_back_for_a_read() {
    let mut host = HostMemory::new(PageSize::Size2M, 1024, Frames::Aged, 1);
    host.touch(Gpa(0), false, 0);
    assert_eq!(host.take_back(0..1024, Taking::Swap), [0..512]);
    assert_eq!(
        at(&host, &[0, 511, 512])[1..],
        [(Backing::Swapped, PageSize::Size4K), (Backing::Absent, PageSize::Size2M)]
    );
    assert_eq!(host.touch(Gpa(0x3000), false, 0), Some(cleared(PageSize::Size4K)));
    assert_eq!((host.backing(Gpa(0x3000)), host.swapped_in()), (Backing::Own, 1));
    assert!(host.take_back(5..6, Taking::Discard).is_empty(), "nothing maps what is in swap");
    assert_eq!(host.touch(Gpa(0x5000), false, 0), Some(cleared(PageSize::Size4K)));
    assert_eq!((host.backing(Gpa(0x5000)), host.swapped_in()), (Backing::Zero, 1), "the content is dropped");
    assert!(host.take_back(5..6, Taking::Swap).is_empty(), "the zero page is on no list");
}

#[test]
fn what_a_read_brings_back_is_read_only_until_a_write_on_6_1_and_writable_on_6_12() {
    for (kvm, after_read) in
        [(KvmVersion::Linux6_1, Backing::ReadOnly), (KvmVersion::Linux6_12, Backing::Own)]
    {
        let mut host = HostMemory::new(PageSize::Size4K, 16, Frames::Aged, 1).of_version(kvm);
        let mut back = |write| {
            host.touch(Gpa(0x3000), true, 0);
            assert_eq!(host.take_back(0..16, Taking::Swap), [3..4]);
            assert!(host.touch(Gpa(0x3000), write, 0).is_some());
            host.backing(Gpa(0x3000))
        };
        assert_eq!((back(true), back(false)), (Backing::Own, after_read));
        assert_eq!((host.touch(Gpa(0x3000), true, 0), host.backing(Gpa(0x3000))), (None, Backing::Own));
        assert_eq!(host.swapped_in(), 2, "the write brought nothing back");
    }
}

#[test]
fn the_oldest_pages_are_those_that_no_look_found_used_for_longest() {
    let mut host = HostMemory::new(PageSize::Size4K, 16, Frames::Aged, 1);
    (2..8).for_each(|gfn| _ = host.touch(Gpa::from_frame(gfn), true, 0));
    host.touch(Gpa::from_frame(9), false, 0);
    assert!(host.look(|gfns| gfns.start != 4));
    assert!(host.look(|gfns| gfns.start % 2 == 1));
    let first = |host: &mut HostMemory, most| host.oldest(most).iter().map(|p| p.start).collect::<Vec<_>>();
    assert_eq!(first(&mut host, 9), [4, 2, 6, 3, 5, 7]);
    host.take_back(4..5, Taking::Swap);
    host.touch(Gpa::from_frame(4), false, 0);
    host.touch(Gpa::from_frame(0), true, 0);
    assert!(!host.look(|_| false));
    assert_eq!(first(&mut host, 9), [2, 6, 3, 5, 7, 0, 4], "those backed since a look are young");
    assert_eq!(first(&mut host, 2), [2, 6]);
}

#[test]
fn a_device_s_transfer_brings_a_page_back_or_is_a_use_of_it() {
    for (page, second) in [(PageSize::Size4K, 1), (PageSize::Size2M, 512)] {
        let mut host = HostMemory::new(page, 1024, Frames::Aged, 1).of_version(KvmVersion::Linux6_1);
        host.hold(0, 1024);
        host.look(|_| false);
        host.take_back(0..1, Taking::Swap);
        assert!(host.transfer(Gpa(0), false) && host.swapped_in() == 1);
        assert_eq!(host.backing(Gpa(0)), Backing::ReadOnly);
        assert!(!host.transfer(Gpa(8), true) && host.swapped_in() == 1);
        assert_eq!(host.backing(Gpa(0)), Backing::Own);
        // A page that was there is older than those that a transfer used.
        assert!(!host.transfer(Gpa::from_frame(second), false));
        let oldest: Vec<_> = host.oldest(usize::MAX).iter().map(|page| page.start).collect();
        assert_eq!(oldest.iter().rev().take(2).collect::<Vec<_>>(), [&second, &0], "{page:?}");
        assert_eq!(host.backing(Gpa::from_frame(3000)), Backing::Own);
        assert!(!host.transfer(Gpa::from_frame(3000), true), "beyond the memory");
    }
}
