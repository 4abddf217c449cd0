// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables of several runs, for terminals and for the report: the mean of each figure with its standard
//! deviation, and the interval of the mean predicted time.

use super::{ConfigSpreads, Runs, numbers, table};
use crate::spread::{FEWEST_FOR_OUTLIERS, OUTLIER_RULE};
use crate::text::{TimeUnit, fine_decimals, fixed, grouped};
use crate::text_table::{self, labelled};
use crate::{Comparison, PageTable, Show, Spread, verdict};
use bifold_model::Sample;

/// Columns after the time, by the names of their figures. Only JSON has the overheads at half and double CPI,
/// which are twice and half the overhead.
const COLUMNS: [(&str, &str); 7] = [
    ("overhead_percent", "over-\nhead %"),
    ("walk_percent", "walks\n%"),
    ("vmm_percent", "VMM\n%"),
    ("extra_cycles_per_1000", "extra cycles\n/1000 instr."),
    ("tlb_misses_per_1000", "TLB misses\n/1000 ins."),
    ("refs_per_walk", "refs\n/walk"),
    ("exits_per_1000", "exits\n/1000 ins."),
];

pub(crate) fn render(r: &Runs, show: Show) -> String {
    let Some(first) = r.runs.first() else { return String::new() };
    let label = |(label, text): (&str, String)| labelled(label, &text);
    let about: String = about(r).into_iter().map(label).collect();
    // Without a spread, the table of one run is the table of all runs.
    if r.agree() || r.whole().count() < 2 {
        return first.render_table(show) + &about;
    }
    let mut out = table::head(first);
    out += &about;
    for t in tables(r, show.exits) {
        out += "\n";
        out += &text_table::table(t.head, t.rows);
    }
    out += "\n";
    out += &labelled("result", &verdict(r));
    if show.checks {
        out += &labelled("checks", &checks(r));
        for line in verdict::caveats(first) {
            out += &labelled("note", &line);
        }
    }
    out
}

/// Lines about the runs: their number, their spread and outliers.
fn about(r: &Runs) -> Vec<(&'static str, String)> {
    let n = r.whole().count();
    let mut out = Vec::new();
    if n < r.asked {
        out.push(("RUNS", format!("{n} of {} runs are whole; figures are of the whole runs", r.asked)));
    }
    if r.agree() {
        let hash = &r.runs[0].outcome.input_hash;
        out.push(("runs", format!("{n} runs agree to the bit (input hash {hash}): there is no spread")));
    } else if n > 1 {
        let instructions: Vec<f64> = r.whole().map(instructions).collect();
        let spread = Spread::of(&instructions).expect("there are runs");
        let relative = 100.0 * spread.sd.unwrap_or(0.0) / spread.mean.max(1.0);
        let lines = format!(
            "{n} runs in fresh guests, {} different event streams; {} instructions on average, standard \
             deviation {} ({relative:.3} %); the lines above are of run 1",
            r.streams(),
            grouped(spread.mean.round() as u64),
            grouped(spread.sd.unwrap_or(0.0).round() as u64),
        );
        out.push(("runs", lines));
        out.extend(outlier_lines(r).into_iter().map(|l| ("outlier", l)));
        if n < FEWEST_FOR_OUTLIERS {
            out.push(("note", format!("outliers are named with {FEWEST_FOR_OUTLIERS} runs or more")));
        }
    }
    out.extend(r.ended_differently().map(|text| ("note", text)));
    // The first run's are in its head.
    if r.runs.iter().skip(1).any(|c| c.checks().1 > 0) {
        out.push(("WARNING", format!("self-checks {}", checks(r))));
    }
    out
}

fn instructions(c: &Comparison) -> f64 {
    c.outcome.configs.first().map_or(0.0, |o| o.total.instructions as f64)
}

/// A line per run that stands out, with what is farthest from the others.
fn outlier_lines(r: &Runs) -> Vec<String> {
    let all = r.outliers();
    let mut runs: Vec<usize> = all.iter().map(|o| o.run).collect();
    runs.dedup();
    let unit = unit(&r.rows());
    let line = |run: usize| {
        let of_run: Vec<_> = all.iter().filter(|o| o.run == run).collect();
        let o = of_run[0];
        let value = |v: f64| match &o.config {
            Some(_) => unit.text(v),
            None => grouped(v.round() as u64),
        };
        let what = o.config.as_ref().map_or("instructions".into(), |c| format!("time of {c}"));
        let more = match of_run.len() {
            1 => String::new(),
            n => format!(
                "; {} further figure{} of this run {}",
                n - 1,
                if n == 2 { "" } else { "s" },
                if n == 2 { "stands out" } else { "stand out" }
            ),
        };
        let far = match o.deviations.is_finite() {
            true => format!("{:.1} scaled MADs away", o.deviations),
            false => "where most runs agree to the bit".into(),
        };
        format!("run {run}: {what} {}, median {}, {far}{more}", value(o.value), value(o.median))
    };
    runs.into_iter().map(line).collect()
}

/// The verdict over all runs: the cheapest configuration, and in how many runs it is cheapest.
pub(crate) fn verdict(r: &Runs) -> String {
    let n = r.whole().count();
    if r.agree() || n < 2 {
        return r.runs.first().map_or(String::new(), verdict::verdict);
    }
    let Some((best, wins)) = r.cheapest() else { return verdict::verdict(&r.runs[0]) };
    let rows = r.rows();
    let Some(own) = rows.iter().find(|row| row.config == best) else { return String::new() };
    let (own, unit) = (own.figure("seconds"), unit(&rows));
    let runs = if wins == n { format!("all {n} runs") } else { format!("{wins} of {n} runs") };
    let (mean, half) = (unit.text(own.mean), unit.text(own.ci95.unwrap_or(0.0)));
    format!(
        "Under a hypervisor, {} is fastest in {runs}: {mean} on average (95 % interval ±{half}).",
        best.name()
    )
}

/// The unit of all predicted times.
fn unit(rows: &[ConfigSpreads]) -> TimeUnit {
    TimeUnit::of(rows.iter().map(|row| row.figure("seconds").max))
}

/// The self-checks of all runs in one line.
fn checks(r: &Runs) -> String {
    let failed: Vec<usize> =
        r.runs.iter().enumerate().filter(|(_, c)| c.checks().1 > 0).map(|(i, _)| i + 1).collect();
    let made: u64 = r.runs.iter().map(|c| c.checks().0).sum();
    match failed.first() {
        None => format!("passed in every run, 0 mismatches in {}", grouped(made)),
        Some(i) => format!(
            "FAILED in run{} {}; in run {i}: {}",
            if failed.len() == 1 { "" } else { "s" },
            numbers(&failed),
            verdict::checks_line(&r.runs[i - 1])
        ),
    }
}

/// Tables of the report, with notes below them.
pub(crate) fn page_tables(r: &Runs) -> Vec<PageTable> {
    let mut tables = if r.whole().count() < 2 || r.agree() { Vec::new() } else { tables(r, true) };
    let mut notes: Vec<String> = about(r).into_iter().map(|(_, text)| text).collect();
    match tables.first_mut() {
        Some(first) => {
            notes.push(format!("A run is an outlier if a figure is {OUTLIER_RULE}."));
            notes.push("Every section below this one is of run 1.".into());
            first.notes = notes;
        }
        None => tables.push(PageTable { title: "Runs".into(), notes, ..PageTable::default() }),
    }
    tables
}

fn tables(r: &Runs, with_exits: bool) -> Vec<PageTable> {
    let (rows, n) = (r.rows(), r.whole().count());
    let mut out = vec![means(&rows, n), times(r, &rows)];
    out.extend(exits(&rows).filter(|_| with_exits));
    out
}

/// Each figure's mean, and its standard deviation below it.
fn means(rows: &[ConfigSpreads], n: usize) -> PageTable {
    let mut cells: Vec<Vec<String>> =
        rows.iter().map(|row| vec![format!("{}\n", row.config.name())]).collect();
    let unit = unit(rows);
    for (row, of) in cells.iter_mut().zip(rows) {
        let s = of.figure("seconds");
        row.push(format!("{}\n±{}", unit.number(s.mean), unit.number(s.sd.unwrap_or(0.0))));
    }
    for (name, _) in COLUMNS {
        let places = fine_decimals(rows.iter().map(|row| row.figure(name).max).fold(0.0, f64::max));
        for (row, of) in cells.iter_mut().zip(rows) {
            let s = of.figure(name);
            row.push(format!("{}\n±{}", fixed(s.mean, places), fixed(s.sd.unwrap_or(0.0), places)));
        }
    }
    let time = format!("time\n{}", unit.name);
    let head = ["mean\n± SD", &time].into_iter().chain(COLUMNS.map(|(_, head)| head));
    PageTable {
        title: format!("Mean and standard deviation of {n} runs"),
        head: head.map(String::from).collect(),
        rows: cells,
        notes: Vec::new(),
    }
}

/// Mean, interval and range of the predicted time.
fn times(r: &Runs, rows: &[ConfigSpreads]) -> PageTable {
    let (outliers, unit) = (r.outliers(), unit(rows));
    let row = |row: &ConfigSpreads| {
        let (s, name) = (row.figure("seconds"), row.config.name());
        // Three digits of the spread, so that a small spread differs from none.
        let sd = s.sd.unwrap_or(0.0) * unit.per_second;
        let digits = if sd > 0.0 { (2.0 - sd.log10().floor()).clamp(2.0, 6.0) as usize } else { 2 };
        let half = s.ci95.unwrap_or(0.0);
        let text = |seconds: f64| fixed(seconds * unit.per_second, digits);
        let far: Vec<usize> =
            outliers.iter().filter(|o| o.config.as_ref() == Some(&name)).map(|o| o.run).collect();
        let interval = format!("{} .. {}", text(s.mean - half), text(s.mean + half));
        let far = if far.is_empty() { "-".into() } else { numbers(&far) };
        vec![name, text(s.mean), interval, fixed(sd, digits), text(s.median), text(s.min), text(s.max), far]
    };
    let of = |head: &str| format!("{head}\n{}", unit.name);
    let interval = format!("95 % interval\nof the mean, {}", unit.name);
    let head = [
        "predicted time of\nconfiguration".into(),
        of("mean"),
        interval,
        of("SD"),
        of("median"),
        of("min"),
        of("max"),
    ];
    PageTable {
        title: "Predicted time over the runs".into(),
        head: head.into_iter().chain(["outlier\nruns".into()]).collect(),
        rows: rows.iter().map(row).collect(),
        notes: Vec::new(),
    }
}

/// Mean number of exits by reason; none where there are no exits.
fn exits(rows: &[ConfigSpreads]) -> Option<PageTable> {
    let reasons =
        Sample::COUNTERS.iter().enumerate().filter_map(|(i, c)| Some((i, c.name.strip_prefix("exits_")?)));
    let count = |v: f64| grouped(v.round() as u64);
    let cell = |s: &Spread| match s.sd {
        _ if s.mean == 0.0 => "-".into(),
        Some(sd) if sd > 0.0 => format!("{}\n±{}", count(s.mean), count(sd)),
        _ => count(s.mean),
    };
    let cells: Vec<Vec<String>> = reasons
        .filter(|(i, _)| rows.iter().any(|row| row.counters[*i].max > 0.0))
        .map(|(i, name)| {
            let counts = rows.iter().map(|row| cell(&row.counters[i]));
            [name.replace('_', " ")].into_iter().chain(counts).collect()
        })
        .collect();
    let head =
        ["exits, mean count\n± SD".to_string()].into_iter().chain(rows.iter().map(|r| r.config.name()));
    (!cells.is_empty()).then(|| PageTable {
        title: "Exits by reason, mean and standard deviation".into(),
        head: head.collect(),
        rows: cells,
        notes: Vec::new(),
    })
}
