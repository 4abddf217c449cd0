// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The one source of events that a command line names.

use super::args::ProgramArgs;
use super::guest::GuestArgs;
use crate::run::source::{EventSource, Guest, Recording, what_else};
use crate::usage::UsageError;
use anyhow::anyhow;
use bifold_model::Profile;
use bifold_report::shell_words;
use bifold_trace::file::{FileError, Reader};
use bifold_trace::generate::Generator;
use std::ffi::OsString;
use std::path::PathBuf;

/// The verb that needs a source of events.
pub enum Source {
    /// A verb of this name that reads recordings too, with the recording if one is named.
    OfReader(&'static str, Option<PathBuf>),
    /// `record`.
    OfRecord,
}

const ONE_SOURCE: &str =
    "is one source of events too many: give a command after `--`, or a recording, or --generate";

/// Opens the one source of events that the arguments name.
pub fn source(
    verb: Source,
    program: ProgramArgs,
    guest: GuestArgs,
    profile: &Profile,
    seed: u64,
) -> anyhow::Result<Box<dyn EventSource>> {
    let none = match verb {
        Source::OfReader(verb, Some(path)) => {
            if program.generate.is_some() || !program.command.is_empty() {
                return Err(UsageError::conflict("FILE", ONE_SOURCE).into());
            }
            no_guest(&guest, "a recording")?;
            return open_recording(verb, path);
        }
        Source::OfReader(_, None) => "give a command after `--`, a recording, or --generate",
        Source::OfRecord => "give a command after `--`, or --generate",
    };
    match (program.generate, program.command.is_empty()) {
        (Some(_), false) => Err(UsageError::conflict("--generate", ONE_SOURCE).into()),
        (None, true) => Err(UsageError::missing("CMD", none).into()),
        (None, false) => Ok(Box::new(Guest(Box::new(guest.spec(program.command, profile, seed)?)))),
        (Some(spec), true) => {
            no_guest(&guest, "a generator")?;
            match Generator::parse(&spec) {
                Ok(generator) => Ok(Box::new(generator)),
                Err(e) => Err(UsageError::value("--generate", e.to_string()).into()),
            }
        }
    }
}

/// Refuses options about a guest for a source that starts none. Options that are ignored mislead.
fn no_guest(args: &GuestArgs, source: &str) -> Result<(), UsageError> {
    match args.first_given() {
        Some(option) => {
            Err(UsageError::conflict(option, format!("is about a guest, and {source} starts no guest")))
        }
        None => Ok(()),
    }
}

fn open_recording(verb: &str, path: PathBuf) -> anyhow::Result<Box<dyn EventSource>> {
    match Reader::open(&path) {
        Ok(reader) => Ok(Box::new(Recording { reader: Box::new(reader), path })),
        Err(e @ (FileError::Io { .. } | FileError::NotARecording { .. })) => {
            if let Some(other) = what_else(&path) {
                return Err(anyhow!(other));
            }
            // Most often, FILE is a command without `--` rather than a damaged recording.
            let e = anyhow::Error::from(e);
            Err(anyhow!("{e:#}\n{}", command_tip(verb, &[path.into()])))
        }
        Err(e) => Err(e.into()),
    }
}

/// Tells how to write a command that was not taken for one.
pub fn command_tip(verb: &str, words: &[OsString]) -> String {
    let words: Vec<_> = words.iter().map(|w| w.to_string_lossy()).collect();
    format!("to run a command, put it after `--`: bifold {verb} -- {}", shell_words(&words))
}
