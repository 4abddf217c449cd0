// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The timeline: the run cut into intervals of the profile's cycles, with a sample per interval and
//! configuration.
//!
//! Time is that of the ideal run: instructions of all vCPUs times the base CPI, and what they wait
//! for data. So every configuration is cut at the same places of the guest's work.

use crate::ages::Reuse;
use crate::cache::Caches;
use crate::regime::Regime;
use crate::{ConfigOutcome, Profile, Sample};

/// Intervals of every configuration so far.
#[derive(Debug)]
pub struct Timeline {
    interval: u64,
    next: u64,
    starts: Vec<u64>,
    per_config: Vec<PerConfig>,
}

#[derive(Debug, Default)]
struct PerConfig {
    /// Counts up to the last cut.
    last: Sample,
    intervals: Vec<Sample>,
    reuse: Vec<Vec<Reuse>>,
    cold_exits: u64,
    cold_cycles: u64,
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
    s.vmm_cycles = profile.exit.cycles(&s);
    s.first_touch_cycles = profile.exit.cycles(&s.first_touches());
    s
}

impl Timeline {
    /// An empty timeline of intervals of `interval` ideal cycles for `configs` configurations.
    pub fn new(interval: u64, configs: usize) -> Self {
        Timeline {
            interval,
            next: interval,
            starts: vec![0],
            per_config: (0..configs).map(|_| PerConfig::default()).collect(),
        }
    }

    /// Is it time to cut?
    #[inline]
    pub fn due(&self, ideal_cycles: u64) -> bool {
        ideal_cycles >= self.next
    }

    /// Ends the current interval at `ideal_cycles`.
    pub(crate) fn cut(&mut self, ideal_cycles: u64, regimes: &mut [Regime], shared: Shared<'_>) {
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
            regime.begin_interval();
        }
        self.starts.push(ideal_cycles);
        while self.next <= ideal_cycles {
            self.next += self.interval;
        }
    }

    /// The results; the last interval must have been cut. Drops the start of an interval that never ran.
    pub fn finish(self, regimes: &[Regime]) -> (Vec<u64>, Vec<ConfigOutcome>) {
        let mut starts = self.starts;
        starts.pop();
        let configs = regimes.iter().zip(self.per_config).map(|(r, p)| ConfigOutcome {
            config: r.config,
            total: Sample { cold_exits: p.cold_exits, cold_cycles: p.cold_cycles, ..p.last },
            intervals: p.intervals,
            reuse: p.reuse,
            refs: r.counts.refs.by_step(),
            estimate: None,
            cache_error: None,
            placed: Vec::new(),
        });
        (starts, configs.collect())
    }

    /// Nominal length of an interval, in ideal cycles.
    pub fn interval(&self) -> u64 {
        self.interval
    }
}
