// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Concurrent rounds: each in a process of its own ([`super::chaos`]), which ends by itself or is killed in
//! the middle.

use std::fs;
use std::io::{BufRead, BufReader};
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};

use super::chaos::Report;
use super::deterministic::Difference;
use super::kvm::Errno;
use super::tally::{Tally, count};
use super::watch::{stacks, workers};
use crate::guests::Rng;

/// How a round's process ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum End {
    /// By itself, with the VM open.
    Whole,
    /// By itself; the VM's files are closed in the middle.
    Closed,
    /// Killed in the middle, while its VM is switched from outside.
    Killed,
}

/// How long a round takes, and how it ends.
pub fn plan(seed: u64) -> (u64, End) {
    let mut rng = Rng(seed);
    let millis = 200 + rng.below(1300);
    let end = match rng.below(10) {
        0 => End::Closed,
        1 | 2 => End::Killed,
        _ => End::Whole,
    };
    (millis, end)
}

/// Switches the VM from outside until its file is gone.
fn switch_until_gone(path: &Path, seed: u64) -> (Tally, Option<Errno>) {
    let (mut rng, mut t) = (Rng(seed), Tally::default());
    loop {
        let word = if rng.below(2) == 0 { "shadow" } else { "nested" };
        let end = fs::write(path.join("paging_mode"), word).map_err(|e| e.raw_os_error().unwrap_or(0));
        t.switch(word, end);
        match end {
            Err(libc::ENOENT | libc::EIO) => return (t, None),
            Err(libc::EBUSY | libc::EOPNOTSUPP | libc::ETIMEDOUT | libc::EINTR) | Ok(()) => {}
            Err(e) => return (t, Some(e)),
        }
        std::thread::sleep(Duration::from_micros(rng.below(3000)));
    }
}

/// Waits for a process. False if it is late.
fn wait(child: &mut Child, limit: Duration) -> Result<bool> {
    let until = Instant::now() + limit;
    while child.try_wait()?.is_none() {
        if Instant::now() > until {
            return Ok(false);
        }
        std::thread::sleep(Duration::from_millis(5));
    }
    Ok(true)
}

/// Runs the round of a seed. `limit` is the time in seconds in which threads have to stop.
pub fn round(seed: u64, limit: u64, tally: &mut Tally) -> Result<Option<Difference>> {
    let (millis, end) = plan(seed);
    count(&mut tally.rounds, format!("concurrent, {}", format!("{end:?}").to_lowercase()));
    let mut command = Command::new(std::env::current_exe()?);
    command.args(["fuzz-round", &seed.to_string(), &millis.to_string(), &limit.to_string()]);
    if end == End::Closed {
        command.arg("--close");
    }
    let mut child = command.stdin(Stdio::null()).stdout(Stdio::piped()).spawn()?;
    let mut lines = BufReader::new(child.stdout.take().context("no pipe")?);
    let mut path = String::new();
    lines.read_line(&mut path)?;
    let path = PathBuf::from(path.trim());
    let reader = std::thread::spawn(move || {
        let mut text = String::new();
        let _ = lines.read_line(&mut text);
        text
    });
    let mut wrong = Vec::new();
    let all = Duration::from_millis(millis) + 2 * Duration::from_secs(limit);
    if end == End::Killed {
        let switcher = std::thread::spawn({
            let path = path.clone();
            move || switch_until_gone(&path, seed)
        });
        std::thread::sleep(Duration::from_millis(millis / 2));
        child.kill()?;
        if !wait(&mut child, all)? {
            wrong.push("a process that does not end when it is killed".to_owned());
        }
        let until = Instant::now() + all;
        while !switcher.is_finished() && Instant::now() < until {
            std::thread::sleep(Duration::from_millis(5));
        }
        if switcher.is_finished() {
            let (t, error) = switcher.join().map_err(|_| anyhow::anyhow!("the switcher died"))?;
            tally.merge(&t);
            wrong.extend(error.map(|e| format!("a switch of a VM that is killed: errno {e}")));
        } else {
            wrong.push("a switch of a killed VM that does not end".into());
            wrong.extend(stacks(std::process::id()));
        }
    } else if !wait(&mut child, all)? {
        wrong.push(format!("the round's process does not end within {} s", all.as_secs()));
    }
    if !wrong.is_empty() {
        wrong.extend(stacks(child.id()));
        wrong.extend(workers());
        let _ = child.kill();
        if !wait(&mut child, Duration::from_secs(10))? {
            wrong.push("it does not end when it is killed".into());
            return Ok(Some(found(seed, wrong)));
        }
    } else if end != End::Killed {
        let text = reader.join().unwrap_or_default();
        match serde_json::from_str::<Report>(&text) {
            Ok(report) => {
                tally.merge(&report.tally);
                wrong.extend(report.wrong);
            }
            Err(_) => {
                wrong.push(format!("the round's process ended without a report: {:?}", child.try_wait()?))
            }
        }
    }
    // The VM goes with its last user.
    let until = Instant::now() + Duration::from_secs(limit);
    while path.exists() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(2));
    }
    if path.exists() {
        wrong.push(format!("{} is still there", path.display()));
        wrong.extend(workers());
    }
    Ok((!wrong.is_empty()).then(|| found(seed, wrong)))
}

fn found(seed: u64, what: Vec<String>) -> Difference {
    Difference { seed, step: 0, what, steps: Vec::new(), code: String::new(), log: Vec::new() }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rounds_end_in_every_way_and_a_seed_is_a_plan() {
        let ends: Vec<End> = (0..100).map(|seed| plan(seed).1).collect();
        for end in [End::Whole, End::Closed, End::Killed] {
            assert!(ends.contains(&end));
        }
        assert_eq!(plan(5), plan(5));
    }
}
