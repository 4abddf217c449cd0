// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `doctor`: what this machine lacks for the verbs that exist, in words and in JSON.

use crate::cli::DoctorFormat;
use crate::run::print;
use crate::status::Status;
use bifold_capture::doctor::{Check, checks};
use serde_json::json;
use std::fmt::Write as _;

/// Looks, tells, and ends with 77 if something is missing.
pub fn run(format: DoctorFormat) -> anyhow::Result<Status> {
    let checks = checks();
    print(&match format {
        DoctorFormat::Table => table(&checks),
        DoctorFormat::Json => json(&checks)?,
    })?;
    Ok(if checks.iter().all(|c| c.ok) { Status::Done } else { Status::Unavailable })
}

fn json(checks: &[Check]) -> anyhow::Result<String> {
    let document = json!({
        "schema": "bifold.doctor/1",
        "bifold": env!("CARGO_PKG_VERSION"),
        "ok": checks.iter().all(|c| c.ok),
        "checks": checks.iter().map(|c| json!({
            "name": c.name,
            "ok": c.ok,
            "detail": c.detail,
            "remedy": c.remedy,
            "needed_by": c.needed_by,
        })).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn table(checks: &[Check]) -> String {
    let width = checks.iter().map(|c| c.name.chars().count()).max().unwrap_or(0);
    let mut out = String::new();
    for c in checks {
        let mark = if c.ok { "ok     " } else { "MISSING" };
        let _ = writeln!(out, "{mark}  {:<width$}  {}", c.name, c.detail);
        if !c.ok {
            let _ =
                writeln!(out, "{:>9}{:width$}  needed by {}: {}", "", "", c.needed_by.join(", "), c.remedy);
        }
    }
    let missing = checks.iter().filter(|c| !c.ok).count();
    out += &match missing {
        0 => "\nEverything that Bifold's verbs need is here.\n".to_string(),
        n => format!(
            "\n{n} of {} things are missing. What works without a guest: bifold compare FILE, --generate.\n",
            checks.len()
        ),
    };
    out
}
