// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tables in Markdown: each column has its head and what it shows of a row.

/// A table of rows `R`.
pub struct Table<'a, R> {
    columns: Vec<Column<'a, R>>,
}

struct Column<'a, R> {
    head: &'a str,
    /// Below the head.
    rule: &'static str,
    cell: Box<dyn Fn(&R) -> String + 'a>,
}

/// A table without a column.
pub fn table<'a, R>() -> Table<'a, R> {
    Table { columns: Vec::new() }
}

impl<'a, R> Table<'a, R> {
    /// With one more column, of words.
    pub fn left(mut self, head: &'a str, cell: impl Fn(&R) -> String + 'a) -> Self {
        self.columns.push(Column { head, rule: "---|", cell: Box::new(cell) });
        self
    }

    /// With one more column, of figures.
    pub fn right(mut self, head: &'a str, cell: impl Fn(&R) -> String + 'a) -> Self {
        self.columns.push(Column { head, rule: "--:|", cell: Box::new(cell) });
        self
    }

    /// The table of these rows. Cells are text without `|` and line breaks.
    pub fn of<'r>(&self, rows: impl IntoIterator<Item = &'r R>) -> String
    where
        R: 'r,
    {
        let line = |cell: &dyn Fn(&Column<R>) -> String| {
            format!("|{}\n", self.columns.iter().map(cell).collect::<String>())
        };
        let mut out = line(&|c| format!("{} |", format!(" {}", c.head).trim_end()));
        out += &line(&|c| c.rule.to_owned());
        for row in rows {
            out += &line(&|c| format!(" {} |", (c.cell)(row)));
        }
        out
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn words_stand_left_and_figures_right() {
        let unit = 2.0;
        let table = table::<(&str, f64)>()
            .left("name", |r| r.0.into())
            .right("times", |r| format!("{:.1}", unit * r.1))
            .left("", |_| String::new());
        let text = "| name | times | |\n|---|--:|---|\n| a | 2.5 |  |\n| b | 60.0 |  |\n";
        assert_eq!(table.of(&[("a", 1.25), ("b", 30.0)]), text);
    }
}
