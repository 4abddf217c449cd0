// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts about a run beside the model's figures: the source of its events, the guest, how the command
//! ended, and whether the run is complete.

use crate::text::shell_words;
use bifold_model::{ChosenBy, KvmBy, Profile, Quality};
use bifold_trace::{Clock, CommandExit, Stats, TableFormat};
use serde::{Deserialize, Serialize};

/// Facts about a run.
#[derive(Debug, Clone, PartialEq, Serialize)]
pub struct Meta {
    /// Version of Bifold.
    pub bifold: String,
    /// The source of the events.
    pub input: Input,
    /// The guest that made the events; none for a generator.
    pub guest: Option<Guest>,
    /// How the command ended; none for a generator, or if the end is unknown.
    pub exit: Option<CommandExit>,
    /// Why the events end before the command; none if they do not.
    pub partial: Option<Partial>,
    /// The capture's own checks; none for a generator, or if the end is unknown.
    pub capture_checks: Option<Stats>,
    /// How time passed for the command; none for a generator.
    #[serde(default)]
    pub clock: Option<Clock>,
    /// The hardware profile as resolved, with every geometry and cost behind the figures.
    pub hardware: Profile,
}

/// The source of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Input {
    /// A guest that ran just now.
    Guest,
    /// A file written by `bifold record`.
    Recording {
        /// Path as given by the user.
        path: String,
        /// The recorded generator; none if a guest was recorded.
        generator: Option<String>,
        /// The tool whose trace of a user program was imported; none if a guest was recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        imported: Option<String>,
        /// The program whose trace was imported.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
    },
    /// A built-in generator.
    Generator {
        /// Name and length as given by the user.
        name: String,
    },
}

/// The guest in which a command ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct Guest {
    /// The command and its arguments.
    pub command: Vec<String>,
    /// `exact` or `fast`.
    pub timing: Option<String>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Number of NUMA nodes; none if the guest knows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Format of the guest's page tables; absent for 4 levels.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tables: TableFormat,
    /// Whether the kernel isolated its page tables from user mode (KPTI).
    pub kpti: Option<bool>,
    /// Transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// Memory reserved for hugetlbfs, MiB; absent without it.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugetlb_mib: Option<u64>,
    /// Memory, MiB.
    pub memory_mib: Option<u64>,
    /// Root file system: `host` or `initramfs`.
    pub root: Option<String>,
    /// Version of the guest's kernel.
    pub kernel: Option<String>,
    /// Version of QEMU.
    pub qemu: Option<String>,
    /// The part of the command that was recorded, in words; none for the whole command.
    #[serde(default)]
    pub region: Option<String>,
}

fn is_default(tables: &TableFormat) -> bool {
    *tables == TableFormat::default()
}

/// Why events end before the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "snake_case")]
pub enum Partial {
    /// The user stopped the run.
    Interrupted,
    /// The time limit passed.
    TimedOut,
    /// The capture, the recording or an output failed.
    Failed,
    /// The recording that was read ends before the command.
    Recording,
}

impl Meta {
    /// One line that names the command, its recording, or the generator.
    pub fn what(&self) -> String {
        let command = self.guest.as_ref().map(|g| shell_words(&g.command));
        match &self.input {
            Input::Guest => command.unwrap_or_else(|| "a guest".into()),
            Input::Generator { name } => format!("generator {name}"),
            Input::Recording { path, generator, imported, program } => {
                let program = program.as_deref().unwrap_or("a user program");
                let generator = || generator.as_ref().map(|g| format!("generator {g}"));
                let imported = || imported.as_ref().map(|tool| format!("{tool} trace of {program}"));
                let of = command.or_else(generator).or_else(imported).unwrap_or_else(|| "a guest".into());
                format!("{of} (recorded in {})", shell_words(&[path]))
            }
        }
    }
}

/// The profile's name with the user's changes and the modelled KVM:
/// `i5-7600 (changed: cpu.base_cpi=1.0; kvm linux-6.1)`.
pub fn profile_words(profile: &Profile) -> String {
    let whose = match profile.chosen.kvm_by {
        KvmBy::Profile => "",
        KvmBy::Host => " as this host",
        KvmBy::Newest => ", the newest compared",
    };
    named_profile(&profile.name, &profile.overrides, Some(format!("{}{whose}", profile.kvm.name())))
}

/// A profile's name with the user's changes and the modelled KVM, as far as it is known.
pub fn named_profile(name: &str, overrides: &[String], kvm: Option<String>) -> String {
    let changed: Vec<&str> =
        overrides.iter().filter(|o| !o.starts_with("kvm=")).map(String::as_str).collect();
    let changed = (!changed.is_empty()).then(|| format!("changed: {}", changed.join(", ")));
    let more: Vec<String> = changed.into_iter().chain(kvm.map(|kvm| format!("kvm {kvm}"))).collect();
    if more.is_empty() { name.into() } else { format!("{name} ({})", more.join("; ")) }
}

/// How the profile was chosen and how good it is, and for a profile that was not named, how to name one:
/// `built-in, as named`.
pub fn profile_choice(profile: &Profile) -> String {
    let quality = match profile.quality() {
        Quality::Measured => "measured",
        Quality::BuiltIn => "built-in",
        Quality::Guessed => "guessed",
        Quality::File => "from a file",
    };
    let (how, better) = match profile.chosen.by {
        ChosenBy::Name => (", as named", ""),
        ChosenBy::Baseline => (", as in the baseline", ""),
        ChosenBy::State => (", as in the file of --state", ""),
        ChosenBy::Measured => (" on this machine", " (another: --profile)"),
        ChosenBy::Processor => {
            (" for this processor", " (better: `bifold profile measure`; another: --profile)")
        }
        ChosenBy::Vendor => {
            (": its vendor's newest server", " (better: `bifold profile measure`; another: --profile)")
        }
        ChosenBy::Unknown => {
            (": the processor is unknown", " (better: `bifold profile measure`; another: --profile)")
        }
    };
    format!("{quality}{how}{better}")
}

impl Guest {
    /// A guest of which nothing is known but its command.
    pub fn named(command: Vec<String>) -> Guest {
        Guest {
            command,
            timing: None,
            vcpus: 1,
            nodes: None,
            tables: TableFormat::default(),
            kpti: None,
            thp: None,
            hugetlb_mib: None,
            memory_mib: None,
            root: None,
            kernel: None,
            qemu: None,
            region: None,
        }
    }

    /// One line for people, with the known facts only.
    pub fn describe(&self) -> String {
        let mut parts = Vec::new();
        let mut add = |text: Option<String>| parts.extend(text);
        add(self.kernel.as_ref().map(|k| format!("Linux {k}")));
        add(self.qemu.as_ref().map(|q| format!("QEMU {q}")));
        add(Some(format!("{} vCPU{}", self.vcpus, if self.vcpus == 1 { "" } else { "s" })));
        add(self.nodes.map(|n| format!("{n} NUMA nodes")));
        add(self.memory_mib.map(|m| format!("{m} MiB")));
        add((!is_default(&self.tables)).then(|| format!("{} tables", self.tables.name())));
        add(self.kpti.map(|k| format!("KPTI {}", if k { "on" } else { "off" })));
        add(self.thp.as_ref().map(|t| format!("THP {t}")));
        add(self.hugetlb_mib.map(|m| format!("hugetlbfs {m} MiB")));
        add(self.root.as_ref().map(|r| format!("{r} root")));
        add(self.timing.as_ref().map(|t| format!("{t} timing")));
        parts.join(", ")
    }
}

impl Partial {
    /// For people, after "partial: ".
    pub fn describe(self) -> &'static str {
        match self {
            Partial::Interrupted => "interrupted; figures cover the run up to there",
            Partial::TimedOut => "stopped at the time limit; figures cover the run up to there",
            Partial::Recording => "the recording ends before the command; figures cover the recording",
            Partial::Failed => "ended by an error; figures cover the run up to there",
        }
    }
}
