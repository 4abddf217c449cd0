// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How `share run` and `reclaim run` lay out an experiment's tables and charts.

use bifold_report::{PageChart, PageTable, text_table_with_keys, wrapped};
use bifold_trial::output::{Chart, ResultTable};

/// A table for the terminal, with its title and notes.
pub fn text(table: &ResultTable) -> String {
    // comfy-table wants heads of equal height.
    let height = table.head.iter().map(|h| h.split('\n').count()).max().unwrap_or(1);
    let head = table.head.iter().map(|h| "\n".repeat(height - h.split('\n').count()) + h).collect();
    // In a table of guests, case and guest together name a row.
    let keys = if table.head.get(1).is_some_and(|h| h == "guest") { 2 } else { 1 };
    let mut out = format!("{}\n{}", table.title, text_table_with_keys(keys, head, table.rows.clone()));
    table.notes.iter().for_each(|n| out += &wrapped(n, 0));
    out
}

/// A table for a page.
pub fn page_table(t: ResultTable) -> PageTable {
    PageTable { title: t.title, head: t.head, rows: t.rows, notes: t.notes }
}

/// A chart for a page.
pub fn page_chart(c: Chart) -> PageChart {
    PageChart { title: c.title, unit: c.unit, curves: c.curves }
}
