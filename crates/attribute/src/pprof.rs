// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Costs by place as a profile for pprof and the tools that read its files (speedscope, Perfetto, Grafana
//! Pyroscope).
//!
//! The format is `profile.proto` of github.com/google/pprof: messages of protocol buffers, compressed by
//! gzip. Only fields that are used are here.

use crate::rows::{Metric, View, Where};
use bifold_model::Costs;
use flate2::Compression;
use flate2::write::GzEncoder;
use prost::Message;
use std::collections::HashMap;
use std::io::{self, Write as _};

#[derive(Clone, PartialEq, Message)]
struct Profile {
    #[prost(message, repeated, tag = "1")]
    sample_type: Vec<ValueType>,
    #[prost(message, repeated, tag = "2")]
    sample: Vec<Sample>,
    #[prost(message, repeated, tag = "4")]
    location: Vec<Location>,
    #[prost(message, repeated, tag = "5")]
    function: Vec<Function>,
    #[prost(string, repeated, tag = "6")]
    string_table: Vec<String>,
    #[prost(int64, repeated, tag = "13")]
    comment: Vec<i64>,
    #[prost(int64, tag = "14")]
    default_sample_type: i64,
}

/// Kind and unit of a value, as indices of the string table.
#[derive(Clone, Copy, PartialEq, Message)]
struct ValueType {
    #[prost(int64, tag = "1")]
    kind: i64,
    #[prost(int64, tag = "2")]
    unit: i64,
}

/// A stack, the innermost frame first, and its values.
#[derive(Clone, PartialEq, Message)]
struct Sample {
    #[prost(uint64, repeated, tag = "1")]
    location_id: Vec<u64>,
    #[prost(int64, repeated, tag = "2")]
    value: Vec<i64>,
    #[prost(message, repeated, tag = "3")]
    label: Vec<Label>,
}

/// A name and its value, as indices of the string table.
#[derive(Clone, Copy, PartialEq, Message)]
struct Label {
    #[prost(int64, tag = "1")]
    key: i64,
    #[prost(int64, tag = "2")]
    str: i64,
}

#[derive(Clone, PartialEq, Message)]
struct Location {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(message, repeated, tag = "4")]
    line: Vec<Line>,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Line {
    #[prost(uint64, tag = "1")]
    function_id: u64,
}

#[derive(Clone, Copy, PartialEq, Message)]
struct Function {
    #[prost(uint64, tag = "1")]
    id: u64,
    #[prost(int64, tag = "2")]
    name: i64,
    #[prost(int64, tag = "4")]
    filename: i64,
}

/// The counts of a profile, with their units.
const COUNTS: [(Metric, &str); 5] = [
    (Metric::ExtraCycles, "cycles"),
    (Metric::TlbMisses, "count"),
    (Metric::WalkCycles, "cycles"),
    (Metric::DataWaits, "cycles"),
    (Metric::Exits, "count"),
];

/// Strings, functions and locations by name; a function has one location.
struct Tables {
    profile: Profile,
    strings: HashMap<String, i64>,
    functions: HashMap<(i64, i64), u64>,
}

impl Tables {
    fn string(&mut self, text: &str) -> i64 {
        if let Some(index) = self.strings.get(text) {
            return *index;
        }
        let index = self.profile.string_table.len() as i64;
        self.profile.string_table.push(text.into());
        self.strings.insert(text.into(), index);
        index
    }

    /// The location of a function.
    fn location(&mut self, name: &str, file: &str) -> u64 {
        let (name, filename) = (self.string(name), self.string(file));
        let id = self.functions.len() as u64 + 1;
        let found = *self.functions.entry((name, filename)).or_insert(id);
        if found == id {
            self.profile.function.push(Function { id, name, filename });
            self.profile.location.push(Location { id, line: vec![Line { function_id: id }] });
        }
        found
    }
}

impl Where {
    /// The costs of one view in one configuration as a file for pprof, compressed. Its samples are stacks of
    /// process and functions, with the mapping as a label and every count; `metric` is shown first. pprof
    /// shows no values below 0, so those of waits count as 0.
    ///
    /// # Errors
    /// If the compression fails.
    pub fn pprof(&self, view: View, config: usize, metric: Metric) -> io::Result<Vec<u8>> {
        let mut tables =
            Tables { profile: Profile::default(), strings: HashMap::new(), functions: HashMap::new() };
        tables.string(""); // has to be the first
        for (count, unit) in COUNTS {
            let (kind, unit) = (tables.string(count.name()), tables.string(unit));
            tables.profile.sample_type.push(ValueType { kind, unit });
        }
        tables.profile.default_sample_type = tables.string(metric.name());
        let name = self.configs.get(config).map_or(String::new(), |c| c.name());
        let comment = tables.string(&format!("bifold, {name}, by {}", view.name()));
        tables.profile.comment.push(comment);
        let key = tables.string("mapping");
        let mut add = |frames: Vec<(&str, &str)>, mapping: &str, costs: &[Costs]| {
            let value: Vec<i64> = COUNTS.iter().map(|(count, _)| count.of(&costs[config]).max(0)).collect();
            if value.iter().any(|v| *v > 0) {
                let location_id =
                    frames.into_iter().rev().map(|(name, file)| tables.location(name, file)).collect();
                let label = vec![Label { key, str: tables.string(mapping) }];
                tables.profile.sample.push(Sample { location_id, value, label });
            }
        };
        match &self.stacks {
            Some(stacks) => {
                for s in &stacks[view as usize] {
                    let Some((mapping, frames)) = s.frames.split_last() else { continue };
                    add(frames.iter().map(|f| (f.as_str(), "")).collect(), mapping, &s.costs);
                }
            }
            None => {
                for r in self.rows(view) {
                    add(vec![(&r.process, ""), (&r.function, &r.binary)], &r.mapping, &r.costs);
                }
            }
        }
        let mut gzip = GzEncoder::new(Vec::new(), Compression::default());
        gzip.write_all(&tables.profile.encode_to_vec())?;
        gzip.finish()
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::rows::PlaceRow;
    use bifold_model::Config;
    use std::io::Read as _;

    #[test]
    fn samples_have_every_count_and_equal_functions_are_one() {
        let row = |process: &str, function: &str, exits: u64| PlaceRow {
            process: process.into(),
            binary: "libc.so.6".into(),
            function: function.into(),
            mapping: "heap".into(),
            costs: vec![Costs { exits, vmm_cycles: exits * 10, data_wait_cycles: -3, ..Costs::default() }],
        };
        let code = vec![row("a", "f", 7), row("b", "f", 5), row("b", "g", 0)];
        let places = Where {
            configs: Config::ALL[..1].into(),
            cause: code.clone(),
            code,
            stacks: None,
            missing: Vec::new(),
        };
        let file = places.pprof(View::Code, 0, Metric::Exits).unwrap();
        let mut bytes = Vec::new();
        flate2::read::GzDecoder::new(&file[..]).read_to_end(&mut bytes).unwrap();
        let p = Profile::decode(&bytes[..]).unwrap();
        let text = |i: i64| p.string_table[i as usize].as_str();
        assert_eq!((text(0), text(p.default_sample_type)), ("", "exits"));
        // What costs nothing is left out.
        assert_eq!(p.sample.len(), 2);
        assert_eq!(p.sample.iter().map(|s| s.value[4]).collect::<Vec<_>>(), [7, 5]);
        assert_eq!(p.sample[0].value, [67, 0, 0, 0, 7]);
        let names = |s: &Sample| -> Vec<&str> {
            let name = |id: &u64| text(p.function[*id as usize - 1].name);
            s.location_id.iter().map(name).collect()
        };
        assert_eq!((names(&p.sample[0]), names(&p.sample[1])), (vec!["f", "a"], vec!["f", "b"]));
        assert_eq!(p.sample[0].location_id[0], p.sample[1].location_id[0]);
        assert_eq!(text(p.function[p.sample[0].location_id[0] as usize - 1].filename), "libc.so.6");
        let Label { key, str } = p.sample[1].label[0];
        assert_eq!((text(key), text(str)), ("mapping", "heap"));
    }
}
