// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each paging mode costs: the model of hardware and hypervisor that turns
//! guest events into samples.
#![forbid(unsafe_code)]

pub mod access;
pub mod ages;
pub mod charge;
mod config;
pub mod counts;
mod estimate;
pub mod exit_log;
pub mod guest;
pub mod host;
mod kvm;
mod model;
pub mod nested;
mod outcome;
pub mod paging;
mod pcid;
mod profile;
pub mod regime;
mod sample;
pub mod shadow;
mod timeline;

pub use charge::{Charge, Costs, Place};
pub use config::{Config, Paging};
pub use estimate::{CONFIDENCE, Mean};
pub use exit_log::Exit;
pub use kvm::Kvm;
pub use model::{Decide, Model, Options, SwitchedOutcome, Switching};
pub use outcome::{ConfigOutcome, Estimate, Outcome, Sampling};
pub use profile::{Cost, ExitCosts, KEYS, Key, Profile, ProfileError, TagKind, Variant};
pub use sample::{Counter, Sample};
