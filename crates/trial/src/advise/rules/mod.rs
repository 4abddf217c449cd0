// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules of advice. Each rule examines one fact of a host and says what to do, and why.
//!
//! Thresholds stand beside the rules that use them. They are rough on purpose and fit hosts that are clearly
//! on one side. Reasons contain the figures, for a host that is near a threshold.

mod guests;
mod memory;
mod scan;

use super::{GuestKsm, Observed};
use bifold_host::ksm::{Activity, Counter, Setting};
use schemars::JsonSchema;
use serde::{Serialize, Serializer};

const PAGE: u64 = 4096;
/// A host with less available memory than this share is short of memory. ksmtuned starts KSM here.
const SHORT: f64 = 0.2;
/// A host with more available memory than this share has plenty.
const PLENTY: f64 = 0.5;
/// Above this percentage of a minute in which tasks waited for memory, memory is short.
const WAITING: f64 = 1.0;
/// Above this share of a processor, averaged since boot, ksmd's CPU time is high.
const DEAR: f64 = 0.2;
/// Target time of a pass in seconds, for guests that live for hours (the kernel's default).
const PASS_S: u64 = 200;

/// The kind of a recommendation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Turn KSM on, or change a setting.
    Try,
    /// Turn KSM off, for all guests or for some.
    TurnOff,
    /// Know this before sharing.
    Beware,
    /// Nothing has to change.
    Keep,
}

impl Kind {
    /// The kind's word in results.
    pub fn name(self) -> &'static str {
        match self {
            Kind::Try => "try",
            Kind::TurnOff => "turn off",
            Kind::Beware => "beware",
            Kind::Keep => "keep",
        }
    }
}

/// A recommendation.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, JsonSchema)]
#[schemars(rename = "RecommendationRow")]
pub struct Recommendation {
    /// Name of the rule.
    pub rule: &'static str,
    /// Kind of recommendation: `try`, `turn off`, `beware` or `keep`.
    #[serde(serialize_with = "kind_name")]
    #[schemars(with = "String")]
    pub kind: Kind,
    /// What to do.
    pub what: String,
    /// Why, with figures.
    pub why: String,
    /// Commands or configuration that do this.
    pub how: Vec<String>,
}

fn kind_name<S: Serializer>(kind: &Kind, to: S) -> Result<S::Ok, S::Error> {
    to.serialize_str(kind.name())
}

/// What a host's KSM saves and costs, and recommendations.
#[derive(Debug, Clone, PartialEq)]
pub struct Advice {
    /// Bytes that KSM saves now: sharing pages, and pages that became mappings of the zero page.
    pub saved: u64,
    /// Bytes saved minus KSM's own records (the kernel's `general_profit`).
    pub profit: Option<i64>,
    /// Bytes of pages that ksmd has visited and that have no equal page yet.
    pub alone: u64,
    /// Bytes of pages that changed between two visits, or were not visited twice yet.
    pub changing: u64,
    /// ksmd's CPU time since boot, as a share of one processor.
    pub cpu: Option<f64>,
    /// Recommendations, the most urgent first.
    pub recommendations: Vec<Recommendation>,
}

/// Derived facts of an observed host.
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
    vms.map(|v| format!("{} ({})", v.guest.name, v.guest.pid)).collect::<Vec<_>>().join(", ")
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

/// The recommendations for a host.
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
