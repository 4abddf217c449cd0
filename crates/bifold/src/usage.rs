// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Usage errors: words that the parser takes and that make no sense together.
//!
//! A verb returns a [`UsageError`] like any other error. `main` knows which verb ran, adds its usage
//! in clap's form, and ends with clap's exit status, 2.

use clap::error::ErrorKind;
use std::fmt;

/// An argument that cannot be used as it was given.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[error("{text}")]
pub struct UsageError {
    /// Kind of the error, as clap has it.
    pub kind: ErrorKind,
    /// Names the argument, says what is wrong with it, and what to do.
    text: String,
}

impl UsageError {
    /// The argument does not go together with others. `problem` is a sentence about the argument without
    /// its subject: `needs a command`.
    pub fn conflict(argument: impl fmt::Display, problem: impl fmt::Display) -> UsageError {
        UsageError { kind: ErrorKind::ArgumentConflict, text: format!("{argument} {problem}") }
    }

    /// The argument has a value that it cannot have.
    pub fn value(argument: impl fmt::Display, problem: impl fmt::Display) -> UsageError {
        UsageError { kind: ErrorKind::InvalidValue, text: format!("{argument}: {problem}") }
    }

    /// The argument is missing; `remedy` says what to give.
    pub fn missing(argument: impl fmt::Display, remedy: impl fmt::Display) -> UsageError {
        UsageError {
            kind: ErrorKind::MissingRequiredArgument,
            text: format!("{argument} is missing: {remedy}"),
        }
    }
}
