// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables and labelled lines for terminals: plain text without colour.

use crate::terminal;
use crate::text::{WIDTH, wrapped};
use comfy_table::{CellAlignment, ContentArrangement, Table};

/// Columns of a label with the blanks after it.
const INDENT: usize = 9;

/// A table for terminals, with the first column aligned left, the others aligned right, and a line under
/// the head. On a terminal narrower than the table, the columns come in several tables, one below the
/// other, each with the first column.
pub fn table(head: Vec<String>, rows: Vec<Vec<String>>) -> String {
    keyed_table(1, head, rows)
}

/// As [`table`], with `keys` columns that name a row.
pub fn keyed_table(keys: usize, head: Vec<String>, rows: Vec<Vec<String>>) -> String {
    within(terminal::columns(), keys, head, rows)
}

/// As [`keyed_table`], in parts also where no terminal asks for that, if the table is wider than a page of
/// text.
pub(crate) fn page_table(keys: usize, head: Vec<String>, rows: Vec<Vec<String>>) -> String {
    within(terminal::columns().min(WIDTH), keys, head, rows)
}

fn within(columns: usize, keys: usize, head: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let plain = |cells: Vec<String>| cells.iter().map(|c| terminal::plain(c).into_owned()).collect();
    let (head, rows): (Vec<String>, Vec<Vec<String>>) = (plain(head), rows.into_iter().map(plain).collect());
    let parts = parts(keys, &head, &rows, columns);
    let of = |cells: &[String], part: &[usize]| part.iter().map(|c| cells[*c].clone()).collect::<Vec<_>>();
    let set = parts.iter().map(|p| set(of(&head, p), rows.iter().map(|r| of(r, p)).collect()));
    set.collect::<Vec<_>>().join("\n")
}

/// The columns of each part of the table, so that each part fits the terminal.
fn parts(keys: usize, head: &[String], rows: &[Vec<String>], columns: usize) -> Vec<Vec<usize>> {
    let lines = |cell: &String| cell.split('\n').map(|l| l.chars().count()).max().unwrap_or(0);
    let cells = |c: usize| rows.iter().map(move |r| &r[c]);
    let width = |c: usize| cells(c).chain([&head[c]]).map(lines).max().unwrap_or(0) + GAP;
    let all: Vec<usize> = (0..head.len()).map(width).collect();
    let keys = keys.min(head.len());
    // comfy-table adds a blank after the first column.
    let named: usize = all[..keys].iter().sum::<usize>() + 1;
    let mut parts: Vec<Vec<usize>> = vec![(0..keys).collect()];
    let mut taken = named;
    for (c, width) in all.iter().enumerate().skip(keys) {
        let part = parts.last_mut().expect("there is always one");
        if part.len() > keys && taken + width - GAP > columns {
            parts.push((0..keys).chain([c]).collect());
            taken = named + width;
        } else {
            part.push(c);
            taken += width;
        }
    }
    parts
}

/// Blanks between columns.
const GAP: usize = 2;

fn set(head: Vec<String>, rows: Vec<Vec<String>>) -> String {
    let mut t = Table::new();
    // Only the line under the head and two spaces between columns.
    t.load_preset("     ──            ").set_content_arrangement(ContentArrangement::Disabled);
    t.set_header(head);
    t.add_rows(rows);
    for (i, column) in t.column_iter_mut().enumerate() {
        column.set_padding(if i == 0 { (0, 1) } else { (1, 0) });
        if i > 0 {
            column.set_cell_alignment(CellAlignment::Right);
        }
    }
    let mut out = String::new();
    for line in t.lines() {
        let line = line.trim_end();
        // The line under the head, which no cell looks like.
        let under = !line.is_empty() && line.chars().all(|c| c == '─');
        out += &if under && terminal::ascii() { "-".repeat(line.chars().count()) } else { line.into() };
        out.push('\n');
    }
    out
}

/// A label and its text; further lines are indented to the text.
pub fn labelled(label: &str, text: &str) -> String {
    wrapped(&format!("{label:<INDENT$}{text}"), INDENT)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_page_s_table_comes_in_parts_each_with_its_keys() {
        let row = |cell: &str| vec![cell.repeat(9); 15];
        let wide = keyed_table(1, row("h"), vec![row("c")]);
        assert!(wide.lines().any(|l| l.chars().count() > WIDTH) && !wide.contains("\n\n"));
        let parts = page_table(1, row("h"), vec![row("c")]);
        assert!(parts.lines().all(|l| l.chars().count() <= WIDTH), "{parts}");
        let cells = |text: &str| text.matches(&"c".repeat(9)).count();
        // Each part beyond the first repeats the key.
        assert_eq!(cells(&parts), cells(&wide) + parts.matches("\n\n").count());
    }

    #[test]
    fn columns_that_do_not_fit_come_in_tables_of_their_own() {
        let words = |w: &str| w.split(' ').map(String::from).collect::<Vec<_>>();
        let (head, rows) = (words("name aaaa bbbb cccc"), vec![words("x 1 2 3"), words("longer 4 5 6")]);
        assert_eq!(parts(1, &head, &rows, 25), [vec![0, 1, 2, 3]], "6 + 1 + 3 * (2 + 4) columns");
        assert_eq!(parts(1, &head, &rows, 24), [vec![0, 1, 2], vec![0, 3]]);
        assert_eq!(parts(2, &head, &rows, 24), [vec![0, 1, 2], vec![0, 1, 3]]);
        assert_eq!(parts(1, &head, &rows, 1), [vec![0, 1], vec![0, 2], vec![0, 3]], "one at least");
        assert_eq!(parts(9, &head, &rows, 1), [vec![0, 1, 2, 3]]);
        // What is set is as wide as was reckoned.
        let widest = |t: &str| t.lines().map(|l| l.chars().count()).max().unwrap();
        assert_eq!(widest(&set(head, rows)), 25);
    }
}
