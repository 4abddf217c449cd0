// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules about the scan: how well ksmd's settings use its CPU time.

use super::{DEAR, Kind, PAGE, PASS_S, Recommendation, View, ksm_file};
use bifold_host::ksm::{Counter, Setting};

/// Merged pages are remote for guests of other nodes.
pub(super) fn numa(v: &View) -> Option<Recommendation> {
    if v.0.nodes < 2 || v.setting(Setting::MergeAcrossNodes) != Some(1) || v.mergeable().is_empty() {
        return None;
    }
    Some(Recommendation {
        rule: "numa",
        kind: Kind::Try,
        what: "merge pages of one NUMA node only".into(),
        why: format!(
            "the host has {} NUMA nodes: a page merged across nodes is remote for all guests but those of one node",
            v.0.nodes
        ),
        how: vec![
            ksm_file(Setting::Run, "2"),
            ksm_file(Setting::MergeAcrossNodes, "0"),
            ksm_file(Setting::Run, "1"),
        ],
    })
}

/// ksmd takes much of a processor.
pub(super) fn dear(v: &View) -> Option<Recommendation> {
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
            "ksmd has taken {:.0} % of a processor since boot, and {} MiB are saved; published measurements stay below 20 %",
            100.0 * cpu,
            (v.counter(Counter::PagesSharing) * PAGE) >> 20
        ),
        how,
    })
}

/// A pass takes too long to find pages that live as long as guests do.
pub(super) fn slow(v: &View) -> Option<Recommendation> {
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
            "a pass over the {pages} pages that ksmd knows takes {:.0} minutes at {per_wake} pages every {sleep} ms, and \
             equal pages merge in the second pass at the earliest",
            pass_s / 60.0
        ),
        how: match v.setting(Setting::AdvisorMode) {
            Some(_) => vec![ksm_file(Setting::AdvisorMode, "scan-time")],
            None => vec![ksm_file(Setting::PagesToScan, &(per_wake * 10).to_string())],
        },
    })
}

/// ksmd visits pages again and again that have no equal.
pub(super) fn smart_scan(v: &View) -> Option<Recommendation> {
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
        what: "let ksmd skip pages that have not merged for several passes".into(),
        why: format!(
            "{alone} pages have no equal and {sharing} are merged: most of each pass is spent on pages that never merge"
        ),
        how: vec![ksm_file(Setting::SmartScan, "1")],
    })
}

/// Pages of zeros take frames of their own.
pub(super) fn zero_pages(v: &View) -> Option<Recommendation> {
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
            "{sharing} pages share {shared} frames{}: few contents have very many pages, and in most guests the most frequent content is zeros",
            if chains > 0 {
                format!(", {chains} of the contents in several frames each")
            } else {
                String::new()
            }
        ),
        how: vec![ksm_file(Setting::UseZeroPages, "1")],
    })
}

/// Pages change faster than ksmd visits them.
pub(super) fn changing(v: &View) -> Option<Recommendation> {
    let (volatile, sharing) = (v.counter(Counter::PagesVolatile), v.counter(Counter::PagesSharing));
    if !v.runs() || v.counter(Counter::FullScans) < 3 || volatile <= sharing {
        return None;
    }
    let copies =
        v.0.activity
            .copies
            .map_or(String::new(), |n| format!("; {n} merged pages were copied at a write since boot"));
    Some(Recommendation {
        rule: "changing",
        kind: Kind::Beware,
        what: "scanning faster will not merge more".into(),
        why: format!("{volatile} pages change between two visits of ksmd, and {sharing} are merged{copies}"),
        how: vec!["bifold share watch".into()],
    })
}
