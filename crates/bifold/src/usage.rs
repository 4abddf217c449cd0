// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Usage errors: words that the parser takes and that make no sense together.
//!
//! A verb returns a [`UsageError`] like any other error. `main` knows which verb ran, adds its usage
//! in clap's form, and ends with clap's exit status, 2.

use clap::error::ErrorKind;
use std::fmt;

/// An argument that cannot be used as it was given.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct UsageError {
    /// Kind of the error, as clap has it.
    pub kind: ErrorKind,
    /// The argument, as the user writes it: `--runs`, `CMD`.
    argument: String,
    /// What is wrong with it, and what to do.
    problem: String,
}

impl UsageError {
    /// The argument does not go together with others.
    pub fn conflict(argument: impl Into<String>, problem: impl Into<String>) -> UsageError {
        UsageError::new(ErrorKind::ArgumentConflict, argument, problem)
    }

    /// The argument has a value that it cannot have.
    pub fn value(argument: impl Into<String>, problem: impl Into<String>) -> UsageError {
        UsageError::new(ErrorKind::InvalidValue, argument, problem)
    }

    /// The argument is missing.
    pub fn missing(argument: impl Into<String>, problem: impl Into<String>) -> UsageError {
        UsageError::new(ErrorKind::MissingRequiredArgument, argument, problem)
    }

    fn new(kind: ErrorKind, argument: impl Into<String>, problem: impl Into<String>) -> UsageError {
        UsageError { kind, argument: argument.into(), problem: problem.into() }
    }
}

impl fmt::Display for UsageError {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}: {}", self.argument, self.problem)
    }
}

impl std::error::Error for UsageError {}
