// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds a VM's process and its name, from procfs.

use crate::{Host, read};
use std::path::Path;

/// A VM's process and the VM's name.
pub(crate) struct Process {
    pub pid: u32,
    pub name: Option<String>,
}

impl Host {
    /// The process of a thread. KVM names a VM's directory after the thread that created the VM, which need
    /// not be the process's first.
    pub(crate) fn process(&self, thread: u32) -> Process {
        let status = read(&self.proc.join(thread.to_string()).join("status")).unwrap_or_default();
        let pid = status.split(|b| *b == b'\n').find_map(|line| {
            let id = line.strip_prefix(b"Tgid:")?.trim_ascii();
            std::str::from_utf8(id).ok()?.parse().ok()
        });
        let pid = pid.unwrap_or(thread);
        Process { pid, name: name_of(&self.proc, pid) }
    }
}

/// The name of a process's guest, else of the process; `None` if the process has ended.
pub(crate) fn name_of(proc: &Path, pid: u32) -> Option<String> {
    let dir = proc.join(pid.to_string());
    let comm = || {
        let comm = read(&dir.join("comm")).ok()?;
        let comm = String::from_utf8_lossy(comm.strip_suffix(b"\n").unwrap_or(&comm)).into_owned();
        Some(comm).filter(|c| !c.is_empty())
    };
    let guest = read(&dir.join("cmdline")).ok().and_then(|c| guest_name(&c));
    guest.or_else(comm)
}

/// The guest's name on a QEMU command line in the form of `/proc/PID/cmdline`: `-name X` or
/// `-name guest=X,debug-threads=on`, with `,,` for a comma within X.
pub fn guest_name(cmdline: &[u8]) -> Option<String> {
    let mut words = cmdline.split(|b| *b == 0);
    let mut found = None;
    while let Some(word) = words.next() {
        if matches!(word, b"-name" | b"--name") {
            // QEMU takes the last `-name`.
            found = guest_of(&String::from_utf8_lossy(words.next()?)).or(found);
        }
    }
    found
}

/// The guest's name in the value of `-name`.
fn guest_of(value: &str) -> Option<String> {
    let mut options = vec![String::new()];
    let mut chars = value.chars().peekable();
    while let Some(c) = chars.next() {
        let last = options.last_mut().expect("there is always one");
        match c {
            ',' if chars.next_if_eq(&',').is_some() => last.push(','),
            ',' => options.push(String::new()),
            c => last.push(c),
        }
    }
    let named = options.iter().filter_map(|o| o.strip_prefix("guest=")).next_back();
    let first = options.first().filter(|o| !o.contains('=')).map(String::as_str);
    named.or(first).filter(|n| !n.is_empty()).map(String::from)
}
