// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What is known about a run beside the model's figures: where the events came
//! from, the guest, how the command ended, whether the run is complete.

use crate::text::shell_words;
use bifold_trace::Stats;
use serde::{Deserialize, Serialize};

/// What was run, and how it ended.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Meta {
    /// Version of Bifold.
    pub bifold: String,
    /// Where the events came from.
    pub input: Input,
    /// The guest that made the events; none for a generator.
    pub guest: Option<Guest>,
    /// How the command ended; none for a generator, or where the end was not seen.
    pub exit: Option<Exit>,
    /// Why the events end before the command did, if so.
    pub partial: Option<Partial>,
    /// The capture's own checks; none for a generator, or where the end was not seen.
    pub capture_checks: Option<Stats>,
    /// What the profile marks as prior: starting values to be measured.
    pub priors: Vec<String>,
}

/// Where events came from.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Input {
    /// A guest, just now.
    Guest,
    /// A file written by `bifold record`.
    Recording {
        /// Its path, as given.
        path: String,
    },
    /// A built-in generator.
    Generator {
        /// Its name and length, as given.
        name: String,
    },
}

/// The guest in which a command ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guest {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// `exact` or `fast`.
    pub timing: String,
    /// Number of vCPUs.
    pub vcpus: u64,
    /// Whether the kernel kept page tables of its own (KPTI).
    pub kpti: bool,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: String,
    /// Memory, MiB.
    pub memory_mib: u64,
    /// `host` or `initramfs`.
    pub root: String,
    /// Version of the guest's kernel.
    pub kernel: String,
    /// Version of QEMU.
    pub qemu: String,
}

/// How a command ended.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "kind", content = "value", rename_all = "snake_case")]
pub enum Exit {
    /// It exited with this status.
    Code(i32),
    /// It was ended by this signal.
    Signal(i32),
    /// The guest ran out of memory.
    OutOfMemory,
    /// It was stopped at the time limit.
    TimedOut,
    /// It was stopped by the user.
    Interrupted,
}

/// Why events end before the command did.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// The user stopped it.
    Interrupted,
    /// The time limit passed.
    TimedOut,
    /// The capture, the recording or an output failed.
    Failed,
}

impl Meta {
    /// One line that names what ran: the command, the recording of it, or the generator.
    pub fn what(&self) -> String {
        let command = self.guest.as_ref().map(|g| shell_words(&g.command));
        match (&self.input, command) {
            (Input::Guest, Some(c)) => c,
            (Input::Guest, None) => "guest".into(),
            (Input::Recording { path }, Some(c)) => {
                format!("{c} (recorded in {})", shell_words(&[path]))
            }
            (Input::Recording { path }, None) => format!("recording {}", shell_words(&[path])),
            (Input::Generator { name }, _) => format!("generator {name}"),
        }
    }
}

impl Guest {
    /// One line for people.
    pub fn describe(&self) -> String {
        format!(
            "Linux {}, QEMU {}, {} vCPU{}, {} MiB, KPTI {}, THP {}, {} root, {} timing",
            self.kernel,
            self.qemu,
            self.vcpus,
            if self.vcpus == 1 { "" } else { "s" },
            self.memory_mib,
            if self.kpti { "on" } else { "off" },
            self.thp,
            self.root,
            self.timing,
        )
    }
}

impl Exit {
    /// For people: `exit status 1`, `ended by signal 11`, ...
    pub fn describe(self) -> String {
        match self {
            Exit::Code(c) => format!("exit status {c}"),
            Exit::Signal(s) => format!("ended by signal {s}"),
            Exit::OutOfMemory => "the guest ran out of memory".into(),
            Exit::TimedOut => "stopped at the time limit".into(),
            Exit::Interrupted => "stopped by the user".into(),
        }
    }
}

impl Partial {
    /// For people, after "partial: ".
    pub fn describe(self) -> &'static str {
        match self {
            Partial::Interrupted => "interrupted; figures cover the run up to there",
            Partial::TimedOut => "stopped at the time limit; figures cover the run up to there",
            Partial::Failed => "ended by an error; figures cover the run up to there",
        }
    }
}
