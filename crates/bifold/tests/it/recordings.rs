// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files: what is recorded gives the same figures again, and damage is refused.

use crate::command::{bifold, bifold_in, names};
use std::fs;

#[test]
fn a_recording_gives_the_same_figures_to_the_last_digit() {
    let dir = tempfile::tempdir().unwrap();
    let outcome = |json: &str| {
        let v: serde_json::Value = serde_json::from_str(json).unwrap();
        v["outcome"].clone()
    };
    let options = "--format json -i 0.001 --seed 3";
    let recorded =
        bifold_in(dir.path(), &format!("record -q -o a.bifold --generate fork-storm:10 {options}"));
    let replayed = bifold_in(dir.path(), &format!("compare -q a.bifold {options}"));
    let direct = bifold(&format!("compare -q --generate fork-storm:10 {options}"));
    let first = outcome(&recorded.quietly());
    assert!(first["configs"][0]["total"]["instructions"].as_u64().unwrap() > 0);
    assert_eq!(first, outcome(&replayed.quietly()));
    assert_eq!(first, outcome(&direct.quietly()));
    assert_eq!(names(dir.path()), ["a.bifold"]);
}

#[test]
fn damaged_recordings_are_refused_with_the_place_and_without_figures() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    assert_eq!(bifold_in(dir.path(), "record -q -o good --generate t:20000").status, 0);
    let good = fs::read(at("good")).unwrap();
    fs::write(at("truncated"), &good[..good.len() / 2]).unwrap();
    fs::write(at("endless"), [&good[..], b"more"].concat()).unwrap();
    let mut flipped = good.clone();
    flipped[good.len() / 2] ^= 1;
    fs::write(at("corrupt"), flipped).unwrap();
    let mut later = good.clone();
    later[8] = 99;
    fs::write(at("later"), later).unwrap();
    for (name, expected) in [
        ("truncated", "truncated: it ends at byte"),
        ("corrupt", "at byte"),
        ("later", "version 99"),
        ("endless", "at byte"),
    ] {
        let text = bifold_in(dir.path(), &format!("compare {name} -o out --report r.html")).refused();
        assert!(text.starts_with("status 1\nbifold: "), "{name}: {text}");
        assert!(text.contains(expected) && text.contains(name), "{name}: {text}");
        assert_eq!(text.lines().count(), 2, "{name}: {text}");
    }
    assert_eq!(names(dir.path()), ["corrupt", "endless", "good", "later", "truncated"]);
}

#[test]
fn data_goes_to_the_file_asked_for_and_nothing_to_stdout() {
    let dir = tempfile::tempdir().unwrap();
    let args = "compare --generate t:1000 --format csv -o rows.csv --report r.html";
    let ran = bifold_in(dir.path(), args);
    assert_eq!((ran.status, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "bifold: data written to rows.csv\nbifold: report written to r.html\n");
    assert_eq!(names(dir.path()), ["r.html", "rows.csv"]);
    let stdout = bifold("compare --generate t:1000 --format csv").quietly();
    assert_eq!(fs::read_to_string(dir.path().join("rows.csv")).unwrap(), stdout);
    let page = fs::read_to_string(dir.path().join("r.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.trim_end().ends_with("</html>"));
}
