// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text of trainers: tables, and the comments and numbers of the TOML files.

use crate::Program;

/// A table with the first column aligned left and the others right.
pub fn table(rows: &[Vec<String>]) -> String {
    let columns = rows.iter().map(Vec::len).max().unwrap_or(0);
    let cells = |c: usize| rows.iter().filter_map(move |r| r.get(c));
    let widths: Vec<usize> =
        (0..columns).map(|c| cells(c).map(|s| s.chars().count()).max().unwrap_or(0)).collect();
    let mut out = String::new();
    for row in rows {
        let mut line = String::new();
        for (c, cell) in row.iter().enumerate() {
            let w = widths[c];
            line += &if c == 0 { format!("{cell:<w$}") } else { format!("  {cell:>w$}") };
        }
        out += line.trim_end();
        out.push('\n');
    }
    out
}

/// Cells of a row.
pub fn row<const N: usize>(cells: [&str; N]) -> Vec<String> {
    cells.map(String::from).to_vec()
}

/// The comment at the start of a file: its content, the command that wrote it, and the programs. It has no
/// date, so that the same timelines give the same bytes.
pub fn header(what: &str, command: &str, programs: &[Program]) -> String {
    let names: Vec<&str> = programs.iter().map(|p| p.name.as_str()).collect();
    // Programs of recordings have no profile.
    let about = &programs[0].timeline.about;
    let source = match about.profile.as_str() {
        "" => "VMs in recordings of this host".to_string(),
        profile => format!("programs under profile {profile}, in VMs of the state {}", about.vm.name()),
    };
    header_of(what, command, &source, &names)
}

/// The comment at the start of a file, for things of these names from this source.
pub fn header_of(what: &str, command: &str, source: &str, names: &[&str]) -> String {
    let mut out = format!(
        "# {what}\n# Written by `bifold policy train {command}`; not to be edited.\n# From {} {source}:",
        names.len()
    );
    let mut width = usize::MAX;
    for name in names {
        if width.saturating_add(name.len() + 1) > 108 {
            out += "\n#  ";
            width = 3;
        }
        out.push(' ');
        out += name;
        width += name.len() + 1;
    }
    out + ".\n"
}

/// A number rounded to four digits, as a TOML float.
pub fn digits(x: f64) -> String {
    let rounded = round(x);
    if rounded == 0.0 || (1e-4..1e7).contains(&rounded.abs()) {
        format!("{rounded:?}")
    } else {
        format!("{rounded:e}")
    }
}

/// A number rounded to four digits.
pub fn round(x: f64) -> f64 {
    format!("{x:.3e}").parse().expect("a printed number is one")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_have_four_digits_and_stay_floats() {
        let shown = [0.0, 1.0, 12345.678, 2.00049e-7, 0.5, 1e9].map(digits);
        assert_eq!(shown, ["0.0", "1.0", "12350.0", "2e-7", "0.5", "1e9"]);
        assert!(
            shown.iter().all(|s| toml::from_str::<toml::Table>(&format!("x = {s}")).unwrap()["x"].is_float())
        );
    }

    #[test]
    fn the_first_column_is_left_and_the_others_right() {
        assert_eq!(table(&[row(["a", "bb"]), row(["ccc", "d"])]), "a    bb\nccc   d\n");
    }
}
