// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several regions within a program: each counts what a model without regions counts between its begin and
//! its end, and all together are their sum.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::{cases, profile};
use crate::reference::{self, Reference};
use crate::stream::{NESTED_4K, Stream};
use bifold_model::ages::bucket;
use bifold_model::{
    CacheMode, Charge, Config, Costs, MOST_REGIONS, Model, Options, Outcome, Paging, Placement,
    PlacementOptions, Profile, Sample, Switching,
};
use bifold_trace::event::{gap, head, kind, marker};
use bifold_trace::{Event, decode};
use proptest::prelude::*;

const BEGIN: u64 = head(kind::GAP, gap::REGION);
const END: u64 = head(kind::GAP, gap::REGION_END);

/// The stream cut at these places, in order of time. Each is a share of the stream's events, in 1/65,536.
fn parts(words: &[u64], at: &[u16]) -> Vec<Vec<u64>> {
    let (mut borders, mut i) = (vec![0], 0);
    while i < words.len() {
        i += decode(&words[i..], i).unwrap().1;
        borders.push(i);
    }
    let mut cuts: Vec<usize> = at.iter().map(|a| borders[(usize::from(*a) * borders.len()) >> 16]).collect();
    cuts.extend([0, words.len()]);
    cuts.sort_unstable();
    cuts.windows(2).map(|w| words[w[0]..w[1]].to_vec()).collect()
}

/// The parts with every second one a region. The last one has no end if it is a region.
fn marked(parts: &[Vec<u64>]) -> Vec<u64> {
    let mut words = Vec::new();
    for (i, part) in parts.iter().enumerate() {
        let border = match i {
            0 => head(kind::GAP, gap::WARM_UP),
            _ if i % 2 == 1 => BEGIN,
            _ => END,
        };
        words.push(border);
        words.extend_from_slice(part);
    }
    words
}

fn options(cpus: usize) -> Options {
    Options { guest_frames: FRAMES, vcpus: cpus, interval_seconds: 1e-7, ..Options::default() }
}

fn model(profile: &Profile, cpus: usize) -> Model {
    Model::new(profile, options(cpus))
}

/// With everything that watches a run.
fn observed(profile: &Profile, cpus: usize) -> Model {
    let placements = vec![Placement::Smp, Placement::Interleaved];
    let placed = Some(PlacementOptions { placements, host_nodes: 2, guest_nodes: Vec::new() });
    Model::new(profile, Options { caches: CacheMode::Exact, placed, ..options(cpus) })
}

fn finished(mut model: Model, words: &[u64]) -> Outcome {
    model.consume(words).unwrap();
    model.finish()
}

/// Without what only intervals have.
fn plain(s: &Sample) -> Sample {
    Sample { cold_exits: 0, cold_cycles: 0, ..*s }
}

fn sum<'a>(samples: impl IntoIterator<Item = &'a Sample>) -> Sample {
    let mut sum = Sample::default();
    samples.into_iter().for_each(|s| sum.add(s));
    sum
}

/// Rows and intervals of several regions sum to the totals.
fn adds_up(o: &Outcome) -> Result<(), TestCaseError> {
    let regions = o.regions.as_ref().expect("several regions");
    prop_assert_eq!(regions.count, regions.rows.len() as u64);
    for (i, c) in o.configs.iter().enumerate() {
        prop_assert!(regions.rows.iter().all(|r| r.configs[i].config == c.config));
        prop_assert_eq!(sum(regions.rows.iter().map(|r| &r.configs[i].total)), c.total);
        prop_assert_eq!(sum(&c.intervals), c.total);
        prop_assert_eq!(c.intervals.len(), o.interval_starts.len());
        prop_assert_eq!(c.reuse.len(), c.intervals.len());
        let by_step: u64 = c.refs.as_flattened().iter().sum::<u64>() - c.refs[0][0];
        prop_assert_eq!(by_step, c.total.guest_refs + c.total.host_refs);
        for p in &c.placed {
            prop_assert_eq!(p.walks().local + p.walks().remote, by_step);
            prop_assert_eq!(p.data.local + p.data.remote, c.total.accesses);
        }
    }
    let between: u64 = regions.rows[1..].iter().map(|r| r.before_instructions).sum();
    prop_assert_eq!(
        (regions.rows[0].before_instructions, between),
        (o.before_region.unwrap(), regions.between_instructions)
    );
    prop_assert!(o.interval_starts.is_sorted());
    Ok(())
}

proptest! {
    #![proptest_config(cases(48))]

    /// The reference for every configuration is the model without regions, whose counts at the borders are
    /// subtracted. That of walks and TLBs is independent of it.
    #[test]
    fn each_region_counts_what_lies_between_its_borders(
        which in 0..crate::random::PROFILES, variant in 0usize..12, ops in ops(1200), cpus in 1usize..3,
        at in proptest::collection::vec(any::<u16>(), 3..12)
    ) {
        let profile = profile(which, variant);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let parts = parts(&guest.words, &at);
        let o = finished(model(&profile, cpus), &marked(&parts));
        adds_up(&o)?;
        let rows = &o.regions.as_ref().unwrap().rows;
        prop_assert_eq!(rows.len(), parts.len() / 2);
        let mut slow = model(&profile, cpus);
        let config = Config { mode: Paging::Nested, ..Config::ALL[1] };
        let nested = o.configs.iter().position(|c| c.config == config).unwrap();
        let mut reference = Reference::new(&profile, config, FRAMES, cpus, o.seed);
        let mut counted = reference::Counts::default();
        for (i, part) in parts.iter().enumerate() {
            let before = (slow.totals(), reference.counts.clone());
            slow.consume(part).unwrap();
            reference.consume(part);
            if i % 2 == 0 {
                continue;
            }
            let row = &rows[i / 2];
            prop_assert_eq!(row.number, i as u64 / 2 + 1);
            for ((of, (_, now)), (_, then)) in row.configs.iter().zip(slow.totals()).zip(&before.0) {
                prop_assert_eq!(plain(&of.total), now.since(then), "{:?}", of.config);
            }
            let (now, then) = (&reference.counts, before.1);
            counted.walks += now.walks - then.walks;
            counted.violations += now.violations - then.violations;
            counted.flushes += now.flushes - then.flushes;
            counted.refs.as_flattened_mut().iter_mut().enumerate()
                .for_each(|(n, sum)| *sum += now.refs.as_flattened()[n] - then.refs.as_flattened()[n]);
        }
        let of = reference::Counts::of(&o.configs[nested]);
        prop_assert_eq!(
            (of.walks, of.violations, of.flushes, of.refs),
            (counted.walks, counted.violations, counted.flushes, counted.refs)
        );
    }

    /// What follows a region changes nothing in it.
    #[test]
    fn the_first_region_is_what_it_is_where_the_recording_ends_with_it(
        which in 0..crate::random::PROFILES, ops in ops(1200), cpus in 1usize..3, at in proptest::collection::vec(any::<u16>(), 3..8)
    ) {
        let profile = profile(which, 0);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let parts = parts(&guest.words, &at);
        let all = finished(observed(&profile, cpus), &marked(&parts));
        adds_up(&all)?;
        let alone = finished(observed(&profile, cpus), &marked(&parts[..2]));
        prop_assert!(alone.regions.is_none());
        let rows = all.regions.as_ref().unwrap();
        for (of, c) in rows.rows[0].configs.iter().zip(&alone.configs) {
            prop_assert_eq!((of.config, of.total), (c.config, c.total));
        }
        prop_assert_eq!(all.before_region, alone.before_region);
        // A region whose end is in the stream is the same in all that an outcome has.
        let ended = finished(observed(&profile, cpus), &[&marked(&parts[..2]), &[END][..], &parts[2]].concat());
        prop_assert_eq!(&ended.configs, &alone.configs);
        prop_assert_eq!(&ended.interval_starts, &alone.interval_starts);
        prop_assert!(ended.regions.is_none());
        let n = alone.interval_starts.len();
        for (a, b) in all.configs.iter().zip(&alone.configs) {
            prop_assert_eq!(&a.intervals[..n], &b.intervals[..]);
            prop_assert_eq!(&a.reuse[..n], &b.reuse[..]);
        }
    }

    /// Up to the program's begin all is counted as in a stream that ends there, and from then on as in a
    /// region that begins there. Regions of the program count from its begin.
    #[test]
    fn the_guest_s_start_and_its_program_are_counted_apart(
        which in 0..crate::random::PROFILES, ops in ops(1200), cpus in 1usize..3, at in proptest::collection::vec(any::<u16>(), 3..8)
    ) {
        let profile = profile(which, 0);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let parts = parts(&guest.words, &at);
        let program = [head(kind::MARKER, marker::PROGRAM)];
        let rest = parts[1..].concat();
        let whole = finished(observed(&profile, cpus), &[&parts[0][..], &program, &rest].concat());
        let region = finished(observed(&profile, cpus), &[&parts[0][..], &[BEGIN], &rest].concat());
        prop_assert_eq!(&whole.configs, &region.configs);
        prop_assert_eq!(&whole.interval_starts, &region.interval_starts);
        prop_assert_eq!(&whole.several, &region.several);
        prop_assert!(whole.before_region.is_none() && whole.regions.is_none());
        let mut slow = observed(&profile, cpus);
        slow.consume(&parts[0]).unwrap();
        let start = whole.start.as_ref().unwrap();
        prop_assert_eq!(
            start.iter().map(|r| (r.config, r.total)).collect::<Vec<_>>(),
            slow.totals()
        );
        // A second marker does nothing.
        let again = finished(observed(&profile, cpus), &[&parts[0][..], &program, &parts[1], &program, &parts[2..].concat()].concat());
        prop_assert_eq!(&whole.configs, &again.configs);
        let later = finished(observed(&profile, cpus), &[&parts[0][..], &program, &parts[1], &[BEGIN], &parts[2..].concat()].concat());
        let alone = finished(observed(&profile, cpus), &[&parts[0][..], &parts[1], &[BEGIN], &parts[2..].concat()].concat());
        // The program's begin starts an interval, so that what was used before is older by one.
        for (a, b) in later.configs.iter().zip(&alone.configs) {
            prop_assert_eq!((plain(&a.total), a.refs, &a.placed), (plain(&b.total), b.refs, &b.placed));
        }
        prop_assert_eq!(later.start.as_ref(), Some(start));
        prop_assert_eq!(later.before_region.unwrap() + start[0].total.instructions, alone.before_region.unwrap());
    }

    #[test]
    fn charges_are_those_of_regions_however_the_stream_is_cut(
        which in 0..crate::random::PROFILES, ops in ops(800), at in proptest::collection::vec(any::<u16>(), 3..8), piece in 1usize..400
    ) {
        let profile = profile(which, 0);
        let mut guest = Guest::new(1);
        guest.run(&ops);
        let words = marked(&parts(&guest.words, &at));
        let mut charged = observed(&profile, 1);
        charged.charge(false);
        let mut sums = vec![Costs::default(); Config::ALL.len()];
        let mut restarts = 0;
        let (mut from, mut i, mut n) = (0, 0, 0);
        while i < words.len() {
            i += decode(&words[i..], i).unwrap().1;
            n += 1;
            if n % piece != 0 && i < words.len() {
                continue;
            }
            charged.consume(&words[from..i]).unwrap();
            from = i;
            charged.take_charges(&mut |charge| match charge {
                Charge::Cost(_, costs) => sums.iter_mut().zip(costs).for_each(|(s, c)| s.add(c)),
                Charge::Restart => {
                    restarts += 1;
                    sums.fill(Costs::default());
                }
                _ => {}
            });
        }
        prop_assert_eq!(restarts, 1);
        let o = charged.finish();
        adds_up(&o)?;
        for (sum, c) in sums.iter().zip(&o.configs) {
            prop_assert_eq!(*sum, Costs::of(&c.total), "{:?}", c.config);
        }
    }

    #[test]
    fn exits_are_logged_in_regions(
        ops in ops(800), at in proptest::collection::vec(any::<u16>(), 3..8)
    ) {
        let mut guest = Guest::new(1);
        guest.run(&ops);
        let mut m = model(&profile(1, 0), 1);
        m.log_exits();
        m.consume(&marked(&parts(&guest.words, &at))).unwrap();
        let log = m.take_exit_log();
        for c in m.finish().configs {
            let logged = log.iter().filter(|e| e.config == c.config).count() as u64;
            prop_assert_eq!(logged, c.total.all_exits(), "{:?}", c.config);
        }
    }

    /// A VM that a policy switches at a region's end switches when the next one begins, where the cost
    /// counts.
    #[test]
    fn a_vm_that_switches_has_the_intervals_of_the_others(
        ops in ops(1200), at in proptest::collection::vec(any::<u16>(), 3..8), turns in any::<bool>()
    ) {
        let mut guest = Guest::new(1);
        guest.run(&ops);
        let words = marked(&parts(&guest.words, &at));
        let profile = profile(1, 0);
        let mut m = model(&profile, 1);
        let config = Config { mode: Paging::Shadow, ..Config::ALL[1] };
        let switching = Switching { name: "x".into(), host_page: config.host_page, start: config.mode, keep_nested: true };
        let turn = |mode| if mode == Paging::Shadow { Paging::Nested } else { Paging::Shadow };
        m.add_switching(switching, Box::new(move |_, _, mode| if turns { turn(mode) } else { mode }));
        let o = finished(m, &words);
        adds_up(&o)?;
        let vm = &o.switched[0];
        prop_assert_eq!(vm.intervals.len(), o.interval_starts.len());
        let fixed = o.configs.iter().find(|c| c.config == config).unwrap();
        for (i, (s, f)) in vm.intervals.iter().zip(&fixed.intervals).enumerate() {
            prop_assert_eq!(s.instructions, f.instructions);
            prop_assert_eq!(s.mode_switches, u64::from(turns && i > 0), "interval {}", i);
            let mode = if turns && i % 2 == 1 { Paging::Nested } else { Paging::Shadow };
            prop_assert_eq!(vm.modes[i], mode);
            if !turns {
                prop_assert_eq!(*s, plain(f));
            }
        }
    }
}

/// What is used between two regions is as old as the interval before: the time between them is no interval.
#[test]
fn the_ages_of_entries_are_those_of_intervals_within_regions() {
    let mut s = Stream::new();
    let root = s.table(4);
    let page = |n: u64| Event::Load(n << 12);
    for n in 1..4 {
        s.map(root, n << 12, 1, (0x2000 + n) << 12 | 7);
    }
    let flush = Event::Cr3(root << 12);
    let [begin, end] = [gap::REGION, gap::REGION_END].map(Event::Gap);
    let o = s
        .start(root)
        .and(&[begin, page(1), page(3), Event::Insns(10), end, flush, page(2), flush])
        .and(&[begin, page(1), page(2), Event::Insns(10), end, page(1), flush])
        .and(&[begin, page(3), Event::Insns(10)])
        .run_all(&Profile::load("geometry-g", &[]).unwrap(), &[NESTED_4K], 1.0);
    let [first, second, third] = &o.configs[0].reuse[..] else { panic!("three intervals") };
    assert_eq!(*first, []);
    // Both pages, and the guest's four tables.
    let [one] = second[..] else { panic!("{second:?}") };
    assert_eq!((one.last, one.made, one.exits), (bucket(1), bucket(1), 6));
    // The page was last used two intervals ago, and the guest's tables one.
    let of = |ago| third.iter().find(|r| r.last == bucket(ago)).map(|r| (r.made, r.exits));
    assert_eq!((third.len(), of(1), of(2)), (2, Some((bucket(2), 4)), Some((bucket(2), 1))));
}

/// Loads of pages of the kernel's, with instructions.
fn loads(pages: u64) -> Vec<u64> {
    let mut words = Vec::new();
    for page in 0..pages {
        Event::Load(page << 12).encode(&mut words);
        Event::Insns(10).encode(&mut words);
    }
    words
}

#[test]
fn a_begin_within_a_region_and_an_end_outside_of_one_do_nothing() {
    let work = loads(7);
    let clean = [&work[..], &[BEGIN], &work, &[END], &work, &[BEGIN], &work, &[END], &work].concat();
    // Before the first region, a second begin starts it again, as in every recording so far.
    let odd = [
        &[END][..],
        &work,
        &[BEGIN],
        &work,
        &[END, END],
        &work,
        &[BEGIN],
        &work[..4],
        &[BEGIN],
        &work[4..],
        &[END],
        &work,
        &[END],
    ];
    let profile = profile(1, 0);
    let run = |words: &[u64]| Outcome { input_hash: String::new(), ..finished(model(&profile, 1), words) };
    let clean = run(&clean);
    assert_eq!(clean, run(&odd.concat()));
    assert_eq!(clean.configs[0].total.instructions, 140);
    let regions = clean.regions.unwrap();
    assert_eq!((regions.count, regions.between_instructions, clean.before_region), (2, 70, Some(70)));
}

#[test]
fn more_regions_than_have_rows_are_in_the_totals_and_have_no_timeline() {
    let n = MOST_REGIONS as u64 + 3;
    let work = loads(2);
    let mut words = work.clone();
    for _ in 0..n {
        words.extend([&[BEGIN][..], &work, &[END], &work].concat());
    }
    let profile = profile(1, 0);
    let o = finished(model(&profile, 1), &words);
    let regions = o.regions.as_ref().unwrap();
    assert_eq!((regions.count, regions.rows.len(), regions.left_out()), (n, MOST_REGIONS, 3));
    assert!(!o.has_timeline());
    assert_eq!(o.interval_starts, [0]);
    for (i, c) in o.configs.iter().enumerate() {
        assert_eq!((c.total.instructions, c.total.accesses), (20 * n, 2 * n));
        assert_eq!(c.intervals, [c.total]);
        let rows = sum(regions.rows.iter().map(|r| &r.configs[i].total));
        assert_eq!(rows.instructions, 20 * MOST_REGIONS as u64);
    }
    let o = finished(model(&profile, 1), &words[..words.len() - 3 * (2 * work.len() + 2)]);
    assert!(o.has_timeline() && o.regions.unwrap().left_out() == 0);
    assert_eq!(o.interval_starts.len(), MOST_REGIONS);
}
