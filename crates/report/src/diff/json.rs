// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON document of a diff; `schema/diff-2.json` is its schema.

use super::{Change, Diff, Difference, Kind, Made, Side, made, text};
use crate::json::{OfConfig, pretty};
use crate::{Partial, RenderError};
use serde::Serialize;

/// Name and version of the document's schema.
const SCHEMA: &str = "bifold.diff/2";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    bifold: &'static str,
    a: OfSide<'a>,
    b: OfSide<'a>,
    differs: Vec<Difference>,
    warnings: Vec<String>,
    verdict: String,
    same: bool,
    ideal: Ideal,
    configs: Vec<OfConfig>,
    exits: Vec<OfExit>,
}

#[derive(Serialize)]
struct OfSide<'a> {
    path: &'a str,
    kind: Kind,
    runs: usize,
    partial: Option<Partial>,
    checks_failed: u64,
    made: &'a Made,
}

/// The ideal runs.
#[derive(Serialize)]
struct Ideal {
    instructions: Change,
    seconds: Change,
}

#[derive(Serialize)]
struct OfExit {
    config: String,
    reason: &'static str,
    #[serde(flatten)]
    change: Change,
}

pub(super) fn render(d: &Diff) -> Result<String, RenderError> {
    let configs = d.configs.iter().map(|c| OfConfig::new(c.config, &c.figures, &c.counters));
    let exits = d.exits().into_iter();
    let (instructions, seconds) = d.ideal();
    let document = Document {
        schema: SCHEMA,
        bifold: bifold_base::version(),
        a: side(&d.a),
        b: side(&d.b),
        differs: made::differences(&d.a.made, &d.b.made),
        warnings: d.warnings(),
        verdict: text::verdict(d),
        same: d.same(),
        ideal: Ideal { instructions, seconds },
        configs: configs.collect::<Result<_, _>>()?,
        exits: exits
            .map(|(config, reason, change)| OfExit { config: config.name(), reason, change })
            .collect(),
    };
    pretty(&document)
}

fn side(s: &Side) -> OfSide<'_> {
    OfSide {
        path: &s.name,
        kind: s.kind,
        runs: s.runs(),
        partial: s.partial,
        checks_failed: s.failed_checks,
        made: &s.made,
    }
}
