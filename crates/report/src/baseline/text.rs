// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What moved, as a table and in words.

use super::counts::COUNTS;
use super::{Judged, Moved, PlaceNames};
use crate::PageTable;
use crate::places::shortened;
use crate::text::{grouped, number};
use crate::text_table::{labelled, page_table};

/// Most rows of a table.
const MOST_ROWS: usize = 20;
/// Most characters of a name in a table for a terminal.
const MOST_NAME: usize = 26;
/// Most places before the rows of the whole run.
const MOST_PLACES: usize = 10;

impl Judged {
    /// The verdict in one sentence.
    pub fn verdict(&self) -> String {
        let percent = self.worse_than_percent;
        match (self.grew.len(), self.fell.len()) {
            (0, 0) => format!("no count moved by more than {percent} %"),
            (0, n) => format!(
                "no count grew by more than {percent} %, and {} fell by more: save the baseline again to keep the gain",
                counts(n)
            ),
            (n, _) => format!("WORSE: {} grew by more than {percent} %", counts(n)),
        }
    }

    /// The verdict, and tables of what grew and what fell, for a terminal.
    pub fn table(&self) -> String {
        let mut out = labelled("baseline", &format!("{}: {}", self.baseline, self.verdict()));
        self.notes.iter().for_each(|note| out += &labelled("note", note));
        for t in self.tables_of(PlaceNames::lines) {
            out += "\n";
            out += &page_table(t.head.len() - 3, t.head, t.rows);
            t.notes.iter().for_each(|note| out += &labelled("note", note));
        }
        out
    }

    /// A table of what grew, of what fell and of new places, where there are any.
    pub fn tables(&self) -> Vec<PageTable> {
        self.tables_of(PlaceNames::words)
    }

    fn tables_of(&self, words: fn(&PlaceNames) -> String) -> Vec<PageTable> {
        let tables = [("Grew", &self.grew), ("Fell", &self.fell), ("New", &self.new_places)];
        tables
            .into_iter()
            .filter(|(_, moved)| !moved.is_empty())
            .map(|(title, moved)| table(title, moved, words))
            .collect()
    }
}

fn counts(n: usize) -> String {
    format!("{n} {}", if n == 1 { "count" } else { "counts" })
}

/// Rows that are equal in all but the configuration are one row, which names the first and how many more.
fn merged(moved: &[Moved]) -> Vec<(&Moved, usize)> {
    let mut out: Vec<(&Moved, usize)> = Vec::new();
    for m in moved {
        let same = |o: &&mut (&Moved, usize)| {
            (&o.0.count, &o.0.place, o.0.before, o.0.now) == (&m.count, &m.place, m.before, m.now)
        };
        match out.iter_mut().find(same) {
            Some((_, more)) => *more += 1,
            None => out.push((m, 0)),
        }
    }
    out
}

fn table(title: &str, moved: &[Moved], words: fn(&PlaceNames) -> String) -> PageTable {
    // The places that moved most come before the whole run, whose counts say less of the cause.
    let (mut of_places, of_run): (Vec<_>, Vec<_>) =
        merged(moved).into_iter().partition(|(m, _)| m.place.is_some());
    let others = of_places.split_off(of_places.len().min(MOST_PLACES));
    let rows = [of_places, of_run, others].concat();
    let places = rows.iter().any(|(m, _)| m.place.is_some());
    let row = |(m, more): &(&Moved, usize)| {
        let config = if *more == 0 { m.config.clone() } else { format!("{} and {more} more", m.config) };
        let mut cells = vec![config];
        if places {
            cells.push(m.place.as_ref().map_or("the whole run".into(), words));
        }
        cells.extend([m.words().into(), signed(m.before), signed(m.now), m.percent_words()]);
        cells
    };
    let place: &[&str] = if places { &["place"] } else { &[] };
    let first = title.to_lowercase();
    let head = [first.as_str()].into_iter().chain(place.iter().copied());
    let head = head.chain(["count", "baseline", "now", "change %"]).map(String::from).collect();
    let more = rows.len().saturating_sub(MOST_ROWS);
    let notes = (more > 0).then(|| format!("{more} more; --format json has all"));
    PageTable {
        title: format!("{title} since the baseline"),
        head,
        rows: rows.iter().take(MOST_ROWS).map(row).collect(),
        notes: notes.into_iter().collect(),
    }
}

fn signed(v: i64) -> String {
    format!("{}{}", if v < 0 { "-" } else { "" }, grouped(v.unsigned_abs()))
}

impl Moved {
    /// Name of the count for people: `TLB misses`.
    pub fn words(&self) -> &str {
        COUNTS.iter().find(|c| c.name == self.count).map_or(&self.count, |c| c.words)
    }

    /// The change for people: `+3.00`, or `-` where the baseline has nothing.
    pub fn percent_words(&self) -> String {
        let sign = |p: f64| if p < 0.0 { '-' } else { '+' };
        self.percent.map_or("-".into(), |p| format!("{}{}", sign(p), number(p.abs())))
    }
}

impl PlaceNames {
    /// The place in a table's cell.
    fn words(&self) -> String {
        format!("{} {} {} ({})", self.process, self.binary, self.function, self.mapping)
    }

    /// The place in two lines of a cell for a terminal, where names may be as long as a page.
    fn lines(&self) -> String {
        let [binary, function, mapping] =
            [&self.binary, &self.function, &self.mapping].map(|name| shortened(name, MOST_NAME));
        format!("{} {binary}\n{function} ({mapping})", self.process)
    }
}
