// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of advice: each looks at one fact of a host and says what to do, and why.
//!
//! Thresholds stand beside the rules that use them, and they are rough on purpose: they separate hosts that
//! are clearly on one side. The reasons give the figures, for a host that is near a threshold.

mod guests;
mod memory;
mod scan;

use super::{GuestKsm, Observed};
use bifold_host::ksm::{Activity, Counter, Setting};

const PAGE: u64 = 4096;
/// Below this share of available memory a host is short of it: where ksmtuned starts KSM.
const SHORT: f64 = 0.2;
/// Above this one it has plenty.
const PLENTY: f64 = 0.5;
/// Percent of a minute in which tasks waited for memory that nobody can overlook.
const WAITING: f64 = 1.0;
/// ksmd's CPU time is dear above this share of a processor, averaged since boot.
const DEAR: f64 = 0.2;
/// Target time of a pass that suits hosts whose guests live for hours, seconds (the kernel's default).
const PASS_S: u64 = 200;

/// What kind of advice it is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Turn it on or change a setting.
    Try,
    /// Turn it off, for all or for some.
    TurnOff,
    /// Know this before sharing.
    Beware,
    /// All is well.
    Keep,
}

impl Kind {
    /// Its word in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Try => "try",
            Kind::TurnOff => "turn off",
            Kind::Beware => "beware",
            Kind::Keep => "keep",
        }
    }
}

/// One thing to do or to know.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Recommendation {
    /// A word that tells rules apart, for scripts.
    pub rule: &'static str,
    /// What kind it is.
    pub kind: Kind,
    /// What to do.
    pub what: String,
    /// Why.
    pub why: String,
    /// How, as commands or configuration.
    pub how: Vec<String>,
}

/// What a host's KSM is worth and what to do.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Bytes that KSM saves now: sharing pages, and pages made mappings of the zero page.
    pub saved: u64,
    /// The same less KSM's own records, as the kernel counts.
    pub profit: Option<i64>,
    /// Bytes of pages that ksmd has looked at and found alone: saved if an equal one comes.
    pub alone: u64,
    /// Bytes of pages that changed between two looks, or were not looked at twice yet.
    pub changing: u64,
    /// ksmd's CPU time since boot, as a share of one processor.
    pub cpu: Option<f64>,
    /// What to do, the most pressing first.
    pub recommendations: Vec<Recommendation>,
}

/// A host and short answers about it.
struct View<'a>(&'a Observed);

impl View<'_> {
    fn counter(&self, c: Counter) -> u64 {
        self.0.counters.get(c).and_then(|n| u64::try_from(n).ok()).unwrap_or(0)
    }

    fn setting(&self, s: Setting) -> Option<u64> {
        self.0.settings.get(s)
    }

    fn runs(&self) -> bool {
        self.setting(Setting::Run) == Some(1)
    }

    fn free(&self) -> Option<f64> {
        let memory = self.0.memory;
        Some(memory.available? as f64 / memory.total.filter(|t| *t > 0)? as f64)
    }

    fn waits(&self) -> bool {
        self.0.pressure.is_some_and(|p| p.some_60 > WAITING)
    }

    fn short(&self) -> bool {
        self.waits() || self.free().is_some_and(|f| f < SHORT)
    }

    fn plenty(&self) -> bool {
        !self.waits() && self.free().is_some_and(|f| f > PLENTY)
    }

    fn cpu(&self) -> Option<f64> {
        self.0.activity.since(&Activity::BOOT).ksmd_share()
    }

    fn memory_words(&self) -> String {
        let free = self.free().map_or("an unknown share".into(), |f| format!("{:.0} %", 100.0 * f));
        let waiting = self.0.pressure.map_or(String::new(), |p| {
            format!(", and tasks waited for memory {:.1} % of the last minute (PSI)", p.some_60)
        });
        format!("{free} of memory is available{waiting}")
    }

    fn mergeable(&self) -> Vec<&GuestKsm> {
        let mergeable = |v: &&GuestKsm| {
            v.ksm.mergeable == Some(true)
                || v.ksm.merge_any == Some(true)
                || v.ksm.rmap_items.unwrap_or(0) > 0
                || v.ksm.merging_pages.unwrap_or(0) > 0
        };
        self.0.vms.iter().filter(mergeable).collect()
    }
}

fn ksm_file(name: Setting, value: &str) -> String {
    format!("echo {value} > /sys/kernel/mm/ksm/{}", name.name())
}

fn names<'a>(vms: impl Iterator<Item = &'a GuestKsm>) -> String {
    vms.map(|v| format!("{} ({})", v.process.name, v.process.pid)).collect::<Vec<_>>().join(", ")
}

/// How to exclude single guests from KSM.
fn per_vm() -> Vec<String> {
    [
        "QEMU: -machine mem-merge=off, or merge=off in -object memory-backend-...; at its next start",
        "libvirt: <memoryBacking><nosharepages/></memoryBacking> in the domain's XML; at its next start",
        "a VMM that marked all of its memory: prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) (systemd: MemoryKSM=no)",
    ]
    .map(String::from)
    .into()
}

/// What to do about a host.
pub fn advise(host: &Observed) -> Advice {
    let v = View(host);
    let saved = (v.counter(Counter::PagesSharing) + v.counter(Counter::KsmZeroPages)) * PAGE;
    let rules: [fn(&View) -> Option<Recommendation>; 14] = [
        guests::owners,
        memory::no_profit,
        memory::not_needed,
        memory::turn_on,
        guests::latency,
        memory::unmerge,
        scan::numa,
        guests::huge_pages,
        scan::dear,
        scan::slow,
        scan::smart_scan,
        scan::zero_pages,
        scan::changing,
        guests::unreached,
    ];
    let mut recommendations: Vec<Recommendation> = rules.iter().filter_map(|rule| rule(&v)).collect();
    if !recommendations.iter().any(|r| matches!(r.kind, Kind::Try | Kind::TurnOff)) {
        recommendations.push(Recommendation {
            rule: "keep",
            kind: Kind::Keep,
            what: if v.runs() { "leave KSM as it is".into() } else { "leave KSM off".into() },
            why: v.memory_words(),
            how: vec!["bifold share watch".into()],
        });
    }
    Advice {
        saved,
        profit: host.counters.get(Counter::GeneralProfit),
        alone: v.counter(Counter::PagesUnshared) * PAGE,
        changing: v.counter(Counter::PagesVolatile) * PAGE,
        cpu: v.cpu(),
        recommendations,
    }
}
