// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Overrides of single profile values, `key=value`, as `--set` gives them.

/// Applies `a.b.c=value` to a table. An element of an array of tables is addressed by its `name`.
pub(super) fn set(table: &mut toml::Table, setting: &str) -> Result<(), String> {
    let (key, value) = setting.split_once('=').ok_or("write it as key=value")?;
    let value = value.trim();
    let parsed: toml::Value = match toml::from_str::<toml::Table>(&format!("v = {value}")) {
        Ok(mut t) => t.remove("v").ok_or("no value")?,
        Err(_) => toml::Value::String(value.into()),
    };
    let mut parts: Vec<&str> = key.trim().split('.').collect();
    let last = parts.pop().filter(|l| !l.is_empty()).ok_or("no key")?;
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
            .ok_or_else(|| format!("there is no `{part}`"))?;
        }
        let toml::Value::Table(t) = at else { return Err(format!("name an element before `{last}`")) };
        if matches!(t.get(last), Some(toml::Value::Table(_))) {
            return Err(format!("`{last}` is a table; name a value in it"));
        }
        t.insert(last.into(), parsed);
        Ok(())
    })();
    if let toml::Value::Table(t) = root {
        *table = t;
    }
    result
}
