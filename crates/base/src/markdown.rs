// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables in Markdown: each column has its head and what it shows of a row.

/// A column of a table with rows `R`.
pub struct Column<'a, R> {
    head: &'a str,
    rule: &'static str,
    cell: Box<dyn Fn(&R) -> String + 'a>,
}

/// A column of words.
pub fn left<'a, R>(head: &'a str, cell: impl Fn(&R) -> String + 'a) -> Column<'a, R> {
    Column { head, rule: "---|", cell: Box::new(cell) }
}

/// A column of figures.
pub fn right<'a, R>(head: &'a str, cell: impl Fn(&R) -> String + 'a) -> Column<'a, R> {
    Column { head, rule: "--:|", cell: Box::new(cell) }
}

/// The table. Cells are text without `|` and line breaks.
pub fn table<'r, R: 'r>(columns: &[Column<R>], rows: impl IntoIterator<Item = &'r R>) -> String {
    let heads = columns.iter().map(|c| format!("{} |", format!(" {}", c.head).trim_end()));
    let rules = columns.iter().map(|c| c.rule.to_owned());
    let mut out = format!("|{}\n|{}\n", heads.collect::<String>(), rules.collect::<String>());
    for row in rows {
        let cells = columns.iter().map(|c| format!(" {} |", (c.cell)(row)));
        out += &format!("|{}\n", cells.collect::<String>());
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_figures_right() {
        let rows = [("a", 1.25), ("b", 30.0)];
        let unit = 2.0;
        let columns: [Column<(&str, f64)>; 3] = [
            left("name", |r| r.0.into()),
            right("times", |r| format!("{:.1}", unit * r.1)),
            left("", |_| "".into()),
        ];
        let text = "| name | times | |\n|---|--:|---|\n| a | 2.5 |  |\n| b | 60.0 |  |\n";
        assert_eq!(table(&columns, &rows), text);
    }
}
