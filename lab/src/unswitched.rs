// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares two KVMs by the paging exits of the same guest: the kernel's own, and ours without a switch. A VM
//! that is not switched must behave as before.

use std::collections::{BTreeMap, BTreeSet};
use std::sync::Mutex;

use anyhow::{Result, anyhow};

use crate::exits::Window;
use crate::lab::Lab;
use crate::validate::Workload;
use crate::validate::count::{Run, count};

/// Exits of a program in a configuration, by reason.
type Cell = (&'static str, u64, String);

/// A run: whether it was under our KVM, its configuration, and its windows.
type Counted = (bool, &'static str, BTreeMap<u64, Window>);

/// Exit counts of one reason.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ReasonCounts {
    /// Configuration, such as `nested-4k`.
    pub config: &'static str,
    /// Name of the program.
    pub program: String,
    /// Exit reason and, for faults, error code.
    pub reason: String,
    /// Counts of the unmodified runs.
    pub unmodified: Vec<u64>,
    /// Counts of our runs.
    pub ours: Vec<u64>,
}

impl ReasonCounts {
    /// Whether our counts are in the range of the unmodified runs.
    pub fn within(&self) -> bool {
        let (least, most) = spread(&self.unmodified);
        self.ours.iter().all(|n| (least..=most).contains(n))
    }
}

/// Run time of programs under our KVM divided by their run time under the unmodified KVM. The laboratory's
/// time counts the instructions of guest and hypervisor.
#[derive(Debug, Clone, PartialEq)]
pub struct Times {
    /// Configuration.
    pub config: &'static str,
    /// Geometric mean over the programs; each program's time is the mean of its runs.
    pub mean: f64,
    /// The program with the largest ratio, and the ratio.
    pub worst: (String, f64),
}

/// The comparison of all runs.
#[derive(Debug, Clone, PartialEq)]
pub struct Compared {
    /// Counts by configuration, program and reason.
    pub rows: Vec<ReasonCounts>,
    /// Times by configuration.
    pub times: Vec<Times>,
}

/// Compares runs with the range of all unmodified runs but one, for each choice of the run left out. Returns
/// how many counts of a run of ours and of the run left out are outside the range, as means over all choices.
/// If runs differ only by chance, both means are equal on average.
pub fn left_out(rows: &[ReasonCounts]) -> Option<(f64, f64)> {
    let n = rows.first()?.unmodified.len();
    if n < 2 {
        return None;
    }
    let (mut ours, mut theirs) = (0.0, 0.0);
    for row in rows {
        for out in 0..n {
            let others: Vec<u64> =
                row.unmodified.iter().enumerate().filter(|(i, _)| *i != out).map(|(_, v)| *v).collect();
            let (least, most) = spread(&others);
            let outside = |v: &u64| !(least..=most).contains(v);
            ours += row.ours.iter().filter(|v| outside(v)).count() as f64 / row.ours.len().max(1) as f64;
            theirs += f64::from(u8::from(outside(&row.unmodified[out])));
        }
    }
    Some((ours / n as f64, theirs / n as f64))
}

/// Whether an exit exists only because of the emulator: in nested mode, the laboratory makes reads of CR3
/// exit under our KVM, but not under the unmodified one (`kvm_module.rs`).
fn emulators(config: &str, reason: &str) -> bool {
    config.starts_with("nested") && reason == "cr3_read"
}

/// Smallest and largest value.
pub fn spread(values: &[u64]) -> (u64, u64) {
    (values.iter().copied().min().unwrap_or(0), values.iter().copied().max().unwrap_or(0))
}

/// Joins the runs' counts. A run without exits of a reason counts 0.
fn rows(workload: &Workload, runs: &[Counted]) -> Vec<ReasonCounts> {
    let mut cells: BTreeSet<Cell> = BTreeSet::new();
    for (_, config, windows) in runs {
        for (number, window) in windows {
            let named = window.exits.keys().filter(|r| !emulators(config, r));
            cells.extend(named.map(|r| (*config, *number, r.clone())));
        }
    }
    let name = |window: u64| workload.programs.iter().find(|p| p.window == window).map(|p| p.name.clone());
    let values = |ours: bool, (config, window, reason): &Cell| -> Vec<u64> {
        let mine = runs.iter().filter(|(o, c, _)| *o == ours && c == config);
        mine.map(|(_, _, w)| w.get(window).and_then(|w| w.exits.get(reason)).copied().unwrap_or(0)).collect()
    };
    cells
        .iter()
        .filter_map(|cell| {
            Some(ReasonCounts {
                config: cell.0,
                program: name(cell.1)?,
                reason: cell.2.clone(),
                unmodified: values(false, cell),
                ours: values(true, cell),
            })
        })
        .collect()
}

/// Run times by configuration, if both KVMs were run. Nested paging is left out, because most of the
/// difference there is exits that only the emulator needs (see [`emulators`]; they include reads of CR2 at
/// every fault of the guest).
fn times(workload: &Workload, runs: &[Counted]) -> Vec<Times> {
    let configs: BTreeSet<&'static str> =
        runs.iter().map(|r| r.1).filter(|config| config.starts_with("shadow")).collect();
    let of = |config| {
        let mean = |ours: bool, window: u64| {
            let mine = runs.iter().filter(|r| r.0 == ours && r.1 == config);
            let all: Vec<f64> = mine.filter_map(|r| Some(r.2.get(&window)?.nanoseconds as f64)).collect();
            (!all.is_empty()).then(|| all.iter().sum::<f64>() / all.len() as f64)
        };
        let ratios: Vec<(String, f64)> = workload
            .programs
            .iter()
            .filter_map(|p| Some((p.name.clone(), mean(true, p.window)? / mean(false, p.window)?)))
            .filter(|(_, ratio)| ratio.is_finite() && *ratio > 0.0)
            .collect();
        let worst = ratios.iter().max_by(|a, b| a.1.total_cmp(&b.1))?.clone();
        let mean = (ratios.iter().map(|r| r.1.ln()).sum::<f64>() / ratios.len() as f64).exp();
        Some(Times { config, mean, worst })
    };
    configs.into_iter().filter_map(of).collect()
}

/// Counts exits in `unmodified` and `ours` runs for each configuration of [`CONFIGS`].
///
/// [`CONFIGS`]: crate::validate::CONFIGS
pub fn compare(
    unmodified: (&Lab, u64),
    ours: (&Lab, u64),
    (workload, configs): (&Workload, &[&'static str]),
    at_a_time: usize,
    say: &(dyn Fn(&str) + Sync),
) -> Result<Compared> {
    let mut queue = Vec::new();
    for config in configs.iter().copied() {
        queue.extend((1..=ours.1).map(|n| (true, config, n)));
        queue.extend((1..=unmodified.1).map(|n| (false, config, n)));
    }
    let (queue, done) = (Mutex::new(queue), Mutex::new(Vec::new()));
    let work = || -> Result<()> {
        while let Some((mine, config, number)) = queue.lock().map(|mut q| q.pop()).unwrap_or_default() {
            let (lab, whose) = if mine { (ours.0, "ours") } else { (unmodified.0, "unmodified") };
            say(&format!("{config}, {whose}, run {number}"));
            let windows = count(lab, workload, Run { config, kpti: false, number }, false)?;
            done.lock().map_err(|_| anyhow!("a worker died"))?.push((mine, config, windows));
        }
        Ok(())
    };
    std::thread::scope(|s| {
        let workers: Vec<_> = (0..at_a_time.max(1)).map(|_| s.spawn(work)).collect();
        workers.into_iter().try_for_each(|w| w.join().map_err(|_| anyhow!("a worker died"))?)
    })?;
    let done = done.into_inner().map_err(|_| anyhow!("a worker died"))?;
    Ok(Compared { rows: rows(workload, &done), times: times(workload, &done) })
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_count_outside_the_spread_is_seen_and_a_missing_one_is_zero() {
        let workload = Workload::new(&["empty".into()], 256, 1).unwrap();
        let window = workload.programs[0].window;
        let run = |ours, nanoseconds, reasons: &[(&str, u64)]| {
            let exits = reasons.iter().map(|(r, n)| (r.to_string(), *n)).collect();
            let counted = Window { exits, nanoseconds, ..Window::default() };
            (ours, "nested-4k", BTreeMap::from([(window, counted)]))
        };
        let runs = [
            run(false, 90, &[("npf", 5)]),
            run(false, 110, &[("npf", 7)]),
            run(true, 102, &[("npf", 6), ("invlpg", 1), ("cr3_read", 9)]),
        ];
        assert_eq!(times(&workload, &runs), [], "not in nested paging");
        let shadow = runs.clone().map(|(ours, _, windows)| (ours, "shadow-4k", windows));
        let times = &times(&workload, &shadow)[0];
        assert_eq!((times.config, times.worst.0.as_str()), ("shadow-4k", "empty"));
        assert!((times.mean - 1.02).abs() < 1e-9 && (times.worst.1 - 1.02).abs() < 1e-9);
        let found = rows(&workload, &runs);
        let seen: Vec<(&str, bool)> = found.iter().map(|r| (r.reason.as_str(), r.within())).collect();
        assert_eq!(seen, [("invlpg", false), ("npf", true)]);
    }

    #[test]
    fn the_run_left_out_is_the_measure_of_chance() {
        let row = |unmodified: &[u64], ours| ReasonCounts {
            config: "nested-4k",
            program: "empty".into(),
            reason: "npf".into(),
            unmodified: unmodified.to_vec(),
            ours: vec![ours],
        };
        // Of 1, 2, 3 both ends are outside when left out; 3 is, of ours, when the other 3 is.
        assert_eq!(left_out(&[row(&[1, 2, 3], 3)]), Some((1.0 / 3.0, 2.0 / 3.0)));
        assert_eq!(left_out(&[row(&[4, 4, 4], 4), row(&[4, 4, 4], 5)]), Some((1.0, 0.0)));
        assert_eq!(left_out(&[row(&[4], 4)]), None);
    }
}
