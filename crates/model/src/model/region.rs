// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The regions of a program that are to be measured. The stream begins with the program, and the model
//! follows the program from there: when a region begins, memory is backed, tables are built, and TLBs and
//! caches hold what the program used last. Only the counts start at 0. At a region's end they are put by, and
//! what follows is in none until the next region begins.
//!
//! A stream without regions is one, from its start to its end, and so is what follows the begin of a region
//! that has no end.

use super::Model;
use crate::cache::Estimates;
use crate::outcome::{RegionOutcome, RegionTotal, Regions};
use crate::timeline::{Cut, Timeline};
use crate::{Config, Placed, Sample};

/// Regions that have a row of their own. A run of more has no timeline either, because each region's end cuts
/// an interval.
pub const MOST_REGIONS: usize = 1000;

/// The regions that have ended.
#[derive(Debug, Default)]
pub(super) struct Ended {
    /// How many.
    count: u64,
    /// The stream is between two regions, or behind the last one.
    between: bool,
    /// Instructions before the region that runs, since the end of the one before.
    before: u64,
    /// Instructions of the last one, which the model's count starts with until the next begins.
    last: u64,
    between_instructions: u64,
    rows: Vec<RegionOutcome>,
    /// All together.
    pub sum: Vec<Counted>,
    pub estimates: Estimates,
}

/// What is put by of one configuration.
#[derive(Debug, Default)]
pub(super) struct Counted {
    pub total: Sample,
    pub refs: [[u64; 6]; 6],
    pub placed: Vec<Placed>,
}

impl Counted {
    fn add(&mut self, other: Counted) {
        self.total.add(&other.total);
        let refs = self.refs.as_flattened_mut().iter_mut();
        refs.zip(other.refs.as_flattened()).for_each(|(sum, n)| *sum += n);
        if self.placed.is_empty() {
            self.placed = other.placed;
        } else {
            self.placed.iter_mut().zip(&other.placed).for_each(|(sum, p)| sum.add(p));
        }
    }
}

impl Ended {
    /// Puts a region by.
    fn add(&mut self, configs: &[Config], counted: Vec<Counted>) {
        self.count += 1;
        if self.rows.len() < MOST_REGIONS {
            let of = |(config, c): (&Config, &Counted)| RegionTotal { config: *config, total: c.total };
            self.rows.push(RegionOutcome {
                number: self.count,
                before_instructions: self.before,
                configs: configs.iter().zip(&counted).map(of).collect(),
            });
        }
        self.sum.resize_with(counted.len(), Counted::default);
        self.sum.iter_mut().zip(counted).for_each(|(sum, c)| sum.add(c));
    }

    /// May the counts of a sampled stream stand for all of it? Only those of one region.
    pub fn is_first(&self) -> bool {
        self.count == 0
    }

    /// The regions one by one; none of a single one.
    pub fn regions(self) -> Option<Regions> {
        let Ended { count, between_instructions, rows, .. } = self;
        (count > 1).then_some(Regions { count, between_instructions, rows })
    }
}

impl Model {
    /// Whether the command's own program has begun; false in streams that do not say where.
    pub fn program_begun(&self) -> bool {
        self.start.is_some()
    }

    /// Instructions before the first region, once it has begun.
    pub fn before_region(&self) -> Option<u64> {
        self.before_region
    }

    /// Is the stream between two regions?
    pub(super) fn between_regions(&self) -> bool {
        self.ended.between
    }

    /// A region begins: what was counted since the last one's end, or the start, is forgotten. Within a
    /// region, the begin of another has no effect.
    pub(super) fn begin_region(&mut self) {
        let first = self.ended.count == 0;
        if !first && !self.ended.between {
            return;
        }
        let before = self.common.instructions - self.ended.last;
        self.ended.before = before;
        self.ended.between = false;
        if first {
            self.before_region = Some(before);
            self.start_over();
            return;
        }
        self.ended.between_instructions += before;
        self.reset_counts();
        self.switched.iter_mut().for_each(|s| s.resume());
        if self.ended.count == MOST_REGIONS as u64 {
            self.timeline.leave_out();
            self.switched.clear();
        }
        self.switch_awaited();
    }

    /// The command's own program begins: what the guest's init and exec did is put aside. Once in a stream,
    /// before all regions.
    pub(super) fn begin_program(&mut self) {
        if self.start.is_some() || self.before_region.is_some() {
            return;
        }
        let of = |(config, total)| RegionTotal { config, total };
        let totals = self.totals().into_iter().take(self.options.configs.len());
        self.start = Some(totals.map(of).collect());
        self.start_over();
    }

    /// All that was counted so far is forgotten.
    fn start_over(&mut self) {
        self.reset_counts();
        self.vcpus.iter_mut().for_each(|v| v.instructions = 0);
        self.timeline = Timeline::new(self.timeline.interval(), self.options.configs.len());
        self.switched.iter_mut().for_each(|s| s.restart());
    }

    fn reset_counts(&mut self) {
        // A gap before the region made the stream a sampled one.
        self.sampled = None;
        let accesses = std::mem::take(&mut self.common).accesses;
        let configs = self.options.configs.len();
        for regime in &mut self.regimes {
            regime.reset_counts();
            regime.begin_interval();
        }
        if let Some(caches) = &mut self.observers.caches {
            caches.reset_counts(accesses);
        }
        if let Some(places) = &mut self.observers.places {
            places.reset_counts(configs);
        }
        if let Some(uses) = &mut self.observers.uses {
            uses.restart();
        }
        if let Some(swaps) = &mut self.observers.swaps {
            swaps.restart();
        }
        if let Some(charges) = &mut self.charges {
            charges.restart();
        }
    }

    /// The region ends, and the stream goes on. Outside of a region, nothing ends.
    pub(super) fn end_region(&mut self) {
        if self.before_region.is_none() || self.ended.between {
            return;
        }
        self.charge_rest();
        if let Some(charges) = &mut self.charges {
            charges.pause();
        }
        self.regimes.iter_mut().filter_map(|r| r.counts.log.as_mut()).for_each(|log| log.pause());
        self.put_by(Cut::Region);
        // Counts of windows stand for one region that ends the stream. Bifold makes no other sampled streams.
        self.sampled = None;
        self.ended.last = self.common.instructions;
        self.ended.between = true;
    }

    /// Puts the counts by of the region that runs.
    pub(super) fn put_by(&mut self, why: Cut) {
        let ideal = self.ideal_cycles();
        if !self.timeline.is_left_out() {
            self.cut(ideal, why);
        }
        let Model { timeline, regimes, common, profile, observers, ended, options, .. } = self;
        let caches = observers.caches.as_deref();
        let shared = crate::timeline::Shared { common, profile, caches };
        let totals = timeline.end_region(ideal, regimes, shared);
        if let Some(caches) = caches {
            ended.estimates.add(caches.estimates());
        }
        let cached = caches.is_some();
        if let Some(places) = &mut observers.places {
            places.finish(cached);
        }
        let places = observers.places.as_deref();
        let of = |(i, total): (usize, Sample)| {
            let regime = &regimes[i];
            let refs = &regime.counts.refs;
            let placed = places.map_or(Vec::new(), |p| p.counts(i, regime.config.mode, refs, profile));
            Counted { total, refs: refs.by_step(), placed }
        };
        let counted = totals.into_iter().enumerate().map(of).collect();
        ended.add(&options.configs, counted);
    }
}
