// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds processes that run a guest, from procfs.
//!
//! [`Host::vms`] lists KVM's VMs, which only root may read, without emulated guests. This module goes by
//! the program's name, which any user may read, and finds emulated guests too.

use crate::memory::{kib, text};
use crate::{Host, guest_name, read_up_to};
use std::path::Path;

/// Starts of the names of programs that run guests.
const VMMS: [&str; 5] = ["qemu-", "kvm", "cloud-hypervisor", "firecracker", "crosvm"];
/// Upper limit for a command line.
const MOST_CMDLINE: u64 = 4 << 20;

/// A process that runs a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct GuestProcess {
    /// Process id.
    pub pid: u32,
    /// The guest's name, else the program's.
    pub name: String,
    /// User id of the process.
    pub uid: Option<u32>,
    /// Resident bytes.
    pub resident: u64,
    /// Resident bytes in huge pages; `None` if this user may not read them.
    pub huge: Option<u64>,
    /// Whether the command line asks for memory in hugetlbfs.
    pub hugetlb: bool,
    /// Whether one of its threads is scheduled as real-time.
    pub real_time: bool,
}

impl Host {
    /// All processes that run a guest, by process id, without Bifold's own captures; empty if procfs cannot
    /// be read.
    pub fn guest_processes(&self) -> Vec<GuestProcess> {
        self.pids().into_iter().filter_map(|pid| guest_process(&self.proc, pid)).collect()
    }

    /// The ids of the same processes, by their command lines alone: their memory is not looked at, which
    /// holds a process up.
    pub fn guest_pids(&self) -> Vec<u32> {
        self.pids()
            .into_iter()
            .filter(|pid| guest(&cmdline(&self.proc.join(pid.to_string()))).is_some())
            .collect()
    }

    /// Whether the command line of a guest's process asks for memory in hugetlbfs.
    pub fn asks_for_hugetlb(&self, pid: u32) -> bool {
        asks_for_hugetlb(&cmdline(&self.proc.join(pid.to_string())))
    }
}

fn cmdline(process: &Path) -> Vec<u8> {
    read_up_to(&process.join("cmdline"), MOST_CMDLINE).unwrap_or_default()
}

fn asks_for_hugetlb(cmdline: &[u8]) -> bool {
    let mut words = cmdline.split(|b| *b == 0).map(String::from_utf8_lossy);
    words.any(|w| w.contains("hugetlb=on") || w.contains("/hugepages"))
}

/// The name of the guest that a process with this command line runs, else the program's; `None` if it runs
/// none.
fn guest(cmdline: &[u8]) -> Option<String> {
    let mut words = cmdline.split(|b| *b == 0);
    let first = String::from_utf8_lossy(words.next().unwrap_or_default());
    let program = first.rsplit('/').next().unwrap_or_default();
    let name = guest_name(cmdline);
    // Bifold's own capture of a command runs in a guest for as long as the command: its memory is neither
    // placed nor shared.
    let capture = name.as_deref() == Some("bifold") && words.any(|w| w == b"-plugin");
    let known = !capture && VMMS.iter().any(|v| program.starts_with(v));
    known.then(|| name.unwrap_or_else(|| program.to_owned()))
}

fn guest_process(proc: &Path, pid: u32) -> Option<GuestProcess> {
    let dir = proc.join(pid.to_string());
    let cmdline = cmdline(&dir);
    let name = guest(&cmdline)?;
    let status = text(&dir.join("status"));
    let uid = status.lines().find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
    Some(GuestProcess {
        pid,
        name,
        uid,
        resident: kib(&status, "VmRSS").unwrap_or(0),
        huge: kib(&text(&dir.join("smaps_rollup")), "AnonHugePages"),
        hugetlb: asks_for_hugetlb(&cmdline),
        real_time: real_time(&dir),
    })
}

/// Whether a thread has a real-time policy: SCHED_FIFO or SCHED_RR in field 41 of its `stat` (proc(5)).
fn real_time(dir: &Path) -> bool {
    let Ok(threads) = std::fs::read_dir(dir.join("task")) else { return false };
    threads.flatten().any(|t| {
        let stat = text(&t.path().join("stat"));
        let after = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        // The text behind the name begins with field 3.
        matches!(after.split_whitespace().nth(41 - 3), Some("1" | "2"))
    })
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::fs;

    #[test]
    fn guests_are_told_by_their_program_and_read_whole() {
        let (_dir, host) = crate::tests::host();
        assert_eq!(host.guest_processes(), []);
        let put = |path: &str, text: &str| {
            let path = host.proc.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        };
        put("9/cmdline", "/usr/bin/qemu-system-x86_64\0-name\0guest=web\0-mem-path\0/dev/hugepages\0");
        put("9/status", "Name:\tqemu\nUid:\t1000\t1000\nVmRSS:\t  2048 kB\n");
        put("9/smaps_rollup", "Rss: 2048 kB\nAnonHugePages:    1024 kB\n");
        let fields = (4..=40).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        put("9/task/10/stat", &format!("10 (CPU 0) KVM) S {fields} 1 0\n"));
        put("7/cmdline", "firecracker\0--id\0x\0");
        put("8/cmdline", "/usr/bin/emacs\0qemu-notes\0");
        // A capture of Bifold's.
        put(
            "6/cmdline",
            "/usr/bin/qemu-system-x86_64\0-name\0bifold,debug-threads=on\0-plugin\0file=/x.so\0",
        );
        put("self/cmdline", "qemu-x\0");
        let web = GuestProcess {
            pid: 9,
            name: "web".into(),
            uid: Some(1000),
            resident: 2 << 20,
            huge: Some(1 << 20),
            hugetlb: true,
            real_time: true,
        };
        let fire = GuestProcess { pid: 7, name: "x".into(), ..GuestProcess::default() };
        assert_eq!(host.guest_processes(), [fire, web]);
    }
}
