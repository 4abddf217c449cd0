// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tidy rows: one row is one interval in one configuration. CSV has only these rows. JSON lines have a
//! `type`, and add one `run` row, a `total` row per configuration, a `policy` row per policy and
//! starting mode, and a `placement` row per configuration and placement. Where placements are asked for, CSV
//! has only the rows of those.

use crate::json::Head;
use crate::placement::PlacementRow;
use crate::policies::PolicyRow;
use crate::{Comparison, Figures, RenderError, Spread};
use bifold_model::{ConfigOutcome, Sample, VmState};
use schemars::JsonSchema;
use serde::Serialize;

/// A line of `bifold compare --format jsonl`. The rows of type interval, without their type, are also those
/// of `--format csv`; with `--placement`, the rows of type placement are. Fields may be added within this
/// version, columns at the end; none changes its meaning or goes away.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum JsonLine<'a> {
    /// The run: first, once.
    Run(Box<RunRow<'a>>),
    /// A configuration over the whole run.
    Total(TotalRow<'a>),
    /// A policy from one starting mode; none where the run is too short for policies.
    Policy(PolicyRow<'a>),
    /// A configuration in one placement; none without `--placement`.
    Placement(PlacementRow),
    /// An interval in one configuration, in the order of time.
    Interval(IntervalRow<'a>),
    /// A figure of one configuration over several runs: last.
    Spread(SpreadRow),
}

/// The run of the lines that follow.
#[derive(Serialize, JsonSchema)]
pub(crate) struct RunRow<'a> {
    #[serde(flatten)]
    head: Head<'a>,
    /// Name of the hardware profile.
    profile: &'a str,
    /// Core frequency. Unit: Hz.
    frequency_hz: u64,
    /// Cycles per instruction assumed for the ideal run, waits for data left out.
    base_cpi: f64,
    /// Seed of the host frames' placement.
    seed: u64,
    /// XXH3-64 of the profile as resolved, overrides included.
    config_hash: &'a str,
    /// XXH3-64 of the events consumed.
    input_hash: &'a str,
    /// State of the VM when the program begins.
    vm: VmState,
    /// Nominal length of an interval in ideal cycles.
    interval_cycles: u64,
}

/// A configuration over the whole run.
#[derive(Serialize, JsonSchema)]
pub(crate) struct TotalRow<'a> {
    /// Name of the configuration: native, nested-4k, ...
    config: String,
    #[serde(flatten)]
    sample: &'a Sample,
    #[serde(flatten)]
    figures: Figures,
}

/// A configuration in an interval.
#[derive(Serialize, JsonSchema)]
pub(crate) struct IntervalRow<'a> {
    /// Number of the interval, from 0.
    interval: usize,
    /// Start of the interval since the start of the run. Unit: cycles of the ideal run.
    start_cycles: u64,
    /// Name of the configuration: native, nested-4k, ...
    config: String,
    #[serde(flatten)]
    sample: &'a Sample,
}

/// A figure of one configuration over several runs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct SpreadRow {
    /// Name of the configuration: native, nested-4k, ...
    pub config: String,
    /// Name of the figure.
    pub figure: &'static str,
    /// Unit of the figure.
    pub unit: &'static str,
    #[serde(flatten)]
    pub spread: Spread,
}

/// A line with the number of its run, if there are several runs.
#[derive(Serialize)]
struct Numbered<'a> {
    #[serde(skip_serializing_if = "Option::is_none")]
    run: Option<usize>,
    #[serde(flatten)]
    row: JsonLine<'a>,
}

/// Index, start, configuration and sample, in the order of time.
fn intervals(c: &Comparison) -> impl Iterator<Item = (usize, u64, &ConfigOutcome, &Sample)> {
    c.outcome.interval_starts.iter().enumerate().flat_map(move |(i, &start)| {
        c.outcome.configs.iter().filter_map(move |o| Some((i, start, o, o.intervals.get(i)?)))
    })
}

/// The lines of one run, numbered if there are several.
pub(crate) fn render_jsonl(c: &Comparison, run: Option<usize>) -> Result<String, RenderError> {
    let o = &c.outcome;
    let mut out = String::new();
    let mut line = |row: JsonLine| -> Result<(), RenderError> {
        out.push_str(&serde_json::to_string(&Numbered { run, row })?);
        out.push('\n');
        Ok(())
    };
    line(JsonLine::Run(Box::new(RunRow {
        head: Head::of(c),
        profile: &o.profile,
        frequency_hz: o.frequency_hz,
        base_cpi: o.base_cpi,
        seed: o.seed,
        config_hash: &o.config_hash,
        input_hash: &o.input_hash,
        vm: o.vm,
        interval_cycles: o.interval_cycles,
    })))?;
    for r in &o.configs {
        let figures = Figures::of(o, r);
        line(JsonLine::Total(TotalRow { config: r.config.name(), sample: &r.total, figures }))?;
    }
    if let Some(Ok(e)) = c.policies.as_ref().map(|p| &p.evaluation) {
        for row in crate::policies::policy_rows(e) {
            line(JsonLine::Policy(row))?;
        }
    }
    for row in crate::placement::rows(c) {
        line(JsonLine::Placement(row))?;
    }
    for (interval, start_cycles, r, sample) in intervals(c) {
        line(JsonLine::Interval(IntervalRow { interval, start_cycles, config: r.config.name(), sample }))?;
    }
    Ok(out)
}

pub(crate) fn render_csv(c: &Comparison) -> Result<String, RenderError> {
    // Placements have no intervals, so they take the place of the rows of intervals.
    if c.outcome.placed.is_some() {
        return crate::placement::csv(c);
    }
    csv_of([(None, c)])
}

/// The rows of these runs, with a column of their numbers if they have one.
pub(crate) fn csv_of<'a>(
    runs: impl IntoIterator<Item = (Option<usize>, &'a Comparison)>,
) -> Result<String, RenderError> {
    let mut writer = csv::Writer::from_writer(Vec::new());
    let mut head = false;
    for (run, c) in runs {
        if !std::mem::replace(&mut head, true) {
            let names = ["interval", "start_cycles", "config"].into_iter();
            // The number comes last, so that the columns of a single run keep their places.
            let last = run.map(|_| "run");
            writer.write_record(names.chain(Sample::COUNTERS.iter().map(|c| c.name)).chain(last))?;
        }
        for (interval, start, r, sample) in intervals(c) {
            let names = [interval.to_string(), start.to_string(), r.config.name()].into_iter();
            let last = run.map(|n| n.to_string());
            writer.write_record(names.chain(sample.values().map(|v| v.to_string())).chain(last))?;
        }
    }
    let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
    Ok(String::from_utf8(bytes).expect("names and numbers are UTF-8"))
}
