// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The columns of the list, and numbers as short text. Figures bring headings, meaning and number along; all
//! other columns have theirs here.

use super::app::Vm;
use bifold_host::Mode;
use bifold_host::{Backing, State};
use bifold_live::{Figure, Unit};
use bifold_report::grouped;

/// What is unknown.
pub const UNKNOWN: &str = "-";

/// A column of the list.
pub struct Column {
    pub name: &'static str,
    /// Heading and width on a screen of 80 columns.
    pub narrow: ([&'static str; 2], u16),
    /// Heading and width on a wide screen.
    pub wide: ([&'static str; 2], u16),
    /// Meaning.
    pub doc: &'static str,
    /// What the list is sorted by.
    pub number: fn(&Vm) -> Option<f64>,
    /// The cell, and whether the screen is wide.
    pub text: fn(&Vm, bool) -> String,
}

/// A figure's column, with its widths on a narrow screen and on a wide one.
macro_rules! figure {
    ($figure:ident, $narrow:literal, $wide:literal) => {
        Column {
            name: Figure::$figure.name,
            narrow: (Figure::$figure.short, $narrow),
            wide: (Figure::$figure.head, $wide),
            doc: Figure::$figure.doc,
            number: |vm| (Figure::$figure.number)(&vm.figures),
            text: |vm, wide| text(&Figure::$figure, (Figure::$figure.number)(&vm.figures), wide),
        }
    };
}

/// Width of the name at least; the name gets what the other columns leave.
pub const NAME_WIDTH: u16 = 12;

/// All columns, from left to right.
pub const COLUMNS: [Column; 12] = [
    Column {
        name: "VM",
        narrow: (["VM", ""], NAME_WIDTH),
        wide: (["VM", ""], NAME_WIDTH),
        doc: "name of the VM, else of its process",
        number: |_| None,
        text: |vm, _| vm.name.clone(),
    },
    Column {
        name: "mode",
        narrow: (["mode", ""], 8),
        wide: (["mode", ""], 16),
        doc: "mode of paging now; -> while the VM is switched",
        number: |vm| match vm.state? {
            State::In(Mode::Nested) => Some(0.0),
            State::In(Mode::Shadow) => Some(1.0),
            State::To(_) => Some(2.0),
        },
        text: |vm, wide| mode(vm.state, wide),
    },
    Column {
        name: "vCPUs",
        narrow: (["vCPU", ""], 4),
        wide: (["vCPUs", ""], 5),
        doc: "vCPUs whose threads are known",
        number: |vm| Some(vm.vcpus as f64),
        text: |vm, _| vm.vcpus.to_string(),
    },
    figure!(RAN, 4, 5),
    figure!(WAITED, 4, 6),
    figure!(EXITS, 5, 9),
    figure!(PAGE_FAULTS, 6, 10),
    figure!(HYPERVISOR, 5, 10),
    figure!(WALKS, 5, 8),
    figure!(IPC, 4, 4),
    Column {
        name: "memory",
        narrow: (["% memory", "4K/2M/1G"], 8),
        wide: (["% of memory in", "4 KB/2 MB/1 GB"], 14),
        doc: "guest memory by size of the host's pages; once a minute",
        number: |vm| vm.backing.as_ref().map(|b| b.total() as f64),
        text: |vm, _| vm.backing.as_ref().map_or(UNKNOWN.into(), shares),
    },
    Column {
        name: "switches",
        narrow: (["swit", "ches"], 4),
        wide: (["switches", ""], 8),
        doc: "switches of the mode in the interval",
        number: |vm| vm.switches.map(|n| n as f64),
        text: |vm, wide| rate(vm.switches.map(|n| n as f64), wide),
    },
];

/// The mode, or the switch under way.
pub fn mode(state: Option<State>, wide: bool) -> String {
    match state {
        None => UNKNOWN.into(),
        Some(State::To(to)) if !wide => format!("->{}", to.name()),
        Some(state) => state.to_string(),
    }
}

/// A share in percent, at most four characters up to 9999 %.
pub fn percent(share: Option<f64>) -> String {
    share.map_or(UNKNOWN.into(), |s| match 100.0 * s {
        p if p < 99.95 => format!("{p:.1}"),
        p => format!("{p:.0}"),
    })
}

/// A rate: all its digits on a wide screen, else at most five characters.
pub fn rate(n: Option<f64>, wide: bool) -> String {
    match n {
        None => UNKNOWN.into(),
        Some(n) if n > 0.0 && n < 9.95 && n.fract() > 0.04 => format!("{n:.1}"),
        Some(n) if n < 9999.5 || (wide && n < 9_999_999.5) => grouped_if(wide, n.round() as u64),
        Some(n) => {
            let thousands = (n.log10() / 3.0 + 1e-4).floor().clamp(1.0, 6.0);
            let scaled = n / 1000f64.powf(thousands);
            let digits = if scaled < 9.995 { 2 } else { usize::from(scaled < 99.95) };
            format!("{scaled:.digits$}{}", ["", "k", "M", "G", "T", "P", "E"][thousands as usize])
        }
    }
}

fn grouped_if(wide: bool, n: u64) -> String {
    if wide { grouped(n) } else { n.to_string() }
}

/// A figure's number as text.
pub fn text(figure: &Figure, number: Option<f64>, wide: bool) -> String {
    match figure.unit {
        Unit::Share => percent(number),
        Unit::Rate => rate(number, wide),
        Unit::Ratio => number.map_or(UNKNOWN.into(), |n| format!("{n:.2}")),
    }
}

/// Shares of the memory in pages of 4 KB, 2 MB and 1 GB, in percent.
fn shares(backing: &Backing) -> String {
    if backing.total() == 0 {
        return UNKNOWN.into();
    }
    let percent = |n: u64| (100.0 * n as f64 / backing.total() as f64).round();
    format!("{}/{}/{}", percent(backing.small), percent(backing.huge), percent(backing.giant))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn rates_have_at_most_five_characters_and_three_digits_that_count() {
        for (n, text) in [
            (0.0, "0"),
            (0.3, "0.3"),
            (7.0, "7"),
            (12.4, "12"),
            (9999.0, "9999"),
            (9999.6, "10.0k"),
            (12_345.0, "12.3k"),
            (99_949.0, "99.9k"),
            (123_456.0, "123k"),
            (999_600.0, "1.00M"),
            (1_234_567.0, "1.23M"),
            (2e19, "20.0E"),
        ] {
            assert_eq!(rate(Some(n), false), text, "{n}");
        }
        assert_eq!(rate(Some(1_234_567.0), true), "1,234,567");
        assert_eq!(rate(Some(12_345_678.0), true), "12.3M");
        assert_eq!(rate(None, true), "-");
        for power in 0..200 {
            let text = rate(Some(1.25f64.powi(power)), false);
            assert!(text.len() <= 5, "{text}");
        }
    }

    #[test]
    fn shares_keep_four_characters_and_memory_adds_up() {
        assert_eq!([0.0, 0.9994, 0.9996, 1.2].map(|s| percent(Some(s))), ["0.0", "99.9", "100", "120"]);
        let of = |small, huge, giant| shares(&Backing { small, huge, giant, ..Backing::default() });
        assert_eq!((of(1, 3, 0), of(0, 0, 0), of(0, 0, 9)), ("25/75/0".into(), "-".into(), "0/0/100".into()));
    }

    #[test]
    fn the_columns_leave_a_screen_of_80_and_of_120_the_names() {
        let sum = |of: fn(&Column) -> u16| COLUMNS.iter().map(|c| of(c) + 1).sum::<u16>() - 1;
        assert!(sum(|c| c.narrow.1) <= 80 && sum(|c| c.wide.1) <= 120);
        for c in &COLUMNS {
            for ([a, b], width) in [c.narrow, c.wide] {
                assert!(a.len().max(b.len()) <= width.into(), "{a}");
            }
        }
    }
}
