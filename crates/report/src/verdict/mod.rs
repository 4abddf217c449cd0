// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conclusions of a comparison: for each host page size the cheaper paging mode and the exit costs for
//! which that holds, and what to change. [`words`] makes sentences of them, [`rank`] orders the changes by gain.

mod checks;
mod race;
mod rank;
mod words;

pub(crate) use checks::{caveats, checks, checks_line, prior_keys};
pub use race::Winner;
pub use rank::RankedChange;
pub(crate) use words::{sentences, verdict};

use crate::Comparison;
use crate::figures::{at_overlaps, error_cycles};
use bifold_mmu::PageSize;
use bifold_model::{Config, ConfigOutcome, Paging, Sample};
use race::{Line, Race, equal, winner};
use serde::{Serialize, Serializer};

/// The most that a profile allows for one exit, cycles.
const MOST_CYCLES: f64 = 1e9;

/// The conclusions of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Conclusion {
    /// The modes that can be advised against each other, for each host page size with several of them modelled.
    pub pages: Vec<PageConclusion>,
    /// Changes to make in their order, starting from KVM's default (nested paging on 4 KB host pages) or
    /// from the first configuration that was modelled; empty if no configuration is cheaper.
    pub changes: Vec<Change>,
    /// Single changes of the same configuration, the largest gain first; at most three.
    pub ranked: Vec<RankedChange>,
}

/// Paging modes against each other on one host page size.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct PageConclusion {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// The modes, each with its overhead, percent of the ideal run; in JSON the fields `nested_percent` and so on.
    #[serde(flatten, serialize_with = "by_name")]
    pub percents: Vec<(Paging, f64)>,
    /// The cheapest mode at the costs as stated.
    pub winner: Winner,
    /// The winners over the band, in the order of [`Winner`]: as stated, if the core hides nothing and all that it can, and
    /// within the error of a sample. Only one if the verdict does not depend on these.
    pub possible: Vec<Winner>,
    /// The least factor with which the winner stays cheaper, on all exit costs together and on each alone; null if every
    /// factor below 1 does.
    pub holds_from: Option<f64>,
    /// The largest factor with which the winner stays cheaper, on all exit costs together and on each alone; null if every
    /// factor above 1 does.
    pub holds_to: Option<f64>,
    /// The change of exit costs by the smallest ratio that changes the winner; null if none can.
    pub flip: Option<Flip>,
}

fn by_name<S: Serializer>(percents: &[(Paging, f64)], s: S) -> Result<S::Ok, S::Error> {
    s.collect_map(percents.iter().map(|(mode, percent)| (format!("{}_percent", mode.name()), percent)))
}

/// A change of one exit cost, or of all by one factor, that changes the winner.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Flip {
    /// Key of the cost in the profile, as for `--set`; null for all together.
    pub key: Option<String>,
    /// Value in the profile, cycles; null for all together.
    pub assumed_cycles: Option<u64>,
    /// The value beyond which the winner changes, cycles; null for all together.
    pub at_cycles: Option<f64>,
    /// The same as a factor on the profile's value, or on all.
    pub factor: f64,
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

/// Counts and costs of one configuration.
#[derive(Debug, Clone, Copy)]
struct Row {
    config: Config,
    counts: Sample,
    /// Extra cycles, beyond the ideal run.
    extra: f64,
    /// Extra cycles, and the ideal run's, of a core that hides nothing and of one that hides all that it can; as stated
    /// without data caches.
    ends: [(f64, f64); 2],
    /// Half the width of the 95 % interval around the extra cycles.
    error: f64,
    /// Extra cycles in exits and the hypervisor's work.
    exits: f64,
}

pub(crate) fn conclusion(c: &Comparison) -> Conclusion {
    conclude(c, &rows(c))
}

fn conclude(c: &Comparison, rows: &[Row]) -> Conclusion {
    let page = |host_page: PageSize| {
        let of_page: Vec<&Row> = rows.iter().filter(|r| r.config.host_page == host_page).collect();
        (of_page.len() > 1).then(|| page_conclusion(c, &of_page))
    };
    let pages = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G].into_iter().filter_map(page);
    Conclusion { pages: pages.collect(), changes: changes(c, rows), ranked: rank::ranked(c, rows) }
}

/// The configurations that can be advised, in the order of [`Config::ALL`].
fn rows(c: &Comparison) -> Vec<Row> {
    let row = |o: &ConfigOutcome| {
        let total = &o.total;
        let extra = total.extra_cycles() as f64;
        let at = |data_overlap, walk_overlap| {
            at_overlaps(total, c.outcome.base_cpi, data_overlap, walk_overlap)
        };
        Row {
            config: o.config,
            counts: *total,
            extra,
            ends: match &c.outcome.caches {
                Some(caches) => [at(1.0, 1.0), at(caches.data_overlap, caches.walk_overlap)],
                None => [(extra, c.outcome.ideal_cycles()); 2],
            },
            error: error_cycles(o),
            exits: total.vmm_cycles as f64,
        }
    };
    c.outcome.configs.iter().filter(|o| o.config.mode.is_offered()).map(row).collect()
}

fn percent(c: &Comparison, cycles: f64) -> f64 {
    let ideal = c.outcome.ideal_cycles();
    if ideal > 0.0 { 100.0 * cycles / ideal } else { 0.0 }
}

fn page_conclusion(c: &Comparison, rows: &[&Row]) -> PageConclusion {
    let flips: Vec<Flip> = races(rows).into_iter().flat_map(|(a, b)| flips(c, a, b)).collect();
    let factors = || flips.iter().map(|f| f.factor);
    // Of changes by the same factor, but for rounding, that of a single cost says more.
    let far = |f: &Flip| f.factor.ln().abs() + if f.key.is_none() { 1e-9 } else { 0.0 };
    let nearest = flips.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
    let costs: Vec<(Paging, f64)> = rows.iter().map(|r| (r.config.mode, r.extra)).collect();
    PageConclusion {
        host_page: rows[0].config.host_page,
        percents: costs.iter().map(|(mode, cycles)| (*mode, percent(c, *cycles))).collect(),
        winner: winner(&costs, c.outcome.ideal_cycles()),
        possible: possible(c, rows),
        holds_from: factors().filter(|f| *f < 1.0).max_by(f64::total_cmp),
        holds_to: factors().filter(|f| *f >= 1.0).min_by(f64::total_cmp),
        flip: nearest.cloned(),
    }
}

/// The cheapest row with each of the others, in the order of the rows.
fn races<'a>(rows: &[&'a Row]) -> Vec<(&'a Row, &'a Row)> {
    let least = (0..rows.len()).min_by(|a, b| rows[*a].extra.total_cmp(&rows[*b].extra)).unwrap_or(0);
    let pairs = (0..rows.len()).filter(|i| *i != least).map(|i| (i.min(least), i.max(least)));
    pairs.map(|(a, b)| (rows[a], rows[b])).collect()
}

/// The winners over the band. What a core hides, it hides in every mode; the errors of two samples do not cancel.
fn possible(c: &Comparison, rows: &[&Row]) -> Vec<Winner> {
    let stated = (rows.iter().map(|r| r.extra).collect::<Vec<f64>>(), c.outcome.ideal_cycles());
    let ends = [0, 1].map(|end| (rows.iter().map(|r| r.ends[end].0).collect(), rows[0].ends[end].1));
    let modes = || rows.iter().map(|r| r.config.mode);
    let mut out = Vec::new();
    for (costs, ideal) in [stated].into_iter().chain(ends) {
        for (i, j) in (0..rows.len()).flat_map(|j| (0..j).map(move |i| (i, j))) {
            let error = rows[i].error.hypot(rows[j].error);
            for e in [-error, 0.0, error] {
                let mut costs: Vec<(Paging, f64)> = modes().zip(costs.iter().copied()).collect();
                costs[i].1 += e;
                out.push(winner(&costs, ideal));
            }
        }
    }
    out.sort();
    out.dedup();
    out
}

/// Each change of a single exit cost, and of all together, that changes the winner of two rows. A cost of 0 is left out,
/// because no ratio changes it.
fn flips(c: &Comparison, a: &Row, b: &Row) -> Vec<Flip> {
    let ideal = c.outcome.ideal_cycles();
    let race = |assumed: f64, of_a: f64, of_b: f64| Race {
        a: Line { at: a.extra, slope: of_a },
        b: Line { at: b.extra, slope: of_b },
        ideal,
        assumed,
    };
    let ends = |race: &Race| {
        let (below, above) = race.ends();
        let winner = |at| Winner::Mode(if race.a_wins_beyond(at) { a.config.mode } else { b.config.mode });
        [below, above].into_iter().flatten().map(|at| (at, winner(at))).collect::<Vec<_>>()
    };
    let together = ends(&race(1.0, a.exits, b.exits)).into_iter().map(|(factor, winner)| Flip {
        key: None,
        assumed_cycles: None,
        at_cycles: None,
        factor,
        winner,
    });
    let costs = &c.meta.hardware.exit;
    let counts = costs.counted(&a.counts).zip(costs.counted(&b.counts));
    let each = counts.filter(|((_, cost, _), _)| cost.cycles > 0).flat_map(|((name, cost, n), (.., m))| {
        let assumed = cost.cycles as f64;
        let ends = ends(&race(assumed, n as f64, m as f64)).into_iter().filter(|(at, _)| *at <= MOST_CYCLES);
        ends.map(move |(at, winner)| Flip {
            key: Some(format!("exit.{name}.cycles")),
            assumed_cycles: Some(cost.cycles),
            at_cycles: Some(at),
            factor: at / assumed,
            winner,
        })
    });
    each.chain(together).collect()
}

/// Whether a change lowers the cost by so much that the assumed costs decide it.
fn pays(from: &Row, to: &Row, ideal: f64) -> bool {
    to.extra < from.extra && !equal(to.extra, from.extra, ideal)
}

/// Whether a change is of the mode or of the page size, and not of both.
fn one_step(a: &Row, b: &Row) -> bool {
    (a.config.mode == b.config.mode) != (a.config.host_page == b.config.host_page)
}

/// Single steps from the first configuration to the cheapest, each of which lowers the cost.
fn changes(c: &Comparison, rows: &[Row]) -> Vec<Change> {
    let ideal = c.outcome.ideal_cycles();
    let Some(first) = rows.first() else { return Vec::new() };
    let pays = |from: &Row, to: &Row| pays(from, to, ideal);
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
