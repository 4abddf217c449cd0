// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab place`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bifold_lab::lab::default_series;
use bifold_lab::place::guests::PLACEMENTS;
use bifold_lab::place::world::{CLASSES, PROGRAMS};
use bifold_lab::place::{Settings, experiment, named};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of laboratory and guests: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Placement of the guest; may be given several times (default: all)
    #[arg(long = "placement", value_name = "NAME", value_parser = PLACEMENTS.each_ref().map(|p| p.name))]
    placements: Vec<String>,
    /// Program to run; may be given several times (default: all)
    #[arg(long = "program", value_name = "NAME", value_parser = PROGRAMS.each_ref().map(|p| p.name))]
    programs: Vec<String>,
    /// Class of the kernels' problems
    #[arg(long, value_name = "CLASS", value_parser = CLASSES.each_ref().map(|c| c.0), default_value = CLASSES[0].0)]
    class: String,
    /// Runs of each placement, each in a laboratory that has just booted
    #[arg(short = 'n', long, default_value_t = 5, value_parser = clap::value_parser!(u32).range(0..=100))]
    runs: u32,
    /// Do not count local and remote references by the model
    #[arg(long)]
    no_references: bool,
    /// Do not start guests from plans of `bifold place`, nor plant mistakes
    #[arg(long)]
    no_plans: bool,
    /// Write the page to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let lab = super::lab(processor, Some(&args.kernel))?;
    super::introduce(&lab);
    let chosen = |name: &str| args.programs.is_empty() || args.programs.iter().any(|n| n == name);
    let settings = Settings {
        placements: named(&args.placements),
        programs: PROGRAMS.into_iter().filter(|p| chosen(p.name)).collect(),
        class: args.class.clone(),
        runs: args.runs,
        references: !args.no_references,
        plans: !args.no_plans,
    };
    let outcome = experiment(&lab, &settings, &super::say)?;
    super::deliver(args.output.as_deref(), &outcome.document())?;
    let wrong = outcome.wrong();
    wrong.iter().for_each(|w| eprintln!("lab: {w}"));
    Ok(ExitCode::from(if wrong.is_empty() { 0 } else { 3 }))
}
