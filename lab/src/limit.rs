// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Limits what the laboratory's host holds of an inner guest, from a window of the guest on: by a cgroup in
//! which QEMU starts, and a disk for swapping.
//!
//! The cgroup counts QEMU's own pages too. So these are paged out first, and what comes back is added to the
//! limit, window by window. Tables and other memory of the kernel are not counted (`cgroup.memory=nokmem`,
//! see `lab/qemu.rs`).

use std::fs::{self, File, OpenOptions};
use std::io::{ErrorKind, Read};
use std::os::fd::AsFd;
use std::os::unix::fs::{OpenOptionsExt, PermissionsExt};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::JoinHandle;
use std::time::Duration;

use anyhow::{Context, Result, anyhow};
use rustix::process::{Pid, PidfdFlags, Signal, kill_process, pidfd_open};

use crate::BUSYBOX;
use crate::exits::LEAF;
use crate::lab::job::{Limit, Limited};
use crate::swapping::{cgroup, guest_memory, page_out, put, swap_on};

const TRACER: &str = "/sys/kernel/tracing/instances/limit";
/// Starts QEMU in the cgroup.
const WRAPPER: &str = "/lab/qemu-in-cgroup";
const POLL: Duration = Duration::from_millis(10);
/// Time for QEMU to bring back the pages that it needs.
const SETTLE: Duration = Duration::from_millis(300);

/// A limit that is to begin.
pub struct Limiter {
    limit: Limit,
    bytes: u64,
    cgroup: String,
    /// The markers of windows, as text.
    markers: File,
}

/// A limit's thread.
pub struct Running {
    stop: Arc<AtomicBool>,
    thread: JoinHandle<Result<Limited>>,
}

/// The guest, stopped.
struct Stopped(Pid);

impl Stopped {
    fn new(pid: Pid) -> Result<Stopped> {
        kill_process(pid, Signal::STOP)?;
        Ok(Stopped(pid))
    }
}

impl Drop for Stopped {
    fn drop(&mut self) {
        let _ = kill_process(self.0, Signal::CONT);
    }
}

impl Limiter {
    /// Prepares the host, for a guest of so many bytes. KVM's module has to be there.
    pub fn new(limit: Limit, bytes: u64) -> Result<Limiter> {
        swap_on()?;
        put("/proc/sys/vm/page-cluster", "0")?;
        let cgroup = cgroup()?;
        let qemu = bifold_guest::qemu::find()?.path;
        let script =
            format!("#!{BUSYBOX} sh\necho $$ > {cgroup}/cgroup.procs\nexec {} \"$@\"\n", qemu.display());
        put(WRAPPER, &script)?;
        fs::set_permissions(WRAPPER, fs::Permissions::from_mode(0o755))?;
        fs::create_dir(TRACER).context(TRACER)?;
        put(&format!("{TRACER}/events/kvm/kvm_cpuid/filter"), &format!("function == {LEAF:#x}"))?;
        put(&format!("{TRACER}/events/kvm/kvm_cpuid/enable"), "1")?;
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let markers =
            OpenOptions::new().read(true).custom_flags(flags).open(format!("{TRACER}/trace_pipe"))?;
        Ok(Limiter { limit, bytes, cgroup, markers })
    }

    /// The program that runs QEMU in the cgroup.
    pub fn qemu(&self) -> &'static str {
        WRAPPER
    }

    /// Waits for the window in a thread of its own.
    pub fn start(mut self) -> Running {
        let stop = Arc::new(AtomicBool::new(false));
        let stopping = stop.clone();
        let thread = std::thread::spawn(move || {
            let mut limited = None;
            let mut text = String::new();
            while !stopping.load(Ordering::Relaxed) {
                self.read_markers(&mut text)?;
                while let Some(end) = text.find('\n') {
                    let line: String = text.drain(..=end).collect();
                    let Some(code) = marker(&line) else { continue };
                    if code == 0x100 | self.limit.window {
                        limited = Some(self.begin()?);
                    } else if let (2, Some(limited)) = (code >> 8, &mut limited) {
                        self.look(limited)?;
                    }
                }
                std::thread::sleep(POLL);
            }
            limited.context("the guest did not come to the window of the limit")
        });
        Running { stop, thread }
    }

    fn read_markers(&mut self, text: &mut String) -> Result<()> {
        let mut bytes = [0; 4096];
        loop {
            match self.markers.read(&mut bytes) {
                Ok(0) => return Ok(()),
                Ok(n) => text.push_str(&String::from_utf8_lossy(&bytes[..n])),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(()),
                Err(e) => return Err(e.into()),
            }
        }
    }

    fn guest(&self) -> Result<Pid> {
        let text = fs::read_to_string(format!("{}/cgroup.procs", self.cgroup))?;
        let pid = text.lines().next().and_then(|l| l.parse().ok()).and_then(Pid::from_raw);
        pid.context("no guest is in the cgroup")
    }

    /// Frames that the host holds of the guest, and of QEMU's own memory.
    fn held(&self, pid: Pid) -> Result<(u64, u64)> {
        let pid = pid.as_raw_nonzero().get();
        let (from, _) = guest_memory(pid as u32, self.bytes)?;
        Ok(anonymous(&fs::read_to_string(format!("/proc/{pid}/smaps"))?, from))
    }

    fn begin(&self) -> Result<Limited> {
        let pid = self.guest()?;
        let stopped = Stopped::new(pid)?;
        let (before, _) = self.held(pid)?;
        self.page_out_others(pid)?;
        drop(stopped);
        std::thread::sleep(SETTLE);
        let _stopped = Stopped::new(pid)?;
        let (_, others) = self.held(pid)?;
        self.apply(others)?;
        let (after, _) = self.held(pid)?;
        let generations = fs::read_to_string("/sys/kernel/mm/lru_gen/enabled").unwrap_or_default();
        let generations = !matches!(generations.trim(), "" | "0x0000");
        Ok(Limited { before, after, last: after, others, last_others: others, generations })
    }

    /// Limits the cgroup, if QEMU itself has so many frames.
    fn apply(&self, others: u64) -> Result<()> {
        let control = |name, value: &str| put(&format!("{}/{name}", self.cgroup), value);
        let bytes = ((self.limit.frames + others) << 12).to_string();
        // This pages out, and no process is killed, however long that takes.
        control("memory.high", &bytes)?;
        control("memory.max", &bytes)?;
        control("memory.high", "max")
    }

    /// A window ends. What QEMU itself has may have changed, so the limit follows. After the last window the
    /// guest may end at any time.
    fn look(&self, limited: &mut Limited) -> Result<()> {
        let Ok((guest, others)) = self.guest().and_then(|pid| self.held(pid)) else { return Ok(()) };
        (limited.last, limited.last_others) = (guest, others);
        self.apply(others)
    }

    /// Pages out QEMU's own memory.
    fn page_out_others(&self, pid: Pid) -> Result<()> {
        let number = pid.as_raw_nonzero();
        let (of_guest, _) = guest_memory(number.get() as u32, self.bytes)?;
        let process = pidfd_open(pid, PidfdFlags::empty())?;
        let maps = fs::read_to_string(format!("/proc/{number}/maps"))?;
        for line in maps.lines() {
            let mut words = line.split(' ');
            let (Some((from, to)), Some("rw-p")) =
                (words.next().and_then(|range| range.split_once('-')), words.next())
            else {
                continue;
            };
            let (from, to) = (u64::from_str_radix(from, 16)?, u64::from_str_radix(to, 16)?);
            if from != of_guest {
                // A mapping that cannot be paged out stays.
                let _ = page_out(process.as_fd(), from, to - from);
            }
        }
        Ok(())
    }
}

impl Running {
    /// How the limit was kept. To be called after the guest's end.
    pub fn end(self) -> Result<Limited> {
        self.stop.store(true, Ordering::Relaxed);
        self.thread.join().map_err(|_| anyhow!("the limit's thread panicked"))?
    }
}

/// Anonymous frames in memory, by /proc/PID/smaps: those of the mapping that begins at `from`, and all
/// others.
fn anonymous(smaps: &str, from: u64) -> (u64, u64) {
    let (from, mut inside, mut frames) = (format!("{from:x}-"), false, (0, 0));
    for line in smaps.lines() {
        if let Some(kib) = line.strip_prefix("Anonymous:") {
            let kib: u64 = kib.trim().trim_end_matches(" kB").parse().unwrap_or(0);
            *(if inside { &mut frames.0 } else { &mut frames.1 }) += kib / 4;
        } else if line.starts_with(|c: char| c.is_ascii_hexdigit() && !c.is_ascii_uppercase()) {
            inside = line.starts_with(&from);
        }
    }
    frames
}

/// The marker of a line of trace_pipe: `... kvm_cpuid: func 4249464f idx 11f rax ...`.
fn marker(line: &str) -> Option<u64> {
    let index = line.split_once(" idx ")?.1.split_whitespace().next()?;
    u64::from_str_radix(index, 16).ok()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_frames_are_told_from_qemus_own() {
        let smaps = "55d0-55e0 rw-p 0 0:0 0 [heap]\nSize: 64 kB\nRss: 48 kB\nAnonymous: 40 kB\n\
                     7f00-8f00 rw-p 0 0:0 0\nRss: 4096 kB\nAnonymous: 4096 kB\n\
                     9000-9100 r--p 0 0:2 7 /lib/x\nAnonymous: 0 kB\n9100-9200 rw-p 0 0:2 7 /lib/x\nAnonymous: 8 kB\n";
        assert_eq!(anonymous(smaps, 0x7f00), (1024, 12));
    }

    #[test]
    fn a_marker_is_read_from_a_line_of_the_trace() {
        let line = " qemu-system-x86-70 [000] d..1. 12.3: kvm_cpuid: func 4249464f idx 11f rax 0 rbx 0 rcx 0 rdx 0, \
                    cpuid entry not found\n";
        assert_eq!(marker(line), Some(0x11f));
        assert_eq!(marker("# tracer: nop\n"), None);
    }
}
