// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the comparison as a page of the docs.

use std::fmt::Write;

use super::drive::{Results, Settings};
use super::table::{RefaultRow, Tally, markdown};
use crate::lab::Lab;
use crate::validate::Workload;
use crate::validate::document::{emulators, today};

/// The page of one kernel.
pub fn page(
    lab: &Lab,
    workload: &Workload,
    settings: &Settings,
    rows: &[RefaultRow],
    results: &Results,
) -> String {
    let tally = Tally::of(rows);
    let limits: Vec<_> = results.counted.values().map(|c| c.limited).collect();
    let generations = limits.iter().any(|l| l.generations);
    let range = |of: fn(&crate::lab::job::Limited) -> u64| {
        let all = || limits.iter().map(of);
        format!("{} to {}", all().min().unwrap_or(0), all().max().unwrap_or(0))
    };
    let mut out = format!(
        "# Refaults and exits of a limited guest: the model beside KVM of Linux {kernel}\n\n\
         Written by `lab reclaim` on {date}. Kernel of laboratory and guests: Debian's {kernel}, MGLRU {mglru};\n\
         {emulators}. Guests of {memory} MiB, 1 vCPU, 4 KB host pages; {runs} run(s) per configuration and size\n\
         under KVM. What the columns mean, and how this is done: `docs/design/validation.md`.\n\n\
         {rows} rows: refaults are not below the fewest possible in {possible}, LRU's prediction is near in {near} (within 25 % or\n\
         200), and exits are close in {close} (within 5 % of what the counted refaults cost in the model).\n\n\
         When the limit began, QEMU itself had {others} frames, which the limit did not count; at the end {last_others}.\n",
        kernel = lab.kernel().version,
        date = today(),
        mglru = if generations { "on" } else { "off" },
        emulators = emulators(lab),
        memory = workload.memory_mib,
        runs = settings.runs,
        rows = tally.rows,
        possible = tally.possible,
        near = tally.near_lru,
        close = tally.exits_close,
        others = range(|l| l.others),
        last_others = range(|l| l.last_others),
    );
    let outside: Vec<_> = rows.iter().filter(|r| !r.causes().is_empty()).collect();
    if !outside.is_empty() {
        out.push_str("\n## Rows outside\n\n");
    }
    for r in outside {
        let _ = writeln!(out, "- `{}`, {} MiB, {}: {}", r.program, r.mib, r.config, r.causes().join("; "));
    }
    for &config in &settings.configs {
        let reasons = super::exit_reasons(config).join(" and ").replace('_', " ");
        let _ = write!(out, "\n## {config}\n\nExits: {reasons}.\n\n");
        out.push_str(&markdown(rows.iter().filter(|r| r.config == config)));
    }
    out
}
