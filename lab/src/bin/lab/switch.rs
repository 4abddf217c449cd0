// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab switch`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Result, bail};
use bifold_lab::lab::{Lab, default_series};
use bifold_lab::switch::{Machine, judge, run as cases};

#[derive(clap::Args)]
pub struct Args {
    /// Cases to run (default: all except those that take minutes; `tiny-vmm switch --list` lists all)
    #[arg(value_name = "CASE")]
    cases: Vec<String>,
    /// Kernel of the laboratory: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Directory with KVM's modules (default: the modules of `make kernel`)
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Boot the laboratory with this kernel: a directory with vmlinux and modules/
    #[arg(long, value_name = "DIR")]
    debug_kernel: Option<PathBuf>,
    /// Memory of the laboratory in MiB; the case `cost` has guests of 4 GB from 7000 on, of 16 GB from 19000
    /// on
    #[arg(long, default_value_t = 1536)]
    memory: u64,
    /// Time limit of the boot in seconds
    #[arg(long, default_value_t = 900)]
    seconds: u64,
    /// Emulate two CPUs with a thread each, instead of one CPU with exact time (which counts instructions)
    #[arg(long)]
    threads: bool,
}

/// The laboratory for these arguments. Its KVM can switch VMs, or is the kernel's own if `own`.
pub fn lab(
    processor: &super::Processor,
    kernel: &str,
    debug_kernel: Option<&PathBuf>,
    modules: Option<&PathBuf>,
    own: bool,
) -> Result<Lab> {
    let mut lab = super::lab(processor, Some(kernel))?;
    if let Some(dir) = debug_kernel {
        let modules = dir.join("modules");
        lab = lab.on(bifold_guest::kernel::own(&dir.join("vmlinux"), Some(&modules))?);
    }
    if own {
        return Ok(lab);
    }
    let release = lab.kernel().version.clone();
    match modules.cloned().or_else(|| lab.built_modules()) {
        Some(dir) => Ok(lab.with_modules(dir)),
        None => {
            bail!(
                "target/kernel has no modules for {release}: run make kernel, or name their directory with --modules"
            )
        }
    }
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let lab = lab(processor, &args.kernel, args.debug_kernel.as_ref(), args.modules.as_ref(), false)?;
    super::introduce(&lab);
    let machine = Machine { memory_mib: args.memory, seconds: args.seconds, exact: !args.threads };
    let outcome = cases(&lab, &args.cases, machine)?;
    for fact in &outcome.facts {
        println!("{fact}");
    }
    judge(&outcome)?;
    Ok(ExitCode::SUCCESS)
}
