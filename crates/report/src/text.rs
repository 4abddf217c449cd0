// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Text for people: numbers with digit groups and units, wrapped lines, quoted words.

use bifold_mmu::PageSize;
use std::fmt::Write as _;

/// Columns of a line of text.
pub(crate) const WIDTH: usize = 100;

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

/// The unit of times that stand beside each other, so that they compare at a glance.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct TimeUnit {
    /// The unit's name.
    pub name: &'static str,
    /// How many units a second has.
    pub per_second: f64,
    decimals: usize,
}

impl TimeUnit {
    /// The unit in which the longest of these times, in seconds, is at least 1, with decimals for at least
    /// five digits of that time.
    pub fn of(times: impl IntoIterator<Item = f64>) -> TimeUnit {
        let longest = times.into_iter().fold(0.0, f64::max);
        let (name, per_second) = match longest {
            s if s >= 1.0 => ("s", 1.0),
            s if s >= 1e-3 => ("ms", 1e3),
            _ => ("us", 1e6),
        };
        let decimals = match longest * per_second {
            t if t < 10.0 => 4,
            t if t < 100.0 => 3,
            t if t < 1000.0 => 2,
            _ => 1,
        };
        TimeUnit { name, per_second, decimals }
    }

    /// A time without the unit's name.
    pub fn number(self, seconds: f64) -> String {
        fixed(seconds * self.per_second, self.decimals)
    }

    /// A time with the unit's name.
    pub fn text(self, seconds: f64) -> String {
        format!("{} {}", self.number(seconds), self.name)
    }

    /// The ends of a band without the unit's name, with a digit less than the time itself.
    pub fn band(self, low: f64, high: f64) -> String {
        let end = |s: f64| fixed(s * self.per_second, self.decimals - 1);
        format!("{}-{}", end(low), end(high))
    }

    /// A difference of times with its sign, without the unit's name.
    pub fn difference(self, seconds: f64) -> String {
        signed(seconds * self.per_second, self.decimals)
    }
}

/// A number with its sign, plus or minus; what rounds to 0 has no sign.
pub fn signed(v: f64, decimals: usize) -> String {
    let text = fixed(v.abs(), decimals);
    match text.chars().any(|c| ('1'..='9').contains(&c)) {
        false => text,
        true => format!("{}{text}", if v < 0.0 { '-' } else { '+' }),
    }
}

/// A change of a time in percent of what the time was: `8.46 % less time`.
pub(crate) fn less_or_more(percent: f64) -> String {
    let size = fixed(percent.abs(), if percent.abs() < 0.095 { 3 } else { 2 });
    match percent {
        p if p < 0.0 => format!("{size} % less time"),
        p if p > 0.0 => format!("{size} % more time"),
        _ => "the same time".into(),
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

/// The lines that say of which VMs and profiles several results are, each of a name, a state and a profile:
/// one value where all have one, or else each with its names, as in `long-lived: a, b; started: c`. No lines
/// without results.
pub fn vm_and_profile(results: &[(&str, &str, &str)]) -> Vec<(&'static str, String)> {
    let shared = |value: fn(&(&str, &str, &str)) -> String| {
        let mut values: Vec<(String, Vec<&str>)> = Vec::new();
        for result in results {
            let (name, value) = (result.0, value(result));
            let at = values.iter().position(|(known, _)| *known == value).unwrap_or_else(|| {
                values.push((value, Vec::new()));
                values.len() - 1
            });
            if !values[at].1.contains(&name) {
                values[at].1.push(name);
            }
        }
        if let [(value, _)] = &values[..] {
            return value.clone();
        }
        let each = values.iter().map(|(value, names)| format!("{value}: {}", names.join(", ")));
        each.collect::<Vec<_>>().join("; ")
    };
    let lines = vec![("VM", shared(|r| r.1.into())), ("profile", shared(|r| r.2.into()))];
    if results.is_empty() { Vec::new() } else { lines }
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
    fn times_beside_each_other_have_one_unit_and_the_digits_of_the_longest() {
        let unit = TimeUnit::of([0.0123, 0.9]);
        assert_eq!((unit.text(0.0123), unit.band(0.0123, 0.9)), ("12.30 ms".into(), "12.3-900.0".into()));
        assert_eq!(TimeUnit::of([1.5, 12.0]).text(1.5), "1.500 s");
        assert_eq!(TimeUnit::of([2e-6]).text(1.5e-6), "1.5000 us");
        assert_eq!((unit.difference(-0.1), unit.difference(0.0)), ("-100.00".into(), "0.00".into()));
        assert_eq!(
            (less_or_more(-8.456), less_or_more(0.5)),
            ("8.46 % less time".into(), "0.50 % more time".into())
        );
    }

    #[test]
    fn words_are_quoted_so_that_a_shell_reads_them_back() {
        assert_eq!(shell_words(&["gcc", "-O2", "a b.c"]), "gcc -O2 'a b.c'");
        assert_eq!(shell_words(&["", "it's"]), r"'' 'it'\''s'");
        assert_eq!(shell_words(&["a\n\x1b[31m"]), r"$'a\n\x1b[31m'");
    }
}
