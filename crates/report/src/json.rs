// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON document of a run: the model's whole outcome, derived figures, facts about the run and
//! definitions of counters. `schema/compare-2.json` is its schema.
//!
//! `outcome` is the model's type as it serialises, with fields added. So a reader can
//! parse `outcome` as the model's type, and no field can be forgotten here.

use crate::policies::checks_json;
use crate::{Comparison, Figures, RenderError, clock, regions, verdict};
use bifold_model::{Config, Sample};
use bifold_policy::evaluate::Evaluation;
use serde::Serialize;
use serde_json::{Map, Value, json};

/// Name and version of the document's schema. The version changes when a field changes its meaning or
/// goes away. Added fields do not change it.
pub(crate) const SCHEMA: &str = "bifold.compare/2";
/// Schemas that are read: the first version has the same counters, and no predicted times.
pub(crate) const SCHEMAS: [&str; 2] = [SCHEMA, "bifold.compare/1"];

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    #[serde(flatten)]
    head: Head<'a>,
    verdict: String,
    conclusion: crate::Conclusion,
    /// What to change, for each choice of configurations.
    advice: Vec<Value>,
    checks: Value,
    outcome: Value,
    /// The evaluation, or null.
    policies: Option<&'a Evaluation>,
    /// Why there is no evaluation, or null.
    no_policies: Option<&'a str>,
    policy_checks: Vec<Value>,
    /// Costs by place, or null.
    r#where: Option<Value>,
    /// The use of memory, or null.
    memory_use: Option<crate::memory::Memory>,
    /// What moved since a baseline; absent unless asked for.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<&'a crate::Judged>,
    counters: Vec<Value>,
    figures: &'static [crate::Figure],
}

/// Facts and assumptions of a run, in JSON and in the first of the JSON lines.
#[derive(Serialize)]
pub(crate) struct Head<'a> {
    #[serde(flatten)]
    meta: &'a crate::Meta,
    clock_figures: Option<clock::Figures>,
    profile_choice: Value,
    kvm: &'static str,
    overrides: &'a [String],
    priors: Vec<String>,
    warnings: Vec<String>,
}

impl Head<'_> {
    pub(crate) fn of(c: &Comparison) -> Head<'_> {
        let hardware = &c.meta.hardware;
        Head {
            meta: &c.meta,
            clock_figures: clock::figures(c),
            profile_choice: json!({
                "by": hardware.chosen.by, "kvm_by": hardware.chosen.kvm_by, "quality": hardware.quality(),
            }),
            kvm: hardware.kvm.name(),
            overrides: &hardware.overrides,
            priors: hardware.priors(),
            warnings: c.warnings(),
        }
    }
}

pub(crate) fn render(c: &Comparison) -> Result<String, RenderError> {
    pretty(&document(c)?)
}

/// A document as text.
pub(crate) fn pretty(document: &impl Serialize) -> Result<String, RenderError> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

/// A value for every figure and counter of one configuration, by name: a spread over runs, or a change
/// between two results.
#[derive(Serialize)]
pub(crate) struct OfConfig {
    config: String,
    figures: Map<String, Value>,
    counters: Map<String, Value>,
}

impl OfConfig {
    /// Values in the order of [`Figures::ALL`] and [`Sample::COUNTERS`].
    pub(crate) fn new<T: Serialize>(
        config: Config,
        figures: &[T],
        counters: &[T],
    ) -> Result<OfConfig, RenderError> {
        let map = |names: Vec<&str>, values: &[T]| {
            let pairs = names.into_iter().zip(values);
            let pairs = pairs.map(|(n, v)| Ok((n.to_string(), serde_json::to_value(v)?)));
            pairs.collect::<Result<_, RenderError>>()
        };
        Ok(OfConfig {
            config: config.name(),
            figures: map(Figures::ALL.iter().map(|f| f.name).collect(), figures)?,
            counters: map(Sample::COUNTERS.iter().map(|c| c.name).collect(), counters)?,
        })
    }
}

/// The document of one run, which the document of several runs has too.
pub(crate) fn document(c: &Comparison) -> Result<impl Serialize + '_, RenderError> {
    let (made, failed) = c.checks();
    let evaluation = c.policies.as_ref().map(|p| p.evaluation.as_ref());
    Ok(Document {
        schema: SCHEMA,
        head: Head::of(c),
        verdict: verdict::verdict(c),
        conclusion: c.conclusion(),
        advice: crate::Tuning::of_run(c).iter().map(crate::Tuning::fields).collect(),
        checks: json!({ "made": made, "failed": failed }),
        outcome: outcome(c)?,
        policies: evaluation.and_then(|e| e.ok()),
        no_policies: evaluation.and_then(|e| e.err()).map(String::as_str),
        policy_checks: c.policies.as_ref().map_or(Vec::new(), |p| checks_json(None, &p.checks)),
        r#where: c.places.as_ref().map(crate::Places::json),
        memory_use: c.memory.as_ref().map(crate::MemoryNeeds::fields),
        baseline: c.baseline.as_ref(),
        counters: Sample::COUNTERS
            .iter()
            .map(|c| json!({ "name": c.name, "unit": c.unit, "doc": c.doc }))
            .collect(),
        figures: Figures::ALL,
    })
}

/// The outcome with each configuration's name before its fields and its figures after them.
fn outcome(c: &Comparison) -> Result<Value, RenderError> {
    let mut value = serde_json::to_value(&c.outcome)?;
    let configs = value["configs"].as_array_mut().expect("an outcome has a list of configurations");
    for (v, o) in configs.iter_mut().zip(&c.outcome.configs) {
        let mut named = Map::new();
        named.insert("name".into(), o.config.name().into());
        named.append(v.as_object_mut().expect("a configuration's outcome is an object"));
        named.insert("figures".into(), serde_json::to_value(Figures::of(&c.outcome, o))?);
        *v = Value::Object(named);
    }
    if let (Some(start), Some(of)) = (value.get_mut("start"), &c.outcome.start) {
        regions::name_configs(c, start, of);
    }
    if let Some(regions) = value.get_mut("regions") {
        regions::name(c, regions);
    }
    Ok(value)
}
