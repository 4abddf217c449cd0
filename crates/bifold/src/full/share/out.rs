// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Output options of several verbs of `bifold share`.

use crate::console::{Delivery, OutputFile, create_for_data};
use clap::Args;
use std::path::PathBuf;

/// Options of the output.
#[derive(Debug, Args)]
#[command(next_help_heading = "Output")]
pub struct OutArgs {
    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

impl OutArgs {
    /// Creates the output file, if one is named.
    pub fn create(&self) -> anyhow::Result<Option<OutputFile>> {
        create_for_data(self.output.as_deref())
    }

    /// Delivers the data to the file that [`create`](OutArgs::create) gave.
    pub fn write(&self, file: Option<OutputFile>, data: &str) -> anyhow::Result<()> {
        let mut delivery = Delivery::new(!self.quiet);
        delivery.data(data, file);
        delivery.done()
    }
}
