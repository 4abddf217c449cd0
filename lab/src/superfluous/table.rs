// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares predicted and counted swap operations: a row per guest and kind.

use bifold_base::markdown::table;
use bifold_model::Swaps;

use super::events::Counted;
use crate::compare::Tolerance;

/// Superfluous operations are close within this.
const CLOSE: Tolerance = Tolerance { share: 0.15, counts: 10.0, below: f64::INFINITY };

const SILENT: &str = "silent writes";
/// A kind of operations: its name, its number, and whether it is superfluous.
type Kind = (&'static str, fn(&Swaps) -> u64, bool);
const KINDS: [Kind; 6] = [
    ("writes", |s| s.writes, false),
    (SILENT, |s| s.silent_writes, true),
    ("reads", |s| s.reads, false),
    ("stale reads", |s| s.stale_reads, true),
    ("false reads", |s| s.false_reads, true),
    ("double paging", |s| s.double_paged, true),
];

/// A row of the comparison.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct OperationRow {
    /// Program.
    pub program: String,
    /// The kind of operations.
    pub kind: &'static str,
    /// Only superfluous operations are judged.
    pub superfluous: bool,
    /// By the model.
    pub predicted: u64,
    /// By trace events.
    pub counted: u64,
}

impl OperationRow {
    /// Is the prediction near the count?
    pub fn close(&self) -> bool {
        CLOSE.holds(self.predicted as f64, self.counted as f64)
    }
}

/// The rows of a guest. Silent writes are those of a guest that says which frames have its file.
pub fn rows(program: &str, predicted: &Swaps, counted: &Counted) -> Vec<OperationRow> {
    let row = |(kind, of, superfluous): Kind| OperationRow {
        program: program.to_owned(),
        kind,
        superfluous,
        predicted: of(predicted),
        counted: of(&counted.swaps),
    };
    let known = |kind: &Kind| kind.0 != SILENT || counted.knows_file;
    KINDS.into_iter().filter(known).map(row).collect()
}

/// The rows of superfluous operations, and how many of them are close.
pub fn tally(rows: &[OperationRow]) -> (usize, usize) {
    let judged = || rows.iter().filter(|r| r.superfluous);
    (judged().count(), judged().filter(|r| r.close()).count())
}

/// The rows as a Markdown table.
pub fn markdown(rows: &[OperationRow]) -> String {
    let columns = table::<OperationRow>()
        .left("program", |r| r.program.clone())
        .left("pages of 4 KB", |r| r.kind.into())
        .right("counted", |r| r.counted.to_string())
        .right("model", |r| r.predicted.to_string())
        .right("apart", |r| match r.counted {
            0 => "-".into(),
            n => format!("{:+.1} %", 100.0 * (r.predicted as f64 - n as f64) / n as f64),
        })
        .left("", |r| match (r.superfluous, r.close()) {
            (false, _) => String::new(),
            (true, true) => "close".into(),
            (true, false) => "**off**".into(),
        });
    columns.of(rows)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rows_are_close_within_a_share_or_a_few_counts_and_totals_are_not_judged() {
        let predicted = Swaps {
            writes: 1,
            silent_writes: 10,
            reads: 2,
            stale_reads: 850,
            false_reads: 849,
            double_paged: 0,
        };
        let counted = Swaps {
            writes: 9000,
            silent_writes: 0,
            reads: 9000,
            stale_reads: 1000,
            false_reads: 1000,
            double_paged: 11,
        };
        let counted = Counted { swaps: counted, others: 0, knows_file: true };
        let rows = super::rows("p", &predicted, &counted);
        let close: Vec<_> = rows.iter().filter(|r| r.superfluous).map(OperationRow::close).collect();
        assert_eq!(close, [true, true, false, false]);
        assert_eq!(tally(&rows), (4, 2));
        let unknown = super::rows("p", &predicted, &Counted { knows_file: false, ..counted });
        assert_eq!((unknown.len(), tally(&unknown)), (5, (3, 1)));
        assert!(markdown(&rows).contains("| p | false reads | 1000 | 849 | -15.1 % | **off** |"));
    }
}
