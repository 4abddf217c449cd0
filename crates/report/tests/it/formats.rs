// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Schemas, `docs/reference/formats.md` and outputs have the same fields, each with its meaning.
//!
//! `INSTA_UPDATE=always` writes the tables of `docs/reference/formats.md` from the schemas.

use crate::fixture::{
    comparison, needs, place, places, policies, several_regions, several_vcpus, with_start,
};
use bifold_model::{CacheError, CacheFacts, Estimate, Mean, Sampling};
use bifold_report::{Baseline, Comparison, Format, Guest, Input, Partial, RunPolicies};
use bifold_trace::CommandExit;
use serde_json::Value;
use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

const DOCUMENT: &str = include_str!("../../schema/compare-2.json");
const ROWS: &str = include_str!("../../schema/compare-rows-2.json");
const DOCS: &str = concat!(env!("CARGO_MANIFEST_DIR"), "/../../docs/reference/formats.md");

struct Schemas {
    document: Value,
    rows: Value,
}

impl Schemas {
    fn new() -> Schemas {
        let parse = |text: &str| serde_json::from_str(text).unwrap();
        Schemas { document: parse(DOCUMENT), rows: parse(ROWS) }
    }

    /// What a reference in a schema leads to, and the schema that it is in.
    fn at<'a>(&'a self, root: &'a Value, reference: &str) -> (&'a Value, &'a Value) {
        let (file, pointer) = reference.split_once('#').unwrap();
        let root = if file == "compare-2.json" { &self.document } else { root };
        (root, root.pointer(pointer).unwrap_or_else(|| panic!("{reference} leads nowhere")))
    }

    /// Every field below a schema with its description: `a.b[].c`.
    fn fields(&self, root: &Value, schema: &Value, path: &str, out: &mut BTreeMap<String, String>) {
        if let Some(reference) = schema["$ref"].as_str() {
            let (root, target) = self.at(root, reference);
            self.fields(root, target, path, out);
        }
        for part in ["oneOf", "allOf"].iter().filter_map(|k| schema[k].as_array()).flatten() {
            self.fields(root, part, path, out);
        }
        if schema["items"].is_object() {
            self.fields(root, &schema["items"], &format!("{path}[]"), out);
        }
        for (name, field) in schema["properties"].as_object().into_iter().flatten() {
            let dot = if path.is_empty() { "" } else { "." };
            let path = format!("{path}{dot}{name}");
            let own = field["description"].as_str();
            let of_target = || self.at(root, field["$ref"].as_str()?).1["description"].as_str();
            let text = own.or_else(of_target).unwrap_or("");
            out.entry(path.clone()).or_default().push_str(text);
            self.fields(root, field, &path, out);
        }
    }

    fn all_fields(&self, root: &Value, schema: &Value) -> BTreeMap<String, String> {
        let mut out = BTreeMap::new();
        self.fields(root, schema, "", &mut out);
        out
    }
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
    without.policies = Some(RunPolicies { evaluation: Err("too short".into()), checks: Vec::new() });
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
    spread.meta.hardware.exit.ipi.cycles += 1;
    let judged = moved_in_all_lists();
    vec![comparison(), generated, recorded, without, sampled, regions, attributed, memory, spread, judged]
}

#[test]
fn json_has_exactly_the_fields_of_its_schema_and_each_has_a_meaning() {
    let schemas = Schemas::new();
    let described = schemas.all_fields(&schemas.document, &schemas.document);
    let mut written = BTreeSet::new();
    for c in comparisons() {
        let v: Value = serde_json::from_str(&c.render(Format::Json).unwrap()).unwrap();
        fields_of(&v, "", &mut written);
    }
    assert_eq!(described.keys().cloned().collect::<BTreeSet<_>>(), written);
    let bare: Vec<_> = described.iter().filter(|(_, text)| text.is_empty()).map(|(f, _)| f).collect();
    assert!(bare.is_empty(), "without a description: {bare:?}");
}

#[test]
fn json_lines_have_exactly_the_fields_of_their_schema() {
    let schemas = Schemas::new();
    let mut compiler = boon::Compiler::new();
    let base = "https://bifold.invalid/schema";
    for (name, schema) in [("compare-2", &schemas.document), ("compare-rows-2", &schemas.rows)] {
        compiler.add_resource(&format!("{base}/{name}.json"), schema.clone()).unwrap();
    }
    let mut compiled = boon::Schemas::new();
    let index = compiler.compile(&format!("{base}/compare-rows-2.json"), &mut compiled).unwrap();
    let mut written: BTreeMap<String, BTreeSet<String>> = BTreeMap::new();
    for c in comparisons() {
        for line in c.render(Format::Jsonl).unwrap().lines() {
            let v: Value = serde_json::from_str(line).unwrap();
            if let Err(e) = compiled.validate(&v, index) {
                panic!("{e:#}\n{line}");
            }
            fields_of(&v, "", written.entry(v["type"].as_str().unwrap().into()).or_default());
        }
    }
    let kinds: Vec<&str> = written.keys().map(String::as_str).collect();
    assert_eq!(kinds, ["interval", "placement", "policy", "run", "total"]);
    for (kind, written) in &written {
        let described = schemas.all_fields(&schemas.rows, &schemas.rows["$defs"][kind]);
        assert_eq!(&described.keys().cloned().collect::<BTreeSet<_>>(), written, "{kind}");
        assert!(described.values().all(|text| !text.is_empty()), "{kind}: {described:?}");
    }
}

/// The columns in their order, which is a promise too.
fn columns(schemas: &Schemas) -> Vec<(String, String)> {
    let interval = &schemas.rows["$defs"]["interval"]["properties"];
    let sample = &schemas.document["$defs"]["sample"]["properties"];
    let fields = [interval, sample].into_iter().flat_map(|p| p.as_object().unwrap());
    let named = fields.map(|(n, f)| (n.clone(), f["description"].as_str().unwrap().to_string()));
    named.filter(|(name, _)| name != "type").collect()
}

#[test]
fn csv_has_the_columns_of_an_interval_in_the_order_described() {
    let csv = comparison().render(Format::Csv).unwrap();
    let names: Vec<String> = columns(&Schemas::new()).into_iter().map(|(name, _)| name).collect();
    assert_eq!(csv.lines().next().unwrap(), names.join(","));
    let width = names.len();
    assert!(csv.lines().all(|l| l.split(',').count() == width), "rows of one width");
}

/// A table of fields, down to those that are of a named kind.
fn table(schemas: &Schemas, root: &Value, schema: &Value, path: &str, out: &mut String) {
    let parts = ["oneOf", "allOf"].iter().filter_map(|k| schema[k].as_array()).flatten();
    for part in parts {
        match part["$ref"].as_str() {
            Some(reference) => {
                let _ = writeln!(out, "| | all fields of a [{0}](#{0}) |", kind(reference));
            }
            None => table(schemas, root, part, path, out),
        }
    }
    if schema["items"].is_object() {
        table(schemas, root, &schema["items"], &format!("{path}[]"), out);
    }
    for (name, field) in schema["properties"].as_object().into_iter().flatten() {
        let path = format!("{path}{}{name}", if path.is_empty() { "" } else { "." });
        let described = |f: &Value| f["description"].as_str().map(String::from);
        let reference = field["$ref"].as_str().or(field["items"]["$ref"].as_str());
        let reference =
            reference.or_else(|| field["oneOf"].as_array()?.iter().find_map(|o| o["$ref"].as_str()));
        let target = reference.map(|r| schemas.at(root, r).1);
        let text = described(field).or_else(|| described(target?)).unwrap_or_default();
        let of = match reference.filter(|r| schemas.at(root, r).1["properties"].is_object()) {
            Some(r) if r.contains("$defs") => format!(" A [{0}](#{0}).", kind(r)),
            _ => String::new(),
        };
        let choices =
            field["enum"].as_array().map(|c| c.iter().filter_map(Value::as_str).collect::<Vec<_>>());
        // A description may name them itself.
        let choices = choices.filter(|c| c.iter().any(|c| !text.contains(c)));
        let choices = choices.map_or(String::new(), |c| format!(" One of {}.", c.join(", ")));
        let several = if field["type"] == "array" { "[]" } else { "" };
        let line = format!("| `{path}{several}` | {}{choices}{of} |\n", text.replace('|', "\\|"));
        // Alternatives have fields in common.
        if !out.contains(&line) {
            *out += &line;
        }
        if of.is_empty() {
            table(schemas, root, field, &path, out);
        }
    }
}

fn kind(reference: &str) -> &str {
    reference.rsplit('/').next().unwrap()
}

#[test]
fn docs_have_every_field() {
    let schemas = Schemas::new();
    let whole = |root: &Value, schema: &Value| {
        let mut out = "| field | meaning |\n|---|---|\n".to_string();
        table(&schemas, root, schema, "", &mut out);
        out
    };
    let definitions = |root: &Value, kinds: &[&str]| {
        let part = |k: &&str| {
            let d = &root["$defs"][k];
            let text = d["description"].as_str().map(|t| format!("{t}\n\n")).unwrap_or_default();
            format!("### {k}\n\n{text}{}", whole(root, d))
        };
        kinds.iter().map(part).collect::<Vec<_>>().join("\n")
    };
    let csv: String =
        columns(&schemas).iter().map(|(name, text)| format!("| `{name}` | {text} |\n")).collect();
    let parts = [
        ("json", whole(&schemas.document, &schemas.document)),
        (
            "json-kinds",
            definitions(
                &schemas.document,
                &[
                    "conclusion",
                    "advice",
                    "moved",
                    "place",
                    "place_others",
                    "profile",
                    "cost",
                    "config",
                    "sample",
                    "figures",
                    "evaluation",
                    "definition",
                ],
            ),
        ),
        ("jsonl", definitions(&schemas.rows, &["run", "total", "policy", "placement", "interval"])),
        ("csv", format!("| column | meaning |\n|---|---|\n{csv}")),
    ];
    let old = std::fs::read_to_string(DOCS).unwrap();
    let mut new = old.clone();
    for (name, text) in &parts {
        let begin = format!("<!-- fields {name} -->\n");
        let from = new.find(&begin).unwrap_or_else(|| panic!("docs/reference/formats.md has no {begin}"))
            + begin.len();
        let to = from + new[from..].find("<!-- end -->").unwrap();
        new.replace_range(from..to, text);
    }
    if std::env::var("INSTA_UPDATE").is_ok_and(|v| v == "always") {
        std::fs::write(DOCS, new).unwrap();
    } else {
        assert!(
            old == new,
            "docs/reference/formats.md is not as the schemas are: run with INSTA_UPDATE=always"
        );
    }
}
