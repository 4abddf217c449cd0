// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conclusions of a comparison: for each host page size the cheaper paging mode and the exit costs for
//! which that holds, and what to change. [`words`] makes sentences of them.

mod checks;
mod race;
mod words;

pub(crate) use checks::{caveats, checks, checks_line};
pub use race::Winner;
pub(crate) use words::{sentences, verdict};

use crate::Comparison;
use bifold_mmu::PageSize;
use bifold_model::{Config, Paging, Sample};
use race::{Line, Race, equal};
use serde::Serialize;

/// The most that a profile allows for one exit, cycles.
const MOST_CYCLES: f64 = 1e9;

/// The conclusions of a comparison, for the VM as it ran and for a long-lived VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusions {
    /// For the VM as it ran: the host backs memory at first touches.
    pub run: Conclusion,
    /// For a VM whose memory the host has backed before.
    pub long_lived: Conclusion,
}

/// The conclusions for one kind of VM.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// Nested against shadow paging, for each host page size with both modes modelled.
    pub pages: Vec<PageConclusion>,
    /// Changes to make in their order, starting from KVM's default (nested paging on 4 KB host pages) or
    /// from the first configuration that was modelled; empty if no configuration is cheaper.
    pub changes: Vec<Change>,
}

/// Nested against shadow paging on one host page size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageConclusion {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// Overhead of nested paging, percent of the ideal run.
    pub nested_percent: f64,
    /// Overhead of shadow paging, percent of the ideal run.
    pub shadow_percent: f64,
    /// The cheaper mode.
    pub winner: Winner,
    /// The least factor on all exit costs with which the winner stays cheaper; null if every factor below 1
    /// does.
    pub holds_from: Option<f64>,
    /// The largest factor on all exit costs with which the winner stays cheaper; null if every factor above
    /// 1 does.
    pub holds_to: Option<f64>,
    /// The exit cost that changes the winner by the smallest ratio; null if no exit cost can.
    pub flip: Option<Flip>,
}

/// A change of one exit cost that changes the winner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flip {
    /// Key of the cost in the profile, as for `--set`.
    pub key: String,
    /// Value in the profile, cycles.
    pub assumed_cycles: u64,
    /// The value beyond which the winner changes, cycles.
    pub at_cycles: f64,
    /// The winner beyond that value.
    pub winner: Winner,
}

/// A change to a cheaper configuration.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Change {
    /// Name of the present configuration.
    pub from: String,
    /// Name of the cheaper configuration.
    pub to: String,
    /// Overhead of `from`, percent of the ideal run.
    pub from_percent: f64,
    /// Overhead of `to`, percent of the ideal run.
    pub to_percent: f64,
}

/// Counts and costs of one configuration in one kind of VM.
#[derive(Debug, Clone, Copy)]
struct Row {
    config: Config,
    counts: Sample,
    /// Extra cycles, beyond the ideal run.
    extra: f64,
    /// Extra cycles in exits and the hypervisor's work.
    exits: f64,
}

pub(crate) fn conclusions(c: &Comparison) -> Conclusions {
    Conclusions { run: conclusion(c, &rows(c, false)), long_lived: conclusion(c, &rows(c, true)) }
}

/// The configurations under a hypervisor, in the order of [`Config::ALL`].
fn rows(c: &Comparison, long_lived: bool) -> Vec<Row> {
    let row = |config: Config, total: &Sample| {
        let spared = if long_lived { total.first_touch_cycles } else { 0 };
        let counts = if long_lived { total.since(&total.first_touches()) } else { *total };
        Row {
            config,
            counts,
            extra: total.extra_cycles().saturating_sub(spared) as f64,
            exits: total.vmm_cycles.saturating_sub(spared) as f64,
        }
    };
    // No product has offset paging, so that none is advised.
    let hypervised =
        c.outcome.configs.iter().filter(|o| matches!(o.config.mode, Paging::Nested | Paging::Shadow));
    hypervised.map(|o| row(o.config, &o.total)).collect()
}

fn conclusion(c: &Comparison, rows: &[Row]) -> Conclusion {
    let page = |host_page: PageSize| {
        let of = |mode| rows.iter().find(|r| r.config == Config { mode, host_page });
        Some(page_conclusion(c, of(Paging::Nested)?, of(Paging::Shadow)?))
    };
    let pages = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G].into_iter().filter_map(page);
    Conclusion { pages: pages.collect(), changes: changes(c, rows) }
}

fn percent(c: &Comparison, cycles: f64) -> f64 {
    let ideal = c.outcome.ideal_cycles();
    if ideal > 0.0 { 100.0 * cycles / ideal } else { 0.0 }
}

fn page_conclusion(c: &Comparison, nested: &Row, shadow: &Row) -> PageConclusion {
    let ideal = c.outcome.ideal_cycles();
    let scaled = |r: &Row| Line { at: r.extra, slope: r.exits };
    let all = Race { nested: scaled(nested), shadow: scaled(shadow), ideal, assumed: 1.0 };
    let (holds_from, holds_to) = all.ends();
    PageConclusion {
        host_page: nested.config.host_page,
        nested_percent: percent(c, nested.extra),
        shadow_percent: percent(c, shadow.extra),
        winner: all.winner(1.0),
        holds_from,
        holds_to,
        flip: flip(c, nested, shadow, ideal),
    }
}

/// The exit cost that changes the winner by the smallest ratio. A cost of 0 is left out, because no
/// ratio changes it.
fn flip(c: &Comparison, nested: &Row, shadow: &Row, ideal: f64) -> Option<Flip> {
    let costs = &c.meta.hardware.exit;
    let mut best: Option<(f64, Flip)> = None;
    for ((name, cost, n), (.., s)) in costs.counted(&nested.counts).zip(costs.counted(&shadow.counts)) {
        if cost.cycles == 0 {
            continue;
        }
        let assumed = cost.cycles as f64;
        let race = Race {
            nested: Line { at: nested.extra, slope: n as f64 },
            shadow: Line { at: shadow.extra, slope: s as f64 },
            ideal,
            assumed,
        };
        let (below, above) = race.ends();
        for at in [below, above.filter(|v| *v <= MOST_CYCLES)].into_iter().flatten() {
            let ratio = (at / assumed).ln().abs();
            if best.as_ref().is_none_or(|(least, _)| ratio < *least) {
                let winner = match race.winner(assumed) {
                    Winner::Nested => Winner::Shadow,
                    Winner::Shadow => Winner::Nested,
                    // The mode that is cheaper beyond the range in which both are equal.
                    Winner::Equal => cheaper(&race, at),
                };
                let key = format!("exit.{name}.cycles");
                best = Some((ratio, Flip { key, assumed_cycles: cost.cycles, at_cycles: at, winner }));
            }
        }
    }
    best.map(|(_, flip)| flip)
}

/// The mode with the lower cost, however small the difference.
fn cheaper(race: &Race, value: f64) -> Winner {
    let of = |l: Line| l.at + l.slope * (value - race.assumed);
    if of(race.nested) < of(race.shadow) { Winner::Nested } else { Winner::Shadow }
}

/// Single steps from the first configuration to the cheapest, each of which lowers the cost.
fn changes(c: &Comparison, rows: &[Row]) -> Vec<Change> {
    let ideal = c.outcome.ideal_cycles();
    let Some(first) = rows.first() else { return Vec::new() };
    let pays = |from: &Row, to: &Row| to.extra < from.extra && !equal(to.extra, from.extra, ideal);
    let cheapest = |from: &Row, may: &dyn Fn(&Row) -> bool| {
        let better = rows.iter().filter(|r| may(r) && pays(from, r)).copied();
        better.min_by(|a, b| a.extra.total_cmp(&b.extra))
    };
    let change = |from: &Row, to: &Row| Change {
        from: from.config.name(),
        to: to.config.name(),
        from_percent: percent(c, from.extra),
        to_percent: percent(c, to.extra),
    };
    // A step changes the mode or the page size, not both.
    let one_step =
        |a: &Row, b: &Row| (a.config.mode == b.config.mode) != (a.config.host_page == b.config.host_page);
    match cheapest(first, &|r| one_step(first, r)) {
        Some(second) => {
            let third = cheapest(&second, &|r| one_step(&second, r) && !one_step(first, r));
            let steps = [Some(change(first, &second)), third.map(|t| change(&second, &t))];
            steps.into_iter().flatten().collect()
        }
        None => cheapest(first, &|_| true).iter().map(|both| change(first, both)).collect(),
    }
}

#[cfg(test)]
mod tests;
