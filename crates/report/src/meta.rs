// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts about a run beside the model's figures: the source of its events, the guest, how the command
//! ended, and whether the run is complete.

use crate::text::shell_words;
use bifold_model::{ChosenBy, KvmBy, Profile, Quality};
use bifold_trace::{Clock, CommandExit, Stats, TableFormat};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// Facts about a run.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Meta {
    /// Version of Bifold, and after `+` the revision that it was built from: `0.1.0+204b6cbb1234`.
    /// `.modified` follows where files had changed. Without a repository or a release's archive, the version
    /// alone.
    pub bifold: String,
    /// Where the events came from.
    pub input: Input,
    /// The guest that made the events; null for a generator. A null in it is what a recording does not say.
    pub guest: Option<Guest>,
    /// How the command ended; null for a generator, or where the end was not seen.
    pub exit: Option<CommandExit>,
    /// Why the events end before the command did; null if they do not.
    pub partial: Option<Partial>,
    /// What the capture counted and checked itself; null for a generator, or where the end was not seen.
    pub capture_checks: Option<Stats>,
    /// How time passed for the command; null for a generator and for recordings made before version 0.2.
    #[serde(default)]
    pub clock: Option<Clock>,
    /// The hardware profile as used, overrides included.
    pub hardware: Profile,
}

/// The source of events.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(tag = "kind", rename_all = "lowercase")]
pub enum Input {
    /// A guest that ran just now.
    Guest,
    /// A file written by `bifold record`.
    Recording {
        /// The recording, as given.
        path: String,
        /// The generator recorded; null if a guest was recorded.
        generator: Option<String>,
        /// The tool whose trace of a user program was imported: lackey, drmemtrace or champsim. Absent if a
        /// guest or a generator was recorded.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        imported: Option<String>,
        /// The program whose trace was imported, as the trace or its file names it.
        #[serde(default, skip_serializing_if = "Option::is_none")]
        program: Option<String>,
    },
    /// A built-in generator.
    Generator {
        /// The generator and its length, as given.
        name: String,
    },
}

/// The guest in which a command ran.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct Guest {
    /// The command and its arguments; bytes that are no UTF-8 are replaced.
    pub command: Vec<String>,
    /// exact: guest time counts instructions; fast: it follows the host's.
    pub timing: Option<String>,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Number of NUMA nodes; absent if the guest knows none.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub nodes: Option<u32>,
    /// Format of the guest's page tables; absent for 4-level.
    #[serde(default, skip_serializing_if = "is_default")]
    pub tables: TableFormat,
    /// Whether the guest's kernel isolated its page tables from user mode (KPTI).
    pub kpti: Option<bool>,
    /// The guest's transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// Memory reserved for hugetlbfs; absent without it. Unit: MiB.
    #[serde(default, skip_serializing_if = "Option::is_none")]
    pub hugetlb_mib: Option<u64>,
    /// Memory. Unit: MiB.
    pub memory_mib: Option<u64>,
    /// The guest's root file system: `host` or `initramfs`.
    pub root: Option<String>,
    /// Version of the guest's kernel.
    pub kernel: Option<String>,
    /// Version of QEMU.
    pub qemu: Option<String>,
    /// Which part of the command was recorded, in words; null for all of it.
    #[serde(default)]
    pub region: Option<String>,
}

fn is_default(tables: &TableFormat) -> bool {
    *tables == TableFormat::default()
}

/// Why events end before the command.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
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
