// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KSM's settings: their names and values, and sets of values.
//!
//! Every value is a number: switches are 0 and 1, and the advisor's modes are numbered in the kernel's order.
//! This module converts between numbers and the kernel's text, which differs for reading (`[none] scan-time`)
//! and writing (`none`).

use super::{KsmError, shown};
use std::collections::BTreeMap;
use std::fmt;

macro_rules! settings {
    ($($(#[doc = $doc:literal])+ $variant:ident $name:literal,)+) => {
        /// A setting of KSM, under its name in `/sys/kernel/mm/ksm`.
        #[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
        #[non_exhaustive]
        pub enum Setting {
            $($(#[doc = $doc])+ $variant,)+
        }

        impl Setting {
            /// All settings.
            pub const ALL: &[Setting] = &[$(Setting::$variant,)+];

            /// The name of the setting's file.
            pub const fn name(self) -> &'static str {
                match self { $(Setting::$variant => $name,)+ }
            }

            /// The setting's meaning.
            pub const fn doc(self) -> &'static str {
                match self { $(Setting::$variant => concat!($($doc),+),)+ }
            }
        }
    };
}

settings! {
    /// 0: ksmd rests, merged pages stay; 1: it runs; 2: it rests, and all pages have been unmerged.
    Run "run",
    /// Pages that ksmd visits per batch.
    PagesToScan "pages_to_scan",
    /// Milliseconds that ksmd sleeps between batches.
    SleepMillisecs "sleep_millisecs",
    /// Most mappings of one merged page; changed only while no page is shared.
    MaxPageSharing "max_page_sharing",
    /// 1: pages of different NUMA nodes may merge; changed only while no page is shared.
    MergeAcrossNodes "merge_across_nodes",
    /// 1: pages of zeros merge with the kernel's zero page.
    UseZeroPages "use_zero_pages",
    /// 1: pages that did not merge for several passes are skipped for some.
    SmartScan "smart_scan",
    /// 0 (`none`), or 1 (`scan-time`): pages_to_scan is set so that a pass takes the target time.
    AdvisorMode "advisor_mode",
    /// Most CPU that the advisor lets ksmd take, in percent.
    AdvisorMaxCpu "advisor_max_cpu",
    /// Least pages_to_scan that the advisor sets.
    AdvisorMinPagesToScan "advisor_min_pages_to_scan",
    /// Most pages_to_scan that the advisor sets.
    AdvisorMaxPagesToScan "advisor_max_pages_to_scan",
    /// Seconds that the advisor wants a pass to take.
    AdvisorTargetScanTime "advisor_target_scan_time",
    /// Milliseconds between looks through a chain of copies of one content for copies that are gone.
    ChainsPruneMillisecs "stable_node_chains_prune_millisecs",
}

/// The advisor's modes, by number.
const ADVISORS: [&str; 2] = ["none", "scan-time"];

impl Setting {
    /// The setting with this name.
    ///
    /// # Errors
    /// If there is no such setting. The error lists all names.
    pub fn named(name: &str) -> Result<Setting, KsmError> {
        Setting::ALL.iter().copied().find(|s| s.name() == name).ok_or_else(|| {
            let names: Vec<_> = Setting::ALL.iter().map(|s| s.name()).collect();
            KsmError::NoSuch { word: name.into(), why: format!("there are {}", names.join(", ")) }
        })
    }

    /// Whether the setting can be written at any time and changes no other setting.
    pub(crate) fn is_plain(self) -> bool {
        use Setting::*;
        !matches!(self, Run | PagesToScan | MaxPageSharing | MergeAcrossNodes | AdvisorMode)
    }

    /// The value in the text of a file or of a user.
    pub fn parse(self, text: &str) -> Option<u64> {
        let text = text.trim();
        if self != Setting::AdvisorMode {
            return text.parse().ok();
        }
        let marked = text.split_whitespace().find_map(|w| w.strip_prefix('[')?.strip_suffix(']'));
        let word = marked.unwrap_or(text);
        ADVISORS.iter().position(|a| *a == word).map(|n| n as u64)
    }

    /// A value as the kernel reads it.
    pub fn text(self, value: u64) -> String {
        match (self, ADVISORS.get(value as usize)) {
            (Setting::AdvisorMode, Some(word)) => (*word).into(),
            _ => value.to_string(),
        }
    }
}

impl fmt::Display for Setting {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.write_str(self.name())
    }
}

/// Values of some settings.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Settings(BTreeMap<Setting, u64>);

impl Settings {
    /// A set of values.
    pub fn of(values: &[(Setting, u64)]) -> Settings {
        Settings(values.iter().copied().collect())
    }

    /// The value of a setting, if the set has it.
    pub fn get(&self, setting: Setting) -> Option<u64> {
        self.0.get(&setting).copied()
    }

    /// Adds or replaces a value.
    pub fn put(&mut self, setting: Setting, value: u64) {
        self.0.insert(setting, value);
    }

    /// Adds or replaces a value, from the user's text.
    ///
    /// # Errors
    /// If there is no such setting, or the value is invalid.
    pub fn put_text(&mut self, name: &str, value: &str) -> Result<(), KsmError> {
        let setting = Setting::named(name)?;
        let value = setting.parse(value).ok_or_else(|| KsmError::NoSuch {
            word: format!("{name}={value}"),
            why: match setting {
                Setting::AdvisorMode => format!("{name} is one of {}", ADVISORS.join(", ")),
                _ => format!("{name} takes a number, not {}", shown(value)),
            },
        })?;
        self.put(setting, value);
        Ok(())
    }

    /// All values, in the order of [`Setting::ALL`].
    pub fn iter(&self) -> impl Iterator<Item = (Setting, u64)> {
        self.0.iter().map(|(s, v)| (*s, *v))
    }

    /// Whether the set is empty.
    pub fn is_empty(&self) -> bool {
        self.0.is_empty()
    }
}

impl fmt::Display for Settings {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        for (n, (setting, value)) in self.iter().enumerate() {
            let comma = if n == 0 { "" } else { ", " };
            write!(f, "{comma}{setting}={}", setting.text(value))?;
        }
        Ok(())
    }
}
