// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies as data: one JSON document, or tidy rows. A row is one policy over one program from one
//! starting mode.

use super::PolicyComparison;
use crate::RenderError;
use bifold_policy::Mode;
use bifold_policy::evaluate::{Evaluation, Shares};
use bifold_policy::replay_check::{ReplayCheck, TOLERANCE_PERCENT};
use serde::Serialize;
use serde_json::{Value, json};

/// Name and version of the document.
const SCHEMA: &str = "bifold.policy-compare/2";

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    bifold: &'a str,
    #[serde(flatten)]
    evaluation: &'a Evaluation,
    #[serde(skip_serializing_if = "Option::is_none")]
    checks: Option<Vec<Value>>,
}

/// Checks with the program's name before each, if it has one.
pub(crate) fn checks_json(program: Option<&str>, checks: &[ReplayCheck]) -> Vec<Value> {
    let one = |c: &ReplayCheck| {
        let mut v = json!({
            "policy": c.name,
            "host_page": c.vm.host_page,
            "keep_nested": c.vm.keep_nested,
            "start": c.start,
            "cycles": c.cycles,
            "switches": c.switches,
            "same_modes_percent": c.same_modes_percent,
            "own_decisions_percent": c.own_decisions.map(|d| d.0),
            "own_switches": c.own_decisions.map(|d| d.1),
            "tolerance_percent": TOLERANCE_PERCENT,
            "passed": c.passed(),
        });
        if let Some(program) = program {
            v["program"] = program.into();
        }
        v
    };
    checks.iter().map(one).collect()
}

fn checks(c: &PolicyComparison) -> Option<Vec<Value>> {
    let all = c.checks.as_ref()?;
    Some(all.iter().flat_map(|(program, checks)| checks_json(Some(program), checks)).collect())
}

pub(super) fn render_json(c: &PolicyComparison) -> Result<String, RenderError> {
    let document =
        Document { schema: SCHEMA, bifold: &c.bifold, evaluation: &c.evaluation, checks: checks(c) };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// A policy over a program from one starting mode.
#[derive(Serialize)]
pub(crate) struct PolicyRow<'a> {
    program: &'a str,
    policy: &'a str,
    start: Mode,
    worse: bool,
    cycles: f64,
    overhead_percent: f64,
    static_gap_percent: f64,
    oracle_gap_percent: f64,
    switches: u64,
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

/// A value of rows that differ in kind.
fn typed(kind: &str, value: impl Serialize) -> Result<String, RenderError> {
    let mut object = serde_json::Map::new();
    object.insert("type".into(), kind.into());
    if let Value::Object(fields) = serde_json::to_value(value)? {
        object.extend(fields);
    }
    Ok(serde_json::to_string(&object)? + "\n")
}

pub(super) fn render_jsonl(c: &PolicyComparison) -> Result<String, RenderError> {
    let e = &c.evaluation;
    let mut head = serde_json::to_value(e)?;
    let fields = head.as_object_mut().expect("an evaluation is an object");
    // They have rows of their own.
    fields.shift_remove("policies");
    fields.shift_remove("programs");
    fields.insert("bifold".into(), c.bifold.as_str().into());
    let mut out = typed("evaluation", head)?;
    for p in &e.programs {
        let mut value = serde_json::to_value(p)?;
        value.as_object_mut().expect("a program is an object").shift_remove("rows");
        out += &typed("program", value)?;
    }
    for s in &e.policies {
        out += &typed("policy", s)?;
    }
    for row in policy_rows(e) {
        out += &typed("row", row)?;
    }
    for check in checks(c).unwrap_or_default() {
        out += &typed("check", check)?;
    }
    Ok(out)
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
