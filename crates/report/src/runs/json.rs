// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON document of several runs, with their spread; `schema/runs-2.json` is its schema. Each run in the
//! document follows `schema/compare-2.json`.

use super::{Outlier, Runs};
use crate::json::{self, OfConfig};
use crate::spread::OUTLIER_RULE;
use crate::{Figures, RenderError, Spread};
use bifold_trace::CommandExit;
use serde::Serialize;

/// Name and version of the document's schema.
pub(crate) const SCHEMA: &str = "bifold.runs/2";

#[derive(Serialize)]
struct Document<'a, R: Serialize> {
    schema: &'static str,
    bifold: &'a str,
    asked: usize,
    whole: usize,
    agree: bool,
    streams: usize,
    verdict: String,
    endings: Vec<Ending>,
    outlier_rule: &'static str,
    outliers: Vec<Outlier>,
    summary: Vec<OfConfig>,
    runs: Vec<R>,
}

#[derive(Serialize)]
struct Ending {
    exit: Option<CommandExit>,
    runs: Vec<usize>,
}

/// One figure of one configuration, as a line.
#[derive(Serialize)]
struct Line {
    r#type: &'static str,
    config: String,
    figure: &'static str,
    unit: &'static str,
    #[serde(flatten)]
    spread: Spread,
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
        summary: rows.collect::<Result<_, _>>()?,
        runs: r.runs.iter().map(json::document).collect::<Result<Vec<_>, _>>()?,
    };
    json::pretty(&document)
}

/// A line per configuration and figure.
pub(crate) fn spread_lines(r: &Runs) -> Result<String, RenderError> {
    let mut out = String::new();
    for row in r.rows() {
        for (f, spread) in Figures::ALL.iter().zip(row.figures) {
            let line =
                Line { r#type: "spread", config: row.config.name(), figure: f.name, unit: f.unit, spread };
            out += &serde_json::to_string(&line)?;
            out.push('\n');
        }
    }
    Ok(out)
}
