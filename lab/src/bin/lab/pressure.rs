// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `lab pressure`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bifold_lab::lab::default_series;
use bifold_lab::pressure::{Settings, document, run as experiment};

use super::{Processor, deliver, lab, write};

#[derive(clap::Args)]
pub struct Args {
    /// Description of the experiment, for `bifold reclaim run`
    #[arg(value_name = "EXPERIMENT.toml")]
    experiment: PathBuf,
    /// Run this case only (repeatable)
    #[arg(long = "case", value_name = "NAME")]
    cases: Vec<String>,
    /// Kernel of laboratory and guests: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Memory of the laboratory in MiB
    #[arg(long, default_value_t = 3072, value_parser = clap::value_parser!(u64).range(1024..=65536))]
    memory: u64,
    /// Size of the laboratory's disk for swapping, in MiB
    #[arg(long, default_value_t = 2048, value_parser = clap::value_parser!(u64).range(16..=65536))]
    swap: u64,
    /// Most reads and writes of that disk in a second; 0 for no limit
    #[arg(long, default_value_t = 0)]
    swap_iops: u64,
    /// Guests in shadow paging
    #[arg(long)]
    shadow: bool,
    /// Time limit in seconds
    #[arg(long, default_value_t = 3600)]
    seconds: u64,
    /// Write the page to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the page with curves to this file
    #[arg(long, value_name = "FILE.html")]
    report: Option<PathBuf>,
    /// Write the samples to this file
    #[arg(long, value_name = "FILE.json")]
    json: Option<PathBuf>,
}

pub fn run(processor: &Processor, args: &Args) -> Result<ExitCode> {
    let lab = lab(processor, Some(&args.kernel))?;
    let settings = Settings {
        experiment: args.experiment.clone(),
        cases: args.cases.clone(),
        memory_mib: args.memory,
        swap_mib: args.swap,
        swap_iops: args.swap_iops,
        nested: !args.shadow,
        seconds: args.seconds,
    };
    let results = experiment(&lab, &settings)?;
    let text = document(&lab, &settings, &results, &args.experiment);
    deliver(args.output.as_deref(), &text)?;
    for (path, data) in [(&args.report, &results.page), (&args.json, &results.json)] {
        path.as_ref().map_or(Ok(()), |path| write(path, data))?;
    }
    Ok(ExitCode::SUCCESS)
}
