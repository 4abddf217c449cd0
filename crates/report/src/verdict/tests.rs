// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conclusions of runs made by hand, and of random ones beside a search that changes the profile.

use super::*;
use crate::{Input, Meta};
use bifold_model::{ConfigOutcome, Outcome, Profile, VmState};
use proptest::prelude::*;

const NESTED: Winner = Winner::Mode(Paging::Nested);
const SHADOW: Winner = Winner::Mode(Paging::Shadow);
/// Most cycles of an exit in a profile.
const MOST_CYCLES: f64 = 1e9;
/// Ideal cycles of every run here.
const IDEAL: u64 = 10_000_000;

fn profile(set: &[String]) -> Profile {
    Profile::load("i5-7600", &[&["cpu.base_cpi=1.0".to_string()], set].concat()).unwrap()
}

/// A run of these configurations: name, walk cycles, and what else was counted.
pub(crate) fn run(rows: &[(&str, u64, Sample)], hardware: Profile) -> Comparison {
    run_of(IDEAL, rows, hardware)
}

/// The same with so many ideal cycles.
fn run_of(ideal: u64, rows: &[(&str, u64, Sample)], hardware: Profile) -> Comparison {
    let config = |(name, walk_cycles, counts): &(&str, u64, Sample)| {
        let mut total = Sample { instructions: ideal, walk_cycles: *walk_cycles, ..*counts };
        total.vmm_cycles = hardware.exit.cycles(&total);
        total.first_touch_cycles = hardware.exit.cycles(&total.first_touches());
        let config = Config::from_name(name).unwrap();
        ConfigOutcome {
            placed: Vec::new(),
            config,
            total,
            intervals: Vec::new(),
            reuse: Vec::new(),
            refs: [[0; 6]; 6],
            estimate: None,
            cache_error: None,
        }
    };
    Comparison {
        memory: None,
        baseline: None,
        outcome: Outcome {
            placed: None,
            sampling: None,
            caches: None,
            profile: hardware.name.clone(),
            frequency_hz: hardware.cpu.frequency_hz,
            base_cpi: 1.0,
            seed: 1,
            host_frames: Default::default(),
            vm: VmState::Started,
            nested_levels: 4,
            config_hash: String::new(),
            input_hash: String::new(),
            guest_frames: 1,
            vcpus: 1,
            interval_cycles: ideal,
            configs: rows.iter().map(config).collect(),
            interval_starts: vec![0],
            walk_checks: 0,
            walk_mismatches: 0,
            untranslated: 0,
            start: None,
            before_region: None,
            regions: None,
            several: None,
            switched: Vec::new(),
        },
        meta: Meta {
            bifold: String::new(),
            input: Input::Guest,
            guest: None,
            exit: None,
            partial: None,
            capture_checks: None,
            clock: None,
            hardware,
        },
        policies: None,
        places: None,
    }
}

fn violations(n: u64) -> Sample {
    Sample { exits_violation: n, ..Sample::default() }
}

fn hidden_faults(n: u64) -> Sample {
    Sample { exits_hidden_fault: n, ..Sample::default() }
}

fn percents(p: &PageConclusion) -> Vec<(Paging, f64)> {
    p.costs.iter().map(|cost| (cost.mode, cost.percent)).collect()
}

#[test]
fn the_exit_cost_that_changes_the_verdict_is_told_with_its_value() {
    // 1000 violations of 2600 against 1000 hidden faults of 2800 and 1,100,000 cycles more in walks.
    let rows = [("nested-4k", 500_000, violations(1000)), ("shadow-4k", 1_600_000, hidden_faults(1000))];
    let c = run(&rows, profile(&[]));
    let p = &c.conclusion().pages[0];
    assert_eq!(percents(p), [(Paging::Nested, 31.0), (Paging::Shadow, 44.0)]);
    assert_eq!(p.winner, NESTED);
    // Nested paging costs 95 % of 4,400,000 at 3,680 cycles a violation. Both pay for exits alike: all
    // together need 4.4 times.
    let f = p.flip.as_ref().unwrap();
    assert_eq!((f.key.as_deref(), f.assumed_cycles), (Some("exit.violation.cycles"), Some(2600)));
    assert_eq!((f.winner, f.at_cycles), (Winner::Equal, Some(3680)));
    assert!((f.factor - 3680.0 / 2600.0).abs() < 1e-9 && p.holds_to == Some(f.factor));
    // Shadow paging costs 3,100,000 / 0.95 with hidden faults of 1,663 cycles.
    assert!((p.holds_from.unwrap() - (3_100_000.0 / 0.95 - 1_600_000.0) / 2_800_000.0).abs() < 1e-9);
    let text = words::verdict(&c);
    assert!(
        text.contains(
            "The result holds only for exit costs from 0.60 to 1.41 times the profile's, changed together or one alone: \
             the modes cost about the same if exit.violation costs 3,680 cycles or more (profile: 2,600)."
        ),
        "{text}"
    );
}

#[test]
fn a_change_of_all_costs_together_may_come_first() {
    // 300,000 of three kinds of exits each against 1,000,000 in walks: together they need the smallest
    // change.
    let exits =
        Sample { exits_hidden_fault: 100, exits_guest_fault: 100, exits_unsync: 100, ..Sample::default() };
    let set = ["hidden_fault", "guest_fault", "unsync"].map(|n| format!("exit.{n}.cycles=3000"));
    let c = run(&[("nested-4k", 1_000_000, Sample::default()), ("shadow-4k", 0, exits)], profile(&set));
    let p = &c.conclusion().pages[0];
    let f = p.flip.as_ref().unwrap();
    assert_eq!((f.key.as_deref(), f.winner, p.winner), (None, Winner::Equal, SHADOW));
    assert!((f.factor - 0.95 / 0.9).abs() < 1e-9 && p.holds_to == Some(f.factor));
    let text = words::verdict(&c);
    assert!(
        text.contains("the modes cost about the same if all exits cost more than 1.06 times as much."),
        "{text}"
    );
}

/// The band of a run with data caches: what the core hides may decide.
#[test]
fn a_verdict_that_depends_on_the_band_says_so() {
    let mut c = run(
        &[("nested-4k", 2_000_000, Sample::default()), ("shadow-4k", 0, hidden_faults(700))],
        profile(&[]),
    );
    assert_eq!(c.conclusion().pages[0].possible, [Winner::Equal]);
    c.outcome.caches =
        Some(bifold_model::CacheFacts { simulated_classes: 64, data_overlap: 4.0, walk_overlap: 2.0 });
    let p = &c.conclusion().pages[0];
    assert_eq!((p.winner, &p.possible[..]), (Winner::Equal, &[NESTED, Winner::Equal][..]));
    let text = words::verdict(&c);
    assert!(text.contains("nested and shadow paging cost about the same"), "{text}");
    assert!(text.contains("within the band, nested paging may be cheaper"), "{text}");
    // The error of a sample has either sign.
    let error = bifold_model::CacheError { half_width_cycles: 500_000.0, half_width_extra_cycles: 500_000.0 };
    c.outcome.configs[0].cache_error = Some(error);
    assert_eq!(c.conclusion().pages[0].possible, [NESTED, SHADOW, Winner::Equal]);
    assert!(words::verdict(&c).contains("either mode may be cheaper within the band"));
}

#[test]
fn a_winner_by_walks_alone_cannot_be_flipped_and_one_by_exits_can() {
    let rows = [("nested-2m", 500_000, Sample::default()), ("shadow-2m", 900_000, Sample::default())];
    let text = words::verdict(&run(&rows, profile(&[])));
    assert!(text.contains("The result holds whatever exits cost."), "{text}");
    // 280,000 cycles of exits against 400,000 cycles of walks: 95 % of them at 1.36 times the costs.
    let rows = [("nested-4k", 400_000, Sample::default()), ("shadow-4k", 0, hidden_faults(100))];
    let c = run(&rows, profile(&[]));
    let p = &c.conclusion().pages[0];
    assert_eq!((p.winner, p.holds_from), (SHADOW, None));
    assert!((p.holds_to.unwrap() - 380.0 / 280.0).abs() < 1e-9);
    let text = words::verdict(&c);
    assert!(
        text.contains("holds only for exit costs of at most 1.35 times the profile's, changed"),
        "{text}"
    );
}

/// The texts of the label `change`.
fn change(c: &Comparison) -> Vec<String> {
    let all = words::sentences(c);
    let at = all.iter().position(|(label, _)| *label == "change").unwrap();
    all[at..].iter().map(|(_, text)| text.clone()).collect()
}

const HOW: &str = "How to change, check and undo: docs/guide/what-to-do-now.md";

#[test]
fn the_change_is_the_first_that_tune_ranks_with_its_price() {
    let backed = |small, huge| Sample { frames_backed: small, huge_frames_backed: huge, ..Sample::default() };
    let mut c = run(
        &[("nested-4k", 900_000, backed(2560, 0)), ("nested-2m", 100_000, backed(0, 9))],
        profile(&["exit.back_huge.cycles=0".into(), "exit.back_frame.cycles=0".into()]),
    );
    let ranking = crate::Tuning::of_run(&c).remove(0);
    let first = format!(
        "From nested-4k to nested-2m (2 MB host pages): 7.34 % less time (3.83 to 13.56 %), 2.8857 ms in place of 3.1143 ms. \
         Price: {}; the host backs 8.00 MiB more.",
        ranking.ranked[0].changes[0].how().price
    );
    assert_eq!(change(&c), [first.as_str(), HOW]);
    let old = Comparison { outcome: Outcome { vm: VmState::LongLived, ..c.outcome.clone() }, ..c.clone() };
    assert!(!change(&old)[0].contains("MiB"), "all memory is backed");
    let guest = |thp: &str, kpti| crate::Guest {
        region: None,
        command: vec!["ls".into(), "a b".into()],
        timing: None,
        vcpus: 1,
        nodes: None,
        tables: Default::default(),
        kpti: Some(kpti),
        thp: Some(thp.into()),
        hugetlb_mib: None,
        memory_mib: None,
        root: None,
        kernel: None,
        qemu: None,
    };
    c.meta.guest = Some(guest("madvise", true));
    let settings = "Settings of the guest (huge pages, page-table isolation) and 1 GB host pages are not tried here: bifold tune -- ls 'a b'";
    assert_eq!(change(&c), [first.as_str(), settings, HOW]);
    c.meta.guest = Some(guest("always", false));
    assert_eq!(change(&c), [first.as_str(), HOW]);
    c.outcome.configs.swap(0, 1);
    assert_eq!(
        change(&c),
        ["Keep nested-2m: nothing here is worth a change: every other choice takes as long or longer."]
    );
}

#[test]
fn a_small_gain_is_worth_no_change_and_modes_that_cost_about_the_same_are_no_gain() {
    let of = |rows: &[(&str, u64)]| {
        let rows: Vec<_> = rows.iter().map(|(name, walks)| (*name, *walks, Sample::default())).collect();
        run(&rows, profile(&[]))
    };
    let c = of(&[("nested-4k", 100_000), ("nested-2m", 60_000)]);
    assert_eq!(
        change(&c),
        ["Keep nested-4k: nothing here is worth a change: the best gains 0.40 % of the time."]
    );
    // 4 % of the overhead are 2 % of the time, and no assumed cost is so well known.
    let c = of(&[("nested-4k", 10_000_000), ("shadow-4k", 9_600_000)]);
    assert!(words::verdict(&c).contains("nested and shadow paging cost about the same"));
    assert!(
        change(&c)[0].contains("nothing here is sure to gain 1 % of the time: shadow paging may (+2.00 %"),
        "{:?}",
        change(&c)
    );
    // A mode of no product is no advice, and the sentence says so.
    let c = of(&[("nested-4k", 1_000_000), ("shadow-4k", 2_000_000), ("offset", 100_000)]);
    assert_eq!(
        change(&c),
        [
            "Keep nested-4k: nothing here is worth a change: every other choice takes as long or longer.",
            "offset takes 2.8857 ms, but no product has offset paging."
        ]
    );
}

/// The words and the bands of the table agree.
#[test]
fn where_bands_overlap_a_sentence_says_why_one_mode_is_cheaper_all_the_same() {
    let overlap = "The bands of the modes overlap, and the cheaper mode is cheaper at both ends";
    let of = |nested, shadow| {
        run(
            &[("nested-4k", nested, Sample::default()), ("shadow-4k", shadow, Sample::default())],
            profile(&[]),
        )
    };
    assert!(words::verdict(&of(1_000_000, 3_000_000)).contains(overlap));
    assert!(!words::verdict(&of(1_000_000, 1_010_000)).contains(overlap), "no mode is cheaper");
    assert!(!words::verdict(&of(1_000_000, 50_000_000)).contains(overlap), "the bands are apart");
}

/// Offset paging as if a product had it: a third mode on 4 KB host pages.
#[test]
fn a_third_mode_can_win_lose_and_flip_the_verdict() {
    let page = |offset: u64, nested: u64, shadow: u64| {
        let rows = [
            ("nested-4k", nested, violations(1000)),
            ("shadow-4k", shadow, hidden_faults(1000)),
            ("offset", offset, Sample::default()),
        ];
        let c = run(&rows, profile(&[]));
        let mut modes = super::rows(&c);
        let config = Config::from_name("offset").unwrap();
        let figures = Figures::of(&c.outcome, &c.outcome.configs[2]);
        let offset = ConfigCosts { config, figures, extra: offset as f64, ..modes[0] };
        modes.push(ConfigCosts {
            counts: Sample::default(),
            exits: 0.0,
            ends: [(offset.extra, IDEAL as f64); 2],
            ..offset
        });
        conclude(&c, &modes).pages.remove(0)
    };
    let p = page(1_000_000, 500_000, 1_600_000);
    assert_eq!(percents(&p), [(Paging::Nested, 31.0), (Paging::Shadow, 44.0), (Paging::Offset, 10.0)]);
    assert_eq!(
        (p.winner, &p.possible[..]),
        (Winner::Mode(Paging::Offset), &[Winner::Mode(Paging::Offset)][..])
    );
    // Violations of 552 cycles in place of 2,600, and nested paging costs about the same.
    let flip = p.flip.as_ref().unwrap();
    assert_eq!((flip.key.as_deref(), flip.winner), (Some("exit.violation.cycles"), Winner::Equal));
    assert_eq!((flip.at_cycles, p.holds_to), (Some(552), None));
    assert!(p.bands_overlap, "half and double the CPI are a wide band");
    let unit = crate::text::TimeUnit::of([4e-3]);
    let words = |p: &PageConclusion| words::modes(p, unit);
    assert_eq!(
        words(&p),
        "offset paging is cheaper: 3.1429 ms (10.00 %), nested 3.7429 ms (31.00 %), shadow 4.1143 ms (44.00 %)"
    );
    // As much as the second: neither wins, and the third is named as well.
    let p = page(3_100_000, 500_000, 1_600_000);
    assert_eq!(p.winner, Winner::Equal);
    assert_eq!(
        words(&p),
        "nested and offset paging cost about the same: 3.7429 ms (31.00 %) and 3.7429 ms (31.00 %); shadow 4.1143 ms (44.00 %)"
    );
    let p = page(9_000_000, 500_000, 1_600_000);
    assert_eq!(p.winner, NESTED);
    let json = serde_json::to_value(&p).unwrap();
    assert_eq!((&json["offset_percent"], &json["winner"]), (&90.0.into(), &"nested".into()));
}

#[test]
fn runs_with_one_mode_or_none_have_a_verdict_too() {
    let one = run(&[("nested-4k", 500_000, Sample::default())], profile(&[]));
    assert_eq!(words::verdict(&one), "nested-4k 3.0000 ms.");
    let native = run(&[("native", 500_000, Sample::default())], profile(&[]));
    assert_eq!(words::verdict(&native), "native 3.0000 ms.");
    assert_eq!(words::verdict(&run(&[], profile(&[]))), "No configuration was modelled.");
}

/// The verdict when a profile's costs are really changed, and the cycles are counted again.
fn verdict_with(rows: &[(&str, u64, Sample)], set: &[String]) -> Says {
    run(rows, profile(set)).conclusion().pages[0].says()
}

fn counts() -> impl Strategy<Value = Sample> {
    prop::collection::vec(0u64..2000, 6).prop_map(|n| Sample {
        exits_violation: n[0],
        exits_hidden_fault: n[1],
        exits_cr3_write: n[2],
        exits_invlpg: n[3],
        frames_backed: n[4],
        syncs: n[5],
        ..Sample::default()
    })
}

/// All exit costs times a factor, as settings of the profile.
fn scaled(c: &Comparison, factor: f64) -> Vec<String> {
    let costs = c.meta.hardware.exit.iter();
    costs
        .map(|(name, cost)| format!("exit.{name}.cycles={}", (cost.cycles as f64 * factor).round()))
        .collect()
}

/// Each named end: one step before, the verdict is the one that was named, and one step beyond another.
///
/// All cycles are many times those of the profile: costs are whole cycles, and where two sums are nearly
/// equal, rounding would decide.
fn assert_ends(rows: &[(&str, u64, Sample)]) {
    const FINE: u64 = 1000;
    let rows: Vec<_> = rows.iter().map(|(name, walks, counts)| (*name, FINE * walks, *counts)).collect();
    let fine = scaled(&run(&rows, profile(&[])), FINE as f64);
    let with = |set: &[String]| run_of(FINE * IDEAL, &rows, profile(&[&fine[..], set].concat()));
    let verdict_with = |set: &[String]| with(set).conclusion().pages[0].says();
    let c = with(&[]);
    let p = c.conclusion().pages[0].clone();
    let modes = super::rows(&c);
    let flips = flips(&c, &modes.iter().collect::<Vec<_>>());
    // Whole cycles of the smallest cost are half a cycle off.
    let cycles = || c.meta.hardware.exit.iter().map(|(_, cost)| cost.cycles);
    let (least, most) = (cycles().min().unwrap_or(1) as f64, cycles().max().unwrap_or(1) as f64);
    // No profile has such costs, so an end beyond them cannot be tried.
    let possible = |f: &&Flip| f.at_cycles.map_or(most * f.factor * 1.02, |at| at as f64) < MOST_CYCLES;
    for f in flips.iter().filter(possible) {
        let up = f.factor >= 1.0;
        match (&f.key, f.at_cycles) {
            (Some(key), Some(at)) => {
                let before = if up { at - 1 } else { at + 1 };
                assert_eq!(verdict_with(&[format!("{key}={before}")]), p.says(), "{f:?}");
                assert_eq!(verdict_with(&[format!("{key}={at}")]), f.says(), "{f:?}");
            }
            _ => {
                let step = 1.01 + 0.5 / (least * f.factor);
                let step = if up { step } else { 1.0 / step };
                // A stretch between two near ends may be shorter than the step.
                let is = |factor: f64| verdict_with(&scaled(&c, factor));
                let near = f.factor.ln().abs() <= step.ln().abs();
                assert!(near || is(f.factor / step) == p.says(), "{f:?}");
                let all = race(&c, &modes.iter().collect::<Vec<_>>(), 1.0, &|r| r.exits);
                let beyond = all.verdict(f.factor * step).says();
                assert_eq!(is(f.factor * step), beyond, "{f:?}");
            }
        }
    }
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// Random results at one step to either side of every end.
    #[test]
    fn the_verdict_changes_at_every_named_end_and_not_before(
        nested in counts(), shadow in counts(), walks in (0u64..8_000_000, 0u64..8_000_000),
    ) {
        assert_ends(&[("nested-4k", walks.0, nested), ("shadow-4k", walks.1, shadow)]);
    }

    /// Every cost that both modes could differ in is set to every value in steps of a fifth of the reported
    /// ratio, and none nearer than the reported one changes the verdict.
    #[test]
    fn no_exit_cost_changes_the_verdict_sooner_than_the_one_told(
        nested in counts(), shadow in counts(), walks in (0u64..8_000_000, 0u64..8_000_000),
    ) {
        let rows = [("nested-4k", walks.0, nested), ("shadow-4k", walks.1, shadow)];
        let c = run(&rows, profile(&[]));
        let p = c.conclusion().pages[0].clone();
        // Where none is reported, ratios up to 32 are searched.
        let far = p.flip.as_ref().map_or(32f64.ln(), |f| f.factor.ln().abs());
        for (name, cost) in c.meta.hardware.exit.iter() {
            for step in 1..=5 {
                for sign in [-1.0, 1.0] {
                    let ratio = (sign * far * f64::from(step) / 5.001).exp();
                    let cycles = cost.cycles as f64 * ratio;
                    // Whole cycles on the near side of the ratio.
                    let cycles = if sign > 0.0 { cycles.floor() } else { cycles.ceil() };
                    let is = verdict_with(&rows, &[format!("exit.{name}.cycles={cycles}")]);
                    prop_assert_eq!(is, p.says(), "{}={} changes {:?}", name, cycles, p);
                }
            }
        }
    }

    /// The range of factors against all costs scaled in the profile.
    #[test]
    fn the_verdict_stays_within_the_factors_told(
        nested in counts(), shadow in counts(), walks in (0u64..8_000_000, 0u64..8_000_000),
        factor in 0.05f64..20.0,
    ) {
        let rows = [("nested-4k", walks.0, nested), ("shadow-4k", walks.1, shadow)];
        let c = run(&rows, profile(&[]));
        let p = c.conclusion().pages[0].clone();
        let near = |end: f64| (factor / end - 1.0).abs() < 0.02; // costs are whole cycles
        let told = p.holds_from.is_none_or(|f| factor >= f) && p.holds_to.is_none_or(|t| factor <= t);
        if told && !p.holds_from.is_some_and(near) && !p.holds_to.is_some_and(near) {
            prop_assert_eq!(verdict_with(&rows, &scaled(&c, factor)), p.says(), "all, factor {}: {:?}", factor, p);
            for one in scaled(&c, factor) {
                prop_assert_eq!(verdict_with(&rows, std::slice::from_ref(&one)), p.says(), "{}, factor {}: {:?}", one, factor, p);
            }
        }
    }
}
