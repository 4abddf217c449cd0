// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab unswitched`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bifold_lab::lab::default_series;
use bifold_lab::unswitched::{Compared, compare, left_out, spread};
use bifold_lab::validate::{CONFIGS, Workload};

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of laboratory and guest: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Directory with our KVM's modules (default: the modules of `make kernel`)
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Programs to compare (default: all, and a run of gcc)
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// Configurations to compare (default: all)
    #[arg(long = "config", value_name = "NAME", value_parser = CONFIGS)]
    configs: Vec<String>,
    /// Number of runs under the unmodified KVM; each in turn is left out and compared, like our runs, with
    /// the range of the others
    #[arg(long, default_value_t = 6)]
    unmodified: u64,
    /// Number of runs under our KVM
    #[arg(long, default_value_t = 1)]
    ours: u64,
    /// Number of boots that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let ours = super::switch::lab(processor, &args.kernel, None, args.modules.as_ref(), false)?;
    let plain = super::lab(processor, Some(&args.kernel))?;
    let workload = Workload::new(&args.programs, 256, 1)?;
    let named = |c: &&str| args.configs.is_empty() || args.configs.iter().any(|a| a == c);
    let configs: Vec<&str> = CONFIGS.into_iter().filter(named).collect();
    let what = (&workload, &configs[..]);
    let Compared { rows, times } =
        compare((&plain, args.unmodified), (&ours, args.ours), what, args.jobs, &super::say)?;
    println!("configuration program exit_reason exits_unmodified exits_ours");
    let mut outside = 0;
    for r in rows.iter().filter(|r| !r.within()) {
        outside += 1;
        let range = |values: &[u64]| match spread(values) {
            (a, b) if a == b => a.to_string(),
            (a, b) => format!("{a}..{b}"),
        };
        println!("{} {} {} {} {}", r.config, r.program, r.reason, range(&r.unmodified), range(&r.ours));
    }
    let most = rows.iter().filter(|r| !r.within()).map(|r| {
        let (ours, theirs) = (spread(&r.ours), spread(&r.unmodified));
        (ours.1.saturating_sub(theirs.1).max(theirs.0.saturating_sub(ours.0)), theirs.1)
    });
    let (beyond, of) = most.max().unwrap_or((0, 0));
    println!(
        "{} of {} exit counts are in the range of {} unmodified runs; the furthest is outside by {beyond} of {of}",
        rows.len() - outside,
        rows.len(),
        args.unmodified
    );
    if let Some((ours, theirs)) = left_out(&rows) {
        println!(
            "outside the range of {} unmodified runs, with each of {} runs left out in turn: {ours:.1} exit counts \
             of a run of ours, {theirs:.1} of the run left out",
            args.unmodified - 1,
            args.unmodified
        );
    }
    for t in times {
        let ((program, worst), mean) = (&t.worst, t.mean);
        println!(
            "{}: programs take {mean:.3} times as long as under the unmodified KVM, {program} the most ({worst:.3})",
            t.config
        );
    }
    Ok(ExitCode::SUCCESS)
}
