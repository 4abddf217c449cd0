// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What `apply` keeps until `undo`: the plan, and a journal of what each change replaced.
//!
//! The journal is that of [`bifold_host::held`], with these lines: `boot ID`, `set PATH FOUND`,
//! `thread PID THREAD STARTED FOUND`, `refused PATH`. `FOUND` is the value before the change. A line is
//! written before its change. Once the kernel has the new value, that value is appended to the line after a
//! tab, as the kernel reads it back. Undo compares the present value with it. Journals of older versions have
//! no such values, and are undone without the comparison. Settings and threads do not survive a reboot, so
//! the journal of another boot has nothing to take back.

use super::ApplyError;
use crate::plan::Plan;
use crate::settings::{self, BadStep};
use bifold_base::whole;
use bifold_host::Host;
use bifold_host::held::{HeldError, Journal, Places};
use bifold_host::topology::NumberSet;
use std::path::{Path, PathBuf};

/// The subsystem's word in the journal and in errors.
pub(super) const WHAT: &str = "place";
/// The folder of this machine's journal, which does not survive a reboot.
pub const FOLDER: &str = "/run/bifold";
/// Upper limit for a plan's file.
pub const MOST_PLAN: u64 = 64 << 20;

/// Where lock, journal and plan are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Kept {
    /// Lock and journal.
    pub places: Places,
    /// The copy of the applied plan.
    pub plan: PathBuf,
    /// Lock and journal of those who change KSM's settings for a while.
    pub ksm: Places,
}

impl Kept {
    /// In this folder, beside this machine's lock of KSM.
    pub fn within(folder: &Path) -> Kept {
        let places = Places { lock: folder.join("place.lock"), journal: folder.join("place.journal") };
        Kept { places, plan: folder.join("place.plan.json"), ksm: Places::of_ksm() }
    }

    /// The plan that is applied now, without the wishes that the kernel refused; `None` if none is.
    ///
    /// # Errors
    /// If journal or plan cannot be read.
    pub fn applied(&self, host: &Host) -> Result<Option<Plan>, ApplyError> {
        let Some(record) = Record::read(self, host)?.filter(|r| r.is_of_this_boot) else { return Ok(None) };
        let mut plan = self.plan()?;
        if let Some(plan) = &mut plan {
            plan.steps.retain(|s| !record.refused.contains(&s.path));
        }
        Ok(plan)
    }

    /// The copy of the plan, whose parts agree.
    pub(super) fn plan(&self) -> Result<Option<Plan>, ApplyError> {
        let bytes = match bifold_host::read_up_to(&self.plan, MOST_PLAN) {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => return Ok(None),
            other => other.map_err(|e| ApplyError::io(&self.plan, e))?,
        };
        let plan = Plan::parse(&bytes);
        plan.map(Some).map_err(|source| ApplyError::KeptPlan { path: self.plan.clone(), source })
    }

    /// Writes the copy, all of it or none.
    pub(super) fn keep(&self, plan: &Plan) -> Result<(), ApplyError> {
        let text = serde_json::to_vec_pretty(plan).expect("a plan is numbers and texts");
        whole::write(&self.plan, &[&text]).map_err(|e| ApplyError::io(&self.plan, e))
    }
}

/// What a change replaced, and what it set.
///
/// `set` is `None` until the kernel has the value, and again while the change is being undone. A command that
/// is killed in between leaves `None`: the present value may then be an intermediate one, such as a pool that
/// is filled in part, so undo does not compare it.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Entry {
    /// A setting's value.
    Setting { path: String, found: String, set: Option<String> },
    /// A thread's CPUs. Its start, in ticks since boot, tells it from a later thread with its id.
    Thread { pid: u32, thread: u32, started: u64, found: NumberSet, set: Option<NumberSet> },
}

impl Entry {
    /// Whether both entries are of one setting, or of one thread.
    pub fn is_of(&self, other: &Entry) -> bool {
        match (self, other) {
            (Entry::Setting { path, .. }, Entry::Setting { path: of, .. }) => path == of,
            (
                Entry::Thread { pid, thread, started, .. },
                Entry::Thread { pid: of, thread: of_thread, started: of_start, .. },
            ) => (pid, thread, started) == (of, of_thread, of_start),
            _ => false,
        }
    }

    /// The setting's path, or the thread.
    pub fn subject(&self) -> String {
        match self {
            Entry::Setting { path, .. } => path.clone(),
            Entry::Thread { pid, thread, .. } => format!("thread {thread} of process {pid}"),
        }
    }
}

/// The journal's content.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub(super) struct Record {
    pub is_of_this_boot: bool,
    /// Changes in order.
    pub entries: Vec<Entry>,
    /// Paths of wishes that the kernel refused.
    pub refused: Vec<String>,
}

impl Record {
    /// The journal; `None` if there is none.
    pub fn read(kept: &Kept, host: &Host) -> Result<Option<Record>, ApplyError> {
        let path = &kept.places.journal;
        let Some(journal) = Journal::read(path, WHAT)? else { return Ok(None) };
        let mut record = Record::default();
        for (name, value) in &journal.found {
            let known = match name.as_str() {
                "boot" => {
                    record.is_of_this_boot = *value == host.boot_id();
                    true
                }
                "refused" => {
                    record.refused.push(value.clone());
                    true
                }
                name => entry(name, value).map(|e| record.entries.push(e)).is_some(),
            };
            if !known {
                let why = format!("`{} {}` is no line of it", name.escape_debug(), value.escape_debug());
                return Err(HeldError::Journal { what: WHAT.into(), path: path.clone(), why }.into());
            }
        }
        Ok(Some(record))
    }

    /// Writes the journal in place of the last one, all of it or none.
    pub fn write(&self, kept: &Kept, host: &Host) -> Result<(), ApplyError> {
        let mut found = vec![("boot".to_string(), host.boot_id())];
        found.extend(self.entries.iter().map(|e| match e {
            Entry::Setting { path, found, set } => {
                ("set".to_string(), format!("{path} {found}{}", after_tab(set.as_ref())))
            }
            Entry::Thread { pid, thread, started, found, set } => {
                let set = after_tab(set.as_ref());
                ("thread".to_string(), format!("{pid} {thread} {started} {found}{set}"))
            }
        }));
        found.extend(self.refused.iter().map(|path| ("refused".to_string(), path.clone())));
        Ok(Journal { what: WHAT.into(), pid: std::process::id(), found }.write(&kept.places.journal)?)
    }
}

/// Whether the journal can have the value that a setting was found with. A journal is root's own, and yet no
/// file is written that a plan may not set.
pub(super) fn can_be_kept(path: &str, found: &str) -> Result<(), BadStep> {
    settings::allowed(path, if found.is_empty() { "0" } else { found })
}

fn after_tab(set: Option<&impl std::fmt::Display>) -> String {
    set.map_or_else(String::new, |set| format!("\t{set}"))
}

fn entry(name: &str, line: &str) -> Option<Entry> {
    let (value, set) = line.split_once('\t').map_or((line, None), |(value, set)| (value, Some(set)));
    match name {
        "set" => {
            let (path, found) = value.split_once(' ')?;
            can_be_kept(path, found).ok()?;
            set.map_or(Ok(()), |set| can_be_kept(path, set)).ok()?;
            Some(Entry::Setting { path: path.into(), found: found.into(), set: set.map(str::to_owned) })
        }
        "thread" => {
            let mut words = value.split(' ');
            let pid = words.next()?.parse().ok()?;
            let thread = words.next()?.parse().ok()?;
            let started = words.next()?.parse().ok()?;
            let found: NumberSet = words.next()?.parse().ok()?;
            let set = set.map(str::parse).transpose().ok()?;
            (!found.is_empty()).then_some(Entry::Thread { pid, thread, started, found, set })
        }
        _ => None,
    }
}
