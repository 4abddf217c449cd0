// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Specification of a captured guest: the command, the guest's hardware, kernel and root, and which part of
//! the command is recorded.

use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;
use std::time::Duration;

use bifold_trace::{MOST_VCPUS, TableFormat, Windows};

use crate::error::GuestError;
use crate::initramfs::INIT_32;

/// How guest time passes.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Timing {
    /// Guest time counts executed instructions, so that runs repeat bit for bit.
    Exact,
    /// Guest time follows the host's clock. Faster, with more timer interrupts per instruction.
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
    /// The kernel's name of the setting.
    pub fn word(self) -> &'static str {
        match self {
            Thp::Always => "always",
            Thp::Madvise => "madvise",
            Thp::Never => "never",
        }
    }
}

/// The guest's root file system.
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
    /// At the command's start. Booting is not recorded, and the model starts cold.
    Command,
    /// At the kernel's first instructions, so that the model knows what is warm when the command starts.
    /// User addresses are not randomised, so that runs can be compared.
    Boot,
}

/// The host's pages behind the guest's memory, see [`crate::under_kvm`].
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum HostPage {
    /// Anonymous memory, never in huge pages.
    Size4K,
    /// Huge pages of hugetlbfs. The host must have enough for the guest's memory.
    Size2M,
}

/// What to run, and in what guest.
#[derive(Debug, Clone)]
pub struct GuestSpec {
    /// Program and arguments.
    pub command: Vec<OsString>,
    /// The command's working directory.
    pub cwd: PathBuf,
    /// The command's environment. Its `PATH` finds the program.
    pub env: Vec<(OsString, OsString)>,
    /// How guest time passes.
    pub timing: Timing,
    /// Number of vCPUs, 1 to [`MOST_VCPUS`].
    pub vcpus: u32,
    /// Number of NUMA nodes that the guest sees, at most one for each vCPU. Memory and vCPUs are dealt out
    /// evenly.
    pub nodes: u32,
    /// The vendor that the guest's CPUID names. Linux chooses instructions by it (those that clear pages) and
    /// MSRs.
    pub cpu_vendor: &'static str,
    /// The format of the guest's tables. It decides between 64-bit and 32-bit kernels.
    pub tables: TableFormat,
    /// Whether the guest's kernel isolates its page tables (KPTI).
    pub kpti: bool,
    /// The guest's transparent huge pages.
    pub thp: Thp,
    /// Memory that the guest's kernel reserves as 2 MB pages for hugetlbfs, MiB.
    pub hugetlb_mib: u64,
    /// Guest memory in MiB.
    pub memory_mib: u64,
    /// Kernel image; Debian's if `None`.
    pub kernel: Option<PathBuf>,
    /// The kernel's modules; `None` searches /lib/modules.
    pub modules: Option<PathBuf>,
    /// The guest's root file system.
    pub root: Root,
    /// Time limit of the command, in host time from its start.
    pub timeout: Option<Duration>,
    /// Number of words of the stream between self-checks; 0 = no checks.
    pub check_every: u64,
    /// Where the recording begins.
    pub record: Record,
    /// The command's standard input.
    pub stdin: Vec<u8>,
    /// Whether to return the files that the command writes, see [`kept`](crate::CaptureReport::kept).
    /// Needs [`Root::Host`].
    pub keep: bool,
    /// Whether the stream also has processes, mappings and symbols, so that costs can be attributed. Not
    /// with [`Record::Boot`].
    pub attribute: bool,
    /// Whether the stream also has calls and returns of user code. Needs `attribute`.
    pub stacks: bool,
    /// Whether the stream also has looks at the guest's memory ([`bifold_trace::MemoryLook`]) and, with exact
    /// timing, what the host's files move from and to that. Not in sampled streams.
    pub looks: bool,
    /// Which part of the command is recorded.
    pub region: Region,
    /// The folder of kept boots ([`crate::boots`]) from which the run begins if it can; `None` boots for this
    /// run and keeps nothing.
    pub kept_boots: Option<PathBuf>,
    /// Set by the consumer of the events when it has seen enough: the command then ends.
    pub enough: Option<Arc<AtomicBool>>,
}

impl GuestSpec {
    /// A guest of 256 MiB that holds nothing but this command (a full path) and records all of it.
    pub fn new(command: Vec<OsString>) -> GuestSpec {
        GuestSpec {
            command,
            cwd: PathBuf::from("/"),
            env: Vec::new(),
            timing: Timing::Exact,
            vcpus: 1,
            nodes: 1,
            cpu_vendor: "AuthenticAMD",
            tables: TableFormat::FourLevel,
            kpti: false,
            thp: Thp::Madvise,
            hugetlb_mib: 0,
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
            stacks: false,
            looks: false,
            region: Region::default(),
            kept_boots: None,
            enough: None,
        }
    }
}

/// Which part of the command is recorded. The default is the whole command.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub struct Region {
    /// Where the region begins.
    pub begin: Begin,
    /// With [`Begin::Marker`], the command ends after so many regions. `None`: after none, so that every pair
    /// of markers is a region. Skipping and sampling are for 1 only.
    pub regions: Option<u64>,
    /// Guest instructions that are skipped after `begin`.
    pub skip: u64,
    /// Length in instructions; of regions between markers, the longest. The command ends with the region, but
    /// for regions between markers. `None`: up to the command's end.
    pub length: Option<u64>,
    /// Windows, if accesses are recorded in windows only.
    pub sample: Option<Windows>,
}

/// Where a region begins.
#[derive(Debug, Clone, PartialEq, Eq, Hash, Default)]
pub enum Begin {
    /// At the command's start.
    #[default]
    Command,
    /// Wherever the program executes `bifold_begin()` of `include/bifold.h`. A region ends at `bifold_end()`.
    Marker,
    /// Where this function of the program is first entered.
    Function(String),
}

/// End of the RAM below 4 GB, where the hole for devices begins (`max-ram-below-4g`). MiB.
pub(crate) const LOW_MIB: u64 = 2048;

/// Number of guest-physical frames of 4 KB, including the hole below 4 GB. Frame numbers in the stream are
/// smaller.
pub fn guest_frames(spec: &GuestSpec) -> u64 {
    let mib = if spec.memory_mib > LOW_MIB { 4096 + spec.memory_mib - LOW_MIB } else { spec.memory_mib };
    mib << 8
}

/// Largest standard input in bytes for a guest with this memory.
pub fn most_stdin(memory_mib: u64) -> u64 {
    (memory_mib << 20) / 4
}

/// Most memory in MiB of a guest in 32-bit mode without PAE, which has no addresses for more; the hole below
/// 4 GB takes the rest.
const MOST_32_BIT_MIB: u64 = LOW_MIB;
/// With PAE: the descriptors of more pages leave Linux too little of the kernel's gigabyte.
const MOST_PAE_MIB: u64 = 16 << 10;

/// Refuses what no guest in 32-bit mode can be.
fn check_narrow(spec: &GuestSpec) -> Result<(), GuestError> {
    let name = spec.tables.name();
    let most = if spec.tables == TableFormat::Pae { MOST_PAE_MIB } else { MOST_32_BIT_MIB };
    let problem = match () {
        () if spec.memory_mib > most => {
            format!(
                "{} MiB of guest memory, and a guest with --guest-tables {name} has {most} at most",
                spec.memory_mib
            )
        }
        () if spec.kpti => {
            format!("--kpti on is for 64-bit guests, and --guest-tables {name} is of 32-bit mode")
        }
        () if spec.attribute => {
            format!("costs are attributed in 64-bit guests, and --guest-tables {name} is of 32-bit mode")
        }
        () if spec.looks => {
            format!(
                "what memory is used for is recorded in 64-bit guests, and --guest-tables {name} is of 32-bit mode"
            )
        }
        // Empty where the C compiler makes no 32-bit programs.
        #[allow(clippy::const_is_empty)]
        () if INIT_32.is_empty() => {
            return Err(GuestError::NoNarrowInit);
        }
        () => return Ok(()),
    };
    Err(GuestError::Spec(problem))
}

/// Refuses what no guest can be.
pub(crate) fn check(spec: &GuestSpec) -> Result<(), GuestError> {
    if std::env::consts::ARCH != "x86_64" {
        return Err(GuestError::Architecture(std::env::consts::ARCH));
    }
    let refuse = |wrong: bool, text: String| if wrong { Err(GuestError::Spec(text)) } else { Ok(()) };
    let (vcpus, nodes, boot) = (spec.vcpus, spec.nodes, spec.record == Record::Boot);
    let wrong = !(1..=MOST_VCPUS).contains(&vcpus);
    refuse(wrong, format!("{vcpus} vCPUs: 1 to {MOST_VCPUS} are possible"))?;
    let why =
        format!("{nodes} NUMA nodes in a guest of {vcpus} vCPUs: from 1 to one for each vCPU are possible");
    refuse(!(1..=vcpus).contains(&nodes), why)?;
    let wrong = boot && spec.region != Region::default();
    refuse(wrong, "a boot is recorded as a whole: leave the region out".into())?;
    let windows_fit = |w: Windows| w.window > 0 && w.window <= w.period && w.period < 1 << 50;
    let wrong = spec.region.sample.is_some_and(|w| !windows_fit(w));
    refuse(wrong, "the windows of a sample must fit into their period".into())?;
    refuse(!spec.region.fits(), "only one region can be sampled, or have a part skipped".into())?;
    let why = "a boot's costs cannot be attributed: init, which would say who runs, is not there";
    refuse(boot && spec.attribute, why.into())?;
    if !spec.tables.is_long() {
        check_narrow(spec)?;
    }
    let wrong = !(256..=1 << 20).contains(&spec.memory_mib);
    refuse(wrong, format!("{} MiB of guest memory: 256 at least", spec.memory_mib))?;
    let wrong = spec.keep && spec.root != Root::Host;
    refuse(wrong, "written files can be kept with the host's root only".into())?;
    let most = most_stdin(spec.memory_mib);
    let why = format!(
        "standard input has more than {} MiB, a quarter of the guest's memory: give the guest more memory with \
         --memory, or name a file to the command",
        most >> 20
    );
    refuse(spec.stdin.len() as u64 > most, why)?;
    let wrong = !spec.cwd.is_absolute() || !spec.cwd.is_dir();
    refuse(wrong, format!("{}: not an absolute directory", spec.cwd.display()))?;
    Ok(())
}
