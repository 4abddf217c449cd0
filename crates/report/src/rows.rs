// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tidy rows: one row is one interval in one configuration. CSV has only these rows. JSON lines have a
//! `type`, and add one `run` row, a `total` row per configuration, a `policy` row per policy and
//! starting mode, and a `placement` row per configuration and placement. Where placements are asked for, CSV
//! has only the rows of those.

use crate::json::Head;
use crate::{Comparison, Figures, RenderError};
use bifold_model::{ConfigOutcome, Sample, VmState};
use serde::Serialize;

/// One line of JSON.
#[derive(Serialize)]
#[serde(tag = "type", rename_all = "lowercase")]
enum JsonLine<'a> {
    Run {
        #[serde(flatten)]
        head: Box<Head<'a>>,
        profile: &'a str,
        frequency_hz: u64,
        base_cpi: f64,
        seed: u64,
        config_hash: &'a str,
        input_hash: &'a str,
        vm: VmState,
        interval_cycles: u64,
    },
    Total {
        config: String,
        #[serde(flatten)]
        sample: &'a Sample,
        #[serde(flatten)]
        figures: Figures,
    },
    Policy(crate::policies::PolicyRow<'a>),
    Placement(crate::placement::PlacementRow),
    Interval {
        interval: usize,
        start_cycles: u64,
        config: String,
        #[serde(flatten)]
        sample: &'a Sample,
    },
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
    line(JsonLine::Run {
        head: Box::new(Head::of(c)),
        profile: &o.profile,
        frequency_hz: o.frequency_hz,
        base_cpi: o.base_cpi,
        seed: o.seed,
        config_hash: &o.config_hash,
        input_hash: &o.input_hash,
        vm: o.vm,
        interval_cycles: o.interval_cycles,
    })?;
    for r in &o.configs {
        let figures = Figures::of(o, r);
        line(JsonLine::Total { config: r.config.name(), sample: &r.total, figures })?;
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
        line(JsonLine::Interval { interval, start_cycles, config: r.config.name(), sample })?;
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
