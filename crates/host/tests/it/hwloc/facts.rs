// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts about a machine, a sentence each, and where two sets of facts differ.

use std::collections::{BTreeMap, BTreeSet};
use std::fmt::Write as _;

use bifold_host::topology::NumberSet;

/// Sentences by subject.
#[derive(Default)]
pub struct Facts(BTreeMap<&'static str, BTreeSet<String>>);

impl Facts {
    pub fn add(&mut self, subject: &'static str, fact: String) {
        self.0.entry(subject).or_default().insert(fact);
    }

    pub fn len(&self) -> usize {
        self.0.values().map(BTreeSet::len).sum()
    }

    /// Where hwloc's facts differ from those of sysfs, a line each. Of the subjects in `partly`, hwloc shows
    /// some facts only.
    pub fn differences(&self, sysfs: &Facts, partly: &[&str]) -> BTreeSet<String> {
        let none = BTreeSet::new();
        let subjects: BTreeSet<_> = self.0.keys().chain(sysfs.0.keys()).collect();
        let mut lines = BTreeSet::new();
        for subject in subjects {
            let (a, b) = (self.0.get(subject).unwrap_or(&none), sysfs.0.get(subject).unwrap_or(&none));
            lines.extend(a.difference(b).map(|fact| format!("{subject}: hwloc alone says {fact}")));
            if !partly.contains(subject) {
                lines.extend(b.difference(a).map(|fact| format!("{subject}: sysfs alone says {fact}")));
            }
        }
        lines
    }
}

/// The first of several lines.
pub fn shown(lines: &BTreeSet<String>) -> String {
    const SHOWN: usize = 24;
    let mut out = String::new();
    lines.iter().take(SHOWN).for_each(|line| out += &format!("  {line}\n"));
    if lines.len() > SHOWN {
        let _ = writeln!(out, "  and {} more", lines.len() - SHOWN);
    }
    out
}

/// A package, die or core.
pub fn group(number: Option<u32>, cpus: &NumberSet) -> String {
    format!("{}: CPUs {cpus}", number.map_or("no number".into(), |n| n.to_string()))
}

/// A cache.
pub fn cache(level: u32, id: Option<u32>, bytes: u64, [line, ways]: [u32; 2], cpus: &NumberSet) -> String {
    let id = id.map_or("no number".into(), |n| n.to_string());
    format!("L{level} {id}: {bytes} bytes, lines of {line}, {ways} ways, CPUs {cpus}")
}

/// A node's memory.
pub fn memory(node: u32, bytes: u64, in_mib: bool) -> String {
    if in_mib {
        format!("{node}: {} MiB", (bytes + (1 << 19)) >> 20)
    } else {
        format!("{node}: {} KiB", bytes >> 10)
    }
}
