// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the kernel's KSM and changes its settings, which are always restored.
//!
//! [`Ksm`] reads `/sys/kernel/mm/ksm`: [`Settings`], which can be written, and [`Counters`], which are
//! read-only. Older kernels lack some of these files; a missing file is an absent value, not an error. One
//! process's figures come from `/proc/PID/ksm_stat`, and ksmd's CPU time from procfs.
//!
//! Settings are changed only through a [`KsmGuard`], which [holds](crate::held) them: it excludes other
//! commands of Bifold, writes down the settings that it found, and restores them when dropped or killed.

mod activity;
mod counters;
mod error;
mod guard;
mod journal;
mod memory;
mod others;
mod pass;
mod process;
mod restore;
mod settings;

pub use activity::{Activity, Change};
pub use counters::{Counter, Counters, ProcessKsm};
pub use error::KsmError;
pub use guard::{KsmGuard, Left, left_behind, restore_left_behind, stand_guard};
pub use journal::Journal;
pub use memory::{Area, MergeableArea, Merged, PageState, mergeable_areas};
pub use others::{MergeableProcess, Others};
pub use pass::{PassEnd, PassProgress, Passes};
pub use process::Ksmd;
pub use settings::{Setting, Settings};

use crate::memory::text;
use crate::{Host, one_line, read};
use std::fs::OpenOptions;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// The kernel's KSM.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Ksm {
    dir: PathBuf,
    proc: PathBuf,
}

impl Ksm {
    /// The KSM of a host.
    ///
    /// # Errors
    /// If its kernel has none.
    pub fn of(host: &Host) -> Result<Ksm, KsmError> {
        let ksm = Ksm { dir: host.sys.join("kernel/mm/ksm"), proc: host.proc.clone() };
        if ksm.dir.join("run").exists() { Ok(ksm) } else { Err(KsmError::NoKsm { path: ksm.dir }) }
    }

    /// Huge pages that khugepaged has made since boot, if the kernel says.
    pub fn collapsed(&self) -> Option<u64> {
        text(&self.dir.join("../transparent_hugepage/khugepaged/pages_collapsed")).trim().parse().ok()
    }

    /// The directory with KSM's files.
    pub fn dir(&self) -> &Path {
        &self.dir
    }

    /// All settings that this kernel has.
    ///
    /// # Errors
    /// If a file cannot be read, or its text cannot be parsed.
    pub fn settings(&self) -> Result<Settings, KsmError> {
        let mut settings = Settings::default();
        for setting in Setting::ALL {
            if let Some(text) = self.text(setting.name())? {
                let bad = || KsmError::bad(&self.dir.join(setting.name()), &text);
                settings.put(*setting, setting.parse(&text).ok_or_else(bad)?);
            }
        }
        Ok(settings)
    }

    /// All counters that this kernel has. They are read one after the other, so while ksmd runs they may
    /// differ by some pages.
    ///
    /// # Errors
    /// If a file cannot be read or holds no number.
    pub fn counters(&self) -> Result<Counters, KsmError> {
        let mut counters = Counters::default();
        for counter in Counter::ALL {
            counters.put(counter, self.number(counter.name())?);
        }
        Ok(counters)
    }

    /// One counter, if this kernel has it.
    ///
    /// # Errors
    /// If the file cannot be read or holds no number.
    pub fn counter(&self, counter: Counter) -> Result<Option<i64>, KsmError> {
        self.number(counter.name())
    }

    fn number(&self, file: &str) -> Result<Option<i64>, KsmError> {
        let Some(text) = self.text(file)? else { return Ok(None) };
        let number = text.trim().parse().map_err(|_| KsmError::bad(&self.dir.join(file), &text))?;
        Ok(Some(number))
    }

    fn text(&self, file: &str) -> Result<Option<String>, KsmError> {
        let path = self.dir.join(file);
        match read(&path) {
            Ok(bytes) => Ok(Some(String::from_utf8_lossy(&bytes).into_owned())),
            Err(e) if e.kind() == io::ErrorKind::NotFound => Ok(None),
            Err(e) => Err(KsmError::io(&path, e)),
        }
    }

    /// Checks that this user may change settings.
    ///
    /// # Errors
    /// If this user may not.
    pub fn may_write(&self) -> Result<(), KsmError> {
        let path = self.dir.join("run");
        OpenOptions::new().write(true).open(&path).map(drop).map_err(|e| KsmError::io(&path, e))
    }

    fn write(&self, setting: Setting, value: u64) -> Result<(), KsmError> {
        let path = self.dir.join(setting.name());
        let text = setting.text(value);
        let wrong = |source| KsmError::Refused { setting, text: text.clone(), source };
        let mut file = OpenOptions::new().write(true).truncate(true).open(&path).map_err(|e| {
            if e.kind() == io::ErrorKind::NotFound {
                KsmError::NoSetting { setting }
            } else {
                KsmError::io(&path, e)
            }
        })?;
        // write_all repeats an interrupted write. A signal interrupts run=2 (unmerge_ksm_pages), which
        // leaves run=0 behind and continues when it is written again.
        file.write_all(format!("{text}\n").as_bytes()).map_err(wrong)
    }

    /// Unmerges all pages of the host and leaves `run` at 2.
    pub(crate) fn unmerge(&self) -> Result<(), KsmError> {
        // Writing the present value of `run` has no effect (run_store).
        self.write(Setting::Run, 0)?;
        self.write(Setting::Run, 2)
    }

    /// Changes settings to the values in `wanted`. Other settings stay as they are.
    ///
    /// The kernel decides the order. It refuses `max_page_sharing` and `merge_across_nodes` (EBUSY) while any
    /// page is shared, so all pages are unmerged first, by run=2. It refuses `pages_to_scan` (EINVAL) while
    /// an advisor is on, and a change of the advisor resets it. `run` comes last.
    pub(crate) fn change(&self, wanted: &Settings) -> Result<(), KsmError> {
        let now = self.settings()?;
        let differs = |s: Setting| wanted.get(s).filter(|w| now.get(s) != Some(*w));
        if let Some((setting, _)) = wanted.iter().find(|(s, _)| now.get(*s).is_none()) {
            return Err(KsmError::NoSetting { setting });
        }
        let mut run = now.get(Setting::Run);
        let locked: Vec<_> = [Setting::MaxPageSharing, Setting::MergeAcrossNodes]
            .into_iter()
            .filter_map(|s| Some((s, differs(s)?)))
            .collect();
        if !locked.is_empty() {
            if self.counter(Counter::PagesShared)?.unwrap_or(0) > 0 || run == Some(1) {
                self.unmerge()?;
                run = Some(2);
            }
            for (setting, value) in locked {
                self.write(setting, value)?;
            }
        }
        for (setting, value) in wanted.iter() {
            if setting.is_plain() && differs(setting).is_some() {
                self.write(setting, value)?;
            }
        }
        let advisor = wanted.get(Setting::AdvisorMode).or(now.get(Setting::AdvisorMode));
        if let Some(mode) = differs(Setting::AdvisorMode) {
            self.write(Setting::AdvisorMode, mode)?;
        }
        if let (Some(pages), true) = (wanted.get(Setting::PagesToScan), advisor.unwrap_or(0) == 0) {
            // Read again, because a change of the advisor resets it (set_advisor_defaults).
            if self.settings()?.get(Setting::PagesToScan) != Some(pages) {
                self.write(Setting::PagesToScan, pages)?;
            }
        }
        match wanted.get(Setting::Run).or(now.get(Setting::Run)) {
            Some(wanted) if run != Some(wanted) => self.write(Setting::Run, wanted),
            _ => Ok(()),
        }
    }

    /// Settings that differ from `wanted`. Under an advisor `pages_to_scan` is left out, because the advisor
    /// changes it all the time.
    pub(crate) fn unlike(&self, wanted: &Settings) -> Result<Vec<Setting>, KsmError> {
        let now = self.settings()?;
        let advised = now.get(Setting::AdvisorMode).is_some_and(|m| m != 0);
        Ok(wanted
            .iter()
            .filter(|(s, v)| now.get(*s) != Some(*v) && !(advised && *s == Setting::PagesToScan))
            .map(|(s, _)| s)
            .collect())
    }
}

/// A file's text for an error message.
pub(crate) fn shown(text: &str) -> String {
    one_line(text.as_bytes())
}

#[cfg(test)]
mod tests;
