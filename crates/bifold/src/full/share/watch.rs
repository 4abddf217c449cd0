// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share watch`: shows this host's sharing over time.
//!
//! On a terminal, the view is redrawn at each interval; otherwise tables are printed one below the other.
//! `csv` has one row per time for the host (with an empty `domain`) and one per guest. The verb only reads.

use crate::console::{note, print, redraws, stop_on_signals};
use crate::status::Status;
use crate::words;
use bifold_host::Host;
use bifold_host::ksm::{Activity, Change, Counter, KsmError};
use bifold_report::{Format, grouped, text_table, wrapped};
use bifold_trial::advise::{Observed, observe};
use clap::Args;
use serde::Serialize;
use std::sync::atomic::Ordering;
use std::time::{Duration, Instant, SystemTime, UNIX_EPOCH};

const EXAMPLES: &str = "\
Examples:
  bifold share watch
  bifold share watch -i 10 --format csv > sharing.csv
  bifold share watch -n 1";

/// Watch this host's sharing: KSM's counters, their rates, ksmd's CPU time, each guest's pages
///
/// On a terminal, the view is redrawn at each interval. `csv` has one row per time for the host, with an
/// empty `domain`, and one per guest. Changes nothing. Only root sees all guests.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct WatchArgs {
    /// Time between two samples
    #[arg(short, long, value_name = "SECS", default_value = "2", value_parser = words::seconds)]
    pub interval: f64,

    /// End after N samples [default: at Ctrl-C]
    #[arg(short = 'n', long, value_name = "N", value_parser = clap::value_parser!(u64).range(1..))]
    pub count: Option<u64>,

    /// Output format
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|csv", help_heading = "Output")]
    pub format: Format,
}

const FORMATS: &[Format] = &[Format::Table, Format::Csv];

const PAGE: u64 = 4096;
/// Moves the cursor home and clears the screen.
const REDRAW: &str = "\x1b[H\x1b[2J";
const UNKNOWN: &str = "-";

/// Carries out the verb on this machine.
pub fn run(args: &WatchArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let stop = stop_on_signals()?;
    let interval = Duration::from_secs_f64(args.interval);
    let redraw = redraws(&std::io::stdout()) && args.count != Some(1);
    let mut before: Option<Snapshot> = None;
    let mut taken = 0;
    loop {
        let began = Instant::now();
        let now = Snapshot::at(&host)?;
        let text = match args.format {
            Format::Csv => csv(before.as_ref(), &now, before.is_none())?,
            _ if redraw => format!("{REDRAW}{}", table(before.as_ref(), &now)),
            _ if before.is_some() => format!("\n{}", table(before.as_ref(), &now)),
            _ => table(None, &now),
        };
        print(&text)?;
        // Printed once, but below every view that is redrawn, where it would be erased otherwise.
        match now.seen.unreadable() {
            Some(text) if redraw && args.format != Format::Csv => print(&format!("\n{}", wrapped(&text, 0)))?,
            Some(text) if before.is_none() => note(true, text),
            _ => {}
        }
        before = Some(now);
        taken += 1;
        if args.count == Some(taken) {
            return Ok(Status::Done);
        }
        while began.elapsed() < interval {
            if stop.load(Ordering::Relaxed) {
                return Ok(Status::Done);
            }
            std::thread::sleep((interval - began.elapsed()).min(Duration::from_millis(100)));
        }
    }
}

/// The host's state at one time.
struct Snapshot {
    at: Instant,
    time_s: f64,
    seen: Observed,
}

impl Snapshot {
    fn at(host: &Host) -> Result<Snapshot, KsmError> {
        let since = SystemTime::now().duration_since(UNIX_EPOCH).unwrap_or_default();
        let time_s = (since.as_secs_f64() * 1000.0).round() / 1000.0;
        Ok(Snapshot { at: Instant::now(), time_s, seen: observe(host)? })
    }

    fn counter(&self, c: Counter) -> Option<i64> {
        self.seen.counters.get(c)
    }
}

/// The changes between two snapshots.
fn change(before: Option<&Snapshot>, now: &Snapshot) -> Option<Change> {
    let before = before?;
    let earlier = Activity { at_s: 0.0, ..before.seen.activity };
    let later = Activity { at_s: (now.at - before.at).as_secs_f64(), ..now.seen.activity };
    Some(later.since(&earlier))
}

/// ksmd's share of a processor between two snapshots.
fn ksmd_share(change: Option<Change>) -> Option<f64> {
    let change = change?;
    Some(change.per_second(change.ksmd_cpu_s?))
}

fn table(before: Option<&Snapshot>, now: &Snapshot) -> String {
    let change = change(before, now);
    let count = |c| now.counter(c).map_or(UNKNOWN.into(), |n| grouped(n.max(0) as u64));
    let per_second = |of: fn(Change) -> Option<f64>| {
        let rate = change.and_then(|c| Some(c.per_second(of(c)?)));
        rate.map_or(UNKNOWN.into(), |r| format!("{r:+.0}/s"))
    };
    let saved = |c| now.counter(c).map_or(0, |n| (n.max(0) as u64 * PAGE) >> 20);
    let row = |name: &str, value: String, rate: String| vec![name.to_owned(), value, rate];
    let settings = now.seen.settings.to_string();
    let mib = saved(Counter::PagesSharing) + saved(Counter::KsmZeroPages);
    let rows = vec![
        row("saved, MiB", grouped(mib), String::new()),
        row("pages_sharing", count(Counter::PagesSharing), per_second(|c| Some(c.sharing? as f64))),
        row("pages_shared", count(Counter::PagesShared), String::new()),
        row("pages_unshared", count(Counter::PagesUnshared), String::new()),
        row("pages_volatile", count(Counter::PagesVolatile), String::new()),
        row("ksm_zero_pages", count(Counter::KsmZeroPages), String::new()),
        row("pages_scanned", count(Counter::PagesScanned), per_second(|c| Some(c.scanned? as f64))),
        row("full_scans", count(Counter::FullScans), String::new()),
        row(
            "copies at writes",
            now.seen.activity.copies.map_or(UNKNOWN.into(), grouped),
            per_second(|c| Some(c.copies? as f64)),
        ),
        row(
            "ksmd CPU, %",
            ksmd_share(change).map_or(UNKNOWN.into(), |share| format!("{:.1}", 100.0 * share)),
            now.seen.activity.ksmd_cpu_s.map_or(String::new(), |s| format!("{s:.1} s in all")),
        ),
    ];
    let head = ["KSM", "now", "change"].map(String::from).into();
    let mut out = format!("{}\n{}", wrapped(&settings, 0), text_table(head, rows));
    if !now.seen.vms.is_empty() {
        let head = ["\nguest", "\nprocess", "merged\npages", "zero\npages", "profit,\nMiB"];
        let or = |n: Option<u64>| n.map_or(UNKNOWN.into(), grouped);
        let rows = now.seen.vms.iter().map(|vm| {
            vec![
                vm.guest.name.chars().flat_map(char::escape_debug).collect(),
                vm.guest.pid.to_string(),
                or(vm.ksm.merging_pages),
                or(vm.ksm.zero_pages),
                vm.ksm.profit.map_or(UNKNOWN.into(), |p| (p / (1 << 20)).to_string()),
            ]
        });
        out += &format!("\n{}", text_table(head.map(String::from).into(), rows.collect()));
    }
    out
}

/// One row of CSV: the host, whose `domain` is empty, or a guest.
#[derive(Debug, Default, Serialize)]
struct WatchRow<'a> {
    time_s: f64,
    domain: &'a str,
    pid: Option<u32>,
    run: Option<u64>,
    pages_shared: Option<i64>,
    pages_sharing: Option<i64>,
    pages_unshared: Option<i64>,
    pages_volatile: Option<i64>,
    pages_scanned_total: Option<i64>,
    full_scans_total: Option<i64>,
    ksm_zero_pages: Option<i64>,
    profit_bytes: Option<i64>,
    merging_pages: Option<u64>,
    cow_ksm_total: Option<u64>,
    ksmd_cpu_seconds_total: Option<f64>,
    ksmd_cpu_ratio: Option<f64>,
}

fn csv(before: Option<&Snapshot>, now: &Snapshot, head: bool) -> anyhow::Result<String> {
    let mut writer = csv::WriterBuilder::new().has_headers(head).from_writer(Vec::new());
    let change = change(before, now);
    writer.serialize(WatchRow {
        time_s: now.time_s,
        run: now.seen.settings.get(bifold_host::ksm::Setting::Run),
        pages_shared: now.counter(Counter::PagesShared),
        pages_sharing: now.counter(Counter::PagesSharing),
        pages_unshared: now.counter(Counter::PagesUnshared),
        pages_volatile: now.counter(Counter::PagesVolatile),
        pages_scanned_total: now.counter(Counter::PagesScanned),
        full_scans_total: now.counter(Counter::FullScans),
        ksm_zero_pages: now.counter(Counter::KsmZeroPages),
        profit_bytes: now.counter(Counter::GeneralProfit),
        cow_ksm_total: now.seen.activity.copies,
        ksmd_cpu_seconds_total: now.seen.activity.ksmd_cpu_s,
        ksmd_cpu_ratio: ksmd_share(change).map(|share| (share * 1e4).round() / 1e4),
        ..WatchRow::default()
    })?;
    for vm in &now.seen.vms {
        writer.serialize(WatchRow {
            time_s: now.time_s,
            domain: &vm.guest.name,
            pid: Some(vm.guest.pid),
            ksm_zero_pages: vm.ksm.zero_pages.map(|n| n as i64),
            profit_bytes: vm.ksm.profit,
            merging_pages: vm.ksm.merging_pages,
            ..WatchRow::default()
        })?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::full::fake_host::Tree;

    fn two_snapshots() -> (Snapshot, Snapshot) {
        let tree = Tree::new();
        tree.ksm(&[
            ("run", "1"),
            ("pages_to_scan", "100"),
            ("pages_shared", "10"),
            ("pages_sharing", "1000"),
            ("pages_scanned", "5000"),
            ("full_scans", "2"),
        ]);
        tree.memory(16_000_000, 8_000_000, 0.0);
        tree.ksmd(100);
        tree.vm(7, "web", 1000, "ksm_merging_pages 900\nksm_process_profit 3145728\n");
        let before = Snapshot::at(&tree.host()).unwrap();
        tree.ksm(&[("pages_sharing", "3000"), ("pages_scanned", "25000"), ("full_scans", "3")]);
        tree.ksmd(150);
        let mut now = Snapshot::at(&tree.host()).unwrap();
        now.at = before.at + Duration::from_secs(2);
        (Snapshot { time_s: 1000.0, ..before }, Snapshot { time_s: 1002.0, ..now })
    }

    #[test]
    fn the_view_has_counts_rates_and_guests() {
        let (before, now) = two_snapshots();
        insta::assert_snapshot!("watch", table(Some(&before), &now));
        assert!(table(None, &before).contains("pages_sharing"), "the first snapshot has no rates");
    }

    #[test]
    fn rows_have_the_host_first_and_one_head() {
        let (before, now) = two_snapshots();
        let all = csv(None, &before, true).unwrap() + &csv(Some(&before), &now, false).unwrap();
        insta::assert_snapshot!("watch_csv", all);
    }
}
