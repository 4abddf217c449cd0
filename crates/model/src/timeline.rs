// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The timeline: the run cut into intervals of the profile's cycles, with a sample per interval and
//! configuration.
//!
//! Time is that of the ideal run: instructions of all vCPUs times the base CPI, and what they wait
//! for data. So every configuration is cut at the same places of the guest's work. Time between regions is
//! left out, and a region's end cuts an interval.

use crate::ages::Reuse;
use crate::cache::Caches;
use crate::regime::Regime;
use crate::{Profile, Sample};

/// Intervals of every configuration so far.
#[derive(Debug)]
pub struct Timeline {
    interval: u64,
    next: u64,
    /// Ideal cycles of the regions that have ended. Those of the one that runs start at 0.
    ended: u64,
    starts: Vec<u64>,
    per_config: Vec<PerConfig>,
    /// No more intervals are kept.
    left_out: bool,
}

#[derive(Debug, Default)]
struct PerConfig {
    /// Counts of the region that runs, up to the last cut.
    last: Sample,
    cold_exits: u64,
    cold_cycles: u64,
    intervals: Vec<Sample>,
    reuse: Vec<Vec<Reuse>>,
}

/// A configuration's intervals, and the reuse in each.
#[derive(Debug)]
pub(crate) struct Kept {
    pub intervals: Vec<Sample>,
    pub reuse: Vec<Vec<Reuse>>,
}

/// Why an interval ends.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Cut {
    /// It has its length.
    Due,
    /// So does its region, and another may follow.
    Region,
    /// So does the run.
    Run,
}

/// What the samples of all configurations are computed from, beside the configurations.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Shared<'a> {
    /// Counts of the guest's own.
    pub common: &'a Sample,
    /// The costs.
    pub profile: &'a Profile,
    /// The data caches, if they are simulated.
    pub caches: Option<&'a Caches>,
}

/// Counts of configuration number `index` since the start, costs included.
pub(crate) fn counts(index: usize, regime: &Regime, shared: Shared<'_>) -> Sample {
    let Shared { common, profile, caches } = shared;
    let mut s = regime.counts.now;
    s.instructions = common.instructions;
    s.accesses = common.accesses;
    s.guest_page_faults = common.guest_page_faults;
    s.tlb_shootdowns = common.tlb_shootdowns;
    s.cr3_load_cycles = common.cr3_load_cycles;
    s.l1_misses += common.l1_misses;
    let sum =
        |rows: &[[u64; 6]], from: usize, to: usize| -> u64 { rows.iter().flat_map(|r| &r[from..to]).sum() };
    let refs = &regime.counts.refs.by_step();
    let (leaf, upper) = (refs[1][0], sum(&refs[2..], 0, 1));
    let (host_leaf, host_upper) = (sum(refs, 1, 2), sum(refs, 2, 6));
    s.guest_refs = leaf + upper;
    s.host_refs = host_leaf + host_upper;
    s.walk_cycles = leaf * profile.walk.guest_leaf
        + upper * profile.walk.guest_upper
        + host_leaf * profile.walk.host_leaf
        + host_upper * profile.walk.host_upper;
    if let Some(caches) = caches {
        caches.add_to(index, &mut s);
    }
    s.outer_exits = regime.outer_exits(&s, profile);
    regime.add_derived(&mut s);
    s.vmm_cycles = profile.exit.cycles(&s);
    let first = s.first_touches();
    let outer_exits = regime.outer_exits(&first, profile);
    s.first_touch_cycles = profile.exit.cycles(&Sample { outer_exits, ..first });
    s
}

impl Timeline {
    /// An empty timeline of intervals of `interval` ideal cycles for `configs` configurations.
    pub fn new(interval: u64, configs: usize) -> Self {
        Timeline {
            interval,
            next: interval,
            ended: 0,
            starts: vec![0],
            per_config: (0..configs).map(|_| PerConfig::default()).collect(),
            left_out: false,
        }
    }

    /// Is it time to cut?
    #[inline]
    pub fn due(&self, ideal_cycles: u64) -> bool {
        ideal_cycles >= self.next
    }

    /// From now on, no intervals are kept, and those kept so far are dropped.
    pub(crate) fn leave_out(&mut self) {
        self.left_out = true;
        self.next = u64::MAX;
        self.starts = vec![0];
        self.per_config.iter_mut().for_each(|p| *p = PerConfig::default());
    }

    /// Are there no intervals?
    pub(crate) fn is_left_out(&self) -> bool {
        self.left_out
    }

    /// Ends the current interval at `ideal_cycles` of the region that runs.
    pub(crate) fn cut(&mut self, ideal_cycles: u64, why: Cut, regimes: &mut [Regime], shared: Shared<'_>) {
        let profile = shared.profile;
        for (i, (regime, p)) in regimes.iter_mut().zip(&mut self.per_config).enumerate() {
            let now = counts(i, regime, shared);
            let mut sample = now.since(&p.last);
            let reuse = regime.reuse();
            let each = regime.cold_exit_cycles(&profile.exit);
            sample.cold_exits = reuse.iter().map(|r| u64::from(r.exits)).sum();
            let tables: u64 = reuse.iter().map(|r| u64::from(r.tables)).sum();
            sample.cold_cycles = sample.cold_exits * each + tables * profile.exit.make_page.cycles;
            p.reuse.push(reuse);
            p.cold_exits += sample.cold_exits;
            p.cold_cycles += sample.cold_cycles;
            p.intervals.push(sample);
            p.last = now;
            // What is used between two regions is as old as the interval before: the next begins with its
            // region.
            if why != Cut::Region {
                regime.begin_interval();
            }
        }
        self.starts.push(self.ended + ideal_cycles);
        while self.next <= ideal_cycles {
            self.next += self.interval;
        }
    }

    /// The region that ran has ended, and was cut, at its ideal cycle `ideal_cycles`: every configuration's
    /// counts in it.
    pub(crate) fn end_region(
        &mut self,
        ideal_cycles: u64,
        regimes: &[Regime],
        shared: Shared<'_>,
    ) -> Vec<Sample> {
        if self.left_out {
            let regimes = regimes.iter().take(self.per_config.len()).enumerate();
            return regimes.map(|(i, regime)| counts(i, regime, shared)).collect();
        }
        self.ended += ideal_cycles;
        self.next = self.interval;
        let total = |p: &mut PerConfig| {
            let (cold_exits, cold_cycles) = (p.cold_exits, p.cold_cycles);
            (p.cold_exits, p.cold_cycles) = (0, 0);
            Sample { cold_exits, cold_cycles, ..std::mem::take(&mut p.last) }
        };
        self.per_config.iter_mut().map(total).collect()
    }

    /// The starts of all intervals, and every configuration's intervals with their reuse; none if they are
    /// left out. The last interval must have been cut. Drops the start of an interval that never ran.
    pub(crate) fn finish(self) -> (Vec<u64>, Vec<Kept>) {
        let mut starts = self.starts;
        starts.pop();
        let kept = |p: PerConfig| Kept { intervals: p.intervals, reuse: p.reuse };
        (starts, self.per_config.into_iter().map(kept).collect())
    }

    /// Nominal length of an interval, in ideal cycles.
    pub fn interval(&self) -> u64 {
        self.interval
    }
}
