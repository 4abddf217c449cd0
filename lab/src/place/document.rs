// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outcome as a page of the results, with the published figures beside ours.

use std::fmt::Write as _;

use bifold_base::markdown::table;

use super::experiment::{CONFIG, Outcome, Placed};
use super::guests::{CPUS_OF_NODE, GUEST_MIB, NODES, VCPUS};
use super::interval::{Interval, LEVEL};
use super::measured::Measured;
use super::planned::{PlannedOutcome, SOUND_CASE, mistakes};
use super::references::{CLASS, Part, REMOTE_CYCLES, ReferenceRow};
use super::world::Program;

/// Published overheads against native: of a program with an SMP guest, and with guest nodes (pinned, bound,
/// huge pages). Kudryavtsev, Koshelev, Avetisyan, "Perspectives of virtualization of high-performance x64
/// systems", 2012.
const PUBLISHED: [(&str, &str, &str); 8] = [
    ("ep", "2-4 %", "1-5 %"),
    ("is", "2-32 % (range of all NPB)", "1-5 %"),
    ("cg", "2-32 % (range of all NPB)", "1-5 %"),
    ("mg", "32 % (64 processes); more than 40 % (8 processes, on one node)", "1-5 %"),
    ("ft", "2-32 % (range of all NPB)", "1-5 %"),
    ("StarSTREAM", "20 %; pinned 10 %", "1-5 %"),
    ("MPIRandomAccess", "34 % (96 processes), under 7 % up to 72; alone 20-45 %", "at most 30 %"),
    ("HPL", "", "at most 15 %"),
];

/// A count of programs' runs.
struct Count {
    title: &'static str,
    what: &'static str,
    of: fn(&Measured) -> u64,
}

fn kvm(m: &Measured, name: &str) -> u64 {
    m.kvm.get(name).copied().unwrap_or(0)
}

const COUNTS: [Count; 6] = [
    Count { title: "Exits", what: "All exits of the vCPUs.", of: |m| kvm(m, "exits") },
    Count {
        title: "Exits by host interrupts",
        what: "Ticks of the host and interrupts for its threads end a stay in the guest.",
        of: |m| kvm(m, "irq_exits"),
    },
    Count {
        title: "Halts",
        what: "A vCPU without work leaves for the host. Waiting ranks spin and do not halt.",
        of: |m| kvm(m, "halt_exits"),
    },
    Count {
        title: "Faults in nested tables",
        what: "First touches of host pages, and pages that the host's NUMA balancing unmapped to see who uses them.",
        of: |m| kvm(m, "pf_taken"),
    },
    Count {
        title: "Pages that the host moved",
        what: "By NUMA balancing, in 4 KB pages: all of the host, which runs nothing else. None of a bound guest's.",
        of: |m| m.host.get("numa_pages_migrated").copied().unwrap_or(0),
    },
    Count {
        title: "Migrations of vCPUs",
        what: "The host's scheduler moved a vCPU's thread to another CPU.",
        of: |m| m.migrations,
    },
];

impl Outcome {
    /// A row for each program, a column for each placement.
    fn table(&self, out: &mut String, count: &Count) {
        let programs = table::<Program>().left("program", |p| p.name.into());
        let rows = self.placed.iter().fold(programs, |all, placed| {
            all.right(placed.placement.name, |program| {
                let values: Vec<f64> = placed.of(program).map(|m| (count.of)(m) as f64).collect();
                Interval::of(&values).map_or(String::new(), |i| i.to_string())
            })
        });
        let rows = rows.of(&self.settings.programs);
        let _ = write!(out, "\n## {}\n\n{}\n\n{rows}", count.title, count.what);
    }

    fn memory(&self, out: &mut String) {
        let columns = table::<Placed>()
            .left("placement", |p| p.placement.name.into())
            .left("the guest sees", Placed::sees)
            .right("MiB of guest memory on node 0, 1", |p| p.by_node(|m| &m.memory))
            .right("KiB of the host's nested tables on node 0, 1", |p| p.by_node(|m| &m.tables));
        *out +=
            "\n## Where memory and tables are\n\nBehind the last program of each run: mean over runs.\n\n";
        *out += &columns.of(&self.placed);
    }

    fn references(&self, out: &mut String) {
        if self.references.is_empty() {
            return;
        }
        let _ = write!(
            out,
            "\n## Remote references\n\nBy the model: `bifold compare --placement` over captures of the same programs (class {CLASS}), in guests that know no\n\
             nodes (`smp`: all memory is fresh, and the host backs a page on the node of the vCPU that touches it first;\n\
             `interleaved`: memory was handed out before, regardless of who uses it now) and in guests that do (`guest-numa`,\n\
             `crossed`). Accesses to data on the other node, in percent of all; and what remote references of data and\n\
             walks take longer, in percent of the ideal run, if memory of the other node takes {REMOTE_CYCLES} cycles, 1.6 times that of\n\
             the own. Host pages of 2 MB, nested paging.\n\n\
             | part | published overhead: SMP guest | with guest nodes | remote data: smp | interleaved | guest-numa | crossed | longer: smp | interleaved | guest-numa | crossed |\n\
             |---|---|---|--:|--:|--:|--:|--:|--:|--:|--:|\n"
        );
        for (part, rows) in &self.references {
            let (_, smp, numa) = published(part);
            let _ = write!(out, "| {} | {smp} | {numa} |", part.name());
            let _ = writeln!(
                out,
                " {} | {} |",
                cells(rows, ReferenceRow::data, 1),
                cells(rows, ReferenceRow::longer, 2)
            );
        }
        *out += "\nA rank that waits polls a word that the other rank writes. Such accesses are counted, and cost nothing while a cache\n\
                 has the word: the share of remote accesses of EP and HPL is mostly of this kind.\n";
        if self.in_order() {
            *out += "\nThe order is the paper's. In an SMP guest, remote references cost MG, IS and MPIRandomAccess at least ten times what\n\
                     they cost EP. With guest nodes, they cost these at most a tenth of that.\n";
        }
        *out += "\nThe same of references to page tables:\n\n| part | remote: smp | interleaved | guest-numa | crossed |\n|---|--:|--:|--:|--:|\n";
        for (part, rows) in &self.references {
            let _ = writeln!(out, "| {} | {} |", part.name(), cells(rows, ReferenceRow::tables, 1));
        }
    }

    fn plans(&self, out: &mut String) {
        let good = self.plans.iter().filter(|c| c.failed.is_none());
        let (sound, named): (Vec<&PlannedOutcome>, Vec<&PlannedOutcome>) =
            good.partition(|c| c.name.starts_with(SOUND_CASE));
        let (named, others): (Vec<&PlannedOutcome>, Vec<&PlannedOutcome>) =
            named.into_iter().partition(|c| mistakes().any(|m| m == c.name));
        let list = |cases: &[&PlannedOutcome]| {
            cases.iter().map(|c| format!("`{}`", c.name)).collect::<Vec<_>>().join(", ")
        };
        if self.plans.is_empty() {
            return;
        }
        let _ = write!(
            out,
            "\n## Guests from plans\n\n`bifold place plan` planned them, `apply` set the host and pinned their threads, `check` looked, `undo` took back.\n\n\
             - {} guests are sound: no finding, and behind `undo` the host is as it was: {}.\n\
             - {} of {} planted mistakes are named: {}.\n",
            sound.len(),
            list(&sound),
            named.len(),
            mistakes().count(),
            list(&named)
        );
        for (name, what) in [
            ("booted", "A guest that boots is sound."),
            ("nodes", "Its kernel sees the CPUs and distances of the plan's nodes."),
            ("killed", "`apply` was killed (-9) at 50 moments; each time, `undo` left the host as it was."),
        ] {
            if others.iter().any(|c| c.name == name) {
                let _ = writeln!(out, "- {what}");
            }
        }
    }

    /// The page.
    pub fn document(&self) -> String {
        let settings = &self.settings;
        let placements = table::<Placed>()
            .left("placement", |p| p.placement.name.into())
            .left("", |p| p.placement.about.into());
        let mut out = format!(
            "# Parallel programs in placed guests, Linux {}\n\n\
             Written by `lab place`. The host is a laboratory ({}) with {NODES} nodes of {CPUS_OF_NODE} CPUs; guests have {VCPUS} vCPUs and\n\
             {GUEST_MIB} MiB under QEMU {} and KVM. They run the NAS kernels of `lab/nas`, class {}, and Debian's HPCC, with {VCPUS} ranks.\n\
             Means of {} runs, each in a host that has just booted, with Student-t intervals at {:.0} %. An emulator has no caches\n\
             and no distances between nodes, so nothing is timed: there are no GFlops and no GUPS.\n\n\
             Placements and published figures are those of \"Perspectives of virtualization of high-performance x64 systems\"\n\
             (Kudryavtsev, Koshelev, Avetisyan, 2012).\n\n{}",
            self.release,
            self.emulator,
            self.qemu,
            settings.class,
            settings.runs,
            100.0 * LEVEL,
            placements.of(&self.placed),
        );
        let wrong = self.wrong();
        if wrong.is_empty() && settings.runs > 0 {
            out += "\nEvery program's checks passed in every placement and run (`verified` of the kernels, `Success=1` of HPCC). Pinned\n\
                    vCPUs never moved, and reserved memory was where the placement puts it.\n";
        }
        if !wrong.is_empty() {
            out += "\nWhat does not hold:\n\n";
            wrong.iter().for_each(|w| out += &format!("- {}\n", w.replace('\n', " ")));
        }
        if self.repeated > 0 {
            let _ = writeln!(
                out,
                "\nThe emulated host ended during {} of the runs, which were made again.",
                self.repeated
            );
        }
        self.plans(&mut out);
        self.references(&mut out);
        if self.settings.runs > 0 {
            self.memory(&mut out);
        }
        COUNTS.iter().filter(|_| self.settings.runs > 0).for_each(|count| self.table(&mut out, count));
        out
    }
}

/// Percentages of the placements of the model.
fn cells(rows: &[ReferenceRow], of: fn(&ReferenceRow) -> Option<f64>, decimals: usize) -> String {
    let row = |placement| rows.iter().find(|r| r.config == CONFIG && r.placement == placement);
    let cell = |p| row(p).and_then(of).map_or(String::new(), |v| format!("{v:.decimals$} %"));
    ["smp", "interleaved", "guest-numa", "crossed"].map(cell).join(" | ")
}

fn published(part: &Part) -> (&'static str, &'static str, &'static str) {
    PUBLISHED.into_iter().find(|(name, ..)| *name == part.name()).unwrap_or_default()
}

impl Placed {
    /// The guest's nodes, as its kernel lists their CPUs and distances.
    fn sees(&self) -> String {
        let lines = self.runs.first().map(|r| r.nodes.as_slice()).unwrap_or_default();
        let of = |what: &str| -> Vec<&str> {
            lines.iter().filter_map(|l| l.split_once(what).map(|(_, rest)| rest)).collect()
        };
        format!("CPUs {}; distances {}", of("/cpulist:").join(" and "), of("/distance:").join(", "))
    }

    /// Means by node behind the last program.
    fn by_node(&self, of: fn(&Measured) -> &std::collections::BTreeMap<u32, u64>) -> String {
        let cell = |node: u32| {
            let last = self.runs.iter().filter_map(|r| r.programs.last());
            let values: Vec<f64> = last.map(|m| of(m).get(&node).copied().unwrap_or(0) as f64).collect();
            Interval::of(&values).map_or(String::new(), |i| i.to_string())
        };
        (0..NODES).map(cell).collect::<Vec<_>>().join(", ")
    }
}
