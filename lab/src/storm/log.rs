// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Filters kernel messages: records of the laboratory's `/dev/kmsg`, and lines of the guest's console, which
//! shows warnings and worse (`loglevel=5`).

use std::fs::{File, OpenOptions};
use std::io::{ErrorKind, Read, Seek, SeekFrom};
use std::os::unix::fs::OpenOptionsExt;

use anyhow::Result;

/// The level of a warning; smaller is worse.
const WARNING: u32 = 4;

/// A line with one of these words is kept at any level.
const ALWAYS: [&str; 8] =
    ["WARNING", "BUG", "KASAN", "UBSAN", "kvm", "rcu: INFO", "blocked for more than", "lockdep"];

/// Messages that only mean that the emulated machine is slow.
const SLOW: [&str; 3] = ["hrtimer: interrupt took", "perf: interrupt took too long", "sched: DL replenish"];

/// KVM's messages for any Linux guest that probes its CPU, or on a kernel without a trusted TSC.
const BOOT: [&str; 4] =
    ["Unhandled WRMSR", "unhandled rdmsr", "unhandled wrmsr", "SMP vm created on host with unstable TSC"];

/// The message of a record of `/dev/kmsg`, if it is worth keeping.
pub fn record(text: &str) -> Option<String> {
    let (head, rest) = text.split_once(';')?;
    let mut fields = head.split(',');
    let level = fields.next()?.parse::<u32>().ok()? & 7;
    let micros: u64 = fields.nth(1)?.parse().ok()?;
    let message = rest.lines().next()?;
    let keep = level <= WARNING || ALWAYS.iter().any(|w| message.contains(w));
    let known = SLOW.iter().chain(&BOOT).any(|w| message.contains(w));
    (keep && !known).then(|| format!("[{:.3}] {message}", micros as f64 / 1e6))
}

/// Reader of the laboratory's log.
pub struct Kmsg(File);

impl Kmsg {
    /// Opens the log at its end.
    pub fn new() -> Result<Kmsg> {
        let flags = rustix::fs::OFlags::NONBLOCK.bits() as i32;
        let mut file = OpenOptions::new().read(true).custom_flags(flags).open("/dev/kmsg")?;
        file.seek(SeekFrom::End(0))?;
        Ok(Kmsg(file))
    }

    /// Appends new messages to `to`. True if messages were lost.
    pub fn drain(&mut self, to: &mut Vec<String>) -> Result<bool> {
        let (mut lost, mut bytes) = (false, [0; 8192]);
        loop {
            match self.0.read(&mut bytes) {
                Ok(0) => return Ok(lost),
                Ok(n) => to.extend(record(&String::from_utf8_lossy(&bytes[..n]))),
                Err(e) if e.kind() == ErrorKind::WouldBlock => return Ok(lost),
                // Overwritten before it was read.
                Err(e) if e.kind() == ErrorKind::BrokenPipe => lost = true,
                Err(e) => return Err(e.into()),
            }
        }
    }
}

/// The load's message in its kernel's log when it begins.
pub const BEGINS: &str = "storm: begins";

/// The lines of a guest's console since the load's start.
pub fn console(text: &str) -> Vec<String> {
    text.lines()
        .map(|l| l.chars().filter(|c| !c.is_control()).collect::<String>().trim().to_owned())
        .skip_while(|l| !l.contains(BEGINS))
        .skip(1)
        .filter(|l| !l.is_empty() && !SLOW.iter().any(|w| l.contains(w)))
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn records_are_kept_by_level_or_by_word() {
        let keep = |t| record(t).as_deref().map(str::to_owned);
        assert_eq!(keep("4,12,3456789,-;oops\n SUBSYSTEM=x").unwrap(), "[3.457] oops");
        assert_eq!(keep("28,12,3456789,-;oops"), Some("[3.457] oops".into()));
        assert_eq!(keep("6,12,3456789,-;all is well"), None);
        assert_eq!(keep("6,12,1000000,-;kvm: no switch: SEV").unwrap(), "[1.000] kvm: no switch: SEV");
        assert_eq!(keep("4,12,3456789,-;hrtimer: interrupt took 12 ns"), None);
        assert_eq!(keep("no record"), None);
    }

    #[test]
    fn a_console_counts_from_where_the_load_begins() {
        let text = "[0.1] boot warning\r\n[2.0] storm: begins\r\n\r\n[3.0] BUG: x\r\n";
        assert_eq!(console(text), ["[3.0] BUG: x"]);
        assert_eq!(console("[0.1] boot warning"), Vec::<String>::new());
    }
}
