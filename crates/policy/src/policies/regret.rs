// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regret: our own policy. It leaves a mode when staying has cost, by the estimate, more than a share of the
//! price of a switch to another mode and back.
//!
//! The idea is the ski-rental problem: a switch that is too early costs as much as one that is too late, so
//! the price itself is the threshold. Regret differs from a work function in three ways. Another mode's
//! cost is an estimate whose error depends on the program, so every switch is a measurement that corrects the
//! estimate for this VM. Old regret fades, because a past phase says nothing of the next. A difference
//! smaller than the estimate's error counts as 0.
//!
//! Published relatives: Bae's and RPMS's thresholds, which move after a switch. In regret, all metrics are
//! turned into cycles first, and no metric has a threshold of its own.

use super::ledger::{Ledger, Mixture, known, stays};
use super::{num, within};
use crate::{Counters, Log, Mode, ParameterError, Parameters, PerMode, Policy, View};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Regret {
    /// Seconds between two decisions.
    pub interval_s: f64,
    /// Share of the price of a switch there and back that regret must reach.
    pub share: f64,
    /// Share of old regret that is left after an interval, 0 to 1.
    pub keep: f64,
    /// A difference below this share of the interval's cycles counts as 0, in percent.
    pub margin_percent: f64,
    /// Weight, 0 to 1, of the new phase's difference in an interval in which a phase ends (page faults or TLB
    /// misses fall).
    pub unmix: f64,
    /// Weight of the error that a switch shows in the correction of estimates, 0 to 1.
    pub learn: f64,
    /// Largest factor by which an estimate is corrected.
    pub most_correction: f64,
}

impl Parameters for Regret {
    fn check(&self) -> Result<(), ParameterError> {
        within("share", self.share, 0.0, 100.0)?;
        within("keep", self.keep, 0.0, 1.0)?;
        within("margin_percent", self.margin_percent, 0.0, 100.0)?;
        within("unmix", self.unmix, 0.0, 1.0)?;
        within("learn", self.learn, 0.0, 1.0)?;
        within("most_correction", self.most_correction, 1.0, 1000.0)
    }

    fn needs_other(&self) -> bool {
        true
    }

    fn needs(&self) -> Counters {
        Ledger::NEEDS
    }

    fn policy(&self, start: Mode) -> Box<dyn Policy> {
        Box::new(State {
            p: *self,
            mode: start,
            regret: PerMode::default(),
            ledger: Ledger::new(self.learn, self.most_correction),
            mixture: Mixture::default(),
        })
    }
}

#[derive(Debug)]
struct State {
    p: Regret,
    /// The mode at the last decision.
    mode: Mode,
    /// Cycles that this mode has cost above each other mode's estimate.
    regret: PerMode<f64>,
    ledger: Ledger,
    mixture: Mixture,
}

/// What an interval says of another mode, in cycles.
#[derive(Debug, Clone, Copy)]
struct Alternative {
    to: Mode,
    /// The difference of the interval that counts.
    counted: f64,
    /// Regret before and after the interval.
    regret: [f64; 2],
    price: f64,
}

impl Alternative {
    fn leaves(&self) -> bool {
        self.counted > 0.0 && self.regret[1] > self.price
    }

    /// By how much regret is above the price.
    fn above(&self) -> f64 {
        self.regret[1] - self.price
    }
}

impl Policy for State {
    fn decide(&mut self, view: &View, log: &mut Log) -> Mode {
        let mode = view.mode;
        if stays(view, log) {
            return mode;
        }
        // The VM was switched in another way: regret between the two modes stays, that of other modes goes.
        if mode != self.mode {
            let regret = self.regret.remove(mode);
            self.regret = regret.map(|regret| (self.mode, regret)).into_iter().collect();
            self.mode = mode;
        }
        let costs = self.ledger.costs(view, log);
        let expected = self.mixture.expected(view, &costs, self.p.unmix);
        let margin = self.p.margin_percent / 100.0 * view.cycles;
        let cases = known(view).map(|o| {
            let difference = expected[o.mode];
            let counted = if difference.abs() < margin { 0.0 } else { difference };
            let before = self.regret.get(o.mode).copied().unwrap_or(0.0);
            let price = self.p.share * (o.there_cycles + o.back_cycles);
            let regret = [before, (self.p.keep * before + counted).max(0.0)];
            Alternative { to: o.mode, counted, regret, price }
        });
        let cases: Vec<Alternative> = cases.collect();
        let first = |a: &&Alternative, b: &&Alternative| {
            a.leaves().cmp(&b.leaves()).then(a.above().total_cmp(&b.above()))
        };
        let Some(best) = cases.iter().max_by(first) else { return mode };
        let leave = best.leaves();
        log.say(|| {
            let (here, there) = (mode.name(), best.to.name());
            let verdict = if leave {
                format!("Switch to {there}: {} cycles less regret would have kept {here}", num(best.above()))
            } else {
                format!(
                    "Stay in {here}: {} cycles more regret would switch it",
                    num((-best.above()).max(0.0))
                )
            };
            format!(
                "Walks and exits took {} cycles in {here}, an estimated {} in {there}; the difference \
                 counts {}. Regret of staying goes from {} to {} cycles; the price is {} cycles. {verdict}.",
                num(costs[mode]),
                num(costs[best.to]),
                num(best.counted),
                num(best.regret[0]),
                num(best.regret[1]),
                num(best.price)
            )
        });
        if leave {
            self.regret.clear();
            self.ledger.leave(view, best.to, &costs);
            return best.to;
        }
        for case in &cases {
            let regret = case.regret[1];
            self.regret.insert(case.to, if regret.is_finite() { regret } else { 0.0 });
        }
        mode
    }
}
