// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A sweep that counts the fingerprints of guests' pages: a task for each image, and one for each part.

use crate::plan::{Task, Verb};
use crate::spec::MOST_TASKS;
use bifold_share::image::{file_name, name_and_source};
use serde::Deserialize;
use std::collections::HashSet;
use std::path::Path;

/// What `[fingerprints]` says.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub(crate) struct Fingerprints {
    /// Memory of guests, each as `[NAME=]IMAGE`.
    images: Vec<String>,
    /// The key's file, made if missing.
    key: String,
    /// Number of parts.
    #[serde(default = "parts")]
    parts: u32,
    /// Memory of each task.
    memory: Option<String>,
}

/// As of `bifold share fingerprint`.
fn parts() -> u32 {
    256
}

impl Fingerprints {
    /// The tasks: images before parts.
    ///
    /// # Errors
    /// The key whose value cannot be used, and why.
    pub(crate) fn tasks(&self, folder: &Path) -> Result<Vec<Task>, (&'static str, String)> {
        if self.images.is_empty() {
            return Err(("images", "is empty: list the guests' memory, as [\"web=web.core\"]".into()));
        }
        if self.parts == 0 {
            return Err(("parts", "is 0, and a fingerprint is in one part".into()));
        }
        if self.images.len() + self.parts as usize > MOST_TASKS {
            return Err(("images", format!("and parts make more than {MOST_TASKS} tasks: take fewer parts")));
        }
        let names: Vec<String> = self.images.iter().map(|image| name(image, folder)).collect();
        let mut seen = HashSet::new();
        if let Some((name, image)) =
            names.iter().zip(&self.images).find(|(name, _)| !seen.insert(name.as_str()))
        {
            return Err(("images", format!("has two guests {name}: give them names, as in a={image}")));
        }
        let memory = self.memory.as_ref().map(|size| format!("--memory={size}"));
        let images = self.images.iter().zip(&names).map(|(image, name)| {
            let own = [format!("--key={}", self.key), format!("--parts={}", self.parts)];
            let args = own.into_iter().chain(memory.clone()).chain(["--".into(), image.clone()]).collect();
            (Verb::Fingerprint, name.clone(), vec![], args)
        });
        let parts = (0..self.parts).map(|part| {
            let args = [format!("--part={part}")].into_iter().chain(memory.clone()).collect();
            (Verb::Count, "count".to_owned(), vec![("part".to_owned(), part.to_string())], args)
        });
        let all = images.chain(parts).enumerate();
        Ok(all
            .map(|(number, (verb, program, settings, args))| Task {
                number,
                verb,
                program,
                settings,
                args,
                profile: None,
                command: vec![],
                env: vec![],
            })
            .collect())
    }
}

/// The guest's name in `[NAME=]IMAGE`, as `bifold share fingerprint` takes it in this folder.
fn name(image: &str, folder: &Path) -> String {
    let (name, source) = name_and_source(image.as_ref(), folder);
    name.unwrap_or_else(|| file_name(source.as_ref()))
}

#[cfg(test)]
mod tests {
    use crate::{Plan, Spec, SpecError, Verb};
    use std::path::Path;

    fn plan(text: &str) -> Result<Plan, SpecError> {
        Spec::plan_of(text, Path::new("fleet.toml"), Path::new("/tmp"))
    }

    #[test]
    fn a_task_for_each_image_comes_before_one_for_each_part() {
        let text =
            "[fingerprints]\nimages = ['web=w.core', 'db.core']\nkey = 'k'\nparts = 3\nmemory = '1GiB'\n";
        let plan = plan(text).unwrap();
        let verbs: Vec<Verb> = plan.tasks.iter().map(|t| t.verb).collect();
        assert_eq!(verbs, [[Verb::Fingerprint; 2].as_slice(), &[Verb::Count; 3]].concat());
        assert_eq!(plan.tasks[0].words(), "0000 web");
        assert_eq!(plan.tasks[1].args, ["--key=k", "--parts=3", "--memory=1GiB", "--", "db.core"]);
        assert_eq!(plan.tasks[4].args, ["--part=2", "--memory=1GiB"]);
        assert_eq!(plan.tasks[4].words(), "0004 count part=2");
        assert_eq!(plan.sources(&plan.tasks[4]).len(), 2);
        assert!(plan.sources(&plan.tasks[1]).is_empty() && plan.is_of_fingerprints());
    }

    #[test]
    fn what_cannot_be_counted_is_refused_with_what_to_change() {
        for (text, says) in [
            ("images = []\nkey = 'k'", "fingerprints.images is empty"),
            ("images = ['a']\nkey = 'k'\nparts = 0", "fingerprints.parts is 0"),
            ("images = ['a']\nkey = 'k'\nparts = 100000", "take fewer parts"),
            ("images = ['x/a', 'y/a']\nkey = 'k'", "has two guests a: give them names, as in a=y/a"),
            ("images = ['a']", "missing field `key`"),
            ("images = ['a']\nkey = 'k'\n[axes]\nseed = [1]", "goes with no program"),
            ("images = ['a']\nkey = 'k'\n[programs.p]\nrun = ['true']", "goes with no program"),
        ] {
            let e = plan(&format!("[fingerprints]\n{text}")).unwrap_err();
            let source = std::error::Error::source(&e).map_or(String::new(), |s| s.to_string());
            assert!(format!("{e}: {source}").contains(says), "{text:?}: {e}: {source}");
        }
        let repeats = plan("repeats = ['x']\n[fingerprints]\nimages = ['a']\nkey = 'k'").unwrap_err();
        assert!(repeats.to_string().contains("goes with no program, axis, repeat or option"), "{repeats}");
    }
}
