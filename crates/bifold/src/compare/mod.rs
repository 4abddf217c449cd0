// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold compare`, and `bifold record`, which is `compare` that also writes the events to a file.
//!
//! Options ([`args`], [`guest`], [`region`]) become a plan ([`plan`]); [`deliver`] makes the run and
//! writes its results, [`runs`] does so for several runs of one command.

mod args;
mod baseline;
mod deliver;
mod guest;
mod keep;
mod placement;
mod plan;
mod region;
mod runs;

pub use args::{CompareArgs, ProgramArgs, RecordArgs};
pub use guest::GuestArgs;
pub use plan::{Source, command_tip, source};

use crate::status::Status;

/// Carries out `bifold compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Status> {
    deliver::run(plan::compare(args)?)
}

/// Carries out `bifold record`.
pub fn record(args: RecordArgs) -> anyhow::Result<Status> {
    deliver::run(plan::record(args)?)
}
