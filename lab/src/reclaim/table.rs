// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares predicted and counted refaults and exits: a row per program, size and configuration.

use bifold_base::markdown::table;

use super::count::Run;
use super::drive::Results;
use super::predict::Predicted;
use super::{LIMIT, exit_reasons};
use crate::compare::{CLOSE, Tolerance, mean};
use crate::validate::Program;

/// Refaults may be fewer than the fewest possible by this share: the guest under KVM is not the captured one
/// to the last reference.
const SLACK: f64 = 0.02;
/// LRU's prediction is near within this.
const NEAR: Tolerance = Tolerance { share: 0.25, counts: 200.0, below: f64::INFINITY };

/// A row of the comparison.
#[derive(Debug, Clone)]
pub struct RefaultRow {
    /// Program.
    pub program: String,
    /// What the host holds of the guest at most, in MiB.
    pub mib: u64,
    /// Configuration.
    pub config: &'static str,
    /// The prediction.
    pub predicted: Predicted,
    /// Refaults under KVM, a number per run.
    pub refaults: Vec<f64>,
    /// Exits under KVM that bring pages back, a number per run.
    pub exits: Vec<f64>,
}

impl RefaultRow {
    /// Mean of the runs.
    pub fn refaults(&self) -> f64 {
        mean(&self.refaults)
    }

    /// Mean of the runs.
    pub fn exits(&self) -> f64 {
        mean(&self.exits)
    }

    fn paged(&self) -> super::predict::Paged {
        self.predicted.configs.get(self.config).cloned().unwrap_or_default()
    }

    /// Refaults by the model's host.
    pub fn model_refaults(&self) -> f64 {
        self.paged().refaults as f64
    }

    /// Exits by the model's host.
    pub fn model_exits(&self) -> f64 {
        self.paged().exits as f64
    }

    /// Exits by the model for as many refaults as were counted: those of a host with room for all, and for
    /// each refault what it costs the model's host.
    pub fn expected_exits(&self) -> f64 {
        let paged = self.paged();
        let without = paged.exits_without as f64;
        let each =
            if paged.refaults == 0 { 1.0 } else { (paged.exits as f64 - without) / paged.refaults as f64 };
        without + each * self.refaults()
    }

    /// No fewer refaults than are possible?
    pub fn possible(&self) -> bool {
        self.refaults() >= (1.0 - SLACK) * self.predicted.fewest as f64
    }

    /// Is this number of refaults near the count?
    fn near(&self, refaults: f64) -> bool {
        NEAR.holds(refaults, self.refaults())
    }

    /// Is LRU's prediction near the count?
    pub fn near_lru(&self) -> bool {
        self.near(self.predicted.lru as f64)
    }

    /// Why the row is outside of criteria, as far as the figures say.
    pub fn causes(&self) -> Vec<&'static str> {
        let mut causes = Vec::new();
        if !self.possible() {
            causes.push("fewer refaults than are possible: not explained");
        }
        if !self.near_lru() && self.near(self.model_refaults()) {
            causes.push(
                "LRU has the order of all uses, a host sees accessed bits: the model's host, which has no more than these, is near",
            );
        } else if !self.near_lru() {
            causes.push("LRU: not explained; the model's host is not near either");
        }
        if !self.exits_close() && self.exits() > self.expected_exits() {
            causes.push("more exits: probably pages that were unmapped and came back before they left memory, which is not counted");
        } else if !self.exits_close() {
            causes.push("fewer exits: not explained");
        }
        causes
    }

    /// Are exits as expected of as many refaults?
    pub fn exits_close(&self) -> bool {
        CLOSE.holds(self.expected_exits(), self.exits())
    }
}

/// Rows of all programs but that in which the limit begins.
pub fn rows(programs: &[Program], runs: &[Run], results: &Results) -> Vec<RefaultRow> {
    let mut out: Vec<RefaultRow> = Vec::new();
    for run in runs.iter().filter(|run| run.number == 0) {
        let same = runs.iter().filter(|r| r.config == run.config && r.mib == run.mib);
        let counted: Vec<_> = same.filter_map(|r| results.counted.get(&r.name())).collect();
        for p in programs.iter().filter(|p| p.name != LIMIT) {
            let predicted = results.predicted.get(&run.mib).and_then(|of| of.get(&p.window));
            let windows: Vec<_> = counted.iter().filter_map(|c| c.windows.get(&p.window)).collect();
            out.push(RefaultRow {
                program: p.name.clone(),
                mib: run.mib,
                config: run.config,
                predicted: predicted.cloned().unwrap_or_default(),
                refaults: windows.iter().map(|w| w.pages_read as f64).collect(),
                exits: windows
                    .iter()
                    .map(|w| {
                        let of = |reason: &&str| w.exits.get(*reason).copied().unwrap_or(0);
                        exit_reasons(run.config).iter().map(of).sum::<u64>() as f64
                    })
                    .collect(),
            });
        }
    }
    out.sort_by(|a, b| (a.config, &a.program, a.mib).cmp(&(b.config, &b.program, b.mib)));
    out
}

/// How many rows meet each criterion.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Tally {
    /// All rows.
    pub rows: usize,
    /// Not below the fewest refaults.
    pub possible: usize,
    /// LRU's prediction is near.
    pub near_lru: usize,
    /// Exits are close.
    pub exits_close: usize,
}

impl Tally {
    /// Of these rows.
    pub fn of(rows: &[RefaultRow]) -> Tally {
        let count = |f: fn(&RefaultRow) -> bool| rows.iter().filter(|r| f(r)).count();
        Tally {
            rows: rows.len(),
            possible: count(RefaultRow::possible),
            near_lru: count(RefaultRow::near_lru),
            exits_close: count(RefaultRow::exits_close),
        }
    }

    /// Are all criteria met? LRU's in three rows of four.
    pub fn good(&self) -> bool {
        self.possible == self.rows && 4 * self.near_lru >= 3 * self.rows && self.exits_close == self.rows
    }
}

/// The rows as a Markdown table.
pub fn markdown<'a>(rows: impl IntoIterator<Item = &'a RefaultRow>) -> String {
    let columns = table::<RefaultRow>()
        .left("program", |r| r.program.clone())
        .right("used, MiB", |r| format!("{:.1}", r.predicted.frames as f64 / 256.0))
        .right("limit, MiB", |r| r.mib.to_string())
        .right("refaults, counted", |r| format!("{:.0}", r.refaults()))
        .right("fewest", |r| r.predicted.fewest.to_string())
        .right("LRU", |r| r.predicted.lru.to_string())
        .right("model's host", |r| format!("{:.0}", r.model_refaults()))
        .right("exits, counted", |r| format!("{:.0}", r.exits()))
        .right("for the counted refaults", |r| format!("{:.0}", r.expected_exits()))
        .right("model's host", |r| format!("{:.0}", r.model_exits()))
        .left("outside", |r| {
            let all =
                [(r.possible(), "**below the fewest**"), (r.near_lru(), "LRU"), (r.exits_close(), "exits")];
            let outside = all.into_iter().filter_map(|(met, name)| (!met).then_some(name));
            outside.collect::<Vec<_>>().join(", ")
        });
    columns.of(rows)
}

#[cfg(test)]
mod tests {
    use super::super::predict::Paged;
    use super::*;

    fn row(refaults: f64, exits: f64) -> RefaultRow {
        let paged = Paged { refaults: 2000, exits: 2600, exits_without: 100 };
        RefaultRow {
            program: "p".into(),
            mib: 20,
            config: "nested-4k",
            predicted: Predicted {
                frames: 10_000,
                lru: 2000,
                fewest: 1000,
                configs: [("nested-4k".to_owned(), paged)].into(),
            },
            refaults: vec![refaults],
            exits: vec![exits],
        }
    }

    #[test]
    fn refaults_are_compared_with_bounds_and_exits_with_what_a_refault_costs() {
        let met = |r: RefaultRow| (r.possible(), r.near_lru(), r.exits_close());
        // 1.25 exits for each refault, and 100 besides.
        assert_eq!(row(1700.0, 0.0).expected_exits(), 2225.0);
        assert_eq!(met(row(1700.0, 2225.0)), (true, true, true));
        assert_eq!(met(row(980.0, 1325.0)), (true, false, true));
        assert_eq!(met(row(970.0, 1500.0)), (false, false, false));
        assert_eq!(met(row(2700.0, 3400.0)), (true, false, true));
        assert!(row(1700.0, 2225.0).causes().is_empty());
        assert_eq!(row(970.0, 1500.0).causes().len(), 3);
    }

    #[test]
    fn all_criteria_have_to_be_met_and_lrus_by_three_of_four() {
        let (near, off) = (row(1700.0, 2225.0), row(2700.0, 3475.0));
        let of =
            |rows: &[&RefaultRow]| Tally::of(&rows.iter().map(|r| (*r).clone()).collect::<Vec<_>>()).good();
        assert!(of(&[&near, &near, &near, &off]));
        assert!(!of(&[&near, &near, &off]));
        assert!(!of(&[&near, &near, &near, &row(1700.0, 2900.0)]));
        assert!(!of(&[&near, &near, &near, &row(900.0, 1225.0)]));
    }
}
