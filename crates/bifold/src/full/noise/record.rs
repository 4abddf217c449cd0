// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold noise record`: what interrupts the CPUs of this machine.

use super::values;
use crate::console::{Delivery, OutputFile, create, note, stop_on_signals};
use crate::status::{self, Status};
use crate::words;
use anyhow::Context as _;
use bifold_host::topology::NumberSet;
use bifold_host::{Host, printable};
use bifold_noise::file::UNKNOWN;
use bifold_noise::record::{CpuRecording, Options, Recording, chosen, record};
use bifold_report::{Format, grouped, seconds, text_table, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.noise-record/1";

const EXAMPLES: &str = "\
Examples:
  sudo bifold noise record
  sudo bifold noise record -C 2-7 --time 60 -o noise
  bifold noise record --no-sources --format csv > noise.csv";

/// Record what interrupts the CPUs of this machine, host or guest
///
/// A loop on each CPU reads the clock again and again. Two readings that lie further apart than the threshold
/// had an interruption between them. The kernel's trace (tracefs, as root) says what ran meanwhile: an
/// interrupt, a softirq, a thread, the exit of a vCPU. Without the trace, interruptions are recorded without
/// sources. In a guest, what the trace does not know (`untraced`) may be the host.
///
/// The loops use the CPUs whole for the time, at normal priority. Ctrl-C ends the recording early, with all
/// files whole.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct RecordArgs {
    /// CPUs to record, as a list such as 0-3,8 [default: all that this process may use]
    #[arg(short = 'C', long, value_name = "LIST")]
    pub cpus: Option<NumberSet>,

    /// Seconds to record
    #[arg(long, value_name = "SECONDS", value_parser = words::seconds, default_value = "10")]
    pub time: f64,

    /// Shortest gap between two readings of the clock that counts [default: nine of the shortest gaps]
    #[arg(long, value_name = "TIME", value_parser = values::time)]
    pub threshold: Option<f64>,

    /// Do not trace: interruptions have no sources
    #[arg(long)]
    pub no_sources: bool,

    /// Write a noise file of each CPU into DIR: cpu0.noise and so on
    ///
    /// Each line is the start of an interruption and its length in nanoseconds, and its source. LogGOPSim
    /// reads these files, and so does `bifold noise simulate`. DIR is created if it is missing.
    #[arg(short, long, value_name = "DIR")]
    pub output: Option<PathBuf>,

    /// Output format: csv has a row for each interruption
    #[arg(long, value_parser = words::formats(FORMATS), default_value = "table", hide_possible_values = true,
          value_name = "table|json|csv")]
    pub format: Format,

    /// No notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

const FORMATS: &[Format] = &[Format::Table, Format::Json, Format::Csv];

/// Records, prints what was found, and writes a file for each CPU.
pub fn run(args: &RecordArgs) -> anyhow::Result<Status> {
    let stop = stop_on_signals()?;
    if let Some(dir) = &args.output {
        std::fs::create_dir_all(dir)
            .with_context(|| format!("cannot create {}", printable(&dir.to_string_lossy())))?;
    }
    let cpus = chosen(args.cpus.as_ref())?;
    // Fails now rather than after the recording.
    let files = args.output.as_deref().map(|dir| files(dir, &cpus)).transpose()?.unwrap_or_default();
    if let Some(others) = args.output.as_deref().and_then(|dir| others(dir, &cpus)) {
        note(!args.quiet, others);
    }
    let options = Options {
        cpus: args.cpus.clone(),
        time: Duration::from_secs_f64(args.time),
        threshold_ns: args.threshold,
        attribute: !args.no_sources,
    };
    let found = record(&Host::live(), &options, &stop)?;
    if let (Some(why), false) = (&found.no_sources, args.no_sources) {
        note(!args.quiet, format_args!("interruptions have no sources: {why}"));
    }
    for cpu in &found.cpus {
        remarks(cpu).iter().for_each(|remark| note(!args.quiet, format_args!("CPU {}: {remark}", cpu.cpu)));
    }
    let shown = match args.format {
        Format::Json => json(&found)?,
        Format::Csv => csv(&found)?,
        _ => table(&found),
    };
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&shown, None);
    for (cpu, file) in found.cpus.iter().zip(files) {
        delivery.file("noise", file, || Ok(cpu.trace.text(&head(&found, cpu)).into_bytes()));
    }
    delivery.done()?;
    Ok(Status::Done)
}

/// The file of each CPU.
fn files(dir: &Path, cpus: &[usize]) -> anyhow::Result<Vec<Option<OutputFile>>> {
    cpus.iter().map(|cpu| create(Some(&dir.join(name_of(*cpu))))).collect()
}

fn name_of(cpu: usize) -> String {
    format!("cpu{cpu}.noise")
}

/// That the folder has files of CPUs that are not recorded now.
fn others(dir: &Path, cpus: &[usize]) -> Option<String> {
    let names = std::fs::read_dir(dir).ok()?.flatten().map(|e| e.file_name().to_string_lossy().into_owned());
    let of_cpu = |name: &str| name.strip_prefix("cpu")?.strip_suffix(".noise")?.parse::<usize>().ok();
    let mut others: Vec<usize> =
        names.filter_map(|name| of_cpu(&name)).filter(|c| !cpus.contains(c)).collect();
    others.sort_unstable();
    Some(format!(
        "{} also has {} files of another recording, such as {}: remove them, or name each file to `bifold noise simulate`",
        printable(&dir.to_string_lossy()),
        others.len(),
        name_of(*others.first()?)
    ))
}

/// Why a CPU's recording is less than asked.
fn remarks(cpu: &CpuRecording) -> Vec<String> {
    let early = cpu.early.map(|why| format!("the recording ended after {}: {why}", time(cpu.trace.duration)));
    let dropped = (cpu.dropped_events > 0).then(|| {
        format!(
            "the kernel's trace was full and dropped {} events: interruptions after {} are `{UNKNOWN}`; record for a shorter time",
            grouped(cpu.dropped_events),
            time(cpu.sources_until.unwrap_or_default())
        )
    });
    let unknown = cpu.no_sources.as_ref().map(|why| format!("interruptions have no sources: {why}"));
    early.into_iter().chain(dropped).chain(unknown).collect()
}

/// The comments of a file.
fn head(found: &Recording, cpu: &CpuRecording) -> String {
    format!(
        "bifold noise record, version {}\ncpu: {}\nclock: {} at {:.6} MHz\nshortest_gap_ns: {:.1}\nthreshold_ns: {:.1}\nsources: {}",
        bifold_base::version(),
        cpu.cpu,
        found.clock.0,
        found.clock.1 / 1e6,
        cpu.shortest_ns,
        cpu.threshold_ns,
        sources_of(found, cpu),
    )
}

/// Where the sources of a file are from.
fn sources_of(found: &Recording, cpu: &CpuRecording) -> String {
    let why = found.no_sources.as_deref().or(cpu.no_sources.as_deref());
    let traced = || match cpu.sources_until {
        Some(until) => format!(
            "from the kernel's trace, whose buffer was full after {until:.0} ns: later interruptions are {UNKNOWN}"
        ),
        None => "from the kernel's trace".into(),
    };
    why.map_or_else(traced, printable)
}

fn time(ns: f64) -> String {
    seconds(ns * 1e-9)
}

fn longest(lengths: impl Iterator<Item = f64>) -> f64 {
    lengths.fold(0.0, f64::max)
}

fn table(found: &Recording) -> String {
    let head =
        ["CPU", "time", "interruptions", "a second", "share %", "longest", "shortest gap", "threshold"];
    let rows = found.cpus.iter().map(|cpu| {
        vec![
            cpu.cpu.to_string(),
            time(cpu.trace.duration),
            grouped(cpu.detours as u64),
            format!("{:.1}", cpu.detours as f64 / (cpu.trace.duration * 1e-9).max(1e-9)),
            format!("{:.4}", cpu.trace.share() * 100.0),
            time(longest(cpu.trace.interruptions.iter().map(|i| i.length))),
            format!("{:.1} ns", cpu.shortest_ns),
            format!("{:.1} ns", cpu.threshold_ns),
        ]
    });
    let mut out = text_table(head.map(String::from).into(), rows.collect());
    out.push('\n');
    out += &sources(found);
    out += &format!("\nBy the {}, {:.3} MHz.\n", found.clock.0, found.clock.1 / 1e6);
    if found.no_sources.is_none() && found.virtual_machine {
        out += &wrapped("note  This is a virtual machine: untraced time may be that of its host.", 6);
    }
    out
}

/// Each source over all CPUs, the largest share first.
fn sources(found: &Recording) -> String {
    let mut lengths: BTreeMap<&str, Vec<f64>> = BTreeMap::new();
    for trace in found.cpus.iter().map(|cpu| &cpu.trace) {
        for one in &trace.interruptions {
            lengths.entry(&trace.sources[one.source as usize]).or_default().push(one.length);
        }
    }
    let all: f64 = found.cpus.iter().map(|cpu| cpu.trace.duration).sum();
    let mut rows: Vec<(f64, Vec<String>)> = Vec::new();
    for (name, lengths) in lengths {
        let sum: f64 = lengths.iter().sum();
        let row = vec![
            printable(name),
            grouped(lengths.len() as u64),
            format!("{:.1}", lengths.len() as f64 / (all * 1e-9)),
            format!("{:.4}", sum / all * 100.0),
            time(sum / lengths.len() as f64),
            time(longest(lengths.iter().copied())),
        ];
        rows.push((sum, row));
    }
    rows.sort_by(|a, b| b.0.total_cmp(&a.0));
    if rows.is_empty() {
        return "No interruption was longer than the threshold.\n".into();
    }
    let head = ["source", "times", "a second and CPU", "share %", "mean", "longest"];
    text_table(head.map(String::from).into(), rows.into_iter().map(|(_, row)| row).collect())
}

fn csv(found: &Recording) -> anyhow::Result<String> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(["cpu", "start_ns", "length_ns", "source"])?;
    for cpu in &found.cpus {
        for one in &cpu.trace.interruptions {
            let [start, length] = [one.start, one.length].map(|ns| format!("{ns:.0}"));
            let source = &cpu.trace.sources[one.source as usize];
            writer.write_record([&cpu.cpu.to_string(), &start, &length, source])?;
        }
    }
    Ok(String::from_utf8(writer.into_inner()?)?)
}

/// What `bifold noise record --format json` writes: what interrupts the CPUs of this machine.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The clock that the loops read.
    clock: ClockRow,
    /// Why interruptions have no sources; null if those of some CPU have sources.
    no_sources: Option<&'a str>,
    /// Whether the machine is a virtual one.
    virtual_machine: bool,
    /// The recording of each CPU.
    cpus: Vec<CpuRow<'a>>,
}

/// A clock.
#[derive(Serialize, JsonSchema)]
struct ClockRow {
    /// Name of the clock.
    name: &'static str,
    /// Ticks of the clock per second. Unit: Hz.
    hertz: f64,
}

/// The recording of a CPU.
#[derive(Serialize, JsonSchema)]
struct CpuRow<'a> {
    /// Number of the CPU.
    cpu: usize,
    /// Length of the recording. Unit: ns.
    duration_ns: f64,
    /// Share of the time that interruptions take, 0 to 1.
    share: f64,
    /// Number of interruptions.
    detours: usize,
    /// Shortest time between two readings of the clock, which is what the loop itself takes. Unit: ns.
    shortest_gap_ns: f64,
    /// Longest gap between two readings that is no interruption. Unit: ns.
    threshold_ns: f64,
    /// Readings of the clock.
    readings: u64,
    /// Why the recording is shorter than asked; null if the recording is as long as asked.
    ended_early: Option<&'static str>,
    /// Events for which the kernel's trace had no room.
    dropped_events: u64,
    /// End of the traced time, from the start of the recording: sources of later interruptions are `unknown`.
    /// Null if the trace had room for all events. Unit: ns.
    sources_until_ns: Option<f64>,
    /// Why this CPU's interruptions have no sources, although the kernel was asked; null otherwise.
    no_sources: Option<&'a str>,
    /// The interruptions in the order of time; an interruption with several sources is one entry for each.
    interruptions: Vec<InterruptionRow<'a>>,
}

/// An interruption, or the part of one source in an interruption.
#[derive(Serialize, JsonSchema)]
struct InterruptionRow<'a> {
    /// Start of the interruption, from the start of the recording. Unit: ns.
    start_ns: f64,
    /// Length of the interruption. Unit: ns.
    length_ns: f64,
    /// What ran meanwhile, such as `irq:local_timer` or `untraced`.
    source: &'a str,
}

fn json(found: &Recording) -> anyhow::Result<String> {
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        clock: ClockRow { name: found.clock.0, hertz: found.clock.1 },
        no_sources: found.no_sources.as_deref(),
        virtual_machine: found.virtual_machine,
        cpus: found.cpus.iter().map(of_cpu).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn of_cpu(cpu: &CpuRecording) -> CpuRow<'_> {
    let one = |i: &bifold_noise::Interruption| InterruptionRow {
        start_ns: i.start.round(),
        length_ns: i.length.round(),
        source: &cpu.trace.sources[i.source as usize],
    };
    CpuRow {
        cpu: cpu.cpu,
        duration_ns: cpu.trace.duration.round(),
        share: cpu.trace.share(),
        detours: cpu.detours,
        shortest_gap_ns: cpu.shortest_ns,
        threshold_ns: cpu.threshold_ns,
        readings: cpu.iterations,
        ended_early: cpu.early,
        dropped_events: cpu.dropped_events,
        sources_until_ns: cpu.sources_until.map(f64::round),
        no_sources: cpu.no_sources.as_deref(),
        interruptions: cpu.trace.interruptions.iter().map(one).collect(),
    }
}

/// The schema of the document.
pub fn schema() -> Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}
