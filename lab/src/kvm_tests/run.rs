// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one test inside the laboratory: a program with a time limit and bounded output, while every VM of the
//! machine is switched back and forth if asked for.

use std::collections::{BTreeMap, VecDeque};
use std::io::Read;
use std::os::unix::process::CommandExt;
use std::process::{Command, ExitStatus, Stdio};
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result};
use bifold_host::{Host, State, VmId};

use crate::lab::job::{Done, Trial, TrialEnd, Word};
use crate::storm::log::Kmsg;

/// The largest output that is kept of each stream: its beginning and its end.
const HEAD: usize = 192 << 10;
const TAIL: usize = 64 << 10;

/// Reads all, and keeps beginning and end.
fn bounded(mut from: impl Read) -> Vec<u8> {
    let (mut head, mut tail) = (Vec::new(), VecDeque::<u8>::new());
    let mut bytes = [0; 4096];
    while let Ok(n @ 1..) = from.read(&mut bytes) {
        let first = n.min(HEAD - head.len());
        head.extend_from_slice(&bytes[..first]);
        tail.extend(&bytes[first..n]);
        tail.drain(..tail.len().saturating_sub(TAIL));
    }
    head.extend(tail);
    head
}

/// Messages of the kernel that no test should cause.
fn grave(message: &str) -> bool {
    let words =
        ["WARNING", "BUG", "Oops", "KASAN", "UBSAN", "rcu: INFO", "blocked for more", "general protection"];
    words.iter().any(|w| message.contains(w))
}

/// Switches all VMs of the machine until `stop` is set. Returns the number of switches, and of refusals by
/// error.
fn switch_all(every: Duration, stop: &AtomicBool) -> (u64, BTreeMap<String, u64>) {
    let (host, mut switches, mut refused) = (Host::live(), 0, BTreeMap::new());
    while !stop.load(Ordering::Relaxed) {
        std::thread::sleep(every);
        let ids: Vec<VmId> = host.vms().map(|vms| vms.iter().map(|vm| vm.id).collect()).unwrap_or_default();
        for id in ids {
            // A VM that ends meanwhile takes its files with it.
            let Ok(Some(files)) = host.paging_files(id) else { continue };
            let Ok(State::In(mode)) = files.state() else { continue };
            let other = mode.other();
            match files.switch(other) {
                Ok(()) => switches += 1,
                Err(e) => *refused.entry(format!("{}: {e}", other.name())).or_default() += 1,
            }
        }
    }
    (switches, refused)
}

/// Waits for a child until the time limit, then ends its process group.
fn wait(child: &mut std::process::Child, limit: Duration) -> Result<(ExitStatus, bool)> {
    let until = Instant::now() + limit;
    let mut late = false;
    let status = loop {
        if let Some(status) = child.try_wait()? {
            break status;
        }
        if Instant::now() >= until {
            late = true;
            let group = rustix::process::Pid::from_child(child);
            let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
            break child.wait()?;
        }
        std::thread::sleep(Duration::from_millis(2));
    };
    Ok((status, late))
}

/// Runs the test, sends a [`TrialEnd`] as a file of the job, and returns how the program ended.
pub fn run(trial: &Trial, say: &mut dyn FnMut(&Word, &[u8]) -> Result<()>) -> Result<Done> {
    let [program, args @ ..] = &trial.command[..] else { anyhow::bail!("no program given") };
    // Tests reserve more guest memory than they touch.
    std::fs::write("/proc/sys/vm/overcommit_memory", "1").context("overcommit_memory")?;
    let mut log = Kmsg::new()?;
    let stop = AtomicBool::new(false);
    let mut child = Command::new(program)
        .args(args)
        .current_dir("/tmp")
        .stdin(Stdio::null())
        .stdout(Stdio::piped())
        .stderr(Stdio::piped())
        .process_group(0)
        .spawn()
        .with_context(|| format!("running {program}"))?;
    let (out, err) = (child.stdout.take(), child.stderr.take());
    let group = rustix::process::Pid::from_child(&child);
    let (ended, out, err, switched) = std::thread::scope(|s| {
        let out = s.spawn(|| out.map(bounded).unwrap_or_default());
        let err = s.spawn(|| err.map(bounded).unwrap_or_default());
        let stop = &stop;
        let switcher =
            trial.switch_every_us.map(|us| s.spawn(move || switch_all(Duration::from_micros(us), stop)));
        let ended = wait(&mut child, Duration::from_secs(trial.seconds));
        stop.store(true, Ordering::Relaxed);
        // What is left of the test would keep its output open.
        let _ = rustix::process::kill_process_group(group, rustix::process::Signal::KILL);
        let text = |t: std::thread::ScopedJoinHandle<'_, Vec<u8>>| {
            String::from_utf8_lossy(&t.join().unwrap_or_default()).into_owned()
        };
        let switched = switcher.map(|s| s.join().unwrap_or_default()).unwrap_or_default();
        (ended, text(out), text(err), switched)
    });
    let (status, late) = ended?;
    let mut messages = Vec::new();
    log.drain(&mut messages)?;
    messages.retain(|m| grave(m));
    let end = TrialEnd { late, switches: switched.0, refused: switched.1, messages };
    let data = serde_json::to_vec(&end)?;
    say(&Word::File { name: TrialEnd::FILE.into(), bytes: data.len() as u64 }, &data)?;
    Ok(Done::of(status, out, err))
}

#[cfg(test)]
mod tests {
    use std::os::unix::process::ExitStatusExt;

    use super::*;

    #[test]
    fn long_output_keeps_its_beginning_and_its_end() {
        let text: Vec<u8> = (0..1_000_000_u32).flat_map(u32::to_le_bytes).collect();
        let kept = bounded(&text[..]);
        assert_eq!(kept.len(), HEAD + TAIL);
        assert!(kept.starts_with(&text[..HEAD]) && kept.ends_with(&text[text.len() - TAIL..]));
        assert_eq!(bounded(&text[..10]), text[..10]);
    }

    #[test]
    fn a_program_that_does_not_end_is_ended() {
        let mut child = Command::new("/bin/sleep").arg("600").process_group(0).spawn().unwrap();
        let (status, late) = wait(&mut child, Duration::from_millis(20)).unwrap();
        assert!(late && status.signal() == Some(9));
    }
}
