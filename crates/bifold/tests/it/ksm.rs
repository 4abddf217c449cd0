// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KSM's settings come back however the process that changed them ends. The settings are files of a
//! tree made here; the process that dies is this test program, run again; the guardian is the command.

use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{Ksm, KsmGuard, Setting, Settings};
use rustix::process::{Pid, Signal, getsid, kill_process};
use std::fs;
use std::io::{BufRead as _, BufReader, Read as _};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

/// Names the tree for the process that is to die.
const TREE: &str = "BIFOLD_TEST_KSM_TREE";

struct Tree(tempfile::TempDir);

impl Tree {
    fn new() -> Tree {
        let tree = Tree(tempfile::tempdir().unwrap());
        let ksm = tree.0.path().join("sys/kernel/mm/ksm");
        fs::create_dir_all(&ksm).unwrap();
        for (name, text) in [
            ("run", "0\n"),
            ("pages_to_scan", "100\n"),
            ("max_page_sharing", "256\n"),
            ("smart_scan", "1\n"),
            ("advisor_mode", "[none] scan-time\n"),
            ("pages_shared", "0\n"),
        ] {
            fs::write(ksm.join(name), text).unwrap();
        }
        tree
    }

    fn settings(&self) -> Settings {
        Ksm::of(&host(self.0.path())).unwrap().settings().unwrap()
    }

    /// A process of its own that has changed settings and waits.
    #[allow(clippy::zombie_processes)] // Victim's Drop waits
    fn changed(&self) -> Victim {
        // A shell that starts the tests in the background has SIGINT ignored in all of them.
        let mut child = Command::new("env")
            .arg("--default-signal=INT")
            .arg(std::env::current_exe().unwrap())
            .args(["--exact", "ksm::a_process_that_changes_settings_and_waits", "--ignored", "--nocapture"])
            .env(TREE, self.0.path())
            .stdin(Stdio::null())
            .stdout(Stdio::piped())
            .stderr(Stdio::piped())
            .spawn()
            .unwrap();
        let mut lines = BufReader::new(child.stdout.take().unwrap()).lines();
        let guardian = lines.find_map(|l| l.unwrap().split_once("guardian ")?.1.parse().ok());
        Victim { child, guardian: Pid::from_raw(guardian.expect("it says so")).unwrap() }
    }

    fn restored(&self, before: &Settings) -> bool {
        let journal = places(self.0.path()).journal;
        until(|| !journal.exists()) && self.settings() == *before
    }
}

struct Victim {
    child: Child,
    guardian: Pid,
}

impl Drop for Victim {
    fn drop(&mut self) {
        let _ = self.child.kill();
        let _ = self.child.wait();
    }
}

fn until(so: impl Fn() -> bool) -> bool {
    let start = Instant::now();
    while !so() {
        if start.elapsed() > Duration::from_secs(30) {
            return false;
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    true
}

fn host(dir: &Path) -> Host {
    let [sys, debug, tracing] = ["sys", "debug", "tracing"].map(|n| dir.join(n));
    Host { sys, proc: "/proc".into(), debug, tracing }
}

fn places(dir: &Path) -> Places {
    Places { lock: dir.join("lock"), journal: dir.join("journal") }
}

fn take(dir: &Path) -> KsmGuard {
    let wanted = [(Setting::Run, 1), (Setting::MaxPageSharing, 8), (Setting::AdvisorMode, 1)];
    let guardian =
        Guardian { program: env!("CARGO_BIN_EXE_bifold").into(), words: vec!["ksm-guardian".into()] };
    KsmGuard::take(&host(dir), &places(dir), &guardian, &Settings::of(&wanted)).unwrap()
}

/// The children of a process.
fn children(pid: u32) -> Vec<i32> {
    let text = fs::read_to_string(format!("/proc/{pid}/task/{pid}/children")).unwrap_or_default();
    let mut found: Vec<i32> = text.split_whitespace().filter_map(|w| w.parse().ok()).collect();
    // A test runs in a thread of its own, and the child is that one's.
    for thread in fs::read_dir(format!("/proc/{pid}/task")).unwrap() {
        let text = fs::read_to_string(thread.unwrap().path().join("children")).unwrap_or_default();
        found.extend(text.split_whitespace().filter_map(|w| w.parse::<i32>().ok()));
    }
    found
}

#[test]
#[ignore = "the others run it, to kill it"]
fn a_process_that_changes_settings_and_waits() {
    let Some(dir) = std::env::var_os(TREE).map(PathBuf::from) else { return };
    let _guard = take(&dir);
    println!("guardian {}", children(std::process::id())[0]);
    std::thread::sleep(Duration::from_secs(120));
}

#[test]
fn a_guard_of_this_program_restores_when_dropped() {
    let tree = Tree::new();
    let before = tree.settings();
    let guard = take(tree.0.path());
    assert_ne!(tree.settings(), before);
    drop(guard);
    assert_eq!(tree.settings(), before);
}

#[test]
fn settings_come_back_when_their_process_is_killed() {
    for signal in [Signal::KILL, Signal::TERM, Signal::INT] {
        let tree = Tree::new();
        let before = tree.settings();
        let mut victim = tree.changed();
        assert_ne!(tree.settings(), before);
        // Not compared with this process's session, which has no number in a PID namespace it began outside
        // of.
        assert_eq!(getsid(Some(victim.guardian)).unwrap(), victim.guardian, "a session of its own");
        kill_process(Pid::from_child(&victim.child), signal).unwrap();
        assert!(tree.restored(&before), "{signal:?}: {}", tree.settings());
        victim.child.wait().unwrap();
        let mut said = String::new();
        victim.child.stderr.take().unwrap().read_to_string(&mut said).unwrap();
        assert!(said.contains("they are restored"), "{said}");
    }
}

#[test]
fn a_guardian_outlives_the_signals_that_end_services() {
    let tree = Tree::new();
    let before = tree.settings();
    let victim = tree.changed();
    for signal in [Signal::TERM, Signal::INT, Signal::HUP, Signal::ABORT] {
        kill_process(victim.guardian, signal).unwrap();
    }
    drop(victim);
    assert!(tree.restored(&before), "{}", tree.settings());
}

#[test]
fn when_both_were_killed_the_next_guard_restores_first() {
    let tree = Tree::new();
    let before = tree.settings();
    let victim = tree.changed();
    kill_process(victim.guardian, Signal::KILL).unwrap();
    drop(victim);
    assert!(places(tree.0.path()).journal.exists());
    assert_ne!(tree.settings(), before);
    let guard = take(tree.0.path());
    assert!(guard.recovered().is_some());
    assert_eq!(guard.found(), &before);
    drop(guard);
    assert_eq!(tree.settings(), before);
}
