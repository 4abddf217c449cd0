// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Superfluous swap operations against a host that keeps a set of lines for each page.

use crate::random::cases;
use bifold_mmu::format::X86_64_4_LEVEL;
use bifold_mmu::{Gpa, Gva};
use bifold_model::guest::GuestTables;
use bifold_model::host::Taking;
use bifold_model::{Config, Model, Options, Profile, Swaps};
use bifold_trace::{DecodeError, Event, Generator, decode};
use proptest::prelude::*;
use std::collections::BTreeSet;

const PAGES: usize = 4;
const LINES: u64 = 64;

/// A stream that has stored to pages, these pages' addresses and frames, and the guest's frames.
fn begun() -> (Vec<u64>, Vec<(u64, u64)>, u64) {
    let generator = Generator::parse("gups:3000@32m").expect("a generator");
    let mut words = Vec::new();
    let mut keep = |w: &[u64]| {
        words.extend_from_slice(w);
        Ok::<(), DecodeError>(())
    };
    generator.run(&mut keep).expect("well-formed events");
    let mut tables = GuestTables::new(&X86_64_4_LEVEL);
    let (mut root, mut at, mut pages) = (Gpa(0), 0, Vec::new());
    while at < words.len() {
        let (event, length) = decode(&words[at..], at).expect("well-formed events");
        at += length;
        match event {
            Event::Cr3(value) => root = tables.root(0, value),
            Event::PtStore { gpa, new, old } => tables.store_word(Gpa(gpa), old, new),
            Event::Table { gfn, level, entries } => tables.add(gfn, level, entries),
            Event::Store(gva) => {
                let page = gva & !0xfff;
                let frame = tables.lookup(root, Gva(page)).expect("it took place").gpa(Gva(page)).frame();
                if pages.len() < PAGES && !pages.contains(&(page, frame)) {
                    pages.push((page, frame));
                }
            }
            _ => {}
        }
    }
    assert_eq!(pages.len(), PAGES);
    (words, pages, generator.guest_frames())
}

#[derive(Debug, Clone, Copy)]
enum Act {
    Load(usize, u64),
    Store(usize, u64),
    /// Stores to all lines but `0`, or to all.
    Fill(usize, bool),
    Transfer {
        page: usize,
        lines: (u64, u64),
        write: bool,
    },
    Swap(usize),
    Drop(usize),
}

fn act() -> impl Strategy<Value = Act> {
    let (page, line) = (0..PAGES, 0..LINES);
    let lines = prop_oneof![Just((0, LINES)), Just((0, 40)), Just((40, LINES)), Just((3, 4))];
    prop_oneof![
        2 => (page.clone(), line.clone()).prop_map(|(page, line)| Act::Load(page, line)),
        2 => (page.clone(), line).prop_map(|(page, line)| Act::Store(page, line)),
        3 => (page.clone(), any::<bool>()).prop_map(|(page, all)| Act::Fill(page, all)),
        4 => (page.clone(), lines, any::<bool>())
            .prop_map(|(page, lines, write)| Act::Transfer { page, lines, write }),
        8 => page.clone().prop_map(Act::Swap),
        1 => page.prop_map(Act::Drop),
    ]
}

/// A page of one host.
#[derive(Debug, Default, Clone)]
struct Page {
    swapped: bool,
    /// Swap has it too.
    in_swap: bool,
    on_disk: bool,
    absent: bool,
    /// Came back for a store, by a device if `true`, and these lines were stored since.
    open: Option<(bool, BTreeSet<u64>)>,
}

impl Page {
    /// Lines are used by the processor or a device.
    fn uses(&mut self, lines: impl Iterator<Item = u64>, write: bool, device: bool, counts: &mut Swaps) {
        let lines: BTreeSet<u64> = lines.collect();
        let whole = lines.len() as u64 == LINES;
        if std::mem::take(&mut self.swapped) {
            counts.reads += 1;
            self.in_swap = !write;
            self.open = write.then(|| (device, BTreeSet::new()));
            counts.double_paged += u64::from(device && !write);
        }
        // A transfer alone backs nothing.
        self.absent &= device;
        self.in_swap &= !write;
        if let Some((for_device, stored)) = &mut self.open {
            if write {
                stored.extend(&lines);
            }
            let all = stored.len() as u64 == LINES;
            if all {
                *(if *for_device { &mut counts.stale_reads } else { &mut counts.false_reads }) += 1;
            }
            if all || (!write && !lines.is_subset(stored)) {
                self.open = None;
            }
        }
        match (device, write, whole) {
            (true, _, true) => self.on_disk = true,
            (_, true, _) => self.on_disk = false,
            _ => {}
        }
    }

    fn swap(&mut self, counts: &mut Swaps) {
        if self.swapped || self.absent {
            return;
        }
        if !self.in_swap {
            counts.writes += 1;
            counts.silent_writes += u64::from(self.on_disk);
        }
        (self.swapped, self.in_swap, self.open) = (true, true, None);
    }
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn swap_operations_are_those_of_a_host_that_keeps_sets_of_lines(
        acts in prop::collection::vec(act(), 1..200), resident in any::<bool>(),
    ) {
        let (words, pages, guest_frames) = begun();
        let profile = Profile::load("i5-7600", &[]).expect("a profile");
        // Nested and shadow paging, and native, which has no host.
        let configs = vec![Config::ALL[1], Config::ALL[3], Config::ALL[0]];
        let mut model = Model::new(&profile, Options { configs, guest_frames, ..Options::default() });
        model.watch_swaps();
        // What the host holds before the start makes new hosts.
        let mut held = Vec::new();
        if resident {
            Event::Resident { gfn: 0, frames: 1 }.encode(&mut held);
        }
        model.consume(&held).expect("well-formed events");
        model.consume(&words).expect("well-formed events");
        let mut slow = vec![Page::default(); PAGES];
        let mut counts = Swaps::default();
        for act in acts {
            let mut words = Vec::new();
            let address = |page: usize, line: u64| pages[page].0 + 64 * line + 8;
            match act {
                Act::Load(page, line) => {
                    Event::Load(address(page, line)).encode(&mut words);
                    // A load of a dropped page finds the zero page, which is not swapped. A store follows.
                    if slow[page].absent {
                        Event::Store(address(page, line)).encode(&mut words);
                    }
                    let write = slow[page].absent;
                    slow[page].uses(line..line + 1, write, false, &mut counts);
                }
                Act::Store(page, line) => {
                    Event::Store(address(page, line)).encode(&mut words);
                    slow[page].uses(line..line + 1, true, false, &mut counts);
                }
                Act::Fill(page, all) => {
                    for line in u64::from(!all)..LINES {
                        Event::Store(address(page, line)).encode(&mut words);
                        slow[page].uses(line..line + 1, true, false, &mut counts);
                    }
                }
                Act::Transfer { page, lines: (from, to), write } => {
                    let (gpa, bytes) = ((pages[page].1 << 12) + 64 * from, 64 * (to - from) as u32);
                    Event::Transfer { gpa, bytes, write }.encode(&mut words);
                    slow[page].uses(from..to, write, true, &mut counts);
                }
                Act::Swap(page) => {
                    let frame = pages[page].1;
                    (0..3).for_each(|host| model.take_back(host, frame..frame + 1, Taking::Swap));
                    slow[page].swap(&mut counts);
                }
                Act::Drop(page) => {
                    let frame = pages[page].1;
                    (0..3).for_each(|host| model.take_back(host, frame..frame + 1, Taking::Discard));
                    let on_disk = slow[page].on_disk;
                    slow[page] = Page { absent: true, on_disk, ..Page::default() };
                }
            }
            model.consume(&words).expect("well-formed events");
            prop_assert_eq!(model.swaps(0), counts, "nested: {:?}", act);
            prop_assert_eq!(model.swaps(1), counts, "shadow: {:?}", act);
            prop_assert_eq!(model.swaps(2), Swaps::default(), "native");
        }
    }
}

#[test]
fn a_host_with_a_limit_counts_what_it_writes_and_reads() {
    let (words, _, guest_frames) = begun();
    let profile = Profile::load("i5-7600", &[]).expect("a profile");
    let mut model = Model::new(&profile, Options { guest_frames, ..Options::default() });
    model.limit_hosts(1500);
    model.consume(&words).expect("well-formed events");
    for host in 1..5 {
        let swaps = model.swaps(host);
        assert_eq!(swaps.reads, model.swapped_in(host));
        assert!(swaps.writes > swaps.reads && swaps.reads > 10, "{swaps:?}");
        assert_eq!((swaps.silent_writes, swaps.stale_reads, swaps.double_paged), (0, 0, 0));
    }
    assert_eq!(model.swaps(0), Swaps::default());
}
