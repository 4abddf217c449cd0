// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of an interval, for eyes: rates and shares.

use bifold_host::Statistic;
use bifold_live::advice::advise;
use bifold_live::columns::Row;
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
        if let Some(advice) = advise(row).first() {
            out += &wrapped(&format!("{}: {advice}", name(row)), 2);
        }
    }
    out + "\n"
}

fn name(row: &Row) -> String {
    let name = row.vm.name.clone().unwrap_or_else(|| row.vm.id.to_string());
    name.chars().flat_map(char::escape_debug).collect()
}

fn cells(row: &Row) -> Vec<String> {
    let seconds = row.interval.seconds;
    let rate = |n: Option<u64>| match n {
        Some(n) if seconds > 0.0 => grouped((n as f64 / seconds).round() as u64),
        _ => UNKNOWN.into(),
    };
    let percent = |part: Option<f64>| {
        part.filter(|p| p.is_finite()).map_or(UNKNOWN.into(), |p| format!("{:.1}", 100.0 * p))
    };
    let statistic = |s| row.interval.statistics.get(s).filter(|_| row.vcpu.is_none());
    let (ran, waited) = match row.vcpu {
        Some(v) => (v.ran_ns, v.waited_ns),
        None => (row.interval.ran_ns(), row.interval.waited_ns()),
    };
    let vcpus = if row.vcpu.is_some() { 1 } else { row.interval.vcpus.len() };
    let of_time = |ns: Option<u64>| ns.map(|ns| ns as f64 / (seconds * 1e9 * vcpus as f64));
    let hardware = row.hardware();
    let all = row.measured.cycles;
    let share = |part: Option<u64>| part.zip(all).map(|(p, all)| p as f64 / all);
    let ipc = hardware.instructions.zip(hardware.guest_cycles).map(|(i, c)| i as f64 / c as f64);
    let mode = row.interval.mode.map_or(UNKNOWN, bifold_policy::Mode::name);
    let mib = |bytes: u64| bytes >> 20;
    vec![
        row.vcpu.map_or_else(|| name(row), |v| format!("  vCPU {}", v.number)),
        if row.vcpu.is_some() { String::new() } else { mode.into() },
        percent(of_time(ran)),
        percent(of_time(waited)),
        rate(statistic(Statistic::Exits)),
        rate(statistic(Statistic::PfTaken)),
        percent(share(hardware.host_cycles)),
        percent(share(hardware.walk_cycles)),
        ipc.filter(|i| i.is_finite()).map_or(UNKNOWN.into(), |i| format!("{i:.2}")),
        row.vm
            .backing
            .as_ref()
            .filter(|_| row.vcpu.is_none())
            .map_or(UNKNOWN.into(), |b| format!("{} /{} /{}", mib(b.small), mib(b.huge), mib(b.giant))),
        row.interval.switches.filter(|_| row.vcpu.is_none()).map_or(UNKNOWN.into(), grouped),
    ]
}
