// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy` over timelines that the test captures from a generator.
//!
//! Built-in parameters may be tuned, so goldens take policies whose are given here.

use crate::command::{bifold, bifold_in, names};
use std::path::Path;

/// A policy under a name of its own.
const TOGGLE: &str = "policy = \"toggle\"\ninterval_s = 1.0\n";

/// A directory with timelines of a long-lived VM and of one that has just started, one of a single interval,
/// and a policy.
fn directory() -> tempfile::TempDir {
    let dir = tempfile::tempdir().unwrap();
    let capture = |args: &str| {
        let ran = bifold_in(dir.path(), &format!("compare --configs nested-4k,shadow-4k {args}"));
        assert_eq!(ran.status, 0, "{}", ran.stderr);
    };
    capture("--generate fork-storm:300 -i 0.001 --timeline storm.timeline --check always-nested+shadow");
    capture("--generate fork-storm:300 -i 0.001 --vm started --timeline started.timeline");
    capture("--generate fork-storm:20 -i 1 --timeline short.timeline");
    std::fs::write(dir.path().join("toggle-1.toml"), TOGGLE).unwrap();
    dir
}

const POLICIES: &str = "--policy always-nested --policy toggle-1.toml --time-scale 1000";

fn all(dir: &Path, cases: &[String]) -> String {
    let mut out = String::new();
    for args in cases {
        let ran = bifold_in(dir, args);
        out += &format!("$ bifold {args}\nstatus {}\n{}{}\n", ran.status, ran.stdout, ran.stderr);
    }
    out
}

#[test]
fn policies_are_compared_replayed_and_swept_over_a_timeline() {
    let dir = directory();
    insta::assert_snapshot!(all(
        dir.path(),
        &[
            format!("policy compare storm.timeline {POLICIES}"),
            "policy compare storm.timeline --policy always-nested --check --format csv".into(),
            format!("policy compare started.timeline {POLICIES} --dropped --other known"),
            "policy replay --policy toggle-1.toml --set interval_s=2 --time-scale 1000 storm.timeline".into(),
            "policy replay --policy always-nested --start shadow --explain --check storm.timeline".into(),
            "policy sweep --policy toggle-1.toml --set interval_s=1:4:4 --time-scale 1000 storm.timeline"
                .into(),
            "policy sweep --policy toggle-1.toml --set interval_s=1,2 --format csv storm.timeline".into(),
            "policy intervals --policy toggle-1.toml --time-scale 1000 storm.timeline".into(),
        ]
    ));
}

#[test]
fn a_capture_with_a_check_is_checked_on_its_own_time_scale() {
    let dir = directory();
    let scale = |name: &str| bifold_policy::Timeline::read(&dir.path().join(name)).unwrap().about.time_scale;
    assert_eq!((scale("storm.timeline"), scale("short.timeline")), (Some(100.0), None));
    let capture = "compare --configs nested-4k,shadow-4k --generate fork-storm:300 -i 0.001 --check toggle";
    let ran = bifold_in(dir.path(), &format!("{capture} --timeline fast.timeline --time-scale 5000"));
    assert_eq!(ran.status, 0, "{}", ran.stderr);
    assert_eq!(scale("fast.timeline"), Some(5000.0));
    // The replay decides as often as the run did, whatever inputs the other policies get.
    let checked = |args: &str| {
        let args =
            format!("policy compare fast.timeline --policy always-nested --check --format json {args}");
        let v: serde_json::Value = serde_json::from_str(&bifold_in(dir.path(), &args).quietly()).unwrap();
        v["checks"][0].clone()
    };
    let check = checked("");
    assert!(check["switches"].as_u64() > Some(1) && check["switches"] == check["own_switches"], "{check}");
    assert_eq!(checked("--time-scale 1000"), check);
}

#[test]
fn every_form_has_the_same_policies() {
    let dir = directory();
    let json = bifold_in(dir.path(), "policy compare storm.timeline --format json").quietly();
    let v: serde_json::Value = serde_json::from_str(&json).unwrap();
    let policies = v["policies"].as_array().unwrap().len();
    assert!(policies > 10, "{json}");
    let csv = bifold_in(dir.path(), "policy compare storm.timeline --format csv").quietly();
    assert_eq!(csv.lines().count(), 1 + 2 * policies);
    let ran = bifold_in(dir.path(), "policy compare storm.timeline -o x.csv --format csv --report x.html");
    assert_eq!((ran.status, ran.stdout.as_str()), (0, ""));
    assert!(names(dir.path()).contains(&"x.html".to_string()), "{}", ran.stderr);
    assert_eq!(std::fs::read_to_string(dir.path().join("x.csv")).unwrap(), csv);
    let sweep = "policy sweep --policy dsp --set interval_s=2,5 --format json storm.timeline";
    let v: serde_json::Value = serde_json::from_str(&bifold_in(dir.path(), sweep).quietly()).unwrap();
    assert_eq!(v["settings"].as_array().unwrap().len(), 2);
    let replay = "policy replay --policy dsp --explain --format json storm.timeline";
    let v: serde_json::Value = serde_json::from_str(&bifold_in(dir.path(), replay).quietly()).unwrap();
    assert_eq!(v["replays"][0]["policy"], "dsp");
}

#[test]
fn the_list_names_every_policy() {
    let text = bifold("policy list").quietly();
    let json: serde_json::Value =
        serde_json::from_str(&bifold("policy list --format json").quietly()).unwrap();
    for p in json["policies"].as_array().unwrap() {
        let name = p["name"].as_str().unwrap();
        assert!(text.lines().any(|l| l.split(' ').next() == Some(name)), "{name}:\n{text}");
        assert!(!p["what"].as_str().unwrap().is_empty(), "{name}");
    }
}

#[test]
fn timelines_and_policies_that_cannot_be_used() {
    let dir = directory();
    let write = |name: &str, bytes: &[u8]| std::fs::write(dir.path().join(name), bytes).unwrap();
    write("empty.timeline", b"");
    write("text.timeline", b"hello, this is no timeline at all");
    let other = zstd::encode_all(&br#"{"schema":"bifold.timeline/99"}"#[..], 1).unwrap();
    write("version.timeline", &other);
    write("bad.toml", b"policy = \"toggle\"\ninterval_s = -1.0\n");
    write("estimator.toml", b"switch = 1.0\n");
    let cases: Vec<String> = [
        "compare missing.timeline",
        "compare empty.timeline",
        "compare text.timeline",
        "compare version.timeline",
        "compare short.timeline",
        "compare storm.timeline started.timeline",
        "replay storm.timeline started.timeline",
        "sweep storm.timeline started.timeline --policy toggle-1.toml --set interval_s=1,2",
        "compare storm.timeline --vm started",
        "compare storm.timeline --host-page 2m",
        "replay storm.timeline --host-page 2m",
        "compare storm.timeline --policy bad.toml",
        "compare storm.timeline --policy missing.toml",
        "compare storm.timeline --policy always-nested --policy always-nested",
        "compare storm.timeline --policy always-nested --policy dsp --set interval_s=1",
        "compare storm.timeline --set interval_s=1",
        "compare storm.timeline --policy toggle-1.toml --set interval=1",
        "compare storm.timeline --policy toggle-1.toml --set interval_s",
        "compare storm.timeline --policy toggle-1.toml --set interval_s=0",
        "compare storm.timeline --other known --estimator estimator.toml",
        "compare storm.timeline --estimator estimator.toml",
        "compare storm.timeline -o x --report x",
        "compare",
        "compare storm.timeline --time-scale 0",
        "sweep storm.timeline --policy toggle-1.toml --set interval_s=1:2",
        "sweep storm.timeline --policy toggle-1.toml --set interval=1,2",
        "intervals storm.timeline -i 0",
        "frobnicate",
    ]
    .map(|c| format!("policy {c}"))
    .into();
    for case in &cases {
        assert!([1, 2].contains(&bifold_in(dir.path(), case).status), "{case}");
    }
    insta::assert_snapshot!(all(dir.path(), &cases));
    // Not in the golden: the list of policies grows.
    let text = bifold_in(dir.path(), "policy compare storm.timeline --policy dps").refused();
    assert!(
        text.starts_with(
            "status 1\nbifold: --policy dps: there is no such policy: give one of always-shadow, "
        ),
        "{text}"
    );
}
