// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Verdict and advice over programs: every output says the same first, and the verdict changes where `holds`
//! says.

use crate::command::{bifold_in, ran};
use serde_json::Value;
use std::path::Path;

/// Ten programs that differ in their misses, their exits and their tables.
const PROGRAMS: [&str; 10] = [
    "t:20000",
    "t-seq:20000",
    "t-4m:20000",
    "gups:20000",
    "gups:20000@4g",
    "gups-2m:20000",
    "pointer-chase:5000",
    "pointer-chase:40000",
    "fork-storm:20",
    "fork-storm:100",
];

fn json(dir: &Path, args: &str) -> Value {
    serde_json::from_str(&bifold_in(dir, args).quietly()).unwrap()
}

/// Words with single blanks between them.
fn flat(text: &str) -> String {
    text.split_whitespace().collect::<Vec<_>>().join(" ")
}

/// The first change of the ranking in a result, as `compare` words it: `From nested-4k to nested-2m`.
fn first(advice: &Value) -> String {
    let now = advice["now"].as_str().unwrap();
    match advice["ranked"].get(0) {
        Some(best) => format!("From {now} to {}", best["config"].as_str().unwrap()),
        None => format!("Keep {now}"),
    }
}

#[test]
fn every_output_advises_the_same_change_first() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let mut changes = 0;
    for program in PROGRAMS {
        let v = json(
            dir,
            &format!(
                "compare -q --generate {program} --format json --report r.html --timeline t.timeline -i 0.0001"
            ),
        );
        let advice = &v["advice"][0];
        let said = first(advice);
        changes += usize::from(said.starts_with("From"));
        // Table, report, a recording and its result.
        let table = bifold_in(dir, &format!("record -q --generate {program} -o p.bifold")).quietly();
        assert!(flat(&table).contains(&format!("change {said}")), "{program}: {said}\n{table}");
        assert!(v["verdict"].as_str().unwrap().contains(&said), "{program}");
        let page = std::fs::read_to_string(dir.join("r.html")).unwrap();
        assert!(page.contains(&said), "{program}: {said}");
        assert_eq!(json(dir, "compare -q p.bifold --format json")["advice"][0], *advice, "{program}");
        // The comparison that `ci` makes: nothing grew, and the advice is the same.
        bifold_in(dir, "compare -q p.bifold --save-baseline b.json").quietly();
        let beside = json(dir, "compare -q p.bifold --baseline b.json --format json");
        assert_eq!(
            (&beside["advice"][0], &beside["baseline"]["grew"]),
            (advice, &Value::Array(vec![])),
            "{program}"
        );
        // With the page sizes that `tune` models, the first advice is this, or of pages that were not
        // modelled here.
        let sizes = "nested-4k,nested-2m,nested-1g,shadow-4k,shadow-2m,shadow-1g";
        let wide = json(dir, &format!("compare -q p.bifold --format json --configs {sizes}"));
        let wide = first(&wide["advice"][0]);
        assert!(wide == said || wide.ends_with("1g"), "{program}: {said}, {wide}");
        // No advice is of a mode that the verdict calls costlier, and policies prefer the mode that the
        // verdict prefers.
        let page =
            v["conclusion"]["pages"].as_array().unwrap().iter().find(|p| p["host_page"] == "4K").unwrap();
        let winner = page["winner"].as_str().unwrap();
        assert!(winner != "nested" || !said.ends_with("to shadow-4k"), "{program}: {said}");
        assert!(winner != "equal" || !said.ends_with("to shadow-4k"), "{program}: {said}");
        let policies = bifold_in(dir, "policy compare t.timeline --format json");
        if policies.status == 0 {
            let p: Value = serde_json::from_str(&policies.stdout).unwrap();
            let statics = &p["programs"][0]["static_percent"];
            let modes = p["programs"][0]["modes"].as_array().unwrap();
            let of = |mode: &str| statics[modes.iter().position(|m| m == mode).unwrap()].as_f64().unwrap();
            match winner {
                "nested" => assert!(of("nested") < of("shadow"), "{program}: {statics}"),
                "shadow" => assert!(of("shadow") < of("nested"), "{program}: {statics}"),
                _ => {}
            }
        }
    }
    assert!((2..9).contains(&changes), "{changes} of the programs have a change: all or none show nothing");
}

/// Every nearest cost that a result names, rerun with the cost set to the named value, and to one step
/// before. The errors of simulated caches change with the costs a little, so there are none.
#[test]
fn the_verdict_changes_at_the_cost_that_holds_names_and_not_one_step_before() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let page_of = |program: &str, vm: &str, set: &str, page: &Value| {
        let v =
            json(dir, &format!("compare -q --caches off --generate {program} --vm {vm} --format json {set}"));
        let pages = v["conclusion"]["pages"].as_array().unwrap();
        pages.iter().find(|p| p["host_page"] == *page).unwrap().clone()
    };
    // What the verdict says. Where several modes may win, nothing else is said.
    let of = |v: &Value| {
        let modes: Vec<&Value> = v["possible"].as_array().unwrap().iter().filter(|w| *w != "equal").collect();
        match modes.len() {
            0 | 1 => format!("{} {}", v["winner"], v["possible"]),
            _ => format!("{modes:?}"),
        }
    };
    let mut ends = 0;
    for program in ["t:3000", "gups:3000", "pointer-chase:3000", "fork-storm:20", "fork-storm:100"] {
        for vm in ["long-lived", "started"] {
            let v =
                json(dir, &format!("compare -q --caches off --generate {program} --vm {vm} --format json"));
            for p in v["conclusion"]["pages"].as_array().unwrap() {
                let (flip, page) = (&p["flip"], &p["host_page"]);
                let Some(key) = flip["key"].as_str() else { continue };
                let (at, assumed) =
                    (flip["at_cycles"].as_u64().unwrap(), flip["assumed_cycles"].as_u64().unwrap());
                let before = if at > assumed { at - 1 } else { at + 1 };
                let at_end = page_of(program, vm, &format!("--set {key}={at}"), page);
                assert_eq!(of(&at_end), of(flip), "{program} {vm} {page}: {flip}");
                let one_before = page_of(program, vm, &format!("--set {key}={before}"), page);
                assert_eq!(of(&one_before), of(p), "{program} {vm} {page}: {flip}");
                assert_ne!(of(&at_end), of(&one_before));
                ends += 1;
            }
        }
    }
    assert!(ends >= 8, "{ends} ends were tried");
}

/// The image has the time of each row of the table.
#[test]
fn a_chart_has_the_times_of_the_table() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = crate::command::command("compare --generate t:2000 --chart c.svg".split(' '));
    c.current_dir(dir.path());
    let out = ran(c);
    assert_eq!((out.status, out.stderr.as_str()), (0, "bifold: chart written to c.svg\n"));
    let svg = std::fs::read_to_string(dir.path().join("c.svg")).unwrap();
    let table =
        out.stdout.lines().skip_while(|l| !l.starts_with("config")).skip(2).take_while(|l| !l.is_empty());
    let mut rows = 0;
    for row in table {
        let mut cells = row.split_whitespace();
        let (config, time) = (cells.next().unwrap(), cells.next().unwrap());
        assert!(
            svg.contains(&format!(">{config}</text>")) && svg.contains(&format!("{time} ")),
            "{row}\n{svg}"
        );
        rows += 1;
    }
    assert_eq!(rows, 5);
    let refused = bifold_in(dir.path(), "compare --runs 2 --chart c.svg -- true");
    assert_eq!(refused.status, 2, "{}", refused.stderr);
}
