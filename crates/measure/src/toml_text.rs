// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A profile as TOML in the form of the files under `profiles/`: a table per part, costs of exits on a line
//! each.

use bifold_model::KEYS;
use std::fmt::Write as _;
use toml::{Table, Value};

/// The text of a profile.
pub fn text(comment: &[String], profile: &Table) -> String {
    let mut out = String::new();
    for line in comment {
        let _ = writeln!(out, "# {line}");
    }
    scalars(&mut out, "", profile);
    for (key, value) in in_order("", profile) {
        part(&mut out, key, value);
    }
    out
}

/// The entries of a table in the order in which keys are declared, where values come from last.
fn in_order<'a>(path: &str, table: &'a Table) -> Vec<(&'a String, &'a Value)> {
    let names: Vec<&str> = KEYS.iter().flat_map(|t| t.iter().map(|k| k.name)).collect();
    let place = |key: &str| match key {
        "source" => usize::MAX - 1,
        "prior" => usize::MAX,
        _ => {
            let is = |name: &&str| name.starts_with(path) && name.split('.').any(|part| part == key);
            names.iter().position(is).unwrap_or(usize::MAX - 2)
        }
    };
    let mut all: Vec<_> = table.iter().collect();
    all.sort_by_key(|(key, _)| place(key));
    all
}

fn part(out: &mut String, key: &str, value: &Value) {
    match value {
        Value::Table(t) => {
            let _ = writeln!(out, "\n[{key}]");
            scalars(out, key, t);
            // Costs of exits, the nested TLB; what follows an array would be its last element's.
            for (inner, value) in in_order(key, t).into_iter().filter(|(_, v)| v.is_table()) {
                let _ = writeln!(out, "{inner} = {value}");
            }
            for (inner, value) in in_order(key, t).into_iter().filter(|(_, v)| is_array_of_tables(v)) {
                part(out, &format!("{key}.{inner}"), value);
            }
        }
        Value::Array(all) if is_array_of_tables(value) => {
            for one in all.iter().filter_map(Value::as_table) {
                let _ = writeln!(out, "\n[[{key}]]");
                scalars(out, key, one);
            }
        }
        _ => {}
    }
}

/// Values that are neither tables nor arrays of tables, a line each.
fn scalars(out: &mut String, path: &str, table: &Table) {
    for (key, value) in
        in_order(path, table).into_iter().filter(|(_, v)| !v.is_table() && !is_array_of_tables(v))
    {
        let _ = writeln!(out, "{key} = {value}");
    }
}

fn is_array_of_tables(value: &Value) -> bool {
    value.as_array().is_some_and(|a| !a.is_empty() && a.iter().all(Value::is_table))
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_model::Profile;

    #[test]
    fn a_profile_s_text_is_that_profile() {
        for name in Profile::builtin_names() {
            let profile = Profile::load(name, &[]).unwrap();
            let table = Table::try_from(&profile).unwrap();
            let text = text(&["A machine.".into()], &table);
            assert!(text.starts_with("# A machine.\n"), "{text}");
            assert_eq!(Profile::parse(&text, "x", &[]).unwrap(), profile, "{text}");
        }
    }
}
