// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Clients of a live Linux host: its KVM, its virtual machines and their paging modes, its KSM, its memory.
//!
//! Everything is read from three trees of files, sysfs, procfs and debugfs. A [`Host`] names where they are,
//! so that tests make trees of their own. KVM describes a VM in a directory of debugfs, `kvm/PID-FD`. A KVM
//! built by `make kernel` has two more files there: `paging_mode`, which switches the VM when written, and
//! `paging_stats`. A VM may end at any moment; a directory that disappears is reported as the VM's end, and
//! as no other error.
//!
//! This crate decides nothing and has no model: policies, counts and experiments are other crates'.
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

mod error;
mod guests;
pub mod held;
pub mod ksm;
mod kvm;
mod memory;
mod paging;
mod paging_files;
mod process;
mod smaps;
mod switch;
mod vm;
mod vm_id;

pub use error::{HostError, Refusal};
pub use guests::GuestProcess;
pub use kvm::{Hardware, Kvm};
pub use memory::{MemInfo, Pressure, VmStat};
pub use paging::{Of, Paging, PagingStats, Stat, State, Unit, Unreadable};
pub use paging_files::PagingFiles;
pub use process::guest_name;
pub use smaps::Mapping;
pub use switch::{Happened, Switch};
pub use vm::{Vm, select};
pub use vm_id::VmId;

use std::fs::File;
use std::io::{self, Read as _};
use std::path::{Path, PathBuf};

/// Where a host's files are.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Host {
    /// sysfs.
    pub sys: PathBuf,
    /// procfs.
    pub proc: PathBuf,
    /// debugfs.
    pub debug: PathBuf,
}

impl Host {
    /// This machine.
    pub fn live() -> Host {
        Host { sys: "/sys".into(), proc: "/proc".into(), debug: "/sys/kernel/debug".into() }
    }
}

/// More than any file has that is read whole here.
const MOST_BYTES: u64 = 256 << 10;

/// The start of a file: of the small ones, all.
fn read(path: &Path) -> io::Result<Vec<u8>> {
    read_up_to(path, MOST_BYTES)
}

/// The first bytes of a file, `most` of them at most.
///
/// # Errors
/// If the file cannot be read.
pub fn read_up_to(path: &Path, most: u64) -> io::Result<Vec<u8>> {
    let mut bytes = Vec::new();
    File::open(path)?.take(most).read_to_end(&mut bytes)?;
    Ok(bytes)
}

/// Bytes that others wrote, as one line that cannot drive a terminal.
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
