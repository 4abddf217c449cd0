// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Kept boots: the state of guests that have booted and wait for their command, on disk.
//!
//! A guest of one vCPU over the host's root with exact timing boots without its command: kernel, modules and
//! init are all that it has read. Its state then depends on the [`Key`] alone and is kept, so that the next
//! run with the same key begins there. The command, its environment and its standard input come afterwards
//! and are never kept.
//!
//! One folder per boot, named by its key's hash:
//!
//! | file | content |
//! |---|---|
//! | `about` | lines of text: the key in words, the vCPU's registers, lengths and checksums |
//! | `memory` | the guest's memory, with holes where it was never touched |
//! | `state` | the devices' and vCPUs' state, as QEMU's `migrate` writes it |
//!
//! A boot is written into a folder of another name and then renamed, so a folder is whole or absent. A run
//! that is killed leaves at most a folder of that other name, which the next run that keeps a boot removes.
//! What a power failure damages is found by the checksums.

mod about;
mod copy;
mod key;
mod registers;
mod store;

use about::About;
pub(crate) use key::{Key, Parts as KeyParts};
pub(crate) use registers::{Registers, interrupted, parse as parse_registers, set_clock};
pub(crate) use store::{Found, Store};

use std::fs::File;
use std::path::{Path, PathBuf};
use std::time::SystemTime;

use crate::error::GuestError;
use crate::kernel::cache_dir;

/// Most bytes on disk of all kept boots together. A boot of a guest of 2 GiB takes some 90 MB.
pub const MOST_BYTES: u64 = 2 << 30;

/// A guest that has booted and waits for its command.
pub(crate) struct Booted {
    /// The guest's memory. The machine that goes on from here writes to it.
    pub(crate) ram: File,
    /// What QEMU wrote of devices and vCPUs.
    pub(crate) state: File,
    pub(crate) registers: Registers,
}

/// A kept boot.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct KeptBoot {
    /// The guest in words: `Linux 6.1.0-49-amd64, 2048 MiB, QEMU 10.0.2`.
    pub guest: String,
    /// Bytes on disk.
    pub bytes: u64,
    /// When a run last began from the boot, or kept it.
    pub used: SystemTime,
}

/// The folder for kept boots: `~/.cache/bifold/boots`, or the same in `XDG_CACHE_HOME`.
///
/// # Errors
/// If the environment names neither.
pub fn folder() -> Result<PathBuf, GuestError> {
    cache_dir("boots")
}

/// The boots in a folder, the last used first.
///
/// # Errors
/// If the folder cannot be read.
pub fn list(folder: &Path) -> Result<Vec<KeptBoot>, GuestError> {
    Store::at(folder).list()
}

/// Removes all boots in a folder. Runs that have begun from one go on. Returns what was removed.
///
/// # Errors
/// If a boot cannot be removed.
pub fn clear(folder: &Path) -> Result<Vec<KeptBoot>, GuestError> {
    Store::at(folder).clear()
}
