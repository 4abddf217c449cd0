// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What experiments read of a guest that runs: its lines, its end, and its memory in the host's, which is the
//! mapping of its RAM in the emulator's /proc/PID/smaps. `Rss` counts resident pages. `Pss` counts a page
//! with n mappings as 1/n, so that the sum over all guests is the memory that they use. A merged page has a
//! mapping for every page that was merged. Neither counts the kernel's zero page.

use bifold_guest::GuestError;
use bifold_guest::vm::{GuestLine, GuestVm};
use bifold_host::{Host, Mapping};

/// A line of a guest.
pub(crate) enum Said<'a> {
    /// Of its load: the first word, and the rest.
    Load(&'a str, &'a str),
    /// Of its init, about the load's end: the first word, and the whole line.
    End(&'a str, &'a str),
}

/// Hears the lines that a guest has sent. Returns why its emulator has ended, if it has, and drops it then.
pub(crate) fn listen(
    vm: &mut Option<GuestVm>,
    mut hear: impl FnMut(Said),
) -> Result<Option<String>, GuestError> {
    let Some(running) = vm else { return Ok(None) };
    for line in running.new_lines() {
        let (GuestLine::Workload(text) | GuestLine::Init(text)) = &line;
        let (word, rest) = text.split_once(' ').unwrap_or((text, ""));
        match (&line, word) {
            (GuestLine::Workload(_), _) => hear(Said::Load(word, rest)),
            (GuestLine::Init(_), "error" | "exit" | "signal" | "oom") => hear(Said::End(word, text)),
            _ => {}
        }
    }
    let Some(status) = running.ended()? else { return Ok(None) };
    let last = running.last_words();
    let last = last.lines().last().unwrap_or_default();
    let why = format!("qemu ended ({status}){}{last}", if last.is_empty() { "" } else { ": " });
    *vm = None;
    Ok(Some(why))
}

/// Upper limit for an emulator's smaps.
const MOST_BYTES: u64 = 64 << 20;

/// A process's memory in bytes, from smaps.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub(crate) struct Memory {
    /// Resident bytes of the guest's RAM.
    pub rss: u64,
    /// Proportional bytes of the guest's RAM.
    pub pss: u64,
    /// Bytes of the guest's RAM that were used since the kernel was last asked to forget uses.
    pub touched: u64,
    /// Bytes of the guest's RAM in the host's swap.
    pub swapped: u64,
    /// Proportional bytes of the whole process.
    pub all: u64,
}

/// Parses a process's memory from /proc/PID/smaps. The guest's RAM is the largest readable and writable
/// mapping with at least `ram` bytes.
fn memory(smaps: &str, ram: u64) -> Option<Memory> {
    let mappings = Mapping::parse(smaps);
    let size = |m: &&Mapping| m.end - m.start;
    // The first of equal mappings.
    let guest = mappings.iter().rev().filter(|m| m.data && size(m) >= ram).max_by_key(size)?;
    let all = mappings.iter().map(|m| m.proportional).sum();
    Some(Memory {
        rss: guest.resident,
        pss: guest.proportional,
        touched: guest.referenced,
        swapped: guest.swapped,
        all,
    })
}

/// The memory of a guest's process; `None` if the process has just ended.
pub(crate) fn memory_of(host: &Host, pid: u32, ram: u64) -> Option<Memory> {
    let path = host.proc.join(pid.to_string()).join("smaps");
    let smaps = bifold_host::read_up_to(&path, MOST_BYTES).ok()?;
    memory(&String::from_utf8_lossy(&smaps), ram)
}

#[cfg(test)]
mod tests {
    use super::*;

    const SMAPS: &str = "\
55d0c0000000-55d0c0400000 rw-p 00000000 00:00 0 [heap]
Size:               4096 kB
Rss:                1000 kB
Pss:                 900 kB
VmFlags: rd wr mr mw me ac
7f0000000000-7f0040000000 rwxp 00000000 00:00 0
Rss:                5000 kB
Pss:                5000 kB
7f1000000000-7f1010000000 rw-p 00000000 00:00 0
Size:             262144 kB
Rss:              100000 kB
Pss:               40000 kB
Pss_Dirty:         40000 kB
Referenced:        30000 kB
Swap:              500 kB
KSM:               60000 kB
7f2000000000-7f2000001000 r--p 00000000 00:00 0 /lib/x
Rss:                   4 kB
Pss:                   1 kB
";

    #[test]
    fn a_guests_ram_is_the_largest_mapping_without_code() {
        let k = |n: u64| n * 1024;
        let expected =
            Memory { rss: k(100_000), pss: k(40_000), touched: k(30_000), swapped: k(500), all: k(45_901) };
        assert_eq!(memory(SMAPS, 256 << 20), Some(expected));
        assert_eq!(memory(SMAPS, 512 << 20), None, "no mapping is that large");
        assert_eq!(memory("", 1), None, "the process is gone");
        assert_eq!(memory("a line without a mapping\nRss: much", 1), None);
    }
}
