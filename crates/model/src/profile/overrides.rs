// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overrides of single profile values, `key=value`, as `--set` gives them.

use super::ProfileError;

/// Applies `a.b.c=value` to the table of the profile `origin`. An element of an array of tables is addressed
/// by its `name`.
pub(super) fn set(table: &mut toml::Table, setting: &str, origin: &str) -> Result<(), ProfileError> {
    let no = |problem: &str| ProfileError::Override {
        origin: origin.into(),
        setting: setting.into(),
        problem: problem.into(),
    };
    let (key, value) = setting.split_once('=').ok_or_else(|| no("write it as key=value"))?;
    let value = value.trim();
    let parsed: toml::Value = match toml::from_str::<toml::Table>(&format!("v = {value}")) {
        Ok(mut t) => t.remove("v").ok_or_else(|| no("no value"))?,
        Err(_) => toml::Value::String(value.into()),
    };
    let mut parts: Vec<&str> = key.trim().split('.').collect();
    let last = parts.pop().filter(|l| !l.is_empty()).ok_or_else(|| no("no key"))?;
    let mut root = toml::Value::Table(std::mem::take(table));
    let result = (|| {
        let mut at = &mut root;
        for part in parts {
            at = match at {
                toml::Value::Table(t) => t.get_mut(part),
                toml::Value::Array(a) => {
                    a.iter_mut().find(|v| v.get("name").and_then(|n| n.as_str()) == Some(part))
                }
                _ => None,
            }
            .ok_or_else(|| no(&format!("there is no `{part}`")))?;
        }
        let toml::Value::Table(t) = at else { return Err(no(&format!("name an element before `{last}`"))) };
        if matches!(t.get(last), Some(toml::Value::Table(_))) {
            return Err(no(&format!("`{last}` is a table; name a value in it")));
        }
        t.insert(last.into(), parsed);
        Ok(())
    })();
    if let toml::Value::Table(t) = root {
        *table = t;
    }
    result
}

/// Overrides without blanks around key and value, and without those that a later one undoes.
pub(super) fn last_per_key(settings: &[String]) -> Vec<String> {
    let plain = |s: &String| s.split_once('=').map(|(k, v)| (k.trim().to_string(), v.trim().to_string()));
    let all: Vec<(String, String)> = settings.iter().filter_map(plain).collect();
    let last =
        |(i, (key, _)): &(usize, &(String, String))| all[i + 1..].iter().all(|(later, _)| later != key);
    all.iter().enumerate().filter(last).map(|(_, (key, value))| format!("{key}={value}")).collect()
}

/// Dotted key of the first value in which two profiles differ, if there is one.
pub(super) fn first_difference(a: &toml::Value, b: &toml::Value) -> Option<String> {
    use toml::Value::{Array, Table};
    let below = |key: &str, rest: String| if rest.is_empty() { key.into() } else { format!("{key}.{rest}") };
    match (a, b) {
        (Table(a), Table(b)) => {
            let keys = a.keys().chain(b.keys().filter(|k| !a.contains_key(*k)));
            keys.into_iter().find_map(|key| match (a.get(key), b.get(key)) {
                (Some(x), Some(y)) => first_difference(x, y).map(|rest| below(key, rest)),
                _ => Some(key.clone()),
            })
        }
        (Array(a), Array(b)) if a.len() == b.len() => a.iter().zip(b).enumerate().find_map(|(i, (x, y))| {
            let name = x.get("name").and_then(|n| n.as_str()).map_or_else(|| i.to_string(), String::from);
            first_difference(x, y).map(|rest| below(&name, rest))
        }),
        _ => (a != b).then(String::new),
    }
}
