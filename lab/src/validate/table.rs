// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares predicted and counted exits: a row per program, configuration and reason.

use std::collections::{BTreeMap, BTreeSet};

use bifold_base::markdown::table;

use super::Program;
use crate::compare::{CLOSE, FEW, Tolerance, mean};

/// A program's counts by reason, predicted or counted.
pub type Reasons = BTreeMap<String, f64>;

/// How far a row's prediction is from the count.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Verdict {
    /// Within 5 %, or within 10 counts where there are fewer than 200.
    Close,
    /// Within 25 %.
    Off,
    /// Further away.
    Far,
}

/// Where there are not few.
const OFF: Tolerance = Tolerance { share: 0.25, counts: 0.0, below: FEW };

/// A row of the comparison.
#[derive(Debug, Clone, PartialEq)]
pub struct ExitRow {
    /// Program.
    pub program: String,
    /// Whether the guest's kernel isolates its page tables.
    pub kpti: bool,
    /// Configuration.
    pub config: &'static str,
    /// Reason: the model's counter without `exits_`.
    pub reason: String,
    /// Exits by the model.
    pub predicted: f64,
    /// Exits under KVM, a number per run.
    pub counted: Vec<f64>,
}

impl ExitRow {
    /// Mean of the runs.
    pub fn mean(&self) -> f64 {
        mean(&self.counted)
    }

    /// Smallest and largest count of the runs.
    pub fn spread(&self) -> (f64, f64) {
        let fold = |f: fn(f64, f64) -> f64, start| self.counted.iter().copied().fold(start, f);
        (fold(f64::min, f64::INFINITY), fold(f64::max, 0.0))
    }

    /// How good the prediction is.
    pub fn verdict(&self) -> Verdict {
        let (predicted, counted) = (self.predicted, self.mean());
        match predicted.max(counted) >= FEW && OFF.holds(predicted, counted) {
            _ if CLOSE.holds(predicted, counted) => Verdict::Close,
            true => Verdict::Off,
            false => Verdict::Far,
        }
    }
}

/// Rows for all reasons that either side has.
pub fn rows(
    programs: &[Program],
    kpti: bool,
    config: &'static str,
    predicted: &BTreeMap<u64, Reasons>,
    counted: &[BTreeMap<u64, Reasons>],
) -> Vec<ExitRow> {
    let mut out = Vec::new();
    for p in programs {
        let reasons: BTreeSet<String> = counted
            .iter()
            .chain([predicted])
            .filter_map(|run| run.get(&p.window))
            .flat_map(|w| w.iter().filter(|(_, n)| **n >= 0.5).map(|(r, _)| r.clone()))
            .collect();
        for reason in reasons {
            let of = |run: &BTreeMap<u64, Reasons>| {
                run.get(&p.window).and_then(|w| w.get(&reason)).copied().unwrap_or(0.0)
            };
            let (predicted, counted) = (of(predicted), counted.iter().map(of).collect());
            out.push(ExitRow { program: p.name.clone(), kpti, config, reason, predicted, counted });
        }
    }
    out
}

/// Number of rows with each verdict.
pub fn tally(rows: &[ExitRow]) -> BTreeMap<Verdict, usize> {
    let mut out = BTreeMap::new();
    for r in rows {
        *out.entry(r.verdict()).or_default() += 1;
    }
    out
}

/// The rows as a Markdown table.
pub fn markdown<'a>(rows: impl IntoIterator<Item = &'a ExitRow>) -> String {
    let columns = table::<ExitRow>()
        .left("program", |r| r.program.clone())
        .left("KPTI", |r| if r.kpti { "on" } else { "off" }.into())
        .left("configuration", |r| r.config.into())
        .left("exit reason", |r| r.reason.clone())
        .right("predicted exits", |r| format!("{:.0}", r.predicted))
        .right("counted exits, mean", |r| format!("{:.0}", r.mean()))
        .right("counted exits, range", |r| {
            let (low, high) = r.spread();
            format!("{low:.0}–{high:.0}")
        })
        .right("predicted / counted", |r| match r.mean() {
            mean if mean >= 0.5 => format!("{:.3}", r.predicted / mean),
            _ => "–".into(),
        })
        .left("verdict", |r| match r.verdict() {
            Verdict::Close => String::new(),
            Verdict::Off => "off".into(),
            Verdict::Far => "**far**".into(),
        });
    columns.of(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn row(predicted: f64, counted: &[f64]) -> ExitRow {
        ExitRow {
            program: "p".into(),
            kpti: false,
            config: "shadow-4k",
            reason: "invlpg".into(),
            predicted,
            counted: counted.to_vec(),
        }
    }

    #[test]
    fn few_are_compared_by_count_and_many_by_ratio() {
        assert_eq!(row(110.0, &[100.0]).verdict(), Verdict::Close);
        assert_eq!(row(111.0, &[100.0]).verdict(), Verdict::Far);
        assert_eq!(row(1050.0, &[990.0, 1010.0]).verdict(), Verdict::Close);
        assert_eq!(row(1060.0, &[1000.0]).verdict(), Verdict::Off);
        assert_eq!(row(740.0, &[1000.0]).verdict(), Verdict::Far);
        assert_eq!(row(1000.0, &[0.0]).verdict(), Verdict::Far);
    }

    #[test]
    fn a_reason_that_only_one_side_has_gets_a_row() {
        let programs = [Program { name: "p".into(), window: 3, about: String::new() }];
        let one = |reason: &str| BTreeMap::from([(3, Reasons::from([(String::from(reason), 7.0)]))]);
        let rows = rows(&programs, true, "nested-4k", &one("violation"), &[one("cr4_write")]);
        let got: Vec<_> = rows.iter().map(|r| (r.reason.as_str(), r.predicted, r.counted[0])).collect();
        assert_eq!(got, [("cr4_write", 0.0, 7.0), ("violation", 7.0, 0.0)]);
    }
}
