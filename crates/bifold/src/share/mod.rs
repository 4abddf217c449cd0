// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share`: how much memory guests could share, how much they do, and what it costs.
//!
//! One file or folder per verb.

pub mod advise;
pub mod args;
pub mod check;
mod fingerprint;
pub mod model;
mod potential;
pub mod run;
pub mod watch;

use crate::share::args::ShareVerb;
use crate::status::Status;

/// Carries out a verb.
pub fn run(verb: ShareVerb) -> anyhow::Result<Status> {
    match verb {
        ShareVerb::Advise(args) => advise::run(&args),
        ShareVerb::Check(args) => check::run(&args),
        ShareVerb::Model(args) => model::run(&args),
        ShareVerb::Run(args) => run::run(&args),
        ShareVerb::Watch(args) => watch::run(&args),
        ShareVerb::Potential(args) => potential::run(&args),
        ShareVerb::Fingerprint(args) => fingerprint::write(&args),
        ShareVerb::Count(args) => fingerprint::count(&args),
        ShareVerb::Merge(args) => fingerprint::merge(&args),
        ShareVerb::Import(args) => fingerprint::import(&args),
    }
}
