// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold profile list` and `show`: the built-in profiles and their files.

use crate::console::print;
use crate::status::Status;
use crate::usage::UsageError;
use crate::words;
use bifold_model::Profile;
use bifold_report::{Format, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;

/// List the built-in profiles
#[derive(Debug, Args)]
pub struct ListArgs {
    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    pub format: Format,
}

/// Print a built-in profile's file, to begin your own with
#[derive(Debug, Args)]
pub struct ShowArgs {
    /// Name of the profile
    pub name: String,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.profile-list/1";

/// What `bifold profile list --format json` writes: the built-in profiles.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The profiles.
    profiles: Vec<Row<'a>>,
}

#[derive(Serialize, JsonSchema)]
struct Row<'a> {
    /// Name of the profile.
    name: &'a str,
    /// The machine that the profile is of.
    description: &'a str,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// Prints the list.
pub fn list(args: &ListArgs) -> anyhow::Result<Status> {
    let all: Vec<_> = Profile::builtin_descriptions().collect();
    print(&match args.format {
        Format::Json => {
            let profiles = all.into_iter().map(|(name, description)| Row { name, description }).collect();
            let document = Document { schema: SCHEMA, bifold: bifold_base::version(), profiles };
            serde_json::to_string_pretty(&document)? + "\n"
        }
        _ => {
            let width = all.iter().map(|(name, _)| name.len()).max().unwrap_or(0);
            let mut out = format!("{:<width$}  description\n", "profile");
            for (name, description) in all {
                out += &wrapped(&format!("{name:<width$}  {description}"), width + 2);
            }
            out
        }
    })?;
    Ok(Status::Done)
}

/// Prints the file.
pub fn show(args: &ShowArgs) -> anyhow::Result<Status> {
    let Some(text) = Profile::builtin_text(&args.name) else {
        let names = Profile::builtin_names().collect::<Vec<_>>().join(", ");
        let problem = format!("there is no built-in profile of this name; there are {names}");
        return Err(UsageError::value(format!("NAME {}", args.name), problem).failing().into());
    };
    print(text)?;
    Ok(Status::Done)
}
