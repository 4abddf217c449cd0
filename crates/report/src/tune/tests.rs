// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of the ranking.

use super::*;

fn setting(thp: &str, malloc: u8) -> Setting {
    Setting { thp: thp.into(), malloc, ..Setting::default() }
}

const NOW: Now = Now { config: "nested-4k", placement: None };

#[test]
fn placements_are_ranked_beside_other_changes() {
    let mut t = run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-2m", 90.0)]);
    let placed = |p: Placement, walk: u64, data: u64| Placed {
        placement: p,
        guest_tables: Default::default(),
        host_tables: Default::default(),
        data: Default::default(),
        cycles: Some(bifold_model::PlacedCycles { walk, data }),
    };
    let all = [
        placed(Placement::GuestNuma, 0, 5),
        placed(Placement::Smp, 10, 20),
        placed(Placement::Crossed, 30, 50),
    ];
    t.costs = t.costs.iter().flat_map(|c| all.iter().filter_map(|p| c.placed(p))).collect();
    let now = Now { config: "nested-4k", placement: Some(Placement::Smp) };
    let t = Tuning::new(vec![t], &now, 1, Vec::new()).unwrap();
    let ranked: Vec<_> = t.ranked.iter().map(|a| (&a.changes[..], a.gain_percent.round())).collect();
    use Change::*;
    // 130 now; 95 with both, 105 bound, 120 with larger pages. A mistake is no advice.
    assert_eq!(ranked, [(&[Host2m, BindNodes][..], 27.0), (&[BindNodes], 19.0), (&[Host2m], 8.0)]);
    assert_eq!(t.ranked[1].walk_percent.round(), 8.0);
    // Without cycles, a configuration has one cost.
    let unknown = Placed { cycles: None, ..placed(Placement::Smp, 0, 0) };
    assert!(t.tried[0].costs[0].placed(&unknown).is_none());
}

fn run(setting: Setting, costs: &[(&str, f64)]) -> Tried {
    let cost = |(config, cycles): &(&str, f64)| Cost {
        config: (*config).into(),
        placement: None,
        cycles: *cycles,
        ideal_cycles: 20.0,
        ends_cycles: [*cycles * 0.99, *cycles * 1.01],
        error_cycles: 0.1,
        walk_cycles: 0.0,
        exit_cycles: 0.0,
        backed_bytes: 0,
    };
    Tried { setting, seconds: 1.0, costs: costs.iter().map(cost).collect(), touched_bytes: 0 }
}

#[test]
fn the_largest_gain_is_first_and_a_change_that_adds_nothing_is_left_out() {
    let now = run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-2m", 90.0), ("shadow-2m", 89.95)]);
    let always = run(setting("always", 0), &[("nested-4k", 95.0), ("nested-2m", 80.0), ("shadow-2m", 82.0)]);
    let malloc = run(setting("madvise", 1), &[("nested-4k", 101.0), ("nested-2m", 90.0)]);
    let t = Tuning::new(vec![now, always, malloc], &NOW, 100, Vec::new()).unwrap();
    let ranked: Vec<_> = t.ranked.iter().map(|a| (a.changes.clone(), a.gain_percent.round())).collect();
    use Change::*;
    assert_eq!(
        ranked,
        [(vec![Host2m, ThpAlways], 20.0), (vec![Host2m], 10.0), (vec![ThpAlways], 5.0)],
        "shadow paging gains nothing beside 2 MB pages"
    );
    // Pages of 1 GB that gain no more than those of 2 MB are left out.
    let mut huge =
        run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-2m", 90.0), ("nested-1g", 89.95)]);
    huge.costs[2].backed_bytes = 1 << 30;
    let only = Tuning::new(vec![huge], &NOW, 100, Vec::new()).unwrap();
    assert_eq!(only.ranked.iter().map(|a| a.changes[0].clone()).collect::<Vec<_>>(), [Host2m]);
    assert_eq!(t.no_gain.iter().map(|a| a.changes[0].clone()).collect::<Vec<_>>(), [MallocThp]);
    assert_eq!(t.now_seconds, 1.0);
}

#[test]
fn a_gain_that_may_be_a_loss_is_undecided_and_a_small_one_is_worth_no_change() {
    let one = |costs: &[(&str, f64)]| {
        let mut tried = run(setting("madvise", 0), costs);
        tried.costs[1].error_cycles = 6.0;
        Tuning::new(vec![tried], &NOW, 1, Vec::new()).unwrap()
    };
    let changes = |all: &[Advice]| all.iter().map(|a| a.config.clone()).collect::<Vec<_>>();
    let t = one(&[("nested-4k", 100.0), ("nested-2m", 95.0)]);
    assert_eq!((changes(&t.ranked), changes(&t.undecided)), (vec![], vec!["nested-2m".into()]));
    assert!(
        t.verdict().starts_with("Nothing here is sure to gain 1 % of the time: 2 MB host pages may (+5.00 %")
    );
    let t = one(&[("nested-4k", 100.0), ("nested-2m", 99.2)]);
    assert_eq!((t.ranked.len(), t.undecided.len(), t.no_gain.len()), (0, 0, 1));
    assert_eq!(t.verdict(), "Nothing here is worth a change: the best gains 0.80 % of the time.");
    // Modes whose overheads differ by less than 5 % cost about the same, also on top of larger pages.
    let mode = [("nested-4k", 100.0), ("nested-2m", 60.0), ("shadow-4k", 97.0), ("shadow-2m", 58.5)];
    let t = one(&mode);
    assert_eq!(
        (changes(&t.ranked), changes(&t.undecided)),
        (vec!["nested-2m".into()], vec!["shadow-4k".into()])
    );
    // Guests within guests are ranked among each other.
    let within = ["nested-on-nested-4k", "nested-4k", "pvm-4k", "nested-on-nested-2m"];
    let costs: Vec<(&str, f64)> = within.into_iter().zip([100.0, 20.0, 50.0, 60.0]).collect();
    let now = Now { config: within[0], placement: None };
    let t = Tuning::new(vec![run(setting("madvise", 0), &costs)], &now, 1, Vec::new()).unwrap();
    assert_eq!(changes(&t.ranked), ["pvm-4k", "nested-on-nested-2m"]);
    assert_eq!(t.ranked[1].changes, [Change::Inner2m, Change::Outer2m]);
    assert_eq!(config_changes("pvm-2m-4k", "nested-on-nested-2m"), [Change::Outer2m, Change::InnerNested]);
}

#[test]
fn what_gains_enough_is_listed_though_its_parts_do_not() {
    let configs =
        |all: &[Advice]| all.iter().map(|a| (a.config.clone(), a.setting.thp.clone())).collect::<Vec<_>>();
    let row = |config: &str, thp: &str| (config.to_string(), thp.to_string());
    // Larger pages gain 1.38 %, smaller ones less than is worth a change.
    let now = [("nested-4k", 100.0), ("nested-2m", 99.2), ("nested-1g", 98.62)];
    let sure = |setting: Setting, costs: &[(&str, f64)]| {
        let mut tried = run(setting, costs);
        tried.costs.iter_mut().for_each(|c| c.ends_cycles = [c.cycles; 2]);
        tried
    };
    let t = Tuning::new(vec![sure(setting("madvise", 0), &now)], &NOW, 1, Vec::new()).unwrap();
    assert_eq!(configs(&t.ranked), [row("nested-1g", "madvise")]);
    // Two changes that gain 0.95 % each gain 1.9 % together; pages of 1 GB add nothing to those of 2 MB.
    let now = [("nested-4k", 100.0), ("nested-2m", 99.05), ("nested-1g", 99.05)];
    let always = [("nested-4k", 99.05), ("nested-2m", 98.1), ("nested-1g", 98.1)];
    let both = |of: fn(Setting, &[(&str, f64)]) -> Tried| {
        let tried = vec![of(setting("madvise", 0), &now), of(setting("always", 0), &always)];
        Tuning::new(tried, &NOW, 1, Vec::new()).unwrap()
    };
    assert_eq!(configs(&both(sure).ranked), [row("nested-2m", "always")]);
    // With larger pages now, a row of smaller ones has one change more, and stands in for none.
    let now = [("nested-4k", 100.4), ("nested-2m", 100.0)];
    let always = [("nested-4k", 95.4), ("nested-2m", 95.0)];
    let tried = vec![sure(setting("madvise", 0), &now), sure(setting("always", 0), &always)];
    let t = Tuning::new(tried, &Now { config: "nested-2m", placement: None }, 1, Vec::new()).unwrap();
    assert_eq!(configs(&t.ranked), [row("nested-2m", "always")]);
    // A row that is left out stands in for none: each change adds 0.95 %, and three of them 1.9 % beyond the
    // first.
    let tried = [("madvise", 0, false), ("always", 0, false), ("always", 1, false), ("always", 1, true)];
    let tried = tried.into_iter().zip([100.0, 99.0, 98.05, 97.1]);
    let tried = tried.map(|((thp, malloc, kpti), cycles)| {
        sure(Setting { kpti, ..setting(thp, malloc) }, &[("nested-4k", cycles)])
    });
    let t = Tuning::new(tried.collect(), &NOW, 1, Vec::new()).unwrap();
    let gains: Vec<f64> = t.ranked.iter().map(|a| (a.gain_percent * 100.0).round() / 100.0).collect();
    assert_eq!(gains, [2.9, 1.0]);
    // The same where no gain is sure.
    let unsure = |setting: Setting, costs: &[(&str, f64)]| {
        let mut tried = run(setting, costs);
        tried.costs.iter_mut().for_each(|c| c.error_cycles = 9.0);
        tried
    };
    let t = both(unsure);
    assert_eq!((configs(&t.ranked), configs(&t.undecided)), (vec![], vec![row("nested-2m", "always")]));
}

#[test]
fn memory_at_the_end_is_that_of_the_start_and_the_run_and_of_the_outer_host_below_another() {
    let of =
        |frames_backed, twice, huge_frames_backed, outer_frames_backed, outer_huge_frames_backed| Sample {
            frames_backed,
            exits_violation: frames_backed + twice + huge_frames_backed,
            huge_frames_backed,
            outer_frames_backed,
            outer_huge_frames_backed,
            ..Sample::default()
        };
    // Of the run's 4 KB pages 893 are read before they are written, and of the start's 50.
    let rows = [
        ("nested-4k", 0, of(5_617, 893, 0, 0, 0)),
        ("nested-2m", 0, of(0, 0, 8, 0, 0)),
        ("nested-on-nested-4k-2m", 0, of(5_617, 893, 0, 0, 11)),
    ];
    let mut c = crate::verdict::tests::run(&rows, bifold_model::Profile::load("i5-7600", &[]).unwrap());
    let start = [of(1_184, 50, 0, 0, 0), of(0, 0, 34, 0, 0), of(1_184, 50, 0, 2, 3)];
    let region =
        |(row, total): (&ConfigOutcome, Sample)| bifold_model::RegionTotal { config: row.config, total };
    c.outcome.start = Some(c.outcome.configs.iter().zip(start).map(region).collect());
    let bytes = |c: &Comparison| Cost::of(c).iter().map(|cost| cost.backed_bytes).collect::<Vec<_>>();
    let small = 5_617 + 1_184 - 943;
    assert_eq!(bytes(&c), [small << 12, (8 + 34) << 21, (2 << 12) + ((11 + 3) << 21) - (943 << 12)]);
    c.outcome.vm = VmState::RestoredUffd;
    assert_eq!(bytes(&c), [0; 3]);
    c.outcome.vm = VmState::Started;
    c.outcome.configs.retain(|row| row.config.name() == "nested-2m");
    assert_eq!(bytes(&c), [0]);
    c.outcome.vm = VmState::LongLived;
    assert_eq!(bytes(&c), [0]);
}

#[test]
fn a_band_holds_the_gain() {
    let t = vec![run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-1g", 50.0)])];
    let t = Tuning::new(t, &NOW, 1, Vec::new()).unwrap();
    let a = &t.ranked[0];
    assert!(a.low_percent <= a.gain_percent && a.gain_percent <= a.high_percent);
    assert_eq!(a.changes, [Change::Host1g]);
    assert!(Tuning::new(Vec::new(), &NOW, 1, Vec::new()).is_none());
}
