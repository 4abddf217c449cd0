// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Schemas, `docs/reference/formats.md` and outputs have the same fields, each with its meaning.
//!
//! `INSTA_UPDATE=always` writes the tables of `docs/reference/formats.md` from the schemas.

use crate::fixture::{
    comparison, needs, place, places, policies, several_regions, several_vcpus, with_start,
};
use bifold_mmu::PageSize;
use bifold_model::{CacheError, CacheFacts, Config, Estimate, Mean, Paging, Sampling};
use bifold_report::{Baseline, Comparison, Format, Guest, Input, NoPolicies, Partial, RunPolicies, Runs};
use bifold_trace::CommandExit;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;
use std::sync::LazyLock;

const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/formats.md");

static SCHEMAS: LazyLock<Vec<Value>> = LazyLock::new(bifold_report::schema::schemas);

/// The schema of documents that call themselves this.
pub fn schema_of(name: &str) -> &'static Value {
    SCHEMAS.iter().find(|schema| schema["title"] == name).unwrap_or_else(|| panic!("no schema of {name}"))
}

/// What a reference in a schema leads to.
fn at<'a>(root: &'a Value, reference: &str) -> &'a Value {
    let pointer = reference.strip_prefix('#').unwrap();
    root.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads nowhere"))
}

/// The alternatives of a schema, and the schemas that it joins.
fn parts(schema: &Value) -> impl Iterator<Item = &Value> {
    ["oneOf", "anyOf", "allOf"].into_iter().filter_map(|k| schema[k].as_array()).flatten()
}

/// Every field below a schema with its description: `a.b[].c`.
fn fields(root: &Value, schema: &Value, path: &str, out: &mut BTreeMap<String, String>) {
    if let Some(reference) = schema["$ref"].as_str() {
        fields(root, at(root, reference), path, out);
    }
    parts(schema).for_each(|part| fields(root, part, path, out));
    if schema["items"].is_object() {
        fields(root, &schema["items"], &format!("{path}[]"), out);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let dot = if path.is_empty() { "" } else { "." };
        let path = format!("{path}{dot}{name}");
        let own = field["description"].as_str();
        let of_target = || at(root, field["$ref"].as_str()?)["description"].as_str();
        let text = own.or_else(of_target).unwrap_or("");
        out.entry(path.clone()).or_default().push_str(text);
        fields(root, field, &path, out);
    }
}

fn all_fields(root: &Value, schema: &Value) -> BTreeMap<String, String> {
    let mut out = BTreeMap::new();
    fields(root, schema, "", &mut out);
    out
}

/// The kinds of JSON lines with their schemas.
fn kinds(rows: &Value) -> BTreeMap<&str, &Value> {
    let alternatives = rows["oneOf"].as_array().unwrap().iter();
    alternatives.map(|row| (row["properties"]["type"]["const"].as_str().unwrap(), row)).collect()
}

/// Every field that a value has.
fn fields_of(value: &Value, path: &str, out: &mut BTreeSet<String>) {
    match value {
        Value::Object(fields) => {
            for (name, field) in fields {
                let dot = if path.is_empty() { "" } else { "." };
                let path = format!("{path}{dot}{name}");
                fields_of(field, &path, out);
                out.insert(path);
            }
        }
        Value::Array(items) => items.iter().for_each(|v| fields_of(v, &format!("{path}[]"), out)),
        _ => {}
    }
}

/// Fields that stand in one of both sets alone.
fn difference(described: &BTreeSet<String>, written: &BTreeSet<String>) -> String {
    let missing = described.difference(written).map(|field| format!("described, not written: {field}\n"));
    missing
        .chain(written.difference(described).map(|field| format!("written, not described: {field}\n")))
        .collect()
}

/// A run of which a place grew, another fell and a third is new.
fn moved_in_all_lists() -> Comparison {
    let before = Comparison { places: Some(places(50)), ..comparison() };
    let mut now = before.clone();
    let rows = &mut now.places.as_mut().unwrap().places.cause;
    rows[0].costs.iter_mut().for_each(|c| c.exits *= 2);
    rows[1].costs.iter_mut().for_each(|c| c.exits /= 2);
    rows[2].function = "new".into();
    let baseline = Baseline::from_json("base.json", before.render_baseline().unwrap().as_bytes()).unwrap();
    let judged = baseline.judge(&now, 2.0).unwrap();
    Comparison { baseline: Some(judged), places: None, ..now }
}

/// A configuration with two page sizes.
fn over_2m() -> Config {
    Config { outer_page: Some(PageSize::Size2M), ..Config::new(Paging::NestedOnNested, PageSize::Size4K) }
}

/// Comparisons that have every field between them.
fn comparisons() -> Vec<Comparison> {
    let mut generated = comparison();
    generated.meta.input = Input::Generator { name: "t:1000".into() };
    generated.meta.guest = None::<Guest>;
    generated.meta.exit = Some(CommandExit::TimedOut);
    generated.meta.partial = Some(Partial::TimedOut);
    let mut recorded = comparison();
    recorded.meta.input = Input::Recording {
        path: "x".into(),
        generator: None,
        imported: Some("lackey".into()),
        program: Some("ls".into()),
    };
    // A measured profile, which has what no other has.
    recorded.meta.hardware = bifold_model::Profile::load("epyc-zen5-guest", &[]).unwrap();
    recorded.meta.hardware.kvm = bifold_model::KvmVersion::Linux6_12;
    recorded.policies = Some(policies());
    let mut without = comparison();
    let too_short = NoPolicies::Refused("too short".into());
    without.policies = Some(RunPolicies { evaluation: Err(too_short), checks: Vec::new() });
    // An error within which any change may lose.
    without.outcome.configs[2].cache_error =
        Some(CacheError { half_width_cycles: 1e9, half_width_extra_cycles: 1e9 });
    let mut sampled = comparison();
    sampled.outcome.before_region = Some(5);
    sampled.outcome.sampling = Some(Sampling {
        windows: 3,
        measured_instructions: 30,
        head_instructions: 10,
        warm_up_instructions: 60,
        other_instructions: 900,
    });
    let per_instruction = Mean { windows: 3, mean: 0.5, sd: 0.1, half_width: Some(0.2) };
    let estimate = Estimate { exact_cycles: 5, half_width_cycles: Some(1.5), per_instruction };
    sampled.outcome.configs[0].estimate = Some(estimate);
    sampled.outcome.caches = Some(CacheFacts { simulated_classes: 8, data_overlap: 8.0, walk_overlap: 2.0 });
    sampled.outcome.configs[0].cache_error =
        Some(CacheError { half_width_cycles: 9.5, half_width_extra_cycles: 2.5 });
    let mut regions = comparison();
    regions.outcome.configs[1].config = over_2m();
    several_regions(&mut regions.outcome, 2);
    with_start(&mut regions.outcome);
    let mut attributed = comparison();
    attributed.places = Some(places(2000));
    let mut memory = comparison();
    memory.memory = Some(needs(&memory.outcome));
    let mut spread = comparison();
    let hardware = &mut spread.meta.hardware;
    let processor = &mut hardware.processor[0];
    (processor.name, processor.guest) = (Some("Skylake".into()), Some(true));
    processor.steppings = Some([3, 3]);
    let of_memory = hardware.memory.as_mut().unwrap();
    (of_memory.remote_cycles, of_memory.walkers) = (Some(600), Some(6));
    (of_memory.page_cross_cycles, of_memory.first_use_2m_cycles) = (Some(200), Some(1000));
    (hardware.cpu.reorder_window, hardware.tlb[0].miss_cycles) = (Some(300), Some(7));
    place(&mut spread.outcome);
    spread.meta.guest.as_mut().unwrap().nodes = Some(2);
    spread.meta.guest.as_mut().unwrap().hugetlb_mib = Some(512);
    spread.meta.guest.as_mut().unwrap().tables = bifold_trace::TableFormat::FiveLevel;
    spread.outcome.nested_levels = 5;
    several_vcpus(&mut spread.outcome);
    let hardware = &mut spread.meta.hardware;
    let exit = &mut hardware.exit;
    for cost in [&mut exit.ipi, &mut exit.hypercall, &mut exit.check_entry, &mut exit.outer] {
        cost.cycles += 1;
    }
    hardware.agile.writes += 1;
    hardware.cpu.entry_exits = Some(7);
    let mut inner = spread.outcome.configs[1].clone();
    inner.config = over_2m();
    spread.outcome.configs.push(inner);
    with_start(&mut spread.outcome);
    let judged = moved_in_all_lists();
    vec![comparison(), generated, recorded, without, sampled, regions, attributed, memory, spread, judged]
}

#[test]
fn json_has_exactly_the_fields_of_its_schema_and_each_has_a_meaning() {
    let schema = schema_of("bifold.compare/2");
    let described = all_fields(schema, schema);
    let mut written = BTreeSet::new();
    for c in comparisons() {
        let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
        fields_of(&v, "", &mut written);
    }
    // Advice is that of `tune` too, and checks are those of `policy` too.
    let elsewhere = |field: &str| {
        let advice =
            [".placement", ".setting.own", ".setting.own[][]"].iter().any(|end| field.ends_with(end));
        advice && field.starts_with("advice") || field == "policy_checks[].program"
    };
    let described_here: BTreeSet<_> = described.keys().filter(|field| !elsewhere(field)).cloned().collect();
    assert_eq!(difference(&described_here, &written), "");
    let bare: Vec<_> = described.iter().filter(|(_, text)| text.is_empty()).map(|(f, _)| f).collect();
    assert!(bare.is_empty(), "without a description: {bare:?}");
}

#[test]
fn json_lines_have_exactly_the_fields_of_their_schema() {
    let rows = schema_of("bifold.compare-rows/2");
    let mut compiler = boon::Compiler::new();
    compiler.add_resource("rows", rows.clone()).unwrap();
    let mut compiled = boon::Schemas::new();
    let index = compiler.compile("rows", &mut compiled).unwrap();
    let mut written: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    let several = Runs { asked: 2, runs: vec![comparison(), comparison()] };
    let lines = comparisons().iter().map(|c| c.render(Format::Jsonl).unwrap()).collect::<String>();
    // The lines of several runs have the number of the run too, which the lines of one lack.
    let spreads = several.render(Format::Jsonl).unwrap();
    let spreads = spreads.lines().filter(|line| line.contains("\"type\":\"spread\""));
    for line in lines.lines().chain(spreads) {
        let v: Value = serde_json::from_str(line).unwrap();
        if let Err(e) = compiled.validate(&v, index) {
            panic!("{e:#}\n{line}");
        }
        fields_of(&v, "", written.entry(v["type"].as_str().unwrap().into()).or_default());
    }
    let names: Vec<&str> = written.keys().map(String::as_str).collect();
    assert_eq!(names, ["interval", "placement", "policy", "run", "spread", "total"]);
    for (kind, written) in &written {
        let described = all_fields(rows, kinds(rows)[kind.as_str()]);
        assert_eq!(difference(&described.keys().cloned().collect(), written), "", "{kind}");
        assert!(described.values().all(|text| !text.is_empty()), "{kind}: {described:?}");
    }
}

/// The columns in their order, which is a promise too.
fn columns() -> Vec<(String, String)> {
    let rows = schema_of("bifold.compare-rows/2");
    let fields = kinds(rows)["interval"]["properties"].as_object().unwrap().iter();
    let named = fields.map(|(name, f)| (name.clone(), f["description"].as_str().unwrap().to_string()));
    named.filter(|(name, _)| name != "type").collect()
}

#[test]
fn csv_has_the_columns_of_an_interval_in_the_order_described() {
    let csv = comparison().render(Format::Csv).unwrap();
    let names: Vec<String> = columns().into_iter().map(|(name, _)| name).collect();
    assert_eq!(csv.lines().next().unwrap(), names.join(","));
    let width = names.len();
    assert!(csv.lines().all(|l| l.split(',').count() == width), "rows of one width");
}

/// The values that a field can have, where these are named.
fn choices<'a>(field: &'a Value, out: &mut Vec<&'a str>) {
    out.extend(field["enum"].as_array().into_iter().flatten().filter_map(Value::as_str));
    for part in parts(field) {
        out.extend(part["const"].as_str());
        choices(part, out);
    }
}

/// A table of fields, down to those that are of a named kind. Rows with all fields of another kind refer to
/// that kind.
fn table(root: &Value, schema: &Value, path: &str, out: &mut String) {
    parts(schema).for_each(|part| match part["$ref"].as_str() {
        Some(reference) => table(root, at(root, reference), path, out),
        None => table(root, part, path, out),
    });
    if schema["items"].is_object() {
        table(root, &schema["items"], &format!("{path}[]"), out);
    }
    let document = schema_of("bifold.compare/2");
    let own = schema["properties"].as_object();
    let whole: Vec<(&str, &Value)> = ["sample", "figures"]
        .into_iter()
        .map(|kind| (kind, &document["$defs"][kind]["properties"]))
        .filter(|(_, all)| {
            let all = all.as_object().unwrap();
            !path.is_empty()
                || own.is_some_and(|own| own.len() > all.len() && all.keys().all(|f| own.contains_key(f)))
        })
        .collect();
    for (name, field) in own.into_iter().flatten() {
        if path.is_empty() && whole.iter().any(|(_, all)| all.get(name).is_some()) {
            continue;
        }
        let path = format!("{path}{}{name}", if path.is_empty() { "" } else { "." });
        let described = |f: &Value| f["description"].as_str().map(String::from);
        let reference = field["$ref"].as_str().or(field["items"]["$ref"].as_str());
        let reference = reference.or_else(|| parts(field).find_map(|part| part["$ref"].as_str()));
        let target = reference.map(|r| at(root, r));
        let text = described(field).or_else(|| described(target?)).unwrap_or_default();
        let of = reference.map(|r| format!(" A [{0}](#{0}).", kind(r))).unwrap_or_default();
        let mut named = Vec::new();
        choices(field, &mut named);
        // A description may name them itself.
        let named = Some(named).filter(|named| named.iter().any(|name| !text.contains(name)));
        let named = named.map_or(String::new(), |named| format!(" One of {}.", named.join(", ")));
        let is_list = |f: &Value| f["type"] == "array" || f["type"][0] == "array";
        let several = if is_list(field) || parts(field).any(is_list) { "[]" } else { "" };
        let line =
            format!("| `{path}{several}` | {}{named}{of} |\n", text.replace(['\n'], " ").replace('|', "\\|"));
        // Alternatives have fields in common.
        if !out.contains(&line) {
            *out += &line;
        }
        if of.is_empty() {
            table(root, field, &path, out);
        }
    }
    if path.is_empty() {
        for (kind, _) in whole {
            let _ = writeln!(out, "| | all fields of a [{kind}](#{kind}) |");
        }
    }
}

fn kind(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap()
}

/// Compares parts of a page with what they are made of; writes them with `INSTA_UPDATE=always`.
fn same_parts(page: &str, parts: &[(&str, String)]) {
    let old = std::fs::read_to_string(page).unwrap();
    let mut new = old.clone();
    for (name, text) in parts {
        let begin = format!("<!-- {name} -->\n");
        let from = new.find(&begin).unwrap_or_else(|| panic!("{page} has no {begin}")) + begin.len();
        let to = from + new[from..].find("<!-- end -->").unwrap();
        new.replace_range(from..to, text);
    }
    if std::env::var("INSTA_UPDATE").is_ok_and(|v| v == "always") {
        std::fs::write(page, new).unwrap();
    } else {
        assert!(old == new, "{page} is not as the code is: run with INSTA_UPDATE=always");
    }
}

#[test]
fn the_guide_has_every_change_of_the_catalogue() {
    let mut out = "| change | how | check | undo | price |\n|---|---|---|---|---|\n".to_string();
    for how in bifold_report::catalogue() {
        let code = |text: &str| format!("`{}`", text.replace('|', "\\|"));
        let commands: Vec<String> = how.commands.iter().map(|c| code(c)).collect();
        let (commands, check) = (commands.join("<br>"), code(&how.check));
        let _ = writeln!(out, "| {} | {commands} | {check} | {} | {} |", how.name, how.undo, how.price);
    }
    same_parts(
        concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/guide/what-to-do-now.md"),
        &[("changes", out)],
    );
}

#[test]
fn docs_have_every_field() {
    let (document, rows) = (schema_of("bifold.compare/2"), schema_of("bifold.compare-rows/2"));
    let whole = |root: &Value, schema: &Value| {
        let mut out = "| field | meaning |\n|---|---|\n".to_string();
        table(root, schema, "", &mut out);
        out
    };
    let part = |root: &Value, kind: &str, schema: &Value| {
        let text = schema["description"].as_str().map(|t| format!("{t}\n\n")).unwrap_or_default();
        format!("### {kind}\n\n{text}{}", whole(root, schema))
    };
    let definitions = document["$defs"].as_object().unwrap().iter();
    let definitions: Vec<String> =
        definitions.map(|(kind, definition)| part(document, kind, definition)).collect();
    let lines = ["run", "total", "policy", "placement", "interval", "spread"];
    let lines: Vec<String> = lines.iter().map(|kind| part(rows, kind, kinds(rows)[kind])).collect();
    let csv: String = columns().iter().map(|(name, text)| format!("| `{name}` | {text} |\n")).collect();
    let parts = [
        ("fields json", whole(document, document)),
        ("fields json-kinds", definitions.join("\n")),
        ("fields jsonl", lines.join("\n")),
        ("fields csv", format!("| column | meaning |\n|---|---|\n{csv}")),
    ];
    same_parts(DOCS, &parts);
}
