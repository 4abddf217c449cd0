// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare --baseline`: a run beside the counts of an earlier one.

use crate::command::bifold_in;
use serde_json::Value;
use std::path::Path;

const RUN: &str = "compare -q --generate fork-storm:20 --configs nested-4k,shadow-4k";

fn save(dir: &Path) {
    bifold_in(dir, &format!("{RUN} --save-baseline base.json")).quietly();
}

/// Changes a counter of a configuration in the baseline.
fn change(dir: &Path, config: usize, counter: &str, change: impl Fn(u64) -> u64) {
    let path = dir.join("base.json");
    let mut v: Value = serde_json::from_slice(&std::fs::read(&path).unwrap()).unwrap();
    let count = &mut v["outcome"]["configs"][config]["total"][counter];
    *count = change(count.as_u64().unwrap()).into();
    std::fs::write(&path, v.to_string()).unwrap();
}

#[test]
fn a_run_passes_its_own_baseline_and_fails_one_of_fewer_walks() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path());
    let same = bifold_in(dir.path(), &format!("{RUN} --baseline base.json --worse-than 0%")).quietly();
    assert!(same.ends_with("baseline base.json: no count moved by more than 0 %\n"), "{same}");
    // 3 % more walks than the baseline has.
    change(dir.path(), 1, "walks", |n| n * 100 / 103);
    let worse = bifold_in(dir.path(), &format!("{RUN} --baseline base.json"));
    assert_eq!((worse.status, worse.stderr.as_str()), (4, ""));
    let told = &worse.stdout[worse.stdout.find("baseline base.json: ").unwrap()..];
    assert!(told.starts_with("baseline base.json: WORSE: 1 count grew by more than 2 %\n"), "{told}");
    assert!(told.contains("shadow-4k") && told.contains("walks"), "{told}");
    let wider = bifold_in(dir.path(), &format!("{RUN} --baseline base.json --worse-than 4")).quietly();
    assert!(wider.contains("no count moved by more than 4 %"));
    // Data has the same, and a better run passes.
    let json = bifold_in(dir.path(), &format!("{RUN} --baseline base.json --format json"));
    let v: Value = serde_json::from_str(&json.stdout).unwrap();
    assert_eq!((json.status, &v["baseline"]["grew"][0]["count"]), (4, &"walks".into()));
    save(dir.path());
    change(dir.path(), 0, "walks", |n| n * 2);
    let better = bifold_in(dir.path(), &format!("{RUN} --baseline base.json")).quietly();
    assert!(better.contains("and 1 count"), "{better}");
}

#[test]
fn what_is_no_baseline_for_a_run_is_refused_before_the_run() {
    let dir = tempfile::tempdir().unwrap();
    save(dir.path());
    std::fs::write(dir.path().join("text"), "text").unwrap();
    bifold_in(dir.path(), "compare -q --generate t:1000 --format csv -o rows.csv").quietly();
    let refusals: Vec<String> = [
        "--generate fork-storm:21 --baseline base.json",
        "--generate fork-storm:20 --baseline base.json --profile zen4",
        "--generate fork-storm:20 --baseline base.json --seed 2",
        "--generate fork-storm:20 --baseline text",
        "--generate fork-storm:20 --baseline rows.csv",
        "--generate fork-storm:20 --baseline nothing.json",
        "--generate fork-storm:20 --baseline base.json --save-baseline base.json",
        "--generate fork-storm:20 --baseline base.json --worse-than -1",
        "--generate fork-storm:20 --worse-than 2",
        "--fast --baseline base.json -- true",
        "--runs 2 --save-baseline new.json -- true",
        "--sample default --baseline base.json -- true",
    ]
    .into_iter()
    .map(|args| {
        let ran = bifold_in(dir.path(), &format!("compare -q {args}"));
        assert_eq!(ran.stdout, "", "{args}");
        format!("{args}\n{} {}\n", ran.status, ran.stderr.lines().next().unwrap_or_default())
    })
    .collect();
    insta::assert_snapshot!(refusals.join("\n"));
}
