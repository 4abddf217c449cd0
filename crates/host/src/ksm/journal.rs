// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Converts between KSM's settings and the [journal](crate::held::Journal) of held settings.

use super::{KsmError, Setting, Settings};
use crate::held::{self, HeldError, JournalError};
use std::path::Path;

/// KSM's word in the first line of a journal.
pub(super) const WHAT: &str = "ksm";

/// The settings that a [`KsmGuard`](super::KsmGuard) found.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Journal {
    /// Process id of the guard.
    pub pid: u32,
    /// The settings before the guard changed any.
    pub found: Settings,
}

impl Journal {
    /// The journal's text.
    pub fn text(&self) -> String {
        held::Journal { what: WHAT.into(), pid: self.pid, found: names_and_values(&self.found) }.text()
    }

    /// Parses a journal.
    ///
    /// # Errors
    /// If the text is not a journal of KSM's settings.
    pub fn parse(text: &str) -> Result<Journal, JournalError> {
        Journal::of(&held::Journal::parse(text, WHAT)?)
    }

    fn of(journal: &held::Journal) -> Result<Journal, JournalError> {
        let mut found = Settings::default();
        for (name, value) in &journal.found {
            let wrong = || JournalError::Line(format!("{name} {value}"));
            let setting = Setting::named(name).map_err(|_| wrong())?;
            found.put(setting, setting.parse(value).ok_or_else(wrong)?);
        }
        match found.get(Setting::Run) {
            Some(0..=2) => Ok(Journal { pid: journal.pid, found }),
            _ => Err(JournalError::NoRun),
        }
    }

    /// The journal that was read from `path`.
    pub(super) fn at(path: &Path, journal: &held::Journal) -> Result<Journal, KsmError> {
        let bad = |why: JournalError| HeldError::Journal {
            what: WHAT.into(),
            path: path.into(),
            why: why.to_string(),
        };
        Ok(Journal::of(journal).map_err(bad)?)
    }
}

/// Settings as a journal lists them.
pub(super) fn names_and_values(settings: &Settings) -> Vec<(String, String)> {
    settings.iter().map(|(setting, value)| (setting.name().into(), setting.text(value))).collect()
}
