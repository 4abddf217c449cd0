// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Advice that ranks: what settings of guest and host would gain for one program, from runs under some of the
//! guest's settings.
//!
//! A [`Tried`] is one run: a guest's [`Setting`], and what each paging mode and host page size cost in it.
//! [`Tuning`] compares all pairs of both with what is set now.

mod change;
mod how;
#[cfg(test)]
mod tests;
mod text;

pub use change::Change;
pub use how::{How, catalogue};
pub(crate) use text::{Document, Ranking, SCHEMA};

use crate::Comparison;
use crate::figures::{Core, error_cycles, times};
use crate::verdict::equal;
use bifold_mmu::PageSize;
use bifold_model::{ConfigOutcome, Paging, Placed, Placement, Sample, VmState};
use change::{Choice, config_changes, parts, placement_change};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// What gains less than this, in percent of the time now, is not worth a change. Changes on top of others
/// that are worth one have to gain as much again.
pub const WORTH_PERCENT: f64 = 1.0;

/// Settings of a guest and of the program.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Setting {
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: String,
    /// `glibc.malloc.hugetlb` of GLIBC_TUNABLES: 0, 1 (madvise) or 2 (hugetlbfs).
    pub malloc: u8,
    /// Whether the kernel isolates its page tables.
    pub kpti: bool,
    /// Axes of the user's own with their values.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    pub own: Vec<(String, String)>,
}

/// One configuration in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Cost {
    /// Name of the configuration: paging mode and host page size.
    pub config: String,
    /// Where the guest's memory lies on the host's nodes; absent where that was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Predicted time of the program, in cycles: the ideal run and all that is beyond it.
    pub cycles: f64,
    /// The part of the ideal run.
    pub ideal_cycles: f64,
    /// The predicted time if the core hid no wait, and if it hid all that it can; without data caches, at
    /// double and at half the assumed cycles per instruction.
    pub ends_cycles: [f64; 2],
    /// Half the width of the 95 % interval around the predicted time, from the sample of lines and of
    /// windows.
    pub error_cycles: f64,
    /// The part in page walks.
    pub walk_cycles: f64,
    /// The part in exits.
    pub exit_cycles: f64,
    /// Host memory that backs the guest's at the end, in bytes; 0 where that is not counted: for VMs other
    /// than those that have just started, for a region, and in a run without nested paging on 4 KB pages.
    pub backed_bytes: u64,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Tried {
    /// The guest's setting.
    pub setting: Setting,
    /// How long the run took here, in seconds.
    pub seconds: f64,
    /// The configurations that were modelled.
    pub costs: Vec<Cost>,
    /// Memory that the program touched, by the guest's page faults.
    pub touched_bytes: u64,
}

/// Changes that gain together, or lose.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
#[schemars(rename = "advice")]
pub struct Advice {
    /// The changes: `host-2m`, `shadow`, `inner-2m`, ...
    pub changes: Vec<Change>,
    /// The guest's setting with them; absent where the run had no guest.
    #[serde(skip_serializing_if = "Setting::is_unknown")]
    pub setting: Setting,
    /// The configuration with them.
    pub config: String,
    /// The placement with them; absent where placements were not compared.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// By how much the predicted time falls; less than 0 where it grows. Unit: % of the time now.
    pub gain_percent: f64,
    /// The least gain over what the core may hide. Unit: % of the time now.
    pub low_percent: f64,
    /// The largest gain over what the core may hide. Unit: % of the time now.
    pub high_percent: f64,
    /// The part of the gain in page walks. Unit: % of the time now.
    pub walk_percent: f64,
    /// The part of the gain in exits. Unit: % of the time now.
    pub exit_percent: f64,
    /// Host memory beyond that of now; 0 where memory is not counted. Unit: bytes.
    pub backed_bytes_more: i64,
}

/// What was tried for a program, and what follows.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Tuning {
    /// Runs; the first has the guest's setting of now.
    pub tried: Vec<Tried>,
    /// The configuration of now.
    pub now: String,
    /// The placement of now, where placements were compared.
    pub now_placement: Option<Placement>,
    /// Predicted seconds of now.
    pub now_seconds: f64,
    /// Changes that gain at least [`WORTH_PERCENT`], the largest gain first, and as much again beyond every
    /// row here with fewer of them, or with smaller host pages and no more changes.
    pub ranked: Vec<Advice>,
    /// Changes that would be ranked by their gain, and may lose: the band of the gain spans 0, or the assumed
    /// costs of exits cannot decide between two paging modes of one run.
    pub undecided: Vec<Advice>,
    /// Single changes that gain less than [`WORTH_PERCENT`].
    pub no_gain: Vec<Advice>,
    /// The largest gain of all that was tried, in percent of the time now; none if nothing was tried.
    pub best_percent: Option<f64>,
    /// What was not tried, and why.
    pub skipped: Vec<String>,
}

impl Cost {
    /// Costs of every configuration of a run. Where placements were counted in cycles, of each configuration
    /// in each placement.
    pub fn of(c: &Comparison) -> Vec<Cost> {
        let of = |o: &ConfigOutcome| {
            let local = Cost::local(c, o);
            let placed: Vec<Cost> = o.placed.iter().filter_map(|p| local.placed(p)).collect();
            if placed.is_empty() { vec![local] } else { placed }
        };
        c.outcome.configs.iter().flat_map(of).collect()
    }

    /// The cost of a configuration whose memory is all local.
    fn local(c: &Comparison, o: &ConfigOutcome) -> Cost {
        let t = &o.total;
        let [cycles, ends @ ..] = times(t, &Core::of(&c.outcome));
        Cost {
            config: o.config.name(),
            placement: None,
            cycles,
            ideal_cycles: t.ideal_cycles(c.outcome.base_cpi),
            ends_cycles: ends,
            error_cycles: error_cycles(o),
            walk_cycles: t.exposed_walk_cycles() as f64,
            exit_cycles: t.vmm_cycles as f64,
            backed_bytes: backed_bytes(c, o),
        }
    }

    /// The cost in a placement, if the profile knows what remote memory costs. The band has the remote waits
    /// as stated: how much of them a core hides is part of the model of placements.
    fn placed(&self, p: &Placed) -> Option<Cost> {
        let remote = p.cycles?;
        let more = (remote.walk + remote.data) as f64;
        Some(Cost {
            placement: Some(p.placement),
            cycles: self.cycles + more,
            ends_cycles: self.ends_cycles.map(|end| end + more),
            walk_cycles: self.walk_cycles + remote.walk as f64,
            ..self.clone()
        })
    }

    /// Whether the cost is of this configuration and placement.
    fn is_of(&self, config: &str, placement: Option<Placement>) -> bool {
        self.config == config && self.placement == placement
    }
}

/// What is set now on the host.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Now<'a> {
    /// Name of the configuration: paging mode and host page size.
    pub config: &'a str,
    /// The placement; none where none was asked for, or the profile does not know what remote memory costs.
    pub placement: Option<Placement>,
}

impl Advice {
    /// What the cost `c` of `t` says beside the cost `base` of now.
    fn of(first: &Tried, base: &Cost, now: &Now, t: &Tried, c: &Cost) -> Advice {
        let percent = |was: f64, is: f64| 100.0 * (was - is) / base.cycles;
        let changes = config_changes(now.config, &c.config).into_iter();
        let changes = changes.chain(placement_change(now.placement, c.placement));
        let gain_percent = percent(base.cycles, c.cycles);
        // Both runs have the same end of the band: the core is one.
        let ends = [0, 1].map(|i| 100.0 * (1.0 - c.ends_cycles[i] / base.ends_cycles[i]));
        let error = 100.0 * f64::hypot(c.error_cycles, base.error_cycles) / base.cycles;
        Advice {
            changes: changes.chain(first.setting.changes(&t.setting)).collect(),
            setting: t.setting.clone(),
            config: c.config.clone(),
            placement: c.placement,
            gain_percent,
            low_percent: ends[0].min(ends[1]).min(gain_percent) - error,
            high_percent: ends[0].max(ends[1]).max(gain_percent) + error,
            walk_percent: percent(base.walk_cycles, c.walk_cycles),
            exit_percent: percent(base.exit_cycles, c.exit_cycles),
            backed_bytes_more: c.backed_bytes as i64 - base.backed_bytes as i64,
        }
    }
}

/// Whether the assumed costs of exits decide between two modes of one run, as they do in the verdict of
/// `compare`.
fn close((a, of_a): (&Setting, &Cost), (b, of_b): (&Setting, &Cost)) -> bool {
    let modes = [of_a, of_b].map(|c| parts(&c.config).0);
    let [extra, other] = [of_a, of_b].map(|c| c.cycles - c.ideal_cycles);
    modes[0] != modes[1] && a == b && equal(extra, other, of_a.ideal_cycles)
}

/// Which rows are kept, the largest gain first, of all in that order.
fn kept(all: &[(Advice, &Cost, bool)]) -> Vec<usize> {
    let set = |a: &Advice| a.changes.iter().cloned().collect::<BTreeSet<_>>();
    let fewer = |a: &Advice, b: &Advice| set(a).is_subset(&set(b)) && a.changes.len() < b.changes.len();
    // Larger host pages have to gain more than smaller ones: they are harder to get and keep.
    let others = |a: &Advice| set(a).into_iter().filter(|c| !c.is_host_page()).collect::<Vec<_>>();
    let smaller = |a: &Advice, b: &Advice| {
        a.changes.len() <= b.changes.len()
            && others(a).iter().all(|change| b.changes.contains(change))
            && page_bytes(&a.config) < page_bytes(&b.config)
    };
    // A row is left out for a kept one with fewer changes or smaller pages, so what gains most is kept
    // itself or stands behind a kept row that gains nearly as much. What may lose stands in for nothing
    // that is sure.
    let mut order: Vec<usize> = (0..all.len()).collect();
    order.sort_by_key(|&i| (all[i].0.changes.len(), page_bytes(&all[i].0.config)));
    let mut kept: Vec<usize> = Vec::new();
    for i in order {
        let (a, cost, decided) = &all[i];
        let least = a.gain_percent - WORTH_PERCENT;
        let less = |&k: &usize| {
            let (o, of_o, sure) = &all[k];
            let beside = (*sure || !*decided) && (fewer(o, a) || smaller(o, a));
            !beside || o.gain_percent < least && !close((&o.setting, of_o), (&a.setting, cost))
        };
        if least >= 0.0 && kept.iter().all(less) {
            kept.push(i);
        }
    }
    kept.sort_unstable();
    kept
}

impl Tuning {
    /// Ranks what was tried against the first run as it is `now`; none if the run has no such configuration.
    /// `frequency_hz` is the profile's clock.
    pub fn new(tried: Vec<Tried>, now: &Now, frequency_hz: u64, skipped: Vec<String>) -> Option<Tuning> {
        let first = tried.first()?;
        let base = first.costs.iter().find(|c| c.is_of(now.config, now.placement))?.clone();
        let choice = Choice::of(now.config);
        let may = |c: &Cost| {
            let placed =
                c.placement == now.placement || placement_change(now.placement, c.placement).is_some();
            placed && (c.config == now.config || choice.is_some() && Choice::of(&c.config) == choice)
        };
        let costs = tried.iter().flat_map(|t| t.costs.iter().map(move |c| (t, c))).filter(|(_, c)| may(c));
        let mut all: Vec<(Advice, &Cost, bool)> = costs
            .map(|(t, c)| {
                let advice = Advice::of(first, &base, now, t, c);
                let decided = advice.low_percent > 0.0 && !close((&first.setting, &base), (&t.setting, c));
                (advice, c, decided)
            })
            .filter(|(a, ..)| !a.changes.is_empty())
            .collect();
        all.sort_by(|a, b| b.0.gain_percent.total_cmp(&a.0.gain_percent));
        let kept = kept(&all);
        let of = |ranked: bool| {
            let found = kept.iter().map(|&i| &all[i]).filter(|(.., decided)| *decided == ranked);
            found.map(|(a, ..)| a.clone()).collect::<Vec<_>>()
        };
        let alone = |a: &&Advice| a.changes.len() == 1 && a.gain_percent < WORTH_PERCENT;
        Some(Tuning {
            ranked: of(true),
            undecided: of(false),
            no_gain: all.iter().map(|(a, ..)| a).filter(alone).cloned().collect(),
            best_percent: all.first().map(|(a, ..)| a.gain_percent),
            now: now.config.into(),
            now_placement: now.placement,
            now_seconds: base.cycles / frequency_hz.max(1) as f64,
            skipped,
            tried,
        })
    }

    /// The rankings of one run: one among the modes and page sizes of products, and one among guests within
    /// guests. The first configuration of each in nested paging, or else the first, is that of now. None for
    /// a choice of which one configuration alone was modelled.
    pub fn of_run(c: &Comparison) -> Vec<Tuning> {
        let o = &c.outcome;
        let guest = c.meta.guest.as_ref();
        let setting = Setting {
            thp: guest.and_then(|g| g.thp.clone()).unwrap_or_default(),
            kpti: guest.and_then(|g| g.kpti).unwrap_or_default(),
            ..Setting::default()
        };
        let ranking = |choice: Choice| {
            let chosen = o.configs.iter().filter(|r| Choice::of(&r.config.name()) == Some(choice));
            let costs: Vec<Cost> = chosen.map(|r| Cost::local(c, r)).collect();
            // KVM's own default at both levels, where that was modelled.
            let nested = costs.iter().find(|c| c.config.starts_with("nested"));
            let now = nested.or(costs.first()).filter(|_| costs.len() > 1)?.config.clone();
            let tried = Tried { setting: setting.clone(), seconds: 0.0, costs, touched_bytes: 0 };
            Tuning::new(vec![tried], &Now { config: &now, placement: None }, o.frequency_hz, Vec::new())
        };
        [Choice::OneHypervisor, Choice::Within].into_iter().filter_map(ranking).collect()
    }
}

/// Host memory that backs the guest's at the end of the run, what the guest's own start touched included; 0
/// where that is not known.
fn backed_bytes(c: &Comparison, o: &ConfigOutcome) -> u64 {
    // A long-lived VM has all memory backed, a snapshot's pages are of a file or copied from elsewhere, and a
    // region counts its own first touches alone.
    if c.outcome.vm != VmState::Started || c.outcome.before_region.is_some() {
        return 0;
    }
    let whole = |o: &ConfigOutcome, get: fn(&Sample) -> u64| {
        let start = c.outcome.start.iter().flatten().find(|s| s.config == o.config);
        get(&o.total).saturating_add(start.map_or(0, |s| get(&s.total)))
    };
    // A 4 KB page that is read first is the zero page, and takes memory when it is written: it is backed
    // twice, by three violations. All configurations see the same accesses.
    let nested = |o: &&ConfigOutcome| {
        matches!(o.config.mode, Paging::Nested | Paging::NestedOnNested)
            && o.config.host_page == PageSize::Size4K
    };
    let Some(small) = c.outcome.configs.iter().find(nested) else { return 0 };
    let replaced = whole(small, |s| s.exits_violation).saturating_sub(whole(small, |s| s.frames_backed));
    let bytes = match o.config.mode.has_outer() {
        // The pages of the guest's hypervisor are memory of the outer host's.
        true => whole(o, |s| (s.outer_frames_backed << 12).saturating_add(s.outer_huge_frames_backed << 21)),
        false => whole(o, |s| (s.frames_backed << 12).saturating_add(s.huge_frames_backed << 21)),
    };
    let twice = if o.config.host_page == PageSize::Size4K { replaced << 12 } else { 0 };
    bytes.saturating_sub(twice)
}

/// The sum of a configuration's page sizes over its levels, for an order.
fn page_bytes(config: &str) -> u64 {
    let bytes = |size: &str| match size {
        "4k" => 4 << 10,
        "2m" => 2 << 20,
        "1g" => 1 << 30,
        _ => 0,
    };
    parts(config).1.iter().map(|size| bytes(size)).sum()
}
