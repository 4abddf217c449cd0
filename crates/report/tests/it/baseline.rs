// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A run beside its baseline.

use crate::fixture::{comparison, places, with_start};
use crate::outputs::assert_schema;
use bifold_report::{Baseline, Comparison, Format, Judged, NotComparable};

fn baseline(c: &Comparison) -> Baseline {
    Baseline::from_json("base.json", c.render_baseline().unwrap().as_bytes()).unwrap()
}

fn judged(before: &Comparison, now: &Comparison, worse_than: f64) -> Result<Judged, NotComparable> {
    baseline(before).judge(now, worse_than)
}

/// The comparison with 3 % more walk cycles in one configuration.
fn slower() -> Comparison {
    let mut c = comparison();
    let total = &mut c.outcome.configs[1].total;
    total.walk_cycles += total.walk_cycles * 3 / 100;
    c
}

#[test]
fn a_run_equals_itself_and_the_result_of_any_size_that_was_kept_of_it() {
    for c in [comparison(), Comparison { places: Some(places(50)), ..comparison() }] {
        let same = judged(&c, &c, 0.0).unwrap();
        assert_eq!((same.is_worse(), same.fell.len(), same.notes.len()), (false, 0, 0), "{same:?}");
        let whole = c.render(Format::Json).unwrap();
        let from_whole = Baseline::from_json("base.json", whole.as_bytes()).unwrap();
        assert_eq!(from_whole.judge(&c, 0.0).unwrap(), same);
        assert!(c.render_baseline().unwrap().len() < whole.len() / 2);
    }
}

#[test]
fn what_grew_by_more_than_the_limit_is_worse_and_the_other_way_round_it_fell() {
    let (before, now) = (comparison(), slower());
    let worse = judged(&before, &now, 2.0).unwrap();
    let names: Vec<_> = worse.grew.iter().map(|m| (m.config.as_str(), &*m.count)).collect();
    assert_eq!(names, [("nested-4k", "walk_cycles"), ("nested-4k", "extra_cycles")]);
    assert!((worse.grew[0].percent.unwrap() - 3.0).abs() < 0.01);
    assert!(worse.is_worse() && !judged(&before, &now, 4.0).unwrap().is_worse());
    let better = judged(&now, &before, 2.0).unwrap();
    assert_eq!((better.is_worse(), better.fell.len()), (false, 2));
    let shown = Comparison { baseline: Some(worse), ..now };
    let table = shown.render(Format::Table).unwrap();
    insta::assert_snapshot!(&table[table.find("baseline ").unwrap()..]);
    assert_schema("bifold.compare/2", &shown.render(Format::Json).unwrap());
    assert!(shown.render_html().unwrap().contains("Since the baseline"));
}

#[test]
fn a_place_that_grew_is_named_and_a_renamed_one_alone_is_not_worse() {
    let before = Comparison { places: Some(places(50)), ..comparison() };
    let mut now = before.clone();
    let rows = &mut now.places.as_mut().unwrap().places.cause;
    rows[0].costs.iter_mut().for_each(|c| c.exits += c.exits / 10);
    rows[1].function = "renamed".into();
    let judged = judged(&before, &now, 2.0).unwrap();
    assert!(judged.grew.iter().all(|m| m.place.as_ref().is_some_and(|p| p.function == "ggc_internal_alloc")));
    assert!(judged.grew.iter().any(|m| m.count == "exits"), "{judged:?}");
    assert!(judged.new_places.iter().all(|m| m.place.as_ref().is_some_and(|p| p.function == "renamed")));
    assert!(!judged.new_places.is_empty());
}

#[test]
fn a_baseline_of_another_program_profile_guest_or_version_is_refused() {
    let c = comparison();
    type Change = fn(&mut Comparison);
    let changes: [(&str, Change); 9] = [
        ("program", |c| c.meta.guest.as_mut().unwrap().command[0] = "cc".into()),
        ("profile hash", |c| c.outcome.config_hash = "0".into()),
        ("Bifold", |c| c.meta.bifold = "9".into()),
        ("vCPUs", |c| c.meta.guest.as_mut().unwrap().vcpus = 2),
        ("THP", |c| c.meta.guest.as_mut().unwrap().thp = Some("always".into())),
        ("VM is started", |c| c.outcome.vm = bifold_model::VmState::LongLived),
        ("guest's start", |c| with_start(&mut c.outcome)),
        ("--nested-levels", |c| c.outcome.nested_levels = 5),
        ("this run is not whole", |c| c.meta.partial = Some(bifold_report::Partial::Interrupted)),
    ];
    for (what, change) in changes {
        let mut now = c.clone();
        change(&mut now);
        let e = judged(&c, &now, 2.0).unwrap_err().to_string();
        assert!(e.starts_with("base.json is no baseline for this run: ") && e.contains(what), "{what}: {e}");
    }
    // Kernels and QEMU are updated, and the run goes on.
    let mut now = c.clone();
    now.meta.guest.as_mut().unwrap().kernel = Some("6.12.1".into());
    assert_eq!(judged(&c, &now, 2.0).unwrap().notes.len(), 1);
}

#[test]
fn impossible_places_are_refused() {
    let c = Comparison { places: Some(places(3)), ..comparison() };
    let text = c.render_baseline().unwrap();
    for (from, to) in
        [("\"totals\":[{", "\"totals\":[],\"x\":[{"), ("\"exits\":20000", "\"exits\":99999999999999999")]
    {
        let e = Baseline::from_json("b.json", text.replace(from, to).as_bytes()).unwrap_err();
        assert!(e.to_string().contains("where has costs"), "{e}");
    }
}
