// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM's identifier within KVM.

use std::fmt;

/// A VM's name within KVM: that of its directory, `PID-FD`.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct VmId {
    /// The thread that made it, in a process with one thread the process.
    pub thread: u32,
    /// The file descriptor that it had there.
    pub fd: u32,
}

impl VmId {
    /// The directory's name taken apart.
    pub fn parse(name: &str) -> Option<VmId> {
        let (thread, fd) = name.split_once('-')?;
        let id = VmId { thread: thread.parse().ok()?, fd: fd.parse().ok()? };
        // What stays is what KVM writes: no sign, no leading zero.
        (id.to_string() == name).then_some(id)
    }
}

impl fmt::Display for VmId {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        write!(f, "{}-{}", self.thread, self.fd)
    }
}
