// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `lab superfluous`.

use std::path::PathBuf;
use std::process::ExitCode;
use std::time::Instant;

use anyhow::{Context, Result, anyhow};
use bifold_lab::lab::{Lab, default_series};
use bifold_lab::superfluous::document::{Results, page};
use bifold_lab::superfluous::table::{rows, tally};
use bifold_lab::superfluous::{SwapFile, count::count, predict::predict, workloads};

use super::{Processor, deliver, lab};

#[derive(clap::Args)]
pub struct Args {
    /// Kernels of laboratory and guests: a series (its newest package) or a package; may be given several
    /// times
    #[arg(long = "kernel", value_name = "KERNEL", default_value = default_series())]
    kernels: Vec<String>,
    /// Programs to compare (default: all whose names begin with swaps-)
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// What the host holds of the guest at most, in MiB
    #[arg(long, value_name = "MIB", default_value_t = 24, value_parser = clap::value_parser!(u64).range(8..=192))]
    size: u64,
    /// Guest memory in MiB
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// Write the page to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn under(lab: &Lab, args: &Args, file: &SwapFile) -> Result<Results> {
    let mut results = Results { kernel: lab.kernel().version.clone(), rows: Vec::new(), others: 0 };
    for workload in workloads(file, &args.programs, args.memory)? {
        let name = &workload.programs.last().context("a program")?.name;
        let begun = Instant::now();
        let (predicted, counted) = std::thread::scope(|s| {
            let predicted = s.spawn(|| predict(lab, &workload, args.size));
            let counted = count(lab, &workload, file, args.size);
            (predicted.join().map_err(|_| anyhow!("the prediction panicked")), counted)
        });
        let (predicted, counted) = (predicted??, counted?);
        eprintln!("lab: {name} under Linux {} in {:.0?}", results.kernel, begun.elapsed());
        results.rows.extend(rows(name, &predicted, &counted));
        results.others += counted.others;
    }
    Ok(results)
}

pub fn run(processor: &Processor, args: &Args) -> Result<ExitCode> {
    let file = SwapFile::new()?;
    let labs = args.kernels.iter().map(|k| lab(processor, Some(k))).collect::<Result<Vec<_>>>()?;
    let all = labs.iter().map(|lab| under(lab, args, &file)).collect::<Result<Vec<_>>>()?;
    let text = page(&labs[0], args.memory, args.size, &all);
    deliver(args.output.as_deref(), &text)?;
    let mut good = true;
    for of in &all {
        let (judged, close) = tally(&of.rows);
        eprintln!("lab: Linux {}: {close} of {judged} rows are close", of.kernel);
        good &= judged == close;
    }
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(3) })
}
