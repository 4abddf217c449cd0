// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the kernel counts for the memory of a guest's process.

use crate::memory::{kib, text};
use crate::{Host, read};
use std::io;
use std::time::Duration;

/// Most file descriptors of a process that are looked at.
const MOST_FILES: usize = 1 << 16;

/// USER_HZ is 100 on all machines that Bifold runs on.
const MS_PER_TICK: u64 = 10;

/// Memory of a guest's process, in bytes.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct ProcessMemory {
    /// In the host's memory.
    pub resident: Option<u64>,
    /// In the host's swap.
    pub swapped: Option<u64>,
    /// In transparent huge pages of private memory.
    pub huge: Option<u64>,
    /// Locked in the host's memory (`VmLck`).
    pub locked: Option<u64>,
    /// In hugetlbfs, which is not in `resident`.
    pub hugetlb: Option<u64>,
    /// Faults since the start that read a page from a disk or swap.
    pub major_faults: Option<u64>,
}

impl ProcessMemory {
    /// Parses `/proc/PID/smaps_rollup` (empty if this user may not read it), `status` and `stat`.
    pub fn parse(rollup: &str, status: &str, stat: &str) -> ProcessMemory {
        // `VmSwap` leaves out pages of shared memory, as guests with memfd have.
        let sum = |names: [&str; 2]| {
            let found = names.map(|name| kib(rollup, name));
            found
                .iter()
                .any(Option::is_some)
                .then(|| found.iter().flatten().fold(0, |a: u64, b| a.saturating_add(*b)))
        };
        let behind = stat.rfind(')').map_or("", |at| &stat[at + 1..]);
        ProcessMemory {
            resident: kib(rollup, "Rss").or_else(|| kib(status, "VmRSS")),
            swapped: kib(rollup, "Swap").or_else(|| kib(status, "VmSwap")),
            huge: kib(rollup, "AnonHugePages"),
            locked: kib(status, "VmLck"),
            hugetlb: sum(["Shared_Hugetlb", "Private_Hugetlb"]).or_else(|| kib(status, "HugetlbPages")),
            // Field 12, of which the text behind the name begins with field 3.
            major_faults: behind.split_whitespace().nth(12 - 3).and_then(|n| n.parse().ok()),
        }
    }
}

impl Host {
    /// Memory of a process; all figures are absent once it has ended.
    pub fn process_memory(&self, pid: u32) -> ProcessMemory {
        let dir = self.proc.join(pid.to_string());
        ProcessMemory::parse(
            &text(&dir.join("smaps_rollup")),
            &text(&dir.join("status")),
            &String::from_utf8_lossy(&read(&dir.join("stat")).unwrap_or_default()),
        )
    }

    /// CPU time of a process in user and kernel mode; `None` once it has ended.
    pub fn cpu_time(&self, pid: u32) -> Option<Duration> {
        let stat = read(&self.proc.join(pid.to_string()).join("stat")).ok()?;
        let stat = String::from_utf8_lossy(&stat);
        let mut fields = stat[stat.rfind(')')? + 1..].split_whitespace();
        // Fields 14 and 15, of which the text behind the name begins with field 3.
        let mut ticks = || fields.next()?.parse::<u64>().ok();
        (3..14).for_each(|_| _ = ticks());
        let sum = ticks()?.checked_add(ticks()?)?;
        Some(Duration::from_millis(sum.checked_mul(MS_PER_TICK)?))
    }

    /// Has the kernel forget which pages of a process were used (`clear_refs`), so that the next look at its
    /// mappings finds those used since. A hypervisor's guest whose memory KVM maps is not seen; one that QEMU
    /// emulates is.
    ///
    /// # Errors
    /// If the process has ended or is another user's.
    pub fn forget_uses(&self, pid: u32) -> io::Result<()> {
        std::fs::write(self.proc.join(pid.to_string()).join("clear_refs"), "1\n")
    }

    /// Number of a process's open files that are devices of VFIO; `None` if this user may not look.
    pub fn vfio_files(&self, pid: u32) -> Option<usize> {
        let files = std::fs::read_dir(self.proc.join(format!("{pid}/fd"))).ok()?;
        let is_vfio = |path: std::path::PathBuf| {
            path.starts_with("/dev/vfio")
                || path.starts_with("/dev/iommu")
                || path.to_str().is_some_and(|p| p.starts_with("anon_inode:[vfio"))
        };
        let links = files.take(MOST_FILES).flatten().filter_map(|f| std::fs::read_link(f.path()).ok());
        Some(links.filter(|l| is_vfio(l.clone())).count())
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn the_rollup_comes_before_the_status() {
        let rollup = "55-7f ---p [rollup]\nRss:  2048 kB\nSwap:  16 kB\nAnonHugePages: 1024 kB\nShared_Hugetlb: 4 kB\n\
                      Private_Hugetlb: 8 kB\nLocked: 1 kB\n";
        let status = "VmLck:\t 12 kB\nVmRSS:\t 1024 kB\nVmSwap:\t 8 kB\nHugetlbPages:\t 20 kB\n";
        let stat = format!("9 (a) b) S {}\n", (4..=20).map(|n| n.to_string()).collect::<Vec<_>>().join(" "));
        let all = ProcessMemory::parse(rollup, status, &stat);
        let expected = ProcessMemory {
            resident: Some(2 << 20),
            swapped: Some(16 << 10),
            huge: Some(1 << 20),
            locked: Some(12 << 10),
            hugetlb: Some(12 << 10),
            major_faults: Some(12),
        };
        assert_eq!(all, expected);
        let status_alone = ProcessMemory {
            resident: Some(1 << 20),
            swapped: Some(8 << 10),
            huge: None,
            hugetlb: Some(20 << 10),
            major_faults: None,
            ..expected
        };
        assert_eq!(ProcessMemory::parse("", status, ""), status_alone);
        assert_eq!(ProcessMemory::parse("", "", "9 (a) S"), ProcessMemory::default());
    }

    #[test]
    fn the_cpu_time_is_that_of_both_modes() {
        let (_dir, host) = host();
        assert_eq!((host.cpu_time(9), host.forget_uses(9).is_err()), (None, true));
        let fields = (4..=20).map(|n| n.to_string()).collect::<Vec<_>>().join(" ");
        put(&host.proc.join("9/stat"), format!("9 (a) b) S {fields}\n").as_bytes());
        assert_eq!(host.cpu_time(9), Some(Duration::from_millis((14 + 15) * 10)));
        put(&host.proc.join("9/stat"), b"9 (a) S 1 2\n");
        assert_eq!(host.cpu_time(9), None);
    }

    #[test]
    fn devices_of_vfio_are_open_files() {
        let (_dir, host) = host();
        assert_eq!((host.vfio_files(9), host.process_memory(9)), (None, ProcessMemory::default()));
        put(&host.proc.join("9/status"), b"VmRSS: 4 kB\n");
        let fd = host.proc.join("9/fd");
        std::fs::create_dir_all(&fd).unwrap();
        for (n, to) in
            ["/dev/vfio/12", "/dev/kvm", "anon_inode:[vfio-device]", "/dev/vfiology"].iter().enumerate()
        {
            std::os::unix::fs::symlink(to, fd.join(n.to_string())).unwrap();
        }
        assert_eq!(host.vfio_files(9), Some(2));
        assert_eq!(host.process_memory(9).resident, Some(4096));
    }
}
