// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The JSON document of a run: the model's whole outcome, derived figures, facts about the run and
//! definitions of counters.
//!
//! `outcome` is the model's type as it serialises, with fields added. So a reader can
//! parse `outcome` as the model's type, and no field can be forgotten here.

use crate::places::Listing;
use crate::policies::{CheckRow, check_rows};
use crate::regions::{NamedRegions, NamedTotal};
use crate::tune::Ranking;
use crate::{Comparison, Figures, RenderError, clock, regions, verdict};
use bifold_model::{Chosen, Config, ConfigOutcome, Counter, Outcome, Quality, Sample};
use bifold_policy::evaluate::Evaluation;
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value};
use std::borrow::Cow;

/// Name and version of the document's schema. The version changes when a field changes its meaning or
/// goes away. Added fields do not change it.
pub(crate) const SCHEMA: &str = "bifold.compare/2";
/// Schemas that are read: the first version has the same counters, and no predicted times.
pub(crate) const SCHEMAS: [&str; 2] = [SCHEMA, "bifold.compare/1"];

/// What `bifold compare --format json` writes: what a program would cost under each paging mode. Fields may
/// be added within this version; none changes its meaning or goes away.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    #[serde(flatten)]
    head: Head<'a>,
    /// The conclusions in sentences, for people.
    verdict: String,
    /// The conclusions that the verdict's sentences say.
    conclusion: crate::Conclusion,
    /// What to change, ranked as `bifold tune` ranks: among the modes and page sizes of products, and among
    /// guests within guests. The first configuration of each in nested paging, or else the first, is that of
    /// now.
    advice: Vec<Ranking>,
    /// All self-checks together.
    checks: Checks,
    /// What the model yields.
    #[schemars(schema_with = "outcome_schema")]
    outcome: Value,
    /// What policies that switch between shadow and nested paging would have made of this run, or null.
    policies: Option<&'a Evaluation>,
    /// Why `policies` is null.
    no_policies: Option<String>,
    /// VMs that really switched during the run (--check), beside their replay.
    policy_checks: Vec<CheckRow<'a>>,
    /// Costs by process, binary, function and mapping, or null.
    r#where: Option<Listing<'a>>,
    /// How much memory the guest needs, with --memory-use; else null.
    memory_use: Option<crate::memory::Memory>,
    /// What moved since a baseline, with --baseline; else absent.
    #[serde(skip_serializing_if = "Option::is_none")]
    baseline: Option<&'a crate::Judged>,
    /// The counters of a sample.
    counters: &'static [Counter],
    /// The figures derived from a total.
    figures: &'static [Counter],
}

/// Self-checks.
#[derive(Serialize, JsonSchema)]
struct Checks {
    /// Number made.
    made: u64,
    /// Number that failed.
    failed: u64,
}

/// Facts and assumptions of a run, in JSON and in the first of the JSON lines.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Head<'a> {
    #[serde(flatten)]
    meta: &'a crate::Meta,
    /// What the clock says of the run; null where clock is.
    clock_figures: Option<clock::Figures>,
    /// How the hardware profile and the rules of KVM were chosen, and how good the profile is.
    profile_choice: ProfileChoice,
    /// Whose KVM the model follows: linux-6.1 or linux-6.12.
    kvm: &'static str,
    /// What --set changed in the profile, key=value, one per key.
    overrides: &'a [String],
    /// What in the profile is a prior and not overridden: starting values to be measured, never results to be
    /// quoted.
    priors: Vec<String>,
    /// Reasons to doubt the figures, for people: failed checks, a run that is partial.
    warnings: Vec<String>,
}

/// How a run came to its profile.
#[derive(Serialize, JsonSchema)]
struct ProfileChoice {
    #[serde(flatten)]
    chosen: Chosen,
    /// `measured`: values of the machine that the profile is of; `built-in`: values of the processor's kind;
    /// `guessed`: another processor's; `file`: a user's file without a word on measurement.
    quality: Quality,
}

impl Head<'_> {
    pub(crate) fn of(c: &Comparison) -> Head<'_> {
        let hardware = &c.meta.hardware;
        Head {
            meta: &c.meta,
            clock_figures: clock::figures(c),
            profile_choice: ProfileChoice { chosen: hardware.chosen, quality: hardware.quality() },
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

/// A value for every figure and counter of one configuration: a spread over runs, or a change between two
/// results.
#[derive(Serialize, JsonSchema)]
pub(crate) struct OfConfig<T> {
    /// Name of the configuration.
    config: String,
    /// By figure.
    figures: ByFigure<T>,
    /// By counter.
    counters: ByCounter<T>,
}

impl<T: Copy> OfConfig<T> {
    /// Values in the order of [`Figures::ALL`] and [`Sample::COUNTERS`].
    pub(crate) fn new(config: Config, figures: &[T], counters: &[T]) -> OfConfig<T> {
        let (figures, counters) = (ByFigure(figures.to_vec()), ByCounter(counters.to_vec()));
        OfConfig { config: config.name(), figures, counters }
    }
}

/// Values of which each stands under the name of one of a list.
macro_rules! by_name {
    ($( #[$attr:meta] )* $name:ident, $all:expr) => {
        $( #[$attr] )*
        pub(crate) struct $name<T>(Vec<T>);

        impl<T: Serialize> Serialize for $name<T> {
            fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
                to.collect_map($all.iter().map(|of| of.name).zip(&self.0))
            }
        }

        impl<T: JsonSchema> JsonSchema for $name<T> {
            fn schema_name() -> Cow<'static, str> {
                format!("{}Of{}", stringify!($name), T::schema_name()).into()
            }

            fn json_schema(generator: &mut SchemaGenerator) -> Schema {
                let properties: Map<String, Value> = $all
                    .iter()
                    .map(|of| {
                        let mut value = generator.subschema_for::<T>();
                        value.insert("description".into(), format!("{} Unit: {}.", of.doc, of.unit).into());
                        (of.name.to_string(), value.into())
                    })
                    .collect();
                let required: Vec<&str> = $all.iter().map(|of| of.name).collect();
                json_schema!({ "type": "object", "required": required, "properties": properties })
            }
        }
    };
}

by_name!(
    /// A value for each figure, in the order of [`Figures::ALL`].
    ByFigure,
    Figures::ALL
);
by_name!(
    /// A value for each counter, in the order of [`Sample::COUNTERS`].
    ByCounter,
    Sample::COUNTERS
);

/// The document of one run, which the document of several runs has too.
pub(crate) fn document(c: &Comparison) -> Result<Document<'_>, RenderError> {
    let (made, failed) = c.checks();
    let evaluation = c.policies.as_ref().map(|p| p.evaluation.as_ref());
    Ok(Document {
        schema: SCHEMA,
        head: Head::of(c),
        verdict: verdict::verdict(c),
        conclusion: c.conclusion(),
        advice: crate::Tuning::of_run(c).into_iter().map(Ranking::of).collect(),
        checks: Checks { made, failed },
        outcome: outcome(c)?,
        policies: evaluation.and_then(|e| e.ok()),
        no_policies: evaluation.and_then(|e| e.err()).map(ToString::to_string),
        policy_checks: c.policies.as_ref().map_or(Vec::new(), |p| check_rows(None, &p.checks)),
        r#where: c.places.as_ref().map(crate::Places::listed),
        memory_use: c.memory.as_ref().map(crate::MemoryNeeds::fields),
        baseline: c.baseline.as_ref(),
        counters: Sample::COUNTERS,
        figures: Figures::ALL,
    })
}

/// A configuration's outcome between its name and its figures.
#[derive(Serialize, JsonSchema)]
#[schemars(rename = "config")]
struct Named<T> {
    /// native, nested-4k, ...
    name: String,
    #[serde(flatten)]
    of: T,
    /// Derived from the total.
    figures: Figures,
}

/// What a document's outcome has beyond the model's.
#[derive(JsonSchema)]
#[expect(dead_code, reason = "for the schema")]
struct Added {
    /// The configurations modelled.
    configs: Vec<Named<ConfigOutcome>>,
    /// What the guest's init and exec cost before the command's own program began, in the order of
    /// `outcome.configs`. In no other figure. Absent where the events do not say where the program begins: of
    /// a generator, of an imported trace, and of older recordings.
    start: Option<Vec<NamedTotal<'static>>>,
    /// The regions of a run that had several, one by one; absent otherwise. All other figures are those of
    /// all regions together.
    regions: Option<NamedRegions<'static>>,
}

fn outcome_schema(generator: &mut SchemaGenerator) -> Schema {
    let (mut schema, added) = (Outcome::json_schema(generator), Added::json_schema(generator));
    let (Some(all), Some(added)) =
        (schema.get_mut("properties").and_then(Value::as_object_mut), added.get("properties"))
    else {
        unreachable!("both are objects");
    };
    all.extend(added.as_object().cloned().unwrap_or_default());
    if let Some(required) = schema.get_mut("required").and_then(Value::as_array_mut) {
        required.push("configs".into());
    }
    schema
}

/// The outcome with each configuration's name before its fields and its figures after them.
fn outcome(c: &Comparison) -> Result<Value, RenderError> {
    let mut value = serde_json::to_value(&c.outcome)?;
    let configs = value["configs"].as_array_mut().expect("an outcome has a list of configurations");
    for (v, o) in configs.iter_mut().zip(&c.outcome.configs) {
        let named = Named { name: o.config.name(), of: v.take(), figures: Figures::of(&c.outcome, o) };
        *v = serde_json::to_value(named)?;
    }
    if let Some(start) = &c.outcome.start {
        value["start"] = serde_json::to_value(regions::named(c, start))?;
    }
    if let Some(regions) = &c.outcome.regions {
        value["regions"] = serde_json::to_value(NamedRegions::of(c, regions))?;
    }
    Ok(value)
}
