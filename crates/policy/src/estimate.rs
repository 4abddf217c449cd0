// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The estimator: what the other mode would cost, from counters of the mode that the VM runs in.
//!
//! The model knows both modes' costs, but a live host counts only in the current mode. The other mode's
//! cost is nearly linear in what can be counted: page-walk cycles, TLB misses, exits by reason and guest
//! page faults. A shadow walk reads a fraction of what a nested walk reads, and under shadow paging every
//! guest page fault, CR3 load and first touch costs exits. `bifold policy train estimator` fits the
//! coefficients to captured timelines.
//!
//! The modes are the two that KVM switches a VM between. Only their estimates serve a live host, and can be
//! checked there. Policies take the costs of all other modes from timelines.

use crate::{Counters, Mode, Other};
use bifold_mmu::Mode as KvmMode;
use bifold_model::Sample;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::sync::LazyLock;

/// The built-in coefficients, written by `bifold policy train estimator`.
const FITTED: &str = include_str!("../params/estimator.toml");

/// Counters that a live host can measure: from the PMU (misses, walk cycles, and flushes, which Intel counts
/// as TLB_FLUSH.DTLB_THREAD and AMD as LsTlbFlush), from KVM, and from the guest's page-fault count.
///
/// KVM's statistics do not have every exit reason. `pf_taken` counts page faults that exit for any reason,
/// and `mmu_unsync` is the current number of unsync pages. Only a trace of KVM tells hidden faults,
/// permission faults and writes that make a table unsync apart. A source that does not trace leaves these out
/// of its [`known`](crate::Source::known) counters.
pub const MEASURABLE: [&str; 18] = [
    "instructions",
    "tlb_misses_4k",
    "tlb_misses_2m",
    "tlb_misses_1g",
    "walk_cycles",
    "tlb_flushes",
    "guest_page_faults",
    "vmm_cycles",
    "exits_violation",
    "exits_guest_fault",
    "exits_hidden_fault", // not in KVM's statistics
    "exits_permission",   // not in KVM's statistics
    "exits_unsync",       // not in KVM's statistics
    "exits_emulated_write",
    "exits_cr3_write",
    "exits_cr3_read",
    "exits_invlpg",
    "exits_cr4_write",
];

/// A weighted sum of counters, in cycles.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(try_from = "BTreeMap<String, f64>", into = "BTreeMap<String, f64>")]
pub struct Linear {
    terms: Vec<(usize, f64)>,
}

/// Why coefficients cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum EstimatorError {
    /// Not TOML, or not the tables of an estimator.
    #[error(transparent)]
    Toml(#[from] toml::de::Error),
    /// No counter has the name.
    #[error("no counter {0}")]
    NoCounter(String),
    /// The model counts it, and a live host does not.
    #[error("{0} cannot be measured on a live host")]
    NotMeasurable(String),
    /// A counter's coefficient is not finite.
    #[error("{0} = {1} is no number of cycles")]
    NotFinite(String, f64),
    /// The cost of a switch is negative or not finite.
    #[error("switch = {0} is not at least 0")]
    Switch(f64),
}

impl TryFrom<BTreeMap<String, f64>> for Linear {
    type Error = EstimatorError;

    fn try_from(map: BTreeMap<String, f64>) -> Result<Self, EstimatorError> {
        let term = |(name, cycles): (String, f64)| {
            let counter = Sample::COUNTERS.iter().position(|c| c.name == name);
            match counter {
                Some(i) if MEASURABLE.contains(&name.as_str()) && cycles.is_finite() => Ok((i, cycles)),
                Some(_) if cycles.is_finite() => Err(EstimatorError::NotMeasurable(name)),
                Some(_) => Err(EstimatorError::NotFinite(name, cycles)),
                None => Err(EstimatorError::NoCounter(name)),
            }
        };
        Ok(Linear { terms: map.into_iter().map(term).collect::<Result<_, _>>()? })
    }
}

impl From<Linear> for BTreeMap<String, f64> {
    fn from(linear: Linear) -> Self {
        linear.terms.into_iter().map(|(i, c)| (Sample::COUNTERS[i].name.to_string(), c)).collect()
    }
}

impl Linear {
    /// The sum for a sample, 0 or more cycles.
    pub fn of(&self, sample: &Sample) -> f64 {
        let values = sample.values();
        self.terms.iter().map(|&(i, cycles)| values[i] as f64 * cycles).sum::<f64>().max(0.0)
    }
}

/// The sums that estimate from the counters of one mode.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct FromMode {
    /// Extra cycles of the other mode for the same work.
    pub extra: Linear,
    /// Cycles to build the shadow tables that this work needs.
    pub rebuild: Linear,
}

/// The estimator: coefficients per mode that the VM is in.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Estimator {
    /// Sums for a VM in shadow mode.
    pub shadow: FromMode,
    /// Sums for a VM in nested mode.
    pub nested: FromMode,
    /// Cycles of one switch, without dropping and rebuilding tables.
    pub switch: f64,
}

impl Estimator {
    /// The built-in coefficients.
    pub fn fitted() -> &'static Estimator {
        static ONE: LazyLock<Estimator> = LazyLock::new(|| toml::from_str(FITTED).expect("a test parses it"));
        &ONE
    }

    /// Parses TOML text.
    pub fn parse(text: &str) -> Result<Estimator, EstimatorError> {
        let e: Estimator = toml::from_str(text)?;
        if e.switch >= 0.0 && e.switch.is_finite() { Ok(e) } else { Err(EstimatorError::Switch(e.switch)) }
    }

    /// The counters that the estimator reads.
    pub fn needs(&self) -> Counters {
        KvmMode::BOTH.into_iter().fold(Counters::NONE, |set, mode| set.and(self.needs_in(mode.into())))
    }

    /// The counters that the estimator reads of a VM in this mode.
    pub fn needs_in(&self, mode: Mode) -> Counters {
        let Some((from, _)) = self.from(mode) else { return Counters::NONE };
        let terms = [&from.extra, &from.rebuild].into_iter().flat_map(|l| &l.terms);
        let terms = terms.filter(|(_, cycles)| *cycles != 0.0);
        terms.fold(Counters::NONE, |set, (place, _)| set.and(Counters::at(*place)))
    }

    /// The sums for a VM in this mode, and the mode that they estimate; none if nothing was fitted.
    fn from(&self, mode: Mode) -> Option<(&FromMode, Mode)> {
        let mode = mode.switchable()?;
        let from = match mode {
            KvmMode::Shadow => &self.shadow,
            KvmMode::Nested => &self.nested,
        };
        Some((from, mode.other().into()))
    }

    /// What the other mode would have cost for the work of `sample`, and the costs of switching there and
    /// back, divided by `scale`. None for a mode whose counters nothing was fitted to.
    pub fn other(&self, mode: Mode, sample: &Sample, scale: f64) -> Option<Other> {
        let (from, other) = self.from(mode)?;
        let rebuild = from.rebuild.of(sample);
        let to = |to| if to == Mode::Shadow { (self.switch + rebuild) / scale } else { self.switch / scale };
        Some(Other {
            mode: other,
            extra_cycles: from.extra.of(sample),
            there_cycles: to(other),
            back_cycles: to(mode),
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_fitted_coefficients_parse_and_every_measurable_counter_exists() {
        let e = Estimator::fitted();
        assert_eq!(Estimator::parse(&toml::to_string(e).unwrap()).unwrap(), *e);
        assert!(MEASURABLE.iter().all(|m| Sample::COUNTERS.iter().any(|c| c.name == *m)));
    }

    #[test]
    fn an_estimate_is_the_sum_of_its_terms_and_switching_scales() {
        let text = "switch = 1000.0\n[shadow.extra]\n[shadow.rebuild]\n[nested.extra]\nwalk_cycles = 0.5\n\
                    guest_page_faults = 7000.0\n[nested.rebuild]\nwalk_cycles = 2.0";
        let e = Estimator::parse(text).unwrap();
        let sample = Sample { walk_cycles: 100, guest_page_faults: 2, ..Sample::default() };
        let o = e.other(Mode::Nested, &sample, 10.0).unwrap();
        assert_eq!(e.other(Mode::Offset, &sample, 10.0), None, "nothing was fitted");
        assert_eq!(
            (o.mode, o.extra_cycles, o.there_cycles, o.back_cycles),
            (Mode::Shadow, 14_050.0, 120.0, 100.0)
        );
    }

    #[test]
    fn what_no_host_can_measure_is_refused() {
        let text = "switch = 0.0\n[shadow.extra]\nroot_misses = 1.0\n[shadow.rebuild]\n[nested.extra]\n[nested.rebuild]";
        assert!(Estimator::parse(text).unwrap_err().to_string().contains("root_misses cannot be measured"));
    }
}
