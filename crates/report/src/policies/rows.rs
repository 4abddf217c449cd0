// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies as data: one JSON document, or tidy rows. A row is one policy over one program from one
//! starting mode.

use super::PolicyComparison;
use crate::RenderError;
use bifold_mmu::PageSize;
use bifold_policy::Mode;
use bifold_policy::evaluate::{Evaluation, Program, Shares, Summary};
use bifold_policy::replay_check::{ReplayCheck, TOLERANCE_PERCENT};
use schemars::{JsonSchema, Schema, SchemaGenerator};
use serde::{Serialize, Serializer};
use serde_json::Value;

/// Name and version of the document.
pub(crate) const SCHEMA: &str = "bifold.policy-compare/2";

/// What `bifold policy compare --format json` writes: policies over programs.
#[derive(Serialize, JsonSchema)]
pub(crate) struct Document<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'a str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
    /// VMs that really switched while the programs were captured, beside their replay; absent unless asked
    /// for.
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Vec<CheckRow<'a>>>,
}

/// A VM that really switched, beside its replay.
#[derive(Serialize, JsonSchema)]
pub(crate) struct CheckRow<'a> {
    /// The policy that switched.
    policy: &'a str,
    /// Size of the host's pages.
    host_page: PageSize,
    /// Whether nested tables are kept in shadow mode.
    keep_nested: bool,
    /// The starting mode.
    start: Mode,
    /// Cycles of the VM that switched. Unit: cycles.
    cycles: f64,
    /// Switches of the VM that switched.
    switches: u64,
    /// The replay's cycles less the run's for the same modes. Unit: % of the run's cycles.
    same_modes_percent: f64,
    /// The same where the replay decides for itself; null if that was not asked for. Unit: % of the run's
    /// cycles.
    own_decisions_percent: Option<f64>,
    /// Switches of the replay by its own decisions; null if these were not asked for.
    own_switches: Option<u64>,
    /// How far off a replay may be. Unit: % of the run's cycles.
    tolerance_percent: f64,
    /// Whether the replay is within that.
    passed: bool,
    /// The program; absent in the document of one run.
    #[serde(skip_serializing_if = "Option::is_none")]
    program: Option<&'a str>,
}

/// Checks with the program's name, if it has one.
pub(crate) fn check_rows<'a>(program: Option<&'a str>, checks: &'a [ReplayCheck]) -> Vec<CheckRow<'a>> {
    let one = |c: &'a ReplayCheck| CheckRow {
        policy: &c.name,
        host_page: c.vm.host_page,
        keep_nested: c.vm.keep_nested,
        start: c.start,
        cycles: c.cycles,
        switches: c.switches,
        same_modes_percent: c.same_modes_percent,
        own_decisions_percent: c.own_decisions.map(|d| d.0),
        own_switches: c.own_decisions.map(|d| d.1),
        tolerance_percent: TOLERANCE_PERCENT,
        passed: c.passed(),
        program,
    };
    checks.iter().map(one).collect()
}

fn checks(c: &PolicyComparison) -> Option<Vec<CheckRow<'_>>> {
    let all = c.checks.as_ref()?;
    Some(all.iter().flat_map(|(program, checks)| check_rows(Some(program), checks)).collect())
}

pub(super) fn render_json(c: &PolicyComparison) -> Result<String, RenderError> {
    let document =
        Document { schema: SCHEMA, bifold: &c.bifold, evaluation: &c.evaluation, checks: checks(c) };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// A policy over a program from one starting mode.
#[derive(Serialize, JsonSchema)]
pub(crate) struct PolicyRow<'a> {
    /// The program: this run.
    program: &'a str,
    /// The policy.
    policy: &'a str,
    /// The starting mode.
    start: Mode,
    /// Whether the policy did worst from this start.
    worse: bool,
    /// All cycles. Unit: cycles.
    cycles: f64,
    /// Cycles beyond the ideal run's. Unit: % of the ideal run.
    overhead_percent: f64,
    /// Cycles above those of the better mode that never switches. Unit: % of those.
    static_gap_percent: f64,
    /// Cycles above the oracle's from this start. Unit: % of the oracle's.
    oracle_gap_percent: f64,
    /// Number of switches.
    switches: u64,
    /// Number of decisions.
    decisions: u64,
    #[serde(flatten)]
    shares: &'a Shares,
}

pub(crate) fn policy_rows(e: &Evaluation) -> impl Iterator<Item = PolicyRow<'_>> {
    e.programs.iter().flat_map(|p| {
        p.rows.iter().flat_map(move |r| {
            r.runs.iter().map(move |(start, f)| PolicyRow {
                program: &p.name,
                policy: &r.policy,
                start,
                worse: start == r.worse_start,
                cycles: f.cycles,
                overhead_percent: f.overhead_percent,
                static_gap_percent: f.static_gap_percent,
                oracle_gap_percent: f.oracle_gap_percent,
                switches: f.switches,
                decisions: f.decisions,
                shares: &f.shares,
            })
        })
    })
}

/// A line of `bifold policy compare --format jsonl`. The rows of type row, without their type, are also those
/// of `--format csv`.
#[derive(Serialize, JsonSchema)]
#[serde(tag = "type", rename_all = "lowercase")]
pub(crate) enum JsonLine<'a> {
    /// What all rows rest on: first, once.
    Evaluation(EvaluationLine<'a>),
    /// A program and its bounds.
    Program(ProgramLine<'a>),
    /// A policy over all programs.
    Policy(&'a Summary),
    /// A policy over a program from one starting mode.
    Row(PolicyRow<'a>),
    /// A VM that really switched, beside its replay.
    Check(CheckRow<'a>),
}

/// An evaluation without what has lines of its own.
#[derive(Serialize, JsonSchema)]
pub(crate) struct EvaluationLine<'a> {
    #[serde(flatten, serialize_with = "without_lists")]
    #[schemars(schema_with = "schema_without_lists::<Evaluation>")]
    evaluation: &'a Evaluation,
    /// Version of Bifold.
    bifold: &'a str,
}

/// A program without what has lines of its own.
#[derive(Serialize, JsonSchema)]
pub(crate) struct ProgramLine<'a> {
    #[serde(flatten, serialize_with = "without_lists")]
    #[schemars(schema_with = "schema_without_lists::<Program>")]
    program: &'a Program,
}

/// The lists of an evaluation and of its programs whose members have lines of their own.
const LISTS: [&str; 3] = ["policies", "programs", "rows"];

fn without_lists<S: Serializer>(of: &impl Serialize, s: S) -> Result<S::Ok, S::Error> {
    let mut value = serde_json::to_value(of).map_err(serde::ser::Error::custom)?;
    if let Value::Object(fields) = &mut value {
        fields.retain(|name, _| !LISTS.contains(&name.as_str()));
    }
    value.serialize(s)
}

fn schema_without_lists<T: JsonSchema>(generator: &mut SchemaGenerator) -> Schema {
    let mut schema = T::json_schema(generator);
    if let Some(Value::Object(properties)) = schema.get_mut("properties") {
        properties.retain(|name, _| !LISTS.contains(&name.as_str()));
    }
    if let Some(Value::Array(required)) = schema.get_mut("required") {
        required.retain(|name| name.as_str().is_none_or(|name| !LISTS.contains(&name)));
    }
    schema
}

pub(super) fn render_jsonl(c: &PolicyComparison) -> Result<String, RenderError> {
    let e = &c.evaluation;
    let mut lines = vec![JsonLine::Evaluation(EvaluationLine { evaluation: e, bifold: &c.bifold })];
    lines.extend(e.programs.iter().map(|program| JsonLine::Program(ProgramLine { program })));
    lines.extend(e.policies.iter().map(JsonLine::Policy));
    lines.extend(policy_rows(e).map(JsonLine::Row));
    lines.extend(checks(c).unwrap_or_default().into_iter().map(JsonLine::Check));
    let lines: Vec<String> = lines.iter().map(serde_json::to_string).collect::<Result<_, _>>()?;
    Ok(lines.iter().map(|line| format!("{line}\n")).collect())
}

pub(super) fn render_csv(c: &PolicyComparison) -> Result<String, RenderError> {
    let rows: Vec<Value> = policy_rows(&c.evaluation).map(serde_json::to_value).collect::<Result<_, _>>()?;
    let objects: Vec<_> = rows.iter().filter_map(Value::as_object).collect();
    // Programs may have different modes. A mode that a program lacks is an empty cell.
    let mut names: Vec<&String> = Vec::new();
    for name in objects.iter().flat_map(|o| o.keys()) {
        if !names.contains(&name) {
            names.push(name);
        }
    }
    let mut writer = csv::Writer::from_writer(Vec::new());
    writer.write_record(&names)?;
    for object in &objects {
        let cell = |name: &&String| match object.get(*name) {
            Some(Value::String(text)) => text.clone(),
            Some(value) => value.to_string(),
            None => String::new(),
        };
        writer.write_record(names.iter().map(cell))?;
    }
    let bytes = writer.into_inner().map_err(|e| csv::Error::from(e.into_error()))?;
    Ok(String::from_utf8(bytes).expect("names and numbers are UTF-8"))
}
