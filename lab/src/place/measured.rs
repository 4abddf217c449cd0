// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What was counted of a placed guest's programs: differences of counters of KVM, of the host's threads and
//! of the guest.

use std::collections::BTreeMap;

use anyhow::{Context, Result};

use super::world::Program;
use crate::lab::Output;

/// Counters by name.
type Counts = BTreeMap<String, u64>;

/// A guest's life.
#[derive(Debug, Clone)]
pub struct Run {
    /// What the guest saw of its nodes: CPUs, distances, memory.
    pub nodes: Vec<String>,
    /// Each program.
    pub programs: Vec<Measured>,
}

/// A program's run.
#[derive(Debug, Clone)]
pub struct Measured {
    /// The program.
    pub program: Program,
    /// Whether it ended well and its checks passed.
    pub passed: bool,
    /// What it said, for an error.
    pub said: String,
    /// Growth of KVM's counters of the VM.
    pub kvm: Counts,
    /// Migrations of vCPU threads between CPUs.
    pub migrations: u64,
    /// The guest's page faults.
    pub faults: u64,
    /// Growth of counters of the host's memory.
    pub host: Counts,
    /// MiB of the guest's memory on each host node behind the program.
    pub memory: BTreeMap<u32, u64>,
    /// MiB of mappings bound to one node that are on another node.
    pub strays: u64,
    /// KiB of KVM's page tables on each host node.
    pub tables: BTreeMap<u32, u64>,
}

/// A reading of the host.
#[derive(Debug, Default)]
struct Snapshot {
    kvm: Counts,
    vmstat: Counts,
    migrations: u64,
    memory: BTreeMap<u32, u64>,
    strays: u64,
    tables: BTreeMap<u32, u64>,
}

/// A name and a number.
fn counter(rest: &str) -> Option<(String, u64)> {
    let (name, value) = rest.split_once(' ')?;
    Some((name.to_owned(), value.trim().parse().ok()?))
}

/// Bytes by node of a line of numa_maps.
fn bytes_by_node(line: &str) -> BTreeMap<u32, u64> {
    let size = line.split_whitespace().find_map(|w| w.strip_prefix("kernelpagesize_kB="));
    let kib: u64 = size.and_then(|s| s.parse().ok()).unwrap_or(4);
    let nodes = line.split_whitespace().filter_map(|w| w.strip_prefix('N')?.split_once('='));
    nodes
        .filter_map(|(node, pages)| {
            Some((node.parse().ok()?, pages.parse::<u64>().ok()?.saturating_mul(kib << 10)))
        })
        .collect()
}

/// Guest memory among the process's mappings: those in huge pages, or the largest one.
fn guest_memory(lines: &[&str]) -> BTreeMap<u32, u64> {
    let mut all: BTreeMap<u32, u64> = BTreeMap::new();
    let huge: Vec<&&str> = lines.iter().filter(|l| l.contains("kernelpagesize_kB=2048")).collect();
    if huge.is_empty() {
        let largest = lines.iter().map(|l| bytes_by_node(l)).max_by_key(|m| m.values().sum::<u64>());
        all = largest.unwrap_or_default();
    }
    for line in huge {
        bytes_by_node(line).into_iter().for_each(|(node, bytes)| *all.entry(node).or_default() += bytes);
    }
    all.into_iter().map(|(node, bytes)| (node, bytes >> 20)).collect()
}

/// MiB on another node than the one that a line of numa_maps is bound to.
fn stray(line: &str) -> u64 {
    let bound = line.split_whitespace().find_map(|w| w.strip_prefix("bind:"));
    let Some(node) = bound.and_then(|n| n.parse::<u32>().ok()) else { return 0 };
    bytes_by_node(line).into_iter().filter(|(on, _)| *on != node).map(|(_, bytes)| bytes >> 20).sum()
}

impl Snapshot {
    fn read(text: &str) -> Snapshot {
        let mut out = Snapshot::default();
        let mut maps = Vec::new();
        for line in text.lines() {
            let Some((kind, rest)) = line.split_once(' ') else { continue };
            match kind {
                "@kvm" => out.kvm.extend(counter(rest)),
                "@vmstat" => out.vmstat.extend(counter(rest)),
                "@maps" => maps.push(rest),
                "@thread" if rest.ends_with("/KVM") => {
                    out.migrations += rest.split(' ').nth(1).and_then(|w| w.parse::<u64>().ok()).unwrap_or(0);
                }
                "@tables" => {
                    let words: Vec<&str> = rest.split_whitespace().collect();
                    if let [node, _, kib, ..] = words[..] {
                        let pair = node.parse::<u32>().ok().zip(kib.parse::<u64>().ok());
                        out.tables.extend(pair);
                    }
                }
                _ => {}
            }
        }
        out.memory = guest_memory(&maps);
        out.strays = maps.iter().map(|line| stray(line)).sum();
        out
    }
}

/// Growth of every counter.
fn growth(before: &Counts, after: &Counts) -> Counts {
    let less = |name: &str, n: u64| n.saturating_sub(before.get(name).copied().unwrap_or(0));
    after.iter().map(|(name, n)| (name.clone(), less(name, *n))).collect()
}

/// What the guest said of one program.
#[derive(Debug, Default)]
struct Section {
    status: Option<i32>,
    before: Counts,
    after: Counts,
    said: Vec<String>,
}

/// The guest's lines about its nodes, and its sections.
fn sections(report: &str) -> (Vec<String>, BTreeMap<String, Section>) {
    let (mut nodes, mut all) = (Vec::new(), BTreeMap::<String, Section>::new());
    let mut name = String::new();
    for line in report.lines() {
        let (kind, rest) = line.split_once(' ').unwrap_or((line, ""));
        if kind == "@node" {
            nodes.push(rest.to_owned());
            continue;
        }
        if kind == "@program" {
            name = rest.to_owned();
        }
        let section = all.entry(name.clone()).or_default();
        match kind {
            "@status" => section.status = rest.parse().ok(),
            "@before" => section.before.extend(counter(rest)),
            "@after" => section.after.extend(counter(rest)),
            "@said" => section.said.push(rest.to_owned()),
            _ => {}
        }
    }
    (nodes, all)
}

/// Reads what a boot brought back.
///
/// # Errors
/// If a file or a program is missing.
pub(super) fn read(output: &Output, programs: &[Program]) -> Result<Run> {
    let text = |name: &str| -> Result<String> {
        let bytes = output.files.get(name).with_context(|| format!("no file {name}"))?;
        Ok(String::from_utf8_lossy(bytes).into_owned())
    };
    let report = text("report")?;
    let (nodes, mut sections) = sections(&report);
    let one = |program: &Program| -> Result<Measured> {
        let section = sections.remove(program.name);
        let section =
            section.with_context(|| format!("the guest said nothing of {}: {report}", program.name))?;
        let before = Snapshot::read(&text(&format!("{}.begin", program.name))?);
        let after = Snapshot::read(&text(&format!("{}.end", program.name))?);
        let right = section.said.iter().any(|l| l.ends_with(program.passed));
        Ok(Measured {
            program: *program,
            passed: section.status == Some(0) && right,
            said: section.said.join("\n"),
            kvm: growth(&before.kvm, &after.kvm),
            migrations: after.migrations.saturating_sub(before.migrations),
            faults: growth(&section.before, &section.after).get("pgfault").copied().unwrap_or(0),
            host: growth(&before.vmstat, &after.vmstat),
            memory: after.memory,
            strays: after.strays,
            tables: after.tables,
        })
    };
    Ok(Run { nodes, programs: programs.iter().map(one).collect::<Result<_>>()? })
}

#[cfg(test)]
mod tests {
    use super::*;

    const BEFORE: &str = "@kvm exits 100\n@kvm pf_taken 7\n@thread 0 5 CPU 0/KVM\n@thread 1 50 qemu-system-x86\n\
        @thread 2 1 CPU 1/KVM\n@vmstat numa_pages_migrated 3\n";
    const AFTER: &str = "@kvm exits 250\n@kvm pf_taken 7\n@thread 0 6 CPU 0/KVM\n@thread 1 60 qemu-system-x86\n\
        @thread 2 1 CPU 1/KVM\n@vmstat numa_pages_migrated 8\n\
        @maps 55d0 default file=/usr/bin/qemu mapped=10 N0=10 kernelpagesize_kB=4\n\
        @maps 7f00 bind:0 file=/memfd:memory-backend-memfd\\040(deleted) huge dirty=128 N0=128 kernelpagesize_kB=2048\n\
        @maps 7f10 bind:1 file=/memfd:memory-backend-memfd\\040(deleted) huge dirty=128 N1=128 kernelpagesize_kB=2048\n\
        @tables 0 SecPageTables:       24 kB\n@tables 1 SecPageTables:       12 kB\n";
    const PROGRAM: Program = Program { name: "is", passed: ": verified" };

    fn output(report: &str) -> Output {
        let file = |name: &str, text: &str| (name.to_owned(), text.as_bytes().to_vec());
        let files = [file("is.begin", BEFORE), file("is.end", AFTER), file("report", report)];
        Output { files: files.into(), ..Output::default() }
    }

    #[test]
    fn counts_are_the_growth_between_two_readings() {
        let report = "@node node0/cpulist:0\n@node node0/distance:10 21\n@program is\n@status 0\n\
            @before pgfault 10\n@after pgfault 25\n@said is class S, ranks 2, seconds 1: verified\n";
        let run = read(&output(report), &[PROGRAM]).unwrap();
        assert_eq!(run.nodes, ["node0/cpulist:0", "node0/distance:10 21"]);
        let m = &run.programs[0];
        assert!(m.passed);
        assert_eq!((m.kvm["exits"], m.kvm["pf_taken"], m.migrations, m.faults), (150, 0, 1, 15));
        assert_eq!(m.host["numa_pages_migrated"], 5);
        assert_eq!(m.memory, BTreeMap::from([(0, 256), (1, 256)]));
        assert_eq!(m.strays, 0);
        assert_eq!(m.tables, BTreeMap::from([(0, 24), (1, 12)]));
    }

    #[test]
    fn a_program_passes_only_if_it_ends_well_and_says_so() {
        for (status, said) in [("3", ": verified"), ("0", ": NOT VERIFIED"), ("", ": verified"), ("0", "")] {
            let report = format!("@program is\n@status {status}\n@said is{said}\n");
            assert!(!read(&output(&report), &[PROGRAM]).unwrap().programs[0].passed, "{report}");
        }
        let e = read(&output("@program cg\n@status 0\n"), &[PROGRAM]).unwrap_err().to_string();
        assert!(e.contains("said nothing of is"), "{e}");
    }

    #[test]
    fn pages_off_the_bound_node_are_strays() {
        let line = |policy: &str| format!("7f00 {policy} huge N0=120 N1=8 kernelpagesize_kB=2048");
        assert_eq!(["bind:0", "bind:1", "default"].map(|p| stray(&line(p))), [16, 240, 0]);
    }

    #[test]
    fn transparent_memory_is_the_largest_mapping() {
        let lines = [
            "7f00 default file=/usr/bin/qemu N0=900 kernelpagesize_kB=4",
            "7f10 default anon=34304 dirty=34304 N0=5120 N1=29184 kernelpagesize_kB=4",
            "7f20 default",
        ];
        assert_eq!(guest_memory(&lines), BTreeMap::from([(0, 20), (1, 114)]));
        assert_eq!(guest_memory(&[]), BTreeMap::new());
    }
}
