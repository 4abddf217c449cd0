// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The rules: each looks at one thing, and says what to do and why.
//!
//! Thresholds are stated where they stand. They are rough on purpose: what decides is on which side a
//! host clearly is, and the figures are in the reasons for whoever is near to one.

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

/// How to take single guests out of it.
fn per_vm() -> Vec<String> {
    [
        "QEMU: -machine mem-merge=off, or merge=off in -object memory-backend-...; at its next start",
        "libvirt: <memoryBacking><nosharepages/></memoryBacking> in the domain's XML; at its next start",
        "a VMM that turned it on for all of its memory: prctl(PR_SET_MEMORY_MERGE, 0, 0, 0, 0) (systemd: MemoryKSM=no)",
    ]
    .map(String::from)
    .into()
}

/// What to do about a host.
pub fn advise(host: &Observed) -> Advice {
    let v = View(host);
    let saved = (v.counter(Counter::PagesSharing) + v.counter(Counter::KsmZeroPages)) * PAGE;
    let rules: [fn(&View) -> Option<Recommendation>; 14] = [
        owners, no_profit, not_needed, turn_on, latency, off, numa, huge_pages, dear, slow, smart_scan,
        zero_pages, changing, unreached,
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

/// Who shares pages can find out about others' pages.
fn owners(v: &View) -> Option<Recommendation> {
    let vms = v.mergeable();
    if vms.len() < 2 || !(v.runs() || v.counter(Counter::PagesSharing) > 0) {
        return None;
    }
    let mut users: Vec<u32> = vms.iter().filter_map(|vm| vm.process.uid).collect();
    users.sort_unstable();
    users.dedup();
    let (kind, who) = match users.len() {
        2.. => (
            Kind::TurnOff,
            format!(
                "{} guests of {} users may share pages ({})",
                vms.len(),
                users.len(),
                names(vms.iter().copied())
            ),
        ),
        _ => (
            Kind::Beware,
            format!(
                "{} guests of one user of this host may share pages; whether their owners trust each other is not to be seen here",
                vms.len()
            ),
        ),
    };
    Some(Recommendation {
        rule: "owners",
        kind,
        what: "share pages only among guests whose owners trust each other".into(),
        why: format!(
            "{who}. A guest can tell by the time of a write whether another has a page that it has made (memory \
             deduplication side channels: Suzaki 2011, Dedup Est Machina 2016), watch which lines of a shared page \
             another uses (Flush+Reload, 2014), and with Rowhammer flip bits of a page that has been merged into one \
             that it owns (Flip Feng Shui, 2016)"
        ),
        how: per_vm(),
    })
}

/// It costs more than it saves.
fn no_profit(v: &View) -> Option<Recommendation> {
    let profit = v.0.counters.get(Counter::GeneralProfit)?;
    let passes = v.counter(Counter::FullScans);
    if !v.runs() || profit > 0 || passes < 3 {
        return None;
    }
    Some(Recommendation {
        rule: "no-profit",
        kind: Kind::TurnOff,
        what: "turn KSM off".into(),
        why: format!(
            "after {passes} passes its records take more memory than it saves (general_profit is {profit} bytes): there is little that is equal"
        ),
        how: vec![ksm_file(Setting::Run, "2")],
    })
}

/// It saves memory that nobody needs.
fn not_needed(v: &View) -> Option<Recommendation> {
    let cpu = v.cpu()?;
    if !v.runs() || !v.plenty() || cpu < 0.01 {
        return None;
    }
    Some(Recommendation {
        rule: "not-needed",
        kind: Kind::TurnOff,
        what: "stop KSM until memory is needed; what is merged stays merged".into(),
        why: format!(
            "{}, while ksmd has taken {:.1} % of a processor since boot and every write to a merged page costs a copy",
            v.memory_words(),
            100.0 * cpu
        ),
        how: vec![ksm_file(Setting::Run, "0")],
    })
}

/// It is off, and memory is short.
fn turn_on(v: &View) -> Option<Recommendation> {
    if v.runs() || !v.short() || v.0.vms.is_empty() {
        return None;
    }
    let how = match v.setting(Setting::AdvisorMode) {
        Some(_) => vec![
            ksm_file(Setting::AdvisorMode, "scan-time"),
            ksm_file(Setting::AdvisorTargetScanTime, &PASS_S.to_string()),
            ksm_file(Setting::Run, "1"),
        ],
        None => vec![
            ksm_file(Setting::SleepMillisecs, "10"),
            ksm_file(Setting::PagesToScan, "1000"),
            ksm_file(Setting::Run, "1"),
        ],
    };
    Some(Recommendation {
        rule: "turn-on",
        kind: Kind::Try,
        what: "turn KSM on".into(),
        why: format!(
            "{}; guests run here: {}. Count first what they could share: bifold share potential pid:PID ...",
            v.memory_words(),
            v.0.vms.len()
        ),
        how,
    })
}

/// Guests that must not wait.
fn latency(v: &View) -> Option<Recommendation> {
    let vms = v.mergeable();
    let bound: Vec<&GuestKsm> = vms.iter().copied().filter(|vm| vm.process.real_time).collect();
    let isolated = v.0.isolated.as_deref().filter(|_| !vms.is_empty());
    if bound.is_empty() && isolated.is_none() {
        return None;
    }
    let who = if bound.is_empty() { names(vms.iter().copied()) } else { names(bound.iter().copied()) };
    let sign = match isolated {
        Some(cpus) => format!("processors {cpus} are kept for single tasks (isolcpus or nohz_full)"),
        None => "threads of them are scheduled as real-time".into(),
    };
    Some(Recommendation {
        rule: "latency",
        kind: Kind::TurnOff,
        what: format!("take HPC and latency-bound guests out of it: {who}"),
        why: format!(
            "{sign}. A write to a merged page waits for a fault and a copy, at any time; ksmd runs on any processor \
             and stops all that map a page while it merges it; and a guest in small pages walks deeper tables"
        ),
        how: per_vm(),
    })
}

/// Off, with pages still merged.
fn off(v: &View) -> Option<Recommendation> {
    let left = v.counter(Counter::PagesSharing);
    if v.setting(Setting::Run) != Some(0) || left == 0 || !v.plenty() {
        return None;
    }
    Some(Recommendation {
        rule: "unmerge",
        kind: Kind::Try,
        what: "unmerge what is still merged, if the memory is there for it".into(),
        why: format!("KSM is stopped, {left} pages are still merged, and each costs its next writer a copy"),
        how: vec![ksm_file(Setting::Run, "2")],
    })
}

/// Pages of other nodes.
fn numa(v: &View) -> Option<Recommendation> {
    if v.0.nodes < 2 || v.setting(Setting::MergeAcrossNodes) != Some(1) || v.mergeable().is_empty() {
        return None;
    }
    Some(Recommendation {
        rule: "numa",
        kind: Kind::Try,
        what: "merge within a node only".into(),
        why: format!(
            "the host has {} NUMA nodes: a page merged across them is remote for all guests but those of one node",
            v.0.nodes
        ),
        how: vec![
            ksm_file(Setting::Run, "2"),
            ksm_file(Setting::MergeAcrossNodes, "0"),
            ksm_file(Setting::Run, "1"),
        ],
    })
}

/// What is lost in large pages.
fn huge_pages(v: &View) -> Option<Recommendation> {
    let vms = v.mergeable();
    let huge: u64 = vms.iter().filter_map(|vm| vm.process.huge).sum();
    if huge == 0 || !v.runs() {
        return None;
    }
    let backed = vms.iter().copied().filter(|vm| vm.process.huge.unwrap_or(0) > 0);
    Some(Recommendation {
        rule: "huge-pages",
        kind: Kind::Beware,
        what: "choose between huge pages and sharing, guest by guest".into(),
        why: format!(
            "{} MiB of {} are in huge pages. KSM splits a huge page to merge one 4 KB page of it, and the guest's \
             nested walks get longer for all of it. `bifold share potential` says how many repeats are lost if huge \
             pages are kept",
            huge >> 20,
            names(backed)
        ),
        how: per_vm(),
    })
}

/// A scanner that takes much.
fn dear(v: &View) -> Option<Recommendation> {
    let cpu = v.cpu()?;
    if !v.runs() || cpu < DEAR {
        return None;
    }
    let how = match v.setting(Setting::AdvisorMode) {
        Some(0) => vec![
            ksm_file(Setting::AdvisorMode, "scan-time"),
            ksm_file(Setting::AdvisorMaxCpu, "20"),
            ksm_file(Setting::AdvisorTargetScanTime, &PASS_S.to_string()),
        ],
        Some(_) => vec![ksm_file(Setting::AdvisorTargetScanTime, &(2 * PASS_S).to_string())],
        None => vec![ksm_file(Setting::SleepMillisecs, "100")],
    };
    Some(Recommendation {
        rule: "cpu",
        kind: Kind::Try,
        what: "scan more slowly".into(),
        why: format!(
            "ksmd has taken {:.0} % of a processor since boot, for {} MiB saved; published measurements stay below 20 %",
            100.0 * cpu,
            (v.counter(Counter::PagesSharing) * PAGE) >> 20
        ),
        how,
    })
}

/// Passes that take too long to find anything.
fn slow(v: &View) -> Option<Recommendation> {
    let pages: u64 = v.mergeable().iter().filter_map(|vm| vm.ksm.rmap_items).sum();
    let (per_wake, sleep) = (v.setting(Setting::PagesToScan)?, v.setting(Setting::SleepMillisecs)?);
    let advised = v.setting(Setting::AdvisorMode).is_some_and(|m| m != 0);
    let dear = v.cpu().is_some_and(|cpu| cpu >= DEAR);
    if !v.runs() || advised || dear || per_wake == 0 || pages == 0 {
        return None;
    }
    let pass_s = pages as f64 / per_wake as f64 * sleep as f64 / 1000.0;
    // Two passes find a pair: an hour is the life of many a guest.
    if pass_s < 1800.0 {
        return None;
    }
    Some(Recommendation {
        rule: "slow",
        kind: Kind::Try,
        what: "scan faster".into(),
        why: format!(
            "a pass over the {pages} pages that ksmd knows of takes {:.0} minutes at {per_wake} pages every {sleep} ms, \
             and equal pages are first merged in the second",
            pass_s / 60.0
        ),
        how: match v.setting(Setting::AdvisorMode) {
            Some(_) => vec![ksm_file(Setting::AdvisorMode, "scan-time")],
            None => vec![ksm_file(Setting::PagesToScan, &(per_wake * 10).to_string())],
        },
    })
}

/// Looking at the same lonely pages again and again.
fn smart_scan(v: &View) -> Option<Recommendation> {
    let (alone, sharing) = (v.counter(Counter::PagesUnshared), v.counter(Counter::PagesSharing));
    if !v.runs()
        || v.setting(Setting::SmartScan) != Some(0)
        || alone < sharing
        || v.counter(Counter::FullScans) < 3
    {
        return None;
    }
    Some(Recommendation {
        rule: "smart-scan",
        kind: Kind::Try,
        what: "let ksmd skip pages that keep not merging".into(),
        why: format!(
            "{alone} pages are alone and {sharing} are merged: most of each pass is spent on pages that never merge"
        ),
        how: vec![ksm_file(Setting::SmartScan, "1")],
    })
}

/// Zeros in frames of their own.
fn zero_pages(v: &View) -> Option<Recommendation> {
    let (shared, sharing) = (v.counter(Counter::PagesShared), v.counter(Counter::PagesSharing));
    if !v.runs() || v.setting(Setting::UseZeroPages) != Some(0) || shared == 0 {
        return None;
    }
    // Ordinary contents are in few places each. Where there are chains, one is in very many.
    let chains = v.counter(Counter::StableNodeChains);
    if sharing < 20 * shared && chains == 0 {
        return None;
    }
    Some(Recommendation {
        rule: "zero-pages",
        kind: Kind::Try,
        what: "merge zero pages into the kernel's own".into(),
        why: format!(
            "{sharing} pages share {shared} frames{}: few contents have very many pages, and the first of such is zero in most guests",
            if chains > 0 {
                format!(", {chains} of the contents in several frames each")
            } else {
                String::new()
            }
        ),
        how: vec![ksm_file(Setting::UseZeroPages, "1")],
    })
}

/// Contents that change faster than they are looked at.
fn changing(v: &View) -> Option<Recommendation> {
    let (volatile, sharing) = (v.counter(Counter::PagesVolatile), v.counter(Counter::PagesSharing));
    if !v.runs() || v.counter(Counter::FullScans) < 3 || volatile <= sharing {
        return None;
    }
    let copies =
        v.0.activity
            .copies
            .map_or(String::new(), |n| format!("; {n} merged pages were written to and copied since boot"));
    Some(Recommendation {
        rule: "changing",
        kind: Kind::Beware,
        what: "expect no more from scanning faster".into(),
        why: format!("{volatile} pages change between two looks and {sharing} are merged{copies}"),
        how: vec!["bifold share watch".into()],
    })
}

/// Guests that KSM never sees.
fn unreached(v: &View) -> Option<Recommendation> {
    let reached: Vec<u32> = v.mergeable().iter().map(|vm| vm.process.pid).collect();
    let out: Vec<&GuestKsm> =
        v.0.vms.iter().filter(|vm| vm.readable && !reached.contains(&vm.process.pid)).collect();
    if out.is_empty() {
        return None;
    }
    let hugetlb = out.iter().filter(|vm| vm.process.hugetlb).count();
    Some(Recommendation {
        rule: "unreached",
        kind: Kind::Beware,
        what: format!("know that KSM does not see {}", names(out.iter().copied())),
        why: format!(
            "none of their memory is mergeable: KSM takes anonymous memory that a process marked so, not shared files \
             (vhost-user, virtiofs, migration by file) nor hugetlbfs ({hugetlb} of them)"
        ),
        how: vec!["QEMU: -machine mem-merge=on with RAM that is neither share=on nor in hugetlbfs".into()],
    })
}
