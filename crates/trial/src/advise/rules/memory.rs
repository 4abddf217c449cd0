// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Rules about the host's memory: whether KSM saves more than it costs.

use super::{Kind, PASS_S, Recommendation, View, ksm_file};
use bifold_host::ksm::{Counter, Setting};

/// KSM costs more memory than it saves.
pub(super) fn no_profit(v: &View) -> Option<Recommendation> {
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
            "after {passes} passes KSM's records take more memory than merging saves (general_profit is {profit} bytes): few pages are equal"
        ),
        how: vec![ksm_file(Setting::Run, "2")],
    })
}

/// KSM runs although memory is plentiful.
pub(super) fn not_needed(v: &View) -> Option<Recommendation> {
    let cpu = v.cpu()?;
    if !v.runs() || !v.plenty() || cpu < 0.01 {
        return None;
    }
    Some(Recommendation {
        rule: "not-needed",
        kind: Kind::TurnOff,
        what: "stop KSM until memory is needed; merged pages stay merged".into(),
        why: format!(
            "{}; ksmd has taken {:.1} % of a processor since boot, and every write to a merged page costs a copy",
            v.memory_words(),
            100.0 * cpu
        ),
        how: vec![ksm_file(Setting::Run, "0")],
    })
}

/// KSM is off, and memory is short.
pub(super) fn turn_on(v: &View) -> Option<Recommendation> {
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
            "{}; guests that run here: {}. First count what they could share: bifold share potential pid:PID ...",
            v.memory_words(),
            v.0.vms.len()
        ),
        how,
    })
}

/// KSM is off, and pages are still merged.
pub(super) fn unmerge(v: &View) -> Option<Recommendation> {
    let left = v.counter(Counter::PagesSharing);
    if v.setting(Setting::Run) != Some(0) || left == 0 || !v.plenty() {
        return None;
    }
    Some(Recommendation {
        rule: "unmerge",
        kind: Kind::Try,
        what: "unmerge the pages that are still merged, if there is memory for them".into(),
        why: format!("KSM is stopped, {left} pages are still merged, and each costs its next writer a copy"),
        how: vec![ksm_file(Setting::Run, "2")],
    })
}
