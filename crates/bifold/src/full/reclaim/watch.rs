// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim watch`: the memory of guests over time.
//!
//! On a terminal, the view is redrawn at each interval; otherwise tables are printed one below the other.

use super::{GUARDIAN, guests};
use crate::console::{note, print, redraws, stop_on_signals};
use crate::status::{self, Status};
use crate::words;
use bifold_host::held::Guardian;
use bifold_host::{Host, printable};
use bifold_live::memory::{GuestMemory, HostMemory, see};
use bifold_live::order::{Polling, folder};
use bifold_report::{Format, grouped, text_table, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant};

/// Name and version of a line.
const SCHEMA: &str = "bifold.reclaim-watch/1";

const EXAMPLES: &str = "\
Examples:
  bifold reclaim watch
  bifold reclaim watch -i 10 web db --format jsonl > memory.jsonl
  bifold reclaim watch --stats -n 5";

/// Watch guests' memory: size, balloon, memory in host and swap, what is free in the guest, faults
///
/// A row for each guest and interval: its memory at the start, what the balloon leaves of that, the process's
/// memory in the host and in the host's swap; free and available memory in the guest, and the guest's faults
/// that read from a disk, by the balloon's statistics; faults of the process that read from a disk, pages of
/// its cgroup that came back (refaults), and the share of the interval in which tasks of its cgroup, or of
/// the host with cgroup v1, waited for memory. What is not known is `-`, and null in `jsonl`.
///
/// Changes nothing, unless --stats is given. Without root, other users' guests are seen in part.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct WatchArgs {
    /// Only these guests: process id, PID-FD, or name [default: all]
    #[arg(value_name = "VM")]
    vm: Vec<String>,

    /// Time between two samples
    #[arg(short, long, value_name = "SECS", default_value = "2", value_parser = words::interval)]
    interval: f64,

    /// End after N samples [default: at Ctrl-C]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    count: Option<u64>,

    /// Have QEMU ask the guests for statistics, until the end
    ///
    /// Sets the balloon's guest-stats-polling-interval where it is 0, and sets it back at the end, also if
    /// the command is killed. No order (`bifold reclaim set`) can have these guests meanwhile.
    #[arg(long)]
    stats: bool,

    /// Output format
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|jsonl", help_heading = "Output")]
    format: Format,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

const FORMATS: &[Format] = &[Format::Table, Format::Jsonl];
const MIB: u64 = words::MIB;
/// Moves the cursor home and clears the screen.
const REDRAW: &str = "\x1b[H\x1b[2J";
const UNKNOWN: &str = "-";

/// Carries out the verb on this machine.
pub fn run(args: &WatchArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let stop = stop_on_signals()?;
    let mut polled = Polled { guests: BTreeMap::new(), quiet: args.quiet };
    let interval = Duration::from_secs_f64(args.interval);
    let redraw = args.format == Format::Table && redraws(&std::io::stdout()) && args.count != Some(1);
    let mut before: Option<Sample> = None;
    let mut taken = 0;
    loop {
        let began = Instant::now();
        let now = Sample { at: began, seen: chosen(see(&host), &args.vm) };
        if args.stats {
            polled.begin(&host, &now.seen)?;
        }
        let text = match args.format {
            Format::Jsonl => lines(before.as_ref(), &now)?,
            _ if redraw => format!("{REDRAW}{}", table(before.as_ref(), &now)),
            _ if before.is_some() => format!("\n{}", table(before.as_ref(), &now)),
            _ => table(None, &now),
        };
        print(&text)?;
        let notes = guests::silent(&now.seen);
        match redraw {
            true => notes.iter().try_for_each(|text| print(&format!("\n{}", wrapped(text, 0))))?,
            false if before.is_none() => notes.iter().for_each(|text| note(!args.quiet, text)),
            false => {}
        }
        before = Some(now);
        taken += 1;
        while args.count != Some(taken) && began.elapsed() < interval && !stop.load(Ordering::Relaxed) {
            std::thread::sleep((interval - began.elapsed()).min(Duration::from_millis(50)));
        }
        if args.count == Some(taken) || stop.load(Ordering::Relaxed) {
            return polled.end().map(|()| Status::Done);
        }
    }
}

/// The guests that the words name, or all.
fn chosen(seen: HostMemory, words: &[String]) -> HostMemory {
    let is = |g: &GuestMemory| words.is_empty() || words.iter().any(|w| guests::rank(&g.guest, w).is_some());
    HostMemory { guests: seen.guests.into_iter().filter(is).collect(), ..seen }
}

/// Guests whose statistics were turned on.
struct Polled {
    guests: BTreeMap<(u32, u64), Option<Polling>>,
    quiet: bool,
}

impl Polled {
    fn begin(&mut self, host: &Host, seen: &HostMemory) -> anyhow::Result<()> {
        // A guest that has ended needs no guardian any more.
        let lives = |id: &(u32, u64)| seen.guests.iter().any(|g| (g.guest.pid, g.guest.started) == *id);
        self.guests.retain(|id, _| lives(id));
        let (folder, guardian) = (folder()?, Guardian::this_program(GUARDIAN)?);
        for guest in seen.guests.iter().map(|g| &g.guest) {
            let id = (guest.pid, guest.started);
            if self.guests.contains_key(&id) {
                continue;
            }
            let polling = Polling::begin(host, &folder, &guardian, guest).unwrap_or_else(|e| {
                let e = anyhow::Error::from(e);
                note(!self.quiet, format_args!("no statistics of VM {}: {e:#}", printable(&guest.name)));
                None
            });
            self.guests.insert(id, polling);
        }
        Ok(())
    }

    fn end(self) -> anyhow::Result<()> {
        let ends = self.guests.into_values().flatten().map(Polling::end);
        // Each of them, whatever becomes of the others.
        let failed: Vec<_> = ends.filter_map(Result::err).collect();
        failed.into_iter().next().map_or(Ok(()), |e| Err(e.into()))
    }
}

/// The memory at one time.
struct Sample {
    at: Instant,
    seen: HostMemory,
}

/// Figures of an interval: totals, and rates if there was a sample before.
#[derive(Debug, Default, PartialEq)]
struct Rates {
    guest_faults: Option<f64>,
    process_faults: Option<f64>,
    refaults: Option<f64>,
    waiting: Option<f64>,
}

fn rates(before: Option<&Sample>, now: &Sample, guest: &GuestMemory) -> Rates {
    let Some(before) = before else { return Rates::default() };
    let seconds = now.at.duration_since(before.at).as_secs_f64();
    let is_it = |g: &&GuestMemory| (g.guest.pid, g.guest.started) == (guest.guest.pid, guest.guest.started);
    let Some(earlier) = before.seen.guests.iter().find(is_it) else { return Rates::default() };
    let of = |count: &dyn Fn(&Sample, &GuestMemory) -> Option<u64>| {
        // A count that has fallen began again, as at a guest's reboot.
        let by = count(now, guest)?.checked_sub(count(before, earlier)?)?;
        (seconds > 0.0).then(|| by as f64 / seconds)
    };
    let stalls = |s: &Sample, g: &GuestMemory| {
        let own = g.facts.group.as_ref().ok().and_then(|group| group.stalls_us);
        own.or(s.seen.stalls_us)
    };
    Rates {
        guest_faults: of(&|s, g| g.statistics(s.seen.time_s).major_faults),
        process_faults: of(&|_, g| g.facts.memory.major_faults),
        refaults: of(&|_, g| g.facts.group.as_ref().ok()?.refaults()),
        waiting: of(&stalls).map(|us| us / 1e6),
    }
}

fn table(before: Option<&Sample>, now: &Sample) -> String {
    let host = &now.seen;
    let mib = |bytes: Option<u64>| bytes.map_or(UNKNOWN.into(), |b| grouped(b / MIB));
    let swap = host.swap.map_or("no swap".into(), |s| {
        format!(
            "swap {} of {} MiB used",
            grouped((s.total - s.free.min(s.total)) / MIB),
            grouped(s.total / MIB)
        )
    });
    let mut out = wrapped(
        &format!("host: {} of {} MiB available, {swap}", mib(host.memory.available), mib(host.memory.total)),
        0,
    );
    let head = [
        "\n\nVM",
        "\n\nprocess",
        "\nsize,\nMiB",
        "outside\nballoon,\nMiB",
        "in host\nmemory,\nMiB",
        "in host\nswap,\nMiB",
        "free in\nguest,\nMiB",
        "avail-\nable,\nMiB",
        "guest's\nfaults\n/s",
        "process's\nfaults\n/s",
        "\nrefaults\n/s",
        "\nwaits,\n%",
    ];
    let rows = host.guests.iter().map(|g| {
        let (stats, rates) = (g.statistics(host.time_s), rates(before, now, g));
        let rate = |r: Option<f64>| r.map_or(UNKNOWN.into(), |r| format!("{r:.0}"));
        vec![
            guests::name(&g.guest),
            g.guest.pid.to_string(),
            mib(g.size()),
            mib(g.actual()),
            mib(g.facts.memory.resident),
            mib(g.facts.memory.swapped),
            mib(stats.free),
            mib(stats.available),
            rate(rates.guest_faults),
            rate(rates.process_faults),
            rate(rates.refaults),
            rates.waiting.map_or(UNKNOWN.into(), |w| format!("{:.1}", 100.0 * w)),
        ]
    });
    if host.guests.is_empty() {
        out += "no guest is running here\n";
    } else {
        out += &text_table(head.map(String::from).into(), rows.collect());
    }
    out
}

/// What `bifold reclaim watch --format jsonl` writes: a line for each guest and interval. What is not known
/// is null.
#[derive(Serialize, JsonSchema)]
struct Line<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Time of the look, since 1970-01-01. Unit: s.
    time_s: u64,
    /// The guest's name.
    vm: &'a str,
    /// The guest's process.
    pid: u32,
    /// QEMU's word for the guest's state, such as `running`.
    state: Option<&'a str>,
    /// The guest's memory at its start. Unit: bytes.
    size_bytes: Option<u64>,
    /// The guest's memory outside of the balloon. Unit: bytes.
    actual_bytes: Option<u64>,
    /// What devices of virtio-mem have. Unit: bytes.
    virtio_mem_bytes: Option<u64>,
    /// The process's memory in the host's memory. Unit: bytes.
    resident_bytes: Option<u64>,
    /// The process's memory in the host's swap. Unit: bytes.
    swapped_bytes: Option<u64>,
    /// The process's memory in transparent huge pages. Unit: bytes.
    huge_bytes: Option<u64>,
    /// The process's memory that is locked in the host's. Unit: bytes.
    locked_bytes: Option<u64>,
    /// The process's memory in hugetlbfs. Unit: bytes.
    hugetlb_bytes: Option<u64>,
    /// Files of the process that are devices of VFIO.
    vfio_files: Option<usize>,
    /// Free memory in the guest, by the balloon's statistics. Unit: bytes.
    guest_free_bytes: Option<u64>,
    /// What the guest's programs can take without swapping, by the balloon's statistics. Unit: bytes.
    guest_available_bytes: Option<u64>,
    /// Pages of files in the guest, by the balloon's statistics. Unit: bytes.
    guest_cache_bytes: Option<u64>,
    /// Faults of the guest since its boot that read from a disk, by the balloon's statistics.
    guest_faults_total: Option<u64>,
    /// What the guest has read from its swap since its boot, by the balloon's statistics. Unit: bytes.
    guest_swapped_in_bytes_total: Option<u64>,
    /// Processes that the guest has killed for lack of memory since its boot, by the balloon's statistics.
    guest_oom_kills_total: Option<u64>,
    /// Faults of the process since its start that read from a disk or from swap.
    process_faults_total: Option<u64>,
    /// Memory of the process's cgroup (v2). Unit: bytes.
    group_bytes: Option<u64>,
    /// Pages of the process's cgroup (v2) that came back.
    refaults_total: Option<u64>,
    /// Rate of `guest_faults_total` since the line before. Unit: 1/s.
    guest_faults_per_second: Option<f64>,
    /// Rate of `process_faults_total` since the line before. Unit: 1/s.
    process_faults_per_second: Option<f64>,
    /// Rate of `refaults_total` since the line before. Unit: 1/s.
    refaults_per_second: Option<f64>,
    /// Share of the time since the line before in which tasks of the cgroup waited for memory, or, with
    /// cgroup v1, tasks of the host.
    waiting_ratio: Option<f64>,
    /// What the host's programs can take without swapping. Unit: bytes.
    host_available_bytes: Option<u64>,
    /// Free swap of the host. Unit: bytes.
    host_swap_free_bytes: Option<u64>,
}

/// The schema of a line.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Line>(SCHEMA)
}

/// A line for each guest.
fn lines(before: Option<&Sample>, now: &Sample) -> serde_json::Result<String> {
    let host = &now.seen;
    let one = |g: &GuestMemory| {
        let (stats, rates) = (g.statistics(host.time_s), rates(before, now, g));
        let machine = g.facts.machine.as_ref().ok();
        let group = g.facts.group.as_ref().ok();
        let line = serde_json::to_string(&Line {
            schema: SCHEMA,
            time_s: host.time_s,
            vm: &g.guest.name,
            pid: g.guest.pid,
            state: machine.map(|m| &*m.state),
            size_bytes: g.size(),
            actual_bytes: g.actual(),
            virtio_mem_bytes: machine.map(|m| m.virtio_mem.iter().map(|d| d.size).sum()),
            resident_bytes: g.facts.memory.resident,
            swapped_bytes: g.facts.memory.swapped,
            huge_bytes: g.facts.memory.huge,
            locked_bytes: g.facts.memory.locked,
            hugetlb_bytes: g.facts.memory.hugetlb,
            vfio_files: g.facts.vfio,
            guest_free_bytes: stats.free,
            guest_available_bytes: stats.available,
            guest_cache_bytes: stats.caches,
            guest_faults_total: stats.major_faults,
            guest_swapped_in_bytes_total: stats.swapped_in,
            guest_oom_kills_total: stats.oom_kills,
            process_faults_total: g.facts.memory.major_faults,
            group_bytes: group.and_then(|group| group.current),
            refaults_total: group.and_then(|group| group.refaults()),
            guest_faults_per_second: rates.guest_faults,
            process_faults_per_second: rates.process_faults,
            refaults_per_second: rates.refaults,
            waiting_ratio: rates.waiting,
            host_available_bytes: host.memory.available,
            host_swap_free_bytes: host.swap.map(|s| s.free),
        })?;
        Ok(line + "\n")
    };
    host.guests.iter().map(one).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full::reclaim::guests::example;

    fn two() -> (Sample, Sample) {
        let before = Sample { at: Instant::now(), seen: example() };
        let mut seen = example();
        seen.time_s += 2;
        *seen.stalls_us.as_mut().unwrap() += 100_000;
        let facts = &mut seen.guests[0].facts;
        facts.memory.major_faults = Some(50);
        facts.machine.as_mut().unwrap().balloon.as_mut().unwrap().statistics.major_faults = Some(27);
        (before, Sample { at: now_plus(2), seen })
    }

    fn now_plus(seconds: u64) -> Instant {
        Instant::now() + Duration::from_secs(seconds)
    }

    #[test]
    fn a_row_has_amounts_and_rates_and_a_dash_for_what_is_unknown() {
        let (before, mut now) = two();
        now.at = before.at + Duration::from_secs(2);
        insta::assert_snapshot!("reclaim_watch", table(Some(&before), &now));
        insta::assert_snapshot!("reclaim_watch_jsonl", lines(Some(&before), &now).unwrap());
        assert_eq!(rates(None, &now, &now.seen.guests[0]), Rates::default());
        let none = Sample { seen: chosen(example(), &["nothing".into()]), ..before };
        assert!(table(None, &none).ends_with("no guest is running here\n"));
    }
}
