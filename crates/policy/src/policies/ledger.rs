// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger and the mixture, which our own policies share. The ledger has both modes' costs of an interval;
//! the mixture tells which part of an interval belongs to a new phase.
//!
//! The other mode's cost is estimated, and the error depends on the program. Every switch measures that error
//! twice: the mode entered shows what it really costs, and the cost of the mode left was counted before.
//! Both comparisons hold only while the guest does the same work, which its page faults and TLB misses show.

use super::num;
use crate::{Counters, Log, Mode, Other, View};

/// Both modes' costs of the intervals seen, indexed by [`Mode`].
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    /// Weight of the error that a switch shows, 0 to 1.
    learn: f64,
    /// Logarithm of the largest correction.
    most: f64,
    /// Logarithm of the correction of each mode's estimated cost.
    correction: [f64; 2],
    /// Expected cost of the switch before this interval.
    paying: f64,
    left: Option<Left>,
}

/// The last interval in the mode that was left.
#[derive(Debug, Clone, Copy)]
struct Left {
    rates: Rates,
    /// Cycles per instruction: the interval's cost, and the estimate for the other mode.
    seen: f64,
    estimated: f64,
}

/// The guest's own rates per 1000 instructions, which tell phases apart in either mode.
#[derive(Debug, Clone, Copy)]
struct Rates {
    faults: f64,
    misses: f64,
}

impl Rates {
    fn of(view: &View) -> Rates {
        Rates { faults: view.page_faults_per_1000(), misses: view.tlb_misses_per_1000() }
    }

    /// TLB misses of the same work differ between the modes, because their flushes differ. Page faults hardly
    /// differ.
    fn alike(self, other: Rates) -> bool {
        const NOTHING: f64 = 0.01;
        let within = |a: f64, b: f64, factor: f64| ((a + NOTHING) / (b + NOTHING)).ln().abs() < factor.ln();
        within(self.faults, other.faults, 1.35) && within(self.misses, other.misses, 4.0)
    }
}

impl Ledger {
    /// The counters that a ledger and a mixture read: cycles, and the rates that tell phases apart.
    pub const NEEDS: Counters = Counters::INSTRUCTIONS
        .and(Counters::WALK_CYCLES)
        .and(Counters::VMM_CYCLES)
        .and(Counters::TLB_MISSES)
        .and(Counters::PAGE_FAULTS);

    pub fn new(learn: f64, most_correction: f64) -> Ledger {
        Ledger { learn, most: most_correction.ln(), correction: [0.0; 2], paying: 0.0, left: None }
    }

    /// Both modes' costs for the work of this interval, in cycles, without the expected cost of the last
    /// switch.
    pub fn costs(&mut self, view: &View, other: &Other, log: &mut Log) -> [f64; 2] {
        let own = (view.extra_cycles() - std::mem::take(&mut self.paying)).max(0.0);
        self.learn(view, own, other.extra_cycles, log);
        let theirs = other.extra_cycles * self.correction[view.mode.other() as usize].exp();
        let mut costs = [own; 2];
        costs[view.mode.other() as usize] = theirs;
        costs
    }

    /// The VM leaves its mode after this interval.
    pub fn leave(&mut self, view: &View, other: &Other, costs: [f64; 2]) {
        let n = view.sample.instructions as f64;
        self.paying = other.there_cycles;
        let seen = costs[view.mode as usize] / n;
        self.left =
            (n > 0.0).then(|| Left { rates: Rates::of(view), seen, estimated: other.extra_cycles / n });
    }

    fn learn(&mut self, view: &View, own: f64, estimate: f64, log: &mut Log) {
        let n = view.sample.instructions as f64;
        let Some(left) = self.left.take_if(|_| n > 0.0) else { return };
        if !left.rates.alike(Rates::of(view)) {
            return;
        }
        let here = view.mode;
        for (mode, seen, estimated) in
            [(here, own / n, left.estimated), (here.other(), left.seen, estimate / n)]
        {
            if !(seen > 0.0 && estimated > 0.0) {
                continue;
            }
            let off = (seen / estimated).ln();
            let c = &mut self.correction[mode as usize];
            *c = (*c + self.learn * (off - *c)).clamp(-self.most, self.most);
            let factor = c.exp();
            log.say(|| {
                format!(
                    "{} costs {} times what is estimated from {}: estimates of it are taken times {}.",
                    mode.name(),
                    num(off.exp()),
                    mode.other().name(),
                    num(factor)
                )
            });
        }
    }
}

/// Splits an interval in which the phase changes into the old phase and the new.
#[derive(Debug, Clone, Default)]
pub(super) struct Mixture {
    before: Option<(Mode, Rates, f64)>,
}

impl Mixture {
    /// The difference between the modes' costs to expect next, in cycles.
    ///
    /// If page faults or TLB misses fell by a share f since the interval before, f of this interval is a new
    /// phase, and the new phase has the difference that the old phase does not explain: (d - (1 - f)
    /// d_before) / f. If all rates fell alike, nothing is left to explain. `weight`, 0 to 1, is the weight of
    /// this correction.
    pub fn expected(&mut self, view: &View, difference: f64, weight: f64) -> f64 {
        /// Smaller falls are no change of phase.
        const LEAST: f64 = 0.1;
        let n = view.sample.instructions as f64;
        if n == 0.0 {
            return difference;
        }
        let now = Rates::of(view);
        let Some((mode, before, d)) = self.before.replace((view.mode, now, difference / n)) else {
            return difference;
        };
        if mode != view.mode {
            return difference; // misses of different modes do not compare
        }
        let fell = |before: f64, now: f64| if before > 0.0 { 1.0 - now / before } else { 0.0 };
        let f = fell(before.faults, now.faults).max(fell(before.misses, now.misses));
        if f < LEAST {
            return difference;
        }
        let new = (difference - (1.0 - f) * d * n) / f;
        difference + weight * (new - difference)
    }
}

/// The other mode's costs, if all are finite.
pub(super) fn known(view: &View) -> Option<Other> {
    view.other.filter(|o| (o.extra_cycles + o.there_cycles + o.back_cycles).is_finite())
}
