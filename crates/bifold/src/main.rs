// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The command: `bifold compare`, `record`, `doctor`.
//!
//! What a user writes ([`cli`]) becomes a plan ([`resolve`]), which is carried
//! out ([`run`]) with events from a [`source`] going into a [`feed`]. Data goes
//! to stdout; notes, progress and the command's own output go to stderr; errors
//! are told once, as a chain, and decide the exit status ([`status`]).
#![forbid(unsafe_code)]

mod cli;
mod doctor;
mod feed;
mod pages;
mod resolve;
mod run;
mod source;
mod status;
mod stub;

use clap::Parser as _;
use std::process::ExitCode;

fn main() -> ExitCode {
    let result = match cli::Cli::parse().verb {
        cli::Verb::Compare(args) => resolve::compare(*args).and_then(run::run),
        cli::Verb::Record(args) => resolve::record(*args).and_then(run::run),
        cli::Verb::Doctor(args) => doctor::run(args.format),
        cli::Verb::Man { dir } => pages::man(&dir).map(|()| status::Status::Done),
        cli::Verb::Completions { shell } => {
            run::print(&pages::completions(shell)).map(|()| status::Status::Done)
        }
    };
    match result {
        Ok(status) => status.into(),
        Err(e) => {
            eprintln!("bifold: {e:#}");
            ExitCode::from(status::of_error(&e))
        }
    }
}
