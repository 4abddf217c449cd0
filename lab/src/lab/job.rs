// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The protocol between this machine and the laboratory's init (`bin/lab-init`).
//!
//! The jobs are JSON in the image. Init answers over a virtio-serial port with lines of JSON ([`Word`]); the
//! bytes of a file follow its [`Word::File`]. The only message to init is the answer to a [`Word::Ask`], one
//! line.

use std::collections::BTreeMap;
use std::os::unix::process::ExitStatusExt;
use std::process::ExitStatus;

use bifold_guest::TableFormat;
use serde::{Deserialize, Serialize};

/// Paths in the laboratory.
pub mod at {
    /// The [`super::Jobs`].
    pub const JOBS: &str = "/lab/jobs.json";
    /// Modules that init loads at its start, named in the order of their dependencies.
    pub const MODULES: &str = "/lab/modules";
    /// The vendor's module of KVM: `nested.ko` and `shadow.ko` (see `kvm_module.rs`), or the next path.
    pub const KVM: &str = "/lab/kvm";
    /// The vendor's module of a KVM that can switch VMs.
    pub const SWITCHABLE: &str = "switchable.ko";
    /// Parameters for the vendor's module besides nested paging, separated by spaces.
    pub const PARAMETERS: &str = "/lab/parameters";
    /// KVM's parameter for the mode of new VMs.
    pub const PAGING_MODE: &str = "/sys/module/kvm/parameters/paging_mode";
    /// The inner guests' kernel and its modules.
    pub const INNER_KERNEL: &str = "/lab/inner/vmlinux";
    #[allow(missing_docs)]
    pub const INNER_MODULES: &str = "/lab/inner/modules";
    /// The initramfs of a storm's guest.
    pub const STORM: &str = "/lab/inner/storm.cpio";
    /// The initramfs of a machine inside.
    pub const MACHINE: &str = "/lab/inner/machine.cpio";
    /// Directory for files that a job sends to this machine.
    pub const OUT: &str = "/lab/out";
}

/// Name of the virtio-serial port.
pub const PORT: &str = "bifold.lab";

/// The host's page size behind an inner guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[allow(missing_docs)]
pub enum InnerBacking {
    #[serde(rename = "4k")]
    Small,
    #[serde(rename = "2m")]
    Huge,
}

/// An inner Linux guest under stock QEMU.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Inner {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Files in the guest's root besides the program and its libraries.
    pub include: Vec<String>,
    /// Guest memory.
    pub memory_mib: u64,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Whether the guest's kernel isolates its page tables.
    pub kpti: bool,
    /// The format of its page tables.
    #[serde(default)]
    pub tables: TableFormat,
    /// The host's pages behind it.
    pub backing: InnerBacking,
    /// Time to wait first, so that timer ticks fall at different places in each run.
    pub delay_us: u64,
    /// Whether its root is the laboratory's own over 9p, under a layer in memory, and not an initramfs of its
    /// own.
    #[serde(default)]
    pub host_root: bool,
    /// Trace events to record while it runs, as `system:event`.
    pub trace: Vec<String>,
    /// Events to define first, as lines of `kprobe_events`. With any, the laboratory's symbols come as the
    /// file [`Inner::SYMBOLS`].
    #[serde(default)]
    pub probes: Vec<String>,
    /// Size of the trace buffer.
    pub trace_mib: u64,
    /// What the host holds of it at most, if it pages out. Needs a disk for swapping, and busybox.
    #[serde(default)]
    pub limit: Option<Limit>,
}

impl Inner {
    /// Name of the file with the text of `/proc/kallsyms`.
    pub const SYMBOLS: &str = "kallsyms";

    /// A guest with one vCPU and small pages behind it, of which nothing is traced or held back.
    pub fn new(command: Vec<String>, memory_mib: u64) -> Inner {
        Inner {
            command,
            include: Vec::new(),
            memory_mib,
            vcpus: 1,
            kpti: false,
            tables: TableFormat::FourLevel,
            backing: InnerBacking::Small,
            host_root: false,
            probes: Vec::new(),
            delay_us: 0,
            trace: Vec::new(),
            trace_mib: 0,
            limit: None,
        }
    }
}

/// A laboratory inside: it runs under the laboratory's KVM, has a KVM of its own and the jobs of
/// [`Plan::inside`](super::Plan::inside). Its outputs come back as files of this job ([`Machine::done`]).
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Machine {
    /// Its memory.
    pub memory_mib: u64,
    /// The host's pages behind it.
    pub backing: InnerBacking,
    /// Trace events to record outside while it runs, as `system:event`.
    pub trace: Vec<String>,
    /// Size of the trace buffer.
    pub trace_mib: u64,
}

impl Machine {
    /// Begins the names of the files that the machine's job of this number left.
    pub fn of_job(number: usize) -> String {
        format!("inside/{number}/")
    }

    /// Name of the file that has the [`Done`] of the machine's job of this number.
    pub fn done(number: usize) -> String {
        Machine::of_job(number) + "done.json"
    }
}

/// A limit of what the host holds of an inner guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limit {
    /// Frames of the guest's memory.
    pub frames: u64,
    /// The window at whose beginning the limit begins. The guest should sleep there.
    pub window: u64,
}

/// How a limit was kept, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Limited {
    /// What the host held of the guest before the limit.
    pub before: u64,
    /// The same right after the limit began.
    pub after: u64,
    /// The same at the end of the last window.
    pub last: u64,
    /// What it held of QEMU's own memory when the limit began. The cgroup may hold so much more.
    pub others: u64,
    /// The same at the end of the last window.
    pub last_others: u64,
    /// Whether the host's kernel has lists of generations (MGLRU) in use.
    pub generations: bool,
}

impl Limited {
    /// Name of its file among the job's.
    pub const FILE: &str = "limited.json";
}

/// The pages behind the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// 4 KB pages.
    #[serde(rename = "4k")]
    Small,
    /// Transparent huge pages of the host.
    #[serde(rename = "thp")]
    Huge,
    /// 4 KB pages that KSM merges continuously.
    #[serde(rename = "ksm")]
    Merged,
}

/// Stress of the guest's memory besides switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Noise {
    /// Guest memory is swapped out and in.
    Swap,
    /// Dirty logs are turned on and off.
    Dirty,
    /// Huge pages are split and collapsed.
    Split,
}

/// A storm of switches.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storm {
    /// Number of the guest's vCPUs.
    pub vcpus: u32,
    /// Guest memory.
    pub memory_mib: u64,
    /// Kinds of load, separated by commas, or `all`.
    pub load: String,
    /// Seed of the load and of the times between switches.
    pub seed: u64,
    /// Whether the guest's kernel isolates its page tables.
    pub kpti: bool,
    /// The pages behind the guest's memory.
    pub pages: Pages,
    /// Further stress of the guest's memory.
    pub noise: Vec<Noise>,
    /// Number of switches. With 0 the guest stays in its first mode for `seconds`.
    pub switches: u64,
    /// Shortest stay in a mode, in guest time (see `storm/switch.rs`).
    pub stay_us: u64,
    /// Time limit of the load.
    pub seconds: u64,
    /// Number of migrations to another QEMU. Not together with noise.
    #[serde(default)]
    pub migrations: u64,
}

/// A run of another project's test of KVM.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Trial {
    /// Program and arguments.
    pub command: Vec<String>,
    /// Time limit, in the laboratory's time.
    pub seconds: u64,
    /// Time between two switches of every VM; `None` = no switches.
    pub switch_every_us: Option<u64>,
}

/// What a [`Trial`] tells besides its program's end.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct TrialEnd {
    /// Whether the time limit ended the program.
    pub late: bool,
    /// Number of switches.
    pub switches: u64,
    /// Refused switches by error.
    pub refused: BTreeMap<String, u64>,
    /// Errors and warnings of the kernel.
    pub messages: Vec<String>,
}

impl TrialEnd {
    /// Name of its file among the job's.
    pub const FILE: &str = "trial.json";
}

/// A job of the laboratory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Job {
    /// Reloads the vendor's module of KVM.
    Kvm {
        /// Whether new VMs use nested paging (otherwise shadow paging).
        nested: bool,
    },
    /// Runs a program.
    Run {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Boots an inner guest and runs a command there.
    Inner(Inner),
    /// Boots a laboratory inside and runs its jobs.
    Machine(Machine),
    /// Boots an inner guest under load and switches its paging mode.
    Storm(Storm),
    /// Runs another project's test of KVM.
    Trial(Trial),
}

impl Job {
    /// A shell script.
    pub(crate) fn sh(script: &str) -> Job {
        Job::Run { command: crate::sh(script) }
    }
}

/// The jobs of a boot, in order. The first failure ends the boot.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jobs {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// Number of 2 MB pages to reserve for inner guests.
    pub huge_pages: u64,
}

impl From<Vec<Job>> for Jobs {
    /// The jobs, without 2 MB pages.
    fn from(jobs: Vec<Job>) -> Jobs {
        Jobs { jobs, huge_pages: 0 }
    }
}

/// How a program or an inner guest's command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Exit status; -SIGNAL if killed.
    pub status: i32,
    /// Standard output.
    pub stdout: String,
    /// Standard error.
    pub stderr: String,
}

impl Done {
    /// How a process ended that said this.
    pub fn of(status: ExitStatus, stdout: String, stderr: String) -> Done {
        Done { status: status.code().unwrap_or_else(|| -status.signal().unwrap_or(1)), stdout, stderr }
    }
}

/// A message from init.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The laboratory has booted. The value is the kernel's release.
    Up(String),
    /// Progress of the current job.
    Note(String),
    /// A line of a program that waits for an answer (see [`ASK`]).
    Ask(String),
    /// A file follows.
    File {
        /// The file's name.
        name: String,
        /// Number of bytes.
        bytes: u64,
    },
    /// The current job is done.
    Done(Done),
    /// The processor lacks what the current job needs. This is the last message; the machine waits to be
    /// ended.
    Lacks(String),
    /// The current job failed. This is the last message; the machine waits to be ended.
    Failed(String),
    /// All jobs are done. This is the last message; the machine waits to be ended.
    End,
}

/// A program's line with this start is a question, a [`Poke`]. Init passes it on and gives the answer to the
/// program. Under Bochs, init answers by itself, because the emulator writes memory for a program inside.
pub const ASK: &str = "{\"poke\":";
/// Begins a line in which a program of [`Job::Run`] tells how far it is.
pub const NOTE: &str = "note: ";

/// The question for words of the laboratory's memory to be written.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Poke {
    /// Physical addresses and values of 8-byte words.
    pub poke: Vec<(u64, u64)>,
}

impl Poke {
    /// The answer when all words are written.
    pub const DONE: &str = "poked";
}
