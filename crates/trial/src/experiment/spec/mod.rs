// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An experiment as its author writes it ([`Spec`]), and the plan at a scale ([`Plan`]).
//!
//! Sizes and times in the file are those of the published setting, or of the author's machine. A scale s
//! multiplies memory by s. KSM at the same rate then takes s times as long for a pass, so times are
//! multiplied by s too, and what happens between two passes stays in proportion.
//! Counts (guests, write rates, thresholds, KSM's settings) are not scaled.

mod error;
mod plan;
mod rate;
mod validate;

pub use error::SpecError;
pub use plan::{Plan, PlannedCase, PlannedGuest, Workload};
pub use rate::{Rate, Scale};

use bifold_trace::bounded;
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::Path;

/// The smallest guest that boots Debian's kernel with room for a workload, MiB.
pub const SMALLEST_MIB: u64 = 96;
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
    /// A buffer of equal pages, rewritten with the contents that it has.
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
        let text = bounded::read_to_string(path, bounded::TEXT)
            .map_err(|source| SpecError::Read { path: path.into(), source })?;
        Spec::parse(path, &text)
    }

    /// The experiment in a file's text; `path` is for messages.
    ///
    /// # Errors
    /// As [`Spec::read`].
    pub fn parse(path: &Path, text: &str) -> Result<Spec, SpecError> {
        let spec: Spec =
            toml::from_str(text).map_err(|e| SpecError::Toml { path: path.into(), text: e.to_string() })?;
        spec.validate().map_err(|(field, why)| SpecError::Field { path: path.into(), field, why })?;
        Ok(spec)
    }
}

#[cfg(test)]
mod tests;
