// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place plan`: where guests belong on this host, and what starts them there.
//!
//! [`bifold_place`] plans. [`table`] explains a plan, [`scripts`] writes it as commands.

mod scripts;
mod table;

use crate::console::{Delivery, create_for_data, distinct, named, note};
use crate::status::{self, Status};
use crate::usage::UsageError;
use anyhow::bail;
use bifold_host::{Host, printable, read_up_to};
use bifold_place::plan::{GuestPlan, Plan};
use bifold_place::wishes::Wishes;
use bifold_place::{Processor, libvirt, plan};
use clap::{Args, ValueEnum};
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold place plan wishes.toml
  bifold place plan wishes.toml --format json -o plan.json
  bifold place plan wishes.toml --format libvirt --guest db -o db.xml
  bifold place plan wishes.toml --root copied-tree --format steps";

/// Plan where guests' CPUs and memory belong on this host
///
/// WISHES.toml has a table `[[guest]]` per guest, with the name, the number of vCPUs and the memory, and
/// perhaps the number of nodes, the page size and nearby devices; bifold-wishes(5) lists all keys. The plan
/// gives each vCPU a CPU, and each guest node a host node, so that the guest's nodes, distances, caches and
/// threads are the host's. All guests of a file are planned together: no other placement has a lower cost,
/// unless a note says otherwise.
///
/// Wishes that do not fit end with exit status 1, and with what is short where. Changes nothing, and needs no
/// root.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct PlanArgs {
    /// The file of wishes
    #[arg(value_name = "WISHES.toml")]
    pub wishes: PathBuf,

    /// Read a copied tree: a folder with the machine's `sys` and `proc`
    #[arg(long, value_name = "DIR")]
    pub root: Option<PathBuf>,

    /// Keep to what this cgroup may use [default: the cgroup of this process]
    #[arg(long, value_name = "PATH")]
    pub cgroup: Option<String>,

    /// Output format
    ///
    /// `table` explains the plan, `qemu` is a command line for each guest, `libvirt` is the XML of one
    /// domain, `steps` are shell commands that set up the host, and `json` is all of it (schema
    /// `bifold.place-plan/1`).
    #[arg(
        long,
        value_enum,
        default_value = "table",
        hide_possible_values = true,
        value_name = "table|qemu|libvirt|steps|json",
        help_heading = "Output"
    )]
    pub format: PlanFormat,

    /// Write this guest only, for `qemu` and `libvirt`; all guests are planned nevertheless
    #[arg(long, value_name = "NAME", help_heading = "Output")]
    pub guest: Option<String>,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<PathBuf>,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

/// Forms of a plan.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
pub enum PlanFormat {
    Table,
    Qemu,
    Libvirt,
    Steps,
    Json,
}

/// Carries out the verb.
pub fn run(args: &PlanArgs) -> anyhow::Result<Status> {
    distinct(&[("the wishes", &args.wishes)], &named([("--output", args.output.as_deref())]))?;
    if args.guest.is_some() && !matches!(args.format, PlanFormat::Qemu | PlanFormat::Libvirt) {
        return Err(UsageError::conflict("--guest", "needs --format qemu or libvirt").into());
    }
    let wishes = Wishes::read(&args.wishes)?;
    let host = args.root.as_ref().map_or_else(Host::live, |root| Host::copied(root));
    let mut topology = host.topology()?;
    if let Some(group) = &args.cgroup {
        topology.allowed = Some(host.allowed_in(group).ok_or_else(|| super::show::no_group(group))?);
    }
    topology.notes.iter().for_each(|text| note(!args.quiet, text));
    let processor = processor(&host);
    if processor == Processor::NotX86 && matches!(args.format, PlanFormat::Qemu | PlanFormat::Libvirt) {
        bail!(
            "{}: the processor is no x86, and --format qemu and libvirt write for x86-64 alone: use table or json",
            host.proc.join("cpuinfo").display()
        );
    }
    let plan = plan(&topology, &wishes, processor).map_err(|e| e.below(&host.sys))?;
    let data = data(args, &plan)?;
    if !matches!(args.format, PlanFormat::Table | PlanFormat::Json) {
        plan.notes.iter().for_each(|text| note(!args.quiet, text));
    }
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&data, create_for_data(args.output.as_deref())?);
    delivery.done()?;
    Ok(Status::Done)
}

/// The processor that the first block of `/proc/cpuinfo` names.
fn processor(host: &Host) -> Processor {
    const BLOCK: u64 = 4096;
    let start = read_up_to(&host.proc.join("cpuinfo"), BLOCK).unwrap_or_default();
    Processor::of_cpuinfo(&String::from_utf8_lossy(&start))
}

/// The plan in the form wished.
fn data(args: &PlanArgs, plan: &Plan) -> anyhow::Result<String> {
    Ok(match args.format {
        PlanFormat::Table => table::table(plan),
        PlanFormat::Json => serde_json::to_string_pretty(plan)? + "\n",
        PlanFormat::Steps => scripts::steps(plan),
        PlanFormat::Qemu => chosen(args, plan)?.into_iter().map(scripts::qemu).collect::<Vec<_>>().join("\n"),
        PlanFormat::Libvirt => match chosen(args, plan)?[..] {
            [guest] => libvirt::domain(guest),
            _ => {
                let problem =
                    "libvirt writes one domain, and the wishes have several guests: add --guest NAME";
                return Err(UsageError::conflict("--format", problem).into());
            }
        },
    })
}

/// The guests to write.
fn chosen<'a>(args: &PlanArgs, plan: &'a Plan) -> Result<Vec<&'a GuestPlan>, UsageError> {
    let Some(name) = &args.guest else { return Ok(plan.guests.iter().collect()) };
    let found: Vec<&GuestPlan> = plan.guests.iter().filter(|g| g.name == *name).collect();
    if found.is_empty() {
        let problem = format!("no guest of {} has this name", args.wishes.display());
        return Err(UsageError::value(format!("--guest `{}`", printable(name)), problem));
    }
    Ok(found)
}
