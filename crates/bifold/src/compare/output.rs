// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The files that `compare` and `record` write beside the data. Each is made of a comparison.

use super::args::OutputArgs;
use super::baseline::BaselineArgs;
use super::plan::Plan;
use anyhow::anyhow;
use bifold_report::{Comparison, Places};
use std::path::Path;

/// A file beside the data.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Output {
    Timeline,
    Folded,
    Pprof,
    Trace,
    Baseline,
    Chart,
    Report,
}

/// What a comparison does not hold.
pub struct Beside<'a> {
    /// The timeline's bytes, which are taken once.
    pub timeline: Vec<u8>,
    /// Why the run has no timeline.
    pub no_timeline: Option<&'a str>,
    /// Whether the run is whole: it neither failed nor was stopped.
    pub whole: bool,
}

impl Output {
    /// All, in the order in which they are written.
    pub const ALL: [Output; 7] = [
        Output::Timeline,
        Output::Folded,
        Output::Pprof,
        Output::Trace,
        Output::Baseline,
        Output::Chart,
        Output::Report,
    ];

    /// The option that names the file, and what notes call the file.
    pub fn names(self) -> (&'static str, &'static str) {
        match self {
            Output::Timeline => ("--timeline", "timeline"),
            Output::Folded => ("--folded", "stacks"),
            Output::Pprof => ("--pprof", "profile"),
            Output::Trace => ("--trace", "trace"),
            Output::Baseline => ("--save-baseline", "baseline"),
            Output::Chart => ("--chart", "chart"),
            Output::Report => ("--report", "report"),
        }
    }

    /// The file that the options name.
    pub fn path<'a>(self, show: &'a OutputArgs, baseline: Option<&'a BaselineArgs>) -> Option<&'a Path> {
        match self {
            Output::Timeline => show.timeline.as_deref(),
            Output::Folded => show.folded.as_deref(),
            Output::Pprof => show.pprof.as_deref(),
            Output::Trace => show.trace.as_deref(),
            Output::Baseline => baseline?.save_baseline.as_deref(),
            Output::Chart => show.chart.as_deref(),
            Output::Report => show.report.as_deref(),
        }
    }

    /// Whether the file holds one run, so that `--runs` has none. The options of baselines refuse `--runs`
    /// themselves.
    pub fn holds_one_run(self) -> bool {
        !matches!(self, Output::Report | Output::Baseline)
    }

    /// Whether the file that is there stays: a baseline, where the command failed and so did other work.
    pub fn stays(self, path: &Path, of: &Comparison) -> bool {
        self == Output::Baseline && of.meta.exit.is_some_and(|exit| !exit.is_success()) && path.is_file()
    }

    /// The file's content.
    ///
    /// # Errors
    /// If the run lacks what the file needs, or a format cannot hold the figures.
    pub fn content(self, of: &Comparison, beside: &mut Beside, plan: &Plan) -> anyhow::Result<Vec<u8>> {
        let with_places = |make: &dyn Fn(&Places) -> anyhow::Result<Vec<u8>>| {
            of.places.as_ref().map_or(Ok(Vec::new()), make)
        };
        match self {
            Output::Timeline => match beside.no_timeline {
                Some(why) => Err(anyhow!("--timeline needs a timeline, and {why}")),
                None => Ok(std::mem::take(&mut beside.timeline)),
            },
            Output::Folded => {
                with_places(&|p| Ok(p.places.folded(p.view, p.config, plan.count).into_bytes()))
            }
            Output::Pprof => with_places(&|p| Ok(p.places.pprof(p.view, p.config, plan.count)?)),
            Output::Trace => Ok(of.render_trace()?.into_bytes()),
            Output::Baseline if !beside.whole => Err(anyhow!("--save-baseline needs a whole run")),
            Output::Baseline => Ok(of.render_baseline()?.into_bytes()),
            Output::Chart => Ok(of.render_chart()?.into_bytes()),
            Output::Report => Ok(of.render_html()?.into_bytes()),
        }
    }
}
