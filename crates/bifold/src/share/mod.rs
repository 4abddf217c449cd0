// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share`: identical pages of guests, one file per verb.

pub mod advise;
pub mod check;
pub mod run;
#[cfg(test)]
mod tree;
pub mod watch;

use crate::cli::share::ShareVerb;
use crate::status::Status;

/// Carries out a verb.
pub fn run(verb: ShareVerb) -> anyhow::Result<Status> {
    match verb {
        ShareVerb::Advise(args) => advise::run(&args),
        ShareVerb::Check(args) => check::run(&args),
        ShareVerb::Run(args) => run::run(&args),
        ShareVerb::Watch(args) => watch::run(&args),
    }
}
