// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Advice that ranks: what settings of guest and host would gain for one program, from runs under some of the guest's settings.
//!
//! A [`Tried`] is one run: a guest's [`Setting`], and what each paging mode and host page size cost in it. [`Tuning`] compares all
//! pairs of both with what is set now.

mod how;
mod text;

use crate::Comparison;
use crate::figures::{at_overlaps, error_cycles};
use bifold_model::{Placed, Placement};
use serde::{Deserialize, Serialize};
use std::collections::BTreeSet;

/// A further change has to gain so much, in percent of the time now.
const PAYS: f64 = 0.1;

/// Settings of a guest and of the program's allocator.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Setting {
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: String,
    /// `glibc.malloc.hugetlb` of GLIBC_TUNABLES: 0, 1 (madvise) or 2 (hugetlbfs).
    pub malloc: u8,
    /// Whether the kernel isolates its page tables.
    pub kpti: bool,
}

/// One configuration in one run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Cost {
    /// Name of the configuration: paging mode and host page size.
    pub config: String,
    /// Where the guest's memory lies on the host's nodes; absent where that was not asked for.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// Predicted time of the program, in cycles: the ideal run and all that is beyond it.
    pub cycles: f64,
    /// The same if the core hid no wait, and if it hid all that it can; without data caches, at half and at double the assumed
    /// cycles per instruction.
    pub ends_cycles: [f64; 2],
    /// Half the width of the 95 % interval around the predicted time, from the sample of lines and of windows.
    pub error_cycles: f64,
    /// The part in page walks.
    pub walk_cycles: f64,
    /// The part in exits.
    pub exit_cycles: f64,
    /// Host memory that backs the guest's at the end.
    pub backed_bytes: u64,
}

/// One run.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Tried {
    /// The guest's setting.
    pub setting: Setting,
    /// How long the run took here, in seconds.
    pub seconds: f64,
    /// The configurations that were modelled.
    pub costs: Vec<Cost>,
}

/// One change of what is set now.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Change {
    /// 4 KB host pages.
    Host4k,
    /// 2 MB host pages.
    Host2m,
    /// 1 GB host pages.
    Host1g,
    /// Nested paging.
    Nested,
    /// Shadow paging.
    Shadow,
    /// Transparent huge pages always, in the guest.
    ThpAlways,
    /// Transparent huge pages where programs ask for them.
    ThpMadvise,
    /// No transparent huge pages in the guest.
    ThpNever,
    /// glibc's malloc does not ask for huge pages.
    MallocDefault,
    /// glibc's malloc asks for transparent huge pages.
    MallocThp,
    /// glibc's malloc takes huge pages from hugetlbfs.
    MallocHugetlb,
    /// Page-table isolation off, in the guest.
    KptiOff,
    /// Page-table isolation on, in the guest.
    KptiOn,
    /// Each guest node's memory on a host node of its own.
    BindNodes,
    /// Memory with the vCPU that touches it first.
    FirstTouch,
    /// Memory in turn over the host's nodes.
    Interleave,
    /// All memory on one node.
    OneNode,
}

/// Changes that gain together, or lose.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Advice {
    /// The changes.
    pub changes: Vec<Change>,
    /// The guest's setting with them.
    pub setting: Setting,
    /// The configuration with them.
    pub config: String,
    /// The placement with them.
    #[serde(skip_serializing_if = "Option::is_none")]
    pub placement: Option<Placement>,
    /// By how much the predicted time falls, in percent of the time now; less than 0 where it grows.
    pub gain_percent: f64,
    /// The least gain over what the core may hide.
    pub low_percent: f64,
    /// The most.
    pub high_percent: f64,
    /// The part of the gain in page walks, in percent of the time now.
    pub walk_percent: f64,
    /// The part in exits.
    pub exit_percent: f64,
    /// Host memory beyond that of now.
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
    /// Changes that pay, the largest gain first: each of an advice's changes gains beside its others.
    pub ranked: Vec<Advice>,
    /// Single changes that do not pay.
    pub no_gain: Vec<Advice>,
    /// What was not tried, and why.
    pub skipped: Vec<String>,
}

impl Cost {
    /// Costs of every configuration of a run, in a VM whose memory the host has backed before, or one that has just `started`. Where
    /// placements were counted in cycles, of each configuration in each placement.
    pub fn of(c: &Comparison, started: bool) -> Vec<Cost> {
        let of = |o: &bifold_model::ConfigOutcome| {
            let t = &o.total;
            let ideal = t.ideal_cycles(c.outcome.base_cpi);
            let first = if started { 0.0 } else { t.first_touch_cycles as f64 };
            let cpi = c.outcome.base_cpi;
            let at = |(extra, ideal): (f64, f64)| extra + ideal - first;
            let ends = match &c.outcome.caches {
                Some(f) => [(1.0, 1.0), (f.data_overlap, f.walk_overlap)]
                    .map(|(data, walk)| at(at_overlaps(t, cpi, data, walk))),
                None => [0.5, 2.0].map(|factor| at((t.extra_cycles() as f64, t.ideal_cycles(cpi * factor)))),
            };
            let local = Cost {
                config: o.config.name(),
                placement: None,
                cycles: ideal + t.extra_cycles() as f64 - first,
                ends_cycles: ends,
                error_cycles: error_cycles(o),
                walk_cycles: t.exposed_walk_cycles() as f64,
                exit_cycles: t.vmm_cycles as f64 - first,
                backed_bytes: (t.frames_backed << 12).saturating_add(t.huge_frames_backed << 21),
            };
            let placed: Vec<Cost> = o.placed.iter().filter_map(|p| local.placed(p)).collect();
            if placed.is_empty() { vec![local] } else { placed }
        };
        c.outcome.configs.iter().flat_map(of).collect()
    }
}

impl Cost {
    /// The cost in a placement, if the profile knows what remote memory costs. The band has the remote waits as stated: how much
    /// of them a core hides is part of the model of placements.
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

impl Setting {
    /// What turns one setting into another.
    fn changes(&self, to: &Setting) -> Vec<Change> {
        let thp = (self.thp != to.thp).then_some(match to.thp.as_str() {
            "always" => Change::ThpAlways,
            "never" => Change::ThpNever,
            _ => Change::ThpMadvise,
        });
        let malloc = (self.malloc != to.malloc).then_some(match to.malloc {
            0 => Change::MallocDefault,
            1 => Change::MallocThp,
            _ => Change::MallocHugetlb,
        });
        let kpti = (self.kpti != to.kpti).then_some(if to.kpti { Change::KptiOn } else { Change::KptiOff });
        [thp, malloc, kpti].into_iter().flatten().collect()
    }
}

impl Change {
    fn is_host_page(self) -> bool {
        matches!(self, Change::Host4k | Change::Host2m | Change::Host1g)
    }
}

/// What turns one configuration into another: `nested-4k` into `shadow-2m`.
fn config_changes(from: &str, to: &str) -> Vec<Change> {
    let parts = |name: &str| {
        name.rsplit_once('-').map_or((name.to_string(), String::new()), |(a, b)| (a.into(), b.into()))
    };
    let ((mode, size), (to_mode, to_size)) = (parts(from), parts(to));
    let mode = (mode != to_mode).then_some(if to_mode == "shadow" { Change::Shadow } else { Change::Nested });
    let size = (size != to_size).then_some(match to_size.as_str() {
        "4k" => Change::Host4k,
        "1g" => Change::Host1g,
        _ => Change::Host2m,
    });
    [size, mode].into_iter().flatten().collect()
}

/// What turns one placement into another.
fn placement_change(from: Option<Placement>, to: Option<Placement>) -> Option<Change> {
    match to.filter(|to| Some(*to) != from)? {
        Placement::GuestNuma => Some(Change::BindNodes),
        Placement::Smp => Some(Change::FirstTouch),
        Placement::Interleaved => Some(Change::Interleave),
        Placement::OneNode => Some(Change::OneNode),
        // A mistake, and cases that are forced in experiments.
        _ => None,
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

impl Tuning {
    /// Ranks what was tried against the first run as it is `now`; none if the run has no such configuration.
    /// `frequency_hz` is the profile's clock.
    pub fn new(tried: Vec<Tried>, now: &Now, frequency_hz: u64, skipped: Vec<String>) -> Option<Tuning> {
        let first = tried.first()?;
        let base = first.costs.iter().find(|c| c.is_of(now.config, now.placement))?.clone();
        let advice = |t: &Tried, c: &Cost| {
            let percent = |was: f64, is: f64| 100.0 * (was - is) / base.cycles;
            let gain_percent = percent(base.cycles, c.cycles);
            // Both runs have the same end of the band: the core is one.
            let ends = [0, 1].map(|i| 100.0 * (1.0 - c.ends_cycles[i] / base.ends_cycles[i]));
            let error = 100.0 * f64::hypot(c.error_cycles, base.error_cycles) / base.cycles;
            Advice {
                changes: config_changes(now.config, &c.config)
                    .into_iter()
                    .chain(placement_change(now.placement, c.placement))
                    .chain(first.setting.changes(&t.setting))
                    .collect(),
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
        };
        let mut all: Vec<Advice> = tried
            .iter()
            .flat_map(|t| t.costs.iter().map(move |c| (t, c)))
            .filter(|(_, c)| {
                c.placement == now.placement || placement_change(now.placement, c.placement).is_some()
            })
            .map(|(t, c)| advice(t, c))
            .collect();
        all.retain(|a| !a.changes.is_empty());
        all.sort_by(|a, b| b.gain_percent.total_cmp(&a.gain_percent));
        let set = |a: &Advice| a.changes.iter().copied().collect::<BTreeSet<_>>();
        let fewer = |a: &Advice, b: &Advice| set(a).is_subset(&set(b)) && a.changes.len() < b.changes.len();
        let pays = |a: &Advice| {
            let least = a.gain_percent - PAYS;
            least > 0.0 && all.iter().filter(|o| fewer(o, a)).all(|o| o.gain_percent < least)
        };
        // Larger host pages that gain no more than smaller ones, and take more memory.
        let guest = |a: &Advice| set(a).into_iter().filter(|c| !c.is_host_page()).collect::<Vec<_>>();
        let smaller = |a: &Advice, o: &Advice| {
            o.backed_bytes_more < a.backed_bytes_more
                && o.gain_percent > a.gain_percent - PAYS
                && guest(o) == guest(a)
        };
        let pays = |a: &&Advice| pays(a) && !all.iter().any(|o| smaller(a, o));
        let ranked: Vec<Advice> = all.iter().filter(pays).cloned().collect();
        let alone = |a: &&Advice| a.changes.len() == 1 && a.gain_percent < PAYS && !ranked.contains(a);
        let no_gain = all.iter().filter(alone).cloned().collect();
        let now_seconds = base.cycles / frequency_hz.max(1) as f64;
        let now_placement = now.placement;
        Some(Tuning { ranked, no_gain, now: now.config.into(), now_placement, now_seconds, skipped, tried })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn setting(thp: &str, malloc: u8) -> Setting {
        Setting { thp: thp.into(), malloc, kpti: false }
    }

    const NOW: Now = Now { config: "nested-4k", placement: None };

    #[test]
    fn placements_are_ranked_beside_other_changes() {
        let mut t = run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-2m", 90.0)]);
        let placed = |p: Placement, walk: u64, data: u64| Placed {
            placement: p,
            guest_tables: Default::default(),
            host_tables: Default::default(),
            data: Default::default(),
            cycles: Some(bifold_model::PlacedCycles { walk, data }),
        };
        let all = [
            placed(Placement::GuestNuma, 0, 5),
            placed(Placement::Smp, 10, 20),
            placed(Placement::Crossed, 30, 50),
        ];
        t.costs = t.costs.iter().flat_map(|c| all.iter().filter_map(|p| c.placed(p))).collect();
        let now = Now { config: "nested-4k", placement: Some(Placement::Smp) };
        let t = Tuning::new(vec![t], &now, 1, Vec::new()).unwrap();
        let ranked: Vec<_> = t.ranked.iter().map(|a| (&a.changes[..], a.gain_percent.round())).collect();
        use Change::*;
        // 130 now; 95 with both, 105 bound, 120 with larger pages. A mistake is no advice.
        assert_eq!(ranked, [(&[Host2m, BindNodes][..], 27.0), (&[BindNodes], 19.0), (&[Host2m], 8.0)]);
        assert_eq!(t.ranked[1].walk_percent.round(), 8.0);
        // Without cycles, a configuration has one cost.
        let unknown = Placed { cycles: None, ..placed(Placement::Smp, 0, 0) };
        assert!(t.tried[0].costs[0].placed(&unknown).is_none());
    }

    fn run(setting: Setting, costs: &[(&str, f64)]) -> Tried {
        let cost = |(config, cycles): &(&str, f64)| Cost {
            config: (*config).into(),
            placement: None,
            cycles: *cycles,
            ends_cycles: [*cycles * 0.99, *cycles * 1.01],
            error_cycles: 0.1,
            walk_cycles: 0.0,
            exit_cycles: 0.0,
            backed_bytes: 0,
        };
        Tried { setting, seconds: 1.0, costs: costs.iter().map(cost).collect() }
    }

    #[test]
    fn the_largest_gain_is_first_and_a_change_that_adds_nothing_is_left_out() {
        let now =
            run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-2m", 90.0), ("shadow-2m", 89.95)]);
        let always =
            run(setting("always", 0), &[("nested-4k", 95.0), ("nested-2m", 80.0), ("shadow-2m", 82.0)]);
        let malloc = run(setting("madvise", 1), &[("nested-4k", 101.0), ("nested-2m", 90.0)]);
        let t = Tuning::new(vec![now, always, malloc], &NOW, 100, Vec::new()).unwrap();
        let ranked: Vec<_> = t.ranked.iter().map(|a| (a.changes.clone(), a.gain_percent.round())).collect();
        use Change::*;
        assert_eq!(
            ranked,
            [(vec![Host2m, ThpAlways], 20.0), (vec![Host2m], 10.0), (vec![ThpAlways], 5.0)],
            "shadow paging gains nothing beside 2 MB pages"
        );
        // Pages of 1 GB that gain no more than those of 2 MB are left out.
        let mut huge =
            run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-2m", 90.0), ("nested-1g", 89.95)]);
        huge.costs[2].backed_bytes = 1 << 30;
        let only = Tuning::new(vec![huge], &NOW, 100, Vec::new()).unwrap();
        assert_eq!(only.ranked.iter().map(|a| a.changes[0]).collect::<Vec<_>>(), [Host2m]);
        assert_eq!(t.no_gain.iter().map(|a| a.changes[0]).collect::<Vec<_>>(), [MallocThp]);
        assert_eq!(t.now_seconds, 1.0);
    }

    #[test]
    fn a_band_holds_the_gain() {
        let t = vec![run(setting("madvise", 0), &[("nested-4k", 100.0), ("nested-1g", 50.0)])];
        let t = Tuning::new(t, &NOW, 1, Vec::new()).unwrap();
        let a = &t.ranked[0];
        assert!(a.low_percent <= a.gain_percent && a.gain_percent <= a.high_percent);
        assert_eq!(a.changes, [Change::Host1g]);
        assert!(Tuning::new(Vec::new(), &NOW, 1, Vec::new()).is_none());
    }
}
