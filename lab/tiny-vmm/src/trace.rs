// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Exact counts of one phase: the kernel's trace of KVM's events, and KVM's own statistics.
//!
//! A trace instance of our own holds the events since the last [`Trace::clear`]; the guest
//! is stopped whenever it is cleared or read, so nothing is missed or counted twice.
//! `kvm:kvm_exit` has the exit's reason and its two words of information (AMD: EXITINFO1 is
//! the error code of #PF and #NPF, EXITINFO2 the address). `kvmmmu` events are counted by
//! name. KVM's statistics are read from debugfs, where each VM has a directory.

use crate::vm::Unavailable;
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

/// One `kvm_exit`.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Exit {
    /// As the trace prints it: `npf`, `PF excp`, `write_cr3`.
    pub reason: String,
    /// Where the guest was.
    pub rip: u64,
    /// EXITINFO1.
    pub info1: u64,
    /// EXITINFO2.
    pub info2: u64,
}

/// What a trace held.
#[derive(Debug, Clone, Default, Serialize)]
pub struct Events {
    /// Exits, in their order.
    #[serde(skip)]
    pub exits: Vec<Exit>,
    /// Number of other events by name; root pages also as `kvm_mmu_get_page l4`.
    #[serde(flatten)]
    pub others: BTreeMap<String, u64>,
}

impl Events {
    /// Exits by reason and EXITINFO1 (hexadecimal; only of #PF and #NPF).
    pub fn by_reason(&self) -> BTreeMap<String, BTreeMap<String, u64>> {
        let mut out: BTreeMap<String, BTreeMap<String, u64>> = BTreeMap::new();
        for e in &self.exits {
            let code =
                if e.is_page_fault() || e.is_nested_fault() { format!("{:#x}", e.info1) } else { "".into() };
            *out.entry(e.reason.clone()).or_default().entry(code).or_default() += 1;
        }
        out
    }

    /// Exits that `which` accepts.
    pub fn count(&self, which: impl Fn(&Exit) -> bool) -> u64 {
        self.exits.iter().filter(|e| which(e)).count() as u64
    }

    /// Events of that name.
    pub fn named(&self, name: &str) -> u64 {
        self.others.get(name).copied().unwrap_or(0)
    }
}

impl Exit {
    /// #PF of the guest, intercepted because its tables are shadowed.
    pub fn is_page_fault(&self) -> bool {
        self.reason.eq_ignore_ascii_case("PF excp")
    }

    /// #NPF.
    pub fn is_nested_fault(&self) -> bool {
        self.reason.eq_ignore_ascii_case("npf")
    }

    /// Is it this one? KVM's trace has changed its letters' case over time.
    pub fn is(&self, reason: &str) -> bool {
        self.reason.eq_ignore_ascii_case(reason)
    }
}

/// Reads the text of a trace.
pub fn parse(text: &str) -> Result<Events> {
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
        let exit = exit(rest).with_context(|| format!("no exit in `{line}`"))?;
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

fn exit(text: &str) -> Option<Exit> {
    let (_, text) = text.split_once(" reason ")?;
    let (reason, text) = text.split_once(" rip ")?;
    let word = |key: &str| {
        let (_, t) = text.split_once(key)?;
        u64::from_str_radix(t.split_whitespace().next()?.trim_start_matches("0x"), 16).ok()
    };
    let rip = u64::from_str_radix(text.split_whitespace().next()?.trim_start_matches("0x"), 16).ok()?;
    Some(Exit { reason: reason.trim().to_owned(), rip, info1: word(" info1 ")?, info2: word(" info2 ")? })
}

/// A trace instance.
#[derive(Debug)]
pub struct Trace {
    at: PathBuf,
}

impl Trace {
    /// Makes the instance and switches the events on.
    pub fn new() -> Result<Trace> {
        let at = PathBuf::from(INSTANCE);
        if !at.is_dir() {
            fs::create_dir(&at).map_err(|e| Unavailable(format!("cannot make {INSTANCE}: {e}")))?;
        }
        let trace = Trace { at };
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

    /// Forgets what was traced.
    pub fn clear(&self) -> Result<()> {
        self.set("trace", "")
    }

    /// Traces a function of the kernel as an event `tinyvmm/NAME` with what `fetch` says of
    /// its arguments (Documentation/trace/kprobetrace.rst).
    pub fn probe(&self, name: &str, function: &str, fetch: &str) -> Result<()> {
        // Appended: opening the file anew would remove everybody's.
        let probe = format!("p:tinyvmm/{name} {function} {fetch}");
        fs::OpenOptions::new()
            .append(true)
            .open(PROBES)
            .and_then(|mut f| f.write_all(probe.as_bytes()))
            .map_err(|e| Unavailable(format!("cannot probe {function}: {e}")))?;
        self.set(&format!("events/tinyvmm/{name}/enable"), "1")
    }

    /// The text of what was traced since.
    pub fn text(&self) -> Result<String> {
        let path = self.at.join("trace");
        fs::read_to_string(&path).with_context(|| format!("{}", path.display()))
    }

    /// What was traced since.
    pub fn read(&self) -> Result<Events> {
        parse(&self.text()?)
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

/// KVM's statistics of one VM, by name. Those of its vCPUs are summed there.
pub fn statistics(debugfs: &Path) -> Result<BTreeMap<String, i64>> {
    let mut out = BTreeMap::new();
    for file in fs::read_dir(debugfs).with_context(|| format!("{}", debugfs.display()))? {
        let file = file?;
        if !file.file_type()?.is_file() {
            continue;
        }
        // Some files are tables for reading by people.
        if let Some(n) = fs::read_to_string(file.path()).ok().and_then(|t| t.trim().parse().ok()) {
            out.insert(file.file_name().to_string_lossy().into_owned(), n);
        }
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    const TEXT: &str = "# tracer: nop\n#\n\
        tiny-vmm-98 [000] ..... 10.231749: kvm_exit: vcpu 0 reason PF excp rip 0xffffffff81171ab3 info1 \
        0x0000000000000002 info2 0x00000000022c2bc4 intr_info 0x00000000 error_code 0x00000000\n\
        a thread-98 [000] d..1. 10.300000: kvm_mmu_unsync_page: sp gen 0 gfn 103 l1 8-byte q0 direct wux nxe ad root 0 sync\n\
        tiny-vmm-98 [000] ..... 10.31: kvm_exit: vcpu 0 reason npf rip 0x10 info1 0x0000000100000006 info2 0x5000 \
        intr_info 0x00000000 error_code 0x00000000\n";

    #[test]
    fn exits_and_other_events_are_told_apart() {
        let events = parse(TEXT).unwrap();
        assert_eq!(events.named("kvm_mmu_unsync_page"), 1);
        assert_eq!(events.count(Exit::is_page_fault), 1);
        assert_eq!(events.count(Exit::is_nested_fault), 1);
        assert_eq!(events.exits[0].info2, 0x22c_2bc4);
        assert_eq!(events.exits[1].rip, 0x10);
        assert_eq!(events.by_reason()["npf"]["0x100000006"], 1);
    }

    #[test]
    fn a_trace_that_lost_events_is_refused() {
        assert!(parse("CPU:0 [LOST 12 EVENTS]\n").is_err());
        assert!(parse("nonsense\n").is_err());
    }
}
