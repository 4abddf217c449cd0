// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random inputs that several bodies' tests share.

use proptest::prelude::*;
use serde_json::Value;

pub fn bytes() -> impl Strategy<Value = Vec<u8>> {
    // Small kinds and levels, which uniformly random words hardly ever have.
    let word = prop_oneof![
        any::<u64>(),
        (0u64..24, any::<u64>()).prop_map(|(k, p)| k << 57 | p >> 7),
        (0u64..64).prop_map(|p| 16 << 57 | p),
    ];
    proptest::collection::vec(word, 0..1200)
        .prop_map(|words| words.iter().flat_map(|w| w.to_le_bytes()).collect())
}

/// The values of a document that contain no other values.
pub fn leaves(value: &mut Value) -> Vec<&mut Value> {
    if value.as_array().is_some_and(|a| !a.is_empty()) {
        value.as_array_mut().unwrap().iter_mut().flat_map(leaves).collect()
    } else if value.as_object().is_some_and(|o| !o.is_empty()) {
        value.as_object_mut().unwrap().values_mut().flat_map(leaves).collect()
    } else {
        vec![value]
    }
}

/// A number, mostly at the edge of a range.
pub fn number() -> impl Strategy<Value = Value> {
    let whole =
        prop_oneof![Just(0), 0u64..300, (0u32..64).prop_map(|b| 1 << b), Just(1 << 53), Just(u64::MAX)];
    let real = prop_oneof![any::<f64>(), Just(-1.0), Just(0.5), Just(1e308), Just(1e-308)];
    prop_oneof![3 => whole.prop_map(Value::from), 1 => real.prop_map(Value::from)]
}

/// Text after a `=` in TOML: valid values and invalid ones.
pub fn toml_value() -> impl Strategy<Value = String> {
    let edge =
        prop::sample::select(vec!["0.0", "-1.0", "1.0", "nan", "inf", "-inf", "1e308", "1e-308", "[]", "{}"]);
    prop_oneof![
        4 => edge.prop_map(String::from),
        2 => any::<f64>().prop_map(|x| format!("{x:?}")),
        2 => (0u64..2000).prop_map(|x| x.to_string()),
        1 => any::<i64>().prop_map(|x| x.to_string()),
        1 => "\\PC{0,30}",
    ]
}

/// Runs `then` on a valid text with a line's value changed, with the line left out, and with all later lines
/// left out too.
pub fn changed_lines(good: &str, line: usize, value: &str, then: impl Fn(&[u8])) {
    let lines: Vec<&str> = good.lines().collect();
    // Changes of comments test nothing.
    let with_values: Vec<usize> = (0..lines.len()).filter(|i| !lines[*i].starts_with('#')).collect();
    let at = with_values[line % with_values.len()];
    let changed = lines[at].split_once('=').map_or(value.into(), |(k, _)| format!("{k}= {value}"));
    let with = |new: Option<&str>, rest: &[&str]| {
        let all: Vec<&str> = lines[..at].iter().copied().chain(new).chain(rest.iter().copied()).collect();
        then(all.join("\n").as_bytes());
    };
    with(Some(&changed), &lines[at + 1..]);
    with(None, &lines[at + 1..]);
    with(None, &[]);
}
