// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text for people: numbers with digit groups and units, wrapped lines, quoted words.

use bifold_mmu::PageSize;
use std::fmt::Write as _;

/// Columns of a line of text.
const WIDTH: usize = 100;

/// `1234567` as `1,234,567`.
pub fn grouped(n: u64) -> String {
    let digits = n.to_string();
    let mut out = String::with_capacity(digits.len() + digits.len() / 3);
    for (i, c) in digits.chars().enumerate() {
        if i > 0 && (digits.len() - i) % 3 == 0 {
            out.push(',');
        }
        out.push(c);
    }
    out
}

/// Number of decimals of a column whose largest value is `max`.
pub(crate) fn decimals(max: f64) -> usize {
    if max < 1000.0 { 2 } else { 1 }
}

/// Number of decimals as by [`decimals`], with more where the largest value is below 1.
pub(crate) fn fine_decimals(max: f64) -> usize {
    if max < 1.0 { 4 } else { decimals(max) }
}

/// A number with this many decimals and grouped digits before them.
pub(crate) fn fixed(v: f64, decimals: usize) -> String {
    let s = format!("{v:.decimals$}");
    // What rounds to 0 has no sign.
    let s = match s.strip_prefix('-') {
        Some(zero) if zero.bytes().all(|b| matches!(b, b'0' | b'.')) => zero.to_string(),
        _ => s,
    };
    let (whole, rest) = s.split_at(s.find('.').unwrap_or(s.len()));
    match whole.parse::<u64>() {
        Ok(n) => grouped(n) + rest,
        Err(_) => s,
    }
}

/// A number with decimals by its size.
pub(crate) fn number(v: f64) -> String {
    fixed(v, decimals(v))
}

/// Seconds with a unit that keeps three to four digits.
pub fn seconds(s: f64) -> String {
    match s {
        s if s >= 1.0 => format!("{s:.2} s"),
        s if s >= 1e-3 => format!("{:.2} ms", s * 1e3),
        _ => format!("{:.2} us", s * 1e6),
    }
}

/// Seconds with a unit and without trailing zeros.
pub(crate) fn brief_seconds(s: f64) -> String {
    let (value, unit) = match s {
        s if s >= 1.0 => (s, "s"),
        s if s >= 1e-3 => (s * 1e3, "ms"),
        _ => (s * 1e6, "us"),
    };
    let text = format!("{value:.3}");
    format!("{} {unit}", text.trim_end_matches('0').trim_end_matches('.'))
}

/// A line with its line end, broken at blanks where the line is too long for the terminal or for reading.
/// Further lines are indented by `indent`. Blanks within the first `indent` columns are kept.
pub fn wrapped(line: &str, indent: usize) -> String {
    wrapped_to(line, indent, WIDTH)
}

/// As [`wrapped`], in lines of at most `width` columns.
pub(crate) fn wrapped_to(line: &str, indent: usize, width: usize) -> String {
    let width = width.min(crate::terminal::columns());
    let line = &*crate::terminal::plain(line);
    let start = line.char_indices().nth(indent).map_or(line.len(), |(i, _)| i);
    let (head, text) = line.split_at(start);
    let mut out = head.to_string();
    let mut column = indent;
    // A number and its percent sign stay together.
    let text = text.replace(" %", "\u{a0}%");
    for (i, word) in text.split(' ').enumerate() {
        let len = word.chars().count();
        if i > 0 && column + 1 + len > width {
            let _ = write!(out, "\n{:indent$}", "");
            column = indent;
        } else if i > 0 {
            out.push(' ');
            column += 1;
        }
        out += &word.replace('\u{a0}', " ");
        column += len;
    }
    out + "\n"
}

/// A page size in words.
pub(crate) fn page_words(page: PageSize) -> &'static str {
    match page {
        PageSize::Size4K => "4 KB",
        PageSize::Size2M => "2 MB",
        PageSize::Size1G => "1 GB",
    }
}

/// Words quoted for a shell. Control characters become escapes, so that a command line cannot control the
/// terminal that shows it.
pub fn shell_words<S: AsRef<str>>(words: &[S]) -> String {
    let mut out = String::new();
    for word in words {
        if !out.is_empty() {
            out.push(' ');
        }
        let w = word.as_ref();
        let plain = |c: char| c.is_alphanumeric() || "-_./=:,+@%^".contains(c);
        if !w.is_empty() && w.chars().all(plain) {
            out.push_str(w);
        } else if w.chars().any(char::is_control) {
            out.push_str("$'");
            for c in w.chars() {
                match c {
                    '\n' => out.push_str("\\n"),
                    '\t' => out.push_str("\\t"),
                    '\'' | '\\' => out.extend(['\\', c]),
                    c if c.is_ascii_control() => {
                        let _ = write!(out, "\\x{:02x}", u32::from(c));
                    }
                    c if c.is_control() => {
                        let _ = write!(out, "\\u{:04x}", u32::from(c));
                    }
                    c => out.push(c),
                }
            }
            out.push('\'');
        } else {
            out.push('\'');
            out.push_str(&w.replace('\'', "'\\''"));
            out.push('\'');
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_grouped_and_keep_their_decimals() {
        assert_eq!(grouped(0), "0");
        assert_eq!(grouped(999), "999");
        assert_eq!(grouped(1_000_000), "1,000,000");
        assert_eq!(fixed(1234.5, 1), "1,234.5");
        assert_eq!((fixed(-0.001, 2), fixed(-0.01, 2)), ("0.00".into(), "-0.01".into()));
        assert_eq!(number(2.71), "2.71");
        assert_eq!(number(12345.6), "12,345.6");
        assert_eq!(seconds(0.0123), "12.30 ms");
    }

    #[test]
    fn words_are_quoted_so_that_a_shell_reads_them_back() {
        assert_eq!(shell_words(&["gcc", "-O2", "a b.c"]), "gcc -O2 'a b.c'");
        assert_eq!(shell_words(&["", "it's"]), r"'' 'it'\''s'");
        assert_eq!(shell_words(&["a\n\x1b[31m"]), r"$'a\n\x1b[31m'");
    }
}
