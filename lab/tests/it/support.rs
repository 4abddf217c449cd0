// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes a laboratory for tests. Tests are skipped on machines without QEMU or a kernel package.

use std::path::{Path, PathBuf};
use std::process::Command;
use std::sync::OnceLock;

use bifold_guest::Kind;
use bifold_lab::lab::job::{Inner, Job};
use bifold_lab::lab::{Lab, LabError, Plan};

pub const BUSYBOX: &str = "/bin/busybox";

fn find() -> Option<Lab> {
    if !Path::new(BUSYBOX).exists() {
        eprintln!("skipped: {BUSYBOX} is not there; install busybox-static");
        return None;
    }
    match Lab::any(&mut |_| ()) {
        Ok(lab) => Some(lab),
        // Only what this machine lacks: that a kernel's KVM is of no use would be a failure.
        Err(LabError::Guest(e)) if e.kind() == Kind::CannotWorkHere => {
            eprintln!("skipped: {e}");
            None
        }
        Err(e) => panic!("{e}"),
    }
}

/// A laboratory, found once: asking apt takes longer than some tests.
pub fn lab() -> Option<Lab> {
    static LAB: OnceLock<Option<Lab>> = OnceLock::new();
    let lab = LAB.get_or_init(find).clone();
    if lab.is_none() {
        eprintln!("skipped: no laboratory, see the first of these words");
    }
    lab
}

/// The laboratory's kernel, as the command takes it.
pub fn kernel(lab: &Lab) -> String {
    format!("linux-image-{}", lab.kernel().version)
}

pub fn lab_command(args: &[&str]) -> Command {
    let mut c = Command::new(env!("CARGO_BIN_EXE_lab"));
    c.args(args);
    c
}

/// A small boot.
pub fn plan(jobs: Vec<Job>, seconds: u64) -> Plan {
    Plan { jobs: jobs.into(), programs: vec![BUSYBOX.into()], memory_mib: 1024, seconds, ..Plan::default() }
}

fn sh(script: &str) -> Vec<String> {
    [BUSYBOX, "sh", "-c", script].map(String::from).to_vec()
}

pub fn run(script: &str) -> Job {
    Job::Run { command: sh(script) }
}

pub fn inner(script: &str) -> Job {
    Job::Inner(Inner::new(sh(script), 256))
}

/// Processes that this test's thread has started and that are still there.
pub fn children() -> String {
    std::fs::read_to_string("/proc/thread-self/children").unwrap()
}

/// Names in a directory.
pub fn names(dir: &Path) -> Vec<PathBuf> {
    std::fs::read_dir(dir).unwrap().map(|e| e.unwrap().file_name().into()).collect()
}
