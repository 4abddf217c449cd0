// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold policy`: replays of policies over timelines.
//!
//! One file per verb; what they share, from the words of a user to timelines, policies and
//! the VM, is in [`setting`].

pub mod args;
mod compare;
mod list;
mod replay;
pub mod setting;
mod sweep;
pub mod train;

use crate::policy::args::PolicyVerb;
use crate::status::Status;

/// Carries out a verb.
pub fn run(verb: PolicyVerb) -> anyhow::Result<Status> {
    match verb {
        PolicyVerb::List(args) => list::run(args.format),
        PolicyVerb::Replay(args) => replay::run(*args),
        PolicyVerb::Compare(args) => compare::compare(*args),
        PolicyVerb::Intervals(args) => compare::intervals(*args),
        PolicyVerb::Sweep(args) => sweep::run(*args),
        PolicyVerb::Train(args) => train::run(*args),
    }
}
