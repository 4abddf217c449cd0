// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Makes CSV rows of an experiment's samples.

use crate::experiment::outcome::Outcome;
use bifold_host::ksm::Counter;
use serde::Serialize;

/// One row of CSV: one time, and one guest, all guests together (`guest` = `all`) or the whole host
/// (`guest` = `host`), other programs included.
#[derive(Debug, Clone, Default, PartialEq, Serialize)]
pub struct SampleRow {
    /// Name of the case.
    pub case: String,
    /// Seconds since the guests' start.
    pub time_s: f64,
    /// Name of the guest, `all` or `host`.
    pub guest: String,
    /// Resident bytes of guest memory.
    pub resident_bytes: Option<u64>,
    /// Bytes of guest memory by share: what is taken.
    pub used_bytes: Option<u64>,
    /// Bytes without sharing.
    pub unshared_bytes: Option<u64>,
    /// Bytes that the emulators take in all.
    pub emulators_bytes: Option<u64>,
    /// Bytes available on the host.
    pub host_available_bytes: Option<u64>,
    /// Whether KSM ran.
    pub ksm_run: Option<bool>,
    /// Pages that ksmd scans per wake-up.
    pub pages_to_scan: Option<u64>,
    /// The whole host's counters of KSM, by the kernel's names.
    pub pages_shared: Option<i64>,
    /// As above.
    pub pages_sharing: Option<i64>,
    /// As above.
    pub pages_unshared: Option<i64>,
    /// As above.
    pub pages_volatile: Option<i64>,
    /// As above.
    pub pages_scanned: Option<i64>,
    /// As above.
    pub pages_skipped: Option<i64>,
    /// As above.
    pub full_scans: Option<i64>,
    /// As above, or of the guests.
    pub ksm_zero_pages: Option<i64>,
    /// Bytes saved less those of KSM's records, as the kernel counts.
    pub ksm_profit_bytes: Option<i64>,
    /// Pages of the guests that are merged.
    pub ksm_merging_pages: Option<u64>,
    /// Pages of the guests that ksmd knows.
    pub ksm_rmap_items: Option<u64>,
    /// CPU time of ksmd since the start.
    pub ksmd_cpu_seconds: Option<f64>,
    /// Merged pages written to since the start.
    pub cow_ksm: Option<u64>,
    /// Swapped-in pages copied since the start.
    pub ksm_swpin_copy: Option<u64>,
    /// Cycles of the workload.
    pub cycles: Option<u64>,
}

/// All samples as rows.
pub fn rows(outcome: &Outcome) -> Vec<SampleRow> {
    let mut rows = Vec::new();
    for case in &outcome.cases {
        for s in &case.samples {
            let time_s = (s.at_s * 1000.0).round() / 1000.0;
            let base = |guest: &str| SampleRow {
                case: case.name.clone(),
                time_s,
                guest: guest.into(),
                ..SampleRow::default()
            };
            let counter = |c| s.ksm.get(c);
            let profits: Vec<i64> = s.guests.iter().flatten().filter_map(|g| g.profit).collect();
            rows.push(SampleRow {
                resident_bytes: s.of_guests(|g| Some(g.rss)),
                used_bytes: Some(s.used),
                unshared_bytes: Some(s.unshared),
                emulators_bytes: Some(s.emulators),
                ksm_zero_pages: s.of_guests(|g| g.zero_pages).map(|n| n as i64),
                ksm_profit_bytes: (!profits.is_empty()).then(|| profits.iter().sum()),
                ksm_merging_pages: s.of_guests(|g| g.merging_pages),
                ksm_rmap_items: s.of_guests(|g| g.rmap_items),
                cycles: s.of_guests(|g| Some(g.cycles)),
                ..base("all")
            });
            rows.push(SampleRow {
                host_available_bytes: s.available,
                ksm_run: Some(s.running),
                pages_to_scan: s.pages_to_scan,
                pages_shared: counter(Counter::PagesShared),
                pages_sharing: counter(Counter::PagesSharing),
                pages_unshared: counter(Counter::PagesUnshared),
                pages_volatile: counter(Counter::PagesVolatile),
                pages_scanned: counter(Counter::PagesScanned),
                pages_skipped: counter(Counter::PagesSkipped),
                full_scans: counter(Counter::FullScans),
                ksm_zero_pages: counter(Counter::KsmZeroPages),
                ksm_profit_bytes: counter(Counter::GeneralProfit),
                ksmd_cpu_seconds: s.ksmd_cpu_s.map(|c| (c * 1e6).round() / 1e6),
                cow_ksm: s.copies,
                ksm_swpin_copy: s.swapped_in,
                ..base("host")
            });
            for (guest, seen) in case.guests.iter().zip(&s.guests) {
                let Some(g) = seen else { continue };
                rows.push(SampleRow {
                    resident_bytes: Some(g.rss),
                    used_bytes: Some(g.pss),
                    ksm_zero_pages: g.zero_pages.map(|n| n as i64),
                    ksm_profit_bytes: g.profit,
                    ksm_merging_pages: g.merging_pages,
                    ksm_rmap_items: g.rmap_items,
                    cycles: Some(g.cycles),
                    ..base(&guest.name)
                });
            }
        }
    }
    rows
}
