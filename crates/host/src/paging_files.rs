// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Keeps a VM's files `paging_mode` and `paging_stats` open, for a caller that uses them often.

use crate::paging::{MODE_FILE, PagingStats, STATS_FILE, State, Unreadable, strange};
use crate::{Host, VmId};
use bifold_mmu::Mode;
use std::fs::{File, OpenOptions};
use std::io::{self, Write as _};
use std::os::unix::fs::FileExt as _;

/// Upper limit for either file.
const MOST_BYTES: usize = 2048;

/// The open files of a VM that KVM can switch. Every read returns the present state. KVM keeps the VM as long
/// as they are open.
#[derive(Debug)]
pub struct PagingFiles {
    mode: File,
    stats: File,
}

impl Host {
    /// Opens a VM's paging files; `None` if this KVM has one mode for all VMs.
    ///
    /// # Errors
    /// If a file exists and cannot be opened for this user.
    pub fn paging_files(&self, vm: VmId) -> io::Result<Option<PagingFiles>> {
        let dir = self.vm_dir(vm);
        let mode = match OpenOptions::new().read(true).write(true).open(dir.join(MODE_FILE)) {
            Err(e) if e.kind() == io::ErrorKind::NotFound => return Ok(None),
            mode => mode?,
        };
        Ok(Some(PagingFiles { mode, stats: File::open(dir.join(STATS_FILE))? }))
    }
}

impl PagingFiles {
    /// The VM's mode, or the switch that is under way.
    ///
    /// # Errors
    /// If `paging_mode` cannot be read or names no mode.
    pub fn state(&self) -> Result<State, Unreadable> {
        let bytes = read(&self.mode)?;
        State::parse(&bytes).ok_or_else(|| strange(&bytes, "mode"))
    }

    /// KVM's figures of the VM's switches.
    ///
    /// # Errors
    /// If `paging_stats` cannot be read.
    pub fn stats(&self) -> io::Result<PagingStats> {
        Ok(PagingStats::parse(&read(&self.stats)?))
    }

    /// Switches the VM. Returns when all vCPUs run in the new mode.
    ///
    /// # Errors
    /// KVM's error of the write.
    pub fn switch(&self, to: Mode) -> io::Result<()> {
        write_mode(&self.mode, to)
    }
}

/// Writes a mode to an open `paging_mode` by one write, because KVM takes a whole word per write and an
/// interrupted write must not be repeated.
pub(crate) fn write_mode(mut file: &File, to: Mode) -> io::Result<()> {
    let word = format!("{}\n", to.name());
    match file.write_at(word.as_bytes(), 0) {
        // Not every file of debugfs has positions.
        Err(e) if e.raw_os_error() == Some(rustix::io::Errno::SPIPE.raw_os_error()) => {
            file.write(word.as_bytes()).map(drop)
        }
        written => written.map(drop),
    }
}

fn read(file: &File) -> io::Result<Vec<u8>> {
    let mut bytes = vec![0; MOST_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    bytes.truncate(length);
    Ok(bytes)
}
