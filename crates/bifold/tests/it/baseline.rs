// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare --baseline`: a run beside the counts of an earlier one.

use crate::command::{Ran, bifold_in, command, ran};
use crate::guest::no_guest_here;
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
        "--generate fork-storm:20 --configs native --baseline base.json",
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

/// A run elsewhere: with another default profile, named by the environment, or with this machine's.
fn elsewhere(dir: &Path, profile: Option<&str>, args: &str) -> Ran {
    let mut c = command(args.split(' '));
    c.current_dir(dir).env_remove("BIFOLD_PROFILE");
    if let Some(profile) = profile {
        c.env("BIFOLD_PROFILE", profile);
    }
    ran(c)
}

#[test]
fn a_run_has_the_baseline_s_profile_on_every_machine() {
    let dir = tempfile::tempdir().unwrap();
    let dir = dir.path();
    let own = bifold_in(dir, "profile show zen4").quietly().replacen("\"zen4\"", "\"mine\"", 1);
    std::fs::write(dir.join("mine.toml"), own).unwrap();
    let set = "--set kvm=linux-6.12 --set memory.cycles=555";
    let save =
        format!("compare -q --generate fork-storm:20 --profile mine.toml {set} --save-baseline base.json");
    bifold_in(dir, &save).quietly();
    std::fs::remove_file(dir.join("mine.toml")).unwrap();
    let run = "compare -q --generate fork-storm:20 --baseline base.json";
    let same = elsewhere(dir, None, run).quietly();
    assert!(same.contains("no count moved"), "{same}");
    let words = same.split_whitespace().collect::<Vec<_>>().join(" ");
    let line = "profile mine (changed: memory.cycles=555; kvm linux-6.12) at 3.70 GHz, base CPI 0.5, seed 1; from a file, \
                as in the baseline";
    assert!(words.contains(line), "{same}");
    // Another profile that is named is refused, with both.
    for (profile, options, says) in [
        (Some("i5-7600"), "", "its profile is mine, and here it is i5-7600 (without --profile"),
        (None, " --profile zen4", "its profile is mine, and here it is zen4 (without --profile"),
        (
            None,
            " --set memory.cycles=556",
            "memory.cycles=555, and here it is kvm=linux-6.12, memory.cycles=556",
        ),
    ] {
        let refused = elsewhere(dir, profile, &format!("{run}{options}")).refused();
        assert!(refused.contains(says), "{options}: {refused}");
    }
    let again = elsewhere(dir, None, &format!("{run} --set memory.cycles=555")).quietly();
    assert!(again.contains("no count moved"), "{again}");
    // Without a profile's values in the file, the run's own profile has to be the same by its hash.
    let text = std::fs::read_to_string(dir.join("base.json")).unwrap();
    let mut v: Value = serde_json::from_str(&text).unwrap();
    v.as_object_mut().unwrap().remove("hardware");
    std::fs::write(dir.join("base.json"), v.to_string()).unwrap();
    let refused = elsewhere(dir, Some("zen4"), run).refused();
    assert!(refused.contains("its profile is mine, and here it is zen4"), "{refused}");
}

#[test]
fn a_baseline_stays_where_the_command_failed() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("base.json");
    std::fs::write(&file, "the good one").unwrap();
    let run = bifold_in(dir.path(), "compare --configs nested-4k --save-baseline base.json -- false");
    assert_eq!(run.status, 1, "{}", run.stderr);
    assert!(run.stderr.contains("the baseline base.json stays as it is"), "{}", run.stderr);
    assert_eq!(std::fs::read_to_string(&file).unwrap(), "the good one");
}
