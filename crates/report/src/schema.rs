// SPDX-License-Identifier: Apache-2.0 OR MIT
//! JSON Schemas of outputs, made from the types that are written. A field's doc comment is the field's
//! meaning.
//!
//! A type with a name in lowercase (`#[schemars(rename = "config")]`) is a definition of its own in a schema.
//! All other types stand where they are used.

use crate::{diff, json, memory, policies, rows, runs, tune};
use schemars::JsonSchema;
use schemars::generate::SchemaSettings;
use serde_json::{Map, Value, json};

/// The schemas of this crate's outputs, each with its name: `bifold.compare/2`.
pub fn schemas() -> Vec<Value> {
    vec![
        schema::<json::Document>(json::SCHEMA),
        schema::<rows::JsonLine>("bifold.compare-rows/2"),
        schema::<runs::Document>(runs::SCHEMA),
        schema::<diff::Document>(diff::SCHEMA),
        schema::<memory::Document>(memory::SCHEMA),
        schema::<policies::Document>(policies::SCHEMA),
        schema::<policies::JsonLine>("bifold.policy-compare-rows/2"),
        schema::<tune::Document>(tune::SCHEMA),
    ]
}

/// The JSON Schema of documents of type `T` that call themselves `name`: `bifold.compare/2`. For lines of
/// several kinds, `T` is an enum.
pub fn schema<T: JsonSchema>(name: &str) -> Value {
    let generator = SchemaSettings::draft2020_12().for_serialize().into_generator();
    let Value::Object(mut body) = generator.into_root_schema_for::<T>().to_value() else {
        return Value::Null; // `true`: a type that can be anything.
    };
    let definitions = match body.shift_remove("$defs") {
        Some(Value::Object(definitions)) => definitions,
        _ => Map::new(),
    };
    let (kept, inlined): (Map<_, _>, Map<_, _>) =
        definitions.into_iter().partition(|(name, _)| name.starts_with(char::is_lowercase));
    let whole = |schema| {
        let mut schema = in_place(schema, &inlined);
        close(&mut schema);
        schema
    };
    let mut body = whole(body.into());
    if !body["properties"]["schema"].is_null() {
        body["properties"]["schema"] =
            json!({ "const": name, "description": "Name and version of this schema." });
    }
    let file = name.trim_start_matches("bifold.").replace('/', "-");
    let mut all = Map::new();
    all.insert("$schema".into(), "https://json-schema.org/draft/2020-12/schema".into());
    all.insert("$id".into(), format!("https://bifold.invalid/schema/{file}.json").into());
    all.insert("title".into(), name.into());
    for (word, value) in body.as_object_mut().into_iter().flat_map(std::mem::take) {
        all.entry(word).or_insert(value);
    }
    if !kept.is_empty() {
        all.insert("$defs".into(), kept.into_iter().map(|(name, schema)| (name, whole(schema))).collect());
    }
    all.into()
}

/// A schema with the definitions at the places that refer to them. What stands beside a reference goes before
/// what the definition says.
fn in_place(schema: Value, definitions: &Map<String, Value>) -> Value {
    match schema {
        Value::Object(mut object) => {
            let name = object.get("$ref").and_then(Value::as_str).and_then(|r| r.strip_prefix("#/$defs/"));
            if let Some(Value::Object(definition)) = name.and_then(|name| definitions.get(name)) {
                object.shift_remove("$ref");
                for (word, value) in definition {
                    match (object.get_mut(word), value) {
                        (None, value) => _ = object.insert(word.clone(), value.clone()),
                        (Some(Value::Object(own)), Value::Object(more)) => own.extend(more.clone()),
                        (Some(Value::Array(own)), Value::Array(more)) => own.extend_from_slice(more),
                        _ => {}
                    }
                }
                return in_place(object.into(), definitions);
            }
            object.into_iter().map(|(word, value)| (word, in_place(value, definitions))).collect()
        }
        Value::Array(items) => items.into_iter().map(|item| in_place(item, definitions)).collect(),
        other => other,
    }
}

/// Fields of an alternative without a meaning of their own, such as the tag of an enum, have the
/// alternative's.
fn describe(alternative: &mut Value) {
    let Some(meaning) = alternative["description"].as_str().map(String::from) else { return };
    let fields = alternative.get_mut("properties").and_then(Value::as_object_mut);
    for field in fields.into_iter().flat_map(Map::values_mut) {
        if field["description"].is_null() {
            let tag = field["const"].as_str().map(|tag| format!("`{tag}`: {meaning}"));
            field["description"] = tag.unwrap_or_else(|| meaning.clone()).into();
        }
    }
}

/// Objects have the fields that their types have, and no others.
fn close(schema: &mut Value) {
    match schema {
        Value::Object(object) => {
            object.values_mut().for_each(close);
            // What a reader takes for a field that is missing; an output has the field or says when not.
            if ["type", "$ref", "anyOf", "oneOf"].iter().any(|word| object.contains_key(*word)) {
                object.shift_remove("default");
            }
            object.get_mut("oneOf").and_then(Value::as_array_mut).into_iter().flatten().for_each(describe);
            let fields = ["properties", "patternProperties"]
                .iter()
                .any(|w| object.get(*w).is_some_and(Value::is_object));
            // Fields may stand in alternatives too, and are checked there.
            let others = ["oneOf", "anyOf", "allOf", "$ref", "additionalProperties"];
            if fields && !others.iter().any(|word| object.contains_key(*word)) {
                object.insert("additionalProperties".into(), false.into());
            }
        }
        Value::Array(items) => items.iter_mut().for_each(close),
        _ => {}
    }
}
