// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The reader of topologies beside hwloc: /sys trees of 47 machines, with what hwloc found in each
//! (`tools/hwloc-trees`).
//!
//! Both sides become sets of facts, a sentence each: [`output`] reads what hwloc printed, [`facts`] says both
//! sides' facts, [`rules`] has the runs in which hwloc was set to leave something out or shows more than
//! sysfs has. Sets must be equal. Nothing else is left out than what a rule names.

mod facts;
mod ours;
mod output;
mod rules;
mod theirs;

use bifold_host::Host;
use facts::{Facts, shown};
use output::Output;
use rules::Run;
use std::collections::{BTreeMap, BTreeSet};
use std::fs;
use std::io::Write as _;
use std::path::{Path, PathBuf};
use std::process::Command;

/// Number of trees.
const TREES: usize = 47;

/// Fetches the trees. `None` if they cannot be had here; `make hwloc-trees` then fails.
fn trees() -> Option<PathBuf> {
    let root = Path::new(env!("CARGO_MANIFEST_DIR")).join("../..");
    let out = Command::new(root.join("tools/hwloc-trees")).output().expect("tools/hwloc-trees can be run");
    if out.status.success() {
        return Some(root.join(".cache/hwloc/trees"));
    }
    let why = String::from_utf8_lossy(&out.stderr).into_owned();
    assert!(std::env::var_os("BIFOLD_HWLOC_TREES").is_none(), "no trees of hwloc to compare with:\n{why}");
    say(&format!("NOT COMPARED with hwloc: its {TREES} trees cannot be had here:\n{why}"));
    None
}

/// Says it on stderr itself, as the test harness hides what a passing test prints by macros.
fn say(text: &str) {
    let _ = writeln!(std::io::stderr(), "{text}");
}

#[test]
fn all_trees_agree_with_hwloc() {
    let Some(dir) = trees() else { return };
    let runs = runs(&dir);
    let trees: BTreeSet<&PathBuf> = runs.iter().map(|r| &r.archive).collect();
    assert_eq!(trees.len(), TREES);
    let mut differ: BTreeMap<&PathBuf, String> = BTreeMap::new();
    let mut compared = 0;
    for archive in &trees {
        let (_keep, root) = unpacked(archive);
        let topology = Host::copied(&root).topology().unwrap();
        let with_cpus = topology.nodes.iter().filter(|(_, n)| !n.cpus.is_empty()).map(|(n, _)| *n).collect();
        for run in runs.iter().filter(|r| r.archive == **archive) {
            let hwloc = Output::read(&run.output);
            let (theirs, ours) =
                (Facts::of_hwloc(&hwloc, &with_cpus), Facts::of_sysfs(&topology, &hwloc, run));
            compared += theirs.len();
            let differences = run.unexplained(theirs.differences(&ours, &run.partly_shown()));
            if !differences.is_empty() {
                *differ.entry(archive).or_default() += &format!("{}:\n{}", run.name(), shown(&differences));
            }
        }
    }
    let agree = trees.len() - differ.len();
    let text =
        format!("{agree} of {} trees agree with hwloc: {} runs, {compared} facts", trees.len(), runs.len());
    say(&text);
    assert!(differ.is_empty(), "{text}\n{}", differ.into_values().collect::<String>());
}

/// All runs, in order of name.
fn runs(dir: &Path) -> Vec<Run> {
    let files: BTreeSet<PathBuf> = fs::read_dir(dir).unwrap().map(|e| e.unwrap().path()).collect();
    files.iter().filter(|f| f.extension().is_some_and(|e| e == "output")).map(|f| Run::of(f)).collect()
}

/// A tree, in memory if there is a file system for that.
fn unpacked(archive: &Path) -> (tempfile::TempDir, PathBuf) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() }.unwrap();
    let done = Command::new("tar").arg("-xjf").arg(archive).arg("-C").arg(dir.path()).status().unwrap();
    assert!(done.success(), "{}", archive.display());
    let root = fs::read_dir(dir.path()).unwrap().next().unwrap().unwrap().path();
    (dir, root)
}
