// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab fuzz`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::Result;
use bifold_lab::fuzz::{Settings, run as fuzz, sources, table};
use bifold_lab::lab::default_series;

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of the laboratory: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Seed of the first round
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time after which no further round begins, by the laboratory's clock
    #[arg(long, default_value_t = 300)]
    seconds: u64,
    /// Largest number of rounds; with --seed of a round that failed, 1 repeats it
    #[arg(long)]
    rounds: Option<u64>,
    /// Rounds of this kind only
    #[arg(long, value_parser = ["deterministic", "concurrent"])]
    kind: Option<String>,
    /// Compare with VMs that stay in shadow paging, which tells errors of shadow paging from errors of
    /// switches
    #[arg(long)]
    still: bool,
    /// Directory with KVM's modules (default: the modules of `make kernel`)
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Boot the laboratory with this kernel: a directory with vmlinux and modules/
    #[arg(long, value_name = "DIR")]
    debug_kernel: Option<PathBuf>,
    /// Number of the laboratory's CPUs
    #[arg(long, default_value_t = 2)]
    cpus: u32,
    /// Memory of the laboratory in MiB (1536, or 3072 for a debug kernel)
    #[arg(long)]
    memory: Option<u64>,
    /// Time limit of each boot and of its end together, beside the fuzzer's (180, or 1200 for a debug kernel
    /// or under Bochs)
    #[arg(long)]
    more_seconds: Option<u64>,
    /// Write the outcome to this file: JSON if its name ends in .json, else Markdown
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let lab = super::switch::lab(
        processor,
        &args.kernel,
        args.debug_kernel.as_ref(),
        args.modules.as_ref(),
        false,
    )?;
    super::introduce(&lab);
    let debug = args.debug_kernel.is_some();
    let slow = debug || processor.vendor == "intel";
    let settings = Settings {
        seed: args.seed,
        seconds: args.seconds,
        rounds: args.rounds,
        kind: args.kind.clone(),
        still: args.still,
        cpus: args.cpus,
        memory_mib: args.memory.unwrap_or(if debug { 3072 } else { 1536 }),
        more_seconds: args.more_seconds.unwrap_or(if slow { 1200 } else { 180 }),
    };
    let modules = args.modules.clone().or_else(|| lab.built_modules());
    let outcome = fuzz(&lab, &settings, sources(modules.as_deref()), debug)?;
    let text = table(&outcome);
    print!("{text}");
    if let Some(path) = &args.output {
        let data = match path.extension().and_then(|e| e.to_str()) {
            Some("json") => serde_json::to_string(&outcome)? + "\n",
            _ => format!(
                "# Fuzzing KVM's interface on Linux {}\n\nMade by `lab fuzz`.\n\n{text}",
                outcome.kernel
            ),
        };
        super::write(path, data.as_bytes())?;
    }
    Ok(if outcome.good() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
