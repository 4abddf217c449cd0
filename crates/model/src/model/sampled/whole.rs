// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The estimate of a whole run from its windows.

use super::{Counted, Sampled};
use crate::estimate::Mean;
use crate::outcome::{Estimate, Sampling};
use crate::{Outcome, Profile, Sample};

/// A sampled run at its end.
pub(in crate::model) struct EndSampled {
    pub(super) sampled: Box<Sampled>,
    pub(super) end: Vec<Counted>,
    pub(super) profile: Profile,
}

impl EndSampled {
    /// Replaces each configuration's totals by estimates of the whole run.
    pub(in crate::model) fn estimate(self, outcome: &mut Outcome) {
        let s = &self.sampled;
        let [between, warm_up, measured, head] = s.instructions;
        for (i, config) in outcome.configs.iter_mut().enumerate() {
            let instructions = self.end[i].all.instructions;
            // Counts of windows stand for the whole run but the head.
            let factor = if measured == 0 { 0.0 } else { (instructions - head) as f64 / s.weighted as f64 };
            let (total, exact) = whole(&self.end[i], &s.head[i], &s.measured[i], factor, &self.profile);
            let mean = Mean::per_instruction(&s.windows[i]);
            config.total = total;
            config.intervals = vec![total];
            let mut refs = s.head[i].refs;
            refs.add_scaled(&s.measured[i].refs, |n| scaled(n, factor));
            config.refs = refs.by_step();
            let half_width = if instructions == head { Some(0.0) } else { mean.half_width };
            config.estimate = Some(Estimate {
                exact_cycles: exact,
                half_width_cycles: half_width.map(|h| h * (instructions - head) as f64),
                per_instruction: mean,
            });
        }
        outcome.sampling = Some(Sampling {
            windows: s.windows.first().map_or(0, |w| w.len() as u64),
            measured_instructions: measured,
            head_instructions: head,
            warm_up_instructions: warm_up,
            other_instructions: between,
        });
    }
}

fn scaled(n: u64, factor: f64) -> u64 {
    (n as f64 * factor).round() as u64
}

/// The whole run's counts: what depends on every access from the head and windows, the rest as
/// counted; and the cycles in it that are no estimate.
pub(super) fn whole(
    end: &Counted,
    head: &Counted,
    measured: &Counted,
    factor: f64,
    profile: &Profile,
) -> (Sample, u64) {
    // Flushes, faults, and exits that user accesses do not bring of themselves.
    let mut exact = end.all.since(&end.user);
    exact.add(&head.user);
    let mut total = exact;
    total.add(&Sample::from_values(measured.user.values().map(|n| scaled(n, factor))));
    let (h, m) = (&head.all, &measured.all);
    let rate = |h: u64, m: u64| h + scaled(m, factor);
    total = Sample {
        accesses: rate(h.accesses, m.accesses),
        l1_misses: rate(h.l1_misses, m.l1_misses),
        tlb_misses_4k: rate(h.tlb_misses_4k, m.tlb_misses_4k),
        tlb_misses_2m: rate(h.tlb_misses_2m, m.tlb_misses_2m),
        tlb_misses_1g: rate(h.tlb_misses_1g, m.tlb_misses_1g),
        walks: rate(h.walks, m.walks),
        guest_refs: rate(h.guest_refs, m.guest_refs),
        host_refs: rate(h.host_refs, m.host_refs),
        walk_cycles: rate(h.walk_cycles, m.walk_cycles),
        walk_hidden_cycles: rate(h.walk_hidden_cycles, m.walk_hidden_cycles),
        l1d_cache_misses: rate(h.l1d_cache_misses, m.l1d_cache_misses),
        l2_cache_misses: rate(h.l2_cache_misses, m.l2_cache_misses),
        l3_cache_misses: rate(h.l3_cache_misses, m.l3_cache_misses),
        data_stall_cycles: rate(h.data_stall_cycles, m.data_stall_cycles),
        data_hidden_cycles: rate(h.data_hidden_cycles, m.data_hidden_cycles),
        ideal_stall_cycles: rate(h.ideal_stall_cycles, m.ideal_stall_cycles),
        ideal_hidden_cycles: rate(h.ideal_hidden_cycles, m.ideal_hidden_cycles),
        frames_stall_cycles: rate(h.frames_stall_cycles, m.frames_stall_cycles),
        frames_hidden_cycles: rate(h.frames_hidden_cycles, m.frames_hidden_cycles),
        cold_exits: 0,
        cold_cycles: 0,
        ..total
    };
    total.vmm_cycles = profile.exit.cycles(&total);
    total.first_touch_cycles = profile.exit.cycles(&total.first_touches());
    (total, profile.exit.cycles(&exact) + h.exposed_memory_cycles())
}
