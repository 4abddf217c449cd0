// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON document of several runs, with their spread. Each run is a document of one run.

use super::{Outlier, Runs};
use crate::json::{self, OfConfig};
use crate::rows::{JsonLine, SpreadRow};
use crate::spread::OUTLIER_RULE;
use crate::{Figures, RenderError, Spread};
use bifold_trace::CommandExit;
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the document's schema.
pub(crate) const SCHEMA: &str = "bifold.runs/2";

/// What `bifold compare --runs N --format json` writes for N above 1: all runs of a command and their spread.
/// Fields may be added within this version; none changes its meaning or goes away.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'a str,
    /// Runs asked for.
    asked: usize,
    /// Runs that are whole, over which the summary is.
    whole: usize,
    /// Whether two whole runs or more agree to the bit: the same events, and the same counters.
    agree: bool,
    /// Number of different event streams (input hashes) among the whole runs.
    streams: usize,
    /// The result in a sentence or two, for people.
    verdict: String,
    /// The ways in which the command ended, each with its runs.
    endings: Vec<Ending>,
    /// When a run stands out, for people.
    outlier_rule: &'static str,
    /// Overheads and instructions that stand out by the rule, in the order of the runs. The means include
    /// them.
    outliers: Vec<Outlier>,
    /// Means and spreads by configuration over the whole runs; empty if none is whole.
    summary: Vec<OfConfig<Spread>>,
    /// The runs, each as `bifold compare --format json` writes one. A run that was interrupted or failed is
    /// here only if it is the first.
    runs: Vec<json::Document<'a>>,
}

/// A way in which the command ended.
#[derive(Serialize, JsonSchema)]
struct Ending {
    /// How the command ended; null where the end was not seen.
    exit: Option<CommandExit>,
    /// Numbers of the runs, from 1.
    runs: Vec<usize>,
}

pub(crate) fn render(r: &Runs) -> Result<String, RenderError> {
    let rows = r.rows();
    let rows = rows.iter().map(|row| OfConfig::new(row.config, &row.figures, &row.counters));
    let document = Document {
        schema: SCHEMA,
        bifold: r.runs.first().map_or("", |c| &c.meta.bifold),
        asked: r.asked,
        whole: r.whole().count(),
        agree: r.agree(),
        streams: r.streams(),
        verdict: super::text::verdict(r),
        endings: r.endings().into_iter().map(|(exit, runs)| Ending { exit, runs }).collect(),
        outlier_rule: OUTLIER_RULE,
        outliers: r.outliers(),
        summary: rows.collect(),
        runs: r.runs.iter().map(json::document).collect::<Result<Vec<_>, _>>()?,
    };
    json::pretty(&document)
}

/// A line per configuration and figure.
pub(crate) fn spread_lines(r: &Runs) -> Result<String, RenderError> {
    let mut out = String::new();
    for row in r.rows() {
        for (f, spread) in Figures::ALL.iter().zip(row.figures) {
            let row = SpreadRow { config: row.config.name(), figure: f.name, unit: f.unit, spread };
            out += &serde_json::to_string(&JsonLine::Spread(row))?;
            out.push('\n');
        }
    }
    Ok(out)
}
