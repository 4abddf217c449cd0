// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a host's KSM is worth, and what to do about it.
//!
//! [`observe`] reads what the host says of itself: KSM's settings and counters, ksmd's CPU time, memory
//! and its pressure (PSI), NUMA nodes, huge pages, and the processes that run guests with what KSM knows
//! of each. [`advise`] makes [`Advice`] of it, by rules that each give their reason. All is read through
//! [`Host`], so that a tree of files can be a host.
//!
//! What cannot be seen from outside is not guessed: how many equal pages there are that KSM has not
//! found is `bifold share potential`'s to count, and who trusts whom is the operator's to know.

mod rules;

pub use rules::{Advice, Kind, Recommendation, advise};

use crate::experiment::available as available_of;
use bifold_host::Host;
use bifold_host::ksm::{Counters, Ksm, KsmError, ProcessKsm, Settings};
use std::path::Path;

/// Memory pressure by /proc/pressure/memory: percent of the time in which some, or all, tasks waited.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Pressure {
    /// Some, over the last minute.
    pub some_60: f64,
    /// All, over the last minute.
    pub full_60: f64,
}

/// A process that runs a guest.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Vm {
    /// Its process id.
    pub pid: u32,
    /// The guest's name, or the program's.
    pub name: String,
    /// Its user.
    pub uid: Option<u32>,
    /// Resident bytes.
    pub resident: u64,
    /// Of these, in huge pages; none if this user may not know.
    pub huge: Option<u64>,
    /// Whether it has memory in hugetlbfs, by its command line.
    pub hugetlb: bool,
    /// Whether a thread of it is scheduled as real-time.
    pub real_time: bool,
    /// What KSM knows of it; nothing if this user may not know.
    pub ksm: ProcessKsm,
    /// Whether this user may read what KSM knows of it: root may, and the process's own user.
    pub readable: bool,
}

/// What a host says of itself.
#[derive(Debug, Clone, Default, PartialEq)]
pub struct Observed {
    /// KSM's settings.
    pub settings: Settings,
    /// Its counters.
    pub counters: Counters,
    /// CPU time of ksmd since boot, seconds.
    pub ksmd_cpu_s: Option<f64>,
    /// Seconds since boot.
    pub up_s: Option<f64>,
    /// Memory in all, bytes.
    pub total: Option<u64>,
    /// Memory that is available.
    pub available: Option<u64>,
    /// Writes to merged pages since boot.
    pub copies: Option<u64>,
    /// Memory pressure.
    pub pressure: Option<Pressure>,
    /// NUMA nodes.
    pub nodes: usize,
    /// Processors kept for single tasks (`isolcpus`, `nohz_full`), as the kernel lists them.
    pub isolated: Option<String>,
    /// Processes that run guests, by process id.
    pub vms: Vec<Vm>,
}

impl Observed {
    /// That some guests' figures are missing because this user may not read them; nothing if none are.
    pub fn unreadable(&self) -> Option<String> {
        let hidden: Vec<&Vm> = self.vms.iter().filter(|vm| !vm.readable).collect();
        let first = hidden.first()?;
        Some(format!(
            "only root may read the figures of {} of {} guests, which belong to other users (such as /proc/{}/ksm_stat \
             of user {}): `-` stands for these figures",
            hidden.len(),
            self.vms.len(),
            first.pid,
            first.uid.map_or("unknown".into(), |u| u.to_string())
        ))
    }
}

/// Bytes of a file of procfs or sysfs that are read at most.
const MOST_BYTES: u64 = 4 << 20;

/// The start of a file; nothing if it cannot be read.
fn start_of(path: &Path) -> Vec<u8> {
    bifold_host::read_up_to(path, MOST_BYTES).unwrap_or_default()
}

/// Reads a host.
///
/// # Errors
/// If it has no KSM, or its files cannot be read. What a kernel does not have is absent.
pub fn observe(host: &Host) -> Result<Observed, KsmError> {
    let ksm = Ksm::of(host)?;
    let text = |path: &Path| String::from_utf8_lossy(&start_of(path)).into_owned();
    let meminfo = text(&host.proc.join("meminfo"));
    let cpus = ["isolated", "nohz_full"].map(|f| text(&host.sys.join("devices/system/cpu").join(f)));
    let isolated = cpus.iter().map(|t| t.trim()).find(|t| !t.is_empty() && *t != "(null)");
    Ok(Observed {
        settings: ksm.settings()?,
        counters: ksm.counters()?,
        ksmd_cpu_s: ksm.ksmd().map(|k| k.cpu.as_secs_f64()),
        up_s: text(&host.proc.join("uptime")).split(' ').next().and_then(|w| w.parse().ok()),
        total: field(&meminfo, "MemTotal"),
        available: available_of(&meminfo),
        copies: text(&host.proc.join("vmstat"))
            .lines()
            .find_map(|l| l.strip_prefix("cow_ksm ")?.trim().parse().ok()),
        pressure: pressure(&text(&host.proc.join("pressure/memory"))),
        nodes: nodes(&host.sys.join("devices/system/node")),
        isolated: isolated.map(String::from),
        vms: vms(host, &ksm)?,
    })
}

/// `NAME: N kB`, bytes.
fn field(text: &str, name: &str) -> Option<u64> {
    let rest = text.lines().find_map(|l| l.strip_prefix(name)?.strip_prefix(':'))?;
    rest.trim().trim_end_matches("kB").trim().parse::<u64>().ok()?.checked_mul(1024)
}

fn pressure(text: &str) -> Option<Pressure> {
    let of = |kind: &str| {
        let line = text.lines().find_map(|l| l.strip_prefix(kind))?;
        line.split_whitespace().find_map(|w| w.strip_prefix("avg60=")?.parse().ok())
    };
    Some(Pressure { some_60: of("some ")?, full_60: of("full ").unwrap_or(0.0) })
}

fn nodes(dir: &Path) -> usize {
    let Ok(entries) = std::fs::read_dir(dir) else { return 1 };
    let number = |n: &str| n.strip_prefix("node").is_some_and(|n| n.parse::<u32>().is_ok());
    entries.flatten().filter(|e| e.file_name().to_str().is_some_and(number)).count().max(1)
}

/// Programs that run guests, by the start of their names.
const VMMS: [&str; 4] = ["qemu-", "kvm", "cloud-hypervisor", "firecracker"];

fn vms(host: &Host, ksm: &Ksm) -> Result<Vec<Vm>, KsmError> {
    let Ok(entries) = std::fs::read_dir(&host.proc) else { return Ok(Vec::new()) };
    let mut pids: Vec<u32> = entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
    pids.sort_unstable();
    let mut found = Vec::new();
    for pid in pids {
        let dir = host.proc.join(pid.to_string());
        let bytes = start_of(&dir.join("cmdline"));
        let words: Vec<String> =
            bytes.split(|b| *b == 0).map(|w| String::from_utf8_lossy(w).into_owned()).collect();
        let program = words[0].rsplit('/').next().unwrap_or_default().to_owned();
        if !VMMS.iter().any(|v| program.starts_with(v)) {
            continue;
        }
        let text = |file: &str| String::from_utf8_lossy(&start_of(&dir.join(file))).into_owned();
        let status = text("status");
        let (process, readable) = match ksm.process(pid) {
            Ok(Some(process)) => (process, true),
            // One that has just ended.
            Ok(None) => continue,
            // Another user's.
            Err(KsmError::NotRoot { .. }) => (ProcessKsm::default(), false),
            Err(e) => return Err(e),
        };
        let rollup = text("smaps_rollup");
        let uid =
            status.lines().find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok());
        found.push(Vm {
            pid,
            name: bifold_host::guest_name(&bytes).unwrap_or(program),
            uid,
            resident: field(&status, "VmRSS").unwrap_or(0),
            huge: field(&rollup, "AnonHugePages"),
            hugetlb: words.iter().any(|w| w.contains("hugetlb=on") || w.contains("/hugepages")),
            real_time: real_time(&dir),
            ksm: process,
            readable,
        });
    }
    Ok(found)
}

/// Whether a thread has a real-time policy: field 41 of stat(5), SCHED_FIFO or SCHED_RR.
fn real_time(dir: &Path) -> bool {
    let Ok(threads) = std::fs::read_dir(dir.join("task")) else { return false };
    threads.flatten().any(|t| {
        let stat = start_of(&t.path().join("stat"));
        let stat = String::from_utf8_lossy(&stat).into_owned();
        let after = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        // What follows the name begins with field 3.
        matches!(after.split_whitespace().nth(41 - 3), Some("1" | "2"))
    })
}
