// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of a check, for a terminal, as JSON and as Markdown. With several runs, a pass has one row
//! with the lowest and the highest value of all runs.

mod json;

pub use json::schema;

use bifold_report::{grouped, text_table, text_table_with_keys};
use bifold_trial::ksm_check::KsmPass;
use bifold_trial::output::ResultTable;
use std::time::Duration;

/// The results of a check.
pub struct Checked {
    /// The command line.
    pub command: String,
    /// The release of this machine's kernel.
    pub kernel: String,
    /// Number of pages that the check made; none with `--processes`.
    pub pages: Option<u32>,
    /// Largest difference of a prediction that passes.
    pub tolerance: f64,
    /// Why the check ended early; none if it is complete.
    pub partial: Option<String>,
    /// The runs, in order.
    pub runs: Vec<Run>,
}

/// One run.
pub struct Run {
    /// One row per pass.
    pub rows: Vec<KsmPass>,
    /// Duration of the run.
    pub took: Duration,
}

impl Run {
    /// Number of passes whose difference satisfies `so`.
    fn with(&self, so: impl Fn(f64) -> bool) -> usize {
        self.rows.iter().filter(|r| so(r.difference())).count()
    }
}

/// The lowest and the highest value, as text.
fn range<T: PartialOrd + Copy>(values: impl Iterator<Item = T>, words: impl Fn(T) -> String) -> String {
    let (mut least, mut most) = (None, None);
    for v in values {
        least = least.filter(|l| *l <= v).or(Some(v));
        most = most.filter(|m| *m >= v).or(Some(v));
    }
    match least.zip(most) {
        None => "-".into(),
        Some((l, m)) if l == m => words(l),
        Some((l, m)) => format!("{}-{}", words(l), words(m)),
    }
}

fn percent(ratio: f64) -> String {
    format!("{:.2}", ratio * 100.0)
}

impl Checked {
    /// Number of passes whose difference is above the tolerance.
    pub fn off(&self) -> usize {
        self.runs.iter().map(|r| r.with(|d| d > self.tolerance)).sum()
    }

    /// The verdict, in one line.
    pub fn verdict(&self) -> String {
        let rows = || self.runs.iter().flat_map(|r| &r.rows);
        let all = rows().count();
        let off = format!("{} of {all} passes are off by more than {} %", self.off(), self.tolerance * 100.0);
        match rows().filter(|r| r.disturbed).count() {
            0 => off,
            n => format!(
                "{off}; during {n} of the passes, other mergeable memory came, went or was split, or the kernel \
                 made pages huge"
            ),
        }
    }

    /// A sentence on ksmd's CPU time as a ratio of the prediction; none if it is unknown.
    fn cpu_beside_prediction(&self) -> Option<String> {
        let part = |r: &KsmPass| {
            let predicted = r.predicted_cpu.as_secs_f64();
            (predicted > 0.0).then_some(r.counted_cpu?.as_secs_f64() / predicted)
        };
        let mut parts: Vec<f64> = self.runs.iter().flat_map(|r| &r.rows).filter_map(part).collect();
        parts.sort_by(f64::total_cmp);
        let (least, most) = (parts.first()?, parts.last()?);
        let middle = parts[(parts.len() - 1) / 2];
        Some(format!(
            "ksmd's CPU time is between {least:.2} and {most:.2} times the predicted, half of the passes at or \
             below {middle:.2}."
        ))
    }

    /// Tables for a terminal.
    pub fn text(&self) -> String {
        let mut out = String::new();
        if self.runs.len() > 1 {
            let runs = self.table_of_runs();
            out += &(text_table(runs.head, runs.rows) + "\n");
        }
        // A table for each set of settings: their names would take a third of each line.
        let passes = self.table_of_passes();
        let without = |cells: &[String]| [&cells[..1], &cells[2..]].concat();
        for (n, rows) in passes.rows.chunk_by(|a, b| a[1] == b[1]).enumerate() {
            let between = if n == 0 { "" } else { "\n" };
            out += &format!("{between}settings: {}\n\n", rows[0][1]);
            let cells = rows.iter().map(|r| without(r)).collect();
            out += &text_table_with_keys(2, without(&passes.head), cells);
        }
        out
    }

    fn table_of_runs(&self) -> ResultTable {
        let tolerance = self.tolerance * 100.0;
        let rows = self.runs.iter().enumerate().map(|(n, run)| {
            vec![
                (n + 1).to_string(),
                run.rows.len().to_string(),
                run.with(|d| d == 0.0).to_string(),
                run.with(|d| d > 0.0 && d <= self.tolerance).to_string(),
                run.with(|d| d > self.tolerance).to_string(),
                percent(run.rows.iter().map(KsmPass::difference).fold(0.0, f64::max)),
                range(run.rows.iter().map(KsmPass::others), grouped),
                run.rows
                    .iter()
                    .filter(|r| r.pass == 1)
                    .map(|r| u64::from(r.tries - 1))
                    .sum::<u64>()
                    .to_string(),
                format!("{:.1}", run.took.as_secs_f64()),
            ]
        });
        let head = [
            "\nrun".into(),
            "\npasses".into(),
            "\nexact".into(),
            format!("off by\nup to {tolerance} %"),
            "off by\nmore".into(),
            "worst\n%".into(),
            "others'\nmerged pages".into(),
            "contents\nrepeated".into(),
            "time\ns".into(),
        ];
        ResultTable { title: "Runs".into(), head: head.into(), rows: rows.collect(), notes: Vec::new() }
    }

    fn table_of_passes(&self) -> ResultTable {
        let head = [
            "\ncontent",
            "\nsettings",
            "\npass",
            "pages_shared\npredicted",
            "\ncounted",
            "pages_sharing\npredicted",
            "\ncounted",
            "zero pages\npredicted",
            "\ncounted",
            "off by\n%",
            "ksmd ms\npredicted",
            "\ntaken",
            "\n",
        ];
        let ms = |d: Duration| format!("{:.1}", d.as_secs_f64() * 1e3);
        let longest = self.runs.iter().map(|r| r.rows.len()).max().unwrap_or(0);
        let rows = (0..longest).map(|n| {
            // All runs go through the same passes in the same order; the last may have ended before.
            let of_runs: Vec<&KsmPass> = self.runs.iter().filter_map(|r| r.rows.get(n)).collect();
            let (first, rows) = (of_runs[0], || of_runs.iter());
            let mut cells = vec![first.content.clone(), first.case.clone(), first.pass.to_string()];
            for figure in 0..first.figures().len() {
                cells.push(range(rows().map(|r| r.figures()[figure].1), grouped));
                cells.push(range(rows().map(|r| r.figures()[figure].2), grouped));
            }
            cells.push(range(rows().map(|r| r.difference()), percent));
            cells.push(range(rows().map(|r| r.predicted_cpu), ms));
            cells.push(range(rows().filter_map(|r| r.counted_cpu), ms));
            let said = |word: &str, n| match n {
                0 => None,
                _ if of_runs.len() == 1 => Some(word.to_string()),
                n => Some(format!("{word} in {n}")),
            };
            let off = said("OFF", rows().filter(|r| r.difference() > self.tolerance).count());
            let disturbed = said("disturbed", rows().filter(|r| r.disturbed).count());
            cells.push(off.into_iter().chain(disturbed).collect::<Vec<_>>().join(", "));
            cells
        });
        ResultTable {
            title: "Passes".into(),
            head: head.map(String::from).into(),
            rows: rows.collect(),
            notes: vec![],
        }
    }

    /// As a document.
    pub fn markdown(&self) -> String {
        let mut out = format!("# KSM: the model beside Linux {}\n\n", self.kernel);
        let seconds: f64 = self.runs.iter().map(|r| r.took.as_secs_f64()).sum();
        out += &format!("Written by `{}` in {seconds:.0} seconds", self.command);
        out += &match self.pages {
            Some(pages) => format!(", on {} pages of 4 KB of each content.\n", grouped(pages.into())),
            None => ", on the mergeable memory of processes.\n".into(),
        };
        if let Some(why) = &self.partial {
            out += &format!("\n**Partial: {why}.**\n");
        }
        out += &format!("\n**{}.** ", self.verdict());
        out += "What the columns mean, and how it is done: `docs/guide/share.md`.";
        if self.runs.len() > 1 {
            out += " With several runs, minimum and maximum are given.";
        }
        if let Some(cpu) = self.cpu_beside_prediction() {
            out += &format!(" {cpu}");
        }
        format!("{out}\n\n{}\n{}", self.table_of_runs().markdown(), self.table_of_passes().markdown())
    }
}

#[cfg(test)]
mod tests;
