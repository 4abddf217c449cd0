// SPDX-License-Identifier: Apache-2.0 OR MIT
//! When should a virtual machine switch between shadow and nested paging?
//!
//! A [`Policy`] sees one [`View`] per interval and names the mode of the next; it sees
//! nothing of the future and nothing but what a live host can measure, so the same code
//! decides over a captured timeline and on line. [`Policies`](spec) are made from parameters
//! in TOML ([`Spec`]), one file per policy under `policies/`.
#![forbid(unsafe_code)]

mod mode;
pub mod policies;
mod policy;
pub mod spec;

pub use mode::Mode;
pub use policy::{Log, Other, Parameters, Policy, View};
pub use spec::{Named, Spec, SpecError};
