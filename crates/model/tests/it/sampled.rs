// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sampled streams beside the whole ones that they were thinned from.

use crate::stream::{FRAMES, NATIVE, Stream};
use bifold_model::{Charge, Config, ConfigOutcome, Costs, Model, Options, Outcome, Paging, Profile, Sample};
use bifold_trace::event::{gap, head, kind};
use bifold_trace::{Event, Generator, Thin, Windows};
use proptest::prelude::*;

fn model(frames: u64, windows: Option<Windows>, configs: &[Config]) -> Model {
    let options = Options { guest_frames: frames, windows, configs: configs.to_vec(), ..Options::default() };
    Model::new(&Profile::load("i5-7600", &[]).unwrap(), options)
}

/// The whole run's outcome, and one of a sample of it per seed.
fn outcomes(
    generator: &str,
    windows: Windows,
    seeds: std::ops::Range<u64>,
    configs: &[Config],
) -> (Outcome, Vec<Outcome>) {
    let g = Generator::parse(generator).unwrap();
    let mut whole = model(g.guest_frames(), None, configs);
    let mut samples: Vec<_> = seeds
        .map(|seed| (Thin::new(Windows { seed, ..windows }), model(g.guest_frames(), Some(windows), configs)))
        .collect();
    let mut out = Vec::new();
    g.run(&mut |words| {
        whole.consume(words)?;
        for (thin, model) in &mut samples {
            out.clear();
            thin.take(words, &mut out)?;
            model.consume(&out)?;
        }
        Ok::<_, bifold_trace::DecodeError>(())
    })
    .unwrap();
    (whole.finish(), samples.into_iter().map(|(_, m)| m.finish()).collect())
}

/// The sums of a sampled run's charges, per configuration, and its outcome.
fn charged(generator: &str, windows: Windows) -> (Vec<Costs>, Outcome) {
    let g = Generator::parse(generator).unwrap();
    let mut model = model(g.guest_frames(), Some(windows), &Config::ALL);
    let (mut thin, mut out) = (Thin::new(windows), Vec::new());
    model.charge(false);
    let zero = || vec![Costs::default(); Config::ALL.len()];
    let (mut sums, mut of_windows, mut open) = (zero(), zero(), zero());
    let add = |sums: &mut [Costs], costs: &[Costs]| sums.iter_mut().zip(costs).for_each(|(s, c)| s.add(c));
    g.run(&mut |words| {
        out.clear();
        thin.take(words, &mut out)?;
        model.consume(&out)?;
        model.take_charges(&mut |charge| match charge {
            Charge::Cost(_, costs) => add(&mut sums, costs),
            Charge::Window(_, costs) => add(&mut open, costs),
            Charge::WindowEnd(times) => {
                let ended = std::mem::replace(&mut open, zero());
                let ended: Vec<Costs> = ended.iter().map(|c| c.times(times as f64)).collect();
                add(&mut of_windows, &ended);
            }
            _ => {}
        });
        Ok::<_, bifold_trace::DecodeError>(())
    })
    .unwrap();
    let scale = model.window_scale();
    let scaled: Vec<Costs> = of_windows.iter().map(|c| c.times(scale)).collect();
    add(&mut sums, &scaled);
    (sums, model.finish())
}

#[test]
fn charges_of_a_sampled_run_sum_to_its_estimate() {
    for (generator, doubles) in [("fork-storm:60", 0), ("fork-storm:60", 4), ("t-4m:2000000", 0)] {
        let windows = Windows { window: 5_000, warm_up: 10_000, period: 50_000, seed: 3, doubles };
        let (sums, outcome) = charged(generator, windows);
        assert!(outcome.sampling.unwrap().windows > 10, "{:?}", outcome.sampling);
        for (c, sum) in outcome.configs.iter().zip(&sums) {
            let total = Costs::of(&c.total);
            // Each count is rounded, so cycles may differ by some exits.
            let near = |a: u64, b: u64| a.abs_diff(b) <= 4 + a.max(b) / 500;
            let all = [
                (sum.tlb_misses, total.tlb_misses),
                (sum.walk_cycles, total.walk_cycles),
                (sum.exits, total.exits),
                (sum.vmm_cycles, total.vmm_cycles),
            ];
            assert!(all.iter().all(|(a, b)| near(*a, *b)), "{generator} {:?}: {all:?}", c.config);
        }
    }
}

fn extra(o: &Outcome, i: usize) -> f64 {
    o.configs[i].total.extra_cycles() as f64
}

/// In how many (sample, configuration) pairs the whole run's cost lies within the interval.
fn within(whole: &Outcome, samples: &[Outcome]) -> (usize, usize) {
    let mut n = (0, 0);
    for s in samples {
        for (i, c) in s.configs.iter().enumerate() {
            let half = c.estimate.unwrap().half_width_cycles.unwrap();
            n.0 += usize::from((extra(s, i) - extra(whole, i)).abs() <= half);
            n.1 += 1;
        }
    }
    n
}

#[test]
fn a_steady_program_s_cost_lies_within_its_interval_19_times_in_20() {
    let windows = Windows { window: 10_000, warm_up: 20_000, period: 100_000, seed: 0, doubles: 0 };
    let (whole, samples) = outcomes("t:1500k", windows, 1..21, &[NATIVE]);
    let (inside, all) = within(&whole, &samples);
    assert!(inside * 20 >= all * 18, "{inside} of {all}");
    for s in &samples {
        let sampling = s.sampling.unwrap();
        assert!((14..=15).contains(&sampling.windows), "{sampling:?}");
        assert!(sampling.other_instructions > 800_000);
        let half = s.configs[0].estimate.unwrap().half_width_cycles.unwrap();
        assert!(half < 0.05 * extra(s, 0), "{half} of {}", extra(s, 0));
    }
}

#[test]
fn a_window_stands_for_its_period_where_periods_double() {
    let windows = Windows { window: 5_000, warm_up: 10_000, period: 50_000, seed: 0, doubles: 4 };
    let (whole, samples) = outcomes("t:3m", windows, 1..11, &[NATIVE]);
    for s in &samples {
        let n = s.sampling.unwrap().windows;
        assert!((12..=24).contains(&n), "{n}");
    }
    let (inside, all) = within(&whole, &samples);
    assert!(inside * 10 >= all * 8, "{inside} of {all}");
}

#[test]
fn what_causes_of_its_own_are_in_the_stream_for_is_counted_and_not_estimated() {
    let windows = Windows { window: 50_000, warm_up: 50_000, period: 1_000_000, seed: 0, doubles: 0 };
    let (whole, samples) = outcomes("fork-storm:40", windows, 1..3, &Config::ALL);
    let counted = |s: &Sample| {
        [s.exits_guest_fault, s.exits_cr3_write, s.exits_cr3_read, s.exits_invlpg, s.exits_cr4_write]
    };
    let tables = |s: &Sample| (s.exits_unsync + s.exits_emulated_write + s.exits_unprotect) as f64;
    for s in &samples {
        for (w, c) in whole.configs.iter().zip(&s.configs) {
            let name = c.config.name();
            assert_eq!(counted(&w.total), counted(&c.total), "{name}");
            assert_eq!(w.total.instructions, c.total.instructions);
            assert_eq!(w.total.guest_page_faults, c.total.guest_page_faults);
            // Which table is write-protected when depends on accesses that were not seen.
            let (a, b) = (tables(&w.total), tables(&c.total));
            assert!((a - b).abs() <= 0.03 * a, "{name}: {a} {b}");
            let (a, b) = (w.total.extra_cycles() as f64, c.total.extra_cycles() as f64);
            let half = c.estimate.unwrap().half_width_cycles.unwrap();
            assert!((a - b).abs() <= 0.05 * a + half, "{name}: {a} {b} +- {half}");
        }
    }
}

#[test]
fn a_run_that_is_all_head_is_exact() {
    let windows = Windows { window: 1 << 20, warm_up: 1 << 20, period: 1 << 40, seed: 1, doubles: 0 };
    let (whole, samples) = outcomes("fork-storm:6", windows, 1..2, &Config::ALL);
    for (w, c) in whole.configs.iter().zip(&samples[0].configs) {
        let total = Sample { cold_exits: 0, cold_cycles: 0, ..w.total };
        assert_eq!(total, c.total);
        assert_eq!(w.refs, c.refs);
        let e = c.estimate.unwrap();
        assert_eq!((e.half_width_cycles, e.exact_cycles), (Some(0.0), total.extra_cycles()));
    }
}

#[test]
fn what_is_known_so_far_is_what_the_outcome_says_of_the_worst_configuration() {
    let windows = Windows { window: 5_000, warm_up: 10_000, period: 50_000, seed: 3, doubles: 0 };
    let g = Generator::parse("fork-storm:10").unwrap();
    let (mut thin, mut model) = (Thin::new(windows), model(g.guest_frames(), Some(windows), &Config::ALL));
    assert_eq!((model.windows(), model.so_far()), (0, None));
    g.run(&mut |words| {
        let mut thinned = Vec::new();
        thin.take(words, &mut thinned)?;
        model.consume(&thinned)
    })
    .unwrap();
    // A window that has not ended does not count.
    model.consume(&[head(kind::GAP, gap::WARM_UP)]).unwrap();
    let (n, so_far) = (model.windows(), model.so_far().unwrap());
    let outcome = model.finish();
    assert!(n > 10 && n == outcome.sampling.unwrap().windows);
    let percent = |c: &ConfigOutcome| {
        100.0 * c.estimate.unwrap().half_width_cycles.unwrap() / c.total.extra_cycles() as f64
    };
    let worst = outcome.configs.iter().max_by(|a, b| percent(a).total_cmp(&percent(b))).unwrap();
    assert_eq!(so_far.config, worst.config);
    assert!((so_far.percent - percent(worst)).abs() < 1e-9, "{} {}", so_far.percent, percent(worst));
}

#[test]
fn a_window_counts_as_often_as_its_period_is_longer_than_the_first() {
    let mut s = Stream::new();
    let root = s.table(4);
    s.map(root, 0x5000, 1, 0x2005 << 12 | 7);
    let mut s = s.start(root);
    for loads in [10, 40, 20] {
        s = s.and(&[Event::Gap(gap::BEGIN), Event::Insns(9000), Event::Gap(gap::MEASURE)]);
        s = s.and(&vec![Event::Load(0x5000); loads]);
        s = s.and(&[Event::Insns(1000)]);
    }
    let s = s.and(&[Event::Gap(gap::BEGIN)]);
    let windows = Windows { window: 1000, warm_up: 0, period: 10_000, seed: 0, doubles: 1 };
    for (windows, mean) in [(None, 70.0 / 3000.0), (Some(windows), (10.0 + 2.0 * 40.0 + 4.0 * 20.0) / 7000.0)]
    {
        let mut model = model(FRAMES, windows, &[NATIVE]);
        model.consume(&s.words).unwrap();
        let total = model.finish().configs[0].total;
        assert_eq!((total.instructions, total.accesses as f64), (30_000, (30_000.0f64 * mean).round()));
    }
}

#[test]
fn in_a_gap_a_mended_fault_s_access_is_made_up_for() {
    const WRITABLE: u64 = 0x7;
    let mut s = Stream::new();
    let root = s.table(4);
    let pte = s.map(root, 0x6000, 1, 0x2006 << 12 | WRITABLE) - 8;
    let new = 0x2005 << 12 | WRITABLE;
    let s = s.start(root).and(&[
        Event::Gap(gap::BEGIN),
        Event::Insns(100),
        Event::Fault { gva: 0x5000, error: 6 },
        Event::PtStore { gpa: pte, old: 0, new },
        Event::Insns(100),
    ]);
    let mut model = model(FRAMES, None, &Config::ALL);
    model.consume(&s.words).unwrap();
    let outcome = model.finish();
    for c in &outcome.configs {
        let t = c.total;
        match (c.config.mode, c.config == Config::ALL[1]) {
            (Paging::Native, _) => assert_eq!(t.all_exits(), 0),
            // Its four tables, which the fault's walk touched, and the page itself.
            (Paging::Nested, true) => assert_eq!((t.exits_violation, t.frames_backed), (5, 5)),
            (Paging::Nested, false) => assert!(t.exits_violation >= 1),
            (Paging::Shadow, _) => assert_eq!((t.exits_guest_fault, t.exits_hidden_fault), (1, 1)),
            _ => unreachable!("not among these"),
        }
        assert_eq!((t.walks, t.walk_cycles), (0, 0), "walks are measured in windows");
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(16))]
    #[test]
    fn parts_of_a_sample_in_any_order_are_no_panic(
        parts in proptest::collection::vec((0u64..6, 0u64..1000, any::<u64>()), 0..40)
    ) {
        let mut s = Stream::new();
        let root = s.table(4);
        for page in 0..8 {
            s.map(root, page << 12, 1, (0x2000 + page) << 12 | 7);
        }
        let mut s = s.start(root);
        for (code, n, gva) in parts {
            s = s.and(&[
                Event::Gap(code),
                if gva >> 63 == 0 { Event::Load(gva & 0xffff) } else { Event::LoadDependent(gva & 0xffff) },
                Event::Fault { gva: gva & 0xffff, error: gva >> 60 },
                Event::Store(gva & 0x7fff),
                Event::Insns(n),
            ]);
        }
        let mut model = model(FRAMES, None, &Config::ALL);
        model.consume(&s.words).unwrap();
        let o = model.finish();
        for c in &o.configs {
            prop_assert_eq!(c.total.instructions, o.configs[0].total.instructions);
        }
    }
}
