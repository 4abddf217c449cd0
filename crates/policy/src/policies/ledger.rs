// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ledger and the mixture, which our own policies share. The ledger has the modes' costs of an interval;
//! the mixture tells which part of an interval belongs to a new phase.
//!
//! Another mode's cost is estimated, and the error depends on the program. Every switch measures that error
//! twice: the mode entered shows what it really costs, and the cost of the mode left was counted before.
//! Both comparisons hold only while the guest does the same work, which its page faults and TLB misses show.

use super::num;
use crate::{Counters, Log, Mode, Other, PerMode, View};

/// The modes' costs of the intervals seen.
#[derive(Debug, Clone)]
pub(super) struct Ledger {
    /// Weight of the error that a switch shows, 0 to 1.
    learn: f64,
    /// Logarithm of the largest correction.
    most: f64,
    /// Logarithm of the correction of each mode's estimated cost.
    correction: PerMode<f64>,
    /// Expected cost of the switch before this interval.
    paying: f64,
    left: Option<Left>,
}

/// The last interval in the mode that was left.
#[derive(Debug, Clone, Copy)]
struct Left {
    from: Mode,
    to: Mode,
    rates: Rates,
    /// Cycles per instruction: the interval's cost, and the estimate for the mode that was entered.
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
        Ledger { learn, most: most_correction.ln(), correction: PerMode::default(), paying: 0.0, left: None }
    }

    /// The modes' costs for the work of this interval, in cycles, without the expected cost of the last
    /// switch. Modes whose costs are unknown have none.
    pub fn costs(&mut self, view: &View, log: &mut Log) -> PerMode<f64> {
        let own = (view.extra_cycles() - std::mem::take(&mut self.paying)).max(0.0);
        self.learn(view, own, log);
        let corrected = known(view).map(|o| (o.mode, o.extra_cycles * self.correction_of(o.mode).exp()));
        [(view.mode, own)].into_iter().chain(corrected).collect()
    }

    fn correction_of(&self, mode: Mode) -> f64 {
        self.correction.get(mode).copied().unwrap_or(0.0)
    }

    /// The VM leaves its mode for another after this interval.
    pub fn leave(&mut self, view: &View, to: Mode, costs: &PerMode<f64>) {
        let n = view.sample.instructions as f64;
        let Some(other) = known(view).find(|o| o.mode == to) else { return };
        self.paying = other.there_cycles;
        self.left = (n > 0.0).then(|| Left {
            from: view.mode,
            to,
            rates: Rates::of(view),
            seen: costs[view.mode] / n,
            estimated: other.extra_cycles / n,
        });
    }

    fn learn(&mut self, view: &View, own: f64, log: &mut Log) {
        let n = view.sample.instructions as f64;
        let Some(left) = self.left.take_if(|_| n > 0.0) else { return };
        if !left.rates.alike(Rates::of(view)) {
            return;
        }
        let here = view.mode;
        let there = if here == left.from { left.to } else { left.from };
        let Some(estimate) = known(view).find(|o| o.mode == there) else { return };
        for (mode, from, seen, estimated) in
            [(here, there, own / n, left.estimated), (there, here, left.seen, estimate.extra_cycles / n)]
        {
            if !(seen > 0.0 && estimated > 0.0) {
                continue;
            }
            let off = (seen / estimated).ln();
            let c = self.correction.or_insert(mode, 0.0);
            *c = (*c + self.learn * (off - *c)).clamp(-self.most, self.most);
            let factor = c.exp();
            log.say(|| {
                format!(
                    "{} costs {} times what is estimated from {}: estimates of it are taken times {}.",
                    mode.name(),
                    num(off.exp()),
                    from.name(),
                    num(factor)
                )
            });
        }
    }
}

/// Splits an interval in which the phase changes into the old phase and the new.
#[derive(Debug, Clone, Default)]
pub(super) struct Mixture {
    before: Option<(Mode, Rates, PerMode<f64>)>,
}

impl Mixture {
    /// The differences of the VM's mode's cost from the other modes' costs to expect next, in cycles.
    ///
    /// If page faults or TLB misses fell by a share f since the interval before, f of this interval is a new
    /// phase, and the new phase has the difference that the old phase does not explain: (d - (1 - f)
    /// d_before) / f. If all rates fell alike, nothing is left to explain. `weight`, 0 to 1, is the weight of
    /// this correction.
    pub fn expected(&mut self, view: &View, costs: &PerMode<f64>, weight: f64) -> PerMode<f64> {
        /// Smaller falls are no change of phase.
        const LEAST: f64 = 0.1;
        let others = costs.iter().filter(|(mode, _)| *mode != view.mode);
        let mut differences: PerMode<f64> =
            others.map(|(mode, cost)| (mode, costs[view.mode] - cost)).collect();
        let n = view.sample.instructions as f64;
        if n == 0.0 {
            return differences;
        }
        let now = Rates::of(view);
        let per_instruction = differences.map(|_, d| d / n);
        let Some((mode, before, old)) = self.before.replace((view.mode, now, per_instruction)) else {
            return differences;
        };
        if mode != view.mode {
            return differences; // misses of different modes do not compare
        }
        let fell = |before: f64, now: f64| if before > 0.0 { 1.0 - now / before } else { 0.0 };
        let f = fell(before.faults, now.faults).max(fell(before.misses, now.misses));
        if f < LEAST {
            return differences;
        }
        for (mode, difference) in differences.iter_mut() {
            if let Some(d) = old.get(mode) {
                let new = (*difference - (1.0 - f) * d * n) / f;
                *difference += weight * (new - *difference);
            }
        }
        differences
    }
}

/// The other modes' costs, where all are finite.
pub(super) fn known<'a>(view: &View<'a>) -> impl Iterator<Item = &'a Other> {
    view.others.iter().filter(|o| o.is_finite())
}

/// Whether a policy that goes by the modes' costs has to stay, because it has nothing to compare.
pub(super) fn stays(view: &View, log: &mut Log) -> bool {
    let mode = view.mode.name();
    if known(view).next().is_none() {
        log.say(|| format!("Stay in {mode}: the cost of every other mode is unknown."));
    } else if view.sample.instructions == 0 {
        log.say(|| format!("Stay in {mode}: the guest was idle."));
    } else {
        return false;
    }
    true
}
