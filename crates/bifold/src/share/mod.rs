// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold share`: identical pages of guests, one file per verb.

pub mod check;
pub mod model;

use crate::cli::share::ShareVerb;
use crate::status::Status;

/// Carries out a verb.
pub fn run(verb: ShareVerb) -> anyhow::Result<Status> {
    match verb {
        ShareVerb::Check(args) => check::run(&args),
        ShareVerb::Model(args) => model::run(&args),
    }
}
