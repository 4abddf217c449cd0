// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `lab`: runs tests in the KVM laboratory and compares the model with the real KVM.

mod fuzz;
mod kvm_tests;
mod live;
mod modelled_pmu;
mod nodes;
mod place;
mod pressure;
mod reclaim;
mod storm;
mod superfluous;
mod switch;
mod unswitched;

use std::path::{Path, PathBuf};
use std::process::ExitCode;

use anyhow::{Context, Result, bail};
use bifold_guest::{GuestError, Kind, TableFormat};
use bifold_lab::lab::{Lab, LabError, Skipped, default_series};
use bifold_lab::quick;
use bifold_lab::validate::drive::{Settings, drive};
use bifold_lab::validate::{CONFIGS, INSIDE, Workload, document, table};
use bifold_lab::vendor::VENDORS;
use bifold_trace::MOST_VCPUS;
use clap::{Parser, Subcommand};

/// Run tests of KVM in the laboratory: a kernel with KVM inside an emulated machine.
///
/// Exit status: 0 success, 1 failure, 2 wrong usage, 3 the comparison found rows outside its tolerances, 77
/// this machine lacks something (QEMU, a kernel package with KVM's module). lab/README.md has times and
/// results.
#[derive(Parser)]
#[command(name = "lab")]
struct Cli {
    #[command(flatten)]
    processor: Processor,
    #[command(subcommand)]
    verb: Verb,
}

/// The laboratory's processors, for every verb.
#[derive(clap::Args)]
struct Processor {
    /// Vendor of the laboratory's processors
    #[arg(long, global = true, value_parser = VENDORS.map(|v| v.option), default_value = VENDORS[0].option)]
    vendor: String,
    /// Bochs's model of CPU for --vendor intel (`bochs --help cpu` lists them); for --vendor amd flags of
    /// QEMU's CPU, such as +la57 (tables of five levels) or +la57,-pcid
    #[arg(long, global = true, value_name = "MODEL")]
    model: Option<String>,
    /// A parameter of the vendor's module of KVM, such as unrestricted_guest=0, or of kvm itself, such as
    /// kvm.paging_timeout_ms=100; may be given several times
    #[arg(long = "parameter", global = true, value_name = "NAME=VALUE")]
    parameters: Vec<String>,
}

#[derive(Subcommand)]
enum Verb {
    /// Compare predicted exits of a guest's programs with exits counted under the real KVM
    Validate(Validate),
    /// Compare predicted refaults and exits of a guest whose host holds a part of it with those under the
    /// real KVM
    Reclaim(reclaim::Args),
    /// Run `bifold reclaim run` with guests under KVM, on a host that can page out
    Pressure(pressure::Args),
    /// Compare the superfluous swap operations of a host that holds a part of its guest, predicted and
    /// counted
    Superfluous(superfluous::Args),
    /// Switch a guest's paging mode under load and check its memory
    Storm(storm::Args),
    /// Run the tiny VMM's switch cases; prints a line of JSON for each
    Switch(switch::Args),
    /// Fuzz KVM's interface: random calls, guest code and switches of the paging mode
    Fuzz(fuzz::Args),
    /// Compare a guest's exits under an unmodified KVM and under ours without a switch
    Unswitched(unswitched::Args),
    /// Run kvm-unit-tests and the kernel's KVM selftests under an unmodified KVM and under ours, in every
    /// mode
    KvmTests(kvm_tests::Args),
    /// Model what steps of the program with phases cost in each mode, for laboratories without a PMU
    ModelledPmu(modelled_pmu::Args),
    /// Run guests with phases under bifold's daemon, price what the daemon did, and replay its decisions
    Live(live::Args),
    /// Compare the nodes of hand-made guests' page tables and data with the model's, on a host of two nodes
    Nodes(nodes::Args),
    /// Run parallel programs in guests placed well and badly on a host of two nodes, and count
    Place(place::Args),
    /// Run the quick tests; prints `ok NAME (SECONDS)`, `skipped NAME: WHY` or `FAILED NAME: WHY` for each
    Test(Test),
}

#[derive(clap::Args)]
struct Test {
    /// Tests to run (default: all)
    #[arg(value_name = "NAME", value_parser = quick::names())]
    names: Vec<String>,
    /// Kernel of laboratory and guests: a series (its newest package) or a package (default: the first series
    /// of kernel/series.txt that apt knows)
    #[arg(long)]
    kernel: Option<String>,
    /// Number of boots that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// List the tests and exit
    #[arg(long)]
    list: bool,
}

/// All configurations that can be compared.
fn known() -> Vec<&'static str> {
    [CONFIGS, INSIDE].concat()
}

#[derive(clap::Args)]
struct Validate {
    /// Kernel of laboratory and guests: a series (its newest package) or a package
    #[arg(long, default_value = default_series())]
    kernel: String,
    /// Programs to compare (default: all, and a run of gcc)
    #[arg(long = "program", value_name = "NAME")]
    programs: Vec<String>,
    /// Configurations to compare (default: those of one hypervisor)
    #[arg(long = "config", value_name = "NAME", value_parser = known())]
    configs: Vec<String>,
    /// Compare guests within guests: in the laboratory runs another one, and the guest in that
    #[arg(long, conflicts_with = "configs")]
    inside: bool,
    /// Kernel page-table isolation of the guests
    #[arg(long, value_parser = ["on", "off", "both"], default_value = "both")]
    kpti: String,
    /// Format of the guests' page tables: 4-level, 5-level (with --model=+la57), pae or 32-bit
    #[arg(long, value_name = "FORMAT", value_parser = tables, default_value = "4-level")]
    guest_tables: TableFormat,
    /// Number of runs under KVM per configuration
    #[arg(short = 'n', long, default_value_t = 3)]
    runs: u64,
    /// Guest memory in MiB
    #[arg(long, default_value_t = 256)]
    memory: u64,
    /// Number of the guests' vCPUs, whose threads share the laboratory's one CPU
    #[arg(long, value_name = "N", default_value_t = 1, value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_VCPUS)))]
    vcpus: u32,
    /// Number of boots that run at the same time
    #[arg(long, default_value_t = 2)]
    jobs: usize,
    /// Save the counts under KVM to this file; if the file exists, read them from it and do not count again
    #[arg(long, value_name = "FILE")]
    counted: Option<PathBuf>,
    /// Write every exit of the prediction and of the first run to files in this directory, for a diff
    #[arg(long, value_name = "DIR")]
    logs: Option<PathBuf>,
    /// Write the table to this Markdown file instead of stdout
    #[arg(short, long, value_name = "FILE")]
    output: Option<PathBuf>,
}

/// The format of this name.
fn tables(name: &str) -> Result<TableFormat, String> {
    TableFormat::from_name(name).ok_or_else(|| "not 4-level, 5-level, pae or 32-bit".into())
}

fn validate(processor: &Processor, args: &Validate) -> Result<ExitCode> {
    let lab = lab(processor, Some(&args.kernel))?.with_inner_tables(args.guest_tables, &mut say)?;
    let la57 = processor.model.as_deref().is_some_and(|m| m.split(',').any(|flag| flag == "+la57"));
    if args.guest_tables == TableFormat::FiveLevel && !la57 {
        bail!("--guest-tables 5-level is for processors with 5 levels: add --model=+la57");
    }
    if !args.guest_tables.is_long() && args.kpti != "off" {
        bail!(
            "--guest-tables {} is for guests without page-table isolation: add --kpti off",
            args.guest_tables.name()
        );
    }
    let workload = Workload::with_tables(&args.programs, args.memory, args.vcpus, args.guest_tables)?;
    let settings = Settings {
        configs: match (args.inside, args.configs.as_slice()) {
            (true, _) => INSIDE.to_vec(),
            (false, []) => CONFIGS.to_vec(),
            (false, named) => known().into_iter().filter(|c| named.iter().any(|a| a == c)).collect(),
        },
        kpti: match args.kpti.as_str() {
            "on" => vec![true],
            "off" => vec![false],
            _ => vec![false, true],
        },
        runs: args.runs,
        jobs: args.jobs,
        kept: args.counted.clone(),
        logs: args.logs.clone(),
    };
    let rows = drive(&lab, &workload, &settings, &say)?;
    let text = document::page(&lab, &workload, &settings, &rows);
    deliver(args.output.as_deref(), &text)?;
    let tally = table::tally(&rows);
    let of = |v| tally.get(&v).copied().unwrap_or(0);
    let (close, far) = (of(table::Verdict::Close), of(table::Verdict::Far));
    eprintln!("lab: {close} of {} rows are close, {far} are far", rows.len());
    let good = 10 * close >= 9 * rows.len() && far == 0;
    Ok(if good { ExitCode::SUCCESS } else { ExitCode::from(3) })
}

/// Progress, to standard error.
fn say(what: &str) {
    eprintln!("lab: {what}");
}

/// The page, into a file or to standard output.
fn deliver(path: Option<&Path>, page: &str) -> Result<()> {
    match path {
        Some(path) => write(path, page.as_bytes()),
        None => {
            print!("{page}");
            Ok(())
        }
    }
}

fn write(path: &Path, data: &[u8]) -> Result<()> {
    bifold_base::whole::write(path, &[data]).with_context(|| format!("cannot write {}", path.display()))
}

fn lab(processor: &Processor, kernel: Option<&str>) -> Result<Lab> {
    let lab = match kernel {
        Some(kernel) => Lab::new(kernel, &mut say),
        None => Lab::any(&mut say),
    }?;
    let vendor = VENDORS.into_iter().find(|v| v.option == processor.vendor).context("an unknown vendor")?;
    Ok(lab.of(vendor, processor.model.clone(), processor.parameters.clone())?)
}

/// Says on stderr what the laboratory is.
fn introduce(lab: &Lab) {
    eprintln!("lab: Linux {} under {}", lab.kernel().version, lab.emulator());
}

fn test(processor: &Processor, args: &Test) -> Result<ExitCode> {
    let chosen = quick::named(&args.names)?;
    if args.list {
        for t in chosen {
            println!("{:<18} {}", t.name, t.about);
        }
        return Ok(ExitCode::SUCCESS);
    }
    let lab = lab(processor, args.kernel.as_deref())?;
    introduce(&lab);
    let (mut failed, mut skipped) = (0, 0);
    quick::run(&lab, &chosen, args.jobs, &say, &mut |o| match o.end {
        Ok(()) => println!("ok {} ({:.1})", o.test.name, o.seconds),
        Err(e) if e.is::<Skipped>() => {
            skipped += 1;
            println!("skipped {}: {e}", o.test.name);
        }
        Err(e) => {
            failed += 1;
            println!("FAILED {}: {}", o.test.name, format!("{e:#}").replace('\n', " | "));
        }
    })?;
    let passed = chosen.len() - failed - skipped;
    eprintln!("lab: {passed} of {} tests passed, {skipped} skipped", chosen.len());
    Ok(if failed == 0 { ExitCode::SUCCESS } else { ExitCode::FAILURE })
}

fn main() -> ExitCode {
    let Cli { processor, verb } = Cli::parse();
    let end = match verb {
        Verb::Validate(args) => validate(&processor, &args),
        Verb::Reclaim(args) => reclaim::run(&processor, &args),
        Verb::Pressure(args) => pressure::run(&processor, &args),
        Verb::Superfluous(args) => superfluous::run(&processor, &args),
        Verb::Test(args) => test(&processor, &args),
        Verb::Storm(args) => storm::run(&processor, &args),
        Verb::Switch(args) => switch::run(&processor, &args),
        Verb::Fuzz(args) => fuzz::run(&processor, &args),
        Verb::KvmTests(args) => kvm_tests::run(&processor, &args),
        Verb::Live(args) => live::run(&processor, &args),
        Verb::ModelledPmu(args) => modelled_pmu::run(&processor, &args),
        Verb::Nodes(args) => nodes::run(&processor, &args),
        Verb::Place(args) => place::run(&processor, &args),
        Verb::Unswitched(args) => unswitched::run(&processor, &args),
    };
    end.unwrap_or_else(|e| {
        eprintln!("lab: error: {e:#}");
        let lab = e.downcast_ref::<LabError>().map(LabError::kind);
        let capture = e.downcast_ref::<GuestError>().map(GuestError::kind);
        match lab.or(capture) {
            Some(Kind::CannotWorkHere) => ExitCode::from(77),
            _ => ExitCode::FAILURE,
        }
    })
}
