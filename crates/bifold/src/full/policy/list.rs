// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy list`: the built-in policies.

use crate::console::print;
use crate::status::Status;
use crate::words;
use bifold_policy::spec::BUILT_IN;
use bifold_policy::{Named, Spec};
use bifold_report::{Format, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::{Map, Value};

/// List the built-in policies
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    pub format: Format,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.policy-list/1";

/// What `bifold policy list --format json` writes: the built-in policies.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The policies.
    policies: Vec<Row<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct Row<'a> {
    /// Name of the policy.
    name: &'a str,
    /// What the policy does, in a sentence.
    what: &'a str,
    /// Time between decisions. Unit: s.
    interval_s: f64,
    /// Whether the policy reads the other mode's cost.
    needs_other: bool,
    /// The parameters, as a policy's TOML file has them.
    #[schemars(with = "Map<String, Value>")]
    parameters: &'a Spec,
}

/// The schema of the document.
pub fn schema() -> Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
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
    let policies = all.iter().map(|(n, what)| Row {
        name: &n.name,
        what,
        interval_s: n.spec.interval_s(),
        needs_other: n.spec.needs_other(),
        parameters: &n.spec,
    });
    let document = Document { schema: SCHEMA, bifold: bifold_base::version(), policies: policies.collect() };
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
