// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the comparison as a page of the docs.

use std::fmt::Write;
use std::process::Command;

use super::drive::Settings;
use super::table::{ExitRow, Verdict, markdown, tally};
use super::{INSIDE, Workload};
use crate::lab::Lab;
use bifold_guest::TableFormat;
use bifold_model::COUNTS_DIGEST;

/// RCU delays the reuse of freed page tables' frames. In a guest that is slowed by its exits, more frames are
/// free again, and the reused frames decide how often KVM meets a frame whose table it still shadows.
const REUSE: &str = "`kvm_mmu_unprotect_page` and `mmu_try_to_unsync_pages` act when the guest uses a frame again \
    that was a page table; how soon RCU gives such frames back is a matter of the guest's speed (by the logs, \
    not proven)";

/// `mprotect` merges areas and splits them again, and RCU delays the reuse of those that are merged away.
const AREAS: &str = "each is the first touch of a kernel's page, one after the other: Linux's slabs grow while RCU has not given back \
    the areas of `vm_area_free`; how soon RCU does is a matter of the guest's speed (by the logs, not proven)";

/// A violation is the first use of a frame since the boot.
const FRAMES: &str = "a violation is the first use of a frame; which frames the boot has used, and in which order \
    the allocator gives them, differs between the captured guest and the counted (not proven)";

/// Causes of rows that are not close: program, reason, and KVM's function with an explanation. `*` matches
/// any.
const CAUSES: &[(&str, &str, &str)] = &[
    (
        "thp-touch",
        "*",
        "`kvm_tdp_mmu_map` and `FNAME(fetch)` map what is cold, 512 entries for each huge page that the guest's \
         allocator takes from memory never used before; that number differs between the captured guest and \
         the counted, and from run to run",
    ),
    (
        "many-tables",
        "*",
        "`kvm_mmu_zap_oldest_mmu_pages` zaps the oldest tables first. If the guest walks all of them in \
         order, either all were zapped, or some survived and fewer are rebuilt; which of the two depends on \
         what was shadowed before, and differs from run to run",
    ),
    (
        "fork",
        "hidden_fault",
        "QEMU, under which programs are captured, executes `addq $4, __fork_generation` of each child as a load, \
         for which `FNAME(fetch)` maps the page read-only, and a store, which faults again. Bochs translates the \
         address once, for a write, as processors do",
    ),
    (
        "idle",
        "cr4_write",
        "work that the guest's kernel puts off at its boot writes CR4 on each vCPU; it falls into the window of `idle` or before it",
    ),
    ("mprotect-invlpg", "hidden_fault", AREAS),
    ("mprotect-full", "hidden_fault", AREAS),
    ("mprotect-invlpg", "violation", AREAS),
    ("touch-cold", "violation", FRAMES),
    ("munmap-sweep", "violation", FRAMES),
    ("vcpus-fork", "violation", FRAMES),
    ("*", "permission", REUSE),
    ("*", "unprotect", REUSE),
    ("*", "unsync", REUSE),
];

/// What a page of several vCPUs says beside.
const SEVERAL: &str = "\nThe laboratory has one CPU, on which the threads of the vCPUs take turns. Counts are of all vCPUs together.\n";

/// What a page of guests within guests says beside.
const WITHIN: &str = "\nThe laboratory runs another one under its KVM, in which KVM runs the guests. The reasons are those of exits to the inner \
    hypervisor, each of which passes the outer one. Exits to the outer one alone: `outer_fills` for missing composed entries, `outer_stores` \
    for stores to the inner hypervisor's nested tables, `outer_flushes` for its INVLPGA.\n";

fn cause(row: &ExitRow) -> &'static str {
    let fits = |pattern: &str, value: &str| pattern == "*" || pattern == value;
    CAUSES
        .iter()
        .find(|(program, reason, _)| fits(program, &row.program) && fits(reason, &row.reason))
        .map_or("not explained", |(_, _, why)| why)
}

/// Today's date (UTC).
pub(crate) fn today() -> String {
    let out = Command::new("date").args(["-u", "+%F"]).output();
    out.map(|o| String::from_utf8_lossy(&o.stdout).trim().to_owned()).unwrap_or_default()
}

pub(crate) fn emulators(lab: &Lab) -> String {
    format!(
        "emulator of {}'s processor: {}; VMM of the inner guests: QEMU {}",
        lab.vendor().name,
        lab.emulator(),
        lab.qemu_version()
    )
}

/// The page of one kernel.
pub fn page(lab: &Lab, workload: &Workload, settings: &Settings, rows: &[ExitRow]) -> String {
    let tally = tally(rows);
    let of = |v: Verdict| tally.get(&v).copied().unwrap_or(0);
    let (close, off, far) = (of(Verdict::Close), of(Verdict::Off), of(Verdict::Far));
    let share = 100.0 * close as f64 / rows.len().max(1) as f64;
    let inside = settings.configs.iter().any(|name| INSIDE.contains(name));
    let mut out = format!(
        "# Exits: the model beside KVM of Linux {kernel}{of}\n\n\
         Written by `lab validate{option}` on {date}. Kernel of {kernels};\n\
         {emulators}. Guests of {memory} MiB, {vcpus} vCPU{s}; {runs} runs per\n\
         configuration under KVM. What the columns mean, and how this is done: `docs/design/validation.md`.\n\
         Counts of the model: {COUNTS_DIGEST}.\n\n\
         {all} rows: **{close} close** ({share:.1} %: within 5 %, or within 10 counts below 200), {off} off \
         (within 25 %), {far} far.\n",
        kernel = lab.kernel().version,
        of = match workload.tables {
            TableFormat::FourLevel if inside => ", guests within guests".into(),
            TableFormat::FourLevel => String::new(),
            other => format!(", guests with tables of format {}", other.name()),
        },
        kernels = match (&lab.kernel().version, &lab.inner().version) {
            (host, inner) if host == inner => format!("laboratory and guests: Debian's {host}"),
            (host, inner) => format!("the laboratory: Debian's {host}, of the guests: {inner}"),
        },
        date = today(),
        emulators = emulators(lab),
        memory = workload.memory_mib,
        vcpus = workload.vcpus,
        option = match workload.vcpus {
            1 if inside => " --inside".into(),
            1 => String::new(),
            vcpus => format!(" --vcpus {vcpus}"),
        },
        s = if workload.vcpus == 1 { "" } else { "s" },
        runs = settings.runs,
        all = rows.len(),
    );
    if workload.vcpus > 1 {
        out.push_str(SEVERAL);
    }
    if inside {
        out.push_str(WITHIN);
    }
    not_close(&mut out, rows);
    for &kpti in &settings.kpti {
        for config in &settings.configs {
            let _ = write!(out, "\n## {config}, KPTI {}\n\n", if kpti { "on" } else { "off" });
            out.push_str(&markdown(rows.iter().filter(|r| r.kpti == kpti && r.config == *config)));
        }
    }
    out
}

/// Rows that are not close, and the causes.
fn not_close(out: &mut String, rows: &[ExitRow]) {
    let not_close: Vec<&ExitRow> = rows.iter().filter(|r| r.verdict() != Verdict::Close).collect();
    if !not_close.is_empty() {
        out.push_str("\n## Rows that are not close\n\n");
        out.push_str(&markdown(not_close.iter().copied()));
        out.push('\n');
        let mut said = Vec::new();
        for r in not_close {
            let line = format!("- `{}`, {}: {}\n", r.program, r.reason, cause(r));
            if !said.contains(&line) {
                out.push_str(&line);
                said.push(line);
            }
        }
    }
}
