// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `bifold`.
//!
//! A verb is a line of the table below, and a folder or file with the verb's options, their help, and its
//! work. Verbs use [`run`], one run of the model. Verbs and [`run`] use modules that know no verb: [`words`]
//! (values that several verbs take), [`vms`] (the VMs of this host), `child` (`compare` as a process of its
//! own), [`console`] (stdout, stderr and files), [`usage`] (usage errors), [`status`] (the exit status).
//!
//! Data goes to stdout. Notes, progress and the output of a command in a guest go to stderr. An error is
//! printed once, with its causes, and decides the exit status.
#![deny(unsafe_code)]
// What all verbs share has parts for those that a build without the feature leaves out.
#![cfg_attr(not(feature = "host"), allow(dead_code, unused_imports))]

mod cache;
#[cfg(feature = "host")]
mod child;
#[cfg(feature = "host")]
mod ci;
#[macro_use]
mod cli;
mod compact;
mod compare;
mod console;
#[cfg(feature = "host")]
mod ctl;
#[cfg(feature = "host")]
mod daemon;
mod diff;
mod doctor;
#[cfg(feature = "host")]
mod experiments;
#[cfg(feature = "host")]
mod export;
#[cfg(all(test, feature = "host"))]
mod fake_host;
#[cfg(feature = "host")]
mod guardian;
mod import;
mod manual;
#[cfg(feature = "host")]
mod mode;
#[cfg(feature = "noise")]
mod noise;
#[cfg(feature = "host")]
mod place;
#[cfg(feature = "host")]
mod policy;
mod profile;
#[cfg(feature = "host")]
mod reclaim;
mod run;
mod schema;
#[cfg(feature = "host")]
mod share;
#[cfg(feature = "host")]
mod stat;
mod status;
#[cfg(feature = "host")]
mod sweep;
#[cfg(feature = "host")]
mod top;
#[cfg(feature = "host")]
mod tune;
mod usage;
#[cfg(feature = "host")]
mod vms;
mod words;

use doctor::needs::{NOTHING, Needs, UNLISTED};
use status::Status;
use std::process::ExitCode;
use usage::UsageError;

// Groups in the order of help and manual, each with its verbs: arguments, what carries the verb out, and what
// the verb needs of the machine.
verbs! {
    "What a program costs":
    Compare(Box<compare::CompareArgs>) => |args| compare::compare(*args), compare::NEEDS;
    Record(Box<compare::RecordArgs>) => |args| compare::record(*args), compare::RECORD_NEEDS;
    Import(import::ImportArgs) => |args| import::run(args), NOTHING;
    Profile(profile::ProfileArgs) => |args| profile::run(args), NOTHING;

    "What a change costs":
    Diff(Box<diff::DiffArgs>) => |args| diff::run(*args), NOTHING;
    #[feature("host")]
    Tune(Box<tune::TuneArgs>) => |args| tune::run(*args), tune::NEEDS;
    #[feature("host")]
    Ci(ci::CiArgs) => |args| ci::run(args), ci::NEEDS;

    "Many runs":
    #[feature("host")]
    Sweep(sweep::SweepArgs) => |args| sweep::run(args), sweep::NEEDS;
    #[feature("host")]
    Export(export::ExportArgs) => |args| export::run(args), NOTHING;

    "The VMs of a host":
    #[feature("host")]
    Stat(stat::StatArgs) => |args| stat::run(&args), stat::NEEDS;
    #[feature("host")]
    Top(top::TopArgs) => |args| top::run(&args), top::NEEDS;

    "Memory":
    #[feature("host")]
    Reclaim(reclaim::ReclaimArgs) => |args| reclaim::run(args), reclaim::NEEDS;
    #[feature("host")]
    Share(share::ShareArgs) => |args| share::run(args), share::NEEDS;

    "Placement":
    #[feature("host")]
    Place(place::PlaceArgs) => |args| place::run(args), place::NEEDS;
    #[feature("noise")]
    Noise(noise::NoiseArgs) => |args| noise::run(args), noise::NEEDS;

    "Paging modes: policies and switching":
    #[feature("host")]
    Policy(policy::PolicyArgs) => |args| policy::run(args), NOTHING;
    #[feature("host")]
    Mode(mode::ModeArgs) => |args| mode::run(&args), mode::NEEDS;
    #[feature("host")]
    Daemon(daemon::DaemonArgs) => |args| daemon::run(&args), daemon::NEEDS;
    #[feature("host")]
    Ctl(ctl::CtlArgs) => |args| ctl::run(&args), NOTHING;

    "Files and this installation":
    Compact(compact::CompactArgs) => |args| compact::run(args), NOTHING;
    Cache(cache::CacheArgs) => |args| cache::run(args), NOTHING;
    Schema(schema::SchemaArgs) => |args| schema::run(&args), UNLISTED;
    Doctor(doctor::DoctorArgs) => |args| doctor::run(&args), UNLISTED;
    Man(manual::ManArgs) => |args| manual::man(&args), UNLISTED;
    Completions(manual::CompletionsArgs) => |args| manual::completions(&args), UNLISTED;
}

fn main() -> ExitCode {
    bifold_base::version::built_from(env!("BIFOLD_REVISION"));
    #[cfg(feature = "host")]
    if let Some(code) = guardian::if_asked(std::env::args_os().skip(1)) {
        return code;
    }
    console::detect_terminal();
    let parsed = cli::parse();
    if console::stdout_was_closed() {
        eprintln!("bifold: stdout is closed: open it, or send it to /dev/null (`> /dev/null`)");
        let beside = parsed.is_ok_and(|(_, verb)| verb.runs_a_command());
        return ExitCode::from(if beside { status::FAILED_BESIDE_A_COMMAND } else { status::FAILED });
    }
    let (words, verb) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return cli::refuse(&e),
    };
    let of_error = if verb.runs_a_command() { status::of_error_beside_a_command } else { status::of_error };
    match verb.carry_out() {
        Ok(status) => status.into(),
        Err(e) => match e.downcast_ref::<UsageError>() {
            Some(usage) if usage.fails() => {
                eprintln!("bifold: {usage}\n\n{}", cli::usage(&words));
                ExitCode::from(of_error(&e))
            }
            Some(usage) => cli::exit(&cli::refused(&words, usage)),
            None => {
                eprintln!("bifold: {}", format!("{e:#}").trim_end());
                ExitCode::from(of_error(&e))
            }
        },
    }
}
