// SPDX-License-Identifier: Apache-2.0 OR MIT
//! All runs and their spread as JSON: `schema/runs-1.json` describes the document. Each run in it is a
//! document of `schema/compare-1.json`.

use super::{Outlier, Row, Runs};
use crate::spread::OUTLIER_RULE;
use crate::{Exit, Figures, RenderError, Spread, json};
use bifold_model::Sample;
use serde::Serialize;
use serde_json::{Map, Value};

/// Name and version of the document's schema.
pub(crate) const SCHEMA: &str = "bifold.runs/1";

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
    summary: Vec<Summary>,
    runs: Vec<R>,
}

#[derive(Serialize)]
struct Ending {
    exit: Option<Exit>,
    runs: Vec<usize>,
}

/// One configuration over the runs.
#[derive(Serialize)]
struct Summary {
    config: String,
    figures: Map<String, Value>,
    counters: Map<String, Value>,
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
        summary: r.rows().iter().map(summary).collect::<Result<_, _>>()?,
        runs: r.runs.iter().map(json::document).collect::<Result<Vec<_>, _>>()?,
    };
    let mut text = serde_json::to_string_pretty(&document)?;
    text.push('\n');
    Ok(text)
}

fn summary(row: &Row) -> Result<Summary, RenderError> {
    let map = |names: Vec<&str>, spreads: &[Spread]| {
        let pairs = names.into_iter().zip(spreads);
        pairs.map(|(n, s)| Ok((n.to_string(), serde_json::to_value(s)?))).collect::<Result<_, RenderError>>()
    };
    Ok(Summary {
        config: row.config.name(),
        figures: map(Figures::ALL.iter().map(|f| f.name).collect(), &row.figures)?,
        counters: map(Sample::COUNTERS.iter().map(|c| c.name).collect(), &row.counters)?,
    })
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
