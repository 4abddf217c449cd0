// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads and controls a live Linux host: its KVM, its virtual machines and their paging modes, its KSM, its
//! memory.
//!
//! All facts come from four file systems: sysfs, procfs, debugfs and tracefs. A [`Host`] holds their places,
//! so that tests can make trees of their own. KVM describes a [`Vm`] in a directory of debugfs, `kvm/PID-FD`.
//! A KVM built by `make kernel` has three more files there: `paging_stats`, `paging_refusal`, and
//! `paging_mode`, which switches the VM when written. A VM may end at any moment; if its directory
//! disappears, the error is [`HostError::Gone`].
//!
//! [`guest_memory`] has the facts of a guest's memory on the host. [`qmp`] talks to QEMU's monitor. [`keys`]
//! declares the tables of the TOML files of daemon and placement.
//!
//! This crate makes no decisions and has no model. Policies, counts and experiments are in other crates.
//!
//! ```
//! use bifold_host::Host;
//!
//! let host = Host::live();
//! match host.vms() {
//!     Ok(vms) => vms.iter().for_each(|vm| println!("VM {} is in {:?}", vm.id, vm.paging.state())),
//!     Err(e) => println!("{e}"), // no KVM here, or only root may look
//! }
//! assert!(host.memory()?.available <= host.memory()?.total);
//! # Ok::<(), bifold_host::HostError>(())
//! ```
#![forbid(unsafe_code)]

mod backing;
mod error;
pub mod exit_counts;
mod guest;
pub mod guest_memory;
pub mod held;
pub mod holes;
pub mod keys;
pub mod ksm;
mod kvm;
mod kvm_users;
mod memory;
mod paging;
mod paging_files;
pub mod placement;
mod process;
pub mod qmp;
mod smaps;
mod statistics;
mod switch;
pub mod topology;
pub mod tracing;
mod vcpus;
mod vm;
mod vm_directory;
mod vm_id;

pub use backing::Backing;
pub use bifold_mmu::Mode;
pub use error::{HostError, Refusal};
pub use guest::{CommandLine, LiveGuest, Pairs};
pub use kvm::{Hardware, Kvm, Vendor};
pub use kvm_users::KvmProcess;
pub use memory::{MemInfo, Pressure, VmStat, psi};
pub use paging::{Forecast, Obstacle, Of, Paging, PagingStats, RefusalReason, Stat, State, Unit, Unreadable};
pub use paging_files::PagingFiles;
pub use process::{Process, printable};
pub use smaps::Mapping;
pub use statistics::{BadStatistics, BinaryStatistics, Kind, Statistic, Statistics, StatisticsFiles};
pub use switch::{Happened, Switch};
pub use vcpus::{ThreadTime, ThreadTimes, Vcpu};
pub use vm::{Vm, named, select, word_rank};
pub use vm_directory::{Entries, VmDirectory};
pub use vm_id::VmId;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// A host, by the mount points of its sysfs, procfs, debugfs and tracefs.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)] // the names say it
pub struct Host {
    pub sys: PathBuf,
    pub proc: PathBuf,
    pub debug: PathBuf,
    pub tracing: PathBuf,
}

impl Host {
    /// This machine.
    pub fn live() -> Host {
        Host {
            sys: "/sys".into(),
            proc: "/proc".into(),
            debug: "/sys/kernel/debug".into(),
            tracing: "/sys/kernel/tracing".into(),
        }
    }

    /// A machine whose `sys` and `proc` were copied into a folder.
    pub fn copied(root: &Path) -> Host {
        let sys = root.join("sys");
        Host {
            debug: sys.join("kernel/debug"),
            tracing: sys.join("kernel/tracing"),
            proc: root.join("proc"),
            sys,
        }
    }
}

/// Upper limit for files that are read whole.
const MOST_BYTES: u64 = 256 << 10;

/// The whole text of a small file.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, MOST_BYTES)
}

/// At most the first `most` bytes of a file.
///
/// # Errors
/// If the file cannot be read.
pub fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Bytes from outside as one quoted line, with control characters escaped.
fn one_line(bytes: &[u8]) -> String {
    const MOST: usize = 60;
    let text = String::from_utf8_lossy(bytes);
    let mut chars = text.trim_end_matches('\n').chars();
    let shown: String = chars.by_ref().take(MOST).flat_map(char::escape_debug).collect();
    let more = if chars.next().is_some() { "..." } else { "" };
    format!("`{shown}{more}`")
}

#[cfg(test)]
mod tests;
