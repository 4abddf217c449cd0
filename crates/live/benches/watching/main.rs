// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What watching costs: CPU time and system calls of a tick over 100 VMs of 4 vCPUs, and memory over
//! simulated time in which VMs come and go.
//!
//! The host is made of files ([`fixture`]). Hardware counters are stood in for by groups of the same sizes of
//! events that the kernel counts itself. A second of simulated time passes at each tick; CPU time is this
//! thread's, user and system together (CLOCK_THREAD_CPUTIME_ID). System calls are counted by the tracepoint
//! raw_syscalls:sys_enter, which needs root and a tracefs at /sys/kernel/tracing. `evidence/tools/watching`
//! runs this bench where both are. Arguments: `--rounds N` of 20 ticks for each set (5), `--hours N` of
//! simulated time (1), `--vms N` (100), `--vcpus N` of each VM (4).

#[path = "../../src/fake_host.rs"]
#[allow(dead_code)] // what tests alone use
mod fake_host;
mod files;
mod fixture;
mod sets;

use bifold_host::{Host, Statistic};
use bifold_live::files::{Format, RowWriter};
use bifold_live::hardware::{FileLimit, Pmu};
use bifold_live::{IntervalRow, Tick, Watch, columns};
use fixture::{Fleet, Threads};
use rustix::time::{ClockId, clock_gettime};
use std::cell::Cell;
use std::io::Sink;
use std::time::Duration;

/// CPU time of this thread, user and system together.
fn cpu() -> Duration {
    let time = clock_gettime(ClockId::ThreadCPUTime);
    Duration::new(time.tv_sec as u64, time.tv_nsec as u32)
}

/// The middle one.
fn median(mut all: Vec<f64>) -> f64 {
    all.sort_by(f64::total_cmp);
    all[all.len() / 2]
}

/// A watch in simulated time, and what becomes of its rows.
struct Run {
    watch: Watch,
    seconds: Cell<u64>,
    rows: Option<RowWriter<Sink>>,
}

impl Run {
    fn new(host: Host, pmu: Option<Pmu>, statistics: &[Statistic], rows: bool) -> Run {
        let rows =
            rows.then(|| RowWriter::new(Format::Jsonl, columns::all(), std::io::sink()).expect("a sink"));
        let mut watch = Watch::new(host, pmu.into()).expect("the fixture has KVM");
        watch.read_only(statistics);
        Run { watch, seconds: Cell::new(0), rows }
    }

    /// A tick, a second after the one before.
    fn tick(&mut self) -> Tick {
        self.seconds.set(self.seconds.get() + 1);
        let seconds = &self.seconds;
        let tick = self.watch.tick(&|| Duration::from_secs(seconds.get()));
        if let Some(rows) = &mut self.rows {
            for (id, interval) in &tick.intervals {
                let vm = self.watch.vm(*id).expect("it is watched");
                rows.row(&IntervalRow::of_vm(self.seconds.get() as f64, vm, interval)).expect("a sink");
            }
        }
        tick
    }

    fn ticks(&mut self, n: u64) {
        (0..n).for_each(|_| drop(self.tick()));
    }
}

/// Resident memory of this process, in KB.
fn resident() -> u64 {
    let text = std::fs::read_to_string("/proc/self/smaps_rollup").expect("Linux");
    let line = text.lines().find_map(|l| l.strip_prefix("Rss:")).expect("Linux writes it");
    line.trim().trim_end_matches(" kB").parse().expect("a number")
}

/// Simulated time in which each minute one VM ends and another begins.
fn memory(fleet: &mut Fleet, pmu: Option<Pmu>, statistics: &[Statistic], hours: u64) {
    println!("| simulated time | VMs that ended | resident memory, KB | open files |");
    println!("|---|--:|--:|--:|");
    let mut run = Run::new(fleet.host(), pmu, statistics, true);
    let mut ended = 0;
    for minute in 0..=60 * hours {
        let name = match minute {
            0 => Some("the first tick".into()),
            1 | 10 => Some(format!("{minute} min")),
            m => [1, 2, 6, 12, 18, 24].iter().find(|h| **h * 60 == m).map(|h| format!("{h} h")),
        };
        if minute == 0 {
            run.tick();
        } else {
            ended += (0..60).map(|_| run.tick().gone.len()).sum::<usize>();
        }
        if let Some(name) = name {
            let files = std::fs::read_dir("/proc/self/fd").expect("Linux").count();
            println!("| {name} | {ended} | {} | {files} |", resident());
        }
        fleet.replace_one();
    }
}

fn main() {
    let (mut rounds, mut hours, mut vms, mut vcpus) = (5, 1, 100, 4);
    let mut args = std::env::args().skip(1).filter(|a| a != "--bench");
    while let Some(arg) = args.next() {
        let number = args.next().and_then(|n| n.parse::<u64>().ok()).filter(|n| *n > 0);
        let number = number.unwrap_or_else(|| panic!("{arg} needs a number above 0"));
        match &arg[..] {
            "--rounds" => rounds = number,
            "--hours" => hours = number,
            "--vms" => vms = number as usize,
            "--vcpus" => vcpus = number as usize,
            _ => panic!("{arg} is not one of --rounds, --hours, --vms, --vcpus"),
        }
    }
    let _limit = FileLimit::raise().expect("the limit of files can be raised");
    let threads = Threads::start(vms * vcpus);
    let mut fleet = Fleet::new(&threads, vcpus);
    let pmu = sets::counters_work(&threads);
    println!("{vms} VMs of {vcpus} vCPUs, a tick each second.\n");
    let costs = files::measure(&fleet, pmu.then(sets::intel), threads.first());
    println!();
    sets::measure(&fleet, vcpus, pmu, rounds, costs.of_kvm());
    println!();
    memory(&mut fleet, pmu.then(sets::intel), bifold_live::Measured::STATISTICS, hours);
}
