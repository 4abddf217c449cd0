// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command: `bifold compare`, `record`, `diff`, `policy`, `mode`, `share`, `doctor`.
//!
//! What a user writes ([`cli`]) becomes a plan ([`compare::plan`]), which is carried
//! out ([`run`]) with events from a [`run::source`] going into a [`run::feed`]. Data goes
//! to stdout; notes, progress and the command's own output go to stderr; errors
//! are told once, as a chain, and decide the exit status ([`status`]).
#![forbid(unsafe_code)]

mod cli;
mod compare;
mod console;
mod diff;
mod doctor;
#[cfg(test)]
mod fake_host;
mod guardian;
mod manual;
mod mode;
mod policy;
mod run;
mod share;
mod status;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    if let Some(code) = guardian::if_asked(std::env::args_os().skip(1)) {
        return code;
    }
    console::terminal::look();
    let verb = cli::Cli::try_parse().unwrap_or_else(|e| refuse(&e)).verb;
    let of_error = if verb.runs_a_command() { status::of_error_beside_a_command } else { status::of_error };
    let result = match verb {
        cli::Verb::Compare(args) => compare::plan::compare(*args).and_then(run::run),
        cli::Verb::Record(args) => compare::plan::record(*args).and_then(run::run),
        cli::Verb::Diff(args) => diff::run(*args),
        cli::Verb::Policy { verb } => policy::run(verb),
        cli::Verb::Share { verb } => share::run(verb),
        cli::Verb::Mode(args) => mode::run(&args),
        cli::Verb::Doctor(args) => doctor::run(&args),
        cli::Verb::Man { dir } => manual::man(&dir).map(|()| status::Status::Done),
        cli::Verb::Completions { shell } => {
            run::print(&manual::completions(shell)).map(|()| status::Status::Done)
        }
    };
    match result {
        Ok(status) => status.into(),
        Err(e) => {
            eprintln!("bifold: {}", format!("{e:#}").trim_end());
            ExitCode::from(of_error(&e))
        }
    }
}

/// Ends as clap does. `bifold compare gcc -O2` is what hands write first: the
/// option that clap does not know is most likely the command's.
fn refuse(e: &clap::Error) -> ! {
    let words: Vec<_> = std::env::args_os().skip(1).collect();
    let verb = words.first().and_then(|v| v.to_str());
    let no_dashes = words.iter().all(|w| w != "--");
    if let (Some(verb @ ("compare" | "record")), true, clap::error::ErrorKind::UnknownArgument) =
        (verb, no_dashes, e.kind())
    {
        let command = words.iter().skip(1).position(|w| !w.as_encoded_bytes().starts_with(b"-"));
        // Only where nothing of ours stands before the command can it be told apart.
        if command == Some(0) {
            let _ = e.print();
            eprintln!("\n{}", compare::plan::command_tip(verb, &words[1..]));
            std::process::exit(e.exit_code());
        }
    }
    e.exit()
}
