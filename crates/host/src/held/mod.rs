// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Holds kernel settings for a process and restores them however the process ends.
//!
//! A holder takes settings in four steps:
//!
//! 1. It takes the lock, so that there is one holder at a time.
//! 2. If an earlier holder left a journal, it restores the settings that the journal lists.
//! 3. It writes the present settings to a [`Journal`] and starts the [`Guardian`], a process that keeps the
//!    lock too.
//! 4. Only then may the caller change a setting.
//!
//! The end goes backwards: settings, journal, guardian, lock. If a kill skips a step, the guardian or the
//! next holder does it.
//!
//! The caller supplies the function that writes settings back, because their order depends on the kernel
//! interface. [`KsmGuard`](crate::ksm::KsmGuard) holds KSM's settings so. A daemon that is started again by
//! itself needs no guardian: it takes [`lock`] and [`Journal`] alone.

mod error;
mod guardian;
mod journal;

pub use error::HeldError;
pub use guardian::{Guardian, Stood, stand_guard};
pub use journal::{Journal, JournalError};

use guardian::Standing;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::{MetadataExt as _, OpenOptionsExt as _};
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where a holder keeps its lock and its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The lock's file. It stays for the next holder, unless [`remove_unused_lock`] removes it.
    pub lock: PathBuf,
    /// The journal, which exists while settings are held.
    pub journal: PathBuf,
}

/// Settings that this process holds. If it is dropped without [`end`](Held::end), the guardian restores the
/// settings, and the drop waits for that for some seconds.
#[derive(Debug)]
pub struct Held {
    places: Places,
    recovered: Option<u32>,
    guardian: Option<Standing>,
    // The last field, so that the lock is released last.
    _lock: File,
}

/// How long to wait for the lock. A guardian that is restoring soon releases it.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a busy lock is tried again.
const AGAIN: Duration = Duration::from_millis(50);

impl Held {
    /// Steps 1 to 3 of the module's list. `what` names the settings in the journal's first line and in
    /// errors; `restore` writes back what an earlier holder's journal lists; `find` reads the settings
    /// as they are. The guardian gets `words` and the journal's path as its last arguments.
    ///
    /// # Errors
    /// If another process holds the settings, the settings of an old journal cannot be restored, or the
    /// guardian does not start. No setting is changed then.
    pub fn take<E: From<HeldError>>(
        what: &'static str,
        places: &Places,
        (guardian, words): (&Guardian, &[&Path]),
        restore: impl FnOnce(&Journal) -> Result<(), E>,
        find: impl FnOnce() -> Result<Vec<(String, String)>, E>,
    ) -> Result<Held, E> {
        let mut recovered = None;
        let mut held = Held::adopt(what, places, (guardian, words), |left| {
            if let Some(left) = left {
                restore(left)?;
                Journal::remove(&places.journal)?;
                recovered = Some(left.pid);
            }
            find()
        })?;
        held.recovered = recovered;
        Ok(held)
    }

    /// As [`take`](Held::take), but the caller decides what becomes of an earlier holder's journal: `begin`
    /// gets it and returns what the new one has, which replaces the old one in one step. If `begin` fails,
    /// the old journal stays.
    ///
    /// # Errors
    /// If another process holds the settings, `begin` fails, or the guardian does not start.
    pub fn adopt<E: From<HeldError>>(
        what: &'static str,
        places: &Places,
        (guardian, words): (&Guardian, &[&Path]),
        begin: impl FnOnce(Option<&Journal>) -> Result<Vec<(String, String)>, E>,
    ) -> Result<Held, E> {
        let lock = lock(what, places)?;
        let left = Journal::read(&places.journal, what)?;
        let found = begin(left.as_ref())?;
        // Not if `begin` has restored what it lists, and removed it.
        let left = left.filter(|_| places.journal.exists());
        let journal = Journal { what: what.into(), pid: std::process::id(), found };
        journal.write(&places.journal)?;
        match guardian.start(words, &places.journal, &lock) {
            Ok(standing) => {
                Ok(Held { places: places.clone(), recovered: None, guardian: Some(standing), _lock: lock })
            }
            Err(e) => {
                match left {
                    Some(left) => left.write(&places.journal)?,
                    None => Journal::remove(&places.journal)?,
                }
                Err(e.into())
            }
        }
    }

    /// Writes down further values, before they change. The journal then has these only.
    ///
    /// # Errors
    /// If the journal cannot be written, as on a full disk.
    pub fn note(&self, what: &str, found: Vec<(String, String)>) -> Result<(), HeldError> {
        Journal { what: what.into(), pid: std::process::id(), found }.write(&self.places.journal)
    }

    /// Makes sure that the guardian still runs, and has it read the journal again: what it restores if the
    /// journal is removed meanwhile. After the first call, the guardian restores the settings if there is no
    /// other one for 15 s.
    ///
    /// # Errors
    /// If it has ended or restores the settings: they should be restored then, and not be changed any more.
    pub fn beat(&mut self) -> Result<(), HeldError> {
        self.guardian.as_mut().map_or(Ok(()), Standing::beat)
    }

    /// Ends the guardian without restoring: the settings stay changed, and the journal stays for
    /// [`restore_left_behind`].
    ///
    /// # Errors
    /// If the guardian has ended or restores the settings: they should be restored then.
    pub fn keep(&mut self) -> Result<(), HeldError> {
        let Some(guardian) = &mut self.guardian else { return Ok(()) };
        guardian.excuse()?;
        self.finish();
        Ok(())
    }

    /// Ends the guardian, which has nothing to restore any more.
    fn finish(&mut self) {
        if let Some(guardian) = self.guardian.take() {
            guardian.finish();
        }
    }

    /// The earlier holder whose settings [`take`](Held::take) restored, if there was one.
    pub fn recovered(&self) -> Option<u32> {
        self.recovered
    }

    /// Restores the settings by `restore`, removes the journal and ends the guardian. A second call does
    /// nothing.
    ///
    /// # Errors
    /// If `restore` fails: the journal stays, and the guardian tries once more.
    pub fn end<E: From<HeldError>>(&mut self, restore: impl FnOnce() -> Result<(), E>) -> Result<(), E> {
        let Some(mut guardian) = self.guardian.take() else { return Ok(()) };
        let restored = restore().and_then(|()| Ok(Journal::remove(&self.places.journal)?));
        if restored.is_ok() {
            // If this fails, it restores what is restored.
            let _ = guardian.excuse();
            guardian.finish();
        } else {
            guardian.dismiss();
        }
        restored
    }

    /// As [`end`](Held::end), but if `restore` fails, this does not wait until the guardian, which tries on,
    /// has succeeded. `restore` gets a function that sends a sign of life, see [`beat`](Held::beat).
    ///
    /// # Errors
    /// If `restore` fails.
    pub fn end_or_leave<E: From<HeldError>>(
        &mut self,
        restore: impl FnOnce(&mut dyn FnMut()) -> Result<(), E>,
    ) -> Result<(), E> {
        let Some(mut guardian) = self.guardian.take() else { return Ok(()) };
        // A guardian that restores too does no harm.
        let restored = restore(&mut || drop(guardian.beat()));
        let restored = restored.and_then(|()| Ok(Journal::remove(&self.places.journal)?));
        match restored {
            Ok(()) => {
                let _ = guardian.excuse();
                guardian.finish();
            }
            Err(_) => guardian.leave(),
        }
        restored
    }
}

/// The journal, and whether its process or the process's guardian still holds the settings and will restore
/// them. `None` if there is no journal. Changes nothing, and needs no root.
///
/// # Errors
/// If the journal cannot be read or parsed.
pub fn left_behind(what: &str, places: &Places, proc: &Path) -> Result<Option<(Journal, bool)>, HeldError> {
    let Some(journal) = Journal::read(&places.journal, what)? else { return Ok(None) };
    let held = match File::open(&places.lock) {
        // The shared lock is held for a moment only; a holder that begins just now waits longer.
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
        // Only root may open the lock. For others, the process's existence is the best evidence.
        Err(_) => proc.join(journal.pid.to_string()).is_dir(),
    };
    Ok(Some((journal, held)))
}

/// Restores the settings of a journal that was left behind, by `restore`, and removes the journal. `None` if
/// there is no journal.
///
/// # Errors
/// If a process holds the settings now, or `restore` fails.
pub fn restore_left_behind<E: From<HeldError>>(
    what: &'static str,
    places: &Places,
    restore: impl FnOnce(&Journal) -> Result<(), E>,
) -> Result<Option<Journal>, E> {
    let _lock = lock(what, places)?;
    restore_from(what, places, restore)
}

/// As [`restore_left_behind`], with the lock held.
fn restore_from<E: From<HeldError>>(
    what: &str,
    places: &Places,
    restore: impl FnOnce(&Journal) -> Result<(), E>,
) -> Result<Option<Journal>, E> {
    let Some(left) = Journal::read(&places.journal, what)? else { return Ok(None) };
    restore(&left)?;
    Journal::remove(&places.journal)?;
    Ok(Some(left))
}

/// Takes the lock of the subsystem `what`; a holder that is ending is waited for, for 3 s. The lock is held
/// until the file is closed.
///
/// # Errors
/// If another process holds the lock, or the file cannot be opened.
pub fn lock(what: &'static str, places: &Places) -> Result<File, HeldError> {
    let path = &places.lock;
    // Anyone may write to /run/lock, so no symbolic link is followed and nothing is written.
    let nofollow = OFlags::NOFOLLOW.bits() as i32;
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
    let mut file = open.open(path).map_err(|e| HeldError::io(path, e))?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
            Ok(()) if is_at(&file, path) => return Ok(file),
            // It was removed before it was locked, and another holder may have the one that is there now.
            Ok(()) => file = open.open(path).map_err(|e| HeldError::io(path, e))?,
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => sleep(AGAIN),
            Err(e) => return Err(HeldError::io(path, e)),
        }
        if start.elapsed() > PATIENCE {
            let pid = Journal::read(&places.journal, what).ok().flatten().map(|j| j.pid);
            return Err(HeldError::Busy { what, path: path.clone(), pid });
        }
    }
}

/// Whether the path names this file, and no other one by now.
fn is_at(file: &File, path: &Path) -> bool {
    let there = std::fs::symlink_metadata(path);
    file.metadata()
        .and_then(|open| Ok((open, there?)))
        .is_ok_and(|(a, b)| (a.dev(), a.ino()) == (b.dev(), b.ino()))
}

/// Removes the lock's file if no process holds it and there is no journal: for locks of which there would be
/// ever more. Who has opened the file before finds after locking that it is gone, and makes another.
pub fn remove_unused_lock(places: &Places) {
    let nofollow = OFlags::NOFOLLOW.bits() as i32;
    let opened = OpenOptions::new().read(true).write(true).custom_flags(nofollow).open(&places.lock);
    let Ok(file) = opened else { return };
    let locked = flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
    if locked && is_at(&file, &places.lock) && !places.journal.exists() {
        let _ = std::fs::remove_file(&places.lock);
    }
}

#[cfg(test)]
mod tests;
