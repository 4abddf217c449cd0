// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab nodes`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bifold_lab::lab::default_series;
use bifold_lab::place::{facts, nodes_document};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of the laboratory: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Write the page to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let lab = super::lab(processor, Some(&args.kernel))?;
    super::introduce(&lab);
    let facts = facts(&lab)?;
    let page = nodes_document(&lab, &facts);
    super::deliver(args.output.as_deref(), &page)?;
    Ok(ExitCode::from(if facts.iter().all(|f| f.right()) { 0 } else { 3 }))
}
