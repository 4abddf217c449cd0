// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `lab reclaim`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bifold_lab::lab::default_series;
use bifold_lab::reclaim::drive::{Settings, drive};
use bifold_lab::reclaim::table::Tally;
use bifold_lab::reclaim::{CONFIGS, document, workload};

use super::{Processor, deliver, lab};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of laboratory and guests: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Programs to compare (default: all whose names begin with reclaim-)
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// Configurations to compare (default: all)
    #[arg(long = "config", value_name = "NAME", value_parser = CONFIGS)]
    configs: Vec<String>,
    /// What the host holds of the guest at most, in MiB, separated by commas
    #[arg(long, value_name = "LIST", value_delimiter = ',', default_value = "20,28,36",
          value_parser = clap::value_parser!(u64).range(8..=192))]
    sizes: Vec<u64>,
    /// Number of runs under KVM per configuration and size
    #[arg(short = 'n', long, default_value_t = 1)]
    runs: u64,
    /// Guest memory in MiB
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// Number of boots that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Save predictions and counts to this file; what it has already is not run again
    #[arg(long, value_name = "FILE")]
    counted: Option<PathBuf>,
    /// Write the tables to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(processor: &Processor, args: &Args) -> Result<ExitCode> {
    let lab = lab(processor, Some(&args.kernel))?;
    let workload = workload(&args.programs, args.memory)?;
    let chosen = |c: &&str| args.configs.is_empty() || args.configs.iter().any(|a| a == c);
    let settings = Settings {
        configs: CONFIGS.into_iter().filter(chosen).collect(),
        sizes_mib: args.sizes.clone(),
        runs: args.runs,
        jobs: args.jobs,
        kept: args.counted.clone(),
    };
    let (rows, results) = drive(&lab, &workload, &settings, &super::say)?;
    let text = document::page(&lab, &workload, &settings, &rows, &results);
    deliver(args.output.as_deref(), &text)?;
    let tally = Tally::of(&rows);
    eprintln!(
        "lab: of {} rows, {} have no fewer refaults than possible, {} are near LRU's prediction, {} have exits as predicted",
        tally.rows, tally.possible, tally.near_lru, tally.exits_close
    );
    Ok(if tally.good() { ExitCode::SUCCESS } else { ExitCode::from(3) })
}
