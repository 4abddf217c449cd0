// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A process's cgroup with the controller memory, of cgroup v2 (`admin-guide/cgroup-v2.rst`).
//!
//! A group without the controller is accounted in its nearest ancestor with the controller. The topmost group
//! has no limits and no `memory.reclaim`.

use crate::memory::{psi, text};
use crate::topology::{below, mounts};
use crate::{Host, VmStat};
use std::collections::BTreeSet;
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

/// Most groups below one that are looked at.
const MOST_GROUPS: usize = 1024;

/// Why a process has no such group.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMemoryGroup {
    /// The controller is in the other version.
    #[error(
        "the controller memory is in cgroup v1, which has no memory.reclaim: boot the host with systemd.unified_cgroup_hierarchy=1"
    )]
    V1,
    /// There is no controller.
    #[error("cgroup v2 with the controller memory is not mounted here")]
    NotMounted,
    /// The process is in the topmost group, or its groups lack the controller.
    #[error(
        "the process is in no cgroup of its own with the controller memory: start it with `systemd-run --scope -p MemoryAccounting=yes`"
    )]
    NoGroup,
}

/// A limit of a group.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Limit {
    /// `max`.
    None,
    /// Bytes.
    Bytes(u64),
}

impl Limit {
    /// Parses a file such as `memory.max`.
    pub fn parse(text: &str) -> Option<Limit> {
        match text.trim() {
            "max" => Some(Limit::None),
            number => number.parse().ok().map(Limit::Bytes),
        }
    }
}

/// A cgroup's memory. Amounts are in bytes.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MemoryGroup {
    /// The group's folder.
    pub folder: PathBuf,
    /// `memory.current`.
    pub current: Option<u64>,
    /// `memory.high`.
    pub high: Option<Limit>,
    /// `memory.swap.current`.
    pub swapped: Option<u64>,
    /// `memory.swap.max`.
    pub swap_max: Option<Limit>,
    /// `memory.stat`.
    pub stat: VmStat,
    /// `memory.events`: how often limits were reached and processes killed.
    pub events: VmStat,
    /// Microseconds in which some task of the group waited for memory (`memory.pressure`).
    pub stalls_us: Option<u64>,
    /// Whether the kernel has `memory.reclaim` (Linux 5.19).
    pub reclaims: bool,
    /// Processes of the group and of all groups below it. [`Host::memory_group`] leaves out threads of the
    /// kernel.
    pub processes: BTreeSet<u32>,
}

impl MemoryGroup {
    /// Pages that came back soon after they were taken (`workingset_refault_anon`, `workingset_refault_file`,
    /// and their sum before Linux 5.9).
    pub fn refaults(&self) -> Option<u64> {
        let parts = ["anon", "file"].map(|kind| self.stat.get(&format!("workingset_refault_{kind}")));
        match parts {
            [None, None] => self.stat.get("workingset_refault"),
            parts => Some(parts.iter().flatten().fold(0, |a: u64, b| a.saturating_add(*b))),
        }
    }

    /// Reads the group of a folder. Figures that a group lacks are `None`.
    pub fn read(folder: &Path) -> MemoryGroup {
        let file = |name: &str| text(&folder.join(name));
        let number = |name: &str| file(name).trim().parse().ok();
        MemoryGroup {
            folder: folder.into(),
            current: number("memory.current"),
            high: Limit::parse(&file("memory.high")),
            swapped: number("memory.swap.current"),
            swap_max: Limit::parse(&file("memory.swap.max")),
            stat: VmStat::parse(&file("memory.stat")),
            events: VmStat::parse(&file("memory.events")),
            stalls_us: psi(&file("memory.pressure"), "total="),
            reclaims: folder.join("memory.reclaim").exists(),
            processes: processes(folder),
        }
    }

    /// Asks the kernel to take this many bytes from the group: cache is dropped, the rest goes to swap.
    /// Returns whether it took all of them.
    ///
    /// # Errors
    /// If the kernel refuses. A signal interrupts the call.
    pub fn reclaim(&self, bytes: u64) -> io::Result<bool> {
        let mut file = std::fs::OpenOptions::new().write(true).open(self.folder.join("memory.reclaim"))?;
        // One call: after a signal, a second one would take all of the bytes again.
        match file.write(bytes.to_string().as_bytes()) {
            Ok(_) => Ok(true),
            // The kernel found less.
            Err(e) if e.kind() == io::ErrorKind::WouldBlock => Ok(false),
            Err(e) => Err(e),
        }
    }
}

impl Host {
    /// Where cgroups with the controller memory are mounted.
    ///
    /// # Errors
    /// If cgroups are of version 1, or not mounted.
    pub fn memory_groups(&self) -> Result<PathBuf, NoMemoryGroup> {
        let all = mounts(self);
        let of_v1 =
            |m: &crate::topology::MountRow| m.kind == "cgroup" && m.options.split(',').any(|o| o == "memory");
        if all.iter().any(of_v1) {
            return Err(NoMemoryGroup::V1);
        }
        let mount = all.into_iter().find(|m| m.kind == "cgroup2").ok_or(NoMemoryGroup::NotMounted)?;
        Ok(mount.at)
    }

    /// The cgroup that a process's memory is accounted in.
    ///
    /// # Errors
    /// If cgroups are of version 1, or no group below the topmost has the controller.
    pub fn memory_group(&self, pid: u32) -> Result<MemoryGroup, NoMemoryGroup> {
        let mut folders = self.memory_folders(pid)?.into_iter();
        let with = folders.find(|folder| folder.join("memory.current").exists());
        let mut group = MemoryGroup::read(&with.ok_or(NoMemoryGroup::NoGroup)?);
        // KVM's thread `kvm-nx-lpage-re` and vhost's join the guest's groups.
        group.processes.retain(|&pid| !self.is_of_kernel(pid));
        Ok(group)
    }

    /// The folders of a process's cgroup and of the groups above it, the topmost excluded: a limit of each
    /// holds for the process. Not all need have the controller.
    pub(crate) fn memory_folders(&self, pid: u32) -> Result<Vec<PathBuf>, NoMemoryGroup> {
        let mount = self.memory_groups()?;
        let groups = text(&self.proc.join(format!("{pid}/cgroup")));
        let group = groups.lines().find_map(|l| l.strip_prefix("0::")).ok_or(NoMemoryGroup::NoGroup)?;
        let path = below(group);
        let parts = path.ancestors().filter(|p| !p.as_os_str().is_empty());
        Ok(parts.map(|p| mount.join(p)).collect())
    }
}

/// Processes of a group and of all groups below it. A threaded group names none: its processes are its
/// parent's.
fn processes(folder: &Path) -> BTreeSet<u32> {
    let (mut found, mut todo, mut seen) = (BTreeSet::new(), vec![folder.to_owned()], 0);
    while let Some(dir) = todo.pop().filter(|_| seen < MOST_GROUPS) {
        seen += 1;
        found.extend(text(&dir.join("cgroup.procs")).lines().filter_map(|l| l.trim().parse::<u32>().ok()));
        let entries = std::fs::read_dir(&dir).into_iter().flatten().flatten();
        todo.extend(entries.filter(|e| e.file_type().is_ok_and(|t| t.is_dir())).map(|e| e.path()));
    }
    found
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};

    #[test]
    fn memory_is_accounted_in_the_nearest_group_with_the_controller() {
        let (dir, host) = host();
        assert_eq!(host.memory_group(9), Err(NoMemoryGroup::NotMounted));
        put(&host.proc.join("self/mounts"), b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        assert_eq!(host.memory_group(9), Err(NoMemoryGroup::NoGroup));
        put(&host.proc.join("9/cgroup"), b"0::/machine.slice/a.scope/libvirt/emulator\n");
        let top = dir.path().join("sys/fs/cgroup");
        put(&top.join("memory.current"), b"1\n");
        put(&top.join("machine.slice/a.scope/libvirt/emulator/cgroup.procs"), b"");
        assert_eq!(host.memory_group(9), Err(NoMemoryGroup::NoGroup), "the topmost group is the host's");
        let scope = top.join("machine.slice/a.scope");
        for (file, text) in [
            ("memory.current", "4096\n"),
            ("memory.high", "max\n"),
            ("memory.swap.max", "8192\n"),
            ("memory.stat", "anon 1\nworkingset_refault_anon 3\nworkingset_refault_file 4\n"),
            ("memory.events", "oom_kill 0\n"),
            ("memory.pressure", "some avg10=0.00 total=5\n"),
            ("memory.reclaim", ""),
            ("cgroup.procs", "9\n13\n"),
            ("libvirt/helper/cgroup.procs", "12\n"),
        ] {
            put(&scope.join(file), text.as_bytes());
        }
        for (pid, flags) in [(9, 0x40_0100), (12, 0x40_0140), (13, 0x20_8040)] {
            let stat = format!("{pid} (a (b) c) S 1 9 9 0 -1 {flags} 0 0\n");
            put(&host.proc.join(format!("{pid}/stat")), stat.as_bytes());
        }
        let group = host.memory_group(9).unwrap();
        assert_eq!((group.current, group.refaults(), &group.folder), (Some(4096), Some(7), &scope));
        assert_eq!(
            (group.high, group.swap_max, group.stalls_us),
            (Some(Limit::None), Some(Limit::Bytes(8192)), Some(5))
        );
        assert_eq!(group.processes, BTreeSet::from([9, 12]), "13 is a thread of the kernel");
        assert!(group.reclaims && group.reclaim(4096).unwrap());
        assert_eq!(std::fs::read(scope.join("memory.reclaim")).unwrap(), b"4096");
        put(&host.proc.join("self/mounts"), b"c /c cgroup2 rw 0 0\nm /m cgroup rw,memory 0 0\n");
        assert_eq!(host.memory_group(9), Err(NoMemoryGroup::V1));
    }

    #[test]
    fn this_machine_has_a_group_or_says_why_not() {
        if let Err(e) = Host::live().memory_group(std::process::id()) {
            assert!(e.to_string().contains("cgroup"), "{e}");
        }
    }
}
