// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The results of the checks, as a table and as JSON.

use super::needs::{Finding, Works};
use bifold_guest::doctor::Check;
use bifold_host::ksm::{KsmError, Left};
use bifold_host::printable;
use bifold_report::wrapped;
use serde_json::json;
use std::fmt::Write as _;

/// What an order about a guest's memory has left.
#[derive(Debug, Clone, PartialEq, Eq)]
#[cfg_attr(not(feature = "host"), allow(dead_code, reason = "orders are made by verbs that are left out"))]
pub enum LeftOrder {
    /// The guest's memory is not back: the order and its guardian were killed, or it was to stay.
    Of {
        /// The guest's process.
        pid: u32,
        /// Its name.
        name: String,
        /// Whether the user wanted that.
        kept: bool,
    },
    /// A journal that cannot be read, and why.
    Unread(String),
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
            LeftOrder::Unread(why) => why.clone(),
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
    let left = match left {
        Ok(None) => json!(null),
        Ok(Some(l)) => json!({
            "pid": l.journal.pid,
            "held": l.held,
            "settings": l.journal.found.iter().map(|(s, v)| (s.name(), s.text(v))).collect::<std::collections::BTreeMap<_, _>>(),
        }),
        Err(e) => json!({ "error": e.to_string() }),
    };
    let document = json!({
        "schema": "bifold.doctor/1",
        "bifold": bifold_base::version(),
        "ok": ok,
        "verbs": findings.iter().map(|f| json!({
            "verb": f.verb,
            "status": match f.works { Works::Yes => "works", Works::InPart => "part", Works::No => "cannot" },
            "why": f.why,
            "missing": f.missing,
        })).collect::<Vec<_>>(),
        "checks": checks.iter().map(|c| json!({
            "name": c.name,
            "ok": c.ok,
            "detail": c.detail,
            "remedy": c.remedy,
            "needed_by": c.needed_by,
        })).collect::<Vec<_>>(),
        "ksm_journal": left,
        "reclaim_journals": orders.iter().map(|order| match order {
            LeftOrder::Of { pid, name, kept } => json!({ "pid": pid, "vm": name, "kept": kept }),
            LeftOrder::Unread(why) => json!({ "error": why }),
        }).collect::<Vec<_>>(),
    });
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
