// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guards KSM's settings: this process [holds](held) them, and they are restored when it ends.
//!
//! The guard restores settings, not pages. Pages that merged meanwhile stay merged if `run` was 0 or 1,
//! unless restoring `max_page_sharing` or `merge_across_nodes` requires unmerging.

use super::journal::{WHAT, names_and_values};
use super::restore::make;
use super::{Journal, Ksm, KsmError, Settings};
use crate::Host;
use crate::held::{self, Guardian, Held, Places, Stood};
use std::path::Path;

impl Places {
    /// This machine's lock and journal for KSM. Like KSM's settings, they do not survive a reboot.
    pub fn of_ksm() -> Places {
        Places { lock: "/run/lock/bifold-ksm.lock".into(), journal: "/run/bifold-ksm.journal".into() }
    }
}

/// KSM's settings, held by this process until the guard is dropped.
#[derive(Debug)]
pub struct KsmGuard {
    ksm: Ksm,
    found: Settings,
    held: Held,
}

impl KsmGuard {
    /// Takes KSM over and changes the settings in `wanted`. They stay until the guard is dropped or
    /// [`restore`](KsmGuard::restore)d, or its process ends in any way.
    ///
    /// A process that is killed by a signal drops nothing; the guardian then restores the settings. A program
    /// that continues after Ctrl-C has to catch the signal.
    ///
    /// # Errors
    /// If the host has no KSM, the user is not root, another guard holds KSM's settings, or the kernel
    /// refuses a setting. All changes are then undone.
    pub fn take(
        host: &Host,
        places: &Places,
        guardian: &Guardian,
        wanted: &Settings,
    ) -> Result<KsmGuard, KsmError> {
        let ksm = Ksm::of(host)?;
        ksm.may_write()?;
        let mut found = Settings::default();
        let held = Held::take(
            WHAT,
            places,
            (guardian, &[&host.sys]),
            |left| make(&ksm, &Journal::at(&places.journal, left)?.found),
            || {
                found = ksm.settings()?;
                Ok::<_, KsmError>(names_and_values(&found))
            },
        )?;
        let guard = KsmGuard { ksm, found, held };
        guard.set(wanted)?;
        Ok(guard)
    }

    /// The guarded KSM.
    pub fn ksm(&self) -> &Ksm {
        &self.ksm
    }

    /// The settings that the guard found and will restore.
    pub fn found(&self) -> &Settings {
        &self.found
    }

    /// The killed process whose settings the guard restored before it began, if there was one.
    pub fn recovered(&self) -> Option<u32> {
        self.held.recovered()
    }

    /// Changes settings. Settings that are not in `wanted` stay as they are. Changing `max_page_sharing` or
    /// `merge_across_nodes` unmerges all pages.
    ///
    /// # Errors
    /// If the kernel lacks or refuses a setting.
    pub fn set(&self, wanted: &Settings) -> Result<(), KsmError> {
        make(&self.ksm, wanted)
    }

    /// Restores the settings, as dropping does, and returns the error if that fails.
    ///
    /// # Errors
    /// If a setting cannot be restored: the guardian then tries once more, and the journal stays.
    pub fn restore(mut self) -> Result<(), KsmError> {
        self.end()
    }

    fn end(&mut self) -> Result<(), KsmError> {
        self.held.end(|| make(&self.ksm, &self.found))
    }
}

impl Drop for KsmGuard {
    fn drop(&mut self) {
        // If this fails, the guardian tries again and reports the error.
        let _ = self.end();
    }
}

/// Settings that a command of Bifold has changed, from its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The command's process, and the settings that it found.
    pub journal: Journal,
    /// Whether that process, or its guardian, still holds the settings and will restore them itself.
    pub held: bool,
}

/// Reads the journal of KSM's settings; `None` if there is no journal. Changes nothing, and needs no root.
///
/// # Errors
/// If the journal cannot be read or parsed.
pub fn left_behind(host: &Host, places: &Places) -> Result<Option<Left>, KsmError> {
    let Some((journal, held)) = held::left_behind(WHAT, places, &host.proc)? else { return Ok(None) };
    Ok(Some(Left { journal: Journal::at(&places.journal, &journal)?, held }))
}

/// Restores KSM's settings from a journal that was left behind, and removes the journal; `None` if there is
/// no journal.
///
/// # Errors
/// If a process holds KSM's settings now, the user is not root, or a setting cannot be restored.
pub fn restore_left_behind(host: &Host, places: &Places) -> Result<Option<Journal>, KsmError> {
    let ksm = Ksm::of(host)?;
    ksm.may_write()?;
    let left = held::restore_left_behind(WHAT, places, |left| {
        make(&ksm, &Journal::at(&places.journal, left)?.found)
    })?;
    left.map(|left| Journal::at(&places.journal, &left)).transpose()
}

/// Runs the guardian for KSM, see [`held::stand_guard`]. `sys` is where sysfs is mounted.
///
/// # Errors
/// If the settings cannot be restored; the journal then stays for the next guard.
pub fn stand_guard(sys: &Path, journal: &Path) -> Result<Stood, KsmError> {
    held::stand_guard(WHAT, journal, |left| {
        let ksm = Ksm::of(&Host { sys: sys.into(), ..Host::live() })?;
        make(&ksm, &Journal::at(journal, left)?.found)
    })
}
