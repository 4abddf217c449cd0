// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The verbs of the feature `full`: those about many runs, and about this host, its VMs and their policies.
//! `make demo` builds without them, in less time; `left_out.rs` then stands in for this folder.
//!
//! Verbs use modules that know no verb: [`vms`] (the VMs of this host), [`child`] (`compare` as a process of
//! its own), [`experiments`] (tables and charts of experiments).

mod child;
mod ci;
mod configuration;
mod ctl;
mod daemon;
mod doctor;
mod experiments;
mod export;
#[cfg(test)]
pub mod fake_host;
mod guardian;
mod mode;
mod noise;
mod place;
mod policy;
mod reclaim;
mod share;
mod stat;
mod status;
mod sweep;
mod top;
mod tune;
mod vms;

pub use configuration::pages;
pub use doctor::{folder_check, orders};
#[cfg(test)]
pub use doctor::{folder_check_of, orders_in};
pub use guardian::guard_if_asked;
pub use status::status_of;

use crate::doctor::needs::NOTHING;
use bifold_daemon::{DecisionLine, MemoryLine, StartLine};
use bifold_live::files::{self, Line};
use bifold_live::recording::{DECISION_SCHEMA, MEMORY_DECISION_SCHEMA, START_SCHEMA};
use bifold_report::schema::schema;
use serde_json::Value;

/// What this build leaves out.
pub const LEFT_OUT: Option<&str> = None;

verbs! {
    "What a change costs":
    tune(tune::TuneArgs) => tune::run, tune::NEEDS, |_| true;
    ci(ci::CiArgs) => ci::run, ci::NEEDS;

    "Many runs":
    sweep(sweep::SweepArgs) => sweep::run, sweep::NEEDS;
    export(export::ExportArgs) => export::run, NOTHING;

    "The VMs of a host":
    stat(stat::StatArgs) => |args| stat::run(&args), stat::NEEDS, |args| !args.command.is_empty();
    top(top::TopArgs) => |args| top::run(&args), top::NEEDS;

    "Memory":
    reclaim(reclaim::ReclaimArgs) => reclaim::run, reclaim::NEEDS, reclaim::ReclaimArgs::runs_a_command;
    share(share::ShareArgs) => share::run, share::NEEDS;

    "Placement":
    place(place::PlaceArgs) => place::run, place::NEEDS;
    noise(noise::NoiseArgs) => noise::run, noise::NEEDS;

    "Paging modes: policies and switching":
    policy(policy::PolicyArgs) => policy::run, NOTHING;
    mode(mode::ModeArgs) => |args| mode::run(&args), mode::NEEDS;
    daemon(daemon::DaemonArgs) => |args| daemon::run(&args), daemon::NEEDS;
    ctl(ctl::CtlArgs) => |args| ctl::run(&args), NOTHING;
}

/// The schemas of the verbs' outputs.
pub fn schemas() -> Vec<Value> {
    let mut all = noise::schemas();
    all.extend([
        ci::schema(),
        tune::schema(),
        schema::<Line>(files::SCHEMA),
        schema::<DecisionLine>(DECISION_SCHEMA),
        schema::<MemoryLine>(MEMORY_DECISION_SCHEMA),
        schema::<StartLine>(START_SCHEMA),
    ]);
    all.extend(sweep::schemas());
    all.extend(policy::schemas());
    all.extend(mode::schemas());
    all.extend(ctl::schemas());
    all.extend(share::schemas());
    all.extend(place::schemas());
    all.extend(reclaim::schemas());
    all
}
