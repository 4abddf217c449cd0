// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ranking for a terminal, as JSON and as a page.

use super::{Advice, Change, Tuning};
use crate::page::{PageBar, PageBars};
use crate::text::{number, seconds};
use crate::text_table::{keyed_table, labelled};
use crate::{Page, PageTable, RenderError};
use serde_json::json;
use std::collections::BTreeSet;

/// Name of the document's schema.
const SCHEMA: &str = "bifold.tune/1";
/// Most rows of the ranking.
const MOST_ROWS: usize = 12;

impl Advice {
    /// The changes in words.
    fn words(&self) -> String {
        self.changes.iter().map(|c| c.how().name).collect::<Vec<_>>().join(" + ")
    }

    fn memory(&self) -> String {
        let mib = self.backed_bytes_more as f64 / f64::from(1 << 20);
        format!("{}{}", if mib < 0.0 { '-' } else { '+' }, number(mib.abs()))
    }
}

fn signed(v: f64) -> String {
    let text = format!("{:.2}", v.abs());
    if text.trim_matches(['0', '.']).is_empty() {
        text
    } else {
        format!("{}{text}", if v < 0.0 { '-' } else { '+' })
    }
}

impl Tuning {
    /// The main result in one or two sentences.
    pub fn verdict(&self) -> String {
        let Some(best) = self.ranked.first() else {
            return "No change that was tried gains 0.1 % of the program's predicted time.".into();
        };
        format!(
            "{} would take {} % less time ({} to {}), {} in place of {}.",
            capital(&best.words()),
            signed(best.gain_percent).trim_start_matches('+'),
            signed(best.low_percent),
            signed(best.high_percent),
            seconds(self.now_seconds * (1.0 - best.gain_percent / 100.0)),
            seconds(self.now_seconds),
        )
    }

    fn now_words(&self) -> String {
        let s = &self.tried[0].setting;
        let malloc =
            if s.malloc == 0 { String::new() } else { format!(", glibc.malloc.hugetlb={}", s.malloc) };
        let placed = self.now_placement.map_or_else(String::new, |p| format!(", placed as {}", p.name()));
        format!(
            "{}{placed}, THP {}, KPTI {}{malloc}: {} predicted",
            self.now,
            s.thp,
            if s.kpti { "on" } else { "off" },
            seconds(self.now_seconds)
        )
    }

    fn ranking(&self) -> PageTable {
        let row = |(i, a): (usize, &Advice)| {
            vec![
                (i + 1).to_string(),
                a.words(),
                signed(a.gain_percent),
                format!("{} to {}", signed(a.low_percent), signed(a.high_percent)),
                signed(a.walk_percent),
                signed(a.exit_percent),
                a.memory(),
            ]
        };
        let head = ["", "change", "gain\n%", "band\n%", "of it\nwalks %", "of it\nexits %", "host\nMiB"];
        let more = self.ranked.len().saturating_sub(MOST_ROWS);
        PageTable {
            title: "What gains".into(),
            head: head.map(String::from).into(),
            rows: self.ranked.iter().take(MOST_ROWS).enumerate().map(row).collect(),
            notes: (more > 0).then(|| format!("{more} more; --format json has all")).into_iter().collect(),
        }
    }

    /// Changes that are part of the ranking, in its order.
    fn changes(&self) -> Vec<Change> {
        let mut seen = BTreeSet::new();
        let all = self.ranked.iter().take(MOST_ROWS).flat_map(|a| a.changes.iter().copied());
        all.filter(|c| seen.insert(*c)).collect()
    }

    fn without_gain(&self) -> Option<String> {
        let one = |a: &Advice| format!("{} ({} %)", a.words(), signed(a.gain_percent));
        let all: Vec<String> = self.no_gain.iter().map(one).collect();
        (!all.is_empty()).then(|| all.join(", "))
    }

    /// The ranking for a terminal: `head` are lines on the run, as [`Comparison::render_head`](crate::Comparison::render_head) has them.
    pub fn table(&self, head: &str) -> String {
        let mut out = head.to_string();
        out += &labelled("now", &self.now_words());
        let ranking = self.ranking();
        if !ranking.rows.is_empty() {
            out += "\n";
            out += &keyed_table(2, ranking.head, ranking.rows);
            ranking.notes.iter().for_each(|n| out += &labelled("note", n));
            out += "\n";
        }
        out += &labelled("best", &self.verdict());
        self.without_gain().iter().for_each(|text| out += &labelled("no gain", text));
        self.skipped.iter().for_each(|text| out += &labelled("skipped", text));
        for change in self.changes() {
            let how = change.how();
            out += &format!("\n{}\n", how.name);
            how.commands.iter().for_each(|c| out += &format!("  {c}\n"));
            if how.price != "none" {
                out += &labelled("  costs", how.price);
            }
        }
        out += "\n";
        out += &labelled(
            "note",
            "Gains are of the VM's predicted time, and those of several changes are of all of them together. How to check and undo each: docs/guide/what-to-do-now.md",
        );
        out
    }

    /// The ranking as a document; `identity` says what the runs are of.
    ///
    /// # Errors
    /// If JSON cannot be made.
    pub fn json(&self, identity: &serde_json::Value) -> Result<String, RenderError> {
        let document = json!({
            "schema": SCHEMA, "of": identity, "now": self.now, "now_placement": self.now_placement, "now_seconds": self.now_seconds, "verdict": self.verdict(),
            "ranked": self.ranked, "no_gain": self.no_gain, "skipped": self.skipped, "tried": self.tried,
        });
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
        let shown = self.ranked.iter().take(MOST_ROWS).chain(&self.no_gain);
        let how = |c: Change| {
            let how = c.how();
            vec![how.name.into(), how.commands.join("\n"), how.price.into()]
        };
        let changes = PageTable {
            title: "How to make each change".into(),
            head: ["change", "commands", "costs"].map(String::from).into(),
            rows: self.changes().into_iter().map(how).collect(),
            notes: vec!["How to check and undo each: docs/guide/what-to-do-now.md".into()],
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
            tables: vec![self.ranking(), changes],
            ..Page::default()
        }
        .render()
    }
}

fn capital(text: &str) -> String {
    let mut chars = text.chars();
    chars.next().map_or(String::new(), |c| c.to_uppercase().chain(chars).collect())
}
