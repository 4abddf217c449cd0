// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a tick costs, by what is read.

use crate::fixture::{Fleet, Threads};
use crate::{Run, cpu, median};
use bifold_host::{Statistic, Vendor};
use bifold_live::Measured;
use bifold_live::hardware::{Cpu, Microarchitecture, Pmu};
use perf_event_open::config::{self, Opts, Proc};
use perf_event_open::count::Counter;
use perf_event_open::event::tp::Tracepoint;

/// Ticks of a round: whole rounds of what is looked at every ten seconds.
const TICKS: u64 = 20;

/// What is read, and whether rows are written.
struct Set {
    name: String,
    statistics: &'static [Statistic],
    pmu: Option<fn() -> Pmu>,
    rows: bool,
}

/// Groups as an Ice Lake server has them.
pub fn intel() -> Pmu {
    stand_in(Vendor::Intel, 6, 0x6a)
}

/// Groups as Zen 4 has them.
fn amd() -> Pmu {
    stand_in(Vendor::Amd, 0x19, 0x11)
}

fn stand_in(vendor: Vendor, family: u32, model: u32) -> Pmu {
    Pmu::stand_in(&Microarchitecture::of(Cpu { vendor, family, model }).expect("the list has it"))
}

/// Whether this process may use perf events.
pub fn counters_work(threads: &Threads) -> bool {
    let opened = intel().open(threads.first());
    if let Err(e) = &opened {
        println!("No perf events here ({e}): their costs are missing.\n");
    }
    opened.is_ok()
}

fn sets() -> Vec<Set> {
    let (few, all) = (Measured::STATISTICS, Statistic::ALL);
    let set = |name: &str, statistics: &'static [Statistic], pmu: Option<fn() -> Pmu>, rows| {
        let events = pmu.map_or("no PMU".into(), |pmu| {
            let pmu = pmu();
            format!("{} events in {} groups", pmu.events(), pmu.groups())
        });
        Set { name: format!("{} statistics, {events}{name}", statistics.len()), statistics, pmu, rows }
    };
    vec![
        set("", few, None, false),
        set(" (Intel)", few, Some(intel), false),
        set(" (Intel), JSON lines", few, Some(intel), true),
        set("", all, None, false),
        set(" (AMD)", all, Some(amd), false),
        set(" (Intel)", all, Some(intel), false),
        set(" (Intel), JSON lines", all, Some(intel), true),
    ]
}

/// Prints what ticks cost. `more` is what a statistic of the real KVM takes beyond the fixture's, in seconds.
pub fn measure(fleet: &Fleet, vcpus: usize, pmu: bool, rounds: u64, more: Option<f64>) {
    let sets: Vec<Set> = sets().into_iter().filter(|set| pmu || set.pmu.is_none()).collect();
    let mut ticks: Vec<Vec<f64>> = vec![Vec::new(); sets.len()];
    // The sets take turns, so that what else runs here disturbs all.
    for _ in 0..rounds {
        sets.iter().zip(&mut ticks).for_each(|(set, ticks)| ticks.push(tick(fleet, set)));
    }
    println!(
        "| read of each VM, beside times and mode | % of a core | with the real KVM's files | system calls of a tick | of a VM | of a vCPU |"
    );
    println!("|---|--:|--:|--:|--:|--:|");
    for (set, ticks) in sets.iter().zip(ticks) {
        let seconds = median(ticks);
        let files = (fleet.len() * set.statistics.len()) as f64;
        let real = more.map_or("-".into(), |more| format!("{:.2}", 100.0 * (seconds + files * more)));
        let calls = calls(fleet, set);
        let per = |n: usize| calls.map_or("-".into(), |calls| format!("{:.1}", calls / n as f64));
        let (each, vm, vcpu) = (calls.map_or("-".into(), |c| format!("{c:.0}")), fleet.len(), vcpus);
        println!(
            "| {} | {:.2} | {real} | {each} | {} | {} |",
            set.name,
            100.0 * seconds,
            per(vm),
            per(vm * vcpu)
        );
    }
}

fn begin(fleet: &Fleet, set: &Set) -> Run {
    let mut run = Run::new(fleet.host(), set.pmu.map(|pmu| pmu()), set.statistics, set.rows);
    run.tick();
    let tick = run.tick();
    assert_eq!(tick.intervals.len(), fleet.len(), "every VM is watched");
    let no_counters = run.watch.vms().find_map(|vm| vm.no_counters.as_ref());
    assert!(no_counters.is_none(), "{no_counters:?}");
    run
}

/// The mean CPU time of a tick, in seconds.
fn tick(fleet: &Fleet, set: &Set) -> f64 {
    let mut run = begin(fleet, set);
    let start = cpu();
    run.ticks(TICKS);
    (cpu() - start).as_secs_f64() / TICKS as f64
}

/// The mean number of system calls of a tick; `None` where the kernel's tracepoints are not to be had.
fn calls(fleet: &Fleet, set: &Set) -> Option<f64> {
    let mut run = begin(fleet, set);
    let id = std::fs::read_to_string("/sys/kernel/tracing/events/raw_syscalls/sys_enter/id").ok()?;
    let event = Tracepoint { id: id.trim().parse().ok()? };
    let counter = Counter::new(event, (Proc::CURRENT, config::All), Opts::default()).ok()?;
    counter.enable().ok()?;
    run.ticks(TICKS);
    counter.disable().ok()?;
    // The call that disables the counter counts too.
    Some(counter.stat().ok()?.count.saturating_sub(1) as f64 / TICKS as f64)
}
