// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The tasks of a sweep.

use bifold_model::Profile;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::path::PathBuf;
use xxhash_rust::xxh3::xxh3_64;

/// Name and version of the plan's schema.
pub(crate) const SCHEMA: &str = "bifold.sweep/1";

/// What `bifold sweep new` writes into a sweep's folder: all tasks of the sweep, and what they have in
/// common.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Plan {
    /// Name and version of this schema.
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
    /// The hardware profiles of tasks, by their hashes; absent without any, as in plans of earlier versions.
    #[serde(default, skip_serializing_if = "BTreeMap::is_empty")]
    pub profiles: BTreeMap<String, Profile>,
}

/// The verb of `bifold` that a task runs.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "lowercase")]
pub enum Verb {
    /// `bifold compare`: the result is a document.
    #[default]
    Compare,
    /// `bifold share fingerprint`: the result is a directory.
    Fingerprint,
    /// `bifold share count` over the directories of all `fingerprint` tasks: the result is a document.
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
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Task {
    /// Number of the task, from 0.
    pub number: usize,
    /// The verb that the task runs; absent for `compare`.
    #[serde(default, skip_serializing_if = "Verb::is_default")]
    pub verb: Verb,
    /// Name of the program, or of the guest whose pages get fingerprints.
    pub program: String,
    /// Axes with the task's values.
    pub settings: Vec<(String, String)>,
    /// Options of the verb, and a recording or image as the last of them.
    pub args: Vec<String>,
    /// The hash of the hardware profile, which the plan has; absent for verbs other than `compare`, and in
    /// plans of earlier versions.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub profile: Option<String>,
    /// The command that runs in a guest, and its arguments; absent for a recording or generator.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub command: Vec<String>,
    /// Variables of the command's environment; absent without any.
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
        let bifold = bifold_base::version().into();
        Plan { schema: SCHEMA.into(), bifold, folder, axes, repeats, tasks, profiles: BTreeMap::new() }
    }

    /// Gives a task its hardware profile, in place of the options that name one.
    pub fn give_profile(&mut self, task: usize, profile: &Profile) {
        let hash = profile.hash();
        let task = &mut self.tasks[task];
        let mut names_profile = false;
        task.args.retain(|arg| {
            // An option and its value may be two words.
            let value = std::mem::replace(&mut names_profile, arg == "--profile");
            !value && arg != "--profile" && !arg.starts_with("--profile=")
        });
        task.profile = Some(hash.clone());
        self.profiles.entry(hash).or_insert_with(|| profile.clone());
    }

    /// The hardware profile of a task.
    pub fn profile(&self, task: &Task) -> Option<&Profile> {
        self.profiles.get(task.profile.as_ref()?)
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Spec;
    use std::path::Path;

    #[test]
    fn a_task_has_its_profile_s_values_in_place_of_its_name() {
        let text = "[programs.a]\ngenerate = 't'\noptions = ['--profile', 'zen4', '--fast', '--profile=zen4']\n\
                    [axes]\nseed = [1, 2]";
        let mut plan = Spec::plan_of(text, Path::new("s"), Path::new("/")).unwrap();
        let before = plan.identity();
        let zen4 = Profile::load("zen4", &["cpu.base_cpi=0.6".into()]).unwrap();
        (0..2).for_each(|task| plan.give_profile(task, &zen4));
        assert_eq!(plan.tasks[1].args, ["--fast", "--seed=2", "--generate=t"]);
        assert_eq!(plan.profiles.len(), 1);
        assert_ne!(plan.identity(), before);
        let read: Plan = serde_json::from_slice(&serde_json::to_vec(&plan).unwrap()).unwrap();
        let of_task = read.profile(&read.tasks[1]).unwrap();
        assert_eq!((of_task.hash(), of_task.cpu.base_cpi), (zen4.hash(), 0.6));
    }
}
