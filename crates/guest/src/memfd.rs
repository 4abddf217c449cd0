// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Creates files in memory (memfd_create(2)). QEMU opens them by descriptor, and they vanish with their last
//! user.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::error::GuestError;

/// Creates a file of `bytes` bytes in memory, closed on exec. The kernel shows `name` in `/proc/PID/fd`.
///
/// # Errors
/// If the kernel has no free descriptor or memory.
pub fn memfd(name: &str, bytes: u64) -> Result<OwnedFd, GuestError> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).map_err(GuestError::os("memfd_create"))?;
    ftruncate(&fd, bytes).map_err(GuestError::os("sizing a memfd"))?;
    Ok(fd)
}
