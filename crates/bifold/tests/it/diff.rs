// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `diff` of recordings and results, and of files that are neither.

use crate::command::{bifold_in, command, names, ran};
use serde_json::Value;
use std::path::Path;

/// Two recordings of a generator of different length.
fn recordings(dir: &Path) {
    for (name, n) in [("a.bifold", 10), ("b.bifold", 14)] {
        bifold_in(dir, &format!("record -q -o {name} --generate fork-storm:{n} --format csv")).quietly();
    }
}

#[test]
fn recordings_and_their_results_give_one_diff() {
    let dir = tempfile::tempdir().unwrap();
    recordings(dir.path());
    let of_recordings = bifold_in(dir.path(), "diff -q a.bifold b.bifold").quietly();
    insta::assert_snapshot!(of_recordings);
    let widest = of_recordings.lines().map(|l| l.chars().count()).max().unwrap();
    assert!(widest <= 100, "{widest} columns");
    for name in ["a", "b"] {
        bifold_in(dir.path(), &format!("compare -q {name}.bifold --format json -o {name}.json")).quietly();
    }
    let json = |args: &str| -> Value {
        serde_json::from_str(&bifold_in(dir.path(), &format!("diff -q --format json {args}")).quietly())
            .unwrap()
    };
    let (recorded, read) = (json("a.bifold b.bifold"), json("a.json b.json"));
    assert_eq!(recorded["configs"], read["configs"]);
    assert_eq!(recorded["exits"], read["exits"]);
    assert_eq!(json("a.json b.bifold")["configs"], read["configs"]);
    // Another profile is another model of both recordings, and no longer comparable to a result.
    let other = json("--profile phenom2-x3-720 --configs nested a.bifold b.bifold");
    assert_eq!(other["warnings"], Value::Array(Vec::new()));
    assert_eq!(other["configs"].as_array().unwrap().len(), 2);
    assert_ne!(other["configs"][0], recorded["configs"][1]);
    let mixed = json("--profile phenom2-x3-720 a.json b.bifold");
    assert!(mixed["warnings"][0].as_str().unwrap().starts_with("not comparable: "), "{mixed}");
    assert_eq!(json("a.bifold a.json")["same"], true);
    // Results alone need no profile, whatever the environment names.
    let mut c = command("diff -q a.json b.json".split_whitespace());
    c.env("BIFOLD_PROFILE", "no-such-profile").current_dir(dir.path());
    ran(c).quietly();
    // Without a name, a recording has the profile of the result beside it, and not this machine's.
    let named = "compare -q a.bifold --profile phenom2-x3-720 --format json -o other.json";
    bifold_in(dir.path(), named).quietly();
    for files in ["other.json a.bifold", "a.bifold other.json"] {
        let mut c = command(format!("diff -q --format json {files}").split_whitespace());
        c.env_remove("BIFOLD_PROFILE").current_dir(dir.path());
        let diff: Value = serde_json::from_str(&ran(c).quietly()).unwrap();
        assert_eq!((&diff["same"], &diff["warnings"]), (&true.into(), &Value::Array(Vec::new())));
    }
}

#[test]
fn the_difference_goes_to_files() {
    let dir = tempfile::tempdir().unwrap();
    recordings(dir.path());
    let ran = bifold_in(dir.path(), "diff a.bifold b.bifold -o d.txt --report d.html");
    assert_eq!((ran.status, ran.stdout.as_str()), (0, ""));
    assert_eq!(ran.stderr, "bifold: data written to d.txt\nbifold: report written to d.html\n");
    assert_eq!(names(dir.path()), ["a.bifold", "b.bifold", "d.html", "d.txt"]);
    let page = std::fs::read_to_string(dir.path().join("d.html")).unwrap();
    assert!(page.starts_with("<!DOCTYPE html>") && page.contains("Exits that changed most"));
}

#[test]
fn files_that_are_neither_recording_nor_result() {
    let dir = tempfile::tempdir().unwrap();
    let at = |name: &str| dir.path().join(name);
    recordings(dir.path());
    let recording = std::fs::read(at("a.bifold")).unwrap();
    std::fs::write(at("half"), &recording[..900_000]).unwrap();
    std::fs::write(at("text"), "hello").unwrap();
    std::fs::write(at("empty"), "").unwrap();
    std::fs::File::create(at("large")).unwrap().set_len((256 << 20) + 1).unwrap();
    bifold_in(dir.path(), "compare -q a.bifold -i 0.00001 --timeline timeline -o none").quietly();
    bifold_in(dir.path(), "compare -q a.bifold --report page --format csv -o rows").quietly();
    let fifo = rustix::fs::FileType::Fifo;
    rustix::fs::mknodat(rustix::fs::CWD, at("fifo"), fifo, 0o600.into(), 0).unwrap();
    let mut all = String::new();
    for name in
        ["missing", ".", "/dev/zero", "fifo", "half", "text", "empty", "large", "timeline", "page", "rows"]
    {
        let text = bifold_in(dir.path(), &format!("diff -o out a.bifold {name}")).refused();
        assert!(text.starts_with("status 1\nbifold: ") && text.contains(name), "{name}: {text}");
        assert!(text.lines().count() == 2, "{name}: {text}");
        all += &format!("$ bifold diff a.bifold {name}\n{text}\n");
    }
    insta::assert_snapshot!(all);
    assert!(!at("out").exists());
}
