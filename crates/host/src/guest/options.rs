// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The value of an option of QEMU: a list of `name=value` with `,,` for a comma (`util/keyval.c`), or JSON,
//! as libvirt writes it (`ChardevOptions`, `DeviceState` and `ObjectOptions` of the QAPI schema).

use serde_json::Value;

/// An option's value as names and values, in order. A name without a value has the value `on`, a first value
/// without a name is named by the option.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Pairs(Vec<(String, String)>);

impl Pairs {
    /// Parses a value. `implied` names a first part without `=`.
    ///
    /// ```
    /// use bifold_host::Pairs;
    ///
    /// let monitor = Pairs::parse("socket,id=m,path=/run/a,,b,server", "backend");
    /// assert_eq!((monitor.get("backend"), monitor.get("path")), (Some("socket"), Some("/run/a,b")));
    /// assert!(monitor.is_on("server"));
    /// ```
    pub fn parse(text: &str, implied: &str) -> Pairs {
        if text.starts_with('{') {
            return Pairs(serde_json::from_str(text).map(|v| flat(&v)).unwrap_or_default());
        }
        Pairs::plain(text, implied)
    }

    /// Parses the value of an option that takes no JSON, such as `-name`.
    pub(crate) fn plain(text: &str, implied: &str) -> Pairs {
        let mut pairs = Vec::new();
        for part in comma_parts(text).into_iter().filter(|p| !p.is_empty()) {
            match part.split_once('=') {
                Some((name, value)) => pairs.push((name.to_owned(), value.to_owned())),
                None if pairs.is_empty() => pairs.push((implied.to_owned(), part)),
                None => pairs.push((part, "on".to_owned())),
            }
        }
        Pairs(pairs)
    }

    /// The last value of a name, as QEMU takes it.
    pub fn get(&self, name: &str) -> Option<&str> {
        self.0.iter().rev().find(|(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// All values of a name.
    pub fn all<'a>(&'a self, name: &'a str) -> impl Iterator<Item = &'a str> {
        self.0.iter().filter(move |(n, _)| n == name).map(|(_, v)| v.as_str())
    }

    /// A number.
    pub fn number(&self, name: &str) -> Option<u32> {
        self.get(name)?.parse().ok()
    }

    /// Bytes of a size, such as `512M`; a number alone counts `bare` bytes.
    pub fn size(&self, name: &str, bare: u64) -> Option<u64> {
        size(self.get(name)?, bare)
    }

    /// Whether a switch is on.
    pub fn is_on(&self, name: &str) -> bool {
        matches!(self.get(name), Some("on" | "yes" | "true" | "y"))
    }

    /// The path of the Unix socket on which QEMU listens, by the value of `-chardev`; `None` if QEMU connects
    /// to the socket, or was handed it as a file descriptor. QEMU listens by default only in the form of
    /// JSON.
    pub fn listening_socket(&self) -> Option<&str> {
        let is_socket = [self.get("backend"), self.get("backend.type")].contains(&Some("socket"));
        let listens = self.is_on("server")
            || self.get("backend.data.server").map_or(self.get("backend.type").is_some(), |on| on == "on");
        let path = self.get("path").or_else(|| self.get("backend.data.addr.data.path"));
        path.filter(|path| is_socket && listens && !path.is_empty())
    }
}

/// The parts of an option's value between single commas, at least one; two commas are one within a part
/// (QEMU's `util/keyval.c`).
fn comma_parts(value: &str) -> Vec<String> {
    let mut parts = vec![String::new()];
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        let last = parts.last_mut().expect("there is always one");
        match c {
            ',' if chars.next_if_eq(&',').is_some() => last.push(','),
            ',' => parts.push(String::new()),
            c => last.push(c),
        }
    }
    parts
}

/// The members of a JSON object; those of inner objects have dotted names, as in the other syntax.
fn flat(value: &Value) -> Vec<(String, String)> {
    let Value::Object(members) = value else { return Vec::new() };
    let mut pairs = Vec::new();
    for (name, value) in members {
        match value {
            Value::Bool(b) => pairs.push((name.clone(), if *b { "on" } else { "off" }.into())),
            Value::String(s) => pairs.push((name.clone(), s.clone())),
            Value::Number(n) => pairs.push((name.clone(), n.to_string())),
            Value::Array(all) => pairs.extend(all.iter().filter_map(|v| Some((name.clone(), scalar(v)?)))),
            Value::Object(_) => {
                pairs.extend(flat(value).into_iter().map(|(inner, v)| (format!("{name}.{inner}"), v)))
            }
            Value::Null => {}
        }
    }
    pairs
}

fn scalar(value: &Value) -> Option<String> {
    match value {
        Value::String(s) => Some(s.clone()),
        Value::Number(n) => Some(n.to_string()),
        _ => None,
    }
}

/// Bytes of a size as QEMU writes it: `512M`, `4G`, `2048k`; a number alone counts `bare` bytes.
fn size(text: &str, bare: u64) -> Option<u64> {
    let digits = text.len() - text.trim_start_matches(|c: char| c.is_ascii_digit() || c == '.').len();
    let (number, suffix) = text.split_at(digits);
    let unit = match suffix {
        "" => bare,
        "B" | "b" => 1,
        "K" | "k" => 1 << 10,
        "M" | "m" => 1 << 20,
        "G" | "g" => 1 << 30,
        "T" | "t" => 1 << 40,
        _ => return None,
    };
    match number.parse::<u64>() {
        Ok(whole) => whole.checked_mul(unit),
        // QEMU takes 1.5G.
        Err(_) => number.parse::<f64>().ok().map(|n| n * unit as f64).filter(|n| *n < 1e18).map(|n| n as u64),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn commas_are_doubled_and_json_is_flat() {
        let pairs = Pairs::parse("memory-backend-file,id=a,mem-path=/dev/x,,y,share", "qom-type");
        assert_eq!(pairs.get("qom-type"), Some("memory-backend-file"));
        assert_eq!((pairs.get("mem-path"), pairs.is_on("share")), (Some("/dev/x,y"), true));
        let json = r#"{"qom-type":"memory-backend-ram","size":4096,"host-nodes":[0,2],"prealloc":true,"a":{"b":"c"}}"#;
        let pairs = Pairs::parse(json, "qom-type");
        assert_eq!(pairs.all("host-nodes").collect::<Vec<_>>(), ["0", "2"]);
        assert_eq!(
            (pairs.get("size"), pairs.is_on("prealloc"), pairs.get("a.b")),
            (Some("4096"), true, Some("c"))
        );
        assert_eq!(Pairs::parse("{not json", "x"), Pairs::default());
    }

    #[test]
    fn sizes_have_binary_suffixes() {
        let sizes = [
            ("64M", Some(64 << 20)),
            ("1.5G", Some(3 << 29)),
            ("7", Some(7 << 20)),
            ("1x", None),
            ("", None),
        ];
        for (text, bytes) in sizes {
            assert_eq!(size(text, 1 << 20), bytes, "{text}");
        }
        assert_eq!(size("99999999999T", 1), None);
    }

    proptest! {
        #[test]
        fn what_was_written_is_read(pairs in prop::collection::vec(("[a-z]{1,6}", "[ -~]{1,12}"), 1..6)) {
            let text: Vec<String> =
                pairs.iter().map(|(n, v)| format!("{n}={}", v.replace(',', ",,"))).collect();
            prop_assert_eq!(Pairs::parse(&text.join(","), "x"), Pairs(pairs));
        }
    }
}
