// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: KSM's settings, [`held`] by this process and restored when it ends.
//!
//! What comes back are the settings. Pages that merged meanwhile stay merged where `run` was 0 or 1, unless
//! a setting that is restored needs them unmerged (`max_page_sharing`, `merge_across_nodes`).

use super::journal::{WHAT, names_and_values};
use super::restore::make;
use super::{Journal, Ksm, KsmError, Settings};
use crate::Host;
use crate::held::{self, Guardian, Held, Places, Stood};
use std::path::Path;

impl Places {
    /// This machine's places for KSM: they do not outlive a boot, as KSM's settings do not.
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
    /// Takes KSM over and changes what `wanted` names. Settings stay so until the guard is dropped,
    /// [`restore`](KsmGuard::restore)d, or its process ends in whatever way.
    ///
    /// A process that a signal ends does not drop anything: the guardian restores then. A program that
    /// wants to go on after Ctrl-C catches the signal, as for any other clearing up.
    ///
    /// # Errors
    /// If the host has no KSM, the user is not root, another guard has it, or the kernel refuses a
    /// setting; all that was changed is then restored.
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

    /// The KSM that it guards.
    pub fn ksm(&self) -> &Ksm {
        &self.ksm
    }

    /// The settings that it found and will restore.
    pub fn found(&self) -> &Settings {
        &self.found
    }

    /// The process whose settings it found changed and restored before it began.
    pub fn recovered(&self) -> Option<u32> {
        self.held.recovered()
    }

    /// Changes settings; those that are not named stay as they are. Changing `max_page_sharing` or
    /// `merge_across_nodes` unmerges all pages.
    ///
    /// # Errors
    /// If the kernel lacks or refuses one.
    pub fn set(&self, wanted: &Settings) -> Result<(), KsmError> {
        make(&self.ksm, wanted)
    }

    /// Restores the settings, as dropping does, and says what went wrong.
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
        // What fails here the guardian tries again, and it says so.
        let _ = self.end();
    }
}

/// Settings that a command of Bifold has changed, by the journal that lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The command's process, and the settings that it found.
    pub journal: Journal,
    /// Whether that process, or its guardian, still holds the settings and will restore them itself.
    pub held: bool,
}

/// KSM's settings that a process has changed, by its journal; `None` if there is no journal. Changes
/// nothing, and needs no root.
///
/// # Errors
/// If the journal cannot be read or is none.
pub fn left_behind(host: &Host, places: &Places) -> Result<Option<Left>, KsmError> {
    let Some((journal, held)) = held::left_behind(WHAT, places, &host.proc)? else { return Ok(None) };
    Ok(Some(Left { journal: Journal::at(&places.journal, &journal)?, held }))
}

/// Restores KSM's settings that a process left changed, and removes its journal; `None` if there is none.
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

/// The guardian's whole life for KSM: see [`held::stand_guard`]. `sys` is where sysfs is mounted.
///
/// # Errors
/// If the settings cannot be restored; the journal then stays for the next guard.
pub fn stand_guard(sys: &Path, journal: &Path) -> Result<Stood, KsmError> {
    held::stand_guard(WHAT, journal, |left| {
        let ksm = Ksm::of(&Host { sys: sys.into(), ..Host::live() })?;
        make(&ksm, &Journal::at(journal, left)?.found)
    })
}
