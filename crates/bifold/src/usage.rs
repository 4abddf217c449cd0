// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Usage errors: arguments that the parser takes and the verb refuses.
//!
//! A verb returns a [`UsageError`] like any other error. `main` knows which verb ran, prints the error with
//! the verb's usage, and ends with clap's exit status, 2. A [failing](UsageError::failing) usage error ends
//! with the status of a failure.

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
    /// Whether the exit status is that of a failure.
    fails: bool,
}

impl UsageError {
    /// The argument does not go together with others. `problem` is a sentence about the argument without
    /// its subject: `needs a command`.
    pub fn conflict(argument: impl fmt::Display, problem: impl fmt::Display) -> UsageError {
        UsageError::new(ErrorKind::ArgumentConflict, format!("{argument} {problem}"))
    }

    /// Refuses an argument that is `given` and does not go together with others.
    pub fn conflict_if(given: bool, argument: &str, problem: impl fmt::Display) -> Result<(), UsageError> {
        if given { Err(UsageError::conflict(argument, problem)) } else { Ok(()) }
    }

    /// The argument has a value that it cannot have.
    pub fn value(argument: impl fmt::Display, problem: impl fmt::Display) -> UsageError {
        UsageError::new(ErrorKind::InvalidValue, format!("{argument}: {problem}"))
    }

    /// The argument is missing; `remedy` says what to give.
    pub fn missing(argument: impl fmt::Display, remedy: impl fmt::Display) -> UsageError {
        UsageError::new(ErrorKind::MissingRequiredArgument, format!("{argument} is missing: {remedy}"))
    }

    /// Gives the error the exit status of a failure, 1 (125 beside a command). Version 0.1 ended so where
    /// only the verb can judge a value: names of profiles and policies, parameters, settings of KSM, parts,
    /// cases.
    pub fn failing(self) -> UsageError {
        UsageError { fails: true, ..self }
    }

    /// Whether the exit status is that of a failure.
    pub fn fails(&self) -> bool {
        self.fails
    }

    fn new(kind: ErrorKind, text: String) -> UsageError {
        UsageError { kind, text, fails: false }
    }
}

/// Names the `--set` that is to blame if all of them together do not work: the one without which the others
/// work, or `--set` alone if there is no such one.
pub fn to_blame(settings: &[String], work: impl Fn(&[String]) -> bool) -> String {
    let blamed = (0..settings.len()).find(|&i| work(&[&settings[..i], &settings[i + 1..]].concat()));
    blamed.map_or_else(|| "--set".into(), |i| format!("--set {}", settings[i]))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_setting_without_which_the_others_work_is_to_blame() {
        let words = |w: &str| w.split_whitespace().map(String::from).collect::<Vec<_>>();
        let no_b = |s: &[String]| !s.contains(&"b".to_string());
        assert_eq!(to_blame(&words("a b c"), no_b), "--set b");
        assert_eq!(to_blame(&words("b"), no_b), "--set b");
        assert_eq!(to_blame(&words("a b b"), no_b), "--set");
    }
}
