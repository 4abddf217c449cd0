// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold profile measure`: this machine as a profile.

use crate::console::{Delivery, Progress, create_for_data, note, stop_on_signals};
use crate::run::machine::Machine;
use crate::status::{self, Status};
use crate::usage::UsageError;
use crate::words;
use anyhow::Context as _;
use bifold_measure::{End, Estimate, Finding, Made, Options, Survey, load_note, profile, survey, today};
use bifold_model::Profile;
use bifold_report::{Format, grouped, text_table, wrapped};
use bifold_trace::CommandExit;
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use std::path::PathBuf;
use std::sync::atomic::Ordering;
use std::time::Duration;

const EXAMPLES: &str = "\
Examples:
  bifold profile measure
  bifold profile measure --name mine -o mine.toml
  bifold profile measure --limit 900 -o mine.toml
  bifold profile measure --quick --format json";

/// Measure this machine, and make a profile of it
///
/// Measures caches, memory, TLBs, the overlap of misses and walks, and what faults, system calls and switches
/// cost, on one CPU, without performance counters and without privileges. Takes a minute or two and about 2
/// GB of memory. Each value is a median of 15 rounds with the 95 % interval of the median; of a capacity, the
/// interval goes from the largest set that fits to the smallest that does not. What cannot be measured is
/// CPUID's word or the nearest built-in profile's value, and the profile marks it `prior`.
///
/// Wide intervals, as on a busy machine, take up to 60 rounds, within --limit. A value whose interval spans
/// zero, or whose interval's ends differ by more than a factor of two, is refused: the profile keeps the
/// built-in profile's value and says so. When --limit or Ctrl-C ends the measurement, every part that is
/// complete is written, and the output lists the values that are not.
///
/// In a virtual machine the walks are those of nested paging as it is there.
///
/// The profile is kept in $XDG_CONFIG_HOME/bifold/measured (~/.config/bifold/measured), and later runs on
/// this machine use it unless they name another. A measurement that Ctrl-C ended is not kept.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES, after_long_help = status::below(EXAMPLES))]
pub struct MeasureArgs {
    /// Write the profile to FILE
    #[arg(short, long, value_name = "FILE")]
    pub output: Option<PathBuf>,

    /// Name of the profile
    #[arg(long, default_value = "measured")]
    pub name: String,

    /// Measure on this CPU [default: the last one allowed]
    #[arg(long, value_name = "N")]
    pub cpu: Option<usize>,

    /// Fewer points and 9 rounds: under a minute, wider intervals
    #[arg(long)]
    pub quick: bool,

    /// End after so many seconds with the values that are complete
    #[arg(long, value_name = "SECONDS", value_parser = words::seconds, default_value = "300")]
    pub limit: f64,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json")]
    pub format: Format,

    /// No progress and no notes on stderr
    #[arg(short, long)]
    pub quiet: bool,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.profile-measure/1";

/// What `bifold profile measure --format json` writes: this machine's values, and the profile made of them.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// Day of the measurement: `2026-11-27`.
    date: String,
    /// Number of the CPU that was measured.
    cpu: usize,
    /// The hypervisor's signature in CPUID; null without a hypervisor.
    hypervisor: Option<&'a str>,
    /// All values, as the table has them.
    values: Vec<Row>,
    /// What the user should know, each a sentence.
    remarks: Vec<String>,
    /// Values that the survey was to give and that the profile lacks.
    unwritten: Vec<UnwrittenRow<'a>>,
    /// The survey by its parts.
    survey: &'a Survey,
    /// The profile as a TOML file; null if the values make none.
    profile: Option<&'a str>,
}

/// A value.
#[derive(Serialize, JsonSchema)]
struct Row {
    /// What was measured.
    name: String,
    /// Unit of the value: `cycles`, `bytes`, `entries`, `ways`, `Hz`, or `1` for a ratio.
    unit: &'static str,
    /// The value with its interval; null if not determined.
    measured: Option<Estimate>,
    /// Whether the survey reached the value before its end.
    reached: bool,
    /// Whether the interval is too wide, or not above zero: the profile then has another value.
    refused: bool,
    /// The same by CPUID; null if CPUID does not have the value.
    told: Option<u64>,
}

/// A value that the profile lacks.
#[derive(Serialize, JsonSchema)]
struct UnwrittenRow<'a> {
    /// Dotted key of the profile.
    key: &'a str,
    /// `refused`: the measurement is not used. `not reached`: the survey ended first.
    why: &'static str,
    /// Why the value was refused, with its interval; empty if the survey did not reach the value.
    reason: &'a str,
    /// What the profile has in its place, in words: `as zen4's`.
    in_profile: &'a str,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

/// Measures, prints the values, and writes the profile.
pub fn run(args: &MeasureArgs) -> anyhow::Result<Status> {
    if Profile::builtin_names().any(|name| name == args.name) {
        let problem = "is a built-in profile's name: a measured profile needs a name of its own";
        return Err(UsageError::conflict(format!("--name {}", args.name), problem).into());
    }
    if args.name.is_empty() || !args.name.chars().all(|c| c.is_ascii_alphanumeric() || "-_.".contains(c)) {
        return Err(UsageError::value("--name", "takes letters, digits, `-`, `_` and `.`").into());
    }
    let output = create_for_data(args.output.as_deref())?;
    let stop = stop_on_signals()?;
    let progress = Progress::start(!args.quiet, "measuring").prefix("measuring: ");
    if let Some(text) = load_note() {
        progress.suspend(|| note(!args.quiet, text));
    }
    let options = Options { cpu: args.cpu, quick: args.quick, limit: Duration::from_secs_f64(args.limit) };
    let found = survey(options, &mut |what| progress.say(what), &|| stop.load(Ordering::Relaxed));
    progress.end();
    let found = found?;
    let made = profile(&found, &args.name, &today());
    let shown = match args.format {
        Format::Json => data(&found, made.as_ref().ok())?,
        _ => table(&found, made.as_ref().ok()),
    };
    for text in found.busy.iter().chain(made.iter().flat_map(|m| &m.notes)) {
        note(!args.quiet, text);
    }
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&shown, None);
    let stopped = matches!(found.ended, Some(End::Stopped));
    let kept = made.as_ref().ok().filter(|_| !stopped).map(|made| Machine::this().keep(&made.text));
    // Without a profile the values are still shown.
    let made = made.map_err(|e| anyhow::Error::new(e).context("the measured values make no profile"));
    delivery.file("profile", output, || Ok(made?.text.into_bytes()));
    delivery.done()?;
    match kept.transpose().context("the profile is not kept for later runs") {
        Ok(file) => file.iter().for_each(|f| {
            note(!args.quiet, format_args!("later runs on this machine use the profile: {}", f.display()));
        }),
        // Who named a file has the profile there.
        Err(e) if args.output.is_some() => note(!args.quiet, format_args!("{e:#}")),
        Err(e) => return Err(e),
    }
    Ok(match found.ended {
        Some(End::Stopped) => Status::OfCommand(CommandExit::Interrupted),
        _ => Status::Done,
    })
}

fn table(found: &Survey, made: Option<&Made>) -> String {
    let rows = found.findings().into_iter().map(|f| {
        let [value, low, high] = match &f.measured {
            Some(e) => [e.median, e.low, e.high].map(|v| number(&f, v)),
            None if f.reached => ["not determined".into(), String::new(), String::new()],
            None => ["not reached".into(), String::new(), String::new()],
        };
        let told = f.told.map_or(String::new(), |t| number(&f, t as f64));
        vec![f.name.clone(), unit(&f).into(), value, low, high, told]
    });
    let head = ["", "unit", "measured", "low", "high", "CPUID"].map(String::from);
    let mut out = text_table(head.into(), rows.collect());
    let most = if found.most_rounds > found.rounds {
        format!(", {} for wide intervals", found.most_rounds)
    } else {
        String::new()
    };
    out += &format!("\nOn CPU {}, {} rounds{most}.", found.cpu, found.rounds);
    if let Some(made) = made {
        out += &format!(" The profile has the other values from {}.", made.base);
    }
    out.push('\n');
    for remark in found.remarks().iter().chain(made.iter().flat_map(|m| &m.notes)) {
        out += &wrapped(&format!("note  {remark}."), 6);
    }
    out
}

/// The unit as the table shows it.
fn unit(f: &Finding) -> &'static str {
    match f.unit {
        "Hz" => "GHz",
        "bytes" => "KB",
        "1" => "",
        unit => unit,
    }
}

fn number(f: &Finding, value: f64) -> String {
    match f.unit {
        _ if value.is_infinite() => "no end".into(),
        "Hz" => format!("{:.2}", value / 1e9),
        "bytes" => grouped((value / 1024.0).round() as u64),
        "cycles" | "1" if value < 100.0 => format!("{value:.1}"),
        _ => grouped(value.round() as u64),
    }
}

fn data(found: &Survey, made: Option<&Made>) -> anyhow::Result<String> {
    let row = |f: Finding| Row {
        refused: f.measured.is_some_and(|e| e.refusal().is_some()),
        name: f.name,
        unit: f.unit,
        measured: f.measured,
        reached: f.reached,
        told: f.told,
    };
    let unwritten = made.iter().flat_map(|m| &m.unwritten);
    let unwritten = unwritten.map(|u| UnwrittenRow {
        key: &u.key,
        why: u.why.word(),
        reason: &u.reason,
        in_profile: &u.stands,
    });
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        date: today(),
        cpu: found.cpu,
        hypervisor: found.told.hypervisor.as_deref(),
        values: found.findings().into_iter().map(row).collect(),
        remarks: found.remarks(),
        unwritten: unwritten.collect(),
        survey: found,
        profile: made.map(|m| m.text.as_str()),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}
