// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Arguments and output of `lab storm`.

use std::path::PathBuf;
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bifold_lab::lab::{Lab, default_series};
use bifold_lab::storm::drive::{Machine, Outcome, drive};
use bifold_lab::storm::table::table;
use bifold_lab::storm::{KINDS, Noise, Pages, Storm};
use bifold_mmu::Mode;

#[derive(clap::Args)]
pub struct Args {
    /// Kernel of the laboratory and of the guest: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Number of switches; with 0 the guest stays in its first mode for --seconds
    #[arg(long, default_value_t = 10_000)]
    switches: u64,
    /// Number of the guest's vCPUs
    #[arg(long, default_value_t = 4)]
    vcpus: u32,
    /// The guest's memory in MiB
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// Kinds of load, separated by commas: memory, fork, protect, huge, tables, compute, keys, or all
    #[arg(long, default_value = "all")]
    load: String,
    /// Turn the guest's kernel page-table isolation on
    #[arg(long)]
    kpti: bool,
    /// Host pages behind the guest's memory
    #[arg(long, value_parser = ["4k", "thp", "ksm"], default_value = "4k")]
    pages: String,
    /// Further stress of the guest's memory: swap it, log dirty pages, or split huge pages; may be given
    /// several times
    #[arg(long, value_parser = ["swap", "dirty", "split"])]
    noise: Vec<String>,
    /// Number of migrations to another QEMU of the laboratory during the storm; not with --noise
    #[arg(long, default_value_t = 0, conflicts_with = "noise")]
    migrations: u64,
    /// Paging mode of the guest at its start and after each migration
    #[arg(long, value_parser = ["nested", "shadow"], default_value = "nested")]
    first: String,
    /// Shortest stay in a mode, in milliseconds of guest time
    #[arg(long, default_value_t = 10)]
    stay: u64,
    /// Seed of the load and of the times between switches
    #[arg(long, default_value_t = 1)]
    seed: u64,
    /// Time limit of the load in seconds
    #[arg(long, default_value_t = 2400)]
    seconds: u64,
    /// Number of the laboratory's CPUs; a switch occupies one, the others can run vCPUs meanwhile
    #[arg(long, default_value_t = 4)]
    cpus: u32,
    /// Memory of the laboratory besides the guest's, in MiB (1536, or 3072 for a debug kernel)
    #[arg(long)]
    lab_memory: Option<u64>,
    /// Directory with KVM's modules (default: the modules of `make kernel`; with --switches 0 the kernel's
    /// own)
    #[arg(long, value_name = "DIR")]
    modules: Option<PathBuf>,
    /// Boot the laboratory with this kernel: a directory with vmlinux and modules/
    #[arg(long, value_name = "DIR")]
    debug_kernel: Option<PathBuf>,
    /// Write the outcome to this file: every switch as JSON if its name ends in .json, else the table as
    /// Markdown
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

fn settings(args: &Args) -> Result<Storm> {
    for kind in args.load.split(',') {
        if kind != "all" && !KINDS.contains(&kind) {
            bail!("--load {kind}: there is no such kind; give {} or all", KINDS.join(", "));
        }
    }
    let noise = args.noise.iter().map(|n| match n.as_str() {
        "swap" => Noise::Swap,
        "dirty" => Noise::Dirty,
        _ => Noise::Split,
    });
    Ok(Storm {
        vcpus: args.vcpus,
        memory_mib: args.memory,
        load: args.load.clone(),
        seed: args.seed,
        kpti: args.kpti,
        pages: match args.pages.as_str() {
            "thp" => Pages::Huge,
            "ksm" => Pages::Merged,
            _ => Pages::Small,
        },
        noise: noise.collect(),
        switches: args.switches,
        stay_us: args.stay * 1000,
        seconds: args.seconds,
        migrations: args.migrations,
    })
}

fn keep(path: &std::path::Path, outcome: &Outcome, lab: &Lab) -> Result<()> {
    let data = match path.extension().and_then(|e| e.to_str()) {
        Some("json") => serde_json::to_string(outcome)? + "\n",
        _ => {
            let design = "[A paging mode per VM in KVM](../../docs/design/kernel.md) has the design.";
            format!(
                "# Storm of switches on Linux {}\n\n{}\nMade by `lab storm` under {}. {design}\n\n{}",
                outcome.kernel,
                lab.modules_line(),
                lab.emulator(),
                table(outcome)
            )
        }
    };
    super::write(path, data.as_bytes())
}

pub fn run(processor: &super::Processor, args: &Args) -> Result<ExitCode> {
    let storm = settings(args)?;
    // Without switches, the kernel's own KVM is sufficient.
    let own = args.switches == 0 && args.modules.is_none();
    let lab =
        super::switch::lab(processor, &args.kernel, args.debug_kernel.as_ref(), args.modules.as_ref(), own)?;
    let first = Mode::BOTH.into_iter().find(|mode| mode.name() == args.first).context("--first")?;
    let machine = Machine {
        cpus: args.cpus,
        memory_mib: args.lab_memory.unwrap_or(if args.debug_kernel.is_some() { 3072 } else { 1536 }),
        first,
        // Two boots and the end. Debug kernels are slow.
        more_seconds: if args.debug_kernel.is_some() { 1800 } else { 900 },
        notes: super::say,
    };
    super::introduce(&lab);
    let outcome = drive(&lab, &storm, machine)?;
    print!("{}", table(&outcome));
    if let Some(path) = &args.output {
        keep(path, &outcome, &lab)?;
    }
    Ok(if outcome.wrong.is_empty() { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}
