// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conclusions of runs made by hand, and of random ones beside a search that changes the profile.

use super::*;
use crate::{Input, Meta};
use bifold_model::{ConfigOutcome, Outcome, Profile, VmState};
use proptest::prelude::*;

const NESTED: Winner = Winner::Mode(Paging::Nested);
const SHADOW: Winner = Winner::Mode(Paging::Shadow);
/// Ideal cycles of every run here.
const IDEAL: u64 = 10_000_000;

fn profile(set: &[String]) -> Profile {
    Profile::load("i5-7600", &[&["cpu.base_cpi=1.0".to_string()], set].concat()).unwrap()
}

/// A run of these configurations: name, walk cycles, and what else was counted.
fn run(rows: &[(&str, u64, Sample)], hardware: Profile) -> Comparison {
    let config = |(name, walk_cycles, counts): &(&str, u64, Sample)| {
        let mut total = Sample { instructions: IDEAL, walk_cycles: *walk_cycles, ..*counts };
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
            interval_cycles: IDEAL,
            configs: rows.iter().map(config).collect(),
            interval_starts: vec![0],
            walk_checks: 0,
            walk_mismatches: 0,
            untranslated: 0,
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

#[test]
fn the_exit_cost_that_flips_the_winner_is_told_with_its_value() {
    // 1000 violations of 2600 against 1000 hidden faults of 2800 and 1,100,000 cycles more in walks.
    let rows = [("nested-4k", 500_000, violations(1000)), ("shadow-4k", 1_600_000, hidden_faults(1000))];
    let c = run(&rows, profile(&[]));
    let p = &c.conclusion().pages[0];
    assert_eq!(p.percents, [(Paging::Nested, 31.0), (Paging::Shadow, 44.0)]);
    assert_eq!(p.winner, NESTED);
    // Both pay for exits alike: no factor on all makes up for the walks, and one on either cost alone does.
    assert!((p.holds_from.unwrap() - 1500.0 / 2800.0).abs() < 1e-9);
    assert!((p.holds_to.unwrap() - 1.5).abs() < 1e-9);
    let f = p.flip.as_ref().unwrap();
    assert_eq!((f.key.as_deref(), f.assumed_cycles), (Some("exit.violation.cycles"), Some(2600)));
    assert_eq!((f.winner, f.factor), (SHADOW, 1.5));
    assert!((f.at_cycles.unwrap() - 3900.0).abs() < 1e-6);
    let text = words::verdict(&c);
    assert!(
        text.contains(
            "The result holds only for exit costs from 0.54 to 1.50 times the profile's, changed together or one alone: \
             shadow paging is cheaper if exit.violation costs more than 3,900 cycles (profile: 2,600)."
        ),
        "{text}"
    );
}

#[test]
fn a_change_of_all_costs_together_may_come_first() {
    // 300,000 of three kinds of exits each against 1,000,000 in walks: together they need the smallest change.
    let exits =
        Sample { exits_hidden_fault: 100, exits_guest_fault: 100, exits_unsync: 100, ..Sample::default() };
    let set = ["hidden_fault", "guest_fault", "unsync"].map(|n| format!("exit.{n}.cycles=3000"));
    let c = run(&[("nested-4k", 1_000_000, Sample::default()), ("shadow-4k", 0, exits)], profile(&set));
    let p = &c.conclusion().pages[0];
    let f = p.flip.as_ref().unwrap();
    assert_eq!((f.key.as_deref(), f.winner, p.winner), (None, NESTED, SHADOW));
    assert!((f.factor - 1.0 / 0.9).abs() < 1e-9 && p.holds_to == Some(f.factor));
    let text = words::verdict(&c);
    assert!(
        text.contains("nested paging is cheaper if all exits cost more than 1.11 times as much."),
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
    assert!(words::verdict(&c).contains("nested paging is cheaper or costs the same"));
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
    // 280,000 cycles of exits against 400,000 cycles of walks: equal at 1.43 times the costs.
    let rows = [("nested-4k", 400_000, Sample::default()), ("shadow-4k", 0, hidden_faults(100))];
    let c = run(&rows, profile(&[]));
    let p = &c.conclusion().pages[0];
    assert_eq!((p.winner, p.holds_from), (SHADOW, None));
    assert!((p.holds_to.unwrap() - 400.0 / 280.0).abs() < 1e-9);
    let text = words::verdict(&c);
    assert!(
        text.contains("holds only for exit costs of at most 1.42 times the profile's, changed"),
        "{text}"
    );
}

#[test]
fn what_to_change_is_one_step_after_the_other_or_nothing() {
    let steps = |walks: [u64; 4]| {
        let names = ["nested-4k", "nested-2m", "shadow-4k", "shadow-2m"];
        let rows: Vec<_> = names.iter().zip(walks).map(|(n, w)| (*n, w, Sample::default())).collect();
        let c = run(&rows, profile(&[]));
        let changes = c.conclusion().changes;
        changes.iter().map(|c| format!("{} {}", c.from, c.to)).collect::<Vec<_>>()
    };
    assert!(steps([100_000, 200_000, 300_000, 400_000]).is_empty());
    // Less than the assumed costs can decide.
    assert!(steps([1_000_000, 990_000, 990_000, 990_000]).is_empty());
    assert_eq!(steps([900_000, 200_000, 300_000, 400_000]), ["nested-4k nested-2m"]);
    assert_eq!(steps([900_000, 500_000, 400_000, 100_000]), ["nested-4k shadow-4k", "shadow-4k shadow-2m"]);
    assert_eq!(steps([400_000, 500_000, 600_000, 100_000]), ["nested-4k shadow-2m"]);
}

/// The names and the gains of the ranked changes of these walk cycles.
fn ranked(rows: &[(&str, u64)]) -> Vec<(String, String)> {
    let rows: Vec<_> = rows.iter().map(|(name, walks)| (*name, *walks, Sample::default())).collect();
    let ranked = run(&rows, profile(&[])).conclusion().ranked;
    ranked.into_iter().map(|r| (r.to, format!("{:.1}", r.gain_points))).collect()
}

#[test]
fn changes_are_ranked_by_their_gain_and_a_second_change_has_to_pay() {
    let found = |rows: &[(&str, u64)]| -> Vec<String> {
        ranked(rows).into_iter().map(|(to, gain)| format!("{to} {gain}")).collect()
    };
    let four = |w: [u64; 4]| {
        found(&[("nested-4k", w[0]), ("nested-2m", w[1]), ("shadow-4k", w[2]), ("shadow-2m", w[3])])
    };
    assert!(four([100_000, 200_000, 300_000, 400_000]).is_empty());
    assert!(four([1_000_000, 990_000, 990_000, 990_000]).is_empty());
    let all = ["shadow-2m 8.0", "shadow-4k 5.0", "nested-2m 4.0"];
    assert_eq!(four([900_000, 500_000, 400_000, 100_000]), all);
    // Shadow paging on top of 2 MB pages saves nothing, so only the pages are named.
    assert_eq!(four([900_000, 100_000, 950_000, 99_000]), ["nested-2m 8.0"]);
    assert_eq!(four([400_000, 500_000, 600_000, 100_000]), ["shadow-2m 3.0"]);
    let five =
        [("nested-4k", 900_000), ("nested-2m", 500_000), ("nested-1g", 300_000), ("shadow-4k", 600_000)];
    assert_eq!(found(&five), ["nested-1g 6.0", "nested-2m 4.0", "shadow-4k 3.0"]);
    let six = [five.as_slice(), &[("shadow-2m", 100_000)]].concat();
    assert_eq!(found(&six), ["shadow-2m 8.0", "nested-1g 6.0", "nested-2m 4.0"]);
}

#[test]
fn a_change_is_told_with_its_cost_in_memory_and_the_settings_that_the_run_cannot_rank() {
    let backed = |small, huge| Sample { frames_backed: small, huge_frames_backed: huge, ..Sample::default() };
    let mut c = run(
        &[("nested-4k", 900_000, backed(2560, 0)), ("nested-2m", 100_000, backed(0, 9))],
        profile(&["exit.back_huge.cycles=0".into(), "exit.back_frame.cycles=0".into()]),
    );
    let change = |c: &Comparison| {
        let all = words::sentences(c);
        let at = all.iter().position(|(label, _)| *label == "change").unwrap();
        all[at..].iter().map(|(_, text)| text.clone()).collect::<Vec<_>>()
    };
    let first = "From nested-4k to nested-2m (2 MB host pages): overhead falls by 8.00 points, from 9.00 % to 1.00 %; \
                 the host backs 18.00 MiB of guest memory in place of 10.00 MiB.";
    let how = "How to change, check and undo: docs/guide/what-to-do-now.md";
    assert_eq!(change(&c), [first, how]);
    let old = Comparison { outcome: Outcome { vm: VmState::LongLived, ..c.outcome.clone() }, ..c.clone() };
    let old = &old.conclusion().ranked[0];
    assert_eq!((old.from_backed_bytes, old.to_backed_bytes), (None, None), "all memory is backed");
    let guest = |thp: &str, kpti| crate::Guest {
        region: None,
        command: vec!["true".into()],
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
    let settings =
        "Settings of the guest are not ranked: compare this run with one with --thp always or --kpti off.";
    assert_eq!(change(&c), [first, settings, how]);
    c.meta.guest = Some(guest("always", false));
    assert_eq!(change(&c), [first, how]);
    c.outcome.configs.swap(0, 1);
    assert_eq!(change(&c), ["Keep nested-2m, as no configuration is cheaper."]);
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
        let offset = Row { config: Config::from_name("offset").unwrap(), extra: offset as f64, ..modes[0] };
        modes.push(Row {
            counts: Sample::default(),
            exits: 0.0,
            ends: [(offset.extra, IDEAL as f64); 2],
            ..offset
        });
        conclude(&c, &modes).pages.remove(0)
    };
    let p = page(1_000_000, 500_000, 1_600_000);
    assert_eq!(p.percents, [(Paging::Nested, 31.0), (Paging::Shadow, 44.0), (Paging::Offset, 10.0)]);
    assert_eq!(
        (p.winner, &p.possible[..]),
        (Winner::Mode(Paging::Offset), &[Winner::Mode(Paging::Offset)][..])
    );
    // Violations of 500 cycles in place of 2,600, and nested paging is as cheap.
    let flip = p.flip.as_ref().unwrap();
    assert_eq!((flip.key.as_deref(), flip.winner), (Some("exit.violation.cycles"), NESTED));
    assert!((flip.at_cycles.unwrap() - 500.0).abs() < 1e-6 && p.holds_to.is_none());
    assert!((p.holds_from.unwrap() - 500.0 / 2600.0).abs() < 1e-9);
    let words = |p: &PageConclusion| words::modes(p);
    assert_eq!(words(&p), "offset paging is cheaper: overhead 10.00 %, nested 31.00 %, shadow 44.00 %");
    // As much as the second: neither wins, and the third is named as well.
    let p = page(3_100_000, 500_000, 1_600_000);
    assert_eq!(p.winner, Winner::Equal);
    assert_eq!(
        words(&p),
        "nested and offset paging cost about the same: overhead 31.00 % and 31.00 %; shadow 44.00 %"
    );
    let p = page(9_000_000, 500_000, 1_600_000);
    assert_eq!(p.winner, NESTED);
    let json = serde_json::to_value(&p).unwrap();
    assert_eq!((&json["offset_percent"], &json["winner"]), (&90.0.into(), &"nested".into()));
}

#[test]
fn runs_with_one_mode_or_none_have_a_verdict_too() {
    let one = run(&[("nested-4k", 500_000, Sample::default())], profile(&[]));
    assert_eq!(words::verdict(&one), "On 4 KB host pages, nested paging has 5.00 % overhead.");
    let native = run(&[("native", 500_000, Sample::default())], profile(&[]));
    assert_eq!(words::verdict(&native), "Without a hypervisor, the overhead is 5.00 %.");
    assert_eq!(words::verdict(&run(&[], profile(&[]))), "No configuration was modelled.");
}

/// Who wins when a profile's costs are really changed, and the cycles are counted again.
fn winner_with(counts: &[(&str, u64, Sample)], set: &[String]) -> (f64, f64) {
    let c = run(counts, profile(set));
    let extra = |i: usize| c.outcome.configs[i].total.extra_cycles() as f64;
    (extra(0), extra(1))
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

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    /// The flip against a search: every cost that both modes could differ in is set to every value in
    /// steps of a fifth of the reported ratio, and none nearer than the reported one flips the winner.
    #[test]
    fn no_exit_cost_flips_the_winner_sooner_than_the_one_told(
        nested in counts(), shadow in counts(), walks in (0u64..8_000_000, 0u64..8_000_000),
    ) {
        let rows = [("nested-4k", walks.0, nested), ("shadow-4k", walks.1, shadow)];
        let c = run(&rows, profile(&[]));
        let p = c.conclusion().pages[0].clone();
        let wins = |(n, s): (f64, f64)| match p.winner {
            NESTED => n <= s,
            SHADOW => s <= n,
            _ => equal(n, s, IDEAL as f64),
        };
        let told = p.flip.as_ref().map(|f| f.factor.ln().abs());
        if let Some(f) = &p.flip {
            // Just beyond, another wins; just before, the same. All together are whole cycles each, so near is not so near.
            let up = f.factor > 1.0;
            // Whole cycles of the smallest cost are half a cycle off.
            let least = c.meta.hardware.exit.iter().map(|(_, cost)| cost.cycles).min().unwrap_or(1) as f64;
            let away = 1.01 + 0.5 / (least * f.factor);
            let (beyond, before) = match (&f.key, f.at_cycles) {
                (Some(key), Some(at)) => {
                    let beyond = if up { at.floor() + 1.0 } else { at.ceil() - 1.0 };
                    let before = if up { at.ceil() - 1.0 } else { at.floor() + 1.0 };
                    ((beyond >= 0.0).then(|| vec![format!("{key}={beyond}")]), vec![format!("{key}={before}")])
                }
                _ => {
                    let away = if up { away } else { 1.0 / away };
                    (Some(scaled(&c, f.factor * away)), scaled(&c, f.factor / away))
                }
            };
            if let Some(beyond) = beyond {
                prop_assert!(!wins(winner_with(&rows, &beyond)), "{f:?}");
            }
            // Where the flip is nearer than that, the way back is beyond the profile's costs.
            if f.key.is_some() || f.factor.ln().abs() > away.ln() {
                prop_assert!(wins(winner_with(&rows, &before)), "{f:?}");
            }
        }
        // Where none is reported, ratios up to 32 are searched.
        let far = told.unwrap_or(32f64.ln());
        for (name, cost) in c.meta.hardware.exit.iter() {
            for step in 1..=5 {
                for sign in [-1.0, 1.0] {
                    let ratio = (sign * far * f64::from(step) / 5.001).exp();
                    let cycles = cost.cycles as f64 * ratio;
                    // Whole cycles on the near side of the ratio.
                    let cycles = if sign > 0.0 { cycles.floor() } else { cycles.ceil() };
                    let costs = winner_with(&rows, &[format!("exit.{name}.cycles={cycles}")]);
                    prop_assert!(wins(costs), "{name}={cycles} flips {p:?}");
                }
            }
        }
    }

    /// The range of factors against all costs scaled in the profile.
    #[test]
    fn the_winner_wins_within_the_factors_told_and_not_beyond(
        nested in counts(), shadow in counts(), walks in (0u64..8_000_000, 0u64..8_000_000),
        factor in 0.05f64..20.0,
    ) {
        let rows = [("nested-4k", walks.0, nested), ("shadow-4k", walks.1, shadow)];
        let c = run(&rows, profile(&[]));
        let p = c.conclusion().pages[0].clone();
        let wins = |(n, s): (f64, f64)| match p.winner {
            NESTED => n <= s,
            SHADOW => s <= n,
            _ => equal(n, s, IDEAL as f64),
        };
        let near = |end: f64| (factor / end - 1.0).abs() < 0.02; // costs are whole cycles
        let told = p.holds_from.is_none_or(|f| factor >= f) && p.holds_to.is_none_or(|t| factor <= t);
        if told && !p.holds_from.is_some_and(near) && !p.holds_to.is_some_and(near) {
            prop_assert!(wins(winner_with(&rows, &scaled(&c, factor))), "all, factor {factor}: {p:?}");
            for one in scaled(&c, factor) {
                prop_assert!(wins(winner_with(&rows, std::slice::from_ref(&one))), "{one}, factor {factor}: {p:?}");
            }
        }
    }
}
