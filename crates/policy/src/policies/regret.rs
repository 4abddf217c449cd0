// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Regret: our own policy. It leaves a mode when staying has cost, by the estimate, more than a share of the
//! price of a switch to the other mode and back.
//!
//! The idea is the ski-rental problem: a switch that is too early costs as much as one that is too late, so
//! the price itself is the threshold. Regret differs from a work function in three ways. The other mode's
//! cost is an estimate whose error depends on the program, so every switch is a measurement that corrects the
//! estimate for this VM. Old regret fades, because a past phase says nothing of the next. A difference
//! smaller than the estimate's error counts as 0.
//!
//! Published relatives: Bae's and RPMS's thresholds, which move after a switch. In regret, all metrics are
//! turned into cycles first, and no metric has a threshold of its own.

use super::ledger::{Ledger, Mixture, known};
use super::{num, within};
use crate::{Counters, Log, Mode, Parameters, Policy, View};
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
    fn check(&self) -> Result<(), String> {
        within("share", self.share, 0.0, 100.0)?;
        within("keep", self.keep, 0.0, 1.0)?;
        within("margin_percent", self.margin_percent, 0.0, 100.0)?;
        within("unmix", self.unmix, 0.0, 1.0)?;
        within("learn", self.learn, 0.0, 1.0)?;
        within("most_correction", self.most_correction, 1.0, 1000.0)
    }

    fn interval_s(&self) -> f64 {
        self.interval_s
    }

    fn needs_other(&self) -> bool {
        true
    }

    fn needs(&self) -> Counters {
        Ledger::NEEDS
    }

    fn policy(&self, _start: Mode) -> Box<dyn Policy> {
        Box::new(State {
            p: *self,
            regret: 0.0,
            ledger: Ledger::new(self.learn, self.most_correction),
            mixture: Mixture::default(),
        })
    }
}

#[derive(Debug)]
struct State {
    p: Regret,
    /// Cycles that the current mode has cost above the other mode's estimate.
    regret: f64,
    ledger: Ledger,
    mixture: Mixture,
}

impl Policy for State {
    fn decide(&mut self, view: &View, log: &mut Log) -> Mode {
        let (mode, there) = (view.mode, view.mode.other());
        let Some(other) = known(view) else {
            log.say(|| format!("Stay in {}: the cost of {} is unknown.", mode.name(), there.name()));
            return mode;
        };
        if view.sample.instructions == 0 {
            log.say(|| format!("Stay in {}: the guest was idle.", mode.name()));
            return mode;
        }
        let costs = self.ledger.costs(view, &other, log);
        let (own, theirs) = (costs[mode as usize], costs[there as usize]);
        let difference = self.mixture.expected(view, own - theirs, self.p.unmix);
        let margin = self.p.margin_percent / 100.0 * view.cycles;
        let counted = if difference.abs() < margin { 0.0 } else { difference };
        let price = self.p.share * (other.there_cycles + other.back_cycles);
        let regret = (self.p.keep * self.regret + counted).max(0.0);
        let leave = counted > 0.0 && regret > price;
        log.say(|| {
            let (here, there) = (mode.name(), there.name());
            let verdict = if leave {
                format!(
                    "Switch to {there}: {} cycles less regret would have kept {here}",
                    num(regret - price)
                )
            } else {
                format!(
                    "Stay in {here}: {} cycles more regret would switch it",
                    num((price - regret).max(0.0))
                )
            };
            format!(
                "Walks and exits took {} cycles in {here}, an estimated {} in {there}; the difference \
                 counts {}. Regret of staying goes from {} to {} cycles; the price is {} cycles. {verdict}.",
                num(own),
                num(theirs),
                num(counted),
                num(self.regret),
                num(regret),
                num(price)
            )
        });
        if !leave {
            self.regret = if regret.is_finite() { regret } else { 0.0 };
            return mode;
        }
        self.regret = 0.0;
        self.ledger.leave(view, &other, costs);
        there
    }
}
