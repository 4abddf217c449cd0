// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kernel settings that a process holds: found, written down, changed, and restored however the process
//! ends.
//!
//! 1. The lock: one holder at a time.
//! 2. A journal that an earlier holder left is restored from first.
//! 3. The settings found are written down ([`Journal`]); the guardian process starts and keeps the lock
//!    too ([`Guardian`]).
//! 4. Only then may the caller change a setting.
//!
//! The end runs the other way round: settings, journal, guardian, lock. If a kill skips a step, the
//! guardian does it, or the next holder.
//!
//! A journal lists names and values; how they are written back is the caller's function, because the order
//! of writes is the kernel interface's rule. The one caller is [`KsmGuard`](crate::ksm::KsmGuard).

mod error;
mod guardian;
mod journal;

pub use error::HeldError;
pub use guardian::{Guardian, Stood, stand_guard};
pub use journal::Journal;
pub(crate) use journal::not_a_line;

use guardian::Standing;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where a holder keeps its lock and its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The lock's file, never removed.
    pub lock: PathBuf,
    /// The journal, which exists while settings are changed.
    pub journal: PathBuf,
}

/// Settings that this process holds. Dropped without [`end`](Held::end), it leaves the restoring to the
/// guardian.
#[derive(Debug)]
pub struct Held {
    places: Places,
    recovered: Option<u32>,
    guardian: Option<Standing>,
    // Last: the lock goes when all else is done.
    _lock: File,
}

/// How long to wait for the lock: a guardian that restores is soon done.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a busy lock is tried again.
const AGAIN: Duration = Duration::from_millis(50);

impl Held {
    /// Steps 1 to 3 of the module's list. `what` names the settings in the journal's first line and in
    /// errors; `restore` writes back what an earlier holder's journal lists; `find` reads the settings
    /// as they are. The guardian gets `words` and the journal's path as its last arguments.
    ///
    /// # Errors
    /// If another process holds the settings, a journal left behind cannot be restored from, or the
    /// guardian does not start. Nothing is changed then.
    pub fn take<E: From<HeldError>>(
        what: &'static str,
        places: &Places,
        (guardian, words): (&Guardian, &[&Path]),
        restore: impl FnOnce(&Journal) -> Result<(), E>,
        find: impl FnOnce() -> Result<Vec<(String, String)>, E>,
    ) -> Result<Held, E> {
        let lock = lock(what, places)?;
        let recovered = restore_from(what, places, restore)?.map(|left| left.pid);
        let journal = Journal { what: what.into(), pid: std::process::id(), found: find()? };
        journal.write(&places.journal)?;
        match guardian.start(words, &places.journal, &lock) {
            Ok(standing) => {
                Ok(Held { places: places.clone(), recovered, guardian: Some(standing), _lock: lock })
            }
            Err(e) => {
                Journal::remove(&places.journal)?;
                Err(e.into())
            }
        }
    }

    /// The process that left its settings changed, if one did; they were restored before this one began.
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
        guardian.dismiss();
        restored
    }
}

/// The journal at its place, and whether its process, or that one's guardian, still holds the settings
/// and will restore them itself. `None` if there is no journal. Changes nothing, and needs no root.
///
/// # Errors
/// If the journal cannot be read or parsed.
pub fn left_behind(what: &str, places: &Places, proc: &Path) -> Result<Option<(Journal, bool)>, HeldError> {
    let Some(journal) = Journal::read(&places.journal, what)? else { return Ok(None) };
    let held = match File::open(&places.lock) {
        // A shared lock, and for this moment only: a holder that begins just now waits for longer.
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
        // Only root may open it: whether the process exists says nearly as much.
        Err(_) => proc.join(journal.pid.to_string()).is_dir(),
    };
    Ok(Some((journal, held)))
}

/// Restores, by `restore`, the settings that a process left changed, and removes its journal. `None` if
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

/// The same with the lock held.
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

fn lock(what: &'static str, places: &Places) -> Result<File, HeldError> {
    let path = &places.lock;
    // /run/lock is everybody's: no symbolic link is followed, and nothing is written.
    let nofollow = OFlags::NOFOLLOW.bits() as i32;
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
    let file = open.open(path).map_err(|e| HeldError::io(path, e))?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
            Ok(()) => return Ok(file),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if start.elapsed() > PATIENCE {
                    let pid = Journal::read(&places.journal, what).ok().flatten().map(|j| j.pid);
                    return Err(HeldError::Busy { what, path: path.clone(), pid });
                }
                sleep(AGAIN);
            }
            Err(e) => return Err(HeldError::io(path, e)),
        }
    }
}

#[cfg(test)]
mod tests;
