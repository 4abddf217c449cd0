// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guard: whoever changes KSM's settings has one, and it puts them back.
//!
//! 1. The lock: one guard at a time.
//! 2. A journal that somebody left is restored from first.
//! 3. The settings found are written down; the guardian starts, and has the lock too.
//! 4. Only then is anything changed.
//!
//! At the end the other way round: settings, journal, guardian, lock. A step that is missing because of
//! a kill is done by the guardian, or by the next guard. What comes back are the settings: pages that
//! merged meanwhile stay merged where `run` was 0 or 1, unless a setting that is restored needs them
//! unmerged (`max_page_sharing`, `merge_across_nodes`).

use super::guardian::Standing;
use super::restore::make;
use super::{Guardian, Journal, Ksm, KsmError, Settings};
use crate::Host;
use rustix::fs::{FlockOperation, OFlags, flock};
use std::fs::{File, OpenOptions};
use std::io;
use std::os::unix::fs::OpenOptionsExt as _;
use std::path::PathBuf;
use std::thread::sleep;
use std::time::{Duration, Instant};

/// Where a guard keeps its lock and its journal.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Places {
    /// The lock's file, never removed.
    pub lock: PathBuf,
    /// The journal, there while settings are changed.
    pub journal: PathBuf,
}

impl Places {
    /// This machine's: they do not outlive a boot, as KSM's settings do not.
    pub fn live() -> Places {
        Places { lock: "/run/lock/bifold-ksm.lock".into(), journal: "/run/bifold-ksm.journal".into() }
    }
}

/// KSM's settings in one's own hands, until it is dropped.
#[derive(Debug)]
pub struct KsmGuard {
    ksm: Ksm,
    places: Places,
    found: Settings,
    recovered: Option<u32>,
    guardian: Option<Standing>,
    // Last: the lock goes when all else is done.
    _lock: File,
}

/// How long a lock is waited for: a guardian that restores is soon done.
const PATIENCE: Duration = Duration::from_secs(3);
/// How often a busy lock is tried again.
const AGAIN: Duration = Duration::from_millis(50);

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
        let lock = lock(places)?;
        let recovered = restore_from(&ksm, places)?.map(|left| left.pid);
        let found = ksm.settings()?;
        Journal { pid: std::process::id(), found: found.clone() }.write(&places.journal)?;
        let standing = match guardian.start(&host.sys, &places.journal, &lock) {
            Ok(standing) => standing,
            Err(e) => {
                Journal::remove(&places.journal)?;
                return Err(e);
            }
        };
        let (places, guardian) = (places.clone(), Some(standing));
        let guard = KsmGuard { ksm, places, found, recovered, guardian, _lock: lock };
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
        self.recovered
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
        let Some(mut guardian) = self.guardian.take() else { return Ok(()) };
        let restored = make(&self.ksm, &self.found).and_then(|()| Journal::remove(&self.places.journal));
        guardian.dismiss();
        restored
    }
}

/// Settings that a command of Bifold has changed, by the journal that lies there.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Left {
    /// The command's process, and the settings that it found.
    pub journal: Journal,
    /// Whether that process, or its guardian, still has KSM in its hands and will restore them itself.
    pub held: bool,
}

/// What a journal says that lies at its place; `None` if there is none. Changes nothing, and needs no root.
///
/// # Errors
/// If the journal cannot be read or is none.
pub fn left_behind(host: &Host, places: &Places) -> Result<Option<Left>, KsmError> {
    let Some(journal) = Journal::read(&places.journal)? else { return Ok(None) };
    let held = match File::open(&places.lock) {
        // A shared lock, and for this moment only: a guard that begins just now waits for longer.
        Ok(lock) => flock(&lock, FlockOperation::NonBlockingLockShared).is_err(),
        // Only root may look: the process itself says nearly as much.
        Err(_) => host.proc.join(journal.pid.to_string()).is_dir(),
    };
    Ok(Some(Left { journal, held }))
}

/// Restores the settings that a command of Bifold left changed, and removes its journal; `None` if there is
/// none.
///
/// # Errors
/// If a command has KSM in its hands now, the user is not root, or a setting cannot be restored.
pub fn restore_left_behind(host: &Host, places: &Places) -> Result<Option<Journal>, KsmError> {
    let ksm = Ksm::of(host)?;
    ksm.may_write()?;
    let _lock = lock(places)?;
    restore_from(&ksm, places)
}

/// The same with the lock held.
fn restore_from(ksm: &Ksm, places: &Places) -> Result<Option<Journal>, KsmError> {
    let Some(left) = Journal::read(&places.journal)? else { return Ok(None) };
    make(ksm, &left.found)?;
    Journal::remove(&places.journal)?;
    Ok(Some(left))
}

impl Drop for KsmGuard {
    fn drop(&mut self) {
        // What fails here the guardian tries again, and it says so.
        let _ = self.end();
    }
}

fn lock(places: &Places) -> Result<File, KsmError> {
    let path = &places.lock;
    // /run/lock is everybody's: no symbolic link is followed, and nothing is written.
    let nofollow = OFlags::NOFOLLOW.bits() as i32;
    let mut open = OpenOptions::new();
    open.read(true).write(true).create(true).truncate(false).mode(0o600).custom_flags(nofollow);
    let file = open.open(path).map_err(|e| KsmError::io(path, e))?;
    let start = Instant::now();
    loop {
        match flock(&file, FlockOperation::NonBlockingLockExclusive).map_err(io::Error::from) {
            Ok(()) => return Ok(file),
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => {
                if start.elapsed() > PATIENCE {
                    let pid = Journal::read(&places.journal).ok().flatten().map(|j| j.pid);
                    return Err(KsmError::Busy { path: path.clone(), pid });
                }
                sleep(AGAIN);
            }
            Err(e) => return Err(KsmError::io(path, e)),
        }
    }
}
