// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads an experiment's file.

use crate::spec::{Refusal, SMALLEST_MIB, SpecError, known, parsed, refuse, text_of};
use bifold_reclaim::{PolicyName, Setting};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::Path;

const LARGEST_MIB: u64 = 1 << 16;
/// Most guests of an experiment.
const MOST_GUESTS: u32 = 64;
/// Most phases of a load, as of the load's program.
const MOST_PHASES: usize = 64;
const MOST_DISK_US: u64 = 1_000_000;
const MOST_SECONDS: f64 = 1e6;
const MOST_REPETITIONS: u32 = 100;
/// Statistics of a balloon come each second.
const LEAST_INTERVAL: f64 = 1.0;
/// The word for no policy.
const NONE: &str = "none";

/// An experiment's file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The title, in one line.
    pub title: String,
    /// What the experiment is about.
    #[serde(default)]
    pub about: String,
    /// What all guests may have in the host's memory together, MiB.
    pub host_memory_mib: u64,
    /// Time that a guest's disk takes to read, microseconds. Default: that of `reclaim show --refault-us`.
    #[serde(default = "disk_us")]
    pub disk_us: u64,
    /// For the loads' random order.
    #[serde(default)]
    pub seed: u32,
    /// How often all cases run, one repetition after the other.
    #[serde(default = "one")]
    pub repetitions: u32,
    /// Times of the run.
    pub time: TimeSpec,
    /// Kinds of guests.
    #[serde(rename = "guest")]
    pub guests: Vec<GuestSpec>,
    /// How memory is taken back, one run of the guests each.
    #[serde(rename = "case")]
    pub cases: Vec<CaseSpec>,
}

fn disk_us() -> u64 {
    (Setting::NVME_S * 1e6).round() as u64
}

fn one() -> u32 {
    1
}

/// Times, in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeSpec {
    /// Length of a case, from the time when all loads begin.
    pub length: f64,
    /// Time between samples, and between decisions of a policy.
    pub interval: f64,
}

/// Guests of one kind.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct GuestSpec {
    /// The kind's name. Guests are called `name-1`, `name-2`, ...
    pub name: String,
    /// Number of guests.
    pub count: u32,
    /// Memory of each guest, MiB.
    pub memory_mib: u64,
    /// The least that a policy may give it, MiB.
    pub least_mib: u64,
    /// Its own swap on a disk, MiB. Default: none.
    #[serde(default)]
    pub swap_mib: u64,
    /// Kernel: a series such as `6.12`, a package's name or a path with a slash.
    #[serde(default = "series")]
    pub kernel: String,
    /// Each guest of the kind is so many seconds ahead of the one before in the phases.
    #[serde(default)]
    pub ahead: f64,
    /// The load, which repeats these.
    pub phases: Vec<Phase>,
}

fn series() -> String {
    "6.1".into()
}

/// A phase of a load.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Phase {
    /// Its length.
    pub seconds: f64,
    /// What the load holds, MiB.
    pub memory_mib: u64,
    /// The part of it that operations use, MiB. Default: all of it.
    pub used_mib: Option<u64>,
    /// Size of the files of which each second operation reads a MiB. Default: none are read.
    #[serde(default)]
    pub files_mib: u64,
    /// Most operations in a second; 0 for none.
    pub rate: u32,
}

/// How memory is taken back in a run of the guests.
#[derive(Debug, Clone, Deserialize, Serialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct CaseSpec {
    /// The case's name.
    pub name: String,
    /// Whether guests report free pages.
    #[serde(default)]
    pub reporting: bool,
    /// Whether KSM merges the guests' pages.
    #[serde(default)]
    pub sharing: bool,
    /// Whether the host pages out what guests have beyond the host's size.
    #[serde(default)]
    pub paging: bool,
    /// The policy that orders balloons; `none` if none does.
    #[serde(default, deserialize_with = "policy", serialize_with = "policy_word")]
    #[schemars(with = "String")]
    pub policy: Option<PolicyName>,
    /// Size that balloons give each guest, in place of a policy's; null for no such size. Unit: MiB.
    pub size_mib: Option<u64>,
    /// Memory that each guest starts with in place of its own; null for its own. Unit: MiB.
    pub memory_mib: Option<u64>,
    /// The host's size in this case in place of the experiment's; null for the experiment's. Unit: MiB.
    pub host_memory_mib: Option<u64>,
}

impl CaseSpec {
    /// Whether nothing is taken back: guests have all of their memory.
    pub fn takes_nothing(&self) -> bool {
        !self.reporting && !self.sharing && !self.paging && !self.orders_sizes() && self.memory_mib.is_none()
    }

    /// The host's size in this case of an experiment, MiB.
    pub fn host_mib(&self, spec: &Spec) -> u64 {
        self.host_memory_mib.unwrap_or(spec.host_memory_mib)
    }

    /// Whether balloons are ordered.
    pub fn orders_sizes(&self) -> bool {
        self.policy.is_some() || self.size_mib.is_some()
    }

    /// The ways, as text.
    pub fn words(&self) -> String {
        let ways = [
            self.reporting.then(|| "free page reporting".to_owned()),
            self.sharing.then(|| "KSM".to_owned()),
            self.paging.then(|| "paging by the host".to_owned()),
            self.policy.map(|p| format!("balloons by {}", p.name())),
            self.size_mib.map(|mib| format!("balloons that leave {mib} MiB")),
            self.memory_mib.map(|mib| format!("guests that start with {mib} MiB")),
            self.host_memory_mib.map(|mib| format!("a host of {mib} MiB")),
        ];
        let ways: Vec<String> = ways.into_iter().flatten().collect();
        if ways.is_empty() { "nothing is taken back".into() } else { ways.join(", ") }
    }
}

fn policy_word<S: Serializer>(policy: &Option<PolicyName>, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(policy.map_or(NONE, PolicyName::name))
}

fn policy<'de, D: Deserializer<'de>>(d: D) -> Result<Option<PolicyName>, D::Error> {
    let word = String::deserialize(d)?;
    let found = PolicyName::ON_LINE.into_iter().find(|p| p.name() == word);
    if found.is_some() || word == NONE {
        return Ok(found);
    }
    let known = PolicyName::ON_LINE.map(PolicyName::name).join(", ");
    let word = word.escape_debug();
    Err(D::Error::custom(format!("`{word}` is no policy for guests that run: use {NONE}, {known}")))
}

/// One guest.
#[derive(Debug, Clone, PartialEq)]
pub struct PlannedGuest {
    /// The guest's name.
    pub name: String,
    /// Index of its kind.
    pub kind: usize,
    /// How far it begins into the phases, in milliseconds.
    pub shift_ms: u64,
    /// For the random order of its load.
    pub seed: u64,
}

impl Spec {
    /// Reads an experiment's file.
    ///
    /// # Errors
    /// If the file cannot be read, or has an unknown field or an invalid value.
    pub fn read(path: &Path) -> Result<Spec, SpecError> {
        Spec::parse(path, &text_of(path)?)
    }

    /// Parses the text of an experiment's file; `path` is for messages.
    ///
    /// # Errors
    /// As [`Spec::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Spec, SpecError> {
        parsed(path, text, Spec::validate)
    }

    /// Keeps the cases with these names; all, if there are no names.
    ///
    /// # Errors
    /// If there is no such case.
    pub fn only(mut self, path: &Path, names: &[String]) -> Result<Spec, SpecError> {
        known(path, names, self.cases.iter().map(|c| &c.name))?;
        self.cases.retain(|c| names.is_empty() || names.contains(&c.name));
        Ok(self)
    }

    /// All guests.
    pub fn plan(&self) -> Vec<PlannedGuest> {
        let mut guests: Vec<PlannedGuest> = Vec::new();
        for (kind, g) in self.guests.iter().enumerate() {
            for n in 0..g.count {
                guests.push(PlannedGuest {
                    name: format!("{}-{}", g.name, n + 1),
                    kind,
                    shift_ms: (f64::from(n) * g.ahead * 1000.0).round() as u64,
                    seed: u64::from(self.seed) * u64::from(MOST_GUESTS) + guests.len() as u64,
                });
            }
        }
        guests
    }

    /// What the host has to page out at most in a case with paging, MiB.
    pub fn swap_mib(&self) -> u64 {
        let beyond = |c: &CaseSpec| {
            let ram = |g: &GuestSpec| u64::from(g.count) * c.memory_mib.unwrap_or(g.memory_mib);
            self.guests.iter().map(ram).sum::<u64>().saturating_sub(c.host_mib(self))
        };
        self.cases.iter().filter(|c| c.paging).map(beyond).max().unwrap_or(0)
    }

    /// The first invalid field, and what is wrong with it.
    fn validate(&self) -> Result<(), Refusal> {
        seconds("time.length", self.time.length, LEAST_INTERVAL)?;
        seconds("time.interval", self.time.interval, LEAST_INTERVAL)?;
        refuse(self.time.interval > self.time.length, "time.interval", "longer than time.length")?;
        let repeats = (1..=MOST_REPETITIONS).contains(&self.repetitions);
        refuse(!repeats, "repetitions", format!("not from 1 to {MOST_REPETITIONS}"))?;
        refuse(self.guests.is_empty(), "guest", "there must be one")?;
        (0..self.guests.len()).try_for_each(|n| self.validate_guest(n))?;
        let least: u64 = self.guests.iter().map(|g| u64::from(g.count) * g.least_mib).sum();
        let host = |field: String, mib: u64| {
            let fits = (least..=LARGEST_MIB * u64::from(MOST_GUESTS)).contains(&mib);
            refuse(!fits, field, format!("not from {least}, the guests' least_mib together, to 4194304"))
        };
        host("host_memory_mib".into(), self.host_memory_mib)?;
        refuse(self.disk_us > MOST_DISK_US, "disk_us", format!("above {MOST_DISK_US}"))?;
        refuse(self.cases.is_empty(), "case", "there must be one")?;
        for (n, c) in self.cases.iter().enumerate() {
            let field = |name: &str| format!("case[{n}].{name}");
            let named = !c.name.is_empty() && self.cases[..n].iter().all(|o| o.name != c.name);
            refuse(!named, field("name"), "empty, or another case has it")?;
            let both = c.policy.is_some() && c.size_mib.is_some();
            refuse(both, field("size_mib"), "the case has a policy, which decides the size")?;
            let smallest = self.guests.iter().map(|g| g.memory_mib).min().unwrap_or(0);
            let most = c.memory_mib.unwrap_or(smallest);
            let beyond = c.size_mib.is_some_and(|size| size == 0 || size > most);
            refuse(beyond, field("size_mib"), "not above 0 and at most the guests' memory")?;
            c.host_memory_mib.map_or(Ok(()), |mib| host(field("host_memory_mib"), mib))?;
            let Some(mib) = c.memory_mib else { continue };
            size(field("memory_mib"), mib)?;
            if let Some((m, g)) = self.guests.iter().enumerate().find(|(_, g)| g.least_mib > mib) {
                let why = format!("below guest[{m}].least_mib, which is {}", g.least_mib);
                refuse(true, field("memory_mib"), why)?;
            }
        }
        Ok(())
    }

    /// The first invalid field of a guest.
    fn validate_guest(&self, n: usize) -> Result<(), Refusal> {
        let (g, before) = (&self.guests[n], &self.guests[..n]);
        let field = |name: &str| format!("guest[{n}].{name}");
        let plain = |c: char| c.is_ascii_alphanumeric() || "-_.".contains(c);
        let named = !g.name.is_empty() && g.name.len() <= 40 && g.name.chars().all(plain);
        refuse(!named, field("name"), "not 1 to 40 letters, digits, `-`, `_` and `.`")?;
        refuse(before.iter().any(|o| o.name == g.name), field("name"), "another guest has it")?;
        let all = before.iter().fold(g.count, |all, o| all.saturating_add(o.count));
        let many = g.count == 0 || all > MOST_GUESTS;
        refuse(many, field("count"), format!("not from 1 to {MOST_GUESTS} in all"))?;
        size(field("memory_mib"), g.memory_mib)?;
        let beyond = g.least_mib == 0 || g.least_mib > g.memory_mib;
        refuse(beyond, field("least_mib"), "not above 0 and at most memory_mib")?;
        refuse(g.swap_mib > LARGEST_MIB, field("swap_mib"), format!("above {LARGEST_MIB}"))?;
        let no_kernel = g.kernel.is_empty() || g.kernel.contains('\0');
        refuse(no_kernel, field("kernel"), "not a series such as \"6.1\", a package or a path")?;
        seconds(field("ahead"), g.ahead, 0.0)?;
        let phases = (1..=MOST_PHASES).contains(&g.phases.len());
        refuse(!phases, field("phases"), format!("not 1 to {MOST_PHASES} of them"))?;
        for (m, p) in g.phases.iter().enumerate() {
            let field = |name: &str| field(&format!("phases[{m}].{name}"));
            seconds(field("seconds"), p.seconds, 0.1)?;
            let beyond = p.memory_mib > g.memory_mib + g.swap_mib;
            refuse(beyond, field("memory_mib"), "above the guest's memory_mib and swap_mib together")?;
            let beyond = p.used_mib.is_some_and(|used| used > p.memory_mib);
            refuse(beyond, field("used_mib"), "above the phase's memory_mib")?;
            refuse(p.files_mib > LARGEST_MIB, field("files_mib"), format!("above {LARGEST_MIB}"))?;
            refuse(p.rate > 1_000_000, field("rate"), "above 1000000 operations a second")?;
        }
        Ok(())
    }
}

fn seconds(field: impl Into<String>, s: f64, least: f64) -> Result<(), Refusal> {
    let within = s >= least && s <= MOST_SECONDS;
    refuse(!within, field, format!("not a number of seconds from {least} to {MOST_SECONDS}"))
}

fn size(field: String, mib: u64) -> Result<(), Refusal> {
    let within = (SMALLEST_MIB..=LARGEST_MIB).contains(&mib);
    refuse(!within, field, format!("not from {SMALLEST_MIB} to {LARGEST_MIB}"))
}

#[cfg(test)]
mod tests;
