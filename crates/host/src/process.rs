// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds a VM's process and its name, from procfs.

use crate::{CommandLine, Host, read};
use std::io;
use std::path::Path;

/// A VM's process and the VM's name.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Process {
    /// Process id.
    pub pid: u32,
    /// The VM's name on its VMM's command line ([`CommandLine::guest_name`]), else the process's name; `None`
    /// if the process is not visible from here.
    pub name: Option<String>,
}

/// A name whose control characters are escaped, as it may come from a guest's owner: a terminal would obey
/// them.
///
/// ```
/// assert_eq!(bifold_host::printable("the \u{1b}[2Jdb's"), "the \\u{1b}[2Jdb's");
/// ```
pub fn printable(name: &str) -> String {
    let escaped =
        |c: char| -> Vec<char> { if c.is_control() { c.escape_debug().collect() } else { vec![c] } };
    name.chars().flat_map(escaped).collect()
}

impl Host {
    /// The ids of all processes, in order; empty if procfs cannot be read.
    pub(crate) fn pids(&self) -> Vec<u32> {
        let Ok(entries) = std::fs::read_dir(&self.proc) else { return Vec::new() };
        let mut pids: Vec<u32> =
            entries.flatten().filter_map(|e| e.file_name().to_str()?.parse().ok()).collect();
        pids.sort_unstable();
        pids
    }

    /// The process of a thread. KVM names a VM's directory after the thread that created the VM, which need
    /// not be the process's first.
    pub fn process(&self, thread: u32) -> Process {
        let status = read(&self.proc.join(thread.to_string()).join("status")).unwrap_or_default();
        let pid = status.split(|b| *b == b'\n').find_map(|line| {
            let id = line.strip_prefix(b"Tgid:")?.trim_ascii();
            std::str::from_utf8(id).ok()?.parse().ok()
        });
        let pid = pid.unwrap_or(thread);
        Process { pid, name: name_of(&self.proc, pid) }
    }

    /// The user of a process; `None` if the process has ended.
    pub fn user(&self, pid: u32) -> Option<u32> {
        let status = crate::memory::text(&self.proc.join(pid.to_string()).join("status"));
        status.lines().find_map(|l| l.strip_prefix("Uid:")?.split_whitespace().next()?.parse().ok())
    }

    /// When a process started, in ticks since boot; `None` if the process has ended. A process id and this
    /// time are one process, while the machine runs.
    pub fn started(&self, pid: u32) -> Option<u64> {
        let stat = read(&self.proc.join(pid.to_string()).join("stat")).ok()?;
        Some(state_and_start(&stat)?.1)
    }

    /// Whether the process with this id and start lives. A zombie does not: it has no memory.
    ///
    /// # Errors
    /// If that cannot be known, as without a free file descriptor.
    pub fn lives(&self, pid: u32, started: u64) -> io::Result<bool> {
        let stat = match read(&self.proc.join(pid.to_string()).join("stat")) {
            Ok(stat) => stat,
            // The process may end while its file is read.
            Err(e)
                if e.kind() == io::ErrorKind::NotFound
                    || e.raw_os_error() == Some(rustix::io::Errno::SRCH.raw_os_error()) =>
            {
                return Ok(false);
            }
            Err(e) => return Err(e),
        };
        let found = state_and_start(&stat).ok_or(io::ErrorKind::InvalidData)?;
        Ok(found.1 == started && !matches!(found.0, b'Z' | b'X'))
    }

    /// Whether this is a thread of the kernel, such as those that KVM and vhost start in a guest's cgroups.
    pub(crate) fn is_of_kernel(&self, pid: u32) -> bool {
        /// `include/linux/sched.h`.
        const PF_KTHREAD: u64 = 0x0020_0000;
        let stat = read(&self.proc.join(pid.to_string()).join("stat")).unwrap_or_default();
        // proc(5): flags, 9.
        number(&mut behind_name(&stat), 6).is_some_and(|flags| flags & PF_KTHREAD != 0)
    }
}

/// The fields of `/proc/PID/stat` from the third on, which is the state. The name before may contain spaces
/// and parentheses.
fn behind_name(stat: &[u8]) -> impl Iterator<Item = &[u8]> {
    let behind = stat.iter().rposition(|b| *b == b')').map_or(stat.len(), |at| at + 1);
    stat[behind..].split(u8::is_ascii_whitespace).filter(|f| !f.is_empty())
}

fn number<'a>(fields: &mut impl Iterator<Item = &'a [u8]>, n: usize) -> Option<u64> {
    std::str::from_utf8(fields.nth(n)?).ok()?.parse().ok()
}

/// State and start in the text of `/proc/PID/stat` (proc(5): starttime, 22).
fn state_and_start(stat: &[u8]) -> Option<(u8, u64)> {
    let mut fields = behind_name(stat);
    let state = *fields.next()?.first()?;
    Some((state, number(&mut fields, 18)?))
}

/// Most characters of a name that are kept.
const MOST_NAME: usize = 256;

/// The name of a process's guest, else of the process; `None` if the process has ended.
pub(crate) fn name_of(proc: &Path, pid: u32) -> Option<String> {
    let dir = proc.join(pid.to_string());
    let comm = || {
        let comm = read(&dir.join("comm")).ok()?;
        let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
        Some(comm).filter(|c| !c.is_empty())
    };
    let guest = CommandLine::of(proc, pid).and_then(|line| line.guest_name());
    // The VM's owner chooses the name, and rows and tables have it.
    guest.or_else(comm).map(|name| name.chars().take(MOST_NAME).collect())
}
