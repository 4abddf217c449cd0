// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The table of an interval, for eyes: rates and shares.

use crate::full::vms;
use bifold_live::advice::best;
use bifold_live::{Figure, Figures, IntervalRow, Unit};
use bifold_report::{grouped, text_table, wrapped};

const UNKNOWN: &str = "-";

/// The headings, in two lines each.
fn head() -> Vec<String> {
    let figures = Figure::OF_A_VM.map(|figure| match figure.head {
        [name, ""] => format!("\n{name}"),
        [name, unit] if unit.starts_with('%') => format!("{name},\n{unit}"),
        [name, unit] => format!("{name}\n{unit}"),
    });
    let others = |all: [&str; 2]| all.map(String::from);
    [&others(["\nVM", "\nmode"])[..], &figures, &others(["4 KB /2 MB /1 GB,\nMiB", "\nswitches"])].concat()
}

/// The rows of an interval that ended at `time`, in seconds since 1970.
pub fn table(rows: &[IntervalRow]) -> String {
    let Some(first) = rows.first() else { return "no VM\n".into() };
    let cells = rows.iter().map(cells).collect();
    let mut out = format!("{:.1} s\n{}", first.interval.seconds, text_table(head(), cells));
    for row in rows.iter().filter(|r| r.vcpu.is_none()) {
        for advice in best(row) {
            out += &wrapped(&format!("{}: {advice}", vms::name(row.vm)), 2);
        }
    }
    out + "\n"
}

fn cells(row: &IntervalRow) -> Vec<String> {
    let figures = Figures::of(row);
    let number = |figure: &Figure| match ((figure.number)(&figures), figure.unit) {
        (None, _) => UNKNOWN.into(),
        (Some(n), Unit::Share) => format!("{:.1}", 100.0 * n),
        (Some(n), Unit::Rate) => grouped(n.round() as u64),
        (Some(n), Unit::Ratio) => format!("{n:.2}"),
    };
    let mode = row.interval.mode.map_or(UNKNOWN, bifold_policy::Mode::name);
    let mib = |bytes: u64| bytes >> 20;
    let mut cells = vec![
        row.vcpu.map_or_else(|| vms::name(row.vm), |v| format!("  vCPU {}", v.number)),
        if row.vcpu.is_some() { String::new() } else { mode.into() },
    ];
    cells.extend(Figure::OF_A_VM.map(number));
    let backing = row.vm.backing.as_ref().filter(|_| row.vcpu.is_none());
    cells.push(
        backing.map_or(UNKNOWN.into(), |b| format!("{} /{} /{}", mib(b.small), mib(b.huge), mib(b.giant))),
    );
    cells.push(row.interval.switches.filter(|_| row.vcpu.is_none()).map_or(UNKNOWN.into(), grouped));
    cells
}
