// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim plan`: policies that divide a host's memory, over timelines of guests
//! ([`bifold_reclaim::plan`]).

use crate::console::{self, Delivery, create_for_data, distinct, named, note};
use crate::run::source::is_recording;
use crate::status::Status;
use crate::usage::UsageError;
use crate::words;
use anyhow::anyhow;
use bifold_host::printable;
use bifold_reclaim::{MemoryTimeline, Plan, PlanError, PolicyName, PolicyPlan, Setting, plan};
use bifold_report::{Format, grouped, seconds, text_table_with_keys, wrapped};
use clap::Args;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use schemars::JsonSchema;
use serde::Serialize;
use std::ffi::{OsStr, OsString};
use std::path::Path;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.reclaim-plan/1";
/// Bytes of a frame.
const FRAME: u64 = 4096;
/// With fewer steps, policies that learn have little to learn from.
const FEW_STEPS: u64 = 10;

const EXAMPLES: &str = "\
Examples:
  bifold reclaim plan --host 96M gcc.memory redis.memory idle.memory
  bifold reclaim plan --host 2G --policies equal,curves,oracle web1=web.memory web2=web.memory
  bifold reclaim plan --host 96M --format json -o plan.json *.memory";

/// Compare policies that divide a host's memory among guests
///
/// A timeline has a guest's misses at each size of memory, interval by interval; `bifold reclaim show
/// --timeline FILE` writes it. Each policy gives each guest a size for each step. Misses beyond the first
/// references to pages are refaults: the host reads the page back, and the guest waits. Memory that a
/// guest is given is empty at first.
///
/// Policies see only what a host can see of a guest; the table says what. The oracle knows the future. A
/// guest whose timeline has ended is idle and keeps what it has until a policy takes it.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct PlanArgs {
    /// Timelines of guests; NAME is the guest's name in the results [default: the file's name]
    #[arg(value_name = "[NAME=]TIMELINE", required = true)]
    pub timelines: Vec<OsString>,

    /// The host's memory for guests
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| words::size(text, 1))]
    pub host: u64,

    /// The least that each guest has; never below the smallest size of its timeline
    #[arg(long, value_name = "SIZE", value_parser = |text: &str| words::size(text, 1), default_value = "1M")]
    pub floor: u64,

    /// Compare only these, separated by commas: equal, paging, idle-tax, mom, proxmox, feedback, curves,
    /// fair-curves, oracle
    #[arg(long, value_name = "LIST", value_delimiter = ',', value_parser = policies(), hide_possible_values = true)]
    pub policies: Vec<PolicyName>,

    /// Microseconds that a guest waits for a refault
    ///
    /// The default is a random read from an NVMe disk for data centres, by its data sheet (Intel P4500, 1
    /// TB). The host's own work for the fault comes on top.
    #[arg(long, value_name = "US", value_parser = words::microseconds, default_value = "85")]
    pub refault_us: f64,

    /// Seconds of a guest between decisions [default: a sixteenth of the longest interval]
    ///
    /// Guests that lack memory wait most of the time: what takes 0.1 s in the ideal run takes seconds, and a
    /// policy decides more than once. With more than 4,000 steps, the default is longer, up to the interval.
    #[arg(short, long, value_name = "SECS", value_parser = words::interval)]
    pub interval: Option<f64>,

    /// Count each second of a guest as N seconds for policies
    ///
    /// Published rules act every 6 to 30 s and in small steps, and a captured run lasts seconds. With 1, a
    /// rule has its own time.
    #[arg(long, value_name = "N", value_parser = words::time_scale, default_value = "100")]
    pub time_scale: f64,

    /// Output format
    ///
    /// `table` is for reading. `json` is one document (schema bifold.reclaim-plan/1) with each guest under
    /// each policy.
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Write the data to FILE instead of stdout
    #[arg(short, long, value_name = "FILE", help_heading = "Output")]
    pub output: Option<std::path::PathBuf>,

    /// No notes on stderr
    #[arg(short, long, help_heading = "Output")]
    pub quiet: bool,
}

fn policies() -> impl TypedValueParser<Value = PolicyName> {
    PossibleValuesParser::new(PolicyName::ALL.map(PolicyName::name)).map(|name| {
        PolicyName::ALL
            .into_iter()
            .find(|p| p.name() == name)
            .expect("the parser takes names of policies only")
    })
}

/// Carries out the verb.
pub fn run(args: &PlanArgs) -> anyhow::Result<Status> {
    let sources: Vec<(Option<&OsStr>, &Path)> =
        args.timelines.iter().map(|word| name_and_path(word)).collect();
    let inputs: Vec<console::Named> = sources.iter().map(|(_, path)| ("a timeline", *path)).collect();
    distinct(&inputs, &named([("--output", args.output.as_deref())]))?;
    let names = names(&sources)?;
    let read = |(_, path): &(_, &Path)| {
        MemoryTimeline::read(path).map_err(|e| match is_recording(path) {
            true => anyhow!(
                "{0} is a recording: `bifold reclaim show --timeline FILE {0}` writes its timeline of memory",
                path.display()
            ),
            false => e.into(),
        })
    };
    let timelines = sources.iter().map(read).collect::<anyhow::Result<Vec<_>>>()?;
    let guests: Vec<(String, MemoryTimeline)> = names.into_iter().zip(timelines).collect();
    let output = create_for_data(args.output.as_deref())?;
    let setting = Setting {
        host_frames: args.host / FRAME,
        floor_frames: args.floor / FRAME,
        refault_s: args.refault_us / 1e6,
        step_s: args.interval,
        time_scale: args.time_scale,
    };
    let wanted = if args.policies.is_empty() { &PolicyName::ALL[..] } else { &args.policies };
    let plan = plan(&guests, wanted, &setting).map_err(|e| refused(&e, args))?;
    if plan.steps < FEW_STEPS {
        let few = format!(
            "{} steps are few: policies learn by them; give --interval, or timelines with shorter ones",
            plan.steps
        );
        note(!args.quiet, few);
    }
    let text = match args.format {
        Format::Json => json(&plan, &guests)?,
        _ => table(&plan),
    };
    let mut delivery = Delivery::new(!args.quiet);
    delivery.data(&text, output);
    delivery.done()?;
    Ok(Status::Done)
}

/// `NAME=TIMELINE`; a file whose own name has `=` needs a `./` before it.
fn name_and_path(word: &OsStr) -> (Option<&OsStr>, &Path) {
    let text = word.to_str().and_then(|text| text.split_once('='));
    match text.filter(|(name, _)| !name.is_empty() && !name.contains('/')) {
        Some((name, path)) => (Some(OsStr::new(name)), Path::new(path)),
        None => (None, Path::new(word)),
    }
}

/// The guests' names, each for one guest.
fn names(sources: &[(Option<&OsStr>, &Path)]) -> Result<Vec<String>, UsageError> {
    let name = |(name, path): &(Option<&OsStr>, &Path)| {
        let name = name.or(path.file_stem()).unwrap_or(path.as_os_str());
        printable(&name.to_string_lossy()).to_string()
    };
    let names: Vec<String> = sources.iter().map(name).collect();
    let twice = (1..names.len()).find(|&i| names[..i].contains(&names[i]));
    match twice {
        Some(i) => {
            let (name, path) = (&names[i], sources[i].1.display());
            let problem = format!("two guests are called {name}: give them names, as in a={path}");
            Err(UsageError::value("TIMELINE", problem))
        }
        None => Ok(names),
    }
}

fn refused(error: &PlanError, args: &PlanArgs) -> UsageError {
    match error {
        PlanError::HostTooSmall { floors, .. } => {
            let problem = format!(
                "less than the floors of the guests, {}: give the host more, or lower --floor",
                size(*floors)
            );
            UsageError::value(format!("--host {}", size(args.host / FRAME)), problem)
        }
        PlanError::TooManySteps { .. } => UsageError::value("--interval", error),
        error => UsageError::value("TIMELINE", error).failing(),
    }
}

/// What `bifold reclaim plan --format json` writes: policies that divide a host's memory among guests.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The guests, in the order given.
    guests: Vec<DocumentGuest<'a>>,
    #[serde(flatten)]
    plan: &'a Plan,
}

/// A guest and its timeline.
#[derive(Serialize, JsonSchema)]
struct DocumentGuest<'a> {
    /// The guest's name.
    name: &'a str,
    /// The command or the generator that the timeline is of.
    program: &'a str,
    /// The guest's memory. Unit: frames of 4 KB.
    frames: u64,
    /// Length of the timeline. Unit: s.
    seconds: f64,
}

/// The schema of the document.
pub fn schema() -> serde_json::Value {
    bifold_report::schema::schema::<Document>(SCHEMA)
}

fn json(plan: &Plan, guests: &[(String, MemoryTimeline)]) -> anyhow::Result<String> {
    let guests = guests.iter().map(|(name, timeline)| DocumentGuest {
        name,
        program: &timeline.about.program,
        frames: timeline.about.guest_frames,
        seconds: timeline.seconds(),
    });
    let document =
        Document { schema: SCHEMA, bifold: bifold_base::version(), guests: guests.collect(), plan };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Frames as bytes, for people.
fn size(frames: u64) -> String {
    match frames * FRAME {
        b if b >= 1 << 30 => format!("{:.2} GiB", b as f64 / (1u64 << 30) as f64),
        b if b >= 1 << 20 => format!("{:.1} MiB", b as f64 / (1u64 << 20) as f64),
        b => format!("{} KiB", b >> 10),
    }
}

fn table(plan: &Plan) -> String {
    let mut out = format!(
        "host      {} for guests whose working sets are {} together\n",
        size(plan.host_frames),
        size(plan.working_set_frames)
    );
    let of_policy = seconds(plan.step_seconds * plan.time_scale);
    out += &format!("steps     {} of {}, {of_policy} for policies\n", plan.steps, seconds(plan.step_seconds));
    out += &format!("refault   {}\n\n", seconds(plan.refault_seconds));
    let head = [
        "\npolicy",
        "\nrefaults",
        "in new\nmemory",
        "\nstalls",
        "\nwritten",
        "beside equal,\nthe worst guest",
    ];
    let row = |policy: &PolicyPlan| {
        vec![
            policy.name.to_string(),
            grouped(policy.refaults),
            grouped(policy.refaults_while_growing),
            seconds(policy.stall_seconds),
            size(policy.written_frames),
            worst(policy),
        ]
    };
    let rows = plan.policies.iter().map(row).collect();
    out += &text_table_with_keys(1, head.map(String::from).into(), rows);
    out.push('\n');
    let width = plan.policies.iter().map(|policy| policy.name.len()).max().unwrap_or(0);
    for policy in &plan.policies {
        let line = format!("{:<width$}  sees {}. {}", policy.name, policy.needs, why(policy));
        out += &wrapped(&line, width + 2);
    }
    out
}

fn worst(policy: &PolicyPlan) -> String {
    match &policy.worst {
        None => "-".into(),
        Some(worst) => match worst.ratio {
            Some(ratio) => format!("{} {ratio:.2}", worst.guest),
            None => format!("{} had none", worst.guest),
        },
    }
}

fn why(policy: &PolicyPlan) -> String {
    let Some(costliest) = &policy.costliest else { return "No guest refaulted.".into() };
    let when = if costliest.seconds == 0.0 { "the start".into() } else { seconds(costliest.seconds) };
    format!(
        "Costliest: {} at {when}, {} refaults: it {}.",
        costliest.guest,
        grouped(costliest.refaults),
        costliest.reason
    )
}
