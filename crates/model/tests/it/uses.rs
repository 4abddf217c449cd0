// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The use of memory: beside what the slow way finds in the stream, and the same whatever else watches the
//! run.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::{cases, profile};
use bifold_mmu::format::X86_64_4_LEVEL;
use bifold_mmu::{Gpa, Gva};
use bifold_model::guest::GuestTables;
use bifold_model::host::Taking;
use bifold_model::{
    CacheMode, Config, Model, Options, Outcome, Placement, PlacementOptions, Profile, UseError, UseOptions,
};
use bifold_reclaim::{MemoryUse, ReferenceKind};
use bifold_trace::event::gap;
use bifold_trace::{DecodeError, Event, Generator, decode};
use proptest::prelude::*;
use std::collections::BTreeSet;
use std::num::NonZeroU64;
use std::ops::Range;

fn watch() -> UseOptions {
    UseOptions { interval: NonZeroU64::new(1000).expect("not 0"), optimum: 1 << 24 }
}

/// The use of memory in a run, and its outcome.
fn run(profile: &Profile, options: Options, words: &[u64], charges: bool) -> (MemoryUse, Outcome) {
    let mut model = Model::new(profile, options);
    if charges {
        model.charge(false);
    }
    model.watch_uses(watch()).expect("native among the configurations");
    model.consume(words).expect("well-formed events");
    (model.take_uses().expect("it was watched"), model.finish())
}

fn words(generator: &str) -> (Vec<u64>, u64) {
    let generator = Generator::parse(generator).expect("a generator");
    let mut words = Vec::new();
    let mut keep = |w: &[u64]| {
        words.extend_from_slice(w);
        Ok::<(), DecodeError>(())
    };
    generator.run(&mut keep).expect("well-formed events");
    (words, generator.guest_frames())
}

/// All that a run says of its memory.
fn all(uses: &MemoryUse) -> impl PartialEq + std::fmt::Debug {
    let curves = ReferenceKind::ALL.map(|kind| uses.curve_of(kind));
    let optimum = [768, 1000, 3000, 20_000].map(|frames| uses.optimum(frames));
    (curves, optimum, uses.intervals().to_vec(), uses.held())
}

/// By translating each access of the stream on its own: references to data and to code, and the frames of
/// both.
#[derive(Debug, Default, PartialEq)]
struct Slow {
    data: u64,
    code: u64,
    frames: BTreeSet<u64>,
}

fn slow(words: &[u64], vcpus: usize, frames: u64) -> Slow {
    let mut tables = GuestTables::new(&X86_64_4_LEVEL);
    let (mut roots, mut vcpu, mut found, mut at) = (vec![Gpa(0); vcpus], 0, Slow::default(), 0);
    while at < words.len() {
        let (event, length) = decode(&words[at..], at).expect("well-formed events");
        at += length;
        let (gva, count) = match event {
            Event::Load(gva) | Event::LoadDependent(gva) | Event::LoadBeforeChain(gva) => {
                (gva, &mut found.data)
            }
            Event::Store(gva) | Event::StoreOther(gva) => (gva, &mut found.data),
            Event::Fetch(gva) => (gva, &mut found.code),
            Event::Vcpu(n) => {
                vcpu = n as usize;
                continue;
            }
            Event::Cr3(value) => {
                roots[vcpu] = tables.root(vcpu, value);
                continue;
            }
            Event::PtStore { gpa, new, old } => {
                tables.store_word(Gpa(gpa), old, new);
                continue;
            }
            Event::Table { gfn, level, entries } => {
                tables.add(gfn, level, entries);
                continue;
            }
            Event::Retire { gfn } => {
                tables.retire(gfn);
                continue;
            }
            _ => continue,
        };
        let leaf = tables.lookup(roots[vcpu], Gva(gva)).expect("accesses in the stream took place");
        let frame = leaf.gpa(Gva(gva)).frame();
        if frame < frames {
            *count += 1;
            found.frames.insert(frame);
        }
    }
    found
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn references_are_those_of_the_stream_and_of_native_walks(
        which in 0..crate::random::PROFILES, variant in 0usize..12, ops in ops(1500), cpus in 1usize..3,
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let options = |configs: &[Config]| {
            Options { configs: configs.to_vec(), guest_frames: FRAMES, vcpus: cpus, ..Options::default() }
        };
        let profile = profile(which, variant);
        let (uses, outcome) = run(&profile, options(&Config::ALL[..1]), &guest.words, false);
        let slow = slow(&guest.words, cpus, FRAMES);
        let references = |kind| uses.curve_of(kind).references();
        prop_assert_eq!(references(ReferenceKind::Data), slow.data);
        prop_assert_eq!(references(ReferenceKind::Code), slow.code);
        prop_assert_eq!(references(ReferenceKind::Walk), outcome.configs[0].total.guest_refs);
        prop_assert!(uses.held() >= slow.frames.len() as u64);
        let (beside, _) = run(&profile, options(&Config::ALL), &guest.words, false);
        prop_assert_eq!(all(&uses), all(&beside));
    }
}

#[test]
fn nothing_else_that_watches_changes_the_use_of_memory_and_watching_changes_nothing_else() {
    let profile = Profile::load("i5-7600", &[]).expect("a profile");
    for generator in ["t:20000", "gups:20000@64m", "fork-storm:12", "pointer-chase:20000"] {
        let (words, guest_frames) = words(generator);
        let options = |caches, placed| Options { guest_frames, caches, placed, ..Options::default() };
        let placed = || {
            let placements = Placement::ALL.to_vec();
            Some(PlacementOptions { placements, host_nodes: 2, guest_nodes: Vec::new() })
        };
        let (alone, _) = run(&profile, options(CacheMode::Off, None), &words, false);
        assert!(alone.curve().misses(256) > alone.curve().first(), "{generator}");
        for (caches, placed, charges) in [
            (CacheMode::Sampled, None, false),
            (CacheMode::Exact, None, false),
            (CacheMode::Off, placed(), false),
            (CacheMode::Exact, placed(), false),
            (CacheMode::Off, None, true),
        ] {
            let options = options(caches, placed);
            let (uses, watched) = run(&profile, options.clone(), &words, charges);
            assert_eq!(all(&uses), all(&alone), "{generator}, {caches:?}");
            let mut model = Model::new(&profile, options);
            model.consume(&words).expect("well-formed events");
            assert_eq!(model.finish(), watched, "{generator}, {caches:?}");
        }
    }
}

fn first_load(words: &[u64]) -> u64 {
    let mut at = 0;
    loop {
        match decode(&words[at..], at).expect("well-formed events") {
            (Event::Load(gva), _) => return gva,
            (_, length) => at += length,
        }
    }
}

#[test]
fn a_region_counts_from_its_beginning_and_finds_memory_as_it_is() {
    let (words, guest_frames) = words("t:20000");
    let options = Options { guest_frames, ..Options::default() };
    let profile = Profile::load("i5-7600", &[]).expect("a profile");
    let mut model = Model::new(&profile, options.clone());
    model.watch_uses(watch()).expect("native among the configurations");
    model.consume(&words).expect("well-formed events");
    let mut begin = Vec::new();
    Event::Gap(gap::REGION).encode(&mut begin);
    Event::Load(first_load(&words)).encode(&mut begin);
    Event::Insns(10).encode(&mut begin);
    model.consume(&begin).expect("well-formed events");
    let uses = model.take_uses().expect("it was watched");
    // The page was used before the region, and long ago.
    let curve = uses.curve_of(ReferenceKind::Data);
    assert_eq!((curve.references(), curve.first(), curve.misses(256)), (1, 0, 1));
    assert_eq!(uses.intervals().iter().map(|i| i.instructions).collect::<Vec<_>>(), [10]);
    assert_eq!(uses.held(), run(&profile, options, &words, false).0.held());
}

/// The same by the calls of a reclaimer, without shortcuts, and checks what hosts hold.
fn limited_by_hand(model: &mut Model, limit: u64) {
    for host in 0..Config::ALL.len() {
        let frames = |pages: Vec<Range<u64>>| pages.iter().map(|page| page.end - page.start).sum::<u64>();
        let mut held = frames(model.oldest(host, usize::MAX));
        if held <= limit {
            continue;
        }
        model.look(host);
        for page in model.oldest(host, usize::MAX) {
            if held > limit - limit / 16 {
                held -= page.end - page.start;
                model.take_back(host, page, Taking::Swap);
            }
        }
        assert!(frames(model.oldest(host, usize::MAX)) <= limit);
    }
}

#[test]
fn hosts_with_a_limit_swap_out_as_a_reclaimer_at_each_count_of_instructions() {
    let profile = Profile::load("i5-7600", &[]).expect("a profile");
    for (generator, limit) in [("gups:3000@32m", 1500), ("fork-storm:8", 100)] {
        let (words, guest_frames) = words(generator);
        let options = Options { guest_frames, ..Options::default() };
        let (mut limited, mut by_hand) =
            (Model::new(&profile, options.clone()), Model::new(&profile, options));
        limited.limit_hosts(limit);
        limited.consume(&words).expect("well-formed events");
        let mut at = 0;
        while at < words.len() {
            let (event, length) = decode(&words[at..], at).expect("well-formed events");
            by_hand.consume(&words[at..at + length]).expect("well-formed events");
            at += length;
            if matches!(event, Event::Insns(_)) {
                limited_by_hand(&mut by_hand, limit);
            }
        }
        let swaps = |model: &Model| (0..5).map(|host| model.swapped_in(host)).collect::<Vec<_>>();
        assert!(swaps(&limited)[1..].iter().all(|&n| n > 0), "{generator}: {:?}", swaps(&limited));
        assert_eq!(swaps(&limited), swaps(&by_hand), "{generator}");
        assert!(limited.split_pages(2) > 0 && limited.split_pages(1) == 0);
        assert_eq!(limited.totals(), by_hand.totals(), "{generator}");
    }
}

#[test]
fn without_native_walks_nothing_is_watched() {
    let options = Options { configs: vec![Config::ALL[1]], ..Options::default() };
    let mut model = Model::new(&Profile::load("i5-7600", &[]).expect("a profile"), options);
    assert_eq!(model.watch_uses(watch()), Err(UseError::NoNative));
    assert!(model.take_uses().is_none());
}
