// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of an interval, for eyes: rates and shares.

use crate::vms;
use bifold_live::advice::best;
use bifold_live::{Figures, Row};
use bifold_report::{grouped, text_table, wrapped};

const UNKNOWN: &str = "-";

const HEAD: [&str; 11] = [
    "\nVM",
    "\nmode",
    "ran,\n%",
    "waited,\n%",
    "exits\n/s",
    "page-fault\nexits /s",
    "hypervisor,\n% cycles",
    "walks,\n% cycles",
    "\nIPC",
    "4 KB /2 MB /1 GB,\nMiB",
    "\nswitches",
];

/// The rows of an interval that ended at `time`, in seconds since 1970.
pub fn table(rows: &[Row]) -> String {
    let Some(first) = rows.first() else { return "no VM\n".into() };
    let cells = rows.iter().map(cells).collect();
    let mut out =
        format!("{:.1} s\n{}", first.interval.seconds, text_table(HEAD.map(String::from).into(), cells));
    for row in rows.iter().filter(|r| r.vcpu.is_none()) {
        for advice in best(row) {
            out += &wrapped(&format!("{}: {advice}", vms::name(row.vm)), 2);
        }
    }
    out + "\n"
}

fn cells(row: &Row) -> Vec<String> {
    let figures = Figures::of(row);
    let rate = |n: Option<f64>| n.map_or(UNKNOWN.into(), |n| grouped(n.round() as u64));
    let percent = |part: Option<f64>| part.map_or(UNKNOWN.into(), |p| format!("{:.1}", 100.0 * p));
    let mode = row.interval.mode.map_or(UNKNOWN, bifold_policy::Mode::name);
    let mib = |bytes: u64| bytes >> 20;
    vec![
        row.vcpu.map_or_else(|| vms::name(row.vm), |v| format!("  vCPU {}", v.number)),
        if row.vcpu.is_some() { String::new() } else { mode.into() },
        percent(figures.ran),
        percent(figures.waited),
        rate(figures.exits),
        rate(figures.page_faults),
        percent(figures.hypervisor),
        percent(figures.walks),
        figures.ipc.map_or(UNKNOWN.into(), |i| format!("{i:.2}")),
        row.vm
            .backing
            .as_ref()
            .filter(|_| row.vcpu.is_none())
            .map_or(UNKNOWN.into(), |b| format!("{} /{} /{}", mib(b.small), mib(b.huge), mib(b.giant))),
        row.interval.switches.filter(|_| row.vcpu.is_none()).map_or(UNKNOWN.into(), grouped),
    ]
}
