// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trials of page sharing with real guests and the real KSM.
//!
//! [`experiment`] runs Linux guests under KSM and measures what sharing saves and costs. [`pressure`] runs
//! guests whose memory is taken back by balloons, reports of free pages and KSM, and measures what that gives
//! and costs. [`ksm_check`] compares the model of KSM with this kernel's ksmd, pass by pass. [`advise`] reads
//! a host and recommends what to do about its KSM.
//!
//! Both kinds of experiments have one runner: a case says what it holds (KSM's settings, sizes, a host that
//! pages) and what it samples.
//!
//! This crate counts no pages and models no scanner: that is `bifold-share`. It changes KSM's settings only
//! through `bifold-host`'s guard, which restores them.
//!
//! ```
//! use bifold_trial::experiment::{Rate, Spec};
//! use std::path::Path;
//!
//! let text = "title = 'two idle guests'\n[time]\nlength = 600\nsample = 10\n\
//!             [[guest]]\nname = 'idle'\ncount = 2\nmemory_mib = 1024\nworkload = { kind = 'idle' }\n";
//! let spec = Spec::parse(Path::new("idle.toml"), text)?;
//! // At a quarter of the size, everything takes a quarter of the time.
//! let plan = spec.plan(Path::new("idle.toml"), Rate::parse("1/4").unwrap(), &[])?;
//! assert_eq!((plan.guests.len(), plan.guests[0].memory_mib), (2, 256));
//! assert_eq!(plan.length.as_secs(), 150);
//! # Ok::<(), bifold_trial::SpecError>(())
//! ```
#![forbid(unsafe_code)]

pub mod advise;
mod error;
pub mod experiment;
mod guest;
pub mod ksm_check;
pub mod output;
pub mod paging;
pub mod pressure;
mod rate;
mod run;
mod spec;

pub use error::ExperimentError;
pub use run::{Ending, Notice, available_mib};
pub use spec::SpecError;
