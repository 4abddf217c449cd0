// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The identifier that KVM gives to a VM.

use std::fmt;

/// A VM's identifier: the name of its directory in debugfs, `PID-FD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId {
    /// Id of the thread that created the VM.
    pub thread: u32,
    /// The VM's file descriptor in that thread's process.
    pub fd: u32,
}

impl VmId {
    /// Parses a directory's name.
    pub fn parse(name: &str) -> Option<VmId> {
        let (thread, fd) = name.split_once('-')?;
        let id = VmId { thread: thread.parse().ok()?, fd: fd.parse().ok()? };
        // KVM writes neither a sign nor a leading zero.
        (id.to_string() == name).then_some(id)
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.thread, self.fd)
    }
}
