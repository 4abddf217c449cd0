// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Figures that a made-up outcome must have.

use super::*;
use crate::experiment::outcome::{CaseOutcome, GuestOutcome, GuestSample, Mark};
use crate::experiment::{Rate, Spec};
use bifold_host::Host;
use bifold_host::ksm::{Ksm, MergeableProcess, Merged, Others};
use std::path::Path;

const MIB: u64 = 1 << 20;

fn guest(name: &str) -> GuestOutcome {
    GuestOutcome {
        name: name.into(),
        kernel: "6.1".into(),
        workload: "idle".into(),
        memory_mib: 100,
        ready_s: Some(3.0),
        cycles: 7,
        died: None,
        failed: None,
    }
}

fn sample(at_s: f64, used: u64, cpu: f64) -> Sample {
    let guest = GuestSample { rss: 80 * MIB, pss: used / 2 * MIB, ..GuestSample::default() };
    Sample {
        at_s,
        unshared: 160 * MIB,
        used: used * MIB,
        ksmd_cpu_s: Some(cpu),
        copies: Some(50),
        guests: vec![Some(guest), Some(guest)],
        ..Sample::default()
    }
}

fn outcome() -> Outcome {
    let small = Counts { pages: 51_200, zero: 10_240, minimum: 10_240, intra: 25_600, inter: 5_120 };
    Outcome {
        host_kernel: "6.18".into(),
        qemu: "10".into(),
        found: "run=0".into(),
        planned: 1,
        cases: vec![CaseOutcome {
            name: "all".into(),
            ksm: "pages_to_scan=100".into(),
            guests: vec![guest("a-1"), guest("a-2")],
            samples: vec![sample(0.0, 160, 0.0), sample(5.0, 52, 1.0), sample(10.0, 40, 1.5)],
            marks: vec![Mark {
                at_s: 5.0,
                paused_s: 0.1,
                small,
                huge: Counts::default(),
                lost_to_huge: 20_480,
                guests: vec![("a-1".into(), small)],
            }],
            merged: Some(Merged { frames: 3, pages: 10, merging_pages: Some(10), zero_pages: 2 }),
            others: Others::default(),
            ending: Ending::Whole,
            notes: Vec::new(),
        }],
    }
}

fn plan() -> Plan {
    let text = "title = 'x'\n[time]\nlength = 10\nsample = 5\n[[guest]]\nname = 'a'\ncount = 2\n\
                memory_mib = 100\nworkload = { kind = 'idle' }\n[[published]]\nsource = 'them'\n\
                memory = 16384\nminimum = 630\nintra = 8241\ninter = 757\nused_with_sharing = 965\nused_without = 10014\n";
    Spec::parse(Path::new("x"), text).unwrap().plan(Path::new("x"), Rate { of: 1, parts: 1 }, &[]).unwrap()
}

#[test]
fn full_scans_are_those_of_the_case() {
    let dir = tempfile::tempdir().unwrap();
    let ksm = dir.path().join("kernel/mm/ksm");
    std::fs::create_dir_all(&ksm).unwrap();
    std::fs::write(ksm.join("run"), "1\n").unwrap();
    let host = Host { sys: dir.path().into(), ..Host::live() };
    let counted = |scans: &str| {
        std::fs::write(ksm.join("full_scans"), scans).unwrap();
        Ksm::of(&host).unwrap().counters().unwrap()
    };
    let mut outcome = outcome();
    let samples = &mut outcome.cases[0].samples;
    (samples[0].ksm, samples[2].ksm) = (counted("189\n"), counted("218\n"));
    let tables = tables(&plan(), &outcome);
    assert_eq!(tables[2].rows[0][5], "29");
}

#[test]
fn tables_say_what_was_saved_of_what_could_be() {
    let [memory, ksm, host, published, guests] = &tables(&plan(), &outcome())[..] else {
        panic!("five tables")
    };
    let row = |t: &ResultTable, n: usize| t.rows[n].join(" ");
    assert_eq!(row(memory, 0), "all 200 160 40 75.0 5 40 40 100 20 75.0 50.0");
    assert_eq!(row(ksm, 0), "all 10 3 7 2 - 5");
    assert_eq!(row(host, 0), "all - - - - - 15.0 20.0 50 5 0");
    assert_eq!(row(published, 0), "them 3.8 50.3 4.6 61.1 5.9 90.4");
    assert_eq!(row(published, 1), "here: all 20.0 50.0 10.0 80.0 20.0 75.0");
    assert_eq!(row(guests, 0), "all a-1 6.1 3 7 80 20 - - - 40, 40, 100, 20");
    for table in [memory, ksm, host, published, guests] {
        assert!(table.rows.iter().all(|r| r.len() == table.head.len()), "{}", table.title);
        let bars = table
            .markdown()
            .lines()
            .filter(|l| l.starts_with('|'))
            .map(|l| l.matches('|').count())
            .collect::<Vec<_>>();
        assert!(bars.iter().all(|n| *n == bars[0]), "{bars:?}");
    }
}

#[test]
fn what_is_missing_is_said() {
    let mut o = outcome();
    assert_eq!(partial(&o), None);
    o.cases[0].guests[1].died = Some((4.0, "qemu ended (signal: 9)".into()));
    o.cases[0].ending = Ending::Interrupted;
    o.planned = 3;
    let said = partial(&o).unwrap();
    for part in ["interrupted at 10 s", "a-2 died", "2 of 3 cases did not run"] {
        assert!(said.contains(part), "{said}");
    }
    assert!(tables(&plan(), &o).last().unwrap().notes[0].contains("a-2: died at 4 s"));
}

#[test]
fn a_row_is_a_time_and_a_guest_or_all() {
    let mut o = outcome();
    o.cases[0].samples[2].guests[1] = None;
    let rows = rows(&o);
    let of = |t: f64| rows.iter().filter(|r| r.time_s == t).map(|r| r.guest.as_str()).collect::<Vec<_>>();
    assert_eq!(of(0.0), ["all", "host", "a-1", "a-2"]);
    assert_eq!(of(10.0), ["all", "host", "a-1"], "one that is gone has no row");
    assert_eq!(rows[0].used_bytes, Some(160 * MIB));
    assert_eq!(rows[0].resident_bytes, Some(160 * MIB));
    assert_eq!(rows[2].resident_bytes, Some(80 * MIB));
}

#[test]
fn other_programs_are_in_the_hosts_figures_and_not_in_the_guests() {
    let dir = tempfile::tempdir().unwrap();
    let ksm = dir.path().join("kernel/mm/ksm");
    std::fs::create_dir_all(&ksm).unwrap();
    for (file, text) in [("run", "1\n"), ("pages_sharing", "116224\n"), ("pages_shared", "900\n")] {
        std::fs::write(ksm.join(file), text).unwrap();
    }
    let host = Host { sys: dir.path().into(), ..Host::live() };
    let mut o = outcome();
    let case = &mut o.cases[0];
    let other = MergeableProcess { pid: 7, name: "`web`".into(), pages: 262_144, merged: 100_000 };
    case.others = Others(vec![other]);
    for s in &mut case.samples {
        s.ksm = Ksm::of(&host).unwrap().counters().unwrap();
        s.guests.iter_mut().flatten().for_each(|g| g.merging_pages = Some(5));
    }
    let tables = tables(&plan(), &o);
    assert!(tables[0].notes[1].contains("merged pages, too (all)"), "{:?}", tables[0].notes);
    assert_eq!(tables[1].rows[0][1..4], ["10", "3", "7"], "the guests' own");
    assert_eq!(tables[2].rows[0][1..3], ["900", "116224"], "the host's");
    assert_eq!(tables[2].rows[0].last().unwrap(), "100000");
    assert!(tables[2].notes[0].contains("process 7 `web` with 1024 MiB"), "{:?}", tables[2].notes);
    let rows = rows(&o);
    let of = |guest: &str| rows.iter().find(|r| r.guest == guest).unwrap();
    assert_eq!((of("all").ksm_merging_pages, of("all").pages_sharing), (Some(10), None));
    assert_eq!((of("host").ksm_merging_pages, of("host").pages_sharing), (None, Some(116_224)));
}

#[test]
fn charts_have_a_curve_for_each_case_or_guest() {
    let charts = charts(&outcome());
    let titles: Vec<&str> = charts.iter().map(|c| c.title.as_str()).collect();
    assert!(titles.contains(&"What sharing saves") && titles.contains(&"CPU time of ksmd"), "{titles:?}");
    assert!(
        !titles.contains(&"Pages of these guests that are merged"),
        "what the kernel did not count is no chart"
    );
    let saved = charts.iter().find(|c| c.title == "What sharing saves").unwrap();
    assert_eq!(saved.curves, [("all".to_string(), vec![(0.0, 0.0), (5.0, 108.0), (10.0, 120.0)])]);
    let each = charts.last().unwrap();
    assert_eq!(each.curves.iter().map(|c| c.0.as_str()).collect::<Vec<_>>(), ["a-1", "a-2"]);
}
