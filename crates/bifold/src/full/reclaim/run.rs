// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim run`: runs an experiment with real guests under memory pressure, and writes tables, JSON,
//! a report and Markdown.
//!
//! Output files are opened before the run, so that an unwritable path costs no time. The samples are shown
//! however the run ends. If one file cannot be written, the others still are.

use super::GUARDIAN;
use crate::console::{Delivery, Progress, create, create_for_data, distinct, named, note, stop_on_signals};
use crate::full::{experiments, guardian};
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_report::{Format, Page, wrapped};
use bifold_trace::CommandExit;
use bifold_trial::SpecError;
use bifold_trial::pressure::{Notice, Outcome, RunOptions, Sample, Spec, output, run as experiment};
use clap::Args;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold reclaim run experiments/reclaim/turns.toml --report turns.html
  bifold reclaim run --case nothing --case 'balloon, feedback' experiments/reclaim/turns.toml
  bifold reclaim run --format json -o turns.json experiments/reclaim/turns.toml";

/// Run an experiment: real guests under memory pressure
///
/// Starts the guests that the file describes (QEMU, emulated if not `--kvm`, each with a balloon), runs a
/// load in each whose use of memory changes in phases, and takes memory back as the file's cases say: by free
/// page reporting, by balloons that a policy orders, by KSM, by paging of the host. Samples the guests'
/// memory in the host, their statistics and the progress of their loads. Cases run one after another, each
/// with its own guests.
///
/// Orders about sizes are those of `bifold reclaim set`: in steps, above what the guest uses, given back at
/// once when the guest may miss it. The file's host size is enforced in cases with paging, which need root,
/// cgroup v2 and swap. In others it is counted: what guests have beyond it is shown, and nothing is paged
/// out.
///
/// The guests end with the command, also if it is killed. A case with KSM needs root and restores KSM's
/// settings at the end.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct RunArgs {
    /// Description of the experiment
    #[arg(value_name = "EXPERIMENT.toml")]
    experiment: PathBuf,

    /// Run this case only (repeatable)
    #[arg(long, value_name = "NAME")]
    case: Vec<String>,

    /// Run the guests under KVM, not emulated
    ///
    /// Needs the right to open /dev/kvm.
    #[arg(long)]
    kvm: bool,

    /// Output format
    ///
    /// `table` is for reading. `json` is one document (schema bifold.reclaim-run/1) with all samples.
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    format: Format,

    /// Also write an HTML report with curves over time: one file that needs no network
    #[arg(long, value_name = "FILE.html", help_heading = "Output")]
    report: Option<PathBuf>,

    /// Also write the tables as Markdown
    #[arg(long, value_name = "FILE.md", help_heading = "Output")]
    markdown: Option<PathBuf>,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    output: Option<PathBuf>,

    /// No progress and no notes on stderr
    #[arg(short, long, help_heading = "Output")]
    quiet: bool,
}

/// Carries out the verb on this machine.
pub fn run(args: &RunArgs) -> anyhow::Result<Status> {
    let outputs = [
        ("--output", args.output.as_deref()),
        ("--report", args.report.as_deref()),
        ("--markdown", args.markdown.as_deref()),
    ];
    distinct(&[("the experiment", &args.experiment)], &named(outputs))?;
    let spec =
        Spec::read(&args.experiment)?.only(&args.experiment, &args.case).map_err(|e| refused(args, e))?;
    let output = create_for_data(args.output.as_deref())?;
    let report = create(args.report.as_deref())?;
    let markdown = create(args.markdown.as_deref())?;
    let stop = stop_on_signals()?;
    let host = Host::live();
    let (orders, ksm) = (Guardian::this_program(GUARDIAN)?, Guardian::this_program(guardian::VERB)?);
    let options = RunOptions {
        host: &host,
        orders: &orders,
        ksm: (&Places::of_ksm(), &ksm),
        kvm: args.kvm,
        stop: &stop,
    };
    note(!args.quiet, size(&spec));
    let mut stages = Stages::new(args.quiet, &spec);
    let outcome = experiment(&spec, &options, &mut |notice| stages.tell(&notice))?;
    stages.line.end();

    let data = match args.format {
        Format::Json => output::json(&spec, &outcome, bifold_base::version())?,
        _ => text(&spec, &outcome),
    };
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&data, output);
    delivery.file("report", report, || Ok(page(&spec, &outcome).render()?.into_bytes()));
    delivery.file("tables", markdown, || Ok(document(&spec, &outcome).into_bytes()));
    delivery.done()?;
    match outcome.partial() {
        _ if outcome.interrupted() => Ok(Status::OfCommand(CommandExit::Interrupted)),
        Some(partial) => anyhow::bail!("{}", partial.replacen("Partial", "the run is partial", 1)),
        None => Ok(Status::Done),
    }
}

/// The usage error for a case that the file lacks.
fn refused(args: &RunArgs, error: SpecError) -> anyhow::Error {
    match &error {
        SpecError::NoCase { name, .. } => {
            UsageError::value(format!("--case {name}"), error.to_string()).failing().into()
        }
        _ => anyhow::Error::from(error).context(args.experiment.display().to_string()),
    }
}

/// The size of the experiment, in one line.
fn size(spec: &Spec) -> String {
    let guests: u32 = spec.guests.iter().map(|g| g.count).sum();
    let memory: u64 = spec.guests.iter().map(|g| u64::from(g.count) * g.memory_mib).sum();
    let runs = spec.cases.len() * spec.repetitions as usize;
    format!(
        "{guests} guest{} with {memory} MiB in all, a host of {} MiB, {runs} run{} of {:.0} s each",
        if guests == 1 { "" } else { "s" },
        spec.host_memory_mib,
        if runs == 1 { "" } else { "s" },
        spec.time.length,
    )
}

/// Names and values that identify a run.
fn facts(spec: &Spec, outcome: &Outcome) -> Vec<(String, String)> {
    let mut facts: Vec<(String, String)> = vec![
        ("size".into(), size(spec)),
        ("host kernel".into(), outcome.host_kernel.clone()),
        ("emulator".into(), format!("QEMU {}, {}", outcome.qemu, if outcome.kvm { "KVM" } else { "TCG" })),
    ];
    for kind in &spec.guests {
        let phase = |p: &bifold_trial::pressure::Phase| {
            let used = p.used_mib.filter(|used| *used != p.memory_mib);
            let used = used.map_or(String::new(), |mib| format!(", of which it uses {mib}"));
            let files =
                if p.files_mib > 0 { format!(", files of {} MiB", p.files_mib) } else { String::new() };
            format!("{} s with {} MiB{used}{files}, {} operations a second", p.seconds, p.memory_mib, p.rate)
        };
        let phases: Vec<String> = kind.phases.iter().map(phase).collect();
        let swap =
            if kind.swap_mib > 0 { format!(" and {} MiB of swap", kind.swap_mib) } else { String::new() };
        let what = format!(
            "{} of {} MiB{swap}, Linux {}: {}",
            kind.count,
            kind.memory_mib,
            kind.kernel,
            phases.join("; ")
        );
        facts.push((format!("guests {}", kind.name), what));
    }
    for case in &spec.cases {
        facts.push((format!("case {}", case.name), case.words()));
    }
    facts
}

/// All notes of all runs.
fn notes(outcome: &Outcome) -> impl Iterator<Item = String> + '_ {
    outcome.cases.iter().flat_map(|c| c.notes.iter().map(|n| format!("{}: {n}", c.title())))
}

fn text(spec: &Spec, outcome: &Outcome) -> String {
    let mut out = format!("{}\n", spec.title);
    if let Some(partial) = outcome.partial() {
        out += &wrapped(&partial, 0);
    }
    facts(spec, outcome).iter().for_each(|(name, value)| out += &wrapped(&format!("  {name}: {value}"), 4));
    output::tables(spec, outcome).iter().for_each(|t| out += &format!("\n{}", experiments::text(t)));
    notes(outcome).for_each(|n| out += &wrapped(&format!("note: {n}"), 6));
    out
}

fn document(spec: &Spec, outcome: &Outcome) -> String {
    let mut out = format!("## {}\n\n", spec.title);
    if let Some(partial) = outcome.partial() {
        out += &format!("**{partial}**\n\n");
    }
    out += &format!("{}\n\n", spec.about.trim());
    facts(spec, outcome).iter().for_each(|(name, value)| out += &format!("- {name}: {value}\n"));
    output::tables(spec, outcome).iter().for_each(|t| out += &format!("\n{}", t.markdown()));
    let notes: Vec<String> = notes(outcome).collect();
    if !notes.is_empty() {
        out += "\n### Notes\n\n";
        notes.iter().for_each(|n| out += &format!("- {n}\n"));
    }
    out
}

fn page(spec: &Spec, outcome: &Outcome) -> Page {
    let verdicts = outcome.cases.iter().filter(|c| c.is_whole() && c.repetition == 1).filter_map(|c| {
        let all = output::of_host(outcome, c, c.spec.host_mib(spec));
        let (used, progress) = (all.mean_used_bytes? / words::MIB as f64, 100.0 * all.progress?);
        Some(format!("{}: {used:.0} MiB, {progress:.0} % of the operations", c.spec.name))
    });
    Page {
        version: bifold_base::version().into(),
        brand: "guests under memory pressure".into(),
        title: spec.title.clone(),
        verdict: verdicts.collect::<Vec<_>>().join("; "),
        alarm: outcome.partial(),
        about: spec.about.trim().into(),
        facts: facts(spec, outcome),
        charts: output::charts(spec, outcome).into_iter().map(experiments::page_chart).collect(),
        tables: output::tables(spec, outcome).into_iter().map(experiments::page_table).collect(),
        ..Page::default()
    }
}

/// The progress line of an experiment.
struct Stages {
    line: Progress,
    quiet: bool,
    runs: usize,
    length: f64,
    case: String,
}

impl Stages {
    fn new(quiet: bool, spec: &Spec) -> Stages {
        let runs = spec.cases.len() * spec.repetitions as usize;
        Stages {
            line: Progress::start(!quiet, ""),
            quiet,
            runs,
            length: spec.time.length,
            case: String::new(),
        }
    }

    fn tell(&mut self, notice: &Notice) {
        match notice {
            Notice::Stage(stage) => self.line.say(stage),
            Notice::Case(n, name) => {
                self.case = format!("{name} ({} of {})", n + 1, self.runs);
                self.line.say(&format!("{}: starting the guests", self.case));
            }
            Notice::Sample(s) => self.line.say(&self.sample(s)),
            Notice::Note(text) => self.line.suspend(|| note(!self.quiet, text)),
            _ => {}
        }
    }

    fn sample(&self, s: &Sample) -> String {
        format!(
            "{}: {:.0} s of {:.0} s without the boot, guests have {} MiB (Ctrl-C stops the run and shows its figures until then)",
            self.case,
            s.at_s,
            self.length,
            s.used() / words::MIB
        )
    }
}
