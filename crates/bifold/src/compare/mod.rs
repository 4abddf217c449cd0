// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold compare`, and `bifold record`, which is `compare` that also writes the events to a file.
//!
//! Options ([`args`], [`guest`], [`region`]) become a plan ([`plan`]) of a source of events ([`mod@source`]);
//! [`deliver`] makes the run and writes its results ([`output`]), [`runs`] does so for several runs of one
//! command.

mod args;
mod baseline;
mod deliver;
mod guest;
mod keep;
mod output;
mod placement;
mod plan;
mod region;
mod runs;
mod source;

pub use args::{CompareArgs, ProgramArgs, RecordArgs};
pub use guest::GuestArgs;
pub use source::{Source, command_tip, source};

use crate::doctor::needs::{Needs, WITHOUT_A_GUEST};
use crate::status::Status;

/// What `compare` needs of the machine.
pub const NEEDS: &[Needs] = &[Needs::of_guest("", WITHOUT_A_GUEST)];
/// What `record` needs of the machine.
pub const RECORD_NEEDS: &[Needs] = &[Needs::of_guest("", Some("it records generators, and runs no command"))];

/// Carries out `bifold compare`.
pub fn compare(args: CompareArgs) -> anyhow::Result<Status> {
    deliver::run(plan::compare(args)?)
}

/// Carries out `bifold record`.
pub fn record(args: RecordArgs) -> anyhow::Result<Status> {
    deliver::run(plan::record(args)?)
}
