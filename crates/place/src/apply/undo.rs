// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes back what the journal has, last change first.

use super::kept::{Entry, Record};
use super::{ApplyError, Event, Kept, Work, begin, ksm_lock};
use crate::os;
use crate::settings;
use bifold_host::Host;
use std::io;

/// What was taken back.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Undone {
    /// Settings.
    pub settings: usize,
    /// Threads.
    pub threads: usize,
    /// Changes whose file or thread is gone.
    pub gone: usize,
    /// Whether there was a journal of this boot.
    pub was_applied: bool,
}

/// Takes back everything, or what was changed of these processes.
///
/// # Errors
/// If another process holds the journal, or the kernel refuses a value: the change then stays in the journal.
pub fn undo(
    host: &Host,
    kept: &Kept,
    pids: Option<&[u32]>,
    told: &mut dyn FnMut(&Event),
) -> Result<Undone, ApplyError> {
    let _lock = begin(kept)?;
    let found = Record::read(kept, host)?;
    let another_boot = found.as_ref().is_some_and(|r| !r.is_of_this_boot);
    let record = found.filter(|r| r.is_of_this_boot);
    let was_applied = record.is_some();
    let settings = record.iter().flat_map(|r| &r.entries).filter_map(|e| match e {
        Entry::Setting { path, .. } => Some(path.as_str()),
        Entry::Thread { .. } => None,
    });
    // The processes alone have no settings.
    let _ksm = if pids.is_none() { ksm_lock(kept, settings)? } else { None };
    let mut work = Work { host, kept, record: record.unwrap_or_default(), told, began: false };
    if !was_applied {
        // A kill may have come between plan and journal, too.
        work.end()?;
        if another_boot {
            (work.told)(&Event::OtherBoot);
        }
        return Ok(Undone::default());
    }
    let mut undone = match pids {
        None => work.restore(0, |_| true)?,
        Some(pids) => work.restore(0, |e| matches!(e, Entry::Thread { pid, .. } if pids.contains(pid)))?,
    };
    undone.was_applied = true;
    if pids.is_none() {
        work.end()?;
    }
    Ok(undone)
}

impl Work<'_> {
    /// Takes back the chosen changes from number `first` on, in reverse. Each goes from the journal when it is back.
    pub(super) fn restore(
        &mut self,
        first: usize,
        chosen: impl Fn(&Entry) -> bool,
    ) -> Result<Undone, ApplyError> {
        let (mut undone, mut failed) = (Undone::default(), Vec::new());
        for at in (first..self.record.entries.len()).rev() {
            let entry = self.record.entries[at].clone();
            if !chosen(&entry) {
                continue;
            }
            let back = match &entry {
                Entry::Setting { path, found } => self.setting_back(path, found),
                Entry::Thread { .. } => self.thread_back(&entry),
            };
            match (back, &entry) {
                (Ok(true), Entry::Setting { .. }) => undone.settings += 1,
                (Ok(true), Entry::Thread { .. }) => undone.threads += 1,
                (Ok(false), _) => undone.gone += 1,
                (Err(e), _) => {
                    failed.push(e);
                    continue;
                }
            }
            self.record.entries.remove(at);
            self.write_down()?;
        }
        if failed.is_empty() { Ok(undone) } else { Err(ApplyError::Left(failed)) }
    }

    /// Restores a setting; false if its file is gone.
    fn setting_back(&mut self, path: &str, found: &str) -> Result<bool, ApplyError> {
        let is = match self.value(path, found) {
            Err(ApplyError::Set { source, .. }) if source.kind() == io::ErrorKind::NotFound => {
                (self.told)(&Event::Gone(path.to_owned()));
                return Ok(false);
            }
            other => other?,
        };
        if !settings::same(path, &is, found) {
            self.set(path, found)?;
        }
        Ok(true)
    }

    /// Restores a thread's CPUs; false if the thread has ended.
    fn thread_back(&mut self, entry: &Entry) -> Result<bool, ApplyError> {
        let Entry::Thread { pid, thread, started, found } = entry else { return Ok(true) };
        if !self.is_thread(*pid, *thread, *started) {
            (self.told)(&Event::Gone(format!("thread {thread} of process {pid}")));
            return Ok(false);
        }
        match os::pin(*thread, found) {
            Ok(()) => {
                (self.told)(&Event::Pinned { thread: *thread, cpus: found.to_string() });
                Ok(true)
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(false),
            Err(source) => {
                let vm = format!("of process {pid}");
                Err(ApplyError::Pin { vm, thread: *thread, cpus: found.clone(), source })
            }
        }
    }
}
