// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes charts of an experiment over time.

use crate::experiment::outcome::{CaseOutcome, Outcome, Sample};
use crate::output::{Chart, MIB};
use bifold_host::ksm::Counter;

/// The charts of a run. Each chart has a curve per case.
pub fn charts(outcome: &Outcome) -> Vec<Chart> {
    type Value = fn(&Sample) -> Option<f64>;
    let chart = |title: &str, unit: &str, kinds: &[(&str, Value)]| {
        let mut curves = Vec::new();
        for case in &outcome.cases {
            for (kind, value) in kinds {
                let points: Vec<_> = case.samples.iter().filter_map(|s| Some((s.at_s, value(s)?))).collect();
                let name = match kinds {
                    [_] => case.name.clone(),
                    _ if outcome.cases.len() == 1 => kind.to_string(),
                    _ => format!("{}, {kind}", case.name),
                };
                if !points.is_empty() {
                    curves.push((name, points));
                }
            }
        }
        Chart { title: title.into(), unit: unit.into(), curves }
    };
    let mut all = vec![
        chart("Memory that the guests take", "MiB", &[("", |s| Some(s.used as f64 / MIB))]),
        chart("What sharing saves", "MiB", &[("", |s| Some(s.saved() as f64 / MIB))]),
        chart(
            "Pages of these guests that are merged",
            "thousand pages",
            &[("", |s| Some(s.of_guests(|g| g.merging_pages)? as f64 / 1e3))],
        ),
        chart(
            "The whole host: pages that KSM saves",
            "thousand pages",
            &[("", |s| Some(s.ksm.get(Counter::PagesSharing)? as f64 / 1e3))],
        ),
        chart(
            "The whole host: pages that ksmd found alone or changing",
            "thousand pages",
            &[
                ("unshared", |s| Some(s.ksm.get(Counter::PagesUnshared)? as f64 / 1e3)),
                ("volatile", |s| Some(s.ksm.get(Counter::PagesVolatile)? as f64 / 1e3)),
            ],
        ),
        chart(
            "The whole host: merged pages copied again",
            "thousand since the start",
            &[("", |s| Some(s.copies? as f64 / 1e3))],
        ),
    ];
    let cpu = outcome.cases.iter().map(|c: &CaseOutcome| (c.name.clone(), c.ksmd_percent()));
    all.push(Chart {
        title: "CPU time of ksmd".into(),
        unit: "percent of one processor".into(),
        curves: cpu.filter(|(_, p)| !p.is_empty()).collect(),
    });
    if let [case] = &outcome.cases[..] {
        all.push(of_guests(case));
    }
    all.retain(|c| !c.curves.is_empty());
    all
}

/// Each guest's share of the memory that they take.
fn of_guests(case: &CaseOutcome) -> Chart {
    let of = |n: usize| -> Vec<(f64, f64)> {
        case.samples
            .iter()
            .filter_map(|s| Some((s.at_s, s.guests.get(n)?.as_ref()?.pss as f64 / MIB)))
            .collect()
    };
    let curves = case.guests.iter().enumerate().map(|(n, g)| (g.name.clone(), of(n)));
    Chart { title: "Each guest's share of it".into(), unit: "MiB".into(), curves: curves.collect() }
}
