// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs of hwloc's tests: the tree, the options, and where hwloc says something else than sysfs.

use std::collections::BTreeSet;
use std::fs;
use std::path::{Path, PathBuf};

/// A run of `lstopo`.
pub struct Run {
    /// What it printed.
    pub output: PathBuf,
    /// The tree.
    pub archive: PathBuf,
    /// Its options.
    pub options: String,
}

impl Run {
    pub fn of(output: &Path) -> Run {
        let text = |ending: &str| fs::read_to_string(output.with_extension(ending)).unwrap_or_default();
        let archive = match text("source").trim() {
            "" => output.with_extension("tar.bz2"),
            source => output.with_file_name(source),
        };
        Run { output: output.into(), archive, options: text("options").trim().into() }
    }

    pub fn name(&self) -> String {
        self.output.file_stem().unwrap().to_string_lossy().into_owned()
    }

    fn has(&self, option: &str) -> bool {
        self.options.contains(option)
    }

    /// Subjects of which hwloc was set to leave something out.
    pub fn partly_shown(&self) -> Vec<&'static str> {
        let mut subjects = Vec::new();
        if ["--filter", "--merge", "--ignore", "--no-caches"].iter().any(|o| self.has(o)) {
            subjects.extend(["packages", "dies", "cores", "caches"]);
        }
        if !self.has("--whole-io") {
            // Devices that matter, and bridges to them.
            subjects.extend(["devices", "bridges", "names", "localities"]);
        }
        subjects
    }

    /// Whether CPUs and nodes that the cgroup forbids are left out.
    pub fn restricted(&self) -> bool {
        !self.has("--disallowed")
    }

    /// The differences that no rule explains, and rules that explain none.
    pub fn unexplained(&self, differences: BTreeSet<String>) -> BTreeSet<String> {
        let name = self.name();
        let patterns: Vec<&str> =
            RULES.iter().filter(|r| r.runs.contains(&&*name)).flat_map(|r| r.differences).copied().collect();
        let idle = patterns.iter().filter(|p| !differences.iter().any(|d| d.starts_with(**p)));
        let idle: Vec<String> =
            idle.map(|p| format!("no difference begins with `{p}`, as a rule says")).collect();
        let left = differences.into_iter().filter(|d| !patterns.iter().any(|p| d.starts_with(p)));
        left.chain(idle).collect()
    }
}

/// Differences that have a reason.
struct Rule {
    runs: &'static [&'static str],
    /// Beginnings of the differences.
    differences: &'static [&'static str],
}

const RULES: &[Rule] = &[
    // The BIOS says of each of 8 nodes that it has all CPUs. hwloc keeps the first, and with it no distances.
    Rule {
        runs: &["8em64t-2s2ca2c-buggynuma"],
        differences: &["memory: sysfs alone says ", "distances: sysfs alone says "],
    },
    // CPU 3 says that it shares its package with CPU 0-3, which they deny. hwloc then knows no package 3. The
    // devices, too, are said to be near CPU 0-3, which are in four packages: hwloc then takes them to be near
    // all CPUs.
    Rule {
        runs: &["40intel64-4n10c+pci-conflicts"],
        differences: &[
            "packages: sysfs alone says 3: CPUs 3,7,11,15,19,23,27,31,35,39",
            "localities: hwloc alone says 0000:00:03.0: CPUs 0-39",
            "localities: hwloc alone says 0000:01:00.0: CPUs 0-39",
        ],
    },
    // This bridge has no bus behind it: the secondary bus in its configuration space is 0. hwloc leaves the
    // bridge out. Device 00:02.0 is near other CPUs than its bus. hwloc gives a bus one place.
    Rule {
        runs: &["32em64t-2n8c+1mic"],
        differences: &[
            "bridges: sysfs alone says 0000:00:11.0: class 0604",
            "localities: sysfs alone says 0000:00:11.0: CPUs 0-7",
            "localities: hwloc alone says 0000:00:02.0: CPUs 0-7",
            "localities: sysfs alone says 0000:00:02.0: CPUs 0-3",
        ],
    },
    // The variable HWLOC_PCI_LOCALITY tells hwloc where the devices are. For sysfs they are near all CPUs.
    Rule { runs: &["40intel64-2g2n4c+pci"], differences: &["localities: "] },
    // The driver of NVIDIA's GPUs makes nodes of their memory, which hwloc leaves out by default (next run).
    Rule {
        runs: &["nvidiagpunumanodes"],
        differences: &[
            "memory: sysfs alone says 25",
            "distances: sysfs alone says 25",
            "distances: sysfs alone says 0 to 25",
            "distances: sysfs alone says 8 to 25",
        ],
    },
    // On Knights Landing hwloc finds neighbours by distances, and then drops the distances.
    Rule {
        runs: &["64intel64-fakeKNL-SNC4-hybrid", "64intel64-fakeKNL-SNC4-hybrid-msc"],
        differences: &["distances: sysfs alone says "],
    },
    // Its caches in front of memory come from a program that only root runs, not from sysfs. With the
    // variable HWLOC_KNL_MSCACHE_L3=0 hwloc says so; without, it takes them for L3 caches.
    Rule { runs: &["64intel64-fakeKNL-SNC4-hybrid-msc"], differences: &["side caches: hwloc alone says "] },
    Rule {
        runs: &["64intel64-fakeKNL-SNC4-hybrid", "64intel64-fakeKNL-A2A-cache"],
        differences: &["memory-side L3: hwloc alone says "],
    },
    // Nodes of this tree, made by hand, overlap. A variable for debugging lets hwloc take them; our nodes
    // share no CPU.
    Rule {
        runs: &["fakeheterocpunuma"],
        differences: &[
            "nodes: hwloc alone says 4: CPUs 16-23",
            "nodes: hwloc alone says 5: CPUs 12-23",
            "nodes: sysfs alone says 4: CPUs 16-19",
            "nodes: sysfs alone says 5: CPUs 12-15",
        ],
    },
];
