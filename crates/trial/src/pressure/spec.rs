// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads an experiment's file.

use crate::experiment::SpecError;
use crate::experiment::spec::{Refusal, parsed, refuse, text_of};
use bifold_reclaim::{PolicyName, Setting};
use schemars::JsonSchema;
use serde::de::Error as _;
use serde::{Deserialize, Deserializer, Serialize, Serializer};
use std::path::Path;

/// The smallest guest that boots Debian's kernel with room for a load, MiB.
const SMALLEST_MIB: u64 = 96;
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
        if let Some(name) = names.iter().find(|n| !self.cases.iter().any(|c| c.name == **n)) {
            let known = self.cases.iter().map(|c| c.name.clone()).collect();
            return Err(SpecError::NoCase { path: path.into(), name: name.clone(), known });
        }
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
            c.memory_mib.map_or(Ok(()), |mib| size(field("memory_mib"), mib))?;
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
mod tests {
    use super::*;

    const GOOD: &str = "title = 'x'\nhost_memory_mib = 500\n[time]\nlength = 10\ninterval = 1\n\
        [[guest]]\nname = 'a'\ncount = 2\nmemory_mib = 256\nleast_mib = 100\nahead = 2.5\n\
        phases = [{ seconds = 5, memory_mib = 100, rate = 10 }]\n\
        [[case]]\nname = 'all'\n[[case]]\nname = 'equal'\npolicy = 'equal'\nreporting = true\n";

    fn parse(text: &str) -> Result<Spec, SpecError> {
        Spec::parse(Path::new("x.toml"), text)
    }

    #[test]
    fn a_file_becomes_guests_and_cases() {
        let spec = parse(GOOD).unwrap();
        let guests = spec.plan();
        assert_eq!((guests[1].name.as_str(), guests[1].shift_ms), ("a-2", 2500));
        assert_ne!(guests[0].seed, guests[1].seed);
        assert!(spec.cases[0].takes_nothing() && !spec.cases[1].takes_nothing());
        assert_eq!(spec.cases[1].words(), "free page reporting, balloons by equal");
        let one = spec.clone().only(Path::new("x.toml"), &["equal".into()]).unwrap();
        assert_eq!(one.cases.len(), 1);
        let none = spec.only(Path::new("x.toml"), &["no".into()]).unwrap_err().to_string();
        assert_eq!(none, "x.toml: has no case `no`; it has all, equal");
    }

    #[test]
    fn the_experiments_that_ship_are_well() {
        let dir = Path::new(env!("CARGO_MANIFEST_DIR")).join("../../experiments/reclaim");
        let specs: Vec<Spec> =
            std::fs::read_dir(dir).unwrap().map(|file| Spec::read(&file.unwrap().path()).unwrap()).collect();
        assert_eq!(specs.len(), 3);
        assert!(specs.iter().all(|spec| spec.cases[0].takes_nothing()), "progress needs a reference");
    }

    #[test]
    fn an_invalid_value_is_refused_with_its_field() {
        for (from, to, said) in [
            ("length = 10", "length = 0", "time.length: not a number of seconds from 1"),
            ("length = 10", "length = nan", "time.length"),
            ("interval = 1", "interval = 11", "time.interval: longer"),
            ("interval = 1", "interval = 0.5", "time.interval: not"),
            ("host_memory_mib = 500", "host_memory_mib = 199", "host_memory_mib: not from 200"),
            ("count = 2", "count = 65", "guest[0].count"),
            ("name = 'a'", "name = 'a,b'", "guest[0].name"),
            ("memory_mib = 256", "memory_mib = 64", "guest[0].memory_mib"),
            ("least_mib = 100", "least_mib = 257", "guest[0].least_mib"),
            ("memory_mib = 100,", "memory_mib = 300,", "guest[0].phases[0].memory_mib"),
            ("memory_mib = 100,", "memory_mib = 100, used_mib = 101,", "guest[0].phases[0].used_mib"),
            ("seconds = 5,", "seconds = 0,", "guest[0].phases[0].seconds"),
            ("rate = 10", "rate = 2000000", "guest[0].phases[0].rate"),
            ("rate = 10", "rate = 10, speed = 1", "unknown field `speed`"),
            (
                "policy = 'equal'",
                "policy = 'oracle'",
                "`oracle` is no policy for guests that run: use none, equal",
            ),
            ("name = 'equal'", "name = 'all'", "case[1].name"),
            ("reporting = true", "size_mib = 200", "case[1].size_mib: the case has a policy"),
            ("policy = 'equal'", "size_mib = 300", "case[1].size_mib: not above 0"),
            ("policy = 'equal'", "memory_mib = 64", "case[1].memory_mib"),
            ("policy = 'equal'", "host_memory_mib = 64", "case[1].host_memory_mib: not from 200"),
            ("title = 'x'", "title = 'x'\ndisk_us = 1000001", "disk_us: above"),
            ("title = 'x'", "title = 'x'\nrepetitions = 0", "repetitions: not from 1"),
        ] {
            let text = GOOD.replacen(from, to, 1);
            assert_ne!(text, GOOD);
            let e = parse(&text).unwrap_err().to_string();
            assert!(e.starts_with("x.toml: ") && e.contains(said), "{to}: {e}");
        }
    }
}
