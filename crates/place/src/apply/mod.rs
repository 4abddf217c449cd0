// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Does a plan's steps on the host, pins the threads of guests that run, and takes all of it back.
//!
//! Each change is written down before it is made ([`Kept`]) and compared with what the kernel then has. An
//! error takes back what the command has changed so far. A command that is killed leaves the journal:
//! [`undo()`] takes back all of it, in the reverse order, and may be killed as well. Undo overwrites a value
//! that another program has set since only on request ([`IfChanged`]).
//!
//! Nothing else changes the host, and only the guests that the caller names are touched.

mod error;
mod kept;
mod pins;
mod undo;

pub use error::ApplyError;
pub use kept::{FOLDER, Kept, MOST_PLAN};
pub(crate) use pins::{MOST_ID, io_cpus};
pub use undo::{IfChanged, Undone, undo};

use crate::plan::{Plan, Step};
use crate::settings;
use bifold_host::LiveGuest;
use bifold_host::held::{Journal, lock};
use bifold_host::{Host, printable};
use kept::{Entry, Record, WHAT};
use std::fs::{self, File};
use std::io::{self, Write as _};
use std::os::unix::fs::DirBuilderExt as _;

/// Longest text of a setting.
const MOST_TEXT: u64 = 64 << 10;

/// What happens while a plan is applied or undone.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Event {
    /// The journal has what the next change replaces.
    WrittenDown,
    /// A file has a new value.
    Set {
        /// The file, as the plan names it.
        path: String,
        /// The value.
        value: String,
    },
    /// The kernel refused a wish of the plan.
    Refused {
        /// The file, as the plan names it.
        path: String,
        /// Why.
        why: String,
    },
    /// A thread was pinned.
    Pinned {
        /// The thread.
        thread: u32,
        /// Its CPUs.
        cpus: String,
    },
    /// A journal of another boot was removed.
    OtherBoot,
    /// A file or thread of the journal is gone, so there is nothing to restore.
    Gone(String),
    /// Another program changed the value after `apply`, and the present value stays.
    Kept {
        /// The file, or the thread.
        what: String,
        /// The present value.
        is: String,
    },
}

/// What was done.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Applied {
    /// Settings changed.
    pub changed: usize,
    /// Settings that were as planned before.
    pub as_planned: usize,
    /// Wishes that the kernel refused.
    pub refused: usize,
    /// Threads pinned.
    pub pinned: usize,
}

/// Something that changes a host under a journal.
struct Work<'a> {
    host: &'a Host,
    kept: &'a Kept,
    record: Record,
    told: &'a mut dyn FnMut(&Event),
    /// Whether this call began the journal.
    began: bool,
}

/// Does the plan's steps, then pins the threads of these guests as planned.
///
/// # Errors
/// If another plan is applied, the kernel refuses a needed step or a pin, or a guest is not as planned. All
/// changes of this call are then taken back.
pub fn apply(
    host: &Host,
    plan: &Plan,
    guests: &[&LiveGuest],
    kept: &Kept,
    told: &mut dyn FnMut(&Event),
) -> Result<Applied, ApplyError> {
    refuse(plan, guests)?;
    let _lock = begin(kept)?;
    let _ksm = ksm_lock(kept, plan.steps.iter().map(|s| s.path.as_str()))?;
    let mut work = Work { host, kept, record: Record::default(), told, began: false };
    work.take_up(plan)?;
    let before = work.record.clone();
    work.all(plan, guests).map_err(|first| work.take_back(&before, first))
}

/// What needs no look at the host.
fn refuse(plan: &Plan, guests: &[&LiveGuest]) -> Result<(), ApplyError> {
    plan.validate()?;
    for step in &plan.steps {
        settings::allowed(&step.path, &step.value)?;
    }
    for guest in guests {
        if !plan.guests.iter().any(|g| g.name == guest.name) {
            let has: Vec<String> = plan.guests.iter().map(|g| printable(&g.name)).collect();
            return Err(ApplyError::NotInPlan { vm: guest.name.clone(), has: has.join(", ") });
        }
    }
    Ok(())
}

/// Makes the folder and takes the lock.
fn begin(kept: &Kept) -> Result<File, ApplyError> {
    if let Some(folder) = kept.places.lock.parent() {
        let made = fs::DirBuilder::new().recursive(true).mode(0o755).create(folder);
        made.map_err(|e| ApplyError::io(folder, e))?;
    }
    Ok(lock(WHAT, &kept.places)?)
}

/// The lock of KSM's settings, if one of these files is KSM's: what another command has set for a while is no
/// value to restore.
fn ksm_lock<'a>(kept: &Kept, mut paths: impl Iterator<Item = &'a str>) -> Result<Option<File>, ApplyError> {
    if !paths.any(|p| p.starts_with("/sys/kernel/mm/ksm/")) {
        return Ok(None);
    }
    let held = lock("ksm", &kept.ksm)?;
    if kept.ksm.journal.exists() {
        return Err(ApplyError::Ksm(kept.ksm.journal.clone()));
    }
    Ok(Some(held))
}

impl Work<'_> {
    /// Continues the journal of the same plan, or begins one.
    fn take_up(&mut self, plan: &Plan) -> Result<(), ApplyError> {
        match Record::read(self.kept, self.host)? {
            Some(record) if record.is_of_this_boot => {
                // Without a copy, a kill came before any change.
                if self.kept.plan()?.is_some_and(|kept| kept != *plan) {
                    return Err(ApplyError::OtherPlan(self.kept.plan.clone()));
                }
                self.record = record;
                self.kept.keep(plan)
            }
            other => {
                if other.is_some() {
                    Journal::remove(&self.kept.places.journal)?;
                    (self.told)(&Event::OtherBoot);
                }
                self.began = true;
                self.record = Record { is_of_this_boot: true, ..Record::default() };
                self.kept.keep(plan)?;
                self.record.write(self.kept, self.host)
            }
        }
    }

    fn all(&mut self, plan: &Plan, guests: &[&LiveGuest]) -> Result<Applied, ApplyError> {
        let mut applied = Applied::default();
        for step in &plan.steps {
            let before = self.record.entries.len();
            match self.step(step) {
                Ok(true) => applied.changed += 1,
                Ok(false) => applied.as_planned += 1,
                Err(e) if step.needed => return Err(e),
                Err(e) => {
                    self.refused(step, before, &e)?;
                    applied.refused += 1;
                }
            }
        }
        for guest in guests {
            let planned = plan.guests.iter().find(|g| g.name == guest.name);
            applied.pinned += self.pin(guest, planned.expect("`refuse` has looked"))?;
        }
        if applied.changed + applied.pinned > 0 {
            // The value of the last change, too.
            self.write_down()?;
        }
        Ok(applied)
    }

    /// Sets a file; false if the value was there before.
    fn step(&mut self, step: &Step) -> Result<bool, ApplyError> {
        let Step { path, value, .. } = step;
        let found = self.value(path, value)?;
        if settings::as_planned(path, &found, value) {
            return Ok(false);
        }
        kept::can_be_kept(path, &found)?;
        self.record.refused.retain(|p| p != path);
        self.record.entries.push(Entry::Setting { path: path.clone(), found, set: None });
        self.write_down()?;
        let is = self.set(path, value)?;
        if let Some(Entry::Setting { set, .. }) = self.record.entries.last_mut() {
            // A text that the journal cannot have has the meaning of the planned value all the same.
            *set = Some(if kept::can_be_kept(path, &is).is_ok() { is } else { value.clone() });
        }
        Ok(true)
    }

    /// A wish that failed: its setting becomes what it was. The journal had `before` entries.
    fn refused(&mut self, step: &Step, before: usize, why: &ApplyError) -> Result<(), ApplyError> {
        if let Some(Entry::Setting { found, .. }) = self.record.entries.get(before).cloned() {
            // A file that takes no value at all refuses the old one, too.
            if self.value(&step.path, &found).is_ok_and(|is| !settings::same(&step.path, &is, &found)) {
                self.set(&step.path, &found)?;
            }
            self.record.entries.pop();
        }
        if !self.record.refused.contains(&step.path) {
            self.record.refused.push(step.path.clone());
        }
        self.write_down()?;
        let why = match why {
            ApplyError::Set { source, .. } => source.to_string(),
            other => other.to_string(),
        };
        (self.told)(&Event::Refused { path: step.path.clone(), why });
        Ok(())
    }

    fn write_down(&mut self) -> Result<(), ApplyError> {
        self.record.write(self.kept, self.host)?;
        (self.told)(&Event::WrittenDown);
        Ok(())
    }

    /// The present value of a setting; `value` is for the error.
    fn value(&self, path: &str, value: &str) -> Result<String, ApplyError> {
        let text = bifold_host::read_up_to(&settings::file(self.host, path), MOST_TEXT);
        let text =
            text.map_err(|source| ApplyError::Set { path: path.into(), value: value.into(), source })?;
        Ok(settings::value(&String::from_utf8_lossy(&text)))
    }

    /// Writes a setting, and returns what the kernel then has: text of the same meaning.
    fn set(&mut self, path: &str, value: &str) -> Result<String, ApplyError> {
        let failed = |source| ApplyError::Set { path: path.into(), value: value.into(), source };
        // Not created, as in sysfs: a file that is not there is an error.
        let file = fs::OpenOptions::new().write(true).truncate(true).open(settings::file(self.host, path));
        file.and_then(|mut f| f.write_all(value.as_bytes())).map_err(failed)?;
        (self.told)(&Event::Set { path: path.into(), value: value.into() });
        let is = self.value(path, value)?;
        if settings::same(path, &is, value) {
            return Ok(is);
        }
        Err(ApplyError::NotTaken { path: path.into(), asked: value.into(), is })
    }

    /// Takes back what was changed since `before`, after an error.
    fn take_back(&mut self, before: &Record, first: ApplyError) -> ApplyError {
        let first = Box::new(first);
        let back = self.restore(before.entries.len(), |_| true, IfChanged::Refuse).and_then(|_| {
            self.record.refused.clone_from(&before.refused);
            if self.began { self.end() } else { self.write_down() }
        });
        match back {
            Ok(()) => ApplyError::Undone(first),
            Err(then) => ApplyError::NotUndone { first, then: Box::new(then) },
        }
    }

    /// Removes journal and plan: everything is as it was.
    fn end(&mut self) -> Result<(), ApplyError> {
        Journal::remove(&self.kept.places.journal)?;
        match fs::remove_file(&self.kept.plan) {
            Err(e) if e.kind() != io::ErrorKind::NotFound => Err(ApplyError::io(&self.kept.plan, e)),
            _ => Ok(()),
        }
    }
}

#[cfg(test)]
mod tests;
