// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The modes that VMs had before the daemon switched them, in a journal: whoever starts next knows what to
//! give back.

use crate::error::DaemonError;
use bifold_host::Mode;
use bifold_host::held::{self, HeldError, Journal, Places};
use bifold_host::{Host, VmId};
use std::collections::BTreeMap;
use std::fs::File;
use std::path::Path;

/// The subsystem's word in journal and errors.
const WHAT: &str = "modes";

/// A VM's own mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Home {
    /// The mode in which the daemon found the VM.
    pub mode: Mode,
    /// When the VM's process started, in ticks since boot: ids are used again. 0 if procfs does not tell.
    pub started: u64,
}

/// The VMs whose modes are the daemon's doing. While this exists, no other daemon of the folder runs.
pub struct Homes {
    places: Places,
    homes: BTreeMap<VmId, Home>,
    _lock: File,
}

/// Lock and journal in the daemon's folder. The folder is to be one that does not survive a reboot, like the
/// VMs.
fn places(folder: &Path) -> Places {
    Places { lock: folder.join("lock"), journal: folder.join("modes") }
}

impl Homes {
    /// Takes the folder's lock, and reads what an earlier daemon left.
    ///
    /// # Errors
    /// If another daemon runs, or the journal cannot be read.
    pub fn take(folder: &Path) -> Result<Homes, DaemonError> {
        let places = places(folder);
        let lock = held::lock(WHAT, &places).map_err(|e| match e {
            HeldError::Busy { path, .. } => DaemonError::Running { lock: path },
            e => e.into(),
        })?;
        let journal = Journal::read(&places.journal, WHAT)?;
        let entries = journal.into_iter().flat_map(|j| j.found);
        let homes = entries.map(|(id, home)| {
            parse(&id, &home).ok_or_else(|| HeldError::Journal {
                what: WHAT.into(),
                path: places.journal.clone(),
                why: format!("`{} {}` is no VM with a mode", id.escape_debug(), home.escape_debug()),
            })
        });
        let homes = homes.collect::<Result<_, _>>()?;
        Ok(Homes { places, homes, _lock: lock })
    }

    /// The VM's own mode, if the daemon has switched the VM.
    pub fn get(&self, id: VmId) -> Option<Home> {
        self.homes.get(&id).copied()
    }

    /// The VMs whose modes are the daemon's doing.
    pub fn vms(&self) -> Vec<VmId> {
        self.homes.keys().copied().collect()
    }

    /// Writes down a VM's own mode. Only then may the VM be switched.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn keep(&mut self, id: VmId, home: Home) -> Result<(), HeldError> {
        if self.homes.insert(id, home) == Some(home) {
            return Ok(());
        }
        self.write().inspect_err(|_| {
            self.homes.remove(&id);
        })
    }

    /// Forgets a VM: it is in its own mode, or has ended.
    ///
    /// # Errors
    /// If the journal cannot be written. The next start then finds the VM in it, and nothing to do.
    pub fn forget(&mut self, id: VmId) -> Result<(), HeldError> {
        match self.homes.remove(&id) {
            Some(_) => self.write(),
            None => Ok(()),
        }
    }

    /// Forgets VMs that have ended, or whose identifiers are another VM's by now.
    ///
    /// # Errors
    /// If the journal cannot be written.
    pub fn forget_ended(&mut self, host: &Host) -> Result<(), HeldError> {
        let before = self.homes.len();
        self.homes.retain(|id, home| !has_ended(host, *id, home.started));
        if self.homes.len() < before { self.write() } else { Ok(()) }
    }

    fn write(&self) -> Result<(), HeldError> {
        if self.homes.is_empty() {
            return Journal::remove(&self.places.journal);
        }
        let line =
            |(id, home): (&VmId, &Home)| (id.to_string(), format!("{} {}", home.mode.name(), home.started));
        let found = self.homes.iter().map(line).collect();
        Journal { what: WHAT.into(), pid: std::process::id(), found }.write_private(&self.places.journal)
    }
}

/// Whether a VM whose process started at this time has surely ended. A host that cannot be read for a moment,
/// as without a free file descriptor, tells nothing: the journal keeps the VM.
pub(crate) fn has_ended(host: &Host, id: VmId, started: u64) -> bool {
    let Ok(present) = host.vm_ids() else { return false };
    let another =
        || host.started(host.process(id.thread).pid).is_some_and(|now| started != 0 && now != started);
    !present.contains(&id) || another()
}

fn parse(id: &str, home: &str) -> Option<(VmId, Home)> {
    let (mode, started) = home.split_once(' ')?;
    let mode = Mode::from_name(mode)?;
    Some((VmId::parse(id)?, Home { mode, started: started.parse().ok()? }))
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::os::unix::fs::PermissionsExt as _;

    const VM: VmId = VmId { thread: 100, fd: 7 };

    #[test]
    fn what_is_kept_is_found_by_the_next_daemon_and_two_cannot_run() {
        let dir = tempfile::tempdir().unwrap();
        let home = Home { mode: Mode::Nested, started: 4711 };
        let mut homes = Homes::take(dir.path()).unwrap();
        homes.keep(VM, home).unwrap();
        let mode = dir.path().join("modes").metadata().unwrap().permissions().mode();
        assert_eq!(mode & 0o777, 0o600);
        let error = Homes::take(dir.path()).err().unwrap().to_string();
        assert!(error.contains("a daemon runs already"), "{error}");
        drop(homes);
        let mut homes = Homes::take(dir.path()).unwrap();
        assert_eq!((homes.get(VM), homes.vms()), (Some(home), vec![VM]));
        homes.forget(VM).unwrap();
        assert!(!dir.path().join("modes").exists());
    }

    #[test]
    fn a_journal_that_cannot_be_read_stops_the_daemon() {
        let dir = tempfile::tempdir().unwrap();
        for line in ["100-7 neste 1", "100 nested 1", "100-7 nested x", "x"] {
            std::fs::write(dir.path().join("modes"), format!("bifold-modes 1\npid 1\n{line}\nend\n"))
                .unwrap();
            assert!(Homes::take(dir.path()).is_err(), "{line}");
        }
    }

    #[test]
    fn a_mode_that_cannot_be_written_down_is_not_kept() {
        let dir = tempfile::tempdir().unwrap();
        let mut homes = Homes::take(dir.path()).unwrap();
        std::fs::create_dir(dir.path().join("modes.new")).unwrap();
        homes.keep(VM, Home { mode: Mode::Nested, started: 1 }).unwrap_err();
        assert_eq!(homes.get(VM), None);
    }
}
