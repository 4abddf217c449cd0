// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy replay`: shows when a policy switches, and why. [`recorded`] replays over recordings of
//! real VMs.

mod recorded;

use super::setting::{Setting, VmArgs, WhichArgs, are_recordings, one_state, policies, timelines, track};
use crate::console::print;
use crate::status::Status;
use crate::usage::UsageError;
use crate::words;
use bifold_mmu::PageSize;
use bifold_model::VmState;
use bifold_policy::evaluate::{Input, Shares};
use bifold_policy::replay::forced_extra;
use bifold_policy::replay_check;
use bifold_policy::{Mode, Named, Run, Setup, Track, oracle, replay};
use bifold_report::{Format, checks_table, scale_words, vm_words, wrapped};
use clap::Args;
use schemars::JsonSchema;
use serde::Serialize;
use serde_json::Value;
use std::fmt::Write as _;
use std::path::PathBuf;

const EXAMPLES: &str = "\
Examples:
  bifold policy replay --policy rpms-dynamic --explain gcc.timeline
  bifold policy replay --policy dsp --set interval_s=2 --start shadow gcc.timeline
  bifold policy replay --policy dsp --explain vms.jsonl
  bifold policy replay --config /etc/bifold/bifold.toml vms.jsonl";

/// Replay policies over timelines, and show when and why they switch
///
/// Prints how long the VM stays in each mode and what that costs. With --explain, prints every decision: the
/// value that the policy looked at, and the threshold.
///
/// A recording of `bifold stat --format jsonl` has real VMs, each in one mode at a time. Over a recording,
/// the replay shows when a policy would have wanted the other mode. A policy that needs a counter which the
/// recording lacks is refused.
#[derive(Debug, Args)]
#[command(after_help = EXAMPLES)]
pub struct ReplayArgs {
    /// Timelines written by `bifold compare --timeline`, or recordings written by
    /// `bifold stat --format jsonl`
    #[arg(value_name = "TIMELINE", required = true)]
    pub timelines: Vec<PathBuf>,

    /// Options that choose policies.
    #[command(flatten)]
    pub which: WhichArgs,

    /// Over recordings: the rules of this configuration of `bifold daemon`, with their limits, in place of
    /// --policy
    #[arg(long, value_name = "FILE", conflicts_with_all = ["policy", "set", "estimator"])]
    pub config: Option<PathBuf>,

    /// Print every decision and its reason
    #[arg(long)]
    pub explain: bool,

    /// The mode in which the VM starts
    #[arg(long, value_parser = words::mode(), default_value = "nested", value_name = "shadow|nested",
          hide_possible_values = true)]
    pub start: bifold_host::Mode,

    /// Output format
    #[arg(long, value_parser = words::formats(words::TABLE_OR_JSON), default_value = "table", hide_possible_values = true,
          value_name = "table|json", help_heading = "Output")]
    pub format: Format,

    /// Also compare the replay with VMs that switched during the capture; exit status 3 above 2 % error
    ///
    /// These VMs are those of `bifold compare --check`. Decisions depend on the time scale, so this check
    /// uses the scale of the capture, whatever --time-scale says.
    #[arg(long)]
    pub check: bool,

    /// Options of the VM.
    #[command(flatten)]
    pub vm: VmArgs,
}

/// Name and version of the document.
const SCHEMA: &str = "bifold.policy-replay/2";

/// What `bifold policy replay --format json` writes: when policies switch over timelines.
#[derive(Serialize, JsonSchema)]
struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// Size of the host's pages.
    host_page: PageSize,
    /// State of the VM at the start: what the host held of its memory.
    vm: VmState,
    /// Whether nested tables are kept in shadow mode.
    keep_nested: bool,
    /// Seconds of a policy per second of the run.
    time_scale: f64,
    /// What costs of switching are divided by.
    switch_scale: f64,
    /// The mode in which the VM starts.
    start: Mode,
    /// Each policy over each timeline.
    replays: Vec<Row<'a>>,
}

/// A policy over a timeline.
#[derive(Serialize, JsonSchema)]
struct Row<'a> {
    /// The program.
    program: &'a str,
    /// The policy.
    policy: &'a str,
    /// All cycles. Unit: cycles.
    cycles: f64,
    /// Cycles beyond the ideal run's. Unit: % of the ideal run.
    overhead_percent: f64,
    /// The part of these cycles that switches cost. Unit: cycles.
    switch_cycles: f64,
    /// Cycles above those of the better mode that never switches. Unit: % of those.
    static_gap_percent: f64,
    /// Cycles above the oracle's from this start. Unit: % of the oracle's.
    oracle_gap_percent: f64,
    /// Number of switches.
    switches: u64,
    /// Number of decisions.
    decisions: u64,
    #[serde(flatten)]
    shares: &'a Shares,
    /// The spans of the run in one mode, in order of time.
    stays: &'a [ModeSpan],
    /// The decisions, in order of time; empty without `--explain`.
    explained: Vec<Explained<'a>>,
}

/// A decision.
#[derive(Serialize, JsonSchema)]
struct Explained<'a> {
    /// End of the interval after which the policy decided. Unit: s of the run.
    at_s: f64,
    /// The mode that the policy chose.
    mode: Mode,
    /// Why, for people: the value that the policy looked at, and the threshold.
    why: &'a str,
}

/// The schemas of the documents.
pub fn schemas() -> [Value; 2] {
    [bifold_report::schema::schema::<Document>(SCHEMA), recorded::schema()]
}

/// A span of the run in one mode.
#[derive(Serialize, JsonSchema)]
struct ModeSpan {
    /// Start of the span. Unit: s of the run.
    #[serde(rename = "from_s")]
    from: f64,
    /// End of the span. Unit: s of the run.
    #[serde(rename = "to_s")]
    to: f64,
    /// The mode.
    mode: Mode,
    /// Cycles beyond the ideal run's in the span. Unit: % of the ideal run's in the span.
    overhead_percent: f64,
}

/// One policy over one timeline.
struct Replay<'a> {
    input: &'a Input,
    named: &'a Named,
    run: Run,
    stays: Vec<ModeSpan>,
    /// Seconds of the run at which each interval ends.
    ends: Vec<f64>,
    oracle_gap_percent: f64,
    static_gap_percent: f64,
    shares: Shares,
}

/// Replays and prints.
pub fn run(args: ReplayArgs) -> anyhow::Result<Status> {
    if are_recordings(&args.timelines)? {
        return recorded::run(&args);
    }
    if args.config.is_some() {
        let problem = "is for recordings of `stat` or of the daemon, not for timelines of `compare`";
        return Err(UsageError::conflict("--config", problem).into());
    }
    let setting = Setting::new(&args.vm)?;
    let policies = policies(&args.which)?;
    let inputs = timelines(&args.timelines)?;
    let state = one_state(&inputs)?;
    let start = Mode::from(args.start);
    let mut replays = Vec::new();
    for input in &inputs {
        let track = track(input, &setting)?;
        let best = oracle(&track, start, setting.scale.switch).cycles;
        let setup = Setup { start, scale: setting.scale, estimator: setting.estimator.as_ref() };
        for named in &policies {
            replays.push(one(input, &track, named, &setup, best, args.explain));
        }
    }
    let checks = args.check.then(|| {
        let of = |i: &Input| (i.name.clone(), replay_check::checks(&i.timeline));
        inputs.iter().map(of).collect::<Vec<_>>()
    });
    match args.format {
        Format::Json => {
            let document = Document {
                schema: SCHEMA,
                bifold: bifold_base::version(),
                host_page: setting.vm.host_page,
                vm: state,
                keep_nested: setting.vm.keep_nested,
                time_scale: setting.scale.time,
                switch_scale: setting.scale.switch,
                start,
                replays: replays.iter().map(row).collect(),
            };
            print(&(serde_json::to_string_pretty(&document)? + "\n"))?;
            if let Some(checks) = &checks {
                eprint!("{}", checks_table(checks));
            }
        }
        _ => {
            let mut out = wrapped(&format!("The VM is {}", vm_words(state, &setting.vm)), 0)
                + &wrapped(&scale_words(setting.scale.time, setting.scale.switch), 0);
            for r in &replays {
                out += "\n";
                out += &text(r, start, args.explain);
            }
            if let Some(checks) = &checks {
                out += "\n";
                out += &checks_table(checks);
            }
            print(&out)?;
        }
    }
    let passed = checks.iter().flatten().flat_map(|(_, c)| c).all(|c| c.passed());
    Ok(if passed { Status::Done } else { Status::CheckFailed })
}

fn one<'a>(
    input: &'a Input,
    track: &Track,
    named: &'a Named,
    setup: &Setup<'_>,
    oracle_cycles: f64,
    explain: bool,
) -> Replay<'a> {
    let run = replay(track, &named.spec, setup, explain);
    let extra = forced_extra(track, &run.modes, setup.start, setup.scale.switch);
    let hz = input.timeline.about.frequency_hz as f64;
    let ends: Vec<f64> = track
        .ideal
        .iter()
        .scan(0.0, |sum, ideal| {
            *sum += ideal / hz;
            Some(*sum)
        })
        .collect();
    let mut stays = Vec::new();
    let mut first = 0;
    for stay in run.modes.chunk_by(|a, b| a == b) {
        let range = first..first + stay.len();
        let ideal: f64 = track.ideal[range.clone()].iter().sum();
        let cost: f64 = extra[range.clone()].iter().sum();
        stays.push(ModeSpan {
            mode: stay[0],
            from: if first == 0 { 0.0 } else { ends[first - 1] },
            to: ends[range.end - 1],
            overhead_percent: if ideal > 0.0 { 100.0 * cost / ideal } else { 0.0 },
        });
        first = range.end;
    }
    let better = track.modes().map(|m| track.static_cycles(m)).fold(f64::INFINITY, f64::min);
    let above = |than: f64| if than > 0.0 { 100.0 * (run.cycles / than - 1.0) } else { 0.0 };
    let (oracle_gap_percent, static_gap_percent) = (above(oracle_cycles), above(better));
    let shares = Shares::of(track, &run.modes);
    Replay { input, named, run, stays, ends, oracle_gap_percent, static_gap_percent, shares }
}

fn text(r: &Replay, start: Mode, explain: bool) -> String {
    let mut out = format!("{} over {}, started in {} mode\n", r.named.name, r.input.name, start.name());
    out += "   start s      end s  mode    overhead %\n";
    for s in &r.stays {
        let _ = writeln!(
            out,
            "{:>10.3} {:>10.3}  {:<6}  {:>10.2}",
            s.from,
            s.to,
            s.mode.name(),
            s.overhead_percent
        );
    }
    let mut costs = format!(
        "  overhead {:.2} % ({:.3} % by switching); switches {}, decisions {}",
        r.run.overhead_percent(),
        share(r.run.switch_cycles, r.run.cycles - r.run.extra_cycles),
        r.run.switches,
        r.run.decisions,
    );
    for (mode, share) in r.shares.named() {
        let _ = write!(costs, ", time in {} {:.1} %", mode.name(), 100.0 * share);
    }
    let gaps = format!(
        "  gap to the better static mode {:+.2} %, gap to the oracle {:+.2} %",
        r.static_gap_percent, r.oracle_gap_percent
    );
    out += &(wrapped(&costs, 2) + &wrapped(&gaps, 2));
    if explain {
        out += "  decisions, by time in the run:\n";
        for (j, d) in &r.run.explained {
            let before = r.run.modes[*j];
            let arrow = if d.mode == before { "  " } else { "->" };
            let line = format!("{:>10.3} s  {arrow} {}  {}", r.ends[*j], d.mode.name(), d.why);
            out += &wrapped(&line, 25);
        }
    }
    out
}

/// `part` in percent of `whole`; 0 if `whole` is 0.
fn share(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

fn row<'a>(r: &'a Replay) -> Row<'a> {
    let explained =
        r.run.explained.iter().map(|(j, d)| Explained { at_s: r.ends[*j], mode: d.mode, why: &d.why });
    Row {
        program: &r.input.name,
        policy: &r.named.name,
        cycles: r.run.cycles,
        overhead_percent: r.run.overhead_percent(),
        switch_cycles: r.run.switch_cycles,
        static_gap_percent: r.static_gap_percent,
        oracle_gap_percent: r.oracle_gap_percent,
        switches: r.run.switches,
        decisions: r.run.decisions,
        shares: &r.shares,
        stays: &r.stays,
        explained: explained.collect(),
    }
}
