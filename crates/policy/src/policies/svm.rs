// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A trained support-vector machine: the features of an interval, and the decision function. Bifold trains no
//! machines.
//!
//! f(x) = sum of coefficient * K(vector, x) + bias. The kernel K is linear, x . y, or a radial basis
//! function, exp(-gamma |x - y|^2). A coefficient is the multiplier times its class, which is +1 for
//! "switch". A feature in x is log1p of the measured value, less a mean, divided by a scale.

use super::{num, positive};
use crate::{Counters, ParameterError, View};
use serde::{Deserialize, Serialize};

/// A measured value of an interval.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Feature {
    /// TLB misses per 1000 instructions.
    TlbMisses,
    /// Guest page faults per 1000 instructions.
    PageFaults,
    /// Exits per 1000 instructions.
    Exits,
    /// Walks' share of cycles, percent.
    WalkPercent,
    /// The hypervisor's share of cycles, percent.
    VmmPercent,
    /// Instructions per cycle.
    Ipc,
}

impl Feature {
    /// All features.
    pub const ALL: [Feature; 6] = [
        Feature::TlbMisses,
        Feature::PageFaults,
        Feature::Exits,
        Feature::WalkPercent,
        Feature::VmmPercent,
        Feature::Ipc,
    ];

    /// The measured value in the feature's unit, 0 or more.
    pub fn measured(self, view: &View) -> f64 {
        match self {
            Feature::TlbMisses => view.tlb_misses_per_1000(),
            Feature::PageFaults => view.page_faults_per_1000(),
            Feature::Exits => view.exits_per_1000(),
            Feature::WalkPercent => view.walk_percent(),
            Feature::VmmPercent => view.vmm_percent(),
            Feature::Ipc => view.ipc(),
        }
    }

    /// The counters that the feature is computed from.
    pub fn needs(self) -> Counters {
        match self {
            Feature::TlbMisses => Counters::INSTRUCTIONS.and(Counters::TLB_MISSES),
            Feature::PageFaults => Counters::INSTRUCTIONS.and(Counters::PAGE_FAULTS),
            Feature::Exits => Counters::INSTRUCTIONS.and(Counters::EXITS),
            Feature::WalkPercent => Counters::WALK_CYCLES,
            Feature::VmmPercent => Counters::VMM_CYCLES,
            Feature::Ipc => Counters::INSTRUCTIONS,
        }
    }

    /// log1p of the measured value: the feature before mean and scale.
    pub fn value(self, view: &View) -> f64 {
        self.measured(view).ln_1p()
    }

    /// The largest value that can be measured.
    fn most(self) -> f64 {
        match self {
            Feature::WalkPercent | Feature::VmmPercent => 100.0,
            Feature::TlbMisses | Feature::PageFaults | Feature::Exits | Feature::Ipc => f64::MAX,
        }
    }

    /// The measured value in words.
    fn say(self, measured: f64) -> String {
        let n = num(measured);
        match self {
            Feature::TlbMisses => format!("{n} TLB misses per 1000 instructions"),
            Feature::PageFaults => format!("{n} page faults per 1000 instructions"),
            Feature::Exits => format!("{n} exits per 1000 instructions"),
            Feature::WalkPercent => format!("{n} % of cycles in walks"),
            Feature::VmmPercent => format!("{n} % of cycles in the hypervisor"),
            Feature::Ipc => format!("{n} instructions per cycle"),
        }
    }
}

/// A kernel: how similar two intervals are.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "kebab-case", deny_unknown_fields)]
pub enum Kernel {
    /// x . y.
    Linear {},
    /// exp(-gamma |x - y|^2).
    Rbf {
        /// Above 0.
        gamma: f64,
    },
}

impl Kernel {
    /// The kernel's value for two intervals' standardised features.
    pub fn of(self, x: &[f64], y: &[f64]) -> f64 {
        let pairs = x.iter().zip(y);
        match self {
            Kernel::Linear {} => pairs.map(|(a, b)| a * b).sum(),
            Kernel::Rbf { gamma } => (-gamma * pairs.map(|(a, b)| (a - b).powi(2)).sum::<f64>()).exp(),
        }
    }
}

/// A trained machine.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Machine {
    /// The features, in the order of all other lists.
    pub features: Vec<Feature>,
    /// Subtracted from each feature's log1p.
    pub mean: Vec<f64>,
    /// Divisor of each feature after the mean is subtracted, above 0.
    pub scale: Vec<f64>,
    /// The kernel.
    pub kernel: Kernel,
    /// Standardised support vectors; a linear machine may have its weights as the only one.
    pub vectors: Vec<Vec<f64>>,
    /// Multiplier times class of each support vector.
    pub coefficients: Vec<f64>,
    /// The bias.
    pub bias: f64,
}

impl Machine {
    /// The counters that the machine's features are computed from.
    pub fn needs(&self) -> Counters {
        self.features.iter().fold(Counters::NONE, |set, feature| set.and(feature.needs()))
    }

    /// Checks the machine; errors begin with the parameter's `name`.
    pub fn check(&self, name: &str) -> Result<(), ParameterError> {
        let n = self.features.len();
        if !(1..=Feature::ALL.len()).contains(&n) {
            return Err(ParameterError::Features(name.into(), n, Feature::ALL.len()));
        }
        if let Some(f) = self.features.iter().enumerate().find(|(i, f)| self.features[..*i].contains(f)) {
            return Err(ParameterError::Twice(name.into(), f.0));
        }
        let long = |what, len: usize, n: usize| {
            if len == n { Ok(()) } else { Err(ParameterError::Length(name.into(), what, len, n)) }
        };
        let finite = |what, values: &[f64]| match values.iter().find(|v| !v.is_finite()) {
            Some(v) => Err(ParameterError::NotFinite(name.into(), what, *v)),
            None => Ok(()),
        };
        long("mean", self.mean.len(), n)?;
        finite("mean", &self.mean)?;
        long("scale", self.scale.len(), n)?;
        for s in &self.scale {
            positive(&format!("an entry of {name}.scale"), *s)?;
        }
        if self.vectors.is_empty() {
            return Err(ParameterError::NoVectors(name.into()));
        }
        for v in &self.vectors {
            long("vectors (one of them)", v.len(), n)?;
            finite("vectors", v)?;
        }
        long("coefficients", self.coefficients.len(), self.vectors.len())?;
        finite("coefficients", &self.coefficients)?;
        finite("bias", &[self.bias])?;
        match self.kernel {
            Kernel::Linear {} => Ok(()),
            Kernel::Rbf { gamma } => positive(&format!("{name}.kernel.gamma"), gamma),
        }
    }

    /// The features of an interval, standardised.
    pub fn standardised(&self, view: &View) -> Vec<f64> {
        let at = |(i, f): (usize, &Feature)| (f.value(view) - self.mean[i]) / self.scale[i];
        self.features.iter().enumerate().map(at).collect()
    }

    /// The decision function over standardised features; above 0 means switch.
    pub fn decision(&self, x: &[f64]) -> f64 {
        let terms = self.vectors.iter().zip(&self.coefficients).map(|(v, c)| c * self.kernel.of(v, x));
        terms.sum::<f64>() + self.bias
    }

    /// The features in words.
    pub(super) fn say(&self, view: &View) -> String {
        self.features.iter().map(|f| f.say(f.measured(view))).collect::<Vec<_>>().join(", ")
    }

    /// In words, the smallest change of one feature that reverses the decision, in steps of a tenth of its
    /// scale and up to ten scales.
    pub(super) fn turn(&self, x: &[f64]) -> Option<String> {
        let says = self.decision(x) > 0.0;
        let mut x = x.to_vec();
        for tenths in 1..=100 {
            for i in 0..x.len() {
                for sign in [1.0, -1.0] {
                    let old = x[i];
                    x[i] += sign * f64::from(tenths) / 10.0;
                    let measured = (x[i] * self.scale[i] + self.mean[i]).exp_m1();
                    let turned = (self.decision(&x) > 0.0) != says;
                    x[i] = old;
                    if turned && (0.0..=self.features[i].most()).contains(&measured) {
                        return Some(self.features[i].say(measured));
                    }
                }
            }
        }
        None
    }
}
