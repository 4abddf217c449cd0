// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes tables, charts and JSON of an outcome.

mod figures;
mod json;
#[cfg(test)]
mod tests;

pub use figures::{GuestFigures, HostFigures, of_guests, of_host};
pub use json::{Document, SCHEMA, json};

use super::outcome::{CaseOutcome, Orders, Outcome, Sample};
use super::spec::{CaseSpec, Spec};
use crate::output::{Chart, MIB, ResultTable, UNKNOWN};
use crate::run::Ending;

/// A figure as text, with so many decimals.
fn cell((value, decimals): (Option<f64>, usize)) -> String {
    value.map_or(UNKNOWN.into(), |v| format!("{v:.decimals$}"))
}

/// The mean of rows of figures, column by column; a column without a value in one of them has none.
fn mean_of(rows: &[Vec<(Option<f64>, usize)>]) -> Vec<String> {
    let count = rows.len() as f64;
    let columns = rows.first().map_or(0, Vec::len);
    let column = |n: usize| {
        let sum: Option<f64> = rows.iter().map(|row| row[n].0).sum();
        cell((sum.map(|s| s / count), rows[0][n].1))
    };
    (0..columns).map(column).collect()
}

/// The runs of a case: the whole ones, if there are any.
fn runs<'a>(outcome: &'a Outcome, name: &str) -> Vec<&'a CaseOutcome> {
    let of = |c: &&CaseOutcome| c.spec.name == name && !c.samples.is_empty();
    let all: Vec<&CaseOutcome> = outcome.cases.iter().filter(of).collect();
    let whole: Vec<&CaseOutcome> = all.iter().copied().filter(|c| c.ending == Ending::Whole).collect();
    if whole.is_empty() { all } else { whole }
}

/// All tables, the most important first.
pub fn tables(spec: &Spec, outcome: &Outcome) -> Vec<ResultTable> {
    let mut all = vec![host(spec, outcome), guests(spec, outcome), orders(spec, outcome)];
    if spec.cases.iter().any(|c| c.paging) {
        all.push(paged(spec, outcome));
    }
    if spec.repetitions > 1 {
        all.iter_mut().for_each(|t| t.notes.push("Figures are means over the case's runs.".into()));
    }
    all
}

fn host(spec: &Spec, outcome: &Outcome) -> ResultTable {
    let mut table = ResultTable::new(
        "All guests",
        "case|in host memory,\nmean MiB|most\nMiB|beyond the host,\nmean MiB|beyond,\n% of time|\
         progress,\n%|worst\nguest, %|emulators'\nCPU, s",
    );
    for case in &spec.cases {
        let row = |run: &&CaseOutcome| {
            let f = of_host(outcome, run, case.host_mib(spec));
            let mib = |bytes: Option<f64>| (bytes.map(|b| b / MIB), 0);
            let percent = |part: Option<f64>| (part.map(|p| 100.0 * p), 1);
            vec![
                mib(f.mean_used_bytes),
                mib(f.peak_used_bytes),
                mib(f.mean_beyond_bytes),
                percent(f.beyond),
                percent(f.progress),
                percent(f.worst_progress),
                (f.cpu_s, 1),
            ]
        };
        let rows: Vec<_> = runs(outcome, &case.name).iter().map(row).collect();
        if !rows.is_empty() {
            table.rows.push([vec![case.name.clone()], mean_of(&rows)].concat());
        }
    }
    let limited = if spec.cases.iter().any(|c| c.paging) { ", but in cases with paging" } else { "" };
    table.notes = vec![
        format!(
            "The host's size is {} MiB for all guests. This machine has more, so nothing is paged out{limited}: what is beyond is \
             what a host of that size would have to page.",
            spec.host_memory_mib
        ),
        "Progress is operations over those of the run in which nothing is taken back.".into(),
    ];
    table
}

/// The rows of each guest in these cases; figures are means over the runs of a case.
fn each_guest<'a>(
    outcome: &Outcome,
    cases: impl Iterator<Item = &'a CaseSpec>,
    row: impl Fn(&GuestFigures, &Orders) -> Vec<(Option<f64>, usize)>,
) -> Vec<Vec<String>> {
    let mut all = Vec::new();
    for case in cases {
        let runs = runs(outcome, &case.name);
        let figures: Vec<Vec<GuestFigures>> = runs.iter().map(|run| of_guests(outcome, run)).collect();
        for n in 0..figures.first().map_or(0, Vec::len) {
            let of_run = |(run, figures): (&&CaseOutcome, &Vec<_>)| row(&figures[n], &run.guests[n].orders);
            let rows: Vec<_> = runs.iter().zip(&figures).map(of_run).collect();
            all.push([vec![case.name.clone(), figures[0][n].name.clone()], mean_of(&rows)].concat());
        }
    }
    all
}

fn guests(spec: &Spec, outcome: &Outcome) -> ResultTable {
    let mut table = ResultTable::new(
        "Each guest",
        "case|guest|size, mean\nMiB|in host memory,\nmean MiB|most\nMiB|operations|progress,\n%|\
         per operation,\nms|waited,\ns|major\nfaults|refaulted\npages|OOM\nkills",
    );
    table.rows = each_guest(outcome, spec.cases.iter(), |f, _| {
        let mib = |bytes: Option<f64>| (bytes.map(|b| b / MIB), 0);
        let count = |n: u64| (Some(n as f64), 0);
        vec![
            mib(f.mean_size_bytes),
            mib(f.mean_used_bytes),
            mib(f.peak_used_bytes),
            count(f.operations),
            (f.progress.map(|p| 100.0 * p), 1),
            (f.operation_s.map(|s| 1000.0 * s), 2),
            (Some(f.waited_s), 1),
            count(f.major_faults),
            count(f.refaulted_pages),
            count(f.kills),
        ]
    });
    table.notes = vec![
        "Size is what is outside of the balloon. Faults and refaults are those of the guest's own kernel."
            .into(),
    ];
    table
}

fn orders(spec: &Spec, outcome: &Outcome) -> ResultTable {
    let head = "case|guest|steps|held|at the\nleast size|refused|given back\nat once";
    let mut table = ResultTable::new("Orders about sizes", head);
    table.rows = each_guest(outcome, spec.cases.iter().filter(|c| c.orders_sizes()), |_, o| {
        [o.steps, o.held, o.short, o.refused, o.given_back].map(|n| (Some(n as f64), 0)).to_vec()
    });
    table.notes = vec![
        "Orders are those of `bifold reclaim set`: none goes below what the guest uses and a margin, and all is given back at once \
         when the guest may miss it. The next order begins after a pause."
            .into(),
    ];
    table
}

fn paged(spec: &Spec, outcome: &Outcome) -> ResultTable {
    let head = "case|guest|in the host's swap,\nmean MiB|refaulted\npages|waited for the\nhost, s";
    let mut table = ResultTable::new("Paging by the host", head);
    table.rows = each_guest(outcome, spec.cases.iter().filter(|c| c.paging), |f, _| {
        let swapped = f.mean_swapped_bytes.map(|b| b / MIB);
        vec![(swapped, 0), (f.host_refaulted_pages.map(|n| n as f64), 0), (f.host_waited_s, 1)]
    });
    table.notes =
        vec!["Refaults and waits are those of QEMU's process: the guest and its disks' files.".into()];
    table
}

/// The charts of a run: of all cases together, then of each case. Of repeated cases, the first run is drawn.
pub fn charts(spec: &Spec, outcome: &Outcome) -> Vec<Chart> {
    let first: Vec<&CaseOutcome> =
        outcome.cases.iter().filter(|c| c.repetition == 1 && !c.samples.is_empty()).collect();
    let of_cases = |title: &str, unit: &str, value: &dyn Fn(&Sample) -> f64| Chart {
        title: title.into(),
        unit: unit.into(),
        curves: first
            .iter()
            .map(|c| (c.spec.name.clone(), c.samples.iter().map(|s| (s.at_s, value(s))).collect()))
            .collect(),
    };
    let sum = |s: &Sample, of: fn(&super::GuestSample) -> u64| -> f64 {
        s.guests.iter().flatten().map(|g| of(g) as f64).sum()
    };
    let longest = first.iter().map(|c| c.length()).fold(0.0, f64::max);
    let line = |mib: u64| vec![(0.0, mib as f64), (longest, mib as f64)];
    let mut used = of_cases("Guests' memory in the host", "MiB", &|s| s.used() as f64 / MIB);
    used.curves.push(("the host's size".into(), line(spec.host_memory_mib)));
    let mut all = vec![
        used,
        of_cases("Operations of all guests", "thousand since the start", &|s| {
            sum(s, |g| g.load.operations) / 1e3
        }),
        of_cases("Major faults of all guests", "since the start", &|s| sum(s, |g| g.load.major_faults)),
    ];
    for case in &first {
        all.push(of_case(case));
    }
    all.retain(|c| c.curves.iter().any(|(_, points)| points.len() > 1));
    all
}

/// The memory of each guest, and where a policy decides, its size.
fn of_case(case: &CaseOutcome) -> Chart {
    type Value = fn(&super::GuestSample) -> Option<u64>;
    let curve = |n: usize, of: Value| -> Vec<(f64, f64)> {
        let point = |s: &Sample| Some((s.at_s, of(s.guests.get(n)?.as_ref()?)? as f64 / MIB));
        case.samples.iter().filter_map(point).collect()
    };
    let mut curves = Vec::new();
    for (n, guest) in case.guests.iter().enumerate() {
        curves.push((format!("{}, in host memory", guest.name), curve(n, |g| Some(g.used))));
        if case.spec.orders_sizes() {
            curves.push((format!("{}, size", guest.name), curve(n, |g| g.size)));
        }
    }
    Chart { title: format!("{}: each guest", case.spec.name), unit: "MiB".into(), curves }
}
