// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads results: the JSON of `bifold compare --format json`, of one run or of several.
//!
//! A diff keeps the totals and the facts of how they were made. Figures are recomputed from the totals,
//! so both sides follow one definition, and documents of version 1 of the schemas are read as those of
//! version 2. Fields of a later Bifold are ignored. A counter that an earlier Bifold lacked counts as 0, and
//! the diff says so.

use super::{Kind, Made, Side, Total, made};
use crate::{Core, Figures, Guest, Input, Partial};
use bifold_mmu::PageSize;
use bifold_model::{CacheError, CacheFacts, Config, Paging, Profile, Sample, VmState};
use serde::Deserialize;
use serde::de::{Deserializer, IgnoredAny, MapAccess, Visitor};
use std::fmt;

/// Most bytes of a result. Results of hundreds of runs are smaller.
pub const MOST_BYTES: u64 = 256 << 20;
/// Most runs of one result.
const MOST_RUNS: usize = 10_000;
/// Counters are exact as JSON numbers up to here, and sums of all counters do not overflow.
pub(crate) const MOST: u64 = 1 << 53;

/// Why a file cannot be compared.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum ReadError {
    /// The file is no result.
    #[error(
        "{path} is {what}, and neither a recording (`bifold record -o FILE`) nor a result (`bifold compare \
         --format json -o FILE`)"
    )]
    Other {
        /// The file.
        path: String,
        /// The kind of the file.
        what: String,
    },
    /// The file is a recording, of which a result is wanted.
    #[error("{path} is a recording, and no result: `bifold compare --format json -o FILE {path}` makes one")]
    Recording {
        /// The file.
        path: String,
    },
    /// The file is too large.
    #[error("{path} is larger than {} MiB: no result is", MOST_BYTES >> 20)]
    TooLarge {
        /// The file.
        path: String,
    },
    /// The JSON does not have the form of its schema.
    #[error("{path} is no whole result of schema {schema}: {why}")]
    Form {
        /// The file.
        path: String,
        /// The schema that the document names.
        schema: String,
        /// The parser's message, with line and column.
        why: String,
    },
    /// A value is impossible.
    #[error("{path}: {field} {why}")]
    Value {
        /// The file.
        path: String,
        /// The field.
        field: String,
        /// What is wrong with its value.
        why: String,
    },
}

#[derive(Deserialize)]
struct Named {
    schema: Option<String>,
}

#[derive(Deserialize)]
struct RunsDocument {
    runs: Vec<Document>,
}

#[derive(Deserialize)]
struct Document {
    bifold: String,
    input: Input,
    guest: Option<Guest>,
    partial: Option<Partial>,
    // Earlier results have neither.
    kvm: Option<String>,
    /// A profile, if it has the keys of this version.
    hardware: Option<serde_json::Value>,
    #[serde(default)]
    overrides: Vec<String>,
    checks: Checks,
    outcome: Body,
}

#[derive(Deserialize)]
struct Checks {
    failed: u64,
}

#[derive(Deserialize)]
struct Body {
    profile: String,
    frequency_hz: u64,
    base_cpi: f64,
    caches: Option<CacheFacts>,
    seed: u64,
    config_hash: String,
    input_hash: String,
    #[serde(default = "VmState::of_older", alias = "backed")]
    vm: VmState,
    start: Option<IgnoredAny>,
    interval_cycles: u64,
    configs: Vec<OfConfig>,
}

#[derive(Deserialize)]
struct OfConfig {
    mode: Paging,
    host_page: PageSize,
    outer_page: Option<PageSize>,
    total: Counters,
    cache_error: Option<CacheError>,
}

/// The counters known to this Bifold, in the order of [`Sample::COUNTERS`]; others take no memory.
pub struct Counters(pub [Option<u64>; Sample::COUNTERS.len()]);

impl<'de> Deserialize<'de> for Counters {
    fn deserialize<D: Deserializer<'de>>(deserializer: D) -> Result<Self, D::Error> {
        struct Known;
        impl<'de> Visitor<'de> for Known {
            type Value = Counters;

            fn expecting(&self, f: &mut fmt::Formatter) -> fmt::Result {
                f.write_str("counters")
            }

            fn visit_map<A: MapAccess<'de>>(self, mut map: A) -> Result<Counters, A::Error> {
                let mut counters = Counters([None; Sample::COUNTERS.len()]);
                while let Some(name) = map.next_key::<String>()? {
                    match Sample::COUNTERS.iter().position(|c| c.name == name) {
                        Some(i) => counters.0[i] = Some(map.next_value()?),
                        None => drop(map.next_value::<IgnoredAny>()?),
                    }
                }
                Ok(counters)
            }
        }
        deserializer.deserialize_map(Known)
    }
}

/// Most characters of a text from a file.
const MOST_CHARACTERS: usize = 4096;

/// A text from a file without control characters and cut to its limit, safe to show on a terminal.
fn clean(text: &str) -> String {
    let mut out = String::new();
    for c in text.chars().take(MOST_CHARACTERS) {
        if c.is_control() { out.extend(c.escape_default()) } else { out.push(c) }
    }
    out
}

impl Side {
    /// The side of a result's bytes; `path` is for messages.
    ///
    /// # Errors
    /// If the bytes are no result, or a value is impossible.
    pub fn from_json(path: &str, bytes: &[u8]) -> Result<Side, ReadError> {
        if bytes.len() as u64 > MOST_BYTES {
            return Err(ReadError::TooLarge { path: path.into() });
        }
        let schema = schema(path, bytes)?;
        let form = |e: serde_json::Error| form_error(path, &schema, &e);
        let documents = match schema.as_str() {
            schema if crate::json::SCHEMAS.contains(&schema) => {
                vec![serde_json::from_slice(bytes).map_err(form)?]
            }
            crate::runs::SCHEMA | "bifold.runs/1" => {
                let document: RunsDocument = serde_json::from_slice(bytes).map_err(form)?;
                document.runs
            }
            other => {
                let what = format!("a document of schema {other}");
                return Err(ReadError::Other { path: path.into(), what });
            }
        };
        Ok(Side { schema, ..Reading { path }.side(documents)? })
    }
}

/// The error of a document that does not have the form of its schema.
pub(crate) fn form_error(path: &str, schema: &str, e: &serde_json::Error) -> ReadError {
    ReadError::Form { path: path.into(), schema: schema.into(), why: clean(&e.to_string()) }
}

/// The schema that a document names, or an error that names the kind of the bytes.
fn schema(path: &str, bytes: &[u8]) -> Result<String, ReadError> {
    let other = |what: &str| Err(ReadError::Other { path: path.into(), what: what.into() });
    let text = bytes.trim_ascii_start();
    match text {
        [] => return other("empty"),
        [b'{', ..] => {}
        [0x28, 0xb5, 0x2f, 0xfd, ..] => return other("a timeline or another compressed file"),
        [0x7f, b'E', b'L', b'F', ..] => return other("a program or a memory dump"),
        [b'<', ..] => return other("an HTML page"),
        _ if text.starts_with(&bifold_trace::file::MAGIC) => {
            return Err(ReadError::Recording { path: path.into() });
        }
        _ if text.starts_with(b"interval,") || text.starts_with(b"run,") => return other("CSV"),
        _ if text.contains(&0)
            || std::str::from_utf8(&text[..text.len().min(1024)]).is_err_and(|e| e.error_len().is_some()) =>
        {
            return other("binary data");
        }
        _ => return other("text"),
    }
    let mut documents = serde_json::Deserializer::from_slice(text).into_iter::<Named>();
    match documents.next() {
        Some(Ok(Named { schema: Some(schema) })) => match documents.next() {
            None => Ok(clean(&schema)),
            Some(_) => other("JSON with more behind its end"),
        },
        Some(Ok(_)) if documents.next().is_some() => other("JSON lines"),
        Some(Ok(_)) => other("JSON without a schema"),
        Some(Err(e)) => other(&clean(&format!("no JSON ({e})"))),
        None => other("empty"),
    }
}

/// The profile of a run, with all of its values.
fn hardware(d: &Document) -> Option<Profile> {
    let profile = Profile::deserialize(d.hardware.as_ref()?).ok()?;
    Some(Profile { overrides: d.overrides.clone(), ..profile })
}

struct Reading<'a> {
    path: &'a str,
}

impl Reading<'_> {
    fn bad<T>(&self, field: impl Into<String>, why: impl Into<String>) -> Result<T, ReadError> {
        Err(ReadError::Value { path: self.path.into(), field: field.into(), why: why.into() })
    }

    fn side(&self, documents: Vec<Document>) -> Result<Side, ReadError> {
        let n = documents.len();
        // A run that was cut short is alone in its document, because there was no whole run.
        let cut = |d: &Document| matches!(d.partial, Some(Partial::Interrupted | Partial::Failed));
        let mut side: Option<Side> = None;
        for (i, d) in documents.iter().enumerate() {
            if n > MOST_RUNS {
                return self.bad("runs", format!("has {n} runs, and {MOST_RUNS} are the most"));
            }
            if n > 1 && cut(d) {
                return self.bad(format!("runs[{i}]"), "is not whole, beside others");
            }
            let (totals, unknown) = self.totals(&d.outcome)?;
            let made = self.made(d);
            match &mut side {
                None => {
                    side = Some(Side {
                        name: self.path.into(),
                        kind: Kind::Result,
                        schema: String::new(),
                        made,
                        hardware: hardware(d),
                        partial: d.partial,
                        failed_checks: d.checks.failed,
                        unknown,
                        runs: vec![totals],
                    });
                }
                Some(first) => {
                    let names = |run: &[Total]| run.iter().map(|t| t.config).collect::<Vec<_>>();
                    let of_first = (&first.made.config_hash, first.made.base_cpi);
                    if of_first != (&made.config_hash, made.base_cpi)
                        || names(&first.runs[0]) != names(&totals)
                    {
                        return self.bad(
                            format!("runs[{i}]"),
                            "has another profile or other configurations than runs[0]",
                        );
                    }
                    first.partial = first.partial.or(d.partial);
                    first.failed_checks = first.failed_checks.saturating_add(d.checks.failed);
                    first.runs.push(totals);
                }
            }
        }
        match side {
            Some(side) => Ok(side),
            None => self.bad("runs", "is empty"),
        }
    }

    fn made(&self, d: &Document) -> Made {
        let o = &d.outcome;
        let guest = d.guest.as_ref().map(|g| Guest {
            command: g.command.clone(),
            timing: g.timing.as_deref().map(clean),
            thp: g.thp.as_deref().map(clean),
            root: g.root.as_deref().map(clean),
            kernel: g.kernel.as_deref().map(clean),
            qemu: g.qemu.as_deref().map(clean),
            region: g.region.as_deref().map(clean),
            ..*g
        });
        Made {
            program: clean(&made::program(&d.input, d.guest.as_ref())),
            bifold: clean(&d.bifold),
            profile: clean(&o.profile),
            overrides: d.overrides.iter().map(|o| clean(o)).collect(),
            kvm: d.kvm.as_deref().map(clean),
            config_hash: clean(&o.config_hash),
            frequency_hz: o.frequency_hz,
            base_cpi: o.base_cpi,
            seed: o.seed,
            interval_cycles: o.interval_cycles,
            input_hash: clean(&o.input_hash),
            vm: o.vm,
            without_start: o.start.is_some(),
            guest,
        }
    }

    /// Configurations of one run, and the counters that all of them lack.
    fn totals(&self, o: &Body) -> Result<(Vec<Total>, Vec<&'static str>), ReadError> {
        // The limits of profiles.
        if !(1_000_000..=100_000_000_000).contains(&o.frequency_hz) {
            return self.bad("outcome.frequency_hz", "is not between 1 MHz and 100 GHz");
        }
        if !(1e-6..=100.0).contains(&o.base_cpi) {
            return self.bad("outcome.base_cpi", "is not between 0.000001 and 100");
        }
        let mut unknown: Vec<&'static str> = Vec::new();
        let mut totals: Vec<Total> = Vec::new();
        for c in &o.configs {
            let config = Config { outer_page: c.outer_page, ..Config::new(c.mode, c.host_page) };
            let field = || format!("outcome.configs: {}", config.name());
            if !Config::KNOWN.contains(&config) || totals.iter().any(|known| known.config == config) {
                return self.bad(field(), "is no configuration, or there twice");
            }
            let mut values = [0; Sample::COUNTERS.len()];
            for ((counter, found), value) in Sample::COUNTERS.iter().zip(c.total.0).zip(&mut values) {
                match found {
                    Some(v) if v > MOST => {
                        return self.bad(field(), format!("has {} above 2^53", counter.name));
                    }
                    Some(v) => *value = v,
                    None if ["instructions", "walk_cycles", "vmm_cycles"].contains(&counter.name) => {
                        return self.bad(field(), format!("has no {}", counter.name));
                    }
                    None if !unknown.contains(&counter.name) => unknown.push(counter.name),
                    None => {}
                }
            }
            let mut sample = Sample::from_values(values);
            // In documents from before these counters, what the frames cost is in the part of the data.
            if unknown.contains(&"frames_stall_cycles") {
                sample.frames_stall_cycles = sample.ideal_stall_cycles;
                sample.frames_hidden_cycles = sample.ideal_hidden_cycles;
            }
            if totals.first().is_some_and(|first| first.sample.instructions != sample.instructions) {
                return self.bad(field(), "has other instructions than the first configuration");
            }
            let error = c.cache_error.map_or(0.0, |e| e.half_width_extra_cycles);
            let core = Core { frequency_hz: o.frequency_hz, base_cpi: o.base_cpi, caches: o.caches.as_ref() };
            let figures = Figures::of_total(&sample, &core, error);
            totals.push(Total { config, sample, figures });
        }
        if totals.is_empty() {
            return self.bad("outcome.configs", "is empty");
        }
        Ok((totals, unknown))
    }
}
