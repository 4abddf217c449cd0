// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts one phase exactly, from the kernel's trace of KVM's events and KVM's statistics.
//!
//! A separate trace instance holds the events since the last [`Trace::clear`]. The guest is stopped whenever
//! the trace is cleared or read, so no event is missed or counted twice. [`Vendor`] decodes the reason and
//! information of `kvm:kvm_exit`. `kvmmmu` events are counted by name. KVM's statistics come from debugfs,
//! where each VM has a directory.

use crate::vendor::{ExitCause, PagingExit, RawExit, Vendor};
use crate::vm::{Unavailable, vendor};
use anyhow::{Context, Result, ensure};
use serde::Serialize;
use std::collections::BTreeMap;
use std::fs;
use std::io::Write;
use std::path::{Path, PathBuf};

const INSTANCE: &str = "/sys/kernel/tracing/instances/tiny-vmm";
const PROBES: &str = "/sys/kernel/tracing/kprobe_events";
const EVENTS: [&str; 7] = [
    "kvm/kvm_exit",
    "kvm/kvm_inj_exception",
    "kvm/kvm_emulate_insn",
    "kvmmmu/kvm_mmu_get_page",
    "kvmmmu/kvm_mmu_prepare_zap_page",
    "kvmmmu/kvm_mmu_unsync_page",
    "kvmmmu/kvm_mmu_sync_page",
];

/// An event `kvm_exit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct TracedExit {
    /// Reason as the trace prints it: `npf`, `PF excp`, `write_cr3`.
    pub reason: String,
    /// Address of the guest's instruction.
    pub rip: u64,
    /// The decoded exit, if it concerns paging.
    pub paging: Option<PagingExit>,
}

/// The events of a trace.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Events {
    /// Exits in order.
    #[serde(skip)]
    pub exits: Vec<TracedExit>,
    /// Number of other events by name; root pages also as `kvm_mmu_get_page l4`.
    #[serde(flatten)]
    pub others: BTreeMap<String, u64>,
}

impl Events {
    /// Exits by reason and error code (hexadecimal; only of faults).
    pub fn by_reason(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut out: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for e in &self.exits {
            let code = e.fault().map_or(String::new(), |error| format!("{error:#x}"));
            *out.entry(e.reason.clone()).or_default().entry(code).or_default() += 1;
        }
        out
    }

    /// Exits that `which` accepts.
    pub fn count(&self, which: impl Fn(&TracedExit) -> bool) -> u64 {
        self.exits.iter().filter(|e| which(e)).count() as u64
    }

    /// Number of exits with this cause.
    pub fn caused_by(&self, cause: ExitCause) -> u64 {
        self.count(|e| e.paging.is_some_and(|p| p.cause == cause))
    }

    /// Number of events with this name.
    pub fn named(&self, name: &str) -> u64 {
        self.others.get(name).copied().unwrap_or(0)
    }
}

impl TracedExit {
    /// The error code of a fault, intercepted or of the nested tables.
    pub fn fault(&self) -> Option<u64> {
        let fault = |p: &PagingExit| matches!(p.cause, ExitCause::PageFault | ExitCause::NestedFault);
        self.paging.filter(fault).map(|p| p.error)
    }
}

/// Reads the text of a trace.
pub fn parse(text: &str, vendor: &Vendor) -> Result<Events> {
    let mut events = Events::default();
    for line in text.lines().filter(|l| !l.starts_with('#') && !l.trim().is_empty()) {
        ensure!(!line.contains("LOST"), "the trace lost events: its buffer is too small");
        let (name, rest) = event(line).with_context(|| format!("no event in the trace's line `{line}`"))?;
        if name != "kvm_exit" {
            *events.others.entry(name.to_owned()).or_default() += 1;
            if name == "kvm_mmu_get_page" && rest.contains(" l4 ") {
                *events.others.entry(format!("{name} l4")).or_default() += 1;
            }
            continue;
        }
        let exit = exit(rest, vendor).with_context(|| format!("no exit in `{line}`"))?;
        events.exits.push(exit);
    }
    Ok(events)
}

/// Name and text of the event in a line: they follow the time, a number with a colon.
fn event(line: &str) -> Option<(&str, &str)> {
    let mut at = 0;
    for word in line.split_whitespace() {
        at = line[at..].find(word)? + at + word.len();
        if word.ends_with(':') && word.contains('.') && word[..word.len() - 1].parse::<f64>().is_ok() {
            return line[at..].trim_start().split_once(": ");
        }
    }
    None
}

fn exit(text: &str, vendor: &Vendor) -> Option<TracedExit> {
    let (_, text) = text.split_once(" reason ")?;
    let (reason, text) = text.split_once(" rip ")?;
    let word = |key: &str| {
        let (_, t) = text.split_once(key)?;
        u64::from_str_radix(t.split_whitespace().next()?.trim_start_matches("0x"), 16).ok()
    };
    let rip = u64::from_str_radix(text.split_whitespace().next()?.trim_start_matches("0x"), 16).ok()?;
    let (info1, info2, intr_info) = (word(" info1 ")?, word(" info2 ")?, word(" intr_info ").unwrap_or(0));
    let error_code = word(" error_code ").unwrap_or(0);
    let raw = |exit_reason| RawExit { exit_reason, info1, info2, intr_info, error_code };
    let reason = reason.trim().to_owned();
    let paging = vendor.exit_reason(&reason).and_then(|code| (vendor.decode)(&raw(code)));
    Some(TracedExit { reason, rip, paging })
}

/// A trace instance.
#[derive(Debug)]
pub struct Trace {
    at: PathBuf,
    /// The vendor that decodes exits.
    pub vendor: &'static Vendor,
}

impl Trace {
    /// Makes the instance and enables the events.
    pub fn new() -> Result<Trace> {
        let vendor = vendor()?;
        let at = PathBuf::from(INSTANCE);
        if !at.is_dir() {
            fs::create_dir(&at).map_err(|e| Unavailable(format!("cannot make {INSTANCE}: {e}")))?;
        }
        let trace = Trace { at, vendor };
        trace.set("buffer_size_kb", "8192")?;
        for event in EVENTS {
            trace.set(&format!("events/{event}/enable"), "1")?;
        }
        trace.set("tracing_on", "1")?;
        Ok(trace)
    }

    fn set(&self, file: &str, value: &str) -> Result<()> {
        let path = self.at.join(file);
        fs::write(&path, value).with_context(|| format!("{}", path.display()))
    }

    /// Clears the trace.
    pub fn clear(&self) -> Result<()> {
        self.set("trace", "")
    }

    /// Traces a kernel function as an event `tinyvmm/NAME`. `fetch` names its arguments
    /// (Documentation/trace/kprobetrace.rst).
    pub fn probe(&self, name: &str, function: &str, fetch: &str) -> Result<()> {
        // Appended, because truncating the file would remove all probes.
        let probe = format!("p:tinyvmm/{name} {function} {fetch}");
        fs::OpenOptions::new()
            .append(true)
            .open(PROBES)
            .and_then(|mut f| f.write_all(probe.as_bytes()))
            .map_err(|e| Unavailable(format!("cannot probe {function}: {e}")))?;
        self.set(&format!("events/tinyvmm/{name}/enable"), "1")
    }

    /// The trace's text since the last clear.
    pub fn text(&self) -> Result<String> {
        let path = self.at.join("trace");
        fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
    }

    /// The events since the last clear.
    pub fn read(&self) -> Result<Events> {
        parse(&self.text()?, self.vendor)
    }
}

impl Drop for Trace {
    fn drop(&mut self) {
        let _ = self.set("events/enable", "0");
        let _ = fs::remove_dir(&self.at);
        // A probe in use cannot be removed; one that never was, neither.
        let _ =
            fs::OpenOptions::new().append(true).open(PROBES).and_then(|mut f| f.write_all(b"-:tinyvmm/root"));
    }
}

/// KVM's statistics of a VM, by name. Statistics of vCPUs are sums.
pub fn statistics(debugfs: &Path) -> Result<BTreeMap<String, i64>> {
    let mut out = BTreeMap::new();
    for file in fs::read_dir(debugfs).with_context(|| format!("{}", debugfs.display()))? {
        let file = file?;
        if !file.file_type()?.is_file() {
            continue;
        }
        // Some files are tables, not numbers.
        if let Some(n) = fs::read_to_string(file.path()).ok().and_then(|t| t.trim().parse().ok()) {
            out.insert(file.file_name().to_string_lossy().into_owned(), n);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::vendor::AMD;

    const TEXT: &str = "# tracer: nop\n#\n\
        tiny-vmm-98 [000] ..... 10.231749: kvm_exit: vcpu 0 reason PF excp rip 0xffffffff81171ab3 info1 \
        0x0000000000000002 info2 0x00000000022c2bc4 intr_info 0x00000000 error_code 0x00000000\n\
        a thread-98 [000] d..1. 10.300000: kvm_mmu_unsync_page: sp gen 0 gfn 103 l1 8-byte q0 direct wux nxe ad root 0 sync\n\
        tiny-vmm-98 [000] ..... 10.31: kvm_exit: vcpu 0 reason npf rip 0x10 info1 0x0000000100000006 info2 0x5000 \
        intr_info 0x00000000 error_code 0x00000000\n";

    #[test]
    fn exits_and_other_events_are_told_apart() {
        let events = parse(TEXT, &AMD).unwrap();
        assert_eq!(events.named("kvm_mmu_unsync_page"), 1);
        assert_eq!(events.caused_by(ExitCause::PageFault), 1);
        assert_eq!(events.caused_by(ExitCause::NestedFault), 1);
        assert_eq!(events.exits[0].paging.unwrap().address, 0x22c_2bc4);
        assert_eq!(events.exits[1].rip, 0x10);
        assert_eq!(events.by_reason()["npf"]["0x100000006"], 1);
    }

    #[test]
    fn a_trace_that_lost_events_is_refused() {
        assert!(parse("CPU:0 [LOST 12 EVENTS]\n", &AMD).is_err());
        assert!(parse("nonsense\n", &AMD).is_err());
    }
}
