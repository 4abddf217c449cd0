// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ranking for a terminal, as JSON and as a page.

use super::{Advice, Change, Setting, Tried, Tuning, WORTH_PERCENT};
use crate::page::{PageBar, PageBars};
use crate::text::{TimeUnit, fixed, number, signed};
use crate::text_table::{labelled, page_table};
use crate::{Page, PageTable, RenderError};
use bifold_model::Placement;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeSet;

/// Name of the document's schema.
pub(crate) const SCHEMA: &str = "bifold.tune/2";
/// Most characters of a row's changes in one line.
const MOST_NAME: usize = 40;
/// Most rows of the ranking.
const MOST_ROWS: usize = 12;

/// A ranking of changes.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Ranking {
    /// The configuration of now.
    now: String,
    /// Predicted time of now. Unit: s.
    now_seconds: f64,
    /// What gains less is not worth a change. Unit: % of the time now.
    worth_percent: f64,
    /// The main result in a sentence.
    verdict: String,
    /// Changes that gain, the largest gain first.
    ranked: Vec<Advice>,
    /// Changes that would be ranked by their gain, and may lose: the band of the gain spans 0, or the assumed
    /// costs of exits cannot decide between two paging modes of one run.
    undecided: Vec<Advice>,
    /// Single changes that are not worth it.
    no_gain: Vec<Advice>,
    /// The largest gain of all; null if nothing was tried. Unit: % of the time now.
    best_percent: Option<f64>,
}

impl Ranking {
    pub(crate) fn of(tuning: Tuning) -> Ranking {
        let verdict = tuning.verdict();
        let Tuning { now, now_seconds, ranked, undecided, no_gain, best_percent, .. } = tuning;
        Ranking {
            now,
            now_seconds,
            worth_percent: WORTH_PERCENT,
            verdict,
            ranked,
            undecided,
            no_gain,
            best_percent,
        }
    }
}

/// What `bifold tune --format json` writes: changes of settings, ranked by the time that they gain.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// What the runs are of.
    of: &'a Value,
    /// The placement of now; null where placements were not compared.
    now_placement: Option<Placement>,
    /// What was not tried, and why.
    skipped: &'a [String],
    /// Runs; the first has the guest's setting of now.
    tried: &'a [Tried],
    #[serde(flatten)]
    ranking: Ranking,
}

impl Advice {
    /// The changes in words.
    fn words(&self) -> String {
        self.changes.iter().map(|c| c.how().name).collect::<Vec<_>>().join(" + ")
    }

    fn memory(&self) -> String {
        signed(self.backed_bytes_more as f64 / f64::from(1 << 20), 2)
    }

    /// What the changes cost, memory included; none where none of them costs anything.
    fn price(&self) -> Option<String> {
        let prices = self.changes.iter().map(|c| c.how().price);
        let mut prices: Vec<String> = prices.filter(|price| price != "none").collect();
        if self.backed_bytes_more != 0 {
            let more = if self.backed_bytes_more > 0 { "more" } else { "less" };
            let mib = self.backed_bytes_more.unsigned_abs() as f64 / f64::from(1 << 20);
            prices.push(format!("the host backs {} MiB {more}", number(mib)));
        }
        (!prices.is_empty()).then(|| prices.join("; "))
    }

    /// The band of the gain.
    fn band(&self) -> String {
        format!("{} to {}", signed(self.low_percent, 2), signed(self.high_percent, 2))
    }
}

impl Setting {
    /// The setting in words: `THP madvise, KPTI off`.
    pub fn words(&self) -> String {
        let kpti = format!("KPTI {}", if self.kpti { "on" } else { "off" });
        let mut out = vec![format!("THP {}", self.thp), kpti];
        out.extend((self.malloc > 0).then(|| format!("glibc.malloc.hugetlb={}", self.malloc)));
        out.extend(self.own.iter().map(|(axis, value)| format!("{axis}={value}")));
        out.join(", ")
    }
}

impl Tuning {
    /// The main result in one or two sentences.
    pub fn verdict(&self) -> String {
        match self.ranked.first() {
            Some(best) => format!("{}: {}.", capital(&best.words()), self.gain(best)),
            None => capital(&self.nothing()) + ".",
        }
    }

    /// `5.45 % less time (4.90 to 6.10 %), 425.12 ms in place of 449.61 ms`.
    fn gain(&self, a: &Advice) -> String {
        let then = self.now_seconds * (1.0 - a.gain_percent / 100.0);
        let unit = TimeUnit::of([self.now_seconds, then]);
        format!(
            "{} % less time ({} to {} %), {} in place of {}",
            fixed(a.gain_percent, 2),
            fixed(a.low_percent, 2),
            fixed(a.high_percent, 2),
            unit.text(then),
            unit.text(self.now_seconds)
        )
    }

    /// That nothing is worth a change, and how near the best comes.
    fn nothing(&self) -> String {
        match (self.undecided.first(), self.best_percent) {
            (Some(a), _) => format!(
                "nothing here is sure to gain {WORTH_PERCENT} % of the time: {} may ({} %, {} %)",
                a.words(),
                signed(a.gain_percent, 2),
                a.band()
            ),
            (None, Some(best)) if best > 0.005 => {
                format!("nothing here is worth a change: the best gains {} % of the time", fixed(best, 2))
            }
            _ => "nothing here is worth a change: every other choice takes as long or longer".into(),
        }
    }

    /// What to change first, in sentences for the comparison of which these are the figures: the first row of
    /// the ranking with its price, and what may gain.
    pub(crate) fn first_change(&self) -> Vec<String> {
        let now = &self.now;
        let Some(best) = self.ranked.first() else {
            return vec![format!("Keep {now}: {}.", self.nothing())];
        };
        let price = best.price().map_or(String::new(), |price| format!(" Price: {price}."));
        let (to, words, gain) = (&best.config, best.words(), self.gain(best));
        let mut out = vec![format!("From {now} to {to} ({words}): {gain}.{price}")];
        out.extend(self.undecided_words().map(|text| format!("Undecided: {text}.")));
        out
    }

    /// Changes whose gain is undecided, in a line.
    fn undecided_words(&self) -> Option<String> {
        let one = |a: &Advice| format!("{} ({} %, {} %)", a.words(), signed(a.gain_percent, 2), a.band());
        let all: Vec<String> = self.undecided.iter().take(MOST_ROWS).map(one).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    fn now_words(&self) -> String {
        let placed = self.now_placement.map_or_else(String::new, |p| format!(", placed as {}", p.name()));
        let setting = self.tried[0].setting.words();
        let time = TimeUnit::of([self.now_seconds]).text(self.now_seconds);
        format!("{}{placed}, {setting}: {time} predicted", self.now)
    }

    fn table_of(&self, title: &str, advice: &[Advice]) -> PageTable {
        let unit = TimeUnit::of([self.now_seconds]);
        // Memory is not counted in a long-lived VM, all of whose memory is backed.
        let counted = advice.iter().any(|a| a.backed_bytes_more != 0);
        let row = |(i, a): (usize, &Advice)| {
            let mut row = vec![
                (i + 1).to_string(),
                a.words(),
                unit.number(self.now_seconds * (1.0 - a.gain_percent / 100.0)),
                signed(a.gain_percent, 2),
                a.band(),
                signed(a.walk_percent, 2),
                signed(a.exit_percent, 2),
            ];
            row.extend(counted.then(|| a.memory()));
            row
        };
        let time = format!("time\n{}", unit.name);
        let head = ["", "change", &time, "gain\n%", "band\n%", "of it\nwalks %", "of it\nexits %"];
        let head = head.into_iter().chain(counted.then_some("host\nMiB"));
        let more = advice.len().saturating_sub(MOST_ROWS);
        PageTable {
            title: title.into(),
            head: head.map(String::from).collect(),
            rows: advice.iter().take(MOST_ROWS).enumerate().map(row).collect(),
            notes: (more > 0).then(|| format!("{more} more; --format json has all")).into_iter().collect(),
        }
    }

    /// The ranking, and apart from it what may gain or lose; tables without rows are left out.
    fn tables(&self) -> Vec<PageTable> {
        let undecided = "Undecided: may gain or lose";
        let all = [self.table_of("What gains", &self.ranked), self.table_of(undecided, &self.undecided)];
        all.into_iter().filter(|t| !t.rows.is_empty()).collect()
    }

    /// Changes that are part of the ranking, in its order.
    fn changes(&self) -> Vec<Change> {
        let mut seen = BTreeSet::new();
        let all = self.ranked.iter().take(MOST_ROWS).flat_map(|a| a.changes.iter().cloned());
        all.filter(|c| seen.insert(c.clone())).collect()
    }

    fn without_gain(&self) -> Option<String> {
        let one = |a: &Advice| format!("{} ({} %)", a.words(), signed(a.gain_percent, 2));
        let all: Vec<String> = self.no_gain.iter().map(one).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The ranking for a terminal: `head` are lines on the run, as
    /// [`Comparison::render_head`](crate::Comparison::render_head) has them.
    pub fn table(&self, head: &str) -> String {
        let mut out = head.to_string();
        out += &labelled("now", &self.now_words());
        for t in self.tables() {
            out += &format!("\n{}\n", t.title);
            // Names of several changes may be longer than the other columns together.
            let broken = |mut row: Vec<String>| {
                if row[1].chars().count() > MOST_NAME {
                    row[1] = row[1].replace(" + ", " +\n");
                }
                row
            };
            out += &page_table(2, t.head, t.rows.into_iter().map(broken).collect());
            t.notes.iter().for_each(|n| out += &labelled("note", n));
        }
        out += "\n";
        out += &labelled("best", &self.verdict());
        self.without_gain().iter().for_each(|text| out += &labelled("no gain", text));
        self.skipped.iter().for_each(|text| out += &labelled("skipped", text));
        for change in self.changes() {
            let how = change.how();
            out += &format!("\n{}\n", how.name);
            how.commands.iter().for_each(|c| out += &format!("  {c}\n"));
            out += &labelled("  check", &how.check);
            out += &labelled("  undo", &how.undo);
            if how.price != "none" {
                out += &labelled("  costs", &how.price);
            }
        }
        out += "\n";
        out += &labelled(
            "note",
            "Gains are of the VM's predicted time, and those of several changes are of all of them together. More on each: docs/guide/what-to-do-now.md",
        );
        out
    }

    /// The ranking as a document; `identity` says what the runs are of.
    ///
    /// # Errors
    /// If JSON cannot be made.
    pub fn json(&self, identity: &Value) -> Result<String, RenderError> {
        let Tuning { now_placement, skipped, tried, .. } = self;
        let document = Document {
            schema: SCHEMA,
            of: identity,
            now_placement: *now_placement,
            skipped,
            tried,
            ranking: Ranking::of(self.clone()),
        };
        Ok(serde_json::to_string_pretty(&document)? + "\n")
    }

    /// The ranking as one HTML file that needs no network.
    ///
    /// # Errors
    /// If the template fails.
    pub fn html(
        &self,
        version: &str,
        program: &str,
        facts: Vec<(String, String)>,
    ) -> Result<String, RenderError> {
        let bar = |a: &Advice| PageBar {
            name: a.words(),
            value: a.gain_percent,
            low: a.low_percent,
            high: a.high_percent,
        };
        let shown = self.ranked.iter().take(MOST_ROWS).chain(&self.undecided).chain(&self.no_gain);
        let how = |c: Change| {
            let how = c.how();
            vec![how.name, how.commands.join("\n"), how.check, how.undo, how.price]
        };
        let changes = PageTable {
            title: "How to make each change".into(),
            head: ["change", "commands", "check", "undo", "costs"].map(String::from).into(),
            rows: self.changes().into_iter().map(how).collect(),
            notes: vec!["More on each: docs/guide/what-to-do-now.md".into()],
        };
        let mut facts = facts;
        facts.push(("now".into(), self.now_words()));
        facts.extend(self.without_gain().map(|text| ("no gain".into(), text)));
        facts.extend(self.skipped.iter().map(|text| ("skipped".into(), text.clone())));
        Page {
            version: version.into(),
            brand: "tune".into(),
            title: program.into(),
            verdict: self.verdict(),
            about: "Predicted gains of settings that can be changed, of all those that were tried. Bars are the gain in percent of the \
                    predicted time now, lines the band of what the core may hide."
                .into(),
            facts,
            bars: Some(PageBars { title: "Gain".into(), unit: "% of the time now".into(), bars: shown.map(bar).collect() }),
            tables: self.tables().into_iter().map(unnumbered).collect(),
            texts: vec![changes],
            ..Page::default()
        }
        .render()
    }
}

/// The table without its first column, so that the change names its row.
fn unnumbered(mut table: PageTable) -> PageTable {
    table.head.remove(0);
    table.rows.iter_mut().for_each(|row| drop(row.remove(0)));
    table
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}
