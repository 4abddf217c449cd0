// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Experts: our own policy. Many simple rules are simulated side by side, and the VM follows the rule that
//! would have cost least lately.
//!
//! No single rule suits all programs. Where phases are long, the last interval predicts the next best. Where
//! phases alternate faster than decisions come, an average does, or the interval one period ago. Where the
//! modes cost the same, staying is best. The modes' costs are known or estimated in every interval, so each
//! rule's cost, with its switches, can be computed without trying the rule. This is prediction with expert
//! advice (Littlestone and Warmuth's weighted majority, Blum and Burch for task systems with switch costs),
//! by following the leader over a fading past.
//!
//! The rules: stay in shadow; stay in nested; stay in another mode whose cost is known; expect the last
//! interval's differences between the modes again; expect the differences of its new phase alone; expect an
//! average over 2, 5 or 20 intervals; expect the differences of the interval p before the next, for every p
//! up to `longest_period`.
//!
//! The rules' costs and differences are remembered in cycles rather than per instruction: an interval with
//! twice the work counts twice, and an idle interval counts nothing. After a vCPU is added, the past counts
//! less than the present until it has faded. Decisions may then differ from those of a VM that always had
//! this vCPU.

use super::ledger::{Ledger, Mixture, stays};
use super::{num, within};
use crate::{Counters, Log, Mode, ParameterError, Parameters, PerMode, Policy, View};
use serde::{Deserialize, Serialize};

/// Parameters.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Experts {
    /// Seconds between two decisions.
    pub interval_s: f64,
    /// Intervals after which a past cost counts for 1/e.
    pub memory: f64,
    /// By how much another rule must be cheaper before the policy follows it, in percent of an interval's
    /// cycles.
    pub lead_percent: f64,
    /// Longest period of the rules that expect repetition, in intervals; 1 for no such rule.
    pub longest_period: usize,
    /// Share of the price of a switch there and back that an expected difference must reach before a rule
    /// switches.
    pub share: f64,
    /// A difference below this share of the interval's cycles counts as 0, in percent.
    pub margin_percent: f64,
    /// Weight of the error that a switch shows in the correction of estimates, 0 to 1.
    pub learn: f64,
    /// Largest factor by which an estimate is corrected.
    pub most_correction: f64,
}

impl Parameters for Experts {
    fn check(&self) -> Result<(), ParameterError> {
        within("memory", self.memory, 1.0, 1e6)?;
        within("lead_percent", self.lead_percent, 0.0, 1000.0)?;
        within("longest_period", self.longest_period as f64, 1.0, 1000.0)?;
        within("share", self.share, 0.0, 100.0)?;
        within("margin_percent", self.margin_percent, 0.0, 100.0)?;
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
        let mut rules = vec![Rule::Stay(Mode::Shadow), Rule::Stay(Mode::Nested), Rule::Last, Rule::NewPhase];
        rules.extend(AVERAGES.map(|over| Rule::Average { over, mean: PerMode::default() }));
        rules.extend((2..=self.longest_period).map(Rule::Period));
        let experts = rules.into_iter().map(|rule| Expert { rule, mode: start, cost: 0.0 });
        Box::new(State {
            p: *self,
            fade: (-1.0 / self.memory).exp(),
            experts: experts.collect(),
            leader: NEW_PHASE,
            mode: start,
            past: Vec::new(),
            ledger: Ledger::new(self.learn, self.most_correction),
            mixture: Mixture::default(),
        })
    }
}

/// Numbers of intervals that the average rules take.
const AVERAGES: [f64; 3] = [2.0, 5.0, 20.0];
/// The rule that the policy follows first.
const NEW_PHASE: usize = 3;

#[derive(Debug, Clone)]
enum Rule {
    Stay(Mode),
    Last,
    NewPhase,
    /// The mean of each mode's cost, less that of the VM's mode.
    Average {
        over: f64,
        mean: PerMode<f64>,
    },
    Period(usize),
}

#[derive(Debug, Clone)]
struct Expert {
    rule: Rule,
    /// The mode that a VM under this rule would be in.
    mode: Mode,
    /// Cycles that the rule would have cost above the cheapest mode of each interval. Older intervals count
    /// less.
    cost: f64,
}

#[derive(Debug)]
struct State {
    p: Experts,
    fade: f64,
    experts: Vec<Expert>,
    leader: usize,
    /// The mode at the last decision.
    mode: Mode,
    /// The modes' costs of the last `longest_period` intervals.
    past: Vec<PerMode<f64>>,
    ledger: Ledger,
    mixture: Mixture,
}

impl Rule {
    fn name(&self) -> String {
        match self {
            Rule::Stay(mode) => format!("stay in {}", mode.name()),
            Rule::Last => "the last interval again".into(),
            Rule::NewPhase => "the last interval's new phase".into(),
            Rule::Average { over, .. } => format!("the average of {over} intervals"),
            Rule::Period(p) => format!("the interval {p} before"),
        }
    }
}

/// The modes' costs less that of the VM's mode.
fn relative(costs: &PerMode<f64>, to: Mode) -> Option<PerMode<f64>> {
    let own = *costs.get(to)?;
    Some(costs.map(|_, cost| cost - own))
}

impl Rule {
    /// Takes an interval's costs, less that of the VM's mode. `before` is the VM's mode at the last decision.
    fn learn(&mut self, now: &PerMode<f64>, mode: Mode, before: Mode) {
        let Rule::Average { over, mean } = self else { return };
        if mode != before {
            *mean = relative(mean, mode).unwrap_or_default();
        }
        for (other, now) in now.iter() {
            let mean = mean.or_insert(other, 0.0);
            *mean += (now - *mean) / *over;
        }
    }
}

impl State {
    /// Charges every rule for the interval, and moves each for the next.
    fn reckon(&mut self, view: &View, costs: &PerMode<f64>) {
        let mode = view.mode;
        let mut new_phase = self.mixture.expected(view, costs, 0.5).map(|_, difference| -difference);
        new_phase.insert(mode, 0.0);
        let last = costs.map(|_, cost| cost - costs[mode]);
        let cheapest = costs.values().copied().fold(f64::INFINITY, f64::min);
        let margin = self.p.margin_percent / 100.0 * view.cycles;
        for mode in costs.modes() {
            // A rule for a mode that was not known before starts level with the leader.
            if !self.experts.iter().any(|e| matches!(e.rule, Rule::Stay(m) if m == mode)) {
                let cost = self.experts[self.leader].cost;
                self.experts.push(Expert { rule: Rule::Stay(mode), mode: view.mode, cost });
            }
        }
        self.past.push(costs.clone());
        if self.past.len() > self.p.longest_period {
            self.past.remove(0);
        }
        let n = self.past.len();
        for e in &mut self.experts {
            e.rule.learn(&last, mode, self.mode);
            // A rule cannot be charged for a mode whose cost is unknown.
            if costs.get(e.mode).is_none() {
                e.mode = mode;
            }
            e.cost = self.fade * e.cost + costs[e.mode] - cheapest;
            let past;
            // The costs that the rule expects, and over how many intervals.
            let (expected, over) = match &e.rule {
                Rule::Stay(_) | Rule::Last => (&last, 1.0),
                Rule::NewPhase => (&new_phase, 1.0),
                Rule::Average { over, mean } => (mean, *over),
                // The next interval is n; the one p before it is n - p.
                Rule::Period(p) => {
                    past = n.checked_sub(*p).and_then(|i| relative(&self.past[i], mode));
                    (past.as_ref().unwrap_or(&last), 1.0)
                }
            };
            let gain = |to: Mode| match e.rule {
                Rule::Stay(mode) if mode == to => f64::INFINITY,
                Rule::Stay(_) => f64::NEG_INFINITY,
                _ => match (expected.get(e.mode), expected.get(to)) {
                    (Some(here), Some(there)) => here - there,
                    _ => f64::NEG_INFINITY,
                },
            };
            let worth = |to: &Mode| {
                let ways = (view.switch_cycles(e.mode, *to), view.switch_cycles(*to, e.mode));
                let (Some(there), Some(back)) = ways else { return false };
                gain(*to) > margin && gain(*to) * over > self.p.share * (there + back)
            };
            let others = costs.modes().filter(|to| *to != e.mode);
            if let Some(to) = others.filter(worth).max_by(|a, b| gain(*a).total_cmp(&gain(*b))) {
                e.cost += view.switch_cycles(e.mode, to).unwrap_or(0.0);
                e.mode = to;
            }
        }
        self.mode = mode;
        let least = |a: &usize, b: &usize| self.experts[*a].cost.total_cmp(&self.experts[*b].cost);
        let best = (0..self.experts.len()).min_by(least).unwrap_or(NEW_PHASE);
        let lead = self.p.lead_percent / 100.0 * view.cycles;
        if self.experts[best].cost + lead < self.experts[self.leader].cost {
            self.leader = best;
        }
    }
}

impl Policy for State {
    fn decide(&mut self, view: &View, log: &mut Log) -> Mode {
        let mode = view.mode;
        if stays(view, log) {
            return mode;
        }
        let costs = self.ledger.costs(view, log);
        let before = self.leader;
        self.reckon(view, &costs);
        let leader = &self.experts[self.leader];
        let next = leader.mode;
        log.say(|| {
            let changed = if before == self.leader { "" } else { ", from now on" };
            let against = self.experts.iter().filter(|e| e.mode != next);
            let rival = against.min_by(|a, b| a.cost.total_cmp(&b.cost));
            let rival = rival.map_or_else(
                || "No rule would do otherwise".to_string(),
                |r| {
                    format!(
                        "`{}` says otherwise and would be followed if it had cost {} cycles less",
                        r.rule.name(),
                        num((r.cost - leader.cost).max(0.0))
                    )
                },
            );
            let others = costs.iter().filter(|(other, _)| *other != mode);
            let others: Vec<_> =
                others.map(|(other, cost)| format!("{} in {}", num(*cost), other.name())).collect();
            format!(
                "Walks and exits took {} cycles in {}, an estimated {}. The rule followed{changed} is `{}`, \
                 which lately cost {} cycles above the cheaper mode of each interval. It says {}. {rival}.",
                num(costs[mode]),
                mode.name(),
                others.join(" and "),
                leader.rule.name(),
                num(leader.cost),
                next.name(),
            )
        });
        if next != mode {
            self.ledger.leave(view, next, &costs);
        }
        next
    }
}
