// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest's modes cost by the model: steps times the costs of a step, and switches.

use std::collections::BTreeMap;

use anyhow::{Context, Result};
use bifold_mmu::Mode;

use super::Span;
use crate::modelled::{ModelledPmu, PerStep};

/// Costs of a guest's reported steps, in cycles beyond the ideal run's.
#[derive(Debug, Clone, Default)]
pub struct Cost {
    /// In the modes in which the guest was, with switches.
    pub extra: f64,
    /// Cycles of switches alone, in `extra` too.
    pub switching: f64,
    /// Of the same steps in one mode, by [`Mode`].
    pub alone: [f64; 2],
    /// All cycles of the same steps in the better mode.
    pub cycles: f64,
    /// Switches.
    pub switches: u64,
    /// Steps by phase.
    pub steps: BTreeMap<String, u64>,
    /// By phase, the share of steps that were done in the mode that is better for the phase.
    pub followed: BTreeMap<String, f64>,
}

fn cycles(step: &PerStep) -> f64 {
    step.guest_cycles + step.host_cycles
}

impl Cost {
    /// The cost of a guest's life. Steps of a span in which the guest was switched cost as in the costlier
    /// mode.
    pub(super) fn of(spans: &[Span], pmu: &ModelledPmu) -> Result<Cost> {
        let mut cost = Cost::default();
        let mut good: BTreeMap<String, u64> = BTreeMap::new();
        let mut all = [0.0; 2];
        for span in spans {
            for (name, n) in &span.steps {
                let phase = pmu.phases.get(name).with_context(|| format!("phase {name} was not modelled"))?;
                let each = Mode::BOTH.map(|mode| phase.of(mode).extra_cycles);
                let steps = *n as f64;
                for mode in Mode::BOTH {
                    cost.alone[mode as usize] += steps * phase.of(mode).extra_cycles;
                    all[mode as usize] += steps * cycles(phase.of(mode));
                }
                cost.extra +=
                    steps * span.mode.map_or(each[0].max(each[1]), |mode| phase.of(mode).extra_cycles);
                *cost.steps.entry(name.clone()).or_default() += n;
                let is_good = |mode: Mode| phase.of(mode).extra_cycles <= phase.of(mode.other()).extra_cycles;
                *good.entry(name.clone()).or_default() += if span.mode.is_some_and(is_good) { *n } else { 0 };
            }
        }
        cost.add_switches(spans, pmu);
        cost.cycles = all[0].min(all[1]);
        cost.followed =
            good.into_iter().map(|(name, n)| (name.clone(), share(n, cost.steps[&name]))).collect();
        Ok(cost)
    }

    /// A switch costs what the model says for the phase in which it came; the costliest phase's if the guest
    /// did not report.
    fn add_switches(&mut self, spans: &[Span], pmu: &ModelledPmu) {
        for (at, span) in spans.iter().enumerate().filter(|(_, s)| s.switches > 0) {
            let to = spans[at..].iter().find_map(|s| s.mode);
            let of_phase = |name: &String| pmu.phases.get(name).zip(to).map(|(p, to)| p.of(to).switch_cycles);
            let phases = span.steps.iter().filter(|(_, n)| **n > 0).map(|(name, _)| name);
            let dearest = phases
                .filter_map(of_phase)
                .fold(None, |most: Option<f64>, c| Some(most.map_or(c, |m| m.max(c))));
            let any = || pmu.phases.keys().filter_map(of_phase).fold(0.0, f64::max);
            self.switching += span.switches as f64 * dearest.unwrap_or_else(any);
            self.switches += span.switches;
        }
        self.extra += self.switching;
    }

    /// How much more the guest cost than its better mode alone would have, in percent of all cycles in that
    /// mode.
    pub fn above_better_percent(&self) -> f64 {
        let better = self.alone[0].min(self.alone[1]);
        if self.cycles > 0.0 { 100.0 * (self.extra - better) / self.cycles } else { 0.0 }
    }
}

fn share(part: u64, all: u64) -> f64 {
    if all == 0 { 1.0 } else { part as f64 / all as f64 }
}
