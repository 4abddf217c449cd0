// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Conclusions of a comparison: for each host page size the cheaper paging mode and the exit costs for which
//! that verdict holds. [`words`] makes sentences of them and of the first change that [`tune`](crate::tune)
//! ranks.

mod checks;
mod race;
mod words;

pub(crate) use checks::{caveats, checks, checks_line, prior_keys};
pub use race::Winner;
pub(crate) use race::equal;
pub(crate) use words::{sentences, verdict};

use crate::figures::{at_overlaps, error_cycles};
use crate::{Comparison, Figures};
use bifold_mmu::PageSize;
use bifold_model::{Config, ConfigOutcome, Paging, Sample};
use race::{Assumption, Race, Says, Verdict};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::json;

/// The most that a profile allows for one exit, cycles.
const MOST_CYCLES: f64 = 1e9;

/// The conclusions of a comparison.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "conclusion")]
pub struct Conclusion {
    /// The modes that can be advised against each other, for each host page size with several of them
    /// modelled.
    pub pages: Vec<PageConclusion>,
}

/// Paging modes against each other on one host page size.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PageConclusion {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// The modes with their costs; in JSON the fields `nested_seconds`, `nested_percent` and so on.
    #[serde(flatten, serialize_with = "by_name")]
    #[schemars(schema_with = "by_name_schema")]
    pub costs: Vec<ModeCost>,
    /// The cheapest mode at the costs as stated, or `equal`: the lowest cost and another differ by less than
    /// 5 % of the larger or 0.1 % of the ideal run.
    pub winner: Winner,
    /// The winners over the band, in the order of modes: as stated, if the core hides nothing and all
    /// that it can, and within the error of a sample. Only one if the verdict does not depend on these.
    pub possible: Vec<Winner>,
    /// Whether the winner's band of predicted times and another mode's overlap. The winner is compared under
    /// each assumption, so the winner may win all the same.
    pub bands_overlap: bool,
    /// The least factor with which the verdict in words (of `winner` and `possible`) stays, on all exit costs
    /// together and on each alone; null if every factor below 1 leaves the verdict.
    pub holds_from: Option<f64>,
    /// The largest factor with which the verdict in words stays, on all exit costs together and on each
    /// alone; null if every factor above 1 leaves the verdict.
    pub holds_to: Option<f64>,
    /// The change of exit costs by the smallest ratio that changes the verdict; null if none can.
    pub flip: Option<Flip>,
}

impl PageConclusion {
    fn says(&self) -> Says {
        Verdict { winner: self.winner, possible: self.possible.clone() }.says()
    }
}

/// What a run costs in a mode.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct ModeCost {
    /// The mode.
    pub mode: Paging,
    /// Predicted time of the run, seconds.
    pub seconds: f64,
    /// Overhead, percent of the ideal run.
    pub percent: f64,
}

fn by_name<S: Serializer>(costs: &[ModeCost], s: S) -> Result<S::Ok, S::Error> {
    let of = |c: &ModeCost| {
        let name = c.mode.name();
        [(format!("{name}_seconds"), c.seconds), (format!("{name}_percent"), c.percent)]
    };
    s.collect_map(costs.iter().flat_map(of))
}

fn by_name_schema(_: &mut SchemaGenerator) -> Schema {
    let seconds = |of| json!({ "type": "number", "description": format!("Predicted time of the run in {of}. Unit: s.") });
    let percent = |of| json!({ "type": "number", "description": format!("Overhead of {of}. Unit: % of the ideal run.") });
    json_schema!({
        "type": "object",
        "properties": {
            "nested_seconds": seconds("nested paging"), "nested_percent": percent("nested paging"),
            "shadow_seconds": seconds("shadow paging"), "shadow_percent": percent("shadow paging"),
        },
        "patternProperties": { "_seconds$": seconds("this mode"), "_percent$": percent("this mode") },
    })
}

/// A change of one exit cost, or of all by one factor, that changes the verdict.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Flip {
    /// Key of the cost in the profile, as for `--set`; null for all together.
    pub key: Option<String>,
    /// Value in the profile; null for all together. Unit: cycles.
    pub assumed_cycles: Option<u64>,
    /// The nearest whole value with the other verdict; null for all together. Unit: cycles.
    pub at_cycles: Option<u64>,
    /// The factor on the profile's value, or on all, up to which the verdict stays.
    pub factor: f64,
    /// The cheapest mode beyond, at the costs as stated.
    pub winner: Winner,
    /// The winners over the band beyond.
    pub possible: Vec<Winner>,
}

impl Flip {
    fn says(&self) -> Says {
        Verdict { winner: self.winner, possible: self.possible.clone() }.says()
    }
}

/// Counts and costs of one configuration.
#[derive(Debug, Clone, Copy)]
struct ConfigCosts {
    config: Config,
    counts: Sample,
    figures: Figures,
    /// Extra cycles, beyond the ideal run.
    extra: f64,
    /// Extra cycles, and the ideal run's, of a core that hides nothing and of one that hides all that it can;
    /// as stated without data caches.
    ends: [(f64, f64); 2],
    /// Half the width of the 95 % interval around the extra cycles.
    error: f64,
    /// Extra cycles in exits and the hypervisor's work.
    exits: f64,
}

pub(crate) fn conclusion(c: &Comparison) -> Conclusion {
    conclude(c, &rows(c))
}

fn conclude(c: &Comparison, rows: &[ConfigCosts]) -> Conclusion {
    let page = |host_page: PageSize| {
        let of_page: Vec<&ConfigCosts> = rows.iter().filter(|r| r.config.host_page == host_page).collect();
        (of_page.len() > 1).then(|| page_conclusion(c, &of_page))
    };
    let pages = [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G].into_iter().filter_map(page);
    Conclusion { pages: pages.collect() }
}

/// The configurations that can be advised, in the order of [`Config::ALL`].
fn rows(c: &Comparison) -> Vec<ConfigCosts> {
    let row = |o: &ConfigOutcome| {
        let total = &o.total;
        let extra = total.extra_cycles() as f64;
        let at =
            |data_overlap, walk_overlap| at_overlaps(total, c.outcome.base_cpi, data_overlap, walk_overlap);
        ConfigCosts {
            config: o.config,
            counts: *total,
            figures: Figures::of(&c.outcome, o),
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

fn page_conclusion(c: &Comparison, rows: &[&ConfigCosts]) -> PageConclusion {
    let flips = flips(c, rows);
    let factors = || flips.iter().map(|f| f.factor);
    // Of changes by the same factor, but for rounding, that of a single cost says more.
    let far = |f: &Flip| f.factor.ln().abs() + if f.key.is_none() { 1e-9 } else { 0.0 };
    let nearest = flips.iter().min_by(|a, b| far(a).total_cmp(&far(b)));
    let Verdict { winner, possible } = race(c, rows, 1.0, &|_| 0.0).verdict(1.0);
    let meet = |a: &ConfigCosts, b: &ConfigCosts| {
        a.figures.low_seconds <= b.figures.high_seconds && b.figures.low_seconds <= a.figures.high_seconds
    };
    let first = rows.iter().find(|r| Some(r.config.mode) == winner.mode());
    let of = |r: &&ConfigCosts| ModeCost {
        mode: r.config.mode,
        seconds: r.figures.seconds,
        percent: r.figures.overhead_percent,
    };
    PageConclusion {
        host_page: rows[0].config.host_page,
        costs: rows.iter().map(of).collect(),
        winner,
        possible,
        bands_overlap: first
            .is_some_and(|w| rows.iter().any(|r| r.config.mode != w.config.mode && meet(w, r))),
        holds_from: factors().filter(|f| *f < 1.0).max_by(f64::total_cmp),
        holds_to: factors().filter(|f| *f >= 1.0).min_by(f64::total_cmp),
        flip: nearest.cloned(),
    }
}

/// The race of these rows over a number with which the cost of each grows by its slope. What a core hides, it
/// hides in every mode; the errors of two samples do not cancel. They are taken as they are at the assumed
/// value, although the error of an overhead from sampled caches grows a little with the overhead.
fn race(c: &Comparison, rows: &[&ConfigCosts], assumed: f64, slope: &dyn Fn(&ConfigCosts) -> f64) -> Race {
    let costs = |of: &dyn Fn(&ConfigCosts) -> f64| rows.iter().map(|r| of(r)).collect::<Vec<f64>>();
    let mut assumptions = vec![Assumption { costs: costs(&|r| r.extra), ideal: c.outcome.ideal_cycles() }];
    for end in [0, 1] {
        assumptions.push(Assumption { costs: costs(&|r| r.ends[end].0), ideal: rows[0].ends[end].1 });
    }
    for of in assumptions.clone() {
        for (i, j) in (0..rows.len()).flat_map(|j| (0..j).map(move |i| (i, j))) {
            let error = rows[i].error.hypot(rows[j].error);
            for error in [-error, error] {
                let mut other = of.clone();
                other.costs[i] += error;
                assumptions.push(other);
            }
        }
    }
    // Without data caches and samples, all are the same.
    let mut different: Vec<Assumption> = Vec::new();
    for one in assumptions {
        if !different.contains(&one) {
            different.push(one);
        }
    }
    let modes = rows.iter().map(|r| (r.config.mode, slope(r))).collect();
    Race { modes, assumptions: different, assumed }
}

/// Each change of a single exit cost, and of all together, that changes the verdict on these rows. A cost of
/// 0 is left out, because no ratio changes it.
fn flips(c: &Comparison, rows: &[&ConfigCosts]) -> Vec<Flip> {
    let together = race(c, rows, 1.0, &|r| r.exits).ends().into_iter().flatten().map(|end| Flip {
        key: None,
        assumed_cycles: None,
        at_cycles: None,
        factor: end.border,
        winner: end.verdict.winner,
        possible: end.verdict.possible,
    });
    let each = c.meta.hardware.exit.iter().filter(|(_, cost)| cost.cycles > 0).flat_map(|(name, cost)| {
        let count = |r: &ConfigCosts| {
            let mut counted = c.meta.hardware.exit.counted(&r.counts);
            counted.find(|(of, ..)| *of == name).map_or(0.0, |(.., n)| n as f64)
        };
        let race = race(c, rows, cost.cycles as f64, &count);
        let assumed = cost.cycles as f64;
        let ends = race.ends().into_iter().zip(race.whole_ends());
        let ends = ends.filter_map(|(end, whole)| Some((end?.border, whole?)));
        ends.filter(|(_, whole)| whole.border <= MOST_CYCLES).map(move |(border, whole)| Flip {
            key: Some(format!("exit.{name}.cycles")),
            assumed_cycles: Some(cost.cycles),
            at_cycles: Some(whole.border as u64),
            // The border beside the whole value: a nearer one may have no whole value beyond.
            factor: border.clamp(whole.border - 1.0, whole.border + 1.0) / assumed,
            winner: whole.verdict.winner,
            possible: whole.verdict.possible,
        })
    });
    each.collect::<Vec<_>>().into_iter().chain(together).collect()
}

#[cfg(test)]
pub(crate) mod tests;
