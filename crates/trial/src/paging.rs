// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A host that pages out what its guests have beyond a limit: all guests of a case are in one cgroup, whose
//! `memory.max` is the host's size, and each in a group of its own below, which counts. Needs root, cgroup v2
//! and swap.
//!
//! The kernel also accounts QEMU's own memory and its page tables to the group. What these take when the
//! limit begins is added to it. The page cache of the guests' disks is not: it takes part, as on a host.

use bifold_host::Host;
use bifold_host::guest_memory::{MemoryGroup, NoMemoryGroup};
use std::cell::Cell;
use std::fs::{self, File};
use std::io;
use std::path::{Path, PathBuf};
use std::thread::sleep;
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// Begins the names of groups. The rest is the number of the process that made the group.
const NAME: &str = "bifold-reclaim-";
/// Times that the host is asked to page out to the limit, with [`WAIT`] between two.
const TRIES: u32 = 500;
/// By so much QEMU's own memory grows before the limit follows.
const GROWN: u64 = 4 * MIB;
/// Time for a guest's last threads to leave their group: `WAITS` times `WAIT`.
const WAITS: u32 = 100;
const WAIT: Duration = Duration::from_millis(20);

/// Why the host cannot page guests.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum PagingError {
    /// There are no groups.
    #[error("a case with `paging = true` needs cgroup v2: {0}")]
    NoGroups(NoMemoryGroup),
    /// Groups do not have the controller.
    #[error(
        "a case with `paging = true` needs groups with the controller memory: echo +memory > {0}/cgroup.subtree_control"
    )]
    NoController(PathBuf),
    /// Swap does not suffice.
    #[error(
        "a case with `paging = true` needs {needed_mib} MiB of free swap, and {free_mib} MiB are free: add swap, or make guests smaller"
    )]
    Swap {
        /// What guests have beyond the host's size, MiB.
        needed_mib: u64,
        /// Free swap, MiB.
        free_mib: u64,
    },
    /// A group's file.
    #[error("{path}: {source}{hint}", path = path.display(), hint = hint(source))]
    File {
        /// The file or folder.
        path: PathBuf,
        /// The system's reason.
        source: io::Error,
    },
    /// The host found too little to page out.
    #[error(
        "the guests have {held_mib} MiB, and the kernel does not page out to the {limit_mib} MiB of the host's size and QEMU's own memory"
    )]
    TooMuch {
        /// What the group has, MiB.
        held_mib: u64,
        /// What it may have, MiB.
        limit_mib: u64,
    },
}

fn hint(source: &io::Error) -> &'static str {
    match source.kind() {
        io::ErrorKind::PermissionDenied => "; a case with `paging = true` needs root",
        _ => "",
    }
}

fn put(path: PathBuf, text: &str) -> Result<(), PagingError> {
    fs::write(&path, text).map_err(|source| PagingError::File { path, source })
}

/// Whether the host can page out so many MiB of guests.
///
/// # Errors
/// If it cannot.
pub fn usable(host: &Host, needed_mib: u64) -> Result<(), PagingError> {
    let top = host.memory_groups().map_err(PagingError::NoGroups)?;
    let words = fs::read_to_string(top.join("cgroup.subtree_control")).unwrap_or_default();
    if !words.split_ascii_whitespace().any(|w| w == "memory") {
        return Err(PagingError::NoController(top));
    }
    let free_mib = host.swap().map_or(0, |swap| swap.free / MIB);
    if free_mib < needed_mib {
        return Err(PagingError::Swap { needed_mib, free_mib });
    }
    Ok(())
}

/// The groups of a case. They are removed when this is dropped, which has to be after the guests' end.
#[derive(Debug)]
pub struct Paging {
    folder: PathBuf,
    guests: usize,
    /// What QEMU's own memory was when the limit was set last; 0 before.
    others: Cell<u64>,
}

impl Paging {
    /// Makes the groups, and removes those that a killed run has left empty.
    ///
    /// # Errors
    /// If the kernel does not let this process make groups.
    pub fn make(host: &Host, guests: usize) -> Result<Paging, PagingError> {
        let top = host.memory_groups().map_err(PagingError::NoGroups)?;
        remove_left(host, &top);
        let folder = top.join(format!("{NAME}{}", std::process::id()));
        let failed = |path: &Path| {
            let path = path.to_owned();
            move |source| PagingError::File { path, source }
        };
        fs::create_dir(&folder).map_err(failed(&folder))?;
        let paging = Paging { folder, guests, others: Cell::new(0) };
        put(paging.folder.join("cgroup.subtree_control"), "+memory")?;
        for n in 0..guests {
            let own = paging.group(n);
            fs::create_dir(&own).map_err(failed(&own))?;
        }
        Ok(paging)
    }

    fn group(&self, guest: usize) -> PathBuf {
        self.folder.join(guest.to_string())
    }

    /// The open file by which a process enters a guest's group.
    ///
    /// # Errors
    /// If the group is gone.
    pub fn entry(&self, guest: usize) -> Result<File, PagingError> {
        let path = self.group(guest).join("cgroup.procs");
        File::options().write(true).open(&path).map_err(|source| PagingError::File { path, source })
    }

    /// From now on, all groups together have at most `bytes` and what QEMU's own memory takes now: all but
    /// `of_guests`. Returns how much is QEMU's own.
    ///
    /// # Errors
    /// If the kernel refuses, or does not find enough to page out.
    pub fn limit(&self, bytes: u64, of_guests: u64) -> Result<u64, PagingError> {
        let others = others(&MemoryGroup::read(&self.folder)).saturating_sub(of_guests);
        let limit = bytes + others;
        // `memory.high` pages out and kills nothing. A write of it ends after some tries, so it is written
        // until that is enough: `memory.max` alone would kill a process then.
        for _ in 0..TRIES {
            put(self.folder.join("memory.high"), &limit.to_string())?;
            if self.held() <= limit {
                break;
            }
            sleep(WAIT);
        }
        if self.held() > limit {
            return Err(PagingError::TooMuch { held_mib: self.held() / MIB, limit_mib: limit / MIB });
        }
        put(self.folder.join("memory.max"), &limit.to_string())?;
        put(self.folder.join("memory.high"), "max")?;
        self.others.set(others);
        Ok(others)
    }

    /// Lets the limit follow QEMU's own memory, which grows while an emulator translates code. Returns how
    /// many processes the kernel has killed because the host's size did not suffice.
    ///
    /// # Errors
    /// If the kernel refuses.
    pub fn follow(&self, bytes: u64, of_guests: u64) -> Result<u64, PagingError> {
        let group = MemoryGroup::read(&self.folder);
        let others = others(&group).saturating_sub(of_guests);
        if self.others.get() != 0 && others >= self.others.get() + GROWN {
            self.others.set(others);
            put(self.folder.join("memory.max"), &(bytes + others).to_string())?;
        }
        Ok(group.events.get("oom_kill").unwrap_or(0))
    }

    fn held(&self) -> u64 {
        MemoryGroup::read(&self.folder).current.unwrap_or(0)
    }

    /// What the host counts for a guest since its start.
    pub fn counts(&self, guest: usize) -> PagingCounts {
        let group = MemoryGroup::read(&self.group(guest));
        PagingCounts { refaults: group.refaults().unwrap_or(0), waited_us: group.stalls_us.unwrap_or(0) }
    }
}

impl Drop for Paging {
    fn drop(&mut self) {
        for folder in (0..self.guests).map(|n| self.group(n)).chain([self.folder.clone()]) {
            for _ in 0..WAITS {
                match fs::remove_dir(&folder) {
                    Err(e) if e.kind() == io::ErrorKind::ResourceBusy => sleep(WAIT),
                    _ => break,
                }
            }
        }
    }
}

/// What a host that pages counts for a guest, since the load began.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct PagingCounts {
    /// Pages of QEMU's process that came back soon after the host took them.
    pub refaults: u64,
    /// Time in which threads of QEMU waited for memory, microseconds; 0 if the kernel does not count.
    pub waited_us: u64,
}

impl PagingCounts {
    /// The counts since an earlier moment.
    pub fn since(&self, then: &PagingCounts) -> PagingCounts {
        PagingCounts {
            refaults: self.refaults.saturating_sub(then.refaults),
            waited_us: self.waited_us.saturating_sub(then.waited_us),
        }
    }
}

/// What a group has of memory that is not files' pages.
fn others(group: &MemoryGroup) -> u64 {
    let of = |names: &[&str]| names.iter().filter_map(|name| group.stat.get(name)).sum::<u64>();
    // `kernel` is the sum of the others, since Linux 5.18.
    let kernel = group.stat.get("kernel");
    of(&["anon"]) + kernel.unwrap_or_else(|| of(&["kernel_stack", "pagetables", "percpu", "slab"]))
}

/// Removes groups of runs that were killed. The kernel does not remove one that has processes, and those of a
/// run that is starting its guests are left.
fn remove_left(host: &Host, top: &Path) {
    for entry in fs::read_dir(top).into_iter().flatten().flatten() {
        let name = entry.file_name().to_string_lossy().into_owned();
        let Some(pid) = name.strip_prefix(NAME).and_then(|pid| pid.parse::<u32>().ok()) else { continue };
        if pid != std::process::id() && host.proc.join(pid.to_string()).exists() {
            continue;
        }
        for below in fs::read_dir(entry.path()).into_iter().flatten().flatten() {
            // Files of the group cannot be removed, and need not be.
            let _ = fs::remove_dir(below.path());
        }
        let _ = fs::remove_dir(entry.path());
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn host(mounts: &str, swap_kib: u64) -> (tempfile::TempDir, Host) {
        let dir = tempfile::tempdir().unwrap();
        let host = Host::copied(dir.path());
        for (path, text) in [
            ("self/mounts", mounts.to_owned()),
            ("meminfo", format!("SwapTotal: {swap_kib} kB\nSwapFree: {swap_kib} kB\n")),
        ] {
            let path = host.proc.join(path);
            fs::create_dir_all(path.parent().unwrap()).unwrap();
            fs::write(path, text).unwrap();
        }
        fs::create_dir_all(dir.path().join("sys/fs/cgroup")).unwrap();
        (dir, host)
    }

    const V2: &str = "cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n";

    #[test]
    fn what_a_host_lacks_is_named() {
        let why = |mounts: &str, swap_kib, controllers: Option<&str>| {
            let (dir, host) = host(mounts, swap_kib);
            if let Some(text) = controllers {
                fs::write(dir.path().join("sys/fs/cgroup/cgroup.subtree_control"), text).unwrap();
            }
            usable(&host, 50).map_err(|e| e.to_string())
        };
        assert!(why("m /m cgroup rw,memory 0 0\n", 0, None).unwrap_err().contains("cgroup v1"));
        assert!(why("", 0, None).unwrap_err().contains("not mounted"));
        assert!(why(V2, 1 << 20, Some("cpu io\n")).unwrap_err().contains("echo +memory > "));
        let few = why(V2, 49 << 10, Some("memory\n")).unwrap_err();
        assert!(few.contains("needs 50 MiB of free swap, and 49 MiB are free"), "{few}");
        assert_eq!(why(V2, 50 << 10, Some("cpu memory\n")), Ok(()));
    }

    #[test]
    fn the_limit_has_room_for_qemus_own_memory() {
        let (dir, host) = host(V2, 0);
        let of = |pid: u32| dir.path().join(format!("sys/fs/cgroup/{NAME}{pid}"));
        let (left, running) = (of(1), of(2));
        fs::create_dir_all(left.join("0")).unwrap();
        fs::create_dir_all(running.join("0")).unwrap();
        fs::create_dir_all(host.proc.join("2")).unwrap();
        let paging = Paging::make(&host, 2).unwrap();
        assert!(!left.exists(), "an empty group of a killed run is removed");
        assert!(running.join("0").exists(), "that of a run that goes on is not");
        fs::write(paging.folder.join("memory.stat"), "anon 700\nfile 90\nkernel 30\nslab 20\n").unwrap();
        assert_eq!(paging.limit(1000, 600).unwrap(), 130);
        let limit = |name: &str| fs::read_to_string(paging.folder.join(name)).unwrap();
        assert_eq!((limit("memory.max").as_str(), limit("memory.high").as_str()), ("1130", "max"));
        fs::write(paging.folder.join("memory.stat"), "anon 900\nkernel 30\n").unwrap();
        assert_eq!(paging.follow(1000, 600).unwrap(), 0);
        assert_eq!(limit("memory.max"), "1130", "by a little");
        fs::write(paging.folder.join("memory.stat"), format!("anon {}\n", 600 + 8 * MIB)).unwrap();
        assert_eq!(paging.follow(1000, 600).unwrap(), 0);
        assert_eq!(limit("memory.max"), (1000 + 8 * MIB).to_string());
        fs::write(paging.folder.join("memory.events"), "oom 2\noom_kill 1\n").unwrap();
        assert_eq!(paging.follow(1000, 600).unwrap(), 1);
        fs::write(paging.folder.join("memory.stat"), "anon 700\nkernel_stack 1\npagetables 2\nslab 20\n")
            .unwrap();
        assert_eq!(paging.limit(1000, 600).unwrap(), 123);
        fs::write(paging.group(1).join("memory.stat"), "workingset_refault_anon 5\n").unwrap();
        assert_eq!(paging.counts(1), PagingCounts { refaults: 5, waited_us: 0 });
        assert_eq!(paging.counts(0), PagingCounts::default());
    }
}
