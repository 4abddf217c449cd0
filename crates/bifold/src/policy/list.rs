// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy list`: the built-in policies.

use crate::console::print;
use crate::status::Status;
use crate::words;
use bifold_policy::Named;
use bifold_policy::spec::BUILT_IN;
use bifold_report::{Format, wrapped};
use clap::Args;
use serde_json::json;

/// List the built-in policies
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    pub format: Format,
}

/// Prints the list.
pub fn run(args: &ListArgs) -> anyhow::Result<Status> {
    let all: Vec<(Named, String)> = Named::all()
        .into_iter()
        .map(|n| {
            let text = BUILT_IN.iter().find(|(name, _)| *name == n.name).map_or("", |(_, text)| text);
            (n, what(text))
        })
        .collect();
    print(&match args.format {
        Format::Json => json(&all)?,
        _ => table(&all),
    })?;
    Ok(Status::Done)
}

/// The first sentence of the comment with which a parameter file begins.
fn what(text: &str) -> String {
    let lines = text.lines().map_while(|l| l.strip_prefix('#')).take_while(|l| !l.trim().is_empty());
    let text = lines.map(str::trim).collect::<Vec<_>>().join(" ");
    // A full stop ends a sentence only before a capital: "et al., 2011" and "e.g. this" go on.
    let end = text.match_indices(". ").map(|(i, _)| i).find(|i| {
        let next = text[i + 2..].chars().next();
        next.is_some_and(|c| c.is_uppercase() || c == '"')
    });
    text[..end.unwrap_or(text.len())].trim_end_matches('.').to_string()
}

fn json(all: &[(Named, String)]) -> anyhow::Result<String> {
    let policy = |(n, what): &(Named, String)| {
        json!({
            "name": n.name,
            "what": what,
            "interval_s": n.spec.interval_s(),
            "needs_other": n.spec.needs_other(),
            "parameters": n.spec,
        })
    };
    let document = json!({
        "schema": "bifold.policy-list/1",
        "bifold": bifold_base::version(),
        "policies": all.iter().map(policy).collect::<Vec<_>>(),
    });
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn table(all: &[(Named, String)]) -> String {
    let width = all.iter().map(|(n, _)| n.name.len()).max().unwrap_or(0);
    let mut out = format!("{:<width$}  interval  description\n", "policy");
    for (n, what) in all {
        let estimate = if n.spec.needs_other() { " [needs the other mode's cost]" } else { "" };
        let interval = format!("{} s", n.spec.interval_s());
        let line = format!("{:<width$}  {interval:>8}  {what}{estimate}", n.name);
        out += &wrapped(&line, width + "  interval  ".len());
    }
    out.push('\n');
    out + &wrapped(
        "A policy of your own is a TOML file with the keys of one of these: see `bifold policy list --format json`.",
        0,
    )
}
