// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a comparison looks like to a reader: a table for terminals, JSON with a
//! versioned schema, tidy rows (JSON lines, CSV) and one HTML file.
//!
//! Everything here is a pure function of a [`Comparison`]: the model's
//! [`Outcome`] and what is known about the run ([`Meta`]). Derived figures are
//! computed once ([`Figures`]) and every output takes its numbers from there;
//! counters, their units and meanings come from
//! [`Sample::COUNTERS`](bifold_model::Sample::COUNTERS).
#![forbid(unsafe_code)]

mod clock;
pub mod diff;
mod figures;
mod flames;
mod html;
mod json;
mod meta;
mod page;
mod places;
mod policies;
mod rows;
mod runs;
mod sampled;
mod show;
mod spread;
mod table;
mod template;
pub mod terminal;
mod text;
mod text_table;
mod verdict;
mod warnings;

use bifold_model::Outcome;

pub use figures::{Figure, Figures};
pub use meta::{Guest, Input, Meta, Partial};
pub use page::{Page, PageChart, PageTable};
pub use places::Places;
pub use policies::{PolicyComparison, RunPolicies, checks_table, scale_words, vm_words};
pub use runs::{Outlier, Runs};
pub use show::Show;
pub use spread::Spread;
pub use text::{grouped, seconds, shell_words, wrapped};
pub use text_table::{keyed_table as text_table_with_keys, table as text_table};
pub use verdict::{Change, Conclusion, Conclusions, Flip, PageConclusion, Winner};

/// Why a comparison could not be rendered.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum RenderError {
    /// JSON could not be made.
    #[error("cannot render JSON")]
    Json(#[from] serde_json::Error),
    /// CSV could not be made.
    #[error("cannot render CSV")]
    Csv(#[from] csv::Error),
    /// The HTML template failed.
    #[error("cannot render HTML")]
    Html(#[from] minijinja::Error),
    /// The flame graph could not be drawn.
    #[error("cannot draw the flame graph")]
    Graph(#[source] std::io::Error),
}

/// A finished run: what it was, and what the model says of it.
#[derive(Debug, Clone, PartialEq)]
pub struct Comparison {
    /// What was run, where and how it ended.
    pub meta: Meta,
    /// What the model yields.
    pub outcome: Outcome,
    /// What policies would have made of it; none if nobody asked.
    pub policies: Option<RunPolicies>,
    /// Where the cost is; none if nobody asked.
    pub places: Option<Places>,
}

/// A form in which data is written to stdout or a file.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Format {
    /// For reading on a terminal.
    Table,
    /// One document, see `schema/compare-1.json`.
    Json,
    /// One object per line, tagged `run`, `total`, `policy` or `interval`.
    Jsonl,
    /// One row per interval and configuration.
    Csv,
}

impl Format {
    /// All formats.
    pub const ALL: [Format; 4] = [Format::Table, Format::Json, Format::Jsonl, Format::Csv];

    /// The name that `--format` takes.
    pub fn name(self) -> &'static str {
        match self {
            Format::Table => "table",
            Format::Json => "json",
            Format::Jsonl => "jsonl",
            Format::Csv => "csv",
        }
    }
}

impl Comparison {
    /// The comparison in the given format.
    pub fn render(&self, format: Format) -> Result<String, RenderError> {
        match format {
            Format::Table => Ok(self.render_table(Show::default())),
            Format::Json => json::render(self),
            Format::Jsonl => rows::render_jsonl(self, None),
            Format::Csv => rows::render_csv(self),
        }
    }

    /// The comparison as a table for terminals, with further parts if they are asked for.
    pub fn render_table(&self, show: Show) -> String {
        table::render(self, show)
    }

    /// What a reader must know before any figure, a line each: whatever makes the figures doubtful.
    pub fn warnings(&self) -> Vec<String> {
        warnings::warnings(self)
    }

    /// Which paging mode is cheaper, how far that holds, and what to change.
    pub fn conclusions(&self) -> Conclusions {
        verdict::conclusions(self)
    }

    /// The comparison as one HTML file that needs no network.
    pub fn render_html(&self) -> Result<String, RenderError> {
        html::render(self, None)
    }

    /// Comparisons that a self-check made, and how many of them disagreed.
    pub fn checks(&self) -> (u64, u64) {
        let stats = self.meta.capture_checks.unwrap_or_default();
        let made =
            self.outcome.walk_checks + stats.cr3_checks + stats.translation_checks + stats.table_checks;
        let failed = self.outcome.walk_mismatches
            + self.outcome.untranslated
            + stats.cr3_mismatches
            + stats.translation_mismatches
            + stats.table_mismatches;
        (made, failed)
    }
}
