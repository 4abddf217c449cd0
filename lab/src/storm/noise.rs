// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Stress of a guest's memory while its mode is switched: swapping, dirty logs, split huge pages. Each kind
//! is a thread that writes to the kernel's or QEMU's controls at random times and counts its actions.

use std::collections::BTreeMap;
use std::fs;
use std::os::fd::AsFd;
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::Duration;

use anyhow::{Context, Result, bail};
use bifold_host::Host;
use bifold_host::ksm::{Counter, Ksm, Setting};
use bifold_host::qmp::Qmp;
use serde_json::json;

use super::{Noise, Pages, Random};
use crate::swapping::{self, guest_memory, page_out, put, swap_on};

const KSM: &str = "/sys/kernel/mm/ksm";
const THP: &str = "/sys/kernel/mm/transparent_hugepage";
const SPLIT: &str = "/sys/kernel/debug/split_huge_pages";

/// Prepares the host for the guest's kind of pages. Call this before the guest starts.
pub(super) fn prepare(pages: Pages) -> Result<()> {
    put(&format!("{THP}/enabled"), if pages == Pages::Huge { "madvise" } else { "never" })?;
    if pages == Pages::Huge {
        for (name, value) in
            [("scan_sleep_millisecs", "50"), ("alloc_sleep_millisecs", "50"), ("pages_to_scan", "8192")]
        {
            put(&format!("{THP}/khugepaged/{name}"), value)?;
        }
    }
    if pages == Pages::Merged {
        put(&format!("{KSM}/sleep_millisecs"), "20")?;
        put(&format!("{KSM}/pages_to_scan"), "500")?;
        put(&format!("{KSM}/run"), "1")?;
    }
    Ok(())
}

/// Running threads of noise.
pub(super) struct Noises {
    stop: Arc<AtomicBool>,
    counts: Vec<(&'static str, Arc<AtomicU64>)>,
    threads: Vec<std::thread::JoinHandle<Result<()>>>,
    swap: bool,
    /// QEMU's monitor, if no noise needs it.
    pub(super) qmp: Option<Qmp>,
}

type Stop = Arc<AtomicBool>;
type Count = Arc<AtomicU64>;

fn pause(random: &mut Random, from: u64, to: u64) {
    std::thread::sleep(Duration::from_millis(from + random.below(to - from)));
}

/// Puts QEMU into a cgroup and returns the cgroup's `memory.reclaim`, if the kernel has it. Reclaiming frees
/// pages that were paged out to a slow disk; otherwise they stay in memory until memory is short.
fn cgroup(pid: u32) -> Option<String> {
    let cgroup = swapping::cgroup().ok()?;
    put(&format!("{cgroup}/cgroup.procs"), &pid.to_string()).ok()?;
    Some(format!("{cgroup}/memory.reclaim")).filter(|p| Path::new(p).exists())
}

fn swap(pid: u32, bytes: u64, mut random: Random, stop: &Stop, count: &Count) -> Result<()> {
    let (from, to) = guest_memory(pid, bytes)?;
    let reclaim = cgroup(pid);
    let pid = rustix::process::Pid::from_raw(pid as i32).context("a process of number 0")?;
    let process = rustix::process::pidfd_open(pid, rustix::process::PidfdFlags::empty())?;
    let most = ((to - from) >> 20).min(16);
    while !stop.load(Ordering::Relaxed) {
        let mib = 1 + random.below(most);
        let first = from + (random.below(((to - from) >> 20) - mib + 1) << 20);
        match page_out(process.as_fd(), first, mib << 20) {
            // EAGAIN or ENOMEM: only a part was paged out, or there is no swap space.
            Ok(()) | Err(11 | 12) => {}
            Err(e) => bail!("process_madvise: errno {e}"),
        }
        if let Some(control) = &reclaim {
            // EAGAIN means that less was reclaimed.
            let _ = fs::write(control, format!("{mib}M"));
        }
        count.fetch_add(1, Ordering::Relaxed);
        pause(&mut random, 20, 300);
    }
    Ok(())
}

/// Turns the dirty logs of all slots on for random times.
fn dirty(mut qmp: Qmp, mut random: Random, stop: &Stop, count: &Count) -> Result<()> {
    while !stop.load(Ordering::Relaxed) {
        let time = 50 + random.below(900);
        let how = json!({ "calc-time": time, "calc-time-unit": "millisecond", "mode": "dirty-bitmap" });
        match qmp.ask("calc-dirty-rate", how) {
            Ok(_) => count.fetch_add(1, Ordering::Relaxed),
            // QEMU reports the end of a measurement a moment before it accepts the next.
            Err(e) if e.to_string().contains("already being measured") => 0,
            Err(e) => return Err(e.into()),
        };
        loop {
            pause(&mut random, 50, 200);
            let state = qmp.ask("query-dirty-rate", json!({}))?;
            if state["status"] != "measuring" || stop.load(Ordering::Relaxed) {
                break;
            }
        }
    }
    Ok(())
}

fn split(pid: u32, bytes: u64, mut random: Random, stop: &Stop, count: &Count) -> Result<()> {
    let (from, to) = guest_memory(pid, bytes)?;
    let slots = (to - from) >> 21;
    while !stop.load(Ordering::Relaxed) {
        let first = random.below(slots);
        let end = from + ((first + 1 + random.below(8)).min(slots) << 21);
        put(SPLIT, &format!("{pid},{:#x},{end:#x}", from + (first << 21)))?;
        count.fetch_add(1, Ordering::Relaxed);
        pause(&mut random, 5, 100);
    }
    Ok(())
}

impl Noises {
    pub(super) fn start(
        noise: &[Noise],
        (pid, bytes): (u32, u64),
        seed: u64,
        mut qmp: Option<Qmp>,
    ) -> Result<Noises> {
        let stop = Arc::new(AtomicBool::new(false));
        let (mut counts, mut threads) = (Vec::new(), Vec::new());
        for (i, noise) in noise.iter().enumerate() {
            let (count, stop, random) = (Count::default(), stop.clone(), Random(seed + 1 + i as u64));
            let mine = count.clone();
            let (name, thread) = match noise {
                Noise::Swap => {
                    swap_on()?;
                    ("swapped_ranges", std::thread::spawn(move || swap(pid, bytes, random, &stop, &mine)))
                }
                Noise::Dirty => {
                    let qmp = qmp.take().context("no monitor")?;
                    ("dirty_logs", std::thread::spawn(move || dirty(qmp, random, &stop, &mine)))
                }
                Noise::Split => {
                    ("splits", std::thread::spawn(move || split(pid, bytes, random, &stop, &mine)))
                }
            };
            counts.push((name, count));
            threads.push(thread);
        }
        Ok(Noises { stop, counts, threads, swap: noise.contains(&Noise::Swap), qmp })
    }

    /// Counts of all noises so far.
    pub(super) fn counts(&self, pid: u32) -> BTreeMap<String, u64> {
        let mut all: BTreeMap<String, u64> =
            self.counts.iter().map(|(n, c)| ((*n).to_owned(), c.load(Ordering::Relaxed))).collect();
        let mut add = |name: &str, n: u64| all.insert(name.into(), n);
        let host = Host::live();
        let vmstat = host.vmstat();
        let since_boot = |name: &str| vmstat.get(name).unwrap_or(0);
        if self.swap {
            add("pages_swapped_in", since_boot("pswpin"));
            add("pages_swapped_out", since_boot("pswpout"));
        }
        let running = |ksm: &Ksm| ksm.settings().is_ok_and(|s| s.get(Setting::Run) == Some(1));
        if let Some(ksm) = Ksm::of(&host).ok().filter(running) {
            let number = |c| ksm.counter(c).ok().flatten().and_then(|n| n.try_into().ok()).unwrap_or(0);
            add("ksm_pages_sharing", number(Counter::PagesSharing));
            add("ksm_full_scans", number(Counter::FullScans));
        }
        let rollup = fs::read_to_string(format!("/proc/{pid}/smaps_rollup")).unwrap_or_default();
        let kib = |name: &str| {
            let line = rollup.lines().find_map(|l| l.strip_prefix(name));
            line.and_then(|l| l.split_whitespace().next()?.parse::<u64>().ok()).unwrap_or(0)
        };
        if self.swap {
            // Debug kernels do not count pages that are swapped out and in.
            add("pages_in_swap_now", kib("Swap:") / 4);
        }
        add("huge_pages_now", kib("AnonHugePages:") / 2048);
        add("huge_pages_split", since_boot("thp_split_page"));
        all
    }

    /// Ends all noises. Returns the errors of noises that failed.
    pub(super) fn end(&mut self) -> Vec<String> {
        self.stop.store(true, Ordering::Relaxed);
        let mut wrong = Vec::new();
        for thread in self.threads.drain(..) {
            match thread.join() {
                Ok(Ok(())) => {}
                Ok(Err(e)) => wrong.push(format!("noise: {e:#}")),
                Err(_) => wrong.push("noise: a thread panicked".into()),
            }
        }
        wrong
    }
}
