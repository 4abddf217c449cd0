// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The program with phases, on this machine.

use std::fs::{self, OpenOptions};
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::process::{Child, Command, Output, Stdio};
use std::time::{Duration, Instant};

use bifold_lab::PHASES;

fn phases(args: &[&str]) -> Output {
    Command::new(PHASES).args(args).output().unwrap()
}

fn said(output: &Output) -> String {
    assert!(output.status.success(), "{output:?}");
    String::from_utf8_lossy(&output.stdout).into_owned()
}

#[test]
fn a_checksum_depends_on_the_work_and_progress_counts_all_workers() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("progress");
    let file = file.to_str().unwrap();
    let small = ["--steps", "3", "--hops", "5000", "--chase-mib", "2", "--progress", file];
    let two_cycles = said(&phases(&[&small[..], &["--cycles", "2"]].concat()));
    assert_eq!(fs::read_to_string(file).unwrap(), "tables 12\nchase 12\n");
    assert_eq!(said(&phases(&[&small[..], &["--cycles", "2"]].concat())), two_cycles);
    let one = said(&phases(&small));
    assert_ne!(one, two_cycles);
    assert!(one.starts_with("phases: tables 6 chase 6 checksum "), "{one}");
    said(&phases(&[&small[..], &["--workers", "3", "--phases", "chase"]].concat()));
    assert_eq!(fs::read_to_string(file).unwrap(), "tables 0\nchase 9\n");
    said(&phases(&[&small[..], &["--phases", "chase:2,tables,chase:1"]].concat()));
    assert_eq!(fs::read_to_string(file).unwrap(), "tables 6\nchase 6\n");
}

#[test]
fn wrong_arguments_are_named() {
    for (args, named) in [
        (&["--steps", "many"][..], "--steps many: give a number from 0"),
        (&["--workers", "17"], "--workers 17: give a number from 1 to 16"),
        (&["--phases", "tables,sleep"], "--phases: sleep"),
        (&["--phases", "tables:0"], "--phases 0: give a number from 1"),
        (&["extra"], "usage: phases"),
    ] {
        let output = phases(args);
        assert_eq!(output.status.code(), Some(2), "{args:?}");
        assert!(String::from_utf8_lossy(&output.stderr).contains(named), "{output:?}");
    }
    let output = phases(&["--progress", "/nowhere/progress"]);
    assert_eq!(output.status.code(), Some(3));
}

/// Ends the program even if a test fails.
struct Running(Child);

impl Drop for Running {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

fn until<T>(what: &str, mut of: impl FnMut() -> Option<T>) -> T {
    let begun = Instant::now();
    loop {
        if let Some(found) = of() {
            return found;
        }
        assert!(begun.elapsed() < Duration::from_secs(60), "in vain: {what}");
        std::thread::sleep(Duration::from_millis(5));
    }
}

/// The process's first child.
fn child(pid: u32) -> Option<u32> {
    let all = fs::read_dir("/proc").unwrap().flatten();
    let mut pids = all.filter_map(|e| e.file_name().to_str()?.parse::<u32>().ok());
    pids.find(|p| {
        let stat = fs::read_to_string(format!("/proc/{p}/stat")).unwrap_or_default();
        let parent = stat.rsplit(") ").next().and_then(|s| s.split(' ').nth(1)?.parse().ok());
        parent == Some(pid)
    })
}

/// Flips a bit in the first node of the ring, which is a mapping of this size.
fn corrupt(pid: u32, ring: u64) -> std::io::Result<()> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let start = maps.lines().find_map(|line| {
        let (from, to) = line.split(' ').next()?.split_once('-')?;
        let (from, to) = (u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?);
        (to - from == ring).then_some(from)
    });
    let start = start.ok_or(std::io::ErrorKind::NotFound)?;
    let memory = OpenOptions::new().read(true).write(true).open(format!("/proc/{pid}/mem"))?;
    let mut page = [0; 4096];
    memory.read_exact_at(&mut page, start)?;
    // A node has two words before its content.
    let word = page.iter().position(|b| *b != 0).ok_or(std::io::ErrorKind::NotFound)? / 64 * 64 + 16;
    memory.write_all_at(&[page[word] ^ 0x10], start + word as u64)
}

#[test]
fn a_changed_bit_ends_the_program_with_status_1() {
    let dir = tempfile::tempdir().unwrap();
    let file = dir.path().join("progress");
    let steps = ["--phases", "chase", "--steps", "4000000000", "--chase-mib", "3", "--workers", "2"];
    let child_process = Command::new(PHASES)
        .args(steps)
        .args([Path::new("--progress"), &file])
        .stderr(Stdio::piped())
        .spawn()
        .unwrap();
    let mut running = Running(child_process);
    until("a step", || {
        fs::read_to_string(&file).ok().filter(|t| !t.contains("chase 0") && t.contains("chase"))
    });
    let worker = until("a worker", || child(running.0.id()));
    if let Err(e) = corrupt(worker, 3 << 20) {
        // A sandbox may forbid to write another process's memory.
        assert_eq!(e.kind(), std::io::ErrorKind::PermissionDenied, "{e}");
        return eprintln!("skipped: {e}");
    }
    let status = until("the end", || running.0.try_wait().unwrap());
    assert_eq!(status.code(), Some(1));
    let errors = std::io::read_to_string(running.0.stderr.take().unwrap()).unwrap();
    assert!(errors.contains("the chase's page 0 holds"), "{errors}");
}
