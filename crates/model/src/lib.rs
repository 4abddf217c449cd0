// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What each paging mode costs: the model of hardware and hypervisor that turns
//! guest events into samples.
#![forbid(unsafe_code)]

mod config;
pub mod guest;
pub mod host;
mod outcome;
mod sample;

pub use config::{Config, Mode};
pub use outcome::{ConfigOutcome, Outcome};
pub use sample::{Counter, Sample};
