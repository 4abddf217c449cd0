// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies that decide when a virtual machine switches its paging mode, the optimum that they are
//! compared with, and replays of recorded timelines.
//!
//! A [`Policy`] sees one [`View`] of each interval and names the mode of the next. It sees nothing of the
//! future and only what a live host can measure, so the same code decides over a captured timeline and on
//! line. [`Spec`] makes policies from parameters in TOML; each has a file under `policies/`.
//!
//! This crate switches no VM and measures none: it takes samples from a [`Timeline`], or from a caller that
//! drives a policy ([`Driver`]).
//!
//! ```
//! use bifold_model::Sample;
//! use bifold_policy::{Driver, Interval, Mode, Named, Scale, Source};
//!
//! let dsp = Named::load("dsp")?;
//! let source = Source::simulated(dsp.spec.interval_s());
//! let mut driver = Driver::new(&dsp.spec, Mode::Nested, source, Scale::both(1.0), None)?;
//! // Many TLB misses and no page faults: shadow paging walks fewer tables.
//! let sample = Sample { instructions: 1_000_000, tlb_misses_4k: 50_000, ..Sample::default() };
//! let interval = Interval {
//!     mode: Mode::Nested,
//!     sample: &sample,
//!     cycles: 2e6,
//!     load: 1.0,
//!     seconds: source.interval_s,
//! };
//! assert_eq!(driver.interval(interval, &[]), Some(Mode::Shadow));
//! # Ok::<(), Box<dyn std::error::Error>>(())
//! ```
#![forbid(unsafe_code)]

pub mod counters;
pub mod driver;
pub mod estimate;
pub mod evaluate;
mod modes;
pub mod oracle;
pub mod policies;
mod policy;
pub mod replay;
pub mod replay_check;
pub mod spec;
pub mod sweep;
pub mod timeline;
pub mod track;

/// The mode of a VM. Costs decide which modes a policy chooses from;
/// [`Paging::switchable`](bifold_model::Paging::switchable) says which a hypervisor switches between today.
pub use bifold_model::Paging as Mode;
pub use counters::Counters;
pub use driver::{Decision, Driver, Interval, Scale, Source, UnknownCounter};
pub use estimate::Estimator;
pub use modes::{PerMode, mode_from_name};
pub use oracle::{Oracle, oracle};
pub use policy::{Log, Other, ParameterError, Parameters, Policy, View};
pub use replay::{Run, Setup, forced, replay};
pub use spec::{Named, Spec, SpecError};
pub use timeline::{Timeline, TimelineError};
pub use track::{Track, VmKind};
