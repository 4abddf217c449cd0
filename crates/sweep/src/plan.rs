// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tasks of a sweep.

use serde::{Deserialize, Serialize};
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// Name and version of the plan's schema.
pub(crate) const SCHEMA: &str = "bifold.sweep/1";

/// All tasks of a sweep, and what they have in common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Plan {
    pub(crate) schema: String,
    /// Version of Bifold that made the plan. Workers have the same.
    pub bifold: String,
    /// Folder in which commands run.
    pub folder: PathBuf,
    /// Axes with their values, in order.
    pub axes: Vec<(String, Vec<String>)>,
    /// Axes whose values repeat a measurement.
    pub repeats: Vec<String>,
    /// The tasks by number.
    pub tasks: Vec<Task>,
}

/// The verb of `bifold` that a task runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// `bifold compare`: its result is a document.
    #[default]
    Compare,
    /// `bifold share fingerprint`: its result is a directory.
    Fingerprint,
    /// `bifold share count` over the directories of all `Fingerprint` tasks: its result is a document.
    Count,
}

impl Verb {
    /// The verb as on a command line.
    pub fn words(self) -> &'static [&'static str] {
        match self {
            Verb::Compare => &["compare"],
            Verb::Fingerprint => &["share", "fingerprint"],
            Verb::Count => &["share", "count"],
        }
    }

    fn is_default(&self) -> bool {
        *self == Verb::default()
    }
}

/// A run of a verb of `bifold`.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Task {
    /// Number, from 0.
    pub number: usize,
    /// What it runs.
    #[serde(default, skip_serializing_if = "Verb::is_default")]
    pub verb: Verb,
    /// Name of the program, or of the guest whose pages get fingerprints.
    pub program: String,
    /// Axes with the task's values.
    pub settings: Vec<(String, String)>,
    /// Options of the verb, and a recording or image as the last of them.
    pub args: Vec<String>,
    /// The command that runs in a guest; empty for a recording or generator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Variables of the command's environment.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub env: Vec<(String, String)>,
}

impl Task {
    /// The value of an axis; none if the axis is not varied for this program.
    pub fn setting(&self, axis: &str) -> Option<&str> {
        self.settings.iter().find(|(name, _)| name == axis).map(|(_, value)| value.as_str())
    }

    /// The task in words: number, program and settings.
    pub fn words(&self) -> String {
        let settings = self.settings.iter().map(|(axis, value)| format!(" {axis}={value}"));
        format!("{:04} {}{}", self.number, self.program, settings.collect::<String>())
    }
}

impl Plan {
    pub(crate) fn new(
        folder: PathBuf,
        axes: Vec<(String, Vec<String>)>,
        repeats: Vec<String>,
        tasks: Vec<Task>,
    ) -> Plan {
        let bifold = env!("CARGO_PKG_VERSION").into();
        Plan { schema: SCHEMA.into(), bifold, folder, axes, repeats, tasks }
    }

    /// The tasks whose results a task reads.
    pub fn sources(&self, task: &Task) -> &[Task] {
        let written = self.tasks.iter().take_while(|t| t.verb == Verb::Fingerprint).count();
        if task.verb == Verb::Count { &self.tasks[..written] } else { &[] }
    }

    /// Whether the plan counts fingerprints, and has no results of `compare`.
    pub fn is_of_fingerprints(&self) -> bool {
        self.tasks.iter().any(|t| t.verb != Verb::Compare)
    }

    /// What tells this plan from every other: a hash of all of it, 16 hexadecimal digits.
    pub fn identity(&self) -> String {
        let bytes = serde_json::to_vec(self).expect("a plan has text and numbers alone");
        format!("{:016x}", xxh3_64(&bytes))
    }
}
