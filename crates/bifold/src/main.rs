// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `bifold`.
//!
//! Each verb is a folder or file with its options, their help, and its work: `compare` (with `record`),
//! `diff`, `import`, `compact`, `ci`, `tune`, `sweep`, `export`, `policy`, `profile`, `stat`, `top`, `mode`,
//! `daemon`, `ctl`, `share`, `place`, `noise`, `reclaim`, `cache`, `doctor`, `schema`, `manual`. Verbs use [`run`], one
//! run of the model. Verbs and [`run`] use modules that know no verb: [`words`] (values that several verbs
//! take), [`vms`] (the VMs of this host), `child` (`compare` as a process of its own), [`console`] (stdout,
//! stderr and files), [`usage`] (usage errors), [`status`] (the exit status).
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

use clap::CommandFactory as _;
use cli::{Cli, Verb};
use status::Status;
use std::process::ExitCode;
use usage::UsageError;

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
        Err(e) => return refuse(&e),
    };
    let of_error = if verb.runs_a_command() { status::of_error_beside_a_command } else { status::of_error };
    match carry_out(verb) {
        Ok(status) => status.into(),
        Err(e) => match e.downcast_ref::<UsageError>() {
            Some(usage) if usage.fails() => {
                eprintln!("bifold: {usage}\n\n{}", cli::usage(&words));
                ExitCode::from(of_error(&e))
            }
            Some(usage) => exit(&cli::refused(&words, usage)),
            None => {
                eprintln!("bifold: {}", format!("{e:#}").trim_end());
                ExitCode::from(of_error(&e))
            }
        },
    }
}

fn carry_out(verb: Verb) -> anyhow::Result<Status> {
    match verb {
        Verb::Compare(args) => compare::compare(*args),
        Verb::Record(args) => compare::record(*args),
        Verb::Diff(args) => diff::run(*args),
        Verb::Import(args) => import::run(args),
        Verb::Compact(args) => compact::run(args),
        #[cfg(feature = "host")]
        Verb::Ci(args) => ci::run(args),
        #[cfg(feature = "host")]
        Verb::Tune(args) => tune::run(*args),
        #[cfg(feature = "host")]
        Verb::Sweep(args) => sweep::run(args),
        #[cfg(feature = "host")]
        Verb::Export(args) => export::run(args),
        #[cfg(feature = "host")]
        Verb::Policy(args) => policy::run(args),
        Verb::Profile(args) => profile::run(args),
        #[cfg(feature = "host")]
        Verb::Share(args) => share::run(args),
        #[cfg(feature = "host")]
        Verb::Place(args) => place::run(args),
        #[cfg(feature = "noise")]
        Verb::Noise(args) => noise::run(args),
        #[cfg(feature = "host")]
        Verb::Reclaim(args) => reclaim::run(args),
        Verb::Cache(args) => cache::run(args),
        #[cfg(feature = "host")]
        Verb::Stat(args) => stat::run(&args),
        #[cfg(feature = "host")]
        Verb::Top(args) => top::run(&args),
        #[cfg(feature = "host")]
        Verb::Mode(args) => mode::run(&args),
        #[cfg(feature = "host")]
        Verb::Daemon(args) => daemon::run(&args),
        #[cfg(feature = "host")]
        Verb::Ctl(args) => ctl::run(&args),
        Verb::Doctor(args) => doctor::run(&args),
        Verb::Schema(args) => schema::run(&args),
        Verb::Man { dir } => manual::man(Cli::command(), &dir).map(|()| Status::Done),
        Verb::Completions { shell } => {
            console::print(&manual::completions(Cli::command(), shell)).map(|()| Status::Done)
        }
    }
}

/// Prints an error or help as clap does, and returns clap's exit status.
fn exit(e: &clap::Error) -> ExitCode {
    let _ = e.print();
    ExitCode::from(e.exit_code() as u8)
}

/// Prints the parser's error. Users often write `bifold compare gcc -O2` first: an option that clap does not
/// know is then most likely the command's, and a tip says so.
fn refuse(e: &clap::Error) -> ExitCode {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let verb = words.first().and_then(|v| v.to_str());
    let no_dashes = words.iter().all(|w| w != "--");
    if let (Some(verb @ ("compare" | "record")), true, clap::error::ErrorKind::UnknownArgument) =
        (verb, no_dashes, e.kind())
    {
        let command = words.iter().skip(1).position(|w| !w.as_encoded_bytes().starts_with(b"-"));
        // Behind an option of Bifold, a word may be that option's value instead of the command.
        if command == Some(0) {
            let code = exit(e);
            eprintln!("\n{}", compare::command_tip(verb, &words[1..]));
            return code;
        }
    }
    exit(e)
}
