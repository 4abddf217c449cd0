// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What to run and in what guest: the command, the guest's hardware, kernel and root, and what is
//! recorded of it.

use std::ffi::OsString;
use std::path::PathBuf;
use std::time::Duration;

use bifold_trace::Windows;

/// How guest time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timing {
    /// By instructions executed: the same guest does the same, bit for bit.
    Exact,
    /// By the host's clock: faster, with more timer interrupts per instruction.
    Fast,
}

/// The guest's transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
#[allow(missing_docs)] // the kernel's own words
pub enum Thp {
    Always,
    Madvise,
    Never,
}

impl Thp {
    pub(crate) fn word(self) -> &'static str {
        match self {
            Thp::Always => "always",
            Thp::Madvise => "madvise",
            Thp::Never => "never",
        }
    }
}

/// What the guest sees as its root.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum Root {
    /// The host's root, read-only, under a writable layer in memory.
    Host,
    /// Only the command, its libraries and the files named.
    Initramfs {
        /// Further files and directories.
        include: Vec<PathBuf>,
    },
}

/// Where a recording begins.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Record {
    /// At the command's start: booting costs nothing, and the machine is cold.
    Command,
    /// At the kernel's first steps: what the command finds warm is in the stream. Takes one
    /// vCPU; user addresses are not randomised, so that they can be compared between runs.
    Boot,
}

/// The host's pages behind the guest's memory, see [`crate::under_kvm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostPage {
    /// Anonymous memory, never in huge pages.
    Size4K,
    /// Huge pages of hugetlbfs, as many as the guest's memory takes; the host must have them.
    Size2M,
}

/// What to run, and in what guest.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// Its working directory.
    pub cwd: PathBuf,
    /// Its environment; `PATH` of it finds the program.
    pub env: Vec<(OsString, OsString)>,
    /// How time passes.
    pub timing: Timing,
    /// 1 or 2.
    pub vcpus: u32,
    /// Whether the kernel isolates its page tables.
    pub kpti: bool,
    /// Transparent huge pages.
    pub thp: Thp,
    /// Guest memory.
    pub memory_mib: u64,
    /// Kernel image; Debian's if `None`.
    pub kernel: Option<PathBuf>,
    /// Its modules; beside it or in /lib/modules if `None`.
    pub modules: Option<PathBuf>,
    /// Root file system.
    pub root: Root,
    /// The command is ended after this long (host time from its start).
    pub timeout: Option<Duration>,
    /// A self-check every this many words of the stream; 0 = none.
    pub check_every: u64,
    /// Where the recording begins.
    pub record: Record,
    /// What the command reads from standard input, to its end.
    pub stdin: Vec<u8>,
    /// Whether the files that the command writes are wanted, see [`kept`](crate::CaptureReport::kept).
    /// Takes [`Root::Host`].
    pub keep: bool,
    /// Who runs, what is mapped where and what it is called goes into the stream too, so that
    /// costs can be attributed. Not with [`Record::Boot`].
    pub attribute: bool,
    /// Which part of the command is recorded, and how much of that.
    pub region: Region,
}

impl GuestSpec {
    /// This command, by its full path, in a guest of 256 MiB with nothing but the command in it; all
    /// of it is recorded, and only it.
    pub fn new(command: Vec<OsString>) -> GuestSpec {
        GuestSpec {
            command,
            cwd: PathBuf::from("/"),
            env: Vec::new(),
            timing: Timing::Exact,
            vcpus: 1,
            kpti: false,
            thp: Thp::Madvise,
            memory_mib: 256,
            kernel: None,
            modules: None,
            root: Root::Initramfs { include: Vec::new() },
            timeout: None,
            check_every: 0,
            record: Record::Command,
            stdin: Vec::new(),
            keep: false,
            attribute: false,
            region: Region::default(),
        }
    }
}

/// Which part of the command is recorded. The default is all of it.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Region {
    /// Where it begins.
    pub begin: Begin,
    /// Instructions of the guest that are left out from there on.
    pub skip: u64,
    /// Instructions after which it ends, and the command with it; `None`: it ends with the command.
    pub length: Option<u64>,
    /// Accesses are recorded in windows only.
    pub sample: Option<Windows>,
}

/// Where a region begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Begin {
    /// With the command.
    #[default]
    Command,
    /// Where the program executes `bifold_begin()` of `include/bifold.h`. It ends at `bifold_end()`.
    Marker,
    /// Where this function of the program is first entered.
    Function(String),
}

/// Below 4 GB, RAM ends here and the hole for devices begins (`max-ram-below-4g`).
pub(crate) const LOW_MIB: u64 = 2048;

/// Guest-physical frames of 4 KB, the hole below 4 GB included: frame numbers
/// in the stream are smaller than this.
pub fn guest_frames(spec: &GuestSpec) -> u64 {
    let mib = if spec.memory_mib > LOW_MIB { 4096 + spec.memory_mib - LOW_MIB } else { spec.memory_mib };
    mib << 8
}

/// Most bytes that a guest of this memory takes as standard input.
pub fn most_stdin(memory_mib: u64) -> u64 {
    (memory_mib << 20) / 4
}
