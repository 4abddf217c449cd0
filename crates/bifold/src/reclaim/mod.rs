// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold reclaim`: what a guest's memory is worth, and taking it back without harm.
//!
//! Each verb is a file. [`guests`] finds the guests that a user names.

#[cfg(feature = "host")]
mod advise;
#[cfg(feature = "host")]
mod guests;
#[cfg(feature = "host")]
mod restore;
#[cfg(feature = "host")]
mod set;
#[cfg(feature = "host")]
mod watch;

#[cfg(feature = "host")]
pub use restore::{GUARDIAN, guard};

use crate::status::{self, Status};
use clap::{Args, Subcommand};

/// See what memory guests hold, and take it back in steps
///
/// A host that has promised more memory than it has takes some back: the guest reports free pages, a balloon makes the
/// guest choose pages, or the host pages out.
#[derive(Debug, Args)]
#[command(subcommand_required = true, arg_required_else_help = true, disable_help_subcommand = true,
          after_long_help = status::IN_WORDS)]
pub struct ReclaimArgs {
    #[command(subcommand)]
    verb: ReclaimVerb,
}

/// The verbs of `bifold reclaim`. The help of a verb is the doc comment of its arguments.
#[derive(Debug, Subcommand)]
enum ReclaimVerb {
    #[cfg(feature = "host")]
    Watch(watch::WatchArgs),
    #[cfg(feature = "host")]
    Advise(advise::AdviseArgs),
    #[cfg(feature = "host")]
    Set(set::SetArgs),
    #[cfg(feature = "host")]
    Restore(restore::RestoreArgs),
}

/// Carries out a verb.
pub fn run(args: ReclaimArgs) -> anyhow::Result<Status> {
    match args.verb {
        #[cfg(feature = "host")]
        ReclaimVerb::Watch(args) => watch::run(&args),
        #[cfg(feature = "host")]
        ReclaimVerb::Advise(args) => advise::run(&args),
        #[cfg(feature = "host")]
        ReclaimVerb::Set(args) => set::run(&args),
        #[cfg(feature = "host")]
        ReclaimVerb::Restore(args) => restore::run(&args),
    }
}
