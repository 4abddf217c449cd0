// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab live`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result};
use bifold_lab::lab::default_series;
use bifold_lab::live::{COMMON, document, experiment, picture};
use bifold_lab::modelled::{ModelledPmu, PROFILE, Settings, make};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of laboratory and guests: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// A modelled PMU that `lab modelled-pmu` wrote (default: a new one, which takes some minutes)
    #[arg(long, value_name = "FILE")]
    modelled_pmu: Option<PathBuf>,
    /// Write the page to this Markdown file instead of stdout, and the picture beside it (.svg)
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
    /// Write the daemon's recording to this file, for `bifold policy replay`, and its log beside it (.log)
    #[arg(long, value_name = "FILE")]
    recording: Option<PathBuf>,
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let lab = super::lab(processor, Some(&args.kernel))?;
    let pmu = match &args.modelled_pmu {
        Some(path) => ModelledPmu::read(path)?,
        None => {
            let settings = Settings {
                profile: PROFILE.into(),
                set: Vec::new(),
                arguments: COMMON.map(String::from).to_vec(),
            };
            make(&lab, &settings, &super::say)?.pmu
        }
    };
    eprintln!("lab: guests under the daemon");
    let live = experiment(&lab, &pmu)?;
    match &args.output {
        Some(path) => {
            let drawn = path.with_extension("svg");
            let name = drawn.file_name().context("no file name")?.to_string_lossy().into_owned();
            super::write(&drawn, picture(&live).as_bytes())?;
            super::write(path, document(&live, &pmu, &name).as_bytes())?;
        }
        None => print!("{}", document(&live, &pmu, "live.svg")),
    }
    if let Some(path) = &args.recording {
        super::write(path, live.recording.as_bytes())?;
        super::write(&path.with_extension("log"), live.log.as_bytes())?;
    }
    let wrong = live.wrong();
    wrong.iter().for_each(|w| eprintln!("lab: {w}"));
    Ok(ExitCode::from(if wrong.is_empty() { 0 } else { 3 }))
}
