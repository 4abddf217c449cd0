// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The region of a program that is to be measured. The stream begins with the program, and the model follows the program
//! from there: when the region begins, memory is backed, tables are built, and TLBs and caches hold what the program
//! used last. Only the counts start at 0.

use super::Model;
use crate::Sample;
use crate::timeline::Timeline;

impl Model {
    /// Instructions before the region, once it has begun.
    pub fn before_region(&self) -> Option<u64> {
        self.before_region
    }

    /// The region begins: what was counted so far is forgotten.
    pub(super) fn begin_region(&mut self) {
        // A gap before the region made the stream a sampled one.
        self.sampled = None;
        self.before_region = Some(self.common.instructions);
        self.common = Sample::default();
        let configs = self.options.configs.len();
        for regime in &mut self.regimes {
            regime.reset_counts();
            regime.begin_interval();
        }
        self.timeline = Timeline::new(self.timeline.interval(), configs);
        if let Some(caches) = &mut self.observers.caches {
            caches.reset_counts();
        }
        if let Some(places) = &mut self.observers.places {
            places.reset_counts(configs);
        }
        if let Some(charges) = &mut self.charges {
            charges.restart();
        }
        self.switched.iter_mut().for_each(|s| s.restart());
    }
}
