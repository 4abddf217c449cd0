// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What passes between this machine and the laboratory's init (`bin/lab-init.rs`).
//!
//! The jobs lie in the image as JSON. Init answers over a virtio-serial port with
//! lines of JSON ([`Word`]); after [`Word::File`] its bytes follow. The only thing
//! that goes the other way is the answer to a [`Word::Ask`]: one line.

use serde::{Deserialize, Serialize};

/// Where things lie in the laboratory.
pub mod at {
    /// The [`super::Jobs`].
    pub const JOBS: &str = "/lab/jobs.json";
    /// Modules that init loads at once, named in the order of their needs.
    pub const MODULES: &str = "/lab/modules";
    /// The vendor's module of KVM: `nested.ko` and `shadow.ko` (see `kvm_module.rs`), or the one below.
    pub const KVM: &str = "/lab/kvm";
    /// There, where a VM's mode can be switched.
    pub const SWITCHABLE: &str = "switchable.ko";
    /// Its parameter for new VMs.
    pub const PAGING_MODE: &str = "/sys/module/kvm/parameters/paging_mode";
    /// The inner guests' kernel and its modules.
    pub const INNER_KERNEL: &str = "/lab/inner/vmlinux";
    #[allow(missing_docs)]
    pub const INNER_MODULES: &str = "/lab/inner/modules";
    /// The initramfs of a storm's guest.
    pub const STORM: &str = "/lab/inner/storm.cpio";
    /// Files that jobs may leave behind for this machine.
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
    /// What the guest's root holds besides the program and its libraries.
    pub include: Vec<String>,
    /// Guest memory.
    pub memory_mib: u64,
    /// Whether the guest's kernel isolates its page tables.
    pub kpti: bool,
    /// The host's pages behind it.
    pub backing: InnerBacking,
    /// Wait this long first, so that runs differ in where timer ticks fall.
    pub delay_us: u64,
    /// Trace events to record while it runs, as `system:event`.
    pub trace: Vec<String>,
    /// Room for them.
    pub trace_mib: u64,
}

/// The pages behind the guest's memory.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub enum Pages {
    /// 4 KB pages.
    #[serde(rename = "4k")]
    Small,
    /// Transparent huge pages, as the host has them.
    #[serde(rename = "thp")]
    Huge,
    /// 4 KB pages that KSM merges all the time.
    #[serde(rename = "ksm")]
    Merged,
}

/// What happens to the guest's memory besides switches.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Noise {
    /// It is swapped out and comes back.
    Swap,
    /// Its dirty pages are logged, on and off.
    Dirty,
    /// Huge pages are split and collapsed.
    Split,
}

/// One storm.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Storm {
    /// The guest's CPUs.
    pub vcpus: u32,
    /// Guest memory.
    pub memory_mib: u64,
    /// Kinds of load with commas between, or `all`.
    pub load: String,
    /// Of the load and of the times between switches.
    pub seed: u64,
    /// Whether the guest's kernel isolates its page tables.
    pub kpti: bool,
    /// The pages behind the guest's memory.
    pub pages: Pages,
    /// What else happens.
    pub noise: Vec<Noise>,
    /// How many switches. With none, the guest runs for the time below in its first mode.
    pub switches: u64,
    /// No stay in a mode is shorter, in guest time (see `storm/switch.rs`).
    pub stay_us: u64,
    /// The load's longest time.
    pub seconds: u64,
    /// How often it moves to another QEMU meanwhile. Not together with noise.
    #[serde(default)]
    pub migrations: u64,
}

/// One thing to do in the laboratory.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(tag = "do", rename_all = "kebab-case")]
pub enum Job {
    /// Loads the vendor's module of KVM anew, with nested or with shadow paging.
    Kvm {
        /// Nested paging.
        nested: bool,
    },
    /// Runs a program.
    Run {
        /// Program and arguments.
        command: Vec<String>,
    },
    /// Boots an inner guest and runs a command there.
    Inner(Inner),
    /// Boots an inner guest under load and switches its paging mode meanwhile.
    Storm(Storm),
}

/// Everything to do in one boot, in order. The first failure ends it.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Jobs {
    /// The jobs.
    pub jobs: Vec<Job>,
    /// 2 MB pages to set aside for inner guests.
    pub huge_pages: u64,
}

/// How a program or an inner guest's command ended.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct Done {
    /// Exit status; -SIGNAL if killed.
    pub status: i32,
    /// What it printed.
    pub stdout: String,
    /// What it printed as errors.
    pub stderr: String,
}

/// What init says.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Word {
    /// The laboratory is up: the kernel's release.
    Up(String),
    /// How far the current job is.
    Note(String),
    /// A line of a program that waits for an answer (see [`ASK`]).
    Ask(String),
    /// A file follows.
    File {
        /// Its name.
        name: String,
        /// How many bytes.
        bytes: u64,
    },
    /// The current job is done.
    Done(Done),
    /// The current job could not be done; nothing follows, and the machine waits for its end.
    Failed(String),
    /// All are done; the machine waits for its end.
    End,
}

/// Lines that start so are passed on, and the answer is given to the program.
pub const ASK: &str = "{\"poke\":";
