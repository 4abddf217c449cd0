// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares predicted and counted exits: a row per program, configuration and reason.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write;

use super::Program;

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

/// Below this count, the difference decides and not the ratio.
const FEW: f64 = 200.0;
const COUNTS: f64 = 10.0;
const CLOSE: f64 = 0.05;
const OFF: f64 = 0.25;

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
        self.counted.iter().sum::<f64>() / self.counted.len().max(1) as f64
    }

    /// Smallest and largest count of the runs.
    pub fn spread(&self) -> (f64, f64) {
        let fold = |f: fn(f64, f64) -> f64, start| self.counted.iter().copied().fold(start, f);
        (fold(f64::min, f64::INFINITY), fold(f64::max, 0.0))
    }

    /// How good the prediction is.
    pub fn verdict(&self) -> Verdict {
        let (mean, apart) = (self.mean(), (self.predicted - self.mean()).abs());
        if mean.max(self.predicted) < FEW {
            return if apart <= COUNTS { Verdict::Close } else { Verdict::Far };
        }
        match apart / mean.max(1.0) {
            r if r <= CLOSE => Verdict::Close,
            r if r <= OFF => Verdict::Off,
            _ => Verdict::Far,
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
    let mut out = String::from(
        "| program | KPTI | configuration | exit reason | predicted exits | counted exits, mean \
         | counted exits, range | predicted / counted | verdict |\n\
         |---|---|---|---|--:|--:|--:|--:|---|\n",
    );
    for r in rows {
        let ((low, high), mean) = (r.spread(), r.mean());
        let ratio = if mean >= 0.5 { format!("{:.3}", r.predicted / mean) } else { "–".into() };
        let mark = match r.verdict() {
            Verdict::Close => "",
            Verdict::Off => "off",
            Verdict::Far => "**far**",
        };
        let _ = writeln!(
            out,
            "| {} | {} | {} | {} | {:.0} | {mean:.0} | {low:.0}–{high:.0} | {ratio} | {mark} |",
            r.program,
            if r.kpti { "on" } else { "off" },
            r.config,
            r.reason,
            r.predicted,
        );
    }
    out
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
