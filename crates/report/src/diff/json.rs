// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON document of a diff.

use super::{Change, Diff, Difference, Kind, Made, Side, made, text};
use crate::json::{OfConfig, pretty};
use crate::{Partial, RenderError};
use schemars::JsonSchema;
use serde::Serialize;

/// Name and version of the document's schema.
pub(crate) const SCHEMA: &str = "bifold.diff/2";

/// What `bifold diff A B --format json` writes: two recordings or results beside each other. Fields may be
/// added within this version; none changes its meaning or goes away.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The first file.
    a: OfSide<'a>,
    /// The second file.
    b: OfSide<'a>,
    /// What is not the same in what made them, in words.
    differs: Vec<Difference>,
    /// Why the two are hard to compare, or one of them is hard to trust.
    warnings: Vec<String>,
    /// The result in a sentence or two, for people.
    verdict: String,
    /// Whether no counter differs.
    same: bool,
    /// The ideal runs. Where they differ, compare times and not overheads, which are percents of each run's
    /// own ideal run.
    ideal: Ideal,
    /// The configurations that both have.
    configs: Vec<OfConfig<Change>>,
    /// Exits that changed, by configuration and reason, the largest change first.
    exits: Vec<OfExit>,
}

/// One of the two files.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "side")]
struct OfSide<'a> {
    /// The file, as given.
    path: &'a str,
    /// `recording`: modelled now; `result`: JSON of `bifold compare`.
    kind: Kind,
    /// Number of runs.
    runs: usize,
    /// Why the events end before the command did; null if they do not.
    partial: Option<Partial>,
    /// Self-checks that disagreed, over all runs.
    checks_failed: u64,
    /// How the result was made.
    made: &'a Made,
}

/// The ideal runs.
#[derive(Serialize, JsonSchema)]
struct Ideal {
    /// Instructions. Unit: 1.
    instructions: Change,
    /// Time without walks and exits. Unit: s.
    seconds: Change,
}

/// An exit that changed.
#[derive(Serialize, JsonSchema)]
struct OfExit {
    /// Name of the configuration.
    config: String,
    /// The counter's name without `exits_`.
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
        configs: configs.collect(),
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
