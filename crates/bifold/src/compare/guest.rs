// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Options about the guest in which a command runs.

use super::region::RegionArgs;
use crate::run::PROFILE_VARIABLE;
use crate::usage::UsageError;
use crate::words::{self, MIB};
use anyhow::Context as _;
use bifold_guest::{GuestSpec, Root, TableFormat, Thp, Timing, boots};
use bifold_model::Profile;
use bifold_trace::{MOST_NODES, MOST_VCPUS};
use clap::{Args, ValueEnum};
use std::ffi::OsString;
use std::path::PathBuf;
use std::sync::Arc;
use std::time::Duration;

/// Default memory of a guest, MiB.
const MEMORY_MIB: u64 = 2048;
/// Default number of words of the stream between two self-checks.
const CHECK_EVERY: u64 = 10_000;

/// Options of the guest.
#[derive(Debug, Clone, Args)]
#[command(next_help_heading = "Guest")]
pub struct GuestArgs {
    /// Let guest time follow host time instead of counting instructions
    ///
    /// By default, guest time counts instructions (exact timing): the same command with the same files gives
    /// the same figures to the bit. Fast timing is faster, above all with two vCPUs. But the emulated guest
    /// is slower than hardware and takes more timer interrupts per instruction; the table marks a run with
    /// too many of them.
    #[arg(long)]
    pub fast: bool,

    /// Number of virtual CPUs, 1 to 8 [default: 1]
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=i64::from(MOST_VCPUS)))]
    pub vcpus: Option<u32>,

    /// Number of NUMA nodes that the guest sees, at most one for each virtual CPU [default: 1]
    ///
    /// Memory and CPUs are dealt out evenly, in blocks. The guest's kernel places memory by its nodes, and
    /// --placement tells local references from remote ones.
    #[arg(long, value_name = "N", value_parser = clap::value_parser!(u32).range(1..=MOST_NODES as i64))]
    pub guest_nodes: Option<u32>,

    /// Format of the guest's page tables: 4-level (the default), 5-level, pae or 32-bit
    ///
    /// With `5-level` the guest's CPU has LA57. `pae` and `32-bit` boot Debian's 32-bit kernels, and CMD must
    /// be a 32-bit program, built with `gcc -m32 -static`; such a guest boots in every run.
    #[arg(long, value_name = "FORMAT", value_parser = words::tables(), hide_possible_values = true)]
    pub guest_tables: Option<TableFormat>,

    /// Page-table isolation in the guest's kernel [default: off]
    #[arg(long, value_enum, value_name = "on|off", hide_possible_values = true)]
    pub kpti: Option<OnOff>,

    /// Transparent huge pages in the guest [default: madvise]
    #[arg(long, value_enum, value_name = "always|madvise|never", hide_possible_values = true)]
    pub thp: Option<ThpArg>,

    /// Memory that the guest reserves as 2 MB pages for hugetlbfs, in MiB, or with a suffix: 256M, 1G
    /// [default: 0]
    ///
    /// For programs that map huge pages themselves, and for glibc's malloc with
    /// `GLIBC_TUNABLES=glibc.malloc.hugetlb=2`. The reserved memory is part of --memory, and nothing else can
    /// use it.
    #[arg(long, value_name = "SIZE", value_parser = hugetlb)]
    pub hugetlb: Option<u64>,

    /// Guest memory in MiB, or with a suffix: 512M, 2G [default: 2048]
    #[arg(short, long, value_name = "SIZE", value_parser = words::memory_mib)]
    pub memory: Option<u64>,

    /// Kernel image for the guest [default: Debian's, downloaded]
    #[arg(long, value_name = "FILE")]
    pub kernel: Option<PathBuf>,

    /// Directory with the modules of --kernel
    #[arg(long, value_name = "DIR", requires = "kernel")]
    pub modules: Option<PathBuf>,

    /// Root file system of the command [default: host]
    ///
    /// `host` is this machine's root, read-only, with an overlay that takes writes. `initramfs` has only the
    /// program, its libraries and the files of --include.
    #[arg(long, value_enum, value_name = "host|initramfs", hide_possible_values = true)]
    pub root: Option<RootArg>,

    /// File or directory to put into the initramfs (repeatable)
    #[arg(long, value_name = "PATH")]
    pub include: Vec<PathBuf>,

    /// Boot the guest for this run, and do not keep the boot
    ///
    /// By default, the state of a guest that has booted is kept (`bifold cache list`), and runs with the same
    /// kernel, QEMU and options of the guest begin there. Both ways give the same figures to the bit. Guests
    /// with --fast, --vcpus or --root initramfs boot in every run.
    #[arg(long)]
    pub fresh_boot: bool,

    /// Stop the command after SECS seconds
    #[arg(long, value_name = "SECS", value_parser = words::seconds)]
    pub timeout: Option<f64>,

    /// Keep the files that the command writes in DIR
    ///
    /// The command writes to an overlay over this machine's files, which ends with the guest. With this
    /// option, /tmp/a.out is kept as DIR/tmp/a.out. DIR must be empty or missing.
    #[arg(long, value_name = "DIR")]
    pub keep: Option<PathBuf>,
    /// Check the capture against the emulator every N words of events, 0 for never [default: 10000]
    #[arg(long, value_name = "N")]
    pub check_every: Option<u64>,

    /// The part of the command to record.
    #[command(flatten)]
    pub region: RegionArgs,
}

/// On or off.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the names say it
pub enum OnOff {
    On,
    Off,
}

/// Transparent huge pages.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // the kernel's names
pub enum ThpArg {
    Always,
    Madvise,
    Never,
}

/// The guest's root.
#[derive(Debug, Clone, Copy, PartialEq, Eq, ValueEnum)]
#[allow(missing_docs)] // documented at `--root`
pub enum RootArg {
    Host,
    Initramfs,
}

impl GuestArgs {
    /// The name of the first of these options that is given.
    pub fn first_given(&self) -> Option<&'static str> {
        [
            (self.fast, "--fast"),
            (self.vcpus.is_some(), "--vcpus"),
            (self.guest_nodes.is_some(), "--guest-nodes"),
            (self.guest_tables.is_some(), "--guest-tables"),
            (self.kpti.is_some(), "--kpti"),
            (self.thp.is_some(), "--thp"),
            (self.hugetlb.is_some(), "--hugetlb"),
            (self.memory.is_some(), "--memory"),
            (self.kernel.is_some(), "--kernel"),
            (self.modules.is_some(), "--modules"),
            (self.root.is_some(), "--root"),
            (!self.include.is_empty(), "--include"),
            (self.fresh_boot, "--fresh-boot"),
            (self.timeout.is_some(), "--timeout"),
            (self.check_every.is_some(), "--check-every"),
            (self.keep.is_some(), "--keep"),
        ]
        .into_iter()
        .chain(self.region.given())
        .find_map(|(given, name)| given.then_some(name))
    }

    /// The guest in which a command is to run.
    pub fn spec(self, command: Vec<OsString>, profile: &Profile, seed: u64) -> anyhow::Result<GuestSpec> {
        let root = match self.root.unwrap_or(RootArg::Host) {
            RootArg::Host if !self.include.is_empty() => {
                let problem = "works with `--root initramfs` only: the host's root has every file already";
                return Err(UsageError::conflict("--include", problem).into());
            }
            RootArg::Host => Root::Host,
            RootArg::Initramfs => Root::Initramfs { include: self.include },
        };
        let (vcpus, nodes) = (self.vcpus.unwrap_or(1), self.guest_nodes.unwrap_or(1));
        let problem = format!("needs a CPU for each of {nodes} nodes: add --vcpus {nodes}");
        UsageError::conflict_if(nodes > vcpus, "--guest-nodes", problem)?;
        if let Some(option) = self.region.for_one_region() {
            let problem = "is for one region, and --from-marker records all: add --regions 1";
            return Err(UsageError::conflict(option, problem).into());
        }
        let (memory_mib, hugetlb_mib) = (self.memory.unwrap_or(MEMORY_MIB), self.hugetlb.unwrap_or(0));
        if hugetlb_mib > memory_mib / 2 {
            let problem = format!(
                "leaves the guest too little of {memory_mib} MiB: reserve at most half, or raise --memory"
            );
            return Err(UsageError::conflict("--hugetlb", problem).into());
        }
        // The command's standard input is read last, by `EventSource::prepare`, after all other checks.
        Ok(GuestSpec {
            cwd: std::env::current_dir().context("cannot find the current directory")?,
            // The environment lies on the program's stack, and the run is the same however the profile is
            // named.
            env: std::env::vars_os().filter(|(name, _)| name != PROFILE_VARIABLE).collect(),
            timing: if self.fast { Timing::Fast } else { Timing::Exact },
            vcpus,
            nodes,
            tables: self.guest_tables.unwrap_or_default(),
            kpti: self.kpti == Some(OnOff::On),
            thp: match self.thp.unwrap_or(ThpArg::Madvise) {
                ThpArg::Always => Thp::Always,
                ThpArg::Madvise => Thp::Madvise,
                ThpArg::Never => Thp::Never,
            },
            memory_mib,
            hugetlb_mib,
            kernel: self.kernel,
            modules: self.modules,
            root,
            timeout: self.timeout.map(Duration::from_secs_f64),
            check_every: self.check_every.unwrap_or(CHECK_EVERY),
            keep: self.keep.is_some(),
            enough: self.region.until.map(|_| Arc::default()),
            kept_boots: if self.fresh_boot { None } else { boots::folder().ok() },
            region: self.region.region(profile.cpu.frequency_hz as f64 / profile.cpu.base_cpi, seed),
            ..GuestSpec::new(command)
        })
    }
}

/// MiB of 2 MB pages.
fn hugetlb(text: &str) -> Result<u64, String> {
    let bounds = 2 * MIB..=(1 << 20) * MIB;
    words::size_within(text, MIB, bounds, "from 2 MiB to 1 TiB").map(|bytes| bytes / (2 * MIB) * 2)
}
