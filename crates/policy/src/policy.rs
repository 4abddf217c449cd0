// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The interface of a policy: it sees an interval and names the mode of the next.

use crate::{Counters, Mode};
use bifold_model::Sample;

/// What a policy sees of the interval that just ended.
///
/// In an idle interval there may be no instructions or no cycles. Figures per instruction or per cycle are
/// 0 then. A policy must still name a mode and should stay in the current one.
///
/// Counts are sums over all vCPUs, and vCPUs come and go. A policy should remember rates or shares rather
/// than counts, unless twice the work should count twice.
#[derive(Debug, Clone, Copy)]
pub struct View<'a> {
    /// The mode in which the VM ran.
    pub mode: Mode,
    /// The interval's counts, with cold entries after a switch.
    pub sample: &'a Sample,
    /// All cycles of the interval: the guest's own work, walks, exits.
    pub cycles: f64,
    /// Share of the interval during which vCPUs ran, 0 to 1.
    pub load: f64,
    /// The costs of each other mode of which they are known; none unless the policy
    /// [needs](Parameters::needs_other) them.
    pub others: &'a [Other],
}

/// The costs of a mode that the VM is not in, known or estimated.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Other {
    /// The mode.
    pub mode: Mode,
    /// Cycles in walks and exits that this mode would have cost for the same work.
    pub extra_cycles: f64,
    /// Cycles of a switch there now, with the tables that it rebuilds.
    pub there_cycles: f64,
    /// Cycles of the switch back.
    pub back_cycles: f64,
}

impl Other {
    /// Whether all costs are finite.
    pub fn is_finite(&self) -> bool {
        (self.extra_cycles + self.there_cycles + self.back_cycles).is_finite()
    }
}

impl View<'_> {
    /// Cycles of a switch from one mode to another; none if the costs of one of them are unknown. A switch
    /// between two modes that the VM is not in counts as two, by way of the VM's mode.
    pub fn switch_cycles(&self, from: Mode, to: Mode) -> Option<f64> {
        let other = |mode| self.others.iter().find(|o| o.mode == mode);
        let back = if from == self.mode { 0.0 } else { other(from)?.back_cycles };
        let there = if to == self.mode { 0.0 } else { other(to)?.there_cycles };
        Some(back + there)
    }

    /// Cycles beyond the guest's own work in this mode.
    pub fn extra_cycles(&self) -> f64 {
        self.sample.extra_cycles() as f64
    }

    /// Page-walk cycles, in percent of all cycles; 0 for an interval without cycles.
    pub fn walk_percent(&self) -> f64 {
        percent(self.sample.walk_cycles as f64, self.cycles)
    }

    /// Cycles in exits and the hypervisor, in percent of all cycles; 0 for an interval without cycles.
    pub fn vmm_percent(&self) -> f64 {
        percent(self.sample.vmm_cycles as f64, self.cycles)
    }

    /// TLB misses (all levels, all page sizes) per 1000 instructions; 0 without instructions.
    pub fn tlb_misses_per_1000(&self) -> f64 {
        per_1000(self.sample.tlb_misses(), self.sample.instructions)
    }

    /// Guest page faults per 1000 instructions; 0 without instructions.
    pub fn page_faults_per_1000(&self) -> f64 {
        per_1000(self.sample.guest_page_faults, self.sample.instructions)
    }

    /// Exits for any reason per 1000 instructions; 0 without instructions.
    pub fn exits_per_1000(&self) -> f64 {
        per_1000(self.sample.all_exits(), self.sample.instructions)
    }

    /// Instructions per cycle; 0 for an interval without cycles.
    pub fn ipc(&self) -> f64 {
        if self.cycles > 0.0 { self.sample.instructions as f64 / self.cycles } else { 0.0 }
    }
}

fn percent(part: f64, whole: f64) -> f64 {
    if whole > 0.0 { 100.0 * part / whole } else { 0.0 }
}

fn per_1000(n: u64, instructions: u64) -> f64 {
    if instructions == 0 { 0.0 } else { 1000.0 * n as f64 / instructions as f64 }
}

/// The log in which a policy explains its decisions. A log that is off formats nothing, because a sweep makes
/// hundreds of millions of decisions.
#[derive(Debug, Default)]
pub struct Log {
    on: bool,
    text: String,
}

impl Log {
    /// A log that keeps nothing.
    pub fn off() -> Log {
        Log::default()
    }

    /// A log that keeps the sentences.
    pub fn on() -> Log {
        Log { on: true, text: String::new() }
    }

    /// Adds a sentence: the metric, the threshold, what would have changed the decision.
    #[inline]
    pub fn say(&mut self, sentence: impl FnOnce() -> String) {
        if self.on {
            if !self.text.is_empty() {
                self.text.push(' ');
            }
            self.text += &sentence();
        }
    }

    /// The sentences since the last call.
    pub fn take(&mut self) -> String {
        std::mem::take(&mut self.text)
    }
}

/// A policy: decides after every interval in which mode the VM continues.
pub trait Policy: Send {
    /// The mode of the next interval.
    fn decide(&mut self, view: &View, log: &mut Log) -> Mode;
}

/// Why a policy does not take its parameters. Fields are in the order of the message.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum ParameterError {
    /// The interval is 0 or less, or longer than an hour.
    #[error("interval_s = {0} is not above 0 and at most 3600")]
    Interval(f64),
    /// A VM was to run in the mode of a machine without one.
    #[error("mode = native is no mode of a VM")]
    Native,
    /// A value is outside of its range.
    #[error("{0} = {1} is not in {2}..={3}")]
    Outside(String, f64, f64, f64),
    /// A value is 0 or less, or no number.
    #[error("{0} = {1} is not above 0 and finite")]
    NotPositive(String, f64),
    /// A lower bound reaches the upper one.
    #[error("{0} = {1} is not below {2} = {3}")]
    NotBelow(String, f64, String, f64),
    /// The lower level of RPMS is above the upper one.
    #[error("t_low = {0} is above t_high = {1}")]
    Levels(f64, f64),
    /// The ends of bins do not rise.
    #[error("{0} does not rise from {1} to {2}")]
    Falls(String, f64, f64),
    /// A list of a machine is not as long as another.
    #[error("{0}.{1} has {2} entries, not {3}")]
    Length(String, &'static str, usize, usize),
    /// A value in a list of a machine is not finite.
    #[error("{0}.{1} has {2}, which is not finite")]
    NotFinite(String, &'static str, f64),
    /// A machine has no feature, or too many.
    #[error("{0}.features has {1} entries, not 1 to {2}")]
    Features(String, usize, usize),
    /// A machine has a feature twice.
    #[error("{0}.features names entry {1} twice")]
    Twice(String, usize),
    /// A machine has no support vector.
    #[error("{0}.vectors is empty, not 1 or more")]
    NoVectors(String),
}

/// A policy's parameters.
pub trait Parameters {
    /// Checks the parameters; the error names the parameter and its range.
    fn check(&self) -> Result<(), ParameterError>;

    /// The counters that the policy reads of a [`View`]'s sample, directly or through the view's figures.
    fn needs(&self) -> Counters;

    /// Whether the policy reads the other modes' costs ([`View::others`]).
    fn needs_other(&self) -> bool {
        false
    }

    /// The policy at the start of a VM that runs in mode `start`.
    fn policy(&self, start: Mode) -> Box<dyn Policy>;
}
