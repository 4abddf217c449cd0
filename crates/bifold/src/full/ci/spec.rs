// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file that lists the programs.

use crate::usage::UsageError;
use anyhow::{Context as _, bail};
use serde::Deserialize;
use std::collections::BTreeMap;
use std::path::{Path, PathBuf};

/// Most bytes of the file.
const MOST_BYTES: u64 = 1 << 20;

/// Programs, and what they have in common.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Spec {
    /// Folder of the baselines, relative to the file.
    #[serde(default = "baselines")]
    pub baselines: PathBuf,
    /// By how many percent a count may grow.
    pub worse_than_percent: Option<f64>,
    /// Options of `compare` for every program.
    #[serde(default)]
    options: Vec<String>,
    /// The programs by name.
    pub programs: BTreeMap<String, Program>,
}

/// A program.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// The command and its arguments.
    pub run: Vec<String>,
    /// Further options of `compare`.
    #[serde(default)]
    options: Vec<String>,
    /// By how many percent a count may grow, if other than for all.
    pub worse_than_percent: Option<f64>,
    /// Variables of the command's environment, beside PATH, HOME and LC_ALL.
    #[serde(default)]
    pub env: BTreeMap<String, String>,
}

fn baselines() -> PathBuf {
    "bifold-baselines".into()
}

impl Spec {
    /// Reads the file.
    ///
    /// # Errors
    /// If the file cannot be read, or is no list of programs.
    pub fn read(path: &Path) -> anyhow::Result<Spec> {
        let shown = path.display();
        let bytes = bifold_base::bounded::read(path, MOST_BYTES)
            .with_context(|| format!("cannot read {shown}; docs/guide/ci.md has an example"))?;
        let text = String::from_utf8(bytes).with_context(|| format!("{shown} is no text"))?;
        let spec: Spec = toml::from_str(&text).with_context(|| format!("{shown} is no list of programs"))?;
        if spec.programs.is_empty() {
            bail!("{shown} has no program: add [programs.NAME] with run = [\"COMMAND\", \"ARGUMENT\"]");
        }
        for (name, program) in &spec.programs {
            let plain = |c: char| c.is_ascii_alphanumeric() || "._-".contains(c);
            if name.is_empty() || name.starts_with('.') || !name.chars().all(plain) {
                bail!("{shown}: the name {name:?} names a file: use letters, digits, '-', '_' and '.'");
            }
            if program.run.is_empty() {
                bail!("{shown}: programs.{name}.run is empty");
            }
            let own = [
                "--baseline",
                "--save-baseline",
                "--worse-than",
                "--format",
                "--output",
                "-o",
                "--quiet",
                "-q",
            ];
            let is_own = |o: &&String| own.iter().any(|own| o.split('=').next() == Some(own));
            if let Some(option) = spec.options(program).iter().find(is_own) {
                bail!("{shown}: programs.{name} has the option {option}, which `ci` gives itself");
            }
        }
        Ok(spec)
    }

    /// Options of `compare` for a program.
    pub fn options(&self, program: &Program) -> Vec<String> {
        [&self.options[..], &program.options].concat()
    }

    /// Keeps these programs alone, if there are names.
    ///
    /// # Errors
    /// If a name is unknown.
    pub fn keep(&mut self, names: &[String]) -> Result<(), UsageError> {
        if let Some(name) = names.iter().find(|n| !self.programs.contains_key(*n)) {
            let known = self.programs.keys().cloned().collect::<Vec<_>>().join(", ");
            return Err(UsageError::value(
                format!("--only {name}"),
                format!("there is no such program: use {known}"),
            ));
        }
        self.programs.retain(|name, _| names.is_empty() || names.contains(name));
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn read(text: &str) -> anyhow::Result<Spec> {
        let file = tempfile::NamedTempFile::new().unwrap();
        std::fs::write(file.path(), text).unwrap();
        Spec::read(file.path())
    }

    #[test]
    fn a_list_has_programs_with_their_options() {
        let text = "options = ['--fast']\n[programs.a]\nrun = ['true']\noptions = ['--where']\n[programs.b]\nrun = ['ls', '/']\n";
        let mut spec = read(text).unwrap();
        assert_eq!(spec.options(&spec.programs["a"]), ["--fast", "--where"]);
        assert_eq!(spec.options(&spec.programs["b"]), ["--fast"]);
        assert!(spec.keep(&["c".into()]).unwrap_err().to_string().contains("use a, b"));
        spec.keep(&["b".into()]).unwrap();
        assert_eq!(spec.programs.len(), 1);
    }

    #[test]
    fn what_is_no_list_is_refused_with_what_to_change() {
        for (text, says) in [
            ("", "missing field `programs`"),
            ("[programs]", "has no program"),
            ("[programs.a]\nrun = []", "programs.a.run is empty"),
            ("[programs.a]\nrun = ['x']\ncolour = 1", "unknown field `colour`"),
            ("[programs.'../a']\nrun = ['x']", "names a file"),
            ("[programs.a]\nrun = ['x']\noptions = ['--format=csv']", "gives itself"),
            ("\u{0}", "is no list of programs"),
        ] {
            let e = format!("{:#}", read(text).unwrap_err());
            assert!(e.contains(says), "{text:?}: {e}");
        }
    }
}
