// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `compare --runs` with real guests.

use crate::command::{bifold_in, command, names};
use crate::guest::{guest, no_guest_here};
use crate::stopping::interrupt;
use serde_json::Value;
use std::io::{BufRead as _, BufReader, Read as _};
use std::process::Stdio;

#[test]
fn exact_runs_in_an_initramfs_agree_to_the_bit() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    let ran = guest(dir.path(), "compare --runs 2 --root initramfs --report r.html", "echo out; exit 3");
    // The first run's status, and the output of both.
    assert_eq!(ran.status, 3, "{}", ran.stderr);
    assert_eq!(
        ran.stderr,
        "bifold: run 1 of 2\nout\nbifold: run 2 of 2\nout\nbifold: report written to r.html\n"
    );
    assert!(ran.stdout.contains("runs     2 runs agree to the bit (input hash "), "{}", ran.stdout);
    assert!(ran.stdout.contains("exit status 3"), "{}", ran.stdout);
    assert_eq!(names(dir.path()), ["r.html"]);
    assert!(std::fs::read_to_string(dir.path().join("r.html")).unwrap().contains("2 runs agree to the bit"));
}

#[test]
fn runs_that_differ_have_a_spread_that_a_diff_reads() {
    if no_guest_here() {
        return;
    }
    let dir = tempfile::tempdir().unwrap();
    // Guest time follows the host's: no two runs are the same to the bit.
    let options = "compare -q --runs 2 --fast --format json -o a.json";
    let ran = guest(dir.path(), options, "i=0; while [ $i -lt 3000 ]; do i=$((i+1)); done");
    assert_eq!((ran.status, ran.stdout.as_str()), (0, ""), "{}", ran.stderr);
    let v: Value =
        serde_json::from_str(&std::fs::read_to_string(dir.path().join("a.json")).unwrap()).unwrap();
    assert_eq!((&v["schema"], &v["whole"], &v["agree"]), (&"bifold.runs/2".into(), &2.into(), &false.into()));
    let overhead =
        |i: usize| v["runs"][i]["outcome"]["configs"][1]["figures"]["overhead_percent"].as_f64().unwrap();
    let spread = &v["summary"][1]["figures"]["overhead_percent"];
    let (mean, sd) = (spread["mean"].as_f64().unwrap(), spread["sd"].as_f64().unwrap());
    assert!((mean - (overhead(0) + overhead(1)) / 2.0).abs() < 1e-9);
    assert!((sd - (overhead(0) - overhead(1)).abs() / f64::sqrt(2.0)).abs() < 1e-9);
    let json = bifold_in(dir.path(), "diff a.json a.json --format json").quietly();
    let v: Value = serde_json::from_str(&json).unwrap();
    let change = &v["configs"][1]["figures"]["overhead_percent"];
    assert_eq!((&v["a"]["runs"], &change["difference"]), (&2.into(), &0.0.into()));
    assert_eq!(change["beyond_spread"], false);
}

#[test]
fn ctrl_c_shows_the_runs_that_are_whole() {
    if no_guest_here() {
        return;
    }
    let mut c = command(["compare", "--runs", "9", "-m", "256", "--format", "json", "--"]);
    c.args(["/bin/sh", "-c", "exit 0"]).stdout(Stdio::piped()).stderr(Stdio::piped());
    let mut child = c.spawn().unwrap();
    let mut lines = BufReader::new(child.stderr.take().unwrap()).lines();
    // The second run has begun when it says so.
    assert!(lines.any(|l| l.unwrap() == "bifold: run 2 of 9"));
    interrupt(&child);
    let mut stdout = String::new();
    child.stdout.take().unwrap().read_to_string(&mut stdout).unwrap();
    assert_eq!(child.wait().unwrap().code(), Some(130));
    let v: Value = serde_json::from_str(&stdout).unwrap();
    let whole = v["whole"].as_u64().unwrap();
    assert!((1..9).contains(&whole), "{whole}");
    assert_eq!((&v["asked"], v["runs"].as_array().unwrap().len() as u64), (&9.into(), whole));
    assert_eq!(v["runs"][0]["partial"], Value::Null);
}
