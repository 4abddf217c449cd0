// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `cpu.pcid`: Linux's six address spaces per CPU whose TLB entries survive a switch.

use crate::random::cases;
use crate::reference::{Counts, Reference};
use crate::reference::{GLOBAL, WRITE};
use crate::stream::NESTED_4K;
use crate::stream::{NATIVE, Stream, profile};
use bifold_model::Sample;
use bifold_trace::Event::{self, Cr3, Cr4, Fetch, Invlpg, Load, PtStore};
use proptest::prelude::*;

const VA: u64 = 0x40_4060_0000;
const KERNEL: u64 = 0xffff_ffff_8100_0000;

/// `n` address spaces, each with a page at VA and a global one at KERNEL, whose roots are
/// no neighbours (a pair of neighbours is one space under KPTI). Also the address of the
/// entry for VA in each.
fn spaces(n: u64) -> (Stream, Vec<u64>, Vec<u64>) {
    let mut stream = Stream::new();
    let mut roots = Vec::new();
    let mut entries = Vec::new();
    for i in 0..n {
        let root = stream.table(4);
        entries.push(stream.map(root, VA, 1, (0x1_0000 + i) << 12 | WRITE));
        stream.map(root, KERNEL, 1, 0x2_0000 << 12 | GLOBAL);
        roots.push(root << 12);
    }
    assert!(roots.windows(2).all(|r| r[1] > r[0] + 0x1000));
    (stream.start(roots[0] >> 12), roots, entries)
}

fn misses(stream: Stream, events: &[Event<'_>]) -> u64 {
    sample(stream, events).tlb_misses()
}

fn sample(stream: Stream, events: &[Event<'_>]) -> Sample {
    stream.and(events).run(&profile("geometry-g", &["cpu.pcid=true"]), NATIVE).total
}

#[test]
fn an_address_space_returned_to_keeps_its_entries() {
    let (stream, r, _) = spaces(2);
    let got = sample(stream, &[Load(VA), Cr3(r[1]), Load(VA), Cr3(r[0]), Load(VA), Cr3(r[1]), Load(VA)]);
    assert_eq!((got.tlb_misses(), got.tlb_flushes), (2, 1), "only the new space is flushed");
}

#[test]
fn two_spaces_never_share_an_entry_that_is_not_global() {
    let (stream, r, _) = spaces(2);
    assert_eq!(misses(stream, &[Load(VA), Cr3(r[1]), Load(VA)]), 2);
}

#[test]
fn a_global_entry_is_found_from_every_space_and_dropped_in_all_by_invlpg() {
    let (stream, r, _) = spaces(2);
    let events =
        [Load(KERNEL), Cr3(r[1]), Load(KERNEL), Invlpg(KERNEL), Load(KERNEL), Cr3(r[0]), Load(KERNEL)];
    assert_eq!(misses(stream, &events), 2);
}

#[test]
fn a_space_whose_tables_lost_an_entry_meanwhile_is_flushed_when_it_returns() {
    let (stream, r, at) = spaces(2);
    let change = PtStore { gpa: at[0], old: (0x1_0000 << 12) | WRITE | 1, new: (0x1_0009 << 12) | WRITE | 1 };
    assert_eq!(misses(stream, &[Load(VA), Cr3(r[1]), change, Cr3(r[0]), Load(VA)]), 2);
}

#[test]
fn a_space_whose_tables_only_gained_an_entry_is_not_flushed() {
    let (stream, r, at) = spaces(2);
    let gain = PtStore { gpa: at[0] + 8, old: 0, new: (0x1_0009 << 12) | WRITE | 1 };
    assert_eq!(misses(stream, &[Load(VA), Cr3(r[1]), gain, Cr3(r[0]), Load(VA)]), 1);
}

#[test]
fn a_change_elsewhere_does_not_flush_the_space() {
    let (stream, r, at) = spaces(3);
    let change = PtStore { gpa: at[2], old: 3, new: 0 };
    assert_eq!(misses(stream, &[Load(VA), Cr3(r[1]), change, Cr3(r[0]), Load(VA)]), 1);
}

#[test]
fn reloading_the_root_in_use_flushes_it() {
    let (stream, r, _) = spaces(1);
    assert_eq!(misses(stream, &[Load(VA), Load(KERNEL), Cr3(r[0]), Load(VA), Load(KERNEL)]), 3);
}

#[test]
fn invlpg_drops_the_entry_of_the_current_space_alone() {
    let (stream, r, _) = spaces(2);
    let events = [Load(VA), Cr3(r[1]), Load(VA), Invlpg(VA), Cr3(r[0]), Load(VA), Cr3(r[1]), Load(VA)];
    assert_eq!(misses(stream, &events), 3);
}

#[test]
fn a_toggle_of_global_pages_drops_every_space() {
    let (stream, r, _) = spaces(2);
    let events = [Cr4(0x80), Load(VA), Cr3(r[1]), Load(VA), Cr4(0), Cr4(0x80), Load(VA), Cr3(r[0]), Load(VA)];
    assert_eq!(misses(stream, &events), 4);
}

/// Every space in turn, twice over.
fn rounds(n: u64) -> u64 {
    let (stream, r, _) = spaces(n);
    let round: Vec<Event<'_>> = r.iter().flat_map(|&r| [Cr3(r), Load(VA)]).collect();
    misses(stream, &[round.clone(), round].concat())
}

#[test]
fn six_spaces_keep_their_entries() {
    assert_eq!(rounds(6), 6);
}

#[test]
fn seven_spaces_in_turn_overflow_six() {
    assert_eq!(rounds(7), 14);
}

#[test]
fn a_seventh_space_takes_the_first_ones_place_though_that_ran_last() {
    let (stream, r, _) = spaces(7);
    let mut events: Vec<Event<'_>> = r[..6].iter().flat_map(|&r| [Cr3(r), Load(VA)]).collect();
    events.extend([Cr3(r[0]), Cr3(r[6]), Load(VA)]);
    let before = misses(stream.clone(), &events);
    assert_eq!(before, 7);
    let back =
        |i: usize| misses(stream.clone(), &[events.clone(), vec![Cr3(r[i]), Load(VA)]].concat()) - before;
    assert_eq!([0, 1, 2, 5].map(back), [1, 0, 0, 0]);
}

#[test]
fn six_spaces_of_two_halves_each_keep_their_entries_under_kpti() {
    let mut stream = Stream::new();
    let mut roots = Vec::new();
    for i in 0..6 {
        // The user half's root is the page after the kernel half's.
        if stream.table(4) % 2 == 1 {
            stream.table(4);
        }
        let kernel = stream.table(4) & !1;
        for root in [kernel, kernel + 1] {
            roots.push(root);
            stream.set_root(root);
            stream.map(root, VA, 1, (0x1_0000 + i) << 12 | WRITE);
        }
    }
    let round: Vec<Event<'_>> = roots.iter().flat_map(|&r| [Cr3(r << 12), Load(VA)]).collect();
    let first = roots[0];
    assert_eq!(misses(stream.start(first), &[round.clone(), round].concat()), 12);
}

#[test]
fn the_space_that_runs_first_keeps_its_entries_though_it_is_a_user_half() {
    let mut stream = Stream::new();
    let kernel = stream.table(4);
    let user = stream.table(4);
    assert_eq!((kernel % 2, user), (0, kernel + 1));
    stream.map(user, VA, 1, 0x1_0000 << 12);
    let events = [Load(VA), Cr3(kernel << 12), Cr3(user << 12), Load(VA)];
    assert_eq!(misses(stream.start(user), &events), 1);
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn random_switches_between_eight_spaces_count_what_the_reference_counts(
        ops in proptest::collection::vec((0u8..30, 0u64..8, 0u64..40), 1..1500),
        name in prop_oneof![Just("i5-7600"), Just("phenom2-x3-720"), Just("geometry-g")],
    ) {
        let mut stream = Stream::new();
        let roots: Vec<u64> = (0..8).map(|_| stream.table(4)).collect();
        let page = |i: u64| if i < 30 { VA + i * 0x3000 } else { KERNEL + (i << 12) };
        for (n, &root) in (0..).zip(&roots) {
            for i in 0..40 {
                let bits = if i < 30 { (n * 40 + i) << 12 } else { i << 12 | GLOBAL };
                stream.map(root, page(i), 1, 0x1000_0000 + bits);
            }
        }
        let events: Vec<Event<'_>> = ops.into_iter().map(|(op, space, i)| match op {
            0..=3 => Cr3(roots[space as usize] << 12),
            4 => Invlpg(page(i)),
            5 => Cr4(if space == 0 { 0 } else { 0x80 }),
            6..=12 => Fetch(page(i) + 8),
            _ => Load(page(i)),
        }).collect();
        let small = match name {
            "geometry-g" => ["cpu.pcid=true", "tlb.l1d-4k.entries=8", "tlb.l2.entries=48"],
            "i5-7600" => ["cpu.pcid=true", "tlb.l1d-4k.entries=16", "tlb.l2.entries=48"],
            _ => ["cpu.pcid=true", "tlb.l1d.entries=10", "tlb.l2d-4k.entries=32"],
        };
        let profile = profile(name, &small);
        let stream = stream.start(roots[0]).and(&events);
        for config in [NATIVE, NESTED_4K] {
            let mut slow = Reference::new(&profile, config, 1 << 18, 1, 1);
            slow.consume(&stream.words);
            prop_assert_eq!(Counts::of(&stream.run(&profile, config)), slow.counts, "{}", config.name());
        }
    }
}
