// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs experiments under memory pressure: real Linux guests whose memory a host takes back, observed from
//! outside.
//!
//! A [`Spec`] is a TOML file: guests, the phases of their loads, the host's size for all of them, and cases
//! that differ in how memory is taken back. A [`run`](run::run) starts the guests of one case after the
//! other, samples them, and yields an [`Outcome`]. [`output`] makes tables, charts and JSON of it.
//!
//! Ways to take memory back: the guest reports free pages, a policy orders balloons, KSM merges pages, the
//! host pages. Orders are those of `bifold reclaim set` ([`bifold_live::order`]), with its least size, its
//! steps and its reasons to give everything back, but for one: the host's memory may grow, as sizes change
//! with each decision.
//!
//! The host's size is enforced where the host pages ([`paging`](crate::paging)). Elsewhere it is counted
//! only: this machine has memory for all guests, and what they hold beyond it is what a host of that size
//! would have to page out. Left out: guests with several vCPUs.

mod control;
mod guest;
pub mod outcome;
pub mod output;
pub mod run;
mod spec;

pub use crate::paging::PagingCounts;
pub use outcome::{CaseOutcome, GuestOutcome, GuestSample, Orders, Outcome, Sample};
pub use run::{Notice, RunOptions, run};
pub use spec::{CaseSpec, GuestSpec, Phase, PlannedGuest, Spec, TimeSpec};
