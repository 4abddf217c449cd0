// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold schema`: the JSON Schemas of outputs, made from the types that are written.

use crate::status::Status;
use crate::usage::UsageError;
use crate::{cache, console, doctor, full, profile};
use bifold_policy::timeline;
use bifold_reclaim::timeline as memory_timeline;
use bifold_report::schema::{schema, schemas};
use clap::Args;
use serde_json::Value;

/// Print the JSON Schema of an output
///
/// Every field has its meaning and its unit. An output names its schema in the field `schema`:
/// `bifold.compare/2`. With `--format jsonl`, the schema is that of a line. Fields may be added within a
/// version of a schema; none changes its meaning or goes away. Without a name, the names are listed.
#[derive(Debug, Args)]
#[command(after_help = "\
Examples:
  bifold schema
  bifold schema compare > compare.json")]
pub struct SchemaArgs {
    /// Name of the schema, such as `compare` or `bifold.compare/2`
    name: Option<String>,
}

/// Carries out the verb.
pub fn run(args: &SchemaArgs) -> anyhow::Result<Status> {
    let all = all();
    let Some(name) = &args.name else {
        let line = |schema: &Value| format!("{:<32}{}\n", title(schema), first_sentence(schema));
        return console::print(&all.iter().map(line).collect::<String>()).map(|()| Status::Done);
    };
    let short = |schema: &Value| title(schema).trim_start_matches("bifold.").split('/').next() == Some(name);
    let Some(schema) = all.iter().find(|schema| title(schema) == name || short(schema)) else {
        return Err(UsageError::value("NAME", "is no schema: `bifold schema` lists them").into());
    };
    console::print(&(serde_json::to_string_pretty(schema)? + "\n")).map(|()| Status::Done)
}

/// The schemas of all outputs.
fn all() -> Vec<Value> {
    let mut all = schemas();
    all.extend([
        schema::<timeline::Document>(timeline::SCHEMA),
        schema::<memory_timeline::Document>(memory_timeline::SCHEMA),
        cache::schema(),
        doctor::schema(),
    ]);
    all.extend(profile::schemas());
    all.extend(full::schemas());
    all
}

fn title(schema: &Value) -> &str {
    schema["title"].as_str().unwrap_or_default()
}

/// What the output is, on one line.
fn first_sentence(schema: &Value) -> String {
    let text = schema["description"].as_str().unwrap_or_default().replace('\n', " ");
    let first = text.split_once(". ").map_or(text.as_str(), |(first, _)| first);
    first.trim_start_matches("What ").replacen(" writes:", ":", 1).trim_end_matches('.').into()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn every_schema_says_what_it_is_of() {
        for schema in all() {
            assert!(!first_sentence(&schema).is_empty(), "{}", title(&schema));
        }
    }
}
