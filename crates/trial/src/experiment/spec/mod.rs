// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads an experiment's file ([`Spec`]) and scales it to this machine ([`Plan`]).
//!
//! Sizes and times in the file are those of the published setting, or of the author's machine. A scale s
//! multiplies memory by s. KSM at the same rate then takes s times as long for a pass, so times are
//! multiplied by s too, and events between two passes stay in proportion. Counts (guests, write rates,
//! thresholds, KSM's settings) are not scaled.

mod plan;
mod validate;

pub use plan::{Plan, PlannedCase, PlannedGuest, Workload};

use crate::rate::{Rate, Scale};
use crate::spec::{SpecError, parsed, text_of};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// An experiment's file.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// The title, in one line.
    pub title: String,
    /// What the experiment is about, and how it differs from the one that it repeats.
    #[serde(default)]
    pub about: String,
    /// Memory of the imagined host in MiB, to which thresholds refer. Default: the memory of all guests.
    pub host_memory_mib: Option<u64>,
    /// Whether the host backs guests with huge pages.
    #[serde(default)]
    pub host_huge_pages: bool,
    /// Times of the run.
    pub time: TimeSpec,
    /// KSM's settings by the kernel's names.
    #[serde(default)]
    pub ksm: BTreeMap<String, toml::Value>,
    /// When KSM runs, and how many pages it scans.
    #[serde(default)]
    pub start: StartSpec,
    /// Kinds of guests.
    #[serde(rename = "guest")]
    pub guests: Vec<GuestSpec>,
    /// Variants of the run. Without cases there is one run without changes.
    #[serde(default, rename = "case")]
    pub cases: Vec<CaseSpec>,
    /// Published figures for comparison.
    #[serde(default)]
    pub published: Vec<Published>,
}

/// Times, in seconds.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TimeSpec {
    /// Length of the run, from the time when all workloads are ready.
    pub length: f64,
    /// Time between samples.
    pub sample: f64,
    /// Times at which guests are paused and the potential is counted, from the time when all workloads are
    /// ready.
    #[serde(default)]
    pub potential: Vec<f64>,
}

/// When KSM runs.
#[derive(Debug, Clone, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct StartSpec {
    /// KSM runs while less than this share of the host's memory would be free without sharing. Default:
    /// always.
    pub free_below: Option<f64>,
    /// How the number of pages per wake-up follows the memory pressure. Default: the number is fixed.
    pub tuner: Option<TunerSpec>,
}

/// ksmtuned's rule.
#[derive(Debug, Clone, Copy, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct TunerSpec {
    /// Seconds between two changes.
    pub every: f64,
    /// Pages added while free memory is below the threshold.
    pub boost: u64,
    /// Pages removed while free memory is above the threshold.
    pub decay: u64,
    /// Fewest pages per wake-up.
    pub min: u64,
    /// Most pages per wake-up.
    pub max: u64,
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
    /// Kernel: a series such as `6.12`, a package's name or a path with a slash. Default: the default of
    /// captures.
    pub kernel: Option<String>,
    /// Debian packages with the workload's files.
    #[serde(default)]
    pub packages: Vec<String>,
    /// Files and directories of these packages that go into the guest.
    #[serde(default)]
    pub files: Vec<String>,
    /// Whether KSM may merge the guest's memory.
    #[serde(default = "yes")]
    pub mergeable: bool,
    /// The workload.
    pub workload: WorkloadSpec,
}

fn yes() -> bool {
    true
}

/// A guest's workload.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields, tag = "kind", rename_all = "kebab-case")]
pub enum WorkloadSpec {
    /// No workload.
    Idle,
    /// A buffer of equal pages, which is rewritten with the same contents.
    Synthetic {
        /// Size of the buffer, MiB.
        buffer_mib: u64,
        /// Writes per cycle, as a share of the buffer's pages.
        write_rate: Rate,
        /// Pause between cycles, seconds.
        sleep: f64,
    },
    /// MariaDB under its own load generator.
    Database {
        /// Number of clients at a time; scaled.
        clients: u32,
        /// Repetitions within a run; scaled.
        iterations: u32,
        /// Queries per client and run; scaled.
        queries_per_client: u32,
        /// The storage engine.
        engine: String,
        /// InnoDB's buffer pool, MiB; scaled.
        buffer_pool_mib: u64,
    },
    /// A command from the guest's files, run repeatedly.
    Command {
        /// The program's path and arguments.
        command: Vec<String>,
        /// Pause between two runs, seconds.
        #[serde(default)]
        sleep: f64,
    },
}

/// A variant of the run: what differs from the experiment.
#[derive(Debug, Clone, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct CaseSpec {
    /// The case's name.
    pub name: String,
    /// Write rate of synthetic workloads.
    pub write_rate: Option<Rate>,
    /// KSM's settings that differ from the experiment's.
    #[serde(default)]
    pub ksm: BTreeMap<String, toml::Value>,
    /// Replaces the experiment's `start`.
    pub start: Option<StartSpec>,
}

/// Published figures of a case, in MB.
#[derive(Debug, Clone, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Published {
    /// The publication.
    pub source: String,
    /// The case that repeats the measurement. Default: the only case.
    pub case: Option<String>,
    /// Memory of all guests.
    pub memory: u64,
    /// Distinct contents without zeros.
    pub minimum: u64,
    /// Repeats within guests.
    pub intra: u64,
    /// Further repeats across guests.
    pub inter: u64,
    /// Memory used with sharing.
    pub used_with_sharing: u64,
    /// Memory used without sharing.
    pub used_without: u64,
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
}

#[cfg(test)]
mod tests;
