// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share run`: runs an experiment with real guests, and writes tables, rows, a report and Markdown.
//!
//! Output files are opened before the run, so that an unwritable path costs no time. The samples are shown
//! however the run ends. If one file cannot be written, the others still are.

use super::out::OutArgs;
use crate::console::{Delivery, Progress, create, note, stop_on_signals};
use crate::full::{experiments, guardian};
use crate::status::Status;
use crate::usage::UsageError;
use crate::words;
use anyhow::Context as _;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_report::{Format, Page, wrapped};
use bifold_trace::CommandExit;
use bifold_trial::experiment::run::largest_scale_in;
use bifold_trial::experiment::{
    Notice, Outcome, Plan, Rate, RunOptions, Scale, Spec, output, run as experiment,
};
use bifold_trial::{Ending, SpecError, available_mib};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold share run experiments/share/synthetic.toml --report synthetic.html
  bifold share run --scale 1/8 --case 'write rate 0' --format csv -o rows.csv experiments/share/synthetic.toml
  bifold share run --dump /dev/shm/images experiments/share/mixed.toml
  bifold share potential /dev/shm/images/*.raw";

/// Share of the available memory that the guests may take when the scale is chosen automatically.
const TAKEN: f64 = 0.6;

/// Run an experiment: real guests under the kernel's KSM
///
/// Starts the guests that the file describes (QEMU without KVM, mergeable memory), runs a workload in each,
/// and runs KSM with the file's settings while memory is short, as ksmtuned does. Samples memory, sharing,
/// ksmd's CPU time and copies of merged pages. At marked times, pauses the guests and counts how much they
/// could share. Prints tables and rows, and writes a report. Cases run one after another, each with its own
/// guests.
///
/// Needs root and a kernel with KSM. Restores KSM's settings at the end, even if the command is killed; the
/// guests end with the command.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct RunArgs {
    /// Description of the experiment
    #[arg(value_name = "EXPERIMENT.toml")]
    pub experiment: PathBuf,

    /// Scale of the file's sizes and times [default: the largest of 1, 1/2, 1/4, ... that fits into memory]
    ///
    /// A ratio such as 1/8 or 0.125. Memory, the database's load and all times are scaled alike, so that
    /// KSM at the same rate makes as many passes. Numbers of guests, rates of writing, thresholds and
    /// KSM's settings are not scaled.
    #[arg(long, value_name = "RATIO", value_parser = scale)]
    pub scale: Option<Scale>,

    /// Run this case only (repeatable)
    #[arg(long, value_name = "NAME")]
    pub case: Vec<String>,

    /// Also write the guests' memory at marked times to DIR, as images for `share potential`
    #[arg(long, value_name = "DIR")]
    pub dump: Option<PathBuf>,

    /// Output format
    ///
    /// `table` is for reading. `csv` has one row per sample for the host and one per guest.
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|csv", help_heading = "Output")]
    pub format: Format,

    /// Also write an HTML report with curves over time: one file that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    pub report: Option<PathBuf>,

    /// Also write the tables as Markdown
    #[arg(long, value_name = "FILE.md", help_heading = "Output")]
    pub markdown: Option<PathBuf>,

    /// Options of the output.
    #[command(flatten)]
    pub out: OutArgs,
}

const FORMATS: &[Format] = &[Format::Table, Format::Csv];

fn scale(text: &str) -> Result<Scale, String> {
    match Rate::parse(text) {
        Some(s) if s.value() > 0.0 && s.value() <= 16.0 => Ok(s),
        _ => Err("not a ratio above 0, such as 1/8".into()),
    }
}

/// The usage error for a case that the file lacks, or a scale that is too small.
fn refused(args: &RunArgs, error: SpecError) -> anyhow::Error {
    let argument = match &error {
        SpecError::NoCase { name, .. } => format!("--case {name}"),
        SpecError::TooSmall { scale, .. } if args.scale.is_some() => format!("--scale {scale}"),
        _ => return error.into(),
    };
    UsageError::value(argument, error).failing().into()
}

/// Carries out the verb on this machine.
pub fn run(args: &RunArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let spec = Spec::read(&args.experiment)?;
    let scale = match args.scale {
        Some(scale) => scale,
        None => {
            let room = (available_mib(&host)? as f64 * TAKEN) as u64;
            largest_scale_in(&spec, room).with_context(|| {
                format!("its guests do not fit into {room} MiB at any of the usual scales")
            })?
        }
    };
    let plan = spec.plan(&args.experiment, scale, &args.case).map_err(|e| refused(args, e))?;
    if let Some(dir) = &args.dump {
        std::fs::create_dir_all(dir).with_context(|| format!("cannot make {}", dir.display()))?;
    }
    let output = args.out.create()?;
    let report = create(args.report.as_deref())?;
    let markdown = create(args.markdown.as_deref())?;
    let stop = stop_on_signals()?;
    let guardian = Guardian::this_program(guardian::VERB)?;
    let options = RunOptions {
        host: &host,
        places: &Places::of_ksm(),
        guardian: &guardian,
        dump: args.dump.as_deref(),
        stop: &stop,
    };
    note(!args.out.quiet, size(&plan));
    let mut stages = Stages::new(args.out.quiet, &plan);
    let outcome = experiment(&plan, &options, &mut |notice| stages.tell(&notice))?;
    stages.line.end();

    let data = match args.format {
        Format::Csv => csv(&outcome)?,
        _ => text(&plan, &outcome),
    };
    let mut delivery = Delivery::new(!args.out.quiet);
    delivery.data(&data, output);
    delivery.file("report", report, || Ok(page(&plan, &outcome).render()?.into_bytes()));
    delivery.file("tables", markdown, || Ok(document(&plan, &outcome).into_bytes()));
    delivery.done()?;
    status(&outcome)
}

fn status(outcome: &Outcome) -> anyhow::Result<Status> {
    if outcome.cases.last().is_some_and(|c| c.ending == Ending::Interrupted) {
        return Ok(Status::OfCommand(CommandExit::Interrupted));
    }
    match output::partial(outcome) {
        // Stopped between two cases.
        Some(_) if outcome.cases.iter().all(|c| c.ending == Ending::Whole && !c.damaged()) => {
            Ok(Status::OfCommand(CommandExit::Interrupted))
        }
        Some(partial) => anyhow::bail!("{}", partial.replacen("Partial", "the run is partial", 1)),
        None => Ok(Status::Done),
    }
}

/// The size of the experiment, in one line.
fn size(plan: &Plan) -> String {
    let memory: u64 = plan.guests.iter().map(|g| g.memory_mib).sum();
    let cases = plan.cases.len();
    format!(
        "{} guests, {memory} MiB in all, {cases} case{} of {:.0} s each, scale {} of the file's sizes and times",
        plan.guests.len(),
        if cases == 1 { "" } else { "s" },
        plan.length.as_secs_f64(),
        plan.scale
    )
}

/// Names and values that identify a run.
fn facts(plan: &Plan, outcome: &Outcome) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = vec![
        ("size".into(), size(plan)),
        ("host memory counted".into(), format!("{} MiB", plan.budget_mib)),
        ("host kernel".into(), outcome.host_kernel.clone()),
        ("emulator".into(), format!("QEMU {}, TCG", outcome.qemu)),
    ];
    if let Some(free) = plan.spec.start.free_below {
        facts.push(("KSM starts below".into(), format!("{:.0} % free", 100.0 * free)));
    }
    facts.push(("KSM's settings as found".into(), outcome.found.clone()));
    for case in &outcome.cases {
        let mut kinds: Vec<String> = Vec::new();
        for g in &case.guests {
            let words = format!("{} MiB, Linux {}: {}", g.memory_mib, g.kernel, g.workload);
            if !kinds.contains(&words) {
                kinds.push(words);
            }
        }
        let ksm = if case.ksm.is_empty() { "as found" } else { case.ksm.as_str() };
        facts.push((case.name.clone(), format!("{}; KSM: {ksm}", kinds.join("; "))));
    }
    facts
}

fn text(plan: &Plan, outcome: &Outcome) -> String {
    let mut out = format!("{}\n", plan.spec.title);
    if let Some(partial) = output::partial(outcome) {
        out += &format!("{partial}\n");
    }
    facts(plan, outcome).iter().for_each(|(name, value)| out += &wrapped(&format!("  {name}: {value}"), 4));
    output::tables(plan, outcome).iter().for_each(|t| out += &format!("\n{}", experiments::text(t)));
    for case in &outcome.cases {
        case.notes.iter().for_each(|n| out += &wrapped(&format!("note: {}: {n}", case.name), 6));
    }
    out
}

fn csv(outcome: &Outcome) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    for row in output::rows(outcome) {
        writer.serialize(row)?;
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

fn document(plan: &Plan, outcome: &Outcome) -> String {
    let mut out = format!("## {}\n\n", plan.spec.title);
    if let Some(partial) = output::partial(outcome) {
        out += &format!("**{partial}**\n\n");
    }
    out += &format!("{}\n\n", plan.spec.about.trim());
    facts(plan, outcome).iter().for_each(|(name, value)| out += &format!("- {name}: {value}\n"));
    output::tables(plan, outcome).iter().for_each(|t| out += &format!("\n{}", t.markdown()));
    out
}

fn page(plan: &Plan, outcome: &Outcome) -> Page {
    let verdicts = outcome.cases.iter().filter_map(|c| {
        let last = c.samples.last()?;
        let percent = 100.0 * last.saved() as f64 / (last.unshared as f64).max(1.0);
        Some(format!("{}: {percent:.0} % of the guests' memory saved", c.name))
    });
    // All cases have the same times, so one case's marks are those of all.
    let marks = outcome.cases.first().map_or(Vec::new(), |c| c.marks.clone());
    Page {
        version: bifold_base::version().into(),
        brand: "guests under KSM".into(),
        title: plan.spec.title.clone(),
        verdict: verdicts.collect::<Vec<_>>().join("; "),
        alarm: output::partial(outcome),
        about: plan.spec.about.trim().into(),
        facts: facts(plan, outcome),
        charts: output::charts(outcome).into_iter().map(experiments::page_chart).collect(),
        marks: marks.iter().map(|m| (m.at_s, "potential counted".into())).collect(),
        tables: output::tables(plan, outcome).into_iter().map(experiments::page_table).collect(),
        ..Page::default()
    }
}

/// The progress line of an experiment.
struct Stages {
    line: Progress,
    quiet: bool,
    cases: usize,
    length: f64,
    case: String,
}

impl Stages {
    fn new(quiet: bool, plan: &Plan) -> Stages {
        let line = Progress::start(!quiet, "");
        let length = plan.length.as_secs_f64();
        Stages { line, quiet, cases: plan.cases.len(), length, case: String::new() }
    }

    fn tell(&mut self, notice: &Notice) {
        match notice {
            Notice::Stage(stage) => self.line.say(stage),
            Notice::Case(n, name) => {
                self.case = format!("{name} ({} of {})", n + 1, self.cases);
                self.line.say(&format!("{}: starting the guests", self.case));
            }
            Notice::Sample(s) => {
                let mib = |b: u64| b >> 20;
                let ksm = if s.running { "KSM runs" } else { "KSM waits" };
                self.line.say(&format!(
                    "{}: {:.0} s of {:.0} s without the boot, {} MiB taken, {} MiB saved, {ksm} \
                     (Ctrl-C stops the run and shows its figures until then)",
                    self.case,
                    s.at_s,
                    self.length,
                    mib(s.used),
                    mib(s.saved()),
                ));
            }
            Notice::Note(text) => self.line.suspend(|| note(!self.quiet, text)),
            _ => {}
        }
    }
}
