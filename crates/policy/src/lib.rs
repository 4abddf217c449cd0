// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When should a virtual machine switch between shadow and nested paging?
//!
//! A [`Policy`] sees one [`View`] per interval and names the mode of the next; it sees
//! nothing of the future and nothing but what a live host can measure, so the same code
//! decides over a captured timeline and on line. [`Policies`](spec) are made from parameters
//! in TOML ([`Spec`]), one file per policy under `policies/`.
#![forbid(unsafe_code)]

pub mod check;
pub mod counters;
pub mod driver;
pub mod estimate;
pub mod evaluate;
pub mod oracle;
pub mod policies;
mod policy;
pub mod replay;
pub mod spec;
pub mod sweep;
pub mod timeline;
pub mod track;

pub use bifold_mmu::Mode;
pub use counters::Counters;
pub use driver::{Decision, Driver, Interval, Scale, Source, UnknownCounter};
pub use estimate::Estimator;
pub use oracle::{Oracle, oracle};
pub use policy::{Log, Other, Parameters, Policy, View};
pub use replay::{Run, Setup, forced, replay};
pub use spec::{Named, Spec, SpecError};
pub use timeline::{Timeline, TimelineError};
pub use track::{Track, Vm};
