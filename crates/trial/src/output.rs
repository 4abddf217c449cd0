// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables and charts of an experiment's outcome, for those who lay them out.

pub(crate) const MIB: f64 = (1 << 20) as f64;
/// The cell of an unknown figure.
pub(crate) const UNKNOWN: &str = "-";

/// A table of text.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct ResultTable {
    /// The table's title.
    pub title: String,
    /// Column heads; `\n` breaks the line.
    pub head: Vec<String>,
    /// Rows of cells. The first cell names the row.
    pub rows: Vec<Vec<String>>,
    /// Notes below the table.
    pub notes: Vec<String>,
}

impl ResultTable {
    /// A table without rows. `|` stands between the heads of columns.
    pub(crate) fn new(title: &str, heads: &str) -> ResultTable {
        ResultTable {
            title: title.into(),
            head: heads.split('|').map(String::from).collect(),
            rows: Vec::new(),
            notes: Vec::new(),
        }
    }

    /// In Markdown.
    pub fn markdown(&self) -> String {
        let cell = |c: &String| c.replace('\n', " ").replace('|', "\\|");
        let line =
            |cells: &[String]| format!("| {} |\n", cells.iter().map(cell).collect::<Vec<_>>().join(" | "));
        let mut out = format!("### {}\n\n{}", self.title, line(&self.head));
        out += &format!("|---|{}\n", "---:|".repeat(self.head.len().saturating_sub(1)));
        self.rows.iter().for_each(|r| out += &line(r));
        self.notes.iter().for_each(|n| out += &format!("\n{n}\n"));
        out
    }
}

/// A chart: curves over time.
#[derive(Debug, Clone, PartialEq)]
pub struct Chart {
    /// The chart's title.
    pub title: String,
    /// Unit of the vertical axis.
    pub unit: String,
    /// Name and points (seconds, value) of each curve.
    pub curves: Vec<(String, Vec<(f64, f64)>)>,
}
