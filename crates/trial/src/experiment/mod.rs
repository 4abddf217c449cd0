// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs experiments: real Linux guests under the real KSM, observed from outside.
//!
//! A [`Spec`] is a TOML file: guests, their workloads, KSM's settings, and cases that differ in some of
//! these. At a [`Scale`] it becomes a [`Plan`], in which all sizes and times are this machine's. A
//! [`run`](run::run) starts the guests of one case after the other, samples the memory they take and KSM's
//! work, counts the potential of their memory at marked times, and yields an [`Outcome`]. [`output`] makes
//! tables, rows and charts of the outcome.
//!
//! [`tune`] decides when KSM runs, by ksmtuned's rule. Memory is counted over the guests and not over the
//! host, because other programs change the host's free memory. Left out: guests' disks and networks, several
//! vCPUs, and KVM (guests are emulated, which changes how fast they write but not their memory's contents).

pub mod guests;
pub mod outcome;
pub mod output;
pub mod run;
mod sample;
pub mod spec;
pub mod tune;

pub use crate::rate::{Rate, Scale};
pub use outcome::{CaseOutcome, GuestOutcome, GuestSample, Mark, Outcome, Sample};
pub use run::{Notice, RunOptions, run};
pub use spec::{Plan, Spec};
