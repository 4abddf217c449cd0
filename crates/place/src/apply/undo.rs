// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes back what the journal has, last change first.

use super::kept::{Entry, Record};
use super::{ApplyError, Event, Kept, Work, begin, ksm_lock};
use crate::os;
use crate::settings;
use bifold_host::Host;
use bifold_host::topology::NumberSet;
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
    /// Settings and threads that another program changed after `apply`, and that stay as they are.
    pub kept: usize,
    /// Whether there was a journal of this boot.
    pub was_applied: bool,
}

/// What happens to a setting, or to a thread's CPUs, that another program changed after `apply`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum IfChanged {
    /// The present value and the journal's entry stay, and undo is an error.
    #[default]
    Refuse,
    /// The value before `apply` is put back.
    Force,
    /// The present value stays, and the journal's entry is removed.
    Keep,
}

/// Takes back everything, or what was changed of these processes.
///
/// # Errors
/// If another process holds the journal, the kernel refuses a value, or another program changed a value after
/// `apply`: that change then stays in the journal. All others are taken back.
pub fn undo(
    host: &Host,
    kept: &Kept,
    pids: Option<&[u32]>,
    if_changed: IfChanged,
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
        None => work.restore(0, |_| true, if_changed)?,
        Some(pids) => {
            let of_these = |e: &Entry| matches!(e, Entry::Thread { pid, .. } if pids.contains(pid));
            work.restore(0, of_these, if_changed)?
        }
    };
    undone.was_applied = true;
    if pids.is_none() {
        work.end()?;
    }
    Ok(undone)
}

/// What became of a change.
enum Back {
    /// The value is as it was.
    Restored,
    /// There is no such file or thread.
    Gone,
    /// The later value of another program stays.
    Kept,
}

impl Work<'_> {
    /// Takes back the chosen changes from number `first` on, in reverse. An entry leaves the journal when its
    /// change is taken back. If one of several entries of a setting cannot be taken back, the earlier ones
    /// stay, too.
    pub(super) fn restore(
        &mut self,
        first: usize,
        chosen: impl Fn(&Entry) -> bool,
        if_changed: IfChanged,
    ) -> Result<Undone, ApplyError> {
        let (mut undone, mut failed) = (Undone::default(), Vec::new());
        let (mut stuck, mut kept): (Vec<Entry>, Vec<Entry>) = (Vec::new(), Vec::new());
        for at in (first..self.record.entries.len()).rev() {
            let entry = self.record.entries[at].clone();
            if !chosen(&entry) || stuck.iter().any(|e| e.is_of(&entry)) {
                continue;
            }
            if !kept.iter().any(|e| e.is_of(&entry)) {
                match (self.back(at, first, if_changed), &entry) {
                    (Ok(Back::Restored), Entry::Setting { .. }) => undone.settings += 1,
                    (Ok(Back::Restored), Entry::Thread { .. }) => undone.threads += 1,
                    (Ok(Back::Gone), _) => undone.gone += 1,
                    (Ok(Back::Kept), _) => {
                        undone.kept += 1;
                        kept.push(entry);
                    }
                    (Err(e), _) => {
                        failed.push(e);
                        stuck.push(entry);
                        continue;
                    }
                }
            }
            self.record.entries.remove(at);
            self.write_down()?;
        }
        if failed.is_empty() { Ok(undone) } else { Err(ApplyError::Left(failed)) }
    }

    /// Takes back change number `at`, of those from `first` on.
    fn back(&mut self, at: usize, first: usize, if_changed: IfChanged) -> Result<Back, ApplyError> {
        let entry = self.record.entries[at].clone();
        let what = entry.subject();
        let Some(is) = self.present(&entry)? else {
            (self.told)(&Event::Gone(what));
            return Ok(Back::Gone);
        };
        if let Some(set) = entry.set_value().filter(|set| !entry.same(&is, set)) {
            // Of several changes of a setting, the first has the value from before all of them.
            let of_this = self.record.entries[first..=at].iter().find(|e| e.is_of(&entry));
            let found = of_this.unwrap_or(&entry).found_value();
            if entry.same(&is, &found) {
                return Ok(Back::Restored);
            }
            match if_changed {
                IfChanged::Force => {}
                IfChanged::Keep => {
                    (self.told)(&Event::Kept { what, is });
                    return Ok(Back::Kept);
                }
                IfChanged::Refuse => return Err(ApplyError::Changed { what, set, is, found }),
            }
        }
        if entry.same(&is, &entry.found_value()) {
            return Ok(Back::Restored);
        }
        if entry.set_value().is_some() {
            self.record.entries[at].forget_set();
            self.write_down()?;
        }
        let back = match &entry {
            Entry::Setting { path, found, .. } => self.set(path, found).map(|_| Back::Restored),
            Entry::Thread { pid, thread, found, .. } => self.pin_back(*pid, *thread, found),
        };
        // A kernel that took nothing still has Bifold's value. A pool that shrank in part has no value to
        // compare: it shrinks further as guests end.
        if back.is_err() && self.present(&entry).is_ok_and(|now| now.as_ref() == Some(&is)) {
            self.record.entries[at] = entry;
            self.write_down()?;
        }
        back
    }

    /// The present value, as text; `None` if the file or the thread is gone.
    fn present(&self, entry: &Entry) -> Result<Option<String>, ApplyError> {
        match entry {
            Entry::Setting { path, found, .. } => match self.value(path, found) {
                Err(ApplyError::Set { source, .. }) if source.kind() == io::ErrorKind::NotFound => Ok(None),
                other => other.map(Some),
            },
            Entry::Thread { pid, thread, started, found, .. } => {
                if !self.is_thread(*pid, *thread, *started) {
                    return Ok(None);
                }
                match self.host.allowed_cpus(*pid, *thread) {
                    Ok(cpus) => Ok(Some(cpus.to_string())),
                    Err(_) if !self.is_thread(*pid, *thread, *started) => Ok(None),
                    Err(e) => Err(unpinned(*pid, *thread, found, io::Error::other(e))),
                }
            }
        }
    }

    fn pin_back(&mut self, pid: u32, thread: u32, found: &NumberSet) -> Result<Back, ApplyError> {
        match os::pin(thread, found) {
            Ok(()) => {
                (self.told)(&Event::Pinned { thread, cpus: found.to_string() });
                Ok(Back::Restored)
            }
            Err(e) if e.raw_os_error() == Some(libc::ESRCH) => Ok(Back::Gone),
            Err(source) => Err(unpinned(pid, thread, found, source)),
        }
    }
}

impl Entry {
    fn found_value(&self) -> String {
        match self {
            Entry::Setting { found, .. } => found.clone(),
            Entry::Thread { found, .. } => found.to_string(),
        }
    }

    fn set_value(&self) -> Option<String> {
        match self {
            Entry::Setting { set, .. } => set.clone(),
            Entry::Thread { set, .. } => set.as_ref().map(ToString::to_string),
        }
    }

    fn forget_set(&mut self) {
        match self {
            Entry::Setting { set, .. } => *set = None,
            Entry::Thread { set, .. } => *set = None,
        }
    }

    /// Whether two values of this setting, or of a thread's CPUs, have the same meaning.
    fn same(&self, is: &str, value: &str) -> bool {
        match self {
            Entry::Setting { path, .. } => settings::same(path, is, value),
            Entry::Thread { .. } => is == value,
        }
    }
}

fn unpinned(pid: u32, thread: u32, cpus: &NumberSet, source: io::Error) -> ApplyError {
    ApplyError::Pin { vm: format!("of process {pid}"), thread, cpus: cpus.clone(), source }
}
