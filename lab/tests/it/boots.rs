// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots: the most telling of the quick tests, and what goes wrong in a laboratory that is up.

use std::path::Path;
use std::process::Stdio;
use std::time::{Duration, Instant};

use bifold_lab::lab::job::Job;
use bifold_lab::lab::{Attempt, LabError};
use bifold_lab::quick::poke;

use crate::support::{children, inner, kernel, lab, lab_command, names, plan, run};

/// Of both kinds of paging: Linux, exits and walks of hand-made guests.
const QUICK: [&str; 7] = [
    "lab",
    "inner-nested",
    "guests-nested-4k",
    "walks-nested-4k",
    "inner-shadow",
    "guests-shadow-4k",
    "walks-shadow-4k",
];

#[test]
fn the_most_telling_tests_pass_in_two_boots() {
    let Some(lab) = lab() else { return };
    let dir = tempfile::tempdir().unwrap();
    let kernel = kernel(&lab);
    let args = [&["test", "--kernel", &kernel][..], &QUICK].concat();
    let out = lab_command(&args).env("TMPDIR", dir.path()).output().unwrap();
    let (said, notes) = (String::from_utf8_lossy(&out.stdout), String::from_utf8_lossy(&out.stderr));
    assert_eq!(out.status.code(), Some(0), "{said}{notes}");
    for name in QUICK {
        let begins = format!("ok {name} (");
        assert_eq!(said.lines().filter(|l| l.starts_with(&begins)).count(), 1, "{said}");
    }
    assert_eq!(notes.matches("a boot for").count(), 2, "{notes}");
    assert!(names(dir.path()).is_empty(), "{:?}", names(dir.path()));
}

/// The log named in a message is there, and goes.
fn has_log(text: &str) -> String {
    let at = Path::new(text.split_once("its console log is in ").unwrap().1);
    let log = std::fs::read_to_string(at).unwrap();
    std::fs::remove_file(at).unwrap();
    log
}

/// Boots with these jobs, which go wrong.
fn goes_wrong(jobs: Vec<Job>, seconds: u64) -> Option<(Attempt, LabError)> {
    let mut attempt = lab()?.attempt(&plan(jobs, seconds), &mut poke).unwrap();
    assert_eq!(children(), "");
    let error = attempt.error.take().unwrap();
    Some((attempt, error))
}

#[test]
fn an_inner_guest_that_never_reports_meets_the_time_limit() {
    let jobs = vec![Job::Kvm { nested: true }, inner("while :; do :; done")];
    let Some((_, e)) = goes_wrong(jobs, 15) else { return };
    assert!(matches!(e, LabError::Timeout { seconds: 15, .. }), "{e}");
    assert!(e.to_string().starts_with("the laboratory did not finish within 15 s: it was at job "), "{e}");
    has_log(&e.to_string());
}

#[test]
fn a_program_that_never_ends_meets_the_time_limit() {
    let Some((_, e)) = goes_wrong(vec![run("exec /bin/busybox cat")], 8) else { return };
    assert!(matches!(e, LabError::Timeout { job: 0, .. }), "{e}");
    has_log(&e.to_string());
}

#[test]
fn a_machine_that_stops_is_told_from_one_that_fails() {
    let jobs = vec![run("echo first"), run("echo '<2>the last words' > /dev/kmsg; /bin/busybox poweroff -f")];
    let Some((attempt, e)) = goes_wrong(jobs, 120) else { return };
    assert!(matches!(e, LabError::Died { job: 1, .. }), "{e}");
    assert_eq!(attempt.outputs[0].done.stdout, "first\n");
    assert!(has_log(&e.to_string()).contains("the last words"));
}

#[test]
fn errors_of_the_inner_guest_come_through_with_their_text() {
    // No KVM was loaded.
    let Some((attempt, e)) = goes_wrong(vec![run("exit 4"), inner("exit 0")], 120) else { return };
    let text = e.to_string();
    assert!(matches!(e, LabError::Job { job: 1, .. }), "{e}");
    assert!(text.contains("qemu ended before the guest did (exit status: 1)"), "{e}");
    assert!(text.contains("failed to initialize kvm"), "{e}");
    assert_eq!(attempt.outputs[0].done.status, 4);
    has_log(&text);
}

#[test]
fn a_question_that_cannot_be_answered_ends_the_boot() {
    let ask = r#"echo '{"poke":[[3,1]]}'; read answer"#;
    let Some((_, e)) = goes_wrong(vec![run(ask)], 120) else { return };
    assert!(matches!(e, LabError::Job { job: 0, .. }), "{e}");
    assert!(e.to_string().contains(r#"the laboratory has no answer to {"poke":[[3,1]]}"#), "{e}");
    has_log(&e.to_string());
}

/// Processes started by any thread of this one.
fn started_by(pid: u32) -> Vec<String> {
    let tasks = std::fs::read_dir(format!("/proc/{pid}/task")).into_iter().flatten().flatten();
    let children = tasks.filter_map(|t| std::fs::read_to_string(t.path().join("children")).ok());
    children.flat_map(|c| c.split_whitespace().map(String::from).collect::<Vec<_>>()).collect()
}

#[test]
fn ctrl_c_leaves_no_emulator_and_no_file() {
    let Some(lab) = lab() else { return };
    let dir = tempfile::tempdir().unwrap();
    let mut c = lab_command(&["test", "--kernel", &kernel(&lab), "lab"]);
    c.env("TMPDIR", dir.path()).stdout(Stdio::null()).stderr(Stdio::null());
    let mut child = c.spawn().unwrap();
    let begun = Instant::now();
    let is_qemu = |pid: &String| {
        std::fs::read_to_string(format!("/proc/{pid}/cmdline")).is_ok_and(|c| c.contains("bifold.lab"))
    };
    let emulator = loop {
        match started_by(child.id()).into_iter().find(is_qemu) {
            Some(pid) => break pid,
            None => assert!(begun.elapsed() < Duration::from_secs(60), "no emulator was started"),
        }
        std::thread::sleep(Duration::from_millis(10));
    };
    rustix::process::kill_process(rustix::process::Pid::from_child(&child), rustix::process::Signal::INT)
        .unwrap();
    child.wait().unwrap();
    for _ in 0..500 {
        if !is_qemu(&emulator) {
            assert!(names(dir.path()).is_empty());
            return;
        }
        std::thread::sleep(Duration::from_millis(10));
    }
    panic!("the emulator {emulator} is still there");
}
