// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold profile check`: whether a profile can be used, and where its values come from.

use crate::console::print;
use crate::status::{self, Status};
use crate::words;
use bifold_model::{Profile, TableOrigin, Unmeasured};
use bifold_report::{Format, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

const EXAMPLES: &str = "\
Examples:
  bifold profile check mine.toml
  bifold profile check zen4 --format json";

/// Check a profile, and show where its values come from
///
/// Reads the profile as every verb does: unknown keys, impossible values and values that contradict each
/// other are refused with their keys, and the exit status is 1. Otherwise prints for each table whether its
/// values are measured, taken from a source, or starting values that were not measured for this machine
/// (`prior`).
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct CheckArgs {
    /// A profile's file, or the name of a built-in profile
    #[arg(value_name = "FILE|NAME")]
    pub profile: String,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    pub format: Format,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.profile-check/1";

/// What `bifold profile check --format json` writes: where a profile's values come from.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// Name of the profile.
    name: &'a str,
    /// The machine that the profile is of.
    description: &'a str,
    /// XXH3-64 of the profile, hexadecimal; the processors that the profile is of do not count.
    config_hash: String,
    /// Whether the profile has data caches. Without them, runs are as with `--caches off`.
    caches: bool,
    /// Dotted keys whose measurement was refused.
    refused: Vec<String>,
    /// Dotted keys that the measurement did not reach before its end.
    not_reached: Vec<String>,
    /// The profile's tables.
    tables: &'a [KeyOrigin],
}

/// A table of the profile, with its own copy of the words.
#[derive(Serialize, JsonSchema)]
struct KeyOrigin {
    /// Dotted key of the table: `cpu`, `tlb.l2`, `exit.invlpg`.
    key: String,
    /// Where the values come from: `measured`, `measured, some prior`, `sourced`, `sourced, some prior` or
    /// `prior`.
    kind: &'static str,
    /// Source of the values; null without one.
    source: Option<String>,
    /// Which values are starting values that were not measured for this machine, and where these come from;
    /// null without such values.
    prior: Option<String>,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// Checks the profile and prints its tables.
pub fn run(args: &CheckArgs) -> anyhow::Result<Status> {
    let profile = Profile::load(&args.profile, &[])?;
    let mut rows = Vec::new();
    profile.each_origin(|o| {
        let owned = |text: Option<&str>| text.map(String::from);
        rows.push(KeyOrigin {
            key: o.key.into(),
            kind: kind(&o),
            source: owned(o.source),
            prior: owned(o.prior),
        });
    });
    print(&match args.format {
        Format::Json => data(&profile, &rows)?,
        _ => table(&profile, &rows),
    })?;
    Ok(Status::Done)
}

/// Where the values of a table come from, in words.
fn kind(o: &TableOrigin) -> &'static str {
    let measured = o.source.is_some_and(|s| s.contains("measured "));
    match (measured, o.source.is_some(), o.prior.is_some()) {
        (true, _, false) => "measured",
        (true, _, true) => "measured, some prior",
        (false, true, false) => "sourced",
        (false, true, true) => "sourced, some prior",
        (false, false, _) => "prior",
    }
}

fn table(profile: &Profile, rows: &[KeyOrigin]) -> String {
    let mut out = wrapped(&format!("profile  {}: {}", profile.name, profile.description), 9);
    let caches = match &profile.cache[..] {
        [] => "none: runs are as with --caches off".into(),
        all => all.iter().map(|c| format!("{} {} KB", c.name, c.bytes >> 10)).collect::<Vec<_>>().join(", "),
    };
    out += &wrapped(&format!("caches   {caches}"), 9);
    let count = |of: &str| rows.iter().filter(|r| r.kind == of).count();
    let kinds = ["measured", "measured, some prior", "sourced", "sourced, some prior", "prior"];
    let counts: Vec<String> =
        kinds.iter().filter(|k| count(k) > 0).map(|k| format!("{} {k}", count(k))).collect();
    out += &wrapped(&format!("tables   {}: {}", rows.len(), counts.join("; ")), 9);
    for why in [Unmeasured::Refused, Unmeasured::NotReached] {
        let keys = profile.unmeasured(why);
        if !keys.is_empty() {
            out += &wrapped(&format!("note     {} when measured: {}", why.word(), keys.join(", ")), 9);
        }
    }
    out.push('\n');
    let width = rows.iter().map(|r| r.key.len()).max().unwrap_or(0);
    for r in rows {
        let words: Vec<String> = [
            r.source.as_ref().map(|s| format!("source: {s}")),
            r.prior.as_ref().map(|p| format!("prior: {p}")),
        ]
        .into_iter()
        .flatten()
        .collect();
        out += &wrapped(&format!("{:<width$}  {}", r.key, words.join(". ")), width + 2);
    }
    out
}

fn data(profile: &Profile, rows: &[KeyOrigin]) -> anyhow::Result<String> {
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        name: &profile.name,
        description: &profile.description,
        config_hash: profile.hash(),
        caches: !profile.cache.is_empty(),
        refused: profile.unmeasured(Unmeasured::Refused),
        not_reached: profile.unmeasured(Unmeasured::NotReached),
        tables: rows,
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
