// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules about guests: which guests should share pages, and which should not.

use super::{Kind, Recommendation, View, names, per_vm};
use crate::advise::GuestKsm;
use bifold_host::ksm::Counter;

/// Guests that share pages can find out about each other's memory.
pub(super) fn owners(v: &View) -> Option<Recommendation> {
    let vms = v.mergeable();
    if vms.len() < 2 || !(v.runs() || v.counter(Counter::PagesSharing) > 0) {
        return None;
    }
    let mut users: Vec<u32> = vms.iter().filter_map(|vm| vm.uid).collect();
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
                "{} guests of one user of this host may share pages; whether their owners trust each other cannot be seen from here",
                vms.len()
            ),
        ),
    };
    Some(Recommendation {
        rule: "owners",
        kind,
        what: "share pages only among guests whose owners trust each other".into(),
        why: format!(
            "{who}. A guest that times its writes can find out whether another guest has a page with the same contents \
             (memory deduplication side channels: Suzaki 2011, Dedup Est Machina 2016). It can watch which lines of a \
             shared page another guest uses (Flush+Reload, 2014). With Rowhammer it can flip bits of another guest's \
             page once that is merged into its own (Flip Feng Shui, 2016)"
        ),
        how: per_vm(),
    })
}

/// Latency-bound guests should not wait for copies of merged pages.
pub(super) fn latency(v: &View) -> Option<Recommendation> {
    let vms = v.mergeable();
    let bound: Vec<&GuestKsm> = vms.iter().copied().filter(|vm| vm.real_time).collect();
    let isolated = v.0.isolated.as_deref().filter(|_| !vms.is_empty());
    if bound.is_empty() && isolated.is_none() {
        return None;
    }
    let who = if bound.is_empty() { names(vms.iter().copied()) } else { names(bound.iter().copied()) };
    let sign = match isolated {
        Some(cpus) => format!("processors {cpus} are kept for single tasks (isolcpus or nohz_full)"),
        None => "threads of these guests are scheduled as real-time".into(),
    };
    Some(Recommendation {
        rule: "latency",
        kind: Kind::TurnOff,
        what: format!("exclude HPC and latency-bound guests from KSM: {who}"),
        why: format!(
            "{sign}. A write to a merged page waits for a fault and a copy, at any time. ksmd runs on any processor, and \
             all users of a page wait while ksmd merges it. A guest in small pages walks deeper tables"
        ),
        how: per_vm(),
    })
}

/// Merging splits huge pages.
pub(super) fn huge_pages(v: &View) -> Option<Recommendation> {
    let vms = v.mergeable();
    let huge: u64 = vms.iter().filter_map(|vm| vm.memory.huge).sum();
    if huge == 0 || !v.runs() {
        return None;
    }
    let backed = vms.iter().copied().filter(|vm| vm.memory.huge.unwrap_or(0) > 0);
    Some(Recommendation {
        rule: "huge-pages",
        kind: Kind::Beware,
        what: "choose between huge pages and sharing, guest by guest".into(),
        why: format!(
            "{} MiB of {} are in huge pages. To merge one 4 KB page KSM splits the whole huge page, and the \
             guest's nested walks get longer for all of it. `bifold share potential` counts the repeats that are lost if \
             huge pages are kept",
            huge >> 20,
            names(backed)
        ),
        how: per_vm(),
    })
}

/// KSM does not scan these guests.
pub(super) fn unreached(v: &View) -> Option<Recommendation> {
    let reached: Vec<u32> = v.mergeable().iter().map(|vm| vm.guest.pid).collect();
    let out: Vec<&GuestKsm> =
        v.0.vms.iter().filter(|vm| vm.readable && !reached.contains(&vm.guest.pid)).collect();
    if out.is_empty() {
        return None;
    }
    let hugetlb = out.iter().filter(|vm| vm.hugetlb).count();
    Some(Recommendation {
        rule: "unreached",
        kind: Kind::Beware,
        what: format!("KSM does not scan {}", names(out.iter().copied())),
        why: format!(
            "none of their memory is mergeable. KSM merges anonymous memory that a process has marked mergeable, and \
             neither shared files (vhost-user, virtiofs, migration by file) nor hugetlbfs ({hugetlb} of these guests)"
        ),
        how: vec!["QEMU: -machine mem-merge=on with RAM that is neither share=on nor in hugetlbfs".into()],
    })
}
