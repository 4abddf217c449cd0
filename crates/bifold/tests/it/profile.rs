// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold profile`: files that are checked, shown and measured. No test says how long anything takes.

use crate::command::{bifold, bifold_in, names};
use serde_json::Value;

#[test]
fn a_built_in_profile_s_file_is_a_profile() {
    let dir = tempfile::tempdir().unwrap();
    let list: Value = serde_json::from_str(&bifold("profile list --format json").quietly()).unwrap();
    let profiles = list["profiles"].as_array().unwrap();
    assert!(profiles.len() > 10, "{list}");
    for p in profiles {
        let name = p["name"].as_str().unwrap();
        let text = bifold(&format!("profile show {name}")).quietly();
        std::fs::write(dir.path().join("p.toml"), text).unwrap();
        let checked: Value =
            serde_json::from_str(&bifold_in(dir.path(), "profile check p.toml --format json").quietly())
                .unwrap();
        assert_eq!((&checked["name"], &checked["caches"]), (&p["name"], &true.into()), "{name}");
        for table in checked["tables"].as_array().unwrap() {
            assert!(table["source"].is_string() || table["prior"].is_string(), "{name}: {table}");
        }
    }
}

#[test]
fn profiles_that_contradict_themselves_are_refused_with_the_key() {
    let dir = tempfile::tempdir().unwrap();
    let good = bifold("profile show geometry-g").quietly().replacen("\"geometry-g\"", "\"mine\"", 1);
    let mut all = String::new();
    for (from, to) in [
        ("bytes = 23068672", "bytes = 720896"),
        ("bytes = 1048576", "bytes = 1740800"),
        ("cycles = 54\n", "cycles = 14\n"),
        ("cycles = 200\n", "cycles = 50\n"),
        ("level = 3\nbytes", "level = 2\nbytes"),
        ("data_overlap = 5.0", "data_overlap = 0.5"),
        ("walk_level = 1", "walk_level = 7"),
        ("content = \"inclusive\"", "content = \"nine\""),
        ("[memory]", "[memories]"),
    ] {
        let bad = good.replacen(from, to, 1);
        assert_ne!(bad, good, "{from}");
        std::fs::write(dir.path().join("bad.toml"), bad).unwrap();
        let text = bifold_in(dir.path(), "profile check bad.toml").refused();
        assert!(text.starts_with("status 1\n"), "{to}: {text}");
        all += &format!("{from} -> {to}\n{text}\n");
    }
    insta::assert_snapshot!(all);
}

#[test]
fn arguments_of_measure_that_cannot_be() {
    let dir = tempfile::tempdir().unwrap();
    for (args, status, words) in [
        ("profile measure --name zen4", 2, "--name zen4"),
        ("profile measure --name a/b", 2, "--name"),
        ("profile measure --cpu 100000 -q", 1, "CPU 100000"),
        ("profile measure --limit 0", 2, "--limit"),
        ("profile measure --limit 0.000001 -q", 1, "--limit 0.000001 ended before a value was complete"),
        ("profile measure -o no/such/x.toml", 1, "cannot create no/such/x.toml"),
        ("profile show nope", 1, "NAME nope"),
        ("profile check nope", 1, "profile `nope` is neither"),
    ] {
        let text = bifold_in(dir.path(), args).refused();
        assert!(text.starts_with(&format!("status {status}\n")) && text.contains(words), "{args}: {text}");
    }
    assert!(names(dir.path()).is_empty());
}

#[test]
fn compare_warns_in_one_line_of_values_that_the_machine_did_not_give() {
    let dir = tempfile::tempdir().unwrap();
    let text = bifold("profile show geometry-g").quietly().replacen("\"geometry-g\"", "\"mine\"", 1);
    let refused = "prior = \"cycles: refused, because the interval of 9 (-1 to 20) spans zero: as zen4's; both overlaps: ";
    let busy = text.replacen("prior = \"both overlaps: ", refused, 1);
    assert_ne!(busy, text);
    std::fs::write(dir.path().join("calm.toml"), text).unwrap();
    std::fs::write(dir.path().join("busy.toml"), busy).unwrap();
    let run = |args: &str| {
        let all = bifold_in(dir.path(), &format!("compare --generate t:2000 --profile {args}")).quietly();
        all.lines().filter(|l| l.starts_with("WARNING")).map(String::from).collect::<Vec<_>>()
    };
    assert!(run("calm.toml").is_empty());
    let warnings = run("busy.toml");
    assert!(warnings.len() == 1 && warnings[0].contains("values of the profile"), "{warnings:?}");
    assert!(run("busy.toml --set memory.cycles=300").is_empty(), "a user's value stands");
    let checked = bifold_in(dir.path(), "profile check busy.toml").quietly();
    let words = checked.split_whitespace().collect::<Vec<_>>().join(" ");
    assert!(words.contains("note refused when measured: memory.cycles"), "{checked}");
    assert!(words.contains("prior: cycles: refused"), "{checked}");
}
