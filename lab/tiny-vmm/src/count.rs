// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs a guest phase by phase under KVM and compares its counts with the model's.

use crate::guest::Guest;
use crate::known;
use crate::memory::HostPages;
use crate::predict::{Counts, predict};
use crate::trace::{Events, Trace, statistics};
use crate::vendor::ExitCause::{Invlpg, NestedFault, PageFault, ReadCr, WriteCr};
use crate::vm::{TinyVm, host_kernel, host_mode};
use anyhow::{Context, Result, ensure};
use bifold_model::{Config, KvmVersion, Paging};
use serde::Serialize;
use std::collections::BTreeMap;

/// Error code of a fault: present, write, fetch; and of the nested tables: on a guest table.
const PRESENT: u64 = 1;
const WRITE: u64 = 1 << 1;
const FETCH: u64 = 1 << 4;
const GUEST_TABLE: u64 = 1 << 33;

/// A line of output: predicted and counted exits of a phase.
#[derive(Debug, Serialize)]
pub struct PhaseFact {
    pub fact: &'static str,
    pub guest: &'static str,
    pub phase: String,
    pub vcpu: usize,
    pub kernel: String,
    pub config: String,
    pub backing: HostPages,
    /// Whether all counts that the model predicts are equal.
    pub agree: bool,
    /// Names of the counts that differ.
    pub differ: Vec<&'static str>,
    /// Why counts differ, if known.
    pub known: Option<&'static str>,
    /// Exits for paging by reasoning, for Linux 6.1.
    pub closed: Option<u64>,
    /// Whether the exits by reasoning are equal to the counted exits.
    pub closed_holds: Option<bool>,
    /// Whether KVM's statistics agree with the trace.
    pub cross_check: bool,
    pub predicted: Counts,
    pub counted: Counts,
    /// Exits by reason and error code; the marker's is among `io`.
    pub exits: BTreeMap<String, BTreeMap<String, u64>>,
    /// Other trace events by name.
    pub events: Events,
    /// KVM's statistics that changed.
    pub statistics: BTreeMap<String, i64>,
}

/// Counts of a phase, from the trace and the statistics.
pub fn counts(mode: Paging, events: &Events, stats: &BTreeMap<String, i64>) -> Counts {
    let stat = |name: &str| stats.get(name).copied().unwrap_or(0).max(0) as u64;
    let fault = if mode == Paging::Nested { NestedFault } else { PageFault };
    let of = |which: &dyn Fn(u64) -> bool| {
        events.count(|e| e.paging.is_some_and(|p| p.cause == fault && which(p.error)))
    };
    // Where CR0 reads are intercepted, QEMU (9.1 and later) takes a CR3 read for one: exit
    // code 0. That is of no interest where CR3 reads are not intercepted.
    let misnamed = if mode == Paging::Shadow { events.caused_by(ReadCr(0)) } else { 0 };
    Counts {
        faults: of(&|_| true),
        table: of(&|c| c & GUEST_TABLE != 0),
        write: of(&|c| c & GUEST_TABLE == 0 && c & WRITE != 0),
        fetch: of(&|c| c & GUEST_TABLE == 0 && c & FETCH != 0),
        read: of(&|c| c & (GUEST_TABLE | WRITE | FETCH) == 0),
        present: of(&|c| c & PRESENT != 0),
        guest: stat("pf_guest"),
        unsync: events.named("kvm_mmu_unsync_page"),
        emulated: stat("mmu_pte_write"),
        cr3_write: events.caused_by(WriteCr(3)),
        cr3_read: events.caused_by(ReadCr(3)) + misnamed,
        cr4_write: events.caused_by(WriteCr(4)),
        invlpg: events.caused_by(Invlpg),
        root_misses: events.named("kvm_mmu_get_page l4"),
        pages_made: stat("mmu_cache_miss"),
        pages_zapped: stat("mmu_shadow_zapped"),
        ..Counts::default()
    }
}

/// Names of the counts that the model predicts wrongly.
pub fn differ(mode: Paging, predicted: &Counts, counted: &Counts) -> Vec<&'static str> {
    let (p, c) = (predicted, counted);
    let mut out = Vec::new();
    let mut check = |name, same: bool| {
        if !same {
            out.push(name);
        }
    };
    check("faults", p.faults == c.faults);
    if c.table == 0 {
        check("read", p.read == c.read);
        check("write", p.write == c.write);
        check("fetch", p.fetch == c.fetch);
    }
    check("cr3_write", p.cr3_write == c.cr3_write);
    check("cr3_read", p.cr3_read == c.cr3_read);
    check("cr4_write", p.cr4_write == c.cr4_write);
    check("invlpg", p.invlpg == c.invlpg);
    if mode == Paging::Shadow {
        check("guest", p.guest == c.guest);
        // The model counts the exits that had no other reason.
        check("unsync", p.unsync <= c.unsync);
        check("emulated", p.emulated == c.emulated);
        check("present", p.present <= c.present);
        check("root_misses", p.root_misses == c.root_misses);
        check("pages_made", p.pages_made == c.pages_made);
        check("pages_zapped", p.pages_zapped == c.pages_zapped);
    }
    out
}

/// Whether trace and statistics have the same number of exits, including interrupts of the host.
fn cross_check(events: &Events, stats: &BTreeMap<String, i64>) -> bool {
    stats.get("exits").copied().unwrap_or(0) == events.exits.len() as i64
}

/// EAX of CPUID for a mark: "BIFO".
const LEAF: u32 = 0x4249_464f;
/// ECX of the mark at a phase's begin, and at its end.
const BEGIN: u32 = 0x100;
const END: u32 = 0x200;

/// Marks a phase for a hypervisor below: CPUID exits wherever there is one, and KVM traces it as `kvm_cpuid`.
fn mark(what: u32) {
    // Later versions of Rust than the oldest supported one have it as a safe function.
    #[allow(unused_unsafe)]
    // SAFETY: every x86-64 processor has the instruction, which changes no memory.
    unsafe {
        std::arch::x86_64::__cpuid_count(LEAF, what);
    }
}

/// Runs `guest` on memory of kind `backing`, and reports the fact of each phase. With `once` it stops at the
/// first fact that does not agree, because later phases depend on it.
pub fn count(
    guest: &Guest,
    backing: HostPages,
    settings: &[String],
    once: bool,
    trace: &Trace,
    mut tell: impl FnMut(&PhaseFact) -> Result<()>,
) -> Result<bool> {
    let config = Config::new(host_mode(trace.vendor)?, backing.size());
    let kernel = host_kernel()?;
    let place = Config::ALL.iter().skip(1).position(|&c| c == config).context("a mode with exits")?;
    // The rules of this kernel's version and of this vendor, unless the user sets others.
    let own = KvmVersion::of_release(&kernel).map(|kvm| format!("kvm={}", kvm.name()));
    let vendor = format!("cpu.virtualization={}", trace.vendor.virtualization);
    let settings: Vec<String> = own.into_iter().chain([vendor]).chain(settings.iter().cloned()).collect();
    let predicted = predict(guest, config, &settings)?;
    let vm = TinyVm::new(guest, backing)?;
    let mut all = true;
    for (phase, predicted) in guest.phases.iter().zip(predicted) {
        let before = statistics(&vm.debugfs())?;
        trace.clear()?;
        mark(BEGIN);
        let values = vm.run(phase.vcpu)?;
        mark(END);
        let events = trace.read()?;
        let mut stats = statistics(&vm.debugfs())?;
        stats.iter_mut().for_each(|(name, n)| *n -= before.get(name).copied().unwrap_or(0));
        stats.retain(|_, n| *n != 0);
        ensure!(
            values == phase.values,
            "{}, {}: the guest read {values:x?}, not {:x?}",
            guest.name,
            phase.name,
            phase.values
        );
        let counted = counts(config.mode, &events, &stats);
        let differ = differ(config.mode, &predicted, &counted);
        let known = known::cause(guest.name, &phase.name).filter(|_| !differ.is_empty());
        all &= differ.is_empty() || known.is_some();
        tell(&PhaseFact {
            fact: "phase",
            guest: guest.name,
            phase: phase.name.clone(),
            vcpu: phase.vcpu,
            kernel: kernel.clone(),
            config: config.name(),
            backing,
            agree: differ.is_empty(),
            known,
            differ,
            closed: phase.closed.map(|c| c[place]),
            closed_holds: phase.closed.map(|c| c[place] == counted.exits()),
            cross_check: cross_check(&events, &stats),
            predicted,
            counted,
            exits: events.by_reason(),
            events,
            statistics: stats,
        })?;
        if once && !all {
            break;
        }
    }
    Ok(all)
}
