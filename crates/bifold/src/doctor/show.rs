// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of the checks, as a table and as JSON.

use super::needs::{Finding, Works};
use bifold_guest::doctor::Check;
use bifold_host::ksm::{KsmError, Left};
use bifold_host::printable;
use bifold_report::wrapped;
use schemars::JsonSchema;
use serde::Serialize;
use std::collections::BTreeMap;
use std::fmt::Write as _;

/// Name and version of the document.
const SCHEMA: &str = "bifold.doctor/1";

/// What `bifold doctor --format json` writes: which verbs work on this machine, and what the others lack.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// Whether each verb that was asked for works in full; without VERB, whether `compare` does.
    ok: bool,
    /// The verbs that were checked.
    verbs: &'a [Finding],
    /// The checks that these verbs need.
    checks: &'a [&'a Check],
    /// KSM's settings that a command has changed and not restored yet; null if there are none.
    ksm_journal: Option<KsmJournal>,
    /// What orders of `reclaim set` and of the daemon have left that are not under way.
    reclaim_journals: &'a [LeftOrder],
}

/// The journal of KSM's settings.
#[derive(Serialize, JsonSchema)]
#[serde(untagged)]
enum KsmJournal {
    /// A command has changed the settings.
    Left {
        /// The command's process.
        pid: u32,
        /// Whether that process, or its guardian, still holds the settings and will restore them.
        held: bool,
        /// The settings as the command found them, by name.
        settings: BTreeMap<&'static str, String>,
    },
    /// The journal cannot be used.
    Unread {
        /// Why.
        error: String,
    },
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// What an order about a guest's memory has left.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(untagged)]
pub enum LeftOrder {
    /// The guest's memory is not back: the order and its guardian were killed, or it was to stay.
    Of {
        /// The guest's process.
        pid: u32,
        /// The VM's name.
        #[serde(rename = "vm")]
        name: String,
        /// Whether the user wanted that.
        kept: bool,
    },
    /// A journal that cannot be used.
    Unread {
        /// Why.
        error: String,
    },
}

impl LeftOrder {
    fn text(&self) -> String {
        match self {
            LeftOrder::Of { pid, name, kept } => {
                let why = if *kept {
                    "was kept by `reclaim set --keep`"
                } else {
                    "was left by an order that was killed"
                };
                let name = printable(name);
                format!(
                    "the size of VM {name} (process {pid}) {why}: `bifold reclaim restore {pid}` gives its memory back"
                )
            }
            LeftOrder::Unread { error } => error.clone(),
        }
    }
}

pub fn json(
    ok: bool,
    findings: &[Finding],
    checks: &[&Check],
    left: &Result<Option<Left>, KsmError>,
    orders: &[LeftOrder],
) -> anyhow::Result<String> {
    let ksm_journal = match left {
        Ok(left) => left.as_ref().map(|l| KsmJournal::Left {
            pid: l.journal.pid,
            held: l.held,
            settings: l.journal.found.iter().map(|(s, v)| (s.name(), s.text(v))).collect(),
        }),
        Err(e) => Some(KsmJournal::Unread { error: e.to_string() }),
    };
    let (schema, bifold) = (SCHEMA, bifold_base::version());
    let document =
        Document { schema, bifold, ok, verbs: findings, checks, ksm_journal, reclaim_journals: orders };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

pub fn table(
    findings: &[Finding],
    checks: &[&Check],
    left: &Result<Option<Left>, KsmError>,
    orders: &[LeftOrder],
) -> String {
    let mut out = String::new();
    let width = findings.iter().map(|f| f.verb.len()).max().unwrap_or(0);
    for f in findings {
        let word = match f.works {
            Works::Yes => "works",
            Works::InPart => "works in part",
            Works::No => "cannot work",
        };
        let colon = if f.why.is_empty() { "" } else { ": " };
        out += &wrapped(&format!("{:<width$}  {word}{colon}{}", f.verb, f.why), width + 2);
    }
    if !checks.is_empty() {
        out.push('\n');
    }
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    for c in checks {
        let mark = if c.ok { "ok     " } else { "MISSING" };
        let mut details = c.detail.split('\n');
        let first = details.next().unwrap_or_default();
        out += &wrapped(&format!("{mark}  {:<width$}  {first}", c.name), width + 11);
        for detail in details {
            out += &wrapped(&format!("{:1$}{detail}", "", width + 11), width + 11);
        }
        if !c.ok && !c.remedy.is_empty() {
            out += &wrapped(&format!("{:1$}remedy: {2}", "", width + 11, c.remedy), width + 11);
        }
    }
    match left {
        Ok(None) => {}
        Ok(Some(l)) if l.held => {
            let text = format!(
                "KSM's settings are changed by process {} now, which will restore them",
                l.journal.pid
            );
            let _ = write!(out, "\n{}", wrapped(&text, 0));
        }
        Ok(Some(l)) => {
            let text = format!(
                "KSM's settings were left changed by process {}, which was killed. They were: {}. To restore them: \
                 sudo bifold doctor --restore",
                l.journal.pid, l.journal.found
            );
            let _ = write!(out, "\n{}", wrapped(&text, 0));
        }
        Err(e) => {
            let _ = write!(out, "\n{}", wrapped(&e.to_string(), 0));
        }
    }
    for order in orders {
        let _ = write!(out, "\n{}", wrapped(&order.text(), 0));
    }
    out
}
