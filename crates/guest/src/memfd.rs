// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Files in memory (memfd_create(2)), which QEMU opens by descriptor and which vanish with their last user.

use std::os::fd::OwnedFd;

use rustix::fs::{MemfdFlags, ftruncate, memfd_create};

use crate::error::GuestError;

/// A file in memory, closed on exec. The kernel shows `name` in `/proc/PID/fd`.
///
/// # Errors
/// If the kernel has no descriptor or memory for it.
pub fn memfd(name: &str, bytes: u64) -> Result<OwnedFd, GuestError> {
    let fd = memfd_create(name, MemfdFlags::CLOEXEC).map_err(GuestError::os("memfd_create"))?;
    ftruncate(&fd, bytes).map_err(GuestError::os("sizing a memfd"))?;
    Ok(fd)
}
