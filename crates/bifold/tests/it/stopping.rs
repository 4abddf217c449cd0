// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs that do not reach their end: interrupted, or without a reader.

use crate::command::{command, names};
use rustix::process::{Pid, Signal, kill_process};
use std::io::Read as _;
use std::path::Path;
use std::process::{Child, Stdio};
use std::time::Duration;

/// A generator that would run for days.
const ENDLESS: &str = "t:900000g";

pub fn interrupt(child: &Child) {
    kill_process(Pid::from_child(child), Signal::INT).unwrap();
}

/// Until a recording in this directory has got so many bytes, or half a minute.
pub fn wait_for_events(dir: &Path, bytes: u64) {
    for _ in 0..600 {
        std::thread::sleep(Duration::from_millis(50));
        let sizes = std::fs::read_dir(dir).unwrap().filter_map(|e| Some(e.ok()?.metadata().ok()?.len()));
        if sizes.max() > Some(bytes) {
            return;
        }
    }
}

#[test]
fn ctrl_c_shows_and_saves_what_is_there_and_marks_it_partial() {
    let dir = tempfile::tempdir().unwrap();
    let mut c = command(["record", "--generate", ENDLESS, "-o", "part.bifold", "--report", "r.html"]);
    c.current_dir(dir.path()).stdout(Stdio::piped()).stderr(Stdio::piped());
    let child = c.spawn().unwrap();
    wait_for_events(dir.path(), 100_000);
    interrupt(&child);
    let out = child.wait_with_output().unwrap();
    assert_eq!(out.status.code(), Some(130));
    let table = String::from_utf8(out.stdout).unwrap();
    assert!(table.contains("PARTIAL: interrupted"), "{table}");
    assert_eq!(names(dir.path()), ["part.bifold", "r.html"]);
    let mut c = command(["compare", "part.bifold", "--format", "json"]);
    let out = c.current_dir(dir.path()).output().unwrap();
    assert_eq!(out.status.code(), Some(0));
    let v: serde_json::Value = serde_json::from_slice(&out.stdout).unwrap();
    assert_eq!(v["partial"], "recording");
    assert!(v["outcome"]["configs"][0]["total"]["accesses"].as_u64().unwrap() > 0);
}

#[test]
fn a_reader_that_goes_away_is_no_error() {
    let mut c = command(["compare", "--generate", "fork-storm:5", "-i", "0.00001", "--format", "csv"]);
    let mut child = c.stdout(Stdio::piped()).stderr(Stdio::piped()).spawn().unwrap();
    let mut stdout = child.stdout.take().unwrap();
    let mut first = [0; 16];
    stdout.read_exact(&mut first).unwrap();
    drop(stdout);
    let out = child.wait_with_output().unwrap();
    assert_eq!((out.status.code(), out.stderr), (Some(0), Vec::new()));
}
