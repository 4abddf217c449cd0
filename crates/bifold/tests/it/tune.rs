// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold tune`: a command under several settings of the guest.

use crate::command::{Ran, command, ran};
use crate::guest::no_guest_here;
use crate::stopping::interrupt;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::Path;
use std::process::{Command, Stdio};

/// A program that walks over memory of its heap.
const HEAP: &str = "dd if=/dev/zero of=/dev/null bs=24M count=2 2>/dev/null";

fn tune(dir: &Path, options: &str, script: &str) -> Ran {
    ran(tuned(dir, options, script))
}

fn tuned(dir: &Path, options: &str, script: &str) -> Command {
    let mut c =
        command("tune -q -m 256 --configs nested-4k,nested-2m".split(' ').chain(options.split_whitespace()));
    c.args(["--", "/bin/sh", "-c", script]).current_dir(dir);
    c
}

#[test]
fn changes_are_ranked_and_a_second_call_repeats_no_run() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let first = tune(dir.path(), "--try thp --state s.json --report r.html", HEAP).quietly();
    assert!(first.contains("now      nested-4k, THP madvise, KPTI off: "), "{first}");
    assert!(first.contains("THP always in the guest"), "{first}");
    assert!(std::fs::read_to_string(dir.path().join("r.html")).unwrap().contains("Bifold · tune"));
    let read = || std::fs::read_to_string(dir.path().join("s.json")).unwrap();
    let state = read();
    let again = tune(dir.path(), "--try thp --state s.json --format json", HEAP).quietly();
    assert_eq!(read(), state, "no run was made");
    let v: Value = serde_json::from_str(&again).unwrap();
    assert_eq!((&v["schema"], &v["now"]), (&"bifold.tune/2".into(), &"nested-4k".into()));
    let settings: Vec<&str> =
        v["tried"].as_array().unwrap().iter().map(|t| t["setting"]["thp"].as_str().unwrap()).collect();
    assert_eq!(settings[..2], ["madvise", "always"], "{v}");
    // The first change of the host alone is that of `compare` for the same guest.
    let host = |a: &&Value| a["setting"]["thp"] == "madvise";
    let of_host = v["ranked"].as_array().unwrap().iter().chain(v["undecided"].as_array().unwrap()).find(host);
    let mut c = command("compare -q -m 256 --configs nested-4k,nested-2m --format json".split(' '));
    c.args(["--", "/bin/sh", "-c", HEAP]).current_dir(dir.path());
    let compared: Value = serde_json::from_str(&ran(c).stdout).unwrap();
    let advice = &compared["advice"][0];
    let first =
        advice["ranked"].as_array().unwrap().iter().chain(advice["undecided"].as_array().unwrap()).next();
    assert_eq!(of_host.map(|a| &a["config"]), first.map(|a| &a["config"]), "{v}\n{advice}");
    // The ranking is in order, and each advice is within its band.
    let ranked = v["ranked"].as_array().unwrap();
    assert_eq!(v["worth_percent"], 1.0);
    let number = |a: &Value, field: &str| a[field].as_f64().unwrap();
    assert!(ranked.windows(2).all(|w| number(&w[0], "gain_percent") >= number(&w[1], "gain_percent")));
    for a in ranked {
        let gain = number(a, "gain_percent");
        assert!(number(a, "low_percent") <= gain && gain <= number(a, "high_percent"), "{a}");
    }
    // A machine with another default has the file's profile, and one that names another is refused.
    let mut unnamed = tuned(dir.path(), "--try thp --state s.json", HEAP);
    unnamed.env_remove("BIFOLD_PROFILE");
    let shown = ran(unnamed).quietly();
    assert_eq!(read(), state, "no run was made");
    assert!(shown.contains("THP always in the guest"), "{shown}");
    let other = tune(dir.path(), "--try thp --state s.json --profile zen4", HEAP);
    let says = "s.json has runs of another profile (i5-7600, now zen4)";
    assert!(other.stdout.is_empty() && other.stderr.contains(says), "{}", other.stderr);
    // Runs of another command are not taken for these.
    let other = tune(dir.path(), "--try thp --state s.json", "true");
    assert_eq!((other.status, other.stdout.as_str()), (125, ""));
    assert!(other.stderr.contains("s.json has runs of another command"), "{}", other.stderr);
    assert_eq!(read(), state);
    std::fs::write(dir.path().join("s.json"), &state[..state.len() / 2]).unwrap();
    let damaged = tune(dir.path(), "--try thp --state s.json", HEAP);
    assert!(damaged.stderr.contains("s.json was not written by `tune --state`"), "{}", damaged.stderr);
}

#[test]
fn a_command_that_fails_ends_the_runs_and_options_of_one_run_are_refused() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let failed = tune(dir.path(), "", "exit 3");
    assert_eq!((failed.status, failed.stdout.as_str()), (125, ""), "{}", failed.stderr);
    assert!(
        failed.stderr.contains("THP madvise, KPTI off: the command failed: exit status 3"),
        "{}",
        failed.stderr
    );
    for (options, says) in [
        ("--for 1M", "--for is about a single run"),
        ("--fast", "--fast is about a single run"),
        ("--now shadow-4k", "not among the configurations that are compared: nested-4k, nested-2m"),
        ("--now native", "cannot be chosen in place of another"),
        ("--within 0m", "not a time such as 90s"),
        ("--axis a=1,2 --axis a=3,4", "--axis a is given twice"),
    ] {
        let refused = tune(dir.path(), options, "true");
        assert_eq!(refused.status, 2, "{options}");
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}

#[test]
fn a_guest_with_nodes_has_placements_where_the_profile_knows_their_cost() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let nodes = "--vcpus 2 --guest-nodes 2 --vm started --try placement --format json";
    let with = format!("{nodes} --profile xeon-gold-6252 --now-placed one-node");
    let v: Value = serde_json::from_str(&tune(dir.path(), &with, HEAP).quietly()).unwrap();
    assert_eq!(v["now_placement"], "one-node", "{v}");
    let costs = v["tried"][0]["costs"].as_array().unwrap();
    assert_eq!(costs.len(), 2 * 4, "two configurations in four placements");
    let cycles = |placement: &str| {
        let found = |c: &&Value| c["config"] == "nested-4k" && c["placement"] == placement;
        costs.iter().find(found).unwrap()["cycles"].as_f64().unwrap()
    };
    // One process touches nearly all: interleaving makes half of its references remote.
    assert!(cycles("guest-numa") < cycles("interleaved"), "{v}");
    let advised = v["ranked"].as_array().unwrap().iter().chain(v["no_gain"].as_array().unwrap());
    let names: Vec<&Value> = advised.flat_map(|a| a["changes"].as_array().unwrap()).collect();
    assert!(names.iter().any(|n| *n == "bind-nodes" || *n == "interleave" || *n == "first-touch"), "{v}");
    let v: Value = serde_json::from_str(&tune(dir.path(), nodes, HEAP).quietly()).unwrap();
    assert!(v["skipped"].to_string().contains("memory.remote_cycles"), "{v}");
    let long_lived = "--vcpus 2 --guest-nodes 2 --try placement --format json";
    let v: Value = serde_json::from_str(&tune(dir.path(), long_lived, HEAP).quietly()).unwrap();
    assert!(v["skipped"].to_string().contains("add --vm started"), "{v}");
    assert!(
        tune(dir.path(), "--now-placed crossed", "true")
            .stderr
            .contains("use guest-numa, smp, interleaved, one-node")
    );
}

/// A shell that runs a loop whose length an axis sets, in the command and by the environment.
#[test]
fn an_axis_of_the_users_own_is_ranked_among_the_settings() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let script = "i=0; while [ $i -lt {n} ]; do i=$((i+${step:-1})); done";
    let options = "--try kpti --axis n=20000,10000 --axis step=1,2 --format json --state s.json";
    let v: Value = serde_json::from_str(&tune(dir.path(), options, script).quietly()).unwrap();
    let own: Vec<String> =
        v["tried"].as_array().unwrap().iter().map(|t| t["setting"]["own"].to_string()).collect();
    let both = r#"[["n","10000"],["step","2"]]"#;
    assert_eq!(own[0], r#"[["n","20000"],["step","1"]]"#, "{v}");
    assert!(own.contains(&both.to_string()), "{own:?}");
    let best = &v["ranked"][0];
    assert_eq!(best["changes"].as_array().unwrap()[..2], ["n=10000", "step=2"], "{best}");
    assert!(best["gain_percent"].as_f64().unwrap() > 20.0, "{best}");
    let other = tune(dir.path(), "--try kpti --axis n=20000,5000 --state s.json", script);
    assert!(other.stderr.contains("s.json has runs of another axes"), "{}", other.stderr);
    for (bad, says) in
        [("n=1", "at least two values"), ("a-b=1,2", "is no variable's"), ("n", "use NAME=VALUE,VALUE")]
    {
        let refused = tune(dir.path(), &format!("--axis {bad}"), "true");
        assert_eq!(refused.status, 2, "{bad}");
        assert!(refused.stderr.contains(says), "{}", refused.stderr);
    }
}

#[test]
fn ctrl_c_ends_with_the_status_of_ctrl_c() {
    if no_guest_here() {
        return;
    }
    let mut c = command("tune -m 256 --configs nested-4k --try thp -- sh".split(' '));
    c.args(["-c", "while :; do :; done"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let mut stderr = BufReader::new(child.stderr.take().unwrap());
    let mut first = String::new();
    stderr.read_line(&mut first).unwrap();
    assert!(first.starts_with("bifold: runs with THP "), "{first}");
    interrupt(&child);
    let mut rest = String::new();
    stderr.read_to_string(&mut rest).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130), "{rest}");
    assert!(rest.contains("stopped before the first run ended"), "{rest}");
}
