// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command `bifold`.
//!
//! A verb is a line of a table, and a folder or file with the verb's options, their help, and its work. The
//! verbs of every build are about one program, and have their table here. The others lie in [`full`], with a
//! table of their own. Verbs use [`run`], one run of the model. Verbs and [`run`] use modules that know no
//! verb: [`words`] (values that several verbs take), [`console`] (stdout, stderr and files), [`usage`] (usage
//! errors), [`status`] (the exit status).
//!
//! Data goes to stdout. Notes, progress and the output of a command in a guest go to stderr. An error is
//! printed once, with its causes, and decides the exit status.
#![deny(unsafe_code)]
// What all verbs share has parts that `full` alone uses.
#![cfg_attr(not(feature = "full"), allow(dead_code, unused_imports))]

mod cache;
#[macro_use]
mod cli;
mod compact;
mod compare;
mod console;
mod diff;
mod doctor;
#[cfg_attr(not(feature = "full"), path = "left_out.rs")]
mod full;
mod import;
mod manual;
mod profile;
mod run;
mod schema;
mod status;
mod usage;
mod words;

use doctor::needs::{NOTHING, UNLISTED};
use std::process::ExitCode;
use usage::UsageError;

// The verbs of every build, by their groups in help: a verb's arguments, what carries the verb out, what it
// needs of the machine, and whether it runs a command, if it can.
verbs! {
    "What a program costs":
    compare(compare::CompareArgs) => compare::compare, compare::NEEDS, |args| args.common.runs_a_command();
    record(compare::RecordArgs) => compare::record, compare::RECORD_NEEDS, |args| args.common.runs_a_command();
    import(import::ImportArgs) => import::run, NOTHING;
    profile(profile::ProfileArgs) => profile::run, NOTHING;

    "What a change costs":
    diff(diff::DiffArgs) => diff::run, NOTHING;

    "Files and this installation":
    compact(compact::CompactArgs) => compact::run, NOTHING;
    cache(cache::CacheArgs) => cache::run, NOTHING;
    schema(schema::SchemaArgs) => |args| schema::run(&args), UNLISTED;
    doctor(doctor::DoctorArgs) => |args| doctor::run(&args), UNLISTED;
    man(manual::ManArgs) => |args| manual::man(&args), UNLISTED;
    completions(manual::CompletionsArgs) => |args| manual::completions(&args), UNLISTED;
}

fn main() -> ExitCode {
    bifold_base::version::built_from(env!("BIFOLD_REVISION"));
    if let Some(code) = full::guard_if_asked(std::env::args_os().skip(1)) {
        return code;
    }
    console::detect_terminal();
    let parsed = cli::parse();
    if console::stdout_was_closed() {
        eprintln!("bifold: stdout is closed: open it, or send it to /dev/null (`> /dev/null`)");
        let beside = parsed.is_ok_and(|(_, verb)| verb.runs_a_command);
        return ExitCode::from(if beside { status::FAILED_BESIDE_A_COMMAND } else { status::FAILED });
    }
    let (words, verb) = match parsed {
        Ok(parsed) => parsed,
        Err(e) => return cli::refuse(&e),
    };
    let of_error = if verb.runs_a_command { status::of_error_beside_a_command } else { status::of_error };
    match (verb.carry_out)() {
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
