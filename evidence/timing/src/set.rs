// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The set of programs, `evidence/time/programs.toml`, and how they are built.

use std::collections::BTreeMap;
use std::path::{Path, PathBuf};
use std::process::Command;
use std::time::Duration;

use anyhow::{Context as _, Result, bail};
use serde::Deserialize;

use crate::process;

/// A program that is timed and captured.
#[derive(Debug, Clone, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Program {
    /// Short name.
    pub name: String,
    /// What it does, for the table.
    pub what: String,
    /// File of the folder without its suffix: the region between its markers counts.
    source: Option<String>,
    /// Arguments of `source`.
    #[serde(default)]
    args: Vec<String>,
    /// A command that counts as a whole.
    #[serde(default)]
    run: Vec<String>,
    /// Arguments of `source`, or the command, of a trial run.
    quick: Vec<String>,
    /// Debian packages that `run` needs.
    #[serde(default)]
    packages: Vec<String>,
    /// Memory of the guest, MiB.
    pub memory: u64,
    /// Largest difference from the predicted ratio that its target allows, percent.
    pub within: Option<f64>,
}

#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
struct File {
    program: Vec<Program>,
}

/// The set, with the folder that it was read from.
#[derive(Debug)]
pub struct Set {
    folder: PathBuf,
    /// The programs, in the order of the file.
    pub programs: Vec<Program>,
}

/// Programs that are ready to run.
#[derive(Debug)]
pub struct Built {
    /// The launcher: `evidence/time/launch.c`.
    pub launcher: PathBuf,
    commands: BTreeMap<String, Vec<String>>,
}

impl Set {
    /// Reads `FOLDER/programs.toml` and keeps the programs named in `only`, or all if it is empty.
    pub fn read(folder: &Path, only: &[String]) -> Result<Set> {
        let path = folder.join("programs.toml");
        let text = std::fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        let programs = parse(&text, only).with_context(|| path.display().to_string())?;
        Ok(Set { folder: folder.canonicalize()?, programs })
    }

    /// Builds launcher and programs into `into` with gcc -O2.
    pub fn build(&self, into: &Path, quick: bool) -> Result<Built> {
        std::fs::create_dir_all(into).with_context(|| into.display().to_string())?;
        let into = into.canonicalize()?;
        let mut words = BTreeMap::from([("{here}", self.folder.display().to_string())]);
        let mut commands = BTreeMap::new();
        for p in &self.programs {
            p.check_packages()?;
            let chosen = if quick {
                &p.quick
            } else if p.source.is_some() {
                &p.args
            } else {
                &p.run
            };
            let mut command = Vec::new();
            if let Some(source) = &p.source {
                let program = into.join(source);
                compile(&self.folder.join(source).with_extension("c"), &program)?;
                command.push(program.display().to_string());
            }
            for word in chosen {
                command.push(replaced(word, &mut words)?);
            }
            commands.insert(p.name.clone(), command);
        }
        let launcher = into.join("launch");
        compile(&self.folder.join("launch.c"), &launcher)?;
        Ok(Built { launcher, commands })
    }
}

impl Program {
    /// Does the region between markers count, or the whole command?
    pub fn has_markers(&self) -> bool {
        self.source.is_some()
    }

    fn check_packages(&self) -> Result<()> {
        for package in &self.packages {
            let mut c = Command::new("dpkg-query");
            c.args(["-W", "-f", "${db:Status-Status}", package]);
            let installed = process::run(&mut c, Duration::from_secs(60))?;
            if installed.stdout != "installed" {
                bail!(
                    "{} needs the package {package}: run apt-get install {package}, or leave {} out with --programs",
                    self.name,
                    self.name
                );
            }
        }
        Ok(())
    }
}

impl Built {
    /// The command of a program.
    pub fn command(&self, program: &Program) -> &[String] {
        &self.commands[&program.name]
    }
}

fn parse(text: &str, only: &[String]) -> Result<Vec<Program>> {
    let File { program: all } = toml::from_str(text)?;
    for (i, p) in all.iter().enumerate() {
        if p.source.is_some() != p.run.is_empty() {
            bail!("program {}: exactly one of source and run", p.name);
        }
        if all[..i].iter().any(|q| q.name == p.name) {
            bail!("program {}: two have this name", p.name);
        }
    }
    if let Some(name) = only.iter().find(|n| all.iter().all(|p| p.name != **n)) {
        let names: Vec<&str> = all.iter().map(|p| p.name.as_str()).collect();
        bail!("there is no program {name}: the set has {}", names.join(", "));
    }
    Ok(all.into_iter().filter(|p| only.is_empty() || only.contains(&p.name)).collect())
}

/// `word` with what {here}, {cc1} and {stb} stand for; each is found once.
fn replaced(word: &str, known: &mut BTreeMap<&'static str, String>) -> Result<String> {
    let mut word = word.to_owned();
    for (name, command) in [
        ("{here}", &[] as &[&str]),
        ("{cc1}", &["gcc", "-print-prog-name=cc1"]),
        ("{stb}", &["tools/demo-source"]),
    ] {
        if !word.contains(name) {
            continue;
        }
        if !known.contains_key(name) {
            let ended = process::run(Command::new(command[0]).args(&command[1..]), Duration::from_secs(300))?;
            if !ended.status.success() {
                bail!("{}: {}\n{}", command.join(" "), ended.status, ended.last_words());
            }
            known.insert(name, ended.stdout.trim().to_owned());
        }
        word = word.replace(name, &known[name]);
    }
    Ok(word)
}

/// gcc -O2 of one file.
pub fn compile(source: &Path, program: &Path) -> Result<()> {
    let mut c = Command::new("gcc");
    c.args(["-O2", "-Wall", "-Wextra", "-o"]).arg(program).arg(source);
    let ended = process::run(&mut c, Duration::from_secs(300)).context("gcc is needed: run make setup")?;
    if !ended.status.success() {
        bail!("gcc cannot compile {}:\n{}", source.display(), ended.last_words());
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;

    fn folder() -> PathBuf {
        Path::new(env!("CARGO_MANIFEST_DIR")).join("../../evidence/time")
    }

    #[test]
    fn the_set_has_the_programs_that_its_targets_name() {
        let set = Set::read(&folder(), &[]).unwrap();
        assert!(set.programs.len() >= 12, "{}", set.programs.len());
        let strict: Vec<&str> =
            set.programs.iter().filter(|p| p.within.is_some()).map(|p| p.name.as_str()).collect();
        assert_eq!(strict, ["chase", "gups"]);
        for p in &set.programs {
            let Some(source) = &p.source else { continue };
            assert!(folder().join(source).with_extension("c").is_file(), "{source}.c");
        }
    }

    #[test]
    fn programs_are_chosen_by_name_and_an_unknown_one_is_refused() {
        let set = Set::read(&folder(), &["gups".into(), "chase".into()]).unwrap();
        assert_eq!(set.programs.iter().map(|p| p.name.as_str()).collect::<Vec<_>>(), ["chase", "gups"]);
        let e = format!("{:#}", Set::read(&folder(), &["gusp".into()]).unwrap_err());
        assert!(e.contains("gusp") && e.contains("hash-join"), "{e}");
    }

    #[test]
    fn a_program_without_a_way_to_run_and_one_with_two_are_refused() {
        let both = "[[program]]\nname = \"a\"\nwhat = \"\"\nquick = []\nmemory = 1\n";
        assert!(parse(both, &[]).unwrap_err().to_string().contains("program a"));
        let two = format!("{both}source = \"x\"\nrun = [\"y\"]\n");
        assert!(parse(&two, &[]).unwrap_err().to_string().contains("exactly one"));
        let twice = format!("{both}run = [\"y\"]\n").repeat(2);
        assert!(parse(&twice, &[]).unwrap_err().to_string().contains("two have this name"));
    }

    /// The whole way of a small program: built, launched on both page sizes, its region read.
    #[test]
    fn every_source_builds_and_gives_the_same_result_on_both_page_sizes() {
        let into = tempfile::tempdir().unwrap();
        let mut set = Set::read(&folder(), &[]).unwrap();
        set.programs.retain(Program::has_markers);
        let built = set.build(into.path(), true).unwrap();
        for p in &set.programs {
            let run = |pages| crate::native::once(&built, p, pages, Duration::from_secs(300)).unwrap();
            let (small, large) = (run(crate::native::Pages::Small), run(crate::native::Pages::Large));
            assert_eq!(small.result, large.result, "{}", p.name);
            assert_eq!(small.huge_kib, 0, "{}", p.name);
        }
    }
}
