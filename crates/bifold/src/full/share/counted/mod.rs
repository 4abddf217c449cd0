// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A count of what guests could share, as a table ([`text`]) or as rows and documents ([`data`]).

mod data;
mod text;

pub use data::schemas;

use super::out::OutArgs;
use crate::console::{OutputFile, note};
use crate::status::Status;
use crate::words;
use bifold_report::Format;
use bifold_share::potential::Potential;
use clap::Args;

/// Output options of a count.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct CountShowArgs {
    /// Number of most repeated contents to list
    #[arg(short = 'n', long, value_name = "N", default_value_t = 10)]
    pub count: usize,

    /// Output format
    ///
    /// `table` is for reading. `json` is one document (schema bifold.share-potential/1). `csv` has one row
    /// per guest and page size; `jsonl` has the same rows as objects, and those of contents and pairs.
    #[arg(long, value_parser = words::formats(&Format::ALL), default_value = "table", hide_possible_values = true,
          value_name = "table|json|jsonl|csv")]
    pub format: Format,

    /// Options of the output.
    #[command(flatten)]
    pub out: OutArgs,
}

/// Prints or writes a count, and says what is to be known of it.
pub fn show(
    potential: &Potential,
    args: &CountShowArgs,
    output: Option<OutputFile>,
) -> anyhow::Result<Status> {
    let text = match args.format {
        Format::Table => text::table(potential),
        Format::Json => data::json(potential)?,
        Format::Jsonl => data::jsonl(potential)?,
        Format::Csv => data::csv(potential)?,
    };
    args.out.write(output, &text)?;
    if potential.changed > 0 {
        let text = format!(
            "{} pages changed while they were read and count as contents of their own; pause the guests for an \
             exact count",
            potential.changed
        );
        note(!args.out.quiet, text);
    }
    Ok(Status::Done)
}
