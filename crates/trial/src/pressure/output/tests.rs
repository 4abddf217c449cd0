// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures that a made-up outcome must have.

use super::*;
use crate::pressure::outcome::{GuestOutcome, GuestSample, LoadCounts, Orders};
use std::path::Path;

fn spec() -> Spec {
    let text = "title = 'x'\nhost_memory_mib = 150\n[time]\nlength = 20\ninterval = 10\n[[guest]]\nname = 'a'\ncount = 2\n\
                memory_mib = 100\nleast_mib = 50\nphases = [{ seconds = 5, memory_mib = 10, rate = 10 }]\n\
                [[case]]\nname = 'all'\n[[case]]\nname = 'equal'\npolicy = 'equal'\n";
    Spec::parse(Path::new("x"), text).unwrap()
}

fn case(spec: &Spec, n: usize, used: [u64; 3], operations: u64) -> CaseOutcome {
    let guest = |at: usize, times: u64| GuestSample {
        used: used[at] << 20,
        resident: used[at] << 20,
        size: Some(100 << 20),
        cpu_s: at as f64,
        load: LoadCounts {
            operations: at as u64 * operations * times / 2,
            busy_us: at as u64 * 1000,
            major_faults: 7 * at as u64,
            ..LoadCounts::default()
        },
        ..GuestSample::default()
    };
    let orders = Orders { steps: 3, held: 2, short: 1, refused: 0, given_back: 4 };
    let outcome =
        |name: &str| GuestOutcome { name: name.into(), memory_mib: 100, orders, ..GuestOutcome::default() };
    CaseOutcome {
        spec: spec.cases[n].clone(),
        repetition: 1,
        repeated: false,
        guests: vec![outcome("a-1"), outcome("a-2")],
        samples: (0..3)
            .map(|at| Sample { at_s: 10.0 * at as f64, guests: vec![Some(guest(at, 1)), Some(guest(at, 2))] })
            .collect(),
        ending: Ending::Whole,
        notes: Vec::new(),
    }
}

fn outcome(spec: &Spec) -> Outcome {
    Outcome {
        host_kernel: "6.18".into(),
        qemu: "10".into(),
        kvm: false,
        cases: vec![case(spec, 0, [60, 90, 90], 1000), case(spec, 1, [60, 60, 60], 800)],
        planned: 2,
    }
}

#[test]
fn tables_have_what_is_beyond_the_host_and_the_progress() {
    let spec = spec();
    let outcome = outcome(&spec);
    let [host, guests, orders] = &tables(&spec, &outcome)[..] else { panic!("three tables") };
    assert_eq!(host.rows[0].join(" "), "all 160 180 20 66.7 100.0 100.0 4.0");
    assert_eq!(host.rows[1].join(" "), "equal 120 120 0 0.0 80.0 80.0 4.0");
    assert_eq!(guests.rows[3].join(" "), "equal a-2 100 60 60 1600 80.0 0.00 0.0 14 0 0");
    assert_eq!(orders.rows.len(), 2, "nothing is ordered in the first case");
    assert_eq!(orders.rows[0].join(" "), "equal a-1 3 2 1 0 4");
    assert!([host, guests, orders].iter().all(|t| t.rows.iter().all(|r| r.len() == t.head.len())));
    let charts = charts(&spec, &outcome);
    let curves: Vec<usize> = charts.iter().map(|c| c.curves.len()).collect();
    assert_eq!(curves, [3, 2, 2, 2, 4]);
}

#[test]
fn a_run_that_is_not_whole_has_no_progress_and_says_so() {
    let spec = spec();
    let mut outcome = outcome(&spec);
    assert_eq!(outcome.partial(), None);
    outcome.cases[1].ending = Ending::Interrupted;
    outcome.cases[1].guests[0].ended = Some((3.0, "qemu ended".into()));
    outcome.planned = 3;
    let said = outcome.partial().unwrap();
    for part in ["equal: interrupted at 20 s", "a-1 ended at 3 s", "1 of 3 cases did not run"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(outcome.interrupted());
    assert_eq!(tables(&spec, &outcome)[0].rows[1][5], "-");
    let document: serde_json::Value = serde_json::from_str(&json(&spec, &outcome, "1").unwrap()).unwrap();
    assert_eq!(document["schema"], "bifold.reclaim-run/1");
    assert_eq!(document["runs"][1]["ending"], "interrupted");
    assert_eq!(document["runs"][1]["case"]["policy"], "equal");
    assert_eq!(document["runs"][0]["guests"][1]["progress"], 1.0);
    assert_eq!(document["runs"][0]["samples"][2]["guests"][0]["used_bytes"], 90 << 20);
}
