// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory for people: the table, and the working set over time.

use super::{FRAME, MemoryNeeds, SizeRefaults};
use crate::page::PageTable;
use crate::terminal;
use crate::text::{fixed, grouped, seconds};
use crate::text_table::{labelled, table as text_table};
use bifold_reclaim::ReferenceKind;
use std::fmt::Write as _;

/// The most columns of the line over time.
const COLUMNS: usize = 60;

/// Frames as a size with three digits.
fn size(frames: u64) -> String {
    let mib = (frames * FRAME) as f64 / f64::from(1 << 20);
    match mib {
        m if m >= 10_240.0 => format!("{:.1} GiB", m / 1024.0),
        m if m >= 99.5 => format!("{m:.0} MiB"),
        m if m >= 9.95 => format!("{m:.1} MiB"),
        m => format!("{m:.2} MiB"),
    }
}

impl MemoryNeeds {
    /// What was used, a row for each size, and the working set over time.
    pub fn table(&self) -> String {
        let (head, rows) = self.cells();
        let lines: String = self.lines().iter().map(|(label, text)| labelled(label, text)).collect();
        let mut text = text_table(head, rows) + "\n" + &lines;
        if let Some(looks) = &self.looks {
            text.push('\n');
            text += &looks.table();
        }
        text
    }

    /// The table of a page.
    pub(crate) fn page_table(&self) -> PageTable {
        let (head, rows) = self.cells();
        let mut notes = vec![
            "A page that is used after it was taken away is a refault: the host brings it back, and the guest waits. LRU takes the \
             page that was used least recently; no choice can have fewer refaults than the last column. First uses are no \
             refaults."
                .to_string(),
        ];
        notes.extend(
            self.lines().into_iter().map(|(label, text)| format!("{label} {text}").trim().to_string()),
        );
        PageTable { title: "Memory".into(), head, rows, notes }
    }

    /// Kinds of which there are references.
    fn kinds(&self) -> Vec<ReferenceKind> {
        ReferenceKind::ALL.into_iter().filter(|&kind| self.references[kind as usize] > 0).collect()
    }

    fn cells(&self) -> (Vec<String>, Vec<Vec<String>>) {
        let kinds = self.kinds();
        let head = ["\nmemory", "refaults\nLRU", "waits\ns"].map(String::from).into_iter();
        let head = head.chain(kinds.iter().map(|kind| format!("{}\n%", kind.name())));
        let row = |row: &SizeRefaults| {
            let all = row.all();
            let share = |kind: &ReferenceKind| match all {
                0 => "-".into(),
                _ => format!("{:.0}", 100.0 * row.refaults[*kind as usize] as f64 / all as f64),
            };
            [size(row.frames), grouped(all), fixed(all as f64 * self.refault_s, 2)]
                .into_iter()
                .chain(kinds.iter().map(share))
                .chain([row.fewest.map_or("-".into(), grouped)])
                .collect()
        };
        let rows = self.rows.iter().filter(|row| row.shown).map(row).collect();
        (head.chain(["fewest\npossible".to_string()]).collect(), rows)
    }

    fn lines(&self) -> Vec<(&'static str, String)> {
        let mut lines = vec![("uses", self.uses())];
        let sets = self.sets();
        let most = sets.iter().map(|set| set.1).max().unwrap_or(0);
        let (longest, all) = sets.iter().fold((0.0, 0.0), |(most, sum), set| (set.0.max(most), sum + set.0));
        if most == 0 || all == 0.0 {
            return lines;
        }
        let mean = sets.iter().map(|set| set.0 * set.1 as f64).sum::<f64>() / all;
        let dirty = self.intervals.iter().map(|i| i.dirty).max().unwrap_or(0);
        lines.push((
            "in use",
            format!(
                "within {}: {} on average, {} at most; {} written at most",
                seconds(longest),
                size(mean as u64 / FRAME),
                size(most / FRAME),
                size(dirty)
            ),
        ));
        if sets.len() > 1 && !terminal::ascii() {
            let bar = |sets: &[(f64, u64)]| {
                let top = sets.iter().map(|set| set.1).max().unwrap_or(0);
                let eighths = (top * 8).div_ceil(most).clamp(1, 8);
                char::from_u32(0x2580 + eighths as u32).expect("a block of eighths")
            };
            let bars: String = sets.chunks(sets.len().div_ceil(COLUMNS)).map(bar).collect();
            lines.push(("", format!("{bars} {} over {}", size(most / FRAME), seconds(all))));
        }
        lines
    }

    fn uses(&self) -> String {
        let all: u64 = self.references.iter().sum();
        let share = |kind: &ReferenceKind| {
            let of_kind = self.references[*kind as usize] as f64;
            format!("{} {:.2} %", kind.name(), 100.0 * of_kind / all.max(1) as f64)
        };
        let mut text = format!(
            "{} of pages: {}; {} were first uses; {} of {} are in use at the end",
            grouped(all),
            self.kinds().iter().map(share).collect::<Vec<_>>().join(", "),
            grouped(self.first.iter().sum()),
            size(self.held),
            size(self.guest)
        );
        if self.outside > 0 {
            let _ = write!(text, "; {} outside of memory are left out", grouped(self.outside));
        }
        text
    }
}
