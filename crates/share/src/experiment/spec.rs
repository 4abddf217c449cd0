// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What an experiment is, as its author writes it, and the plan that comes of it at a scale.
//!
//! Sizes and times in the file are those of the published setting, or of the machine that the author
//! has in mind. A scale s makes memory s times as large and, because KSM at the same rate then takes s
//! times as long for a pass, time s times as long: what happens between two passes stays in proportion.
//! Counts (guests, write rates, thresholds, KSM's settings) are not scaled.

use bifold_host::ksm::Settings;
use serde::{Deserialize, Deserializer};
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::time::Duration;

/// The smallest guest that boots Debian's kernel with room for a workload, MiB.
pub const SMALLEST_MIB: u64 = 96;
/// Guest memory is a multiple of this, MiB.
const STEP_MIB: u64 = 2;
/// More guests at once than any machine here would take.
const MOST_GUESTS: u32 = 256;

/// Why a file is no experiment.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum SpecError {
    /// It cannot be read.
    #[error("cannot read {}", path.display())]
    Read {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// It is not TOML, or has a field that no experiment has.
    #[error("{}: {}", path.display(), text.trim_end())]
    Toml {
        /// The file.
        path: PathBuf,
        /// What the parser says, with the line.
        text: String,
    },
    /// A field's value makes no sense.
    #[error("{}: {field}: {why}", path.display())]
    Field {
        /// The file.
        path: PathBuf,
        /// Its dotted name.
        field: String,
        /// What is wrong, and what would be right.
        why: String,
    },
    /// A guest becomes too small.
    #[error("{}: guest `{guest}` would have {mib} MiB at scale {scale}, and {SMALLEST_MIB} is the least: take a larger --scale", path.display())]
    TooSmall {
        /// The file.
        path: PathBuf,
        /// Its name.
        guest: String,
        /// Its memory.
        mib: u64,
        /// At this scale.
        scale: Scale,
    },
    /// No case of that name.
    #[error("{}: has no case `{name}`; it has {}", path.display(), known.join(", "))]
    NoCase {
        /// The file.
        path: PathBuf,
        /// As asked for.
        name: String,
        /// Those that it has.
        known: Vec<String>,
    },
}

/// A ratio of two whole numbers, written `1/32`, `0` or `1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Above the line.
    pub of: u32,
    /// Below it, not 0.
    pub parts: u32,
}

impl Rate {
    /// From `1/32`, `2` or `0.25`.
    pub fn parse(text: &str) -> Option<Rate> {
        let text = text.trim();
        if let Some((whole, decimals)) = text.split_once('.') {
            let parts = 10u32.checked_pow(u32::try_from(decimals.len()).ok()?)?;
            let digits = decimals.bytes().all(|b| b.is_ascii_digit()) && !decimals.is_empty();
            let of = whole.parse::<u32>().ok()?.checked_mul(parts)?.checked_add(decimals.parse().ok()?)?;
            return digits.then_some(Rate { of, parts });
        }
        let (of, parts) = text.split_once('/').unwrap_or((text, "1"));
        let rate = Rate { of: of.trim().parse().ok()?, parts: parts.trim().parse().ok()? };
        (rate.parts > 0).then_some(rate)
    }

    /// As a number.
    pub fn value(self) -> f64 {
        f64::from(self.of) / f64::from(self.parts)
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.parts {
            1 => write!(f, "{}", self.of),
            parts => write!(f, "{}/{parts}", self.of),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Rate, D::Error> {
        let text = String::deserialize(d)?;
        Rate::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("`{}` is no ratio such as \"1/32\"", text.escape_debug()))
        })
    }
}

/// How much smaller, and shorter, a run is than its file says.
pub type Scale = Rate;

/// An experiment's file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// One line.
    pub title: String,
    /// What it is about and how it departs from what it repeats.
    #[serde(default)]
    pub about: String,
    /// Memory of the imagined host, MiB: what thresholds are a share of. The guests' in all if absent.
    pub host_memory_mib: Option<u64>,
    /// Whether the host puts huge pages under guests.
    #[serde(default)]
    pub host_huge_pages: bool,
    /// When what happens.
    pub time: TimeSpec,
    /// KSM's settings by the kernel's names.
    #[serde(default)]
    pub ksm: BTreeMap<String, toml::Value>,
    /// When KSM runs, and with how many pages.
    #[serde(default)]
    pub start: StartSpec,
    /// Kinds of guests.
    #[serde(rename = "guest")]
    pub guests: Vec<GuestSpec>,
    /// Runs that differ in something; one without a difference if there are none.
    #[serde(default, rename = "case")]
    pub cases: Vec<CaseSpec>,
    /// Figures of others to show beside.
    #[serde(default)]
    pub published: Vec<Published>,
}

/// Times, in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeSpec {
    /// From when all workloads are ready to the end.
    pub length: f64,
    /// Between samples.
    pub sample: f64,
    /// When guests are stopped and the potential is counted, from when all workloads are ready.
    #[serde(default)]
    pub potential: Vec<f64>,
}

/// When KSM runs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartSpec {
    /// It runs while less than this share of the host's memory would be free if nothing were shared;
    /// always if absent.
    pub free_below: Option<f64>,
    /// How the number of pages per wake-up follows the pressure; fixed if absent.
    pub tuner: Option<TunerSpec>,
}

/// ksmtuned's rule.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunerSpec {
    /// Seconds between two looks.
    pub every: f64,
    /// Pages more where less than the threshold is free.
    pub boost: u64,
    /// Pages less where it is not.
    pub decay: u64,
    /// Never fewer.
    pub min: u64,
    /// Never more.
    pub max: u64,
}

/// Guests of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// Its name; guests are `name-1`, `name-2`, ...
    pub name: String,
    /// How many.
    pub count: u32,
    /// Memory of each, MiB.
    pub memory_mib: u64,
    /// Kernel: a series such as `6.12`, a package's name or a path with a slash; the usual one if absent.
    pub kernel: Option<String>,
    /// Debian packages from which the workload's files come.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Files and directories of these packages that the guest gets.
    #[serde(default)]
    pub files: Vec<String>,
    /// Whether the host may merge its memory.
    #[serde(default = "yes")]
    pub mergeable: bool,
    /// What it does.
    pub workload: WorkloadSpec,
}

fn yes() -> bool {
    true
}

/// What a guest does.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum WorkloadSpec {
    /// Nothing.
    Idle,
    /// A buffer of equal pages, rewritten with what is there.
    Synthetic {
        /// Its size, MiB.
        buffer_mib: u64,
        /// Writes per cycle, of the number of its pages.
        write_rate: Rate,
        /// Between cycles, seconds.
        sleep: f64,
    },
    /// MariaDB under the load of its own load generator.
    Database {
        /// Clients at once; scaled.
        clients: u32,
        /// Repetitions of a run; scaled.
        iterations: u32,
        /// Queries of each client in a run; scaled.
        queries_per_client: u32,
        /// The storage engine.
        engine: String,
        /// InnoDB's buffer pool, MiB; scaled.
        buffer_pool_mib: u64,
    },
    /// A command of the guest's files, again and again.
    Command {
        /// The program's path and arguments.
        command: Vec<String>,
        /// Between two runs, seconds.
        #[serde(default)]
        sleep: f64,
    },
}

/// One run of the experiment, by what is different in it.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseSpec {
    /// Its name.
    pub name: String,
    /// Of synthetic workloads.
    pub write_rate: Option<Rate>,
    /// Settings over the experiment's.
    #[serde(default)]
    pub ksm: BTreeMap<String, toml::Value>,
    /// In place of the experiment's.
    pub start: Option<StartSpec>,
}

/// A published figure: what others measured in a case, MB.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// Where it is from.
    pub source: String,
    /// The case that repeats it; the only one if absent.
    pub case: Option<String>,
    /// All guests' memory.
    pub memory: u64,
    /// Distinct contents without zeros.
    pub minimum: u64,
    /// Repeats within guests.
    pub intra: u64,
    /// Further repeats across guests.
    pub inter: u64,
    /// What was taken with sharing.
    pub used_with_sharing: u64,
    /// And without.
    pub used_without: u64,
}

impl Spec {
    /// The experiment in a file.
    ///
    /// # Errors
    /// If it cannot be read, has a field that no experiment has, or a value that makes no sense.
    pub fn read(path: &Path) -> Result<Spec, SpecError> {
        let text =
            std::fs::read_to_string(path).map_err(|source| SpecError::Read { path: path.into(), source })?;
        Spec::parse(path, &text)
    }

    /// The experiment in a file's text; `path` is for messages.
    ///
    /// # Errors
    /// As [`Spec::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Spec, SpecError> {
        let spec: Spec =
            toml::from_str(text).map_err(|e| SpecError::Toml { path: path.into(), text: e.to_string() })?;
        spec.check().map_err(|(field, why)| SpecError::Field { path: path.into(), field, why })?;
        Ok(spec)
    }

    fn check(&self) -> Result<(), (String, String)> {
        let wrong = |field: &str, why: &str| Err((field.to_owned(), why.to_owned()));
        let seconds = |field: &str, s: f64| {
            if s > 0.0 && s <= 1e6 { Ok(()) } else { wrong(field, "not a number of seconds above 0") }
        };
        seconds("time.length", self.time.length)?;
        seconds("time.sample", self.time.sample)?;
        if self.time.sample > self.time.length {
            return wrong("time.sample", "longer than time.length");
        }
        for at in &self.time.potential {
            seconds("time.potential", *at)?;
            if *at > self.time.length {
                return wrong("time.potential", "after time.length");
            }
        }
        if self.guests.is_empty() {
            return wrong("guest", "there must be one");
        }
        let mut all = 0u32;
        for (n, g) in self.guests.iter().enumerate() {
            let field = |name: &str| format!("guest[{n}].{name}");
            let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
            if g.name.is_empty() || !g.name.chars().all(plain) {
                return wrong(&field("name"), "not letters, digits, `-`, `_` and `.` alone");
            }
            if self.guests[..n].iter().any(|o| o.name == g.name) {
                return wrong(&field("name"), "another guest has it");
            }
            all = all.saturating_add(g.count);
            if g.count == 0 || all > MOST_GUESTS {
                return wrong(&field("count"), "not from 1 to 256 in all");
            }
            if !(SMALLEST_MIB..=1 << 20).contains(&g.memory_mib) {
                return wrong(&field("memory_mib"), "not from 96 to 1048576");
            }
            if !g.files.is_empty() && g.packages.is_empty() {
                return wrong(&field("files"), "files come out of packages: name them in `packages`");
            }
            match &g.workload {
                WorkloadSpec::Synthetic { buffer_mib, sleep, write_rate } => {
                    if *buffer_mib == 0 || *buffer_mib >= g.memory_mib {
                        return wrong(&field("workload.buffer_mib"), "not above 0 and below memory_mib");
                    }
                    if !(0.0..=1e6).contains(sleep) {
                        return wrong(&field("workload.sleep"), "not a number of seconds");
                    }
                    if write_rate.value() > 1000.0 {
                        return wrong(&field("workload.write_rate"), "above 1000 writes per page");
                    }
                }
                WorkloadSpec::Database { clients, iterations, queries_per_client, engine, .. } => {
                    if [clients, iterations, queries_per_client].iter().any(|n| **n == 0) {
                        return wrong(
                            &field("workload"),
                            "clients, iterations and queries_per_client are above 0",
                        );
                    }
                    if engine.is_empty() || !engine.chars().all(|c| c.is_ascii_alphanumeric()) {
                        return wrong(&field("workload.engine"), "not an engine's name");
                    }
                }
                WorkloadSpec::Command { command, sleep } => {
                    if !command.first().is_some_and(|c| c.starts_with('/')) {
                        return wrong(&field("workload.command"), "does not begin with an absolute path");
                    }
                    if command.iter().any(|c| c == "--" || c.contains('\0')) {
                        return wrong(&field("workload.command"), "has a word `--`, or a NUL byte");
                    }
                    if !(0.0..=1e6).contains(sleep) {
                        return wrong(&field("workload.sleep"), "not a number of seconds");
                    }
                }
                WorkloadSpec::Idle => {}
            }
        }
        settings(&self.ksm).map_err(|(name, why)| (format!("ksm.{name}"), why))?;
        self.start.check("start")?;
        for (n, c) in self.cases.iter().enumerate() {
            let field = |name: &str| format!("case[{n}].{name}");
            if c.name.is_empty() || self.cases[..n].iter().any(|o| o.name == c.name) {
                return wrong(&field("name"), "empty, or another case has it");
            }
            settings(&c.ksm).map_err(|(name, why)| (field(&format!("ksm.{name}")), why))?;
            if let Some(start) = &c.start {
                start.check(&field("start"))?;
            }
            let synthetic = |g: &GuestSpec| matches!(g.workload, WorkloadSpec::Synthetic { .. });
            if c.write_rate.is_some() && !self.guests.iter().any(synthetic) {
                return wrong(&field("write_rate"), "no guest has a synthetic workload");
            }
        }
        for (n, p) in self.published.iter().enumerate() {
            if let Some(case) = &p.case {
                if !self.cases.iter().any(|c| c.name == *case) {
                    return wrong(&format!("published[{n}].case"), "there is no such case");
                }
            }
        }
        Ok(())
    }

    /// The plan at a scale; `only` names the cases that are run, all if empty.
    ///
    /// # Errors
    /// If a guest becomes too small, or there is no such case.
    pub fn plan(&self, path: &Path, scale: Scale, only: &[String]) -> Result<Plan, SpecError> {
        let mut guests = Vec::new();
        for (kind, g) in self.guests.iter().enumerate() {
            let mib = scaled(g.memory_mib, scale, STEP_MIB);
            if mib < SMALLEST_MIB {
                let guest = g.name.clone();
                return Err(SpecError::TooSmall { path: path.into(), guest, mib, scale });
            }
            guests.extend((1..=g.count).map(|n| PlannedGuest {
                name: format!("{}-{n}", g.name),
                kind,
                memory_mib: mib,
                mergeable: g.mergeable,
            }));
        }
        let one = [CaseSpec { name: "all".into(), ..CaseSpec::default() }];
        let cases = if self.cases.is_empty() { &one[..] } else { &self.cases[..] };
        if let Some(name) = only.iter().find(|n| !cases.iter().any(|c| c.name == **n)) {
            let known = cases.iter().map(|c| c.name.clone()).collect();
            return Err(SpecError::NoCase { path: path.into(), name: name.clone(), known });
        }
        let factor = scale.value();
        let seconds = |s: f64| Duration::from_secs_f64(s * factor);
        let cases = cases
            .iter()
            .filter(|c| only.is_empty() || only.contains(&c.name))
            .map(|c| {
                let mut ksm = self.ksm.clone();
                ksm.extend(c.ksm.clone());
                let mut start = c.start.clone().unwrap_or(self.start.clone());
                if let Some(tuner) = &mut start.tuner {
                    tuner.every *= factor;
                }
                PlannedCase {
                    name: c.name.clone(),
                    ksm: settings(&ksm).expect("checked when read"),
                    start,
                    workloads: self
                        .guests
                        .iter()
                        .map(|g| Workload::of(&g.workload, c.write_rate, scale))
                        .collect(),
                }
            })
            .collect();
        let all = guests.iter().map(|g| g.memory_mib).sum();
        Ok(Plan {
            spec: self.clone(),
            scale,
            budget_mib: self.host_memory_mib.map_or(all, |m| scaled(m, scale, STEP_MIB)),
            length: seconds(self.time.length),
            sample: seconds(self.time.sample).max(Duration::from_millis(100)),
            potential: {
                let mut at: Vec<Duration> = self.time.potential.iter().map(|s| seconds(*s)).collect();
                at.sort();
                at
            },
            guests,
            cases,
        })
    }
}

impl StartSpec {
    fn check(&self, field: &str) -> Result<(), (String, String)> {
        if self.free_below.is_some_and(|f| !(0.0..=1.0).contains(&f)) {
            return Err((format!("{field}.free_below"), "not a share from 0 to 1".into()));
        }
        let Some(t) = self.tuner else { return Ok(()) };
        if self.free_below.is_none() {
            return Err((format!("{field}.tuner"), "needs free_below to tell pressure".into()));
        }
        let well = t.min > 0 && t.min <= t.max && t.max <= 1 << 24 && t.every > 0.0 && t.every <= 1e6;
        let well = well && t.boost <= t.max && t.decay <= t.max;
        if well {
            Ok(())
        } else {
            Err((format!("{field}.tuner"), "min, max, boost, decay or every is out of range".into()))
        }
    }
}

/// KSM's settings out of TOML: numbers, yes or no, or the kernel's words.
fn settings(values: &BTreeMap<String, toml::Value>) -> Result<Settings, (String, String)> {
    let mut settings = Settings::default();
    for (name, value) in values {
        let text = match value {
            toml::Value::Integer(n) => n.to_string(),
            toml::Value::Boolean(b) => u8::from(*b).to_string(),
            toml::Value::String(s) => s.clone(),
            _ => return Err((name.clone(), "neither a number nor a word".into())),
        };
        if name == "run" {
            return Err((name.clone(), "is set by the experiment: see `start`".into()));
        }
        settings.put_text(name, &text).map_err(|e| (name.clone(), e.to_string()))?;
    }
    Ok(settings)
}

/// n times the scale, at least one step.
fn scaled(n: u64, scale: Scale, step: u64) -> u64 {
    let n = u128::from(n) * u128::from(scale.of) / u128::from(scale.parts);
    (u64::try_from(n).unwrap_or(u64::MAX) / step * step).max(step)
}

/// An experiment in this machine's sizes and times.
#[derive(Debug, Clone)]
pub struct Plan {
    /// What it comes from.
    pub spec: Spec,
    /// At this scale.
    pub scale: Scale,
    /// Memory of the imagined host, MiB.
    pub budget_mib: u64,
    /// How long a case takes once all workloads are ready.
    pub length: Duration,
    /// Between samples.
    pub sample: Duration,
    /// When the potential is counted, in order, after that.
    pub potential: Vec<Duration>,
    /// All guests.
    pub guests: Vec<PlannedGuest>,
    /// All cases.
    pub cases: Vec<PlannedCase>,
}

/// One guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct PlannedGuest {
    /// Its name.
    pub name: String,
    /// Index of its kind.
    pub kind: usize,
    /// Its memory, MiB.
    pub memory_mib: u64,
    /// Whether KSM may merge it.
    pub mergeable: bool,
}

/// One case.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedCase {
    /// Its name.
    pub name: String,
    /// KSM's settings.
    pub ksm: Settings,
    /// When KSM runs.
    pub start: StartSpec,
    /// What each kind of guest does.
    pub workloads: Vec<Workload>,
}

/// What a guest does, in this run's sizes.
#[derive(Debug, Clone, PartialEq)]
#[allow(missing_docs)] // as in [`WorkloadSpec`], in bytes and milliseconds
pub enum Workload {
    Idle,
    Synthetic { bytes: u64, rate: Rate, sleep_ms: u64 },
    Database { clients: u32, iterations: u32, queries: u64, engine: String, pool_mib: u64 },
    Command { command: Vec<String>, sleep_ms: u64 },
}

impl Workload {
    fn of(spec: &WorkloadSpec, rate: Option<Rate>, scale: Scale) -> Workload {
        let count = |n: u32| scaled(u64::from(n), scale, 1) as u32;
        let ms = |s: f64| (s * scale.value() * 1000.0).round() as u64;
        match spec {
            WorkloadSpec::Idle => Workload::Idle,
            WorkloadSpec::Synthetic { buffer_mib, write_rate, sleep } => Workload::Synthetic {
                bytes: scaled(buffer_mib << 20, scale, 4096),
                rate: rate.unwrap_or(*write_rate),
                sleep_ms: ms(*sleep),
            },
            WorkloadSpec::Database { clients, iterations, queries_per_client, engine, buffer_pool_mib } => {
                let clients = count(*clients);
                Workload::Database {
                    clients,
                    iterations: count(*iterations),
                    queries: u64::from(clients) * u64::from(count(*queries_per_client)),
                    engine: engine.clone(),
                    // InnoDB takes no less than 5 MiB.
                    pool_mib: scaled(*buffer_pool_mib, scale, 1).max(5),
                }
            }
            WorkloadSpec::Command { command, sleep } => {
                Workload::Command { command: command.clone(), sleep_ms: ms(*sleep) }
            }
        }
    }

    /// In words, for tables and reports.
    pub fn words(&self) -> String {
        match self {
            Workload::Idle => "idle".into(),
            Workload::Synthetic { bytes, rate, sleep_ms } => format!(
                "{} MiB of equal pages, write rate {rate}, {} s between cycles",
                bytes >> 20,
                *sleep_ms as f64 / 1000.0
            ),
            Workload::Database { clients, iterations, queries, engine, pool_mib } => format!(
                "MariaDB ({engine}, buffer pool {pool_mib} MiB), {clients} clients, {queries} queries, {iterations} times, again and again"
            ),
            Workload::Command { command, .. } => command.join(" "),
        }
    }
}

#[cfg(test)]
#[path = "spec_tests.rs"]
mod tests;
