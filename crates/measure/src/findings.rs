// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The values of a survey as rows, for tables and data.

use crate::estimate::Estimate;
use crate::survey::{HostPages, Part, Survey};
use serde::Serialize;

/// One value.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Finding {
    /// What it is.
    pub name: String,
    /// Unit: `cycles`, `bytes`, `entries`, `ways`, `Hz`, `1`.
    pub unit: &'static str,
    /// The value with its spread; none if it could not be determined.
    pub measured: Option<Estimate>,
    /// Whether the survey reached the value before its end.
    pub reached: bool,
    /// What CPUID says.
    pub told: Option<u64>,
}

impl Survey {
    /// All values. A capacity's interval goes from the largest set that fits to the smallest that does not.
    pub fn findings(&self) -> Vec<Finding> {
        let mut out = Vec::new();
        let mut row = |part, name: &str, unit, measured, told| {
            let reached = !self.not_reached.contains(&part);
            out.push(Finding { name: name.into(), unit, measured, reached, told });
        };
        row(Part::Costs, "clock", "Hz", Some(self.clock), None);
        for l in &self.caches {
            let told = l.told.as_ref();
            row(Part::Caches, &format!("L{} cache, load to use", l.level), "cycles", l.cycles, None);
            row(
                Part::Caches,
                &format!("L{} cache, capacity", l.level),
                "bytes",
                l.reach,
                told.map(|t| t.bytes),
            );
            let ways = l.ways_measured.map(|w| Estimate::between(w as f64, w as f64, w as f64, self.rounds));
            row(
                Part::Caches,
                &format!("L{} cache, associativity", l.level),
                "ways",
                ways,
                told.map(|t| t.ways),
            );
        }
        row(Part::Kept, "caches, kept beside memory misses", "bytes", self.kept, None);
        let m = &self.loads;
        row(Part::Loads, "memory, load to use", "cycles", m.memory, None);
        row(Part::Loads, "random load, dependent, 2 MB pages", "cycles", m.dependent_2m, None);
        row(Part::Loads, "random load, dependent, 4 KB pages", "cycles", m.dependent_4k, None);
        row(Part::Loads, "random load, independent, 2 MB pages", "cycles", m.independent_2m, None);
        row(Part::Loads, "random load, independent, 4 KB pages", "cycles", m.independent_4k, None);
        row(Part::Loads, "walk of a dependent load, 4 KB pages", "cycles", m.walk, None);
        row(Part::Loads, "overlap of misses", "1", m.data_overlap, None);
        row(Part::Loads, "overlap of walks", "1", m.walk_overlap, None);
        row(Part::Loads, "load of the next line", "cycles", m.sequential, None);
        row(Part::Loads, "load of the next page's first line", "cycles", m.page_cross, None);
        let t = &self.tlbs;
        for (name, array, level, size) in [
            ("L1 data TLB, 4 KB pages", &t.l1_4k, 1, "4K"),
            ("L2 TLB, 4 KB pages", &t.l2_4k, 2, "4K"),
            ("L1 data TLB, 2 MB pages", &t.l1_2m, 1, "2M"),
        ] {
            let told = self.told.tlb(level, true, size).map(|t| t.entries);
            row(Part::Tlbs, name, "entries", array.as_ref().map(|a| a.entries), told);
        }
        let c = &self.costs;
        row(Part::Costs, "page fault, 4 KB", "cycles", c.page_fault, None);
        row(Part::Costs, "page fault, 2 MB", "cycles", c.page_fault_huge, None);
        row(Part::Costs, "2 MB page that was free, first write more", "cycles", c.first_use_2m, None);
        row(Part::Costs, "system call", "cycles", c.syscall, None);
        row(Part::Costs, "switch of the process", "cycles", c.process_switch, None);
        row(Part::Costs, "mprotect", "cycles", c.mprotect, None);
        out
    }

    /// What was not measured and why, and what else the user should know; each a sentence without its full
    /// stop.
    pub fn remarks(&self) -> Vec<String> {
        let mut out = self.warnings.clone();
        match (self.tlbs.host_pages, &self.told.hypervisor) {
            (HostPages::Split, Some(_)) => out.push(
                "the host maps this machine's memory in pages of 4 KB: TLB entries of 2 MB pages reach 4 KB"
                    .into(),
            ),
            (HostPages::Split, None) => {
                out.push("2 MB pages meet the limits of 4 KB ones, without a hypervisor to say so".into());
            }
            (HostPages::Whole, Some(_)) => {
                out.push("the host maps this machine's memory in pages of 2 MB or more".into());
            }
            (HostPages::Unknown, Some(_)) if !self.not_reached.contains(&Part::Tlbs) => {
                out.push("the size of the host's pages could not be determined".into())
            }
            _ => {}
        }
        out.push(
            "walk caches, the second-level TLB's 2 MB and 1 GB pages and code TLBs are not measured".into(),
        );
        out
    }
}
