// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Changes of one configuration in the order of their gain, with what each costs in memory.

use super::{Row, one_step, pays, percent};
use crate::Comparison;
use bifold_model::{Sample, VmState};
use serde::Serialize;

/// The most changes in a ranking.
const MOST: usize = 3;

/// A change to a cheaper configuration, with its gain and its cost in memory.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct RankedChange {
    /// Name of the present configuration.
    pub from: String,
    /// Name of the cheaper configuration.
    pub to: String,
    /// Overhead of `from`, percent of the ideal run.
    pub from_percent: f64,
    /// Overhead of `to`, percent of the ideal run.
    pub to_percent: f64,
    /// By how many percentage points the overhead falls.
    pub gain_points: f64,
    /// Bytes of host memory that back the guest's in `from`; null in a long-lived VM, whose whole memory is backed.
    pub from_backed_bytes: Option<u64>,
    /// Bytes of host memory that back the guest's in `to`.
    pub to_backed_bytes: Option<u64>,
}

/// The changes from the first configuration that pay, the cheapest result first. A change of both mode and page size is
/// left out if one of the two alone gains as much.
pub(super) fn ranked(c: &Comparison, rows: &[Row]) -> Vec<RankedChange> {
    let ideal = c.outcome.ideal_cycles();
    let Some((first, others)) = rows.split_first() else { return Vec::new() };
    let single = |to: &Row| one_step(first, to);
    let worth = |to: &&Row| {
        let alone = || others.iter().filter(|r| single(r) && one_step(r, to));
        pays(first, to, ideal) && (single(to) || alone().all(|r| pays(r, to, ideal)))
    };
    let mut all: Vec<&Row> = others.iter().filter(worth).collect();
    all.sort_by(|a, b| a.extra.total_cmp(&b.extra));
    // A region counts its own first touches only, and the VM has more memory.
    let counted = c.outcome.vm != VmState::LongLived && c.outcome.before_region.is_none();
    let bytes = |r: &Row| counted.then(|| backed_bytes(&r.counts));
    let change = |to: &Row| RankedChange {
        from: first.config.name(),
        to: to.config.name(),
        from_percent: percent(c, first.extra),
        to_percent: percent(c, to.extra),
        gain_points: percent(c, first.extra) - percent(c, to.extra),
        from_backed_bytes: bytes(first),
        to_backed_bytes: bytes(to),
    };
    all.into_iter().take(MOST).map(change).collect()
}

/// Bytes of host memory that the run's first touches took.
fn backed_bytes(counts: &Sample) -> u64 {
    (counts.frames_backed << 12).saturating_add(counts.huge_frames_backed << 21)
}
