// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Every output of a comparison, by the module that makes it.

use crate::{Comparison, Conclusion, Format, RenderError, Show, html, json, rows, table, verdict, warnings};

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

    /// The comparison as a table for terminals, with the parts of `show`.
    pub fn render_table(&self, show: Show) -> String {
        table::render(self, show)
    }

    /// Reasons to doubt the figures, a line each.
    pub fn warnings(&self) -> Vec<String> {
        warnings::warnings(self)
    }

    /// The cheaper paging mode, the exit costs for which it stays cheaper, and what to change.
    pub fn conclusion(&self) -> Conclusion {
        verdict::conclusion(self)
    }

    /// The comparison as one HTML file that needs no network.
    pub fn render_html(&self) -> Result<String, RenderError> {
        html::render(self, None)
    }
}
