// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The room that a VM's cgroups leave for a stay in shadow paging.
//!
//! KVM charges reverse maps and shadow pages to the VMM's cgroup. A charge above a limit fails, and KVM then
//! ends the stay; before that the kernel takes from the group what it can, the guest's own memory too.

use super::{Limit, NoMemoryGroup};
use crate::memory::text;
use crate::placement::MapLine;
use crate::smaps::MOST_SMAPS;
use crate::{Host, VmStat, backing, printable, read_up_to};
use std::fmt;
use std::path::PathBuf;

/// Bytes of a page of the guest.
const PAGE: u64 = 4096;
/// KVM's default limit of shadow pages: one for so many pages of the guest (`KVM_PERMILLE_MMU_PAGES` is 20),
/// and at least so many (`KVM_MIN_ALLOC_MMU_PAGES`).
const GUEST_PAGES: u64 = 50;
const LEAST_SHADOW_PAGES: u64 = 64;
/// A shadow page takes a page of entries, a page with the frames that the guest's entries name, and KVM's
/// header of less than 256 bytes (`struct kvm_mmu_page`).
const SHADOW_PAGE: u64 = 2 * PAGE + 256;
/// Reverse maps take 8 bytes for each page of the guest, and write tracking 2: 0.25 % of the guest's memory.
const AT_ONCE_PART: u64 = 400;
/// The margin that stays free during a stay is this part of what the stay takes, and at least so many bytes.
/// The kernel charges in batches of 64 pages for each CPU, and the guest's own processes on the host (its
/// VMM's buffers, page tables, vhost) go on charging: 16 MiB are 64 such batches.
const MARGIN_PART: u64 = 10;
const LEAST_MARGIN: u64 = 16 << 20;

/// The room below the limits of a process's cgroups.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Room {
    /// The folder of the group that leaves the least.
    pub folder: PathBuf,
    /// What that group leaves (`memory.max` less `memory.current`), in bytes.
    pub left: u64,
    /// How often charges met the limits of the process's groups (`max` of `memory.events`).
    pub met: u64,
}

/// The kernel memory that a stay in shadow paging may take, in bytes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct ShadowNeed {
    /// Reverse maps, write tracking, and shadow pages up to KVM's limit.
    pub tables: u64,
    /// What is to stay free beside them.
    pub margin: u64,
}

/// A cgroup that leaves too little for a stay in shadow paging. Amounts are in bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Shortage {
    /// The group's folder.
    pub folder: PathBuf,
    /// What the group leaves.
    pub left: u64,
    /// What a stay needs, with a margin.
    pub need: u64,
}

impl ShadowNeed {
    /// What a stay of a guest with so many bytes of memory needs.
    pub fn of(guest: u64) -> ShadowNeed {
        let shadow_pages = (guest / PAGE / GUEST_PAGES).max(LEAST_SHADOW_PAGES);
        let tables = shadow_pages.saturating_mul(SHADOW_PAGE).saturating_add(guest / AT_ONCE_PART);
        ShadowNeed { tables, margin: (tables / MARGIN_PART).max(LEAST_MARGIN) }
    }

    /// What has to be free before the stay.
    pub fn all(self) -> u64 {
        self.tables.saturating_add(self.margin)
    }
}

impl Host {
    /// The room that a process's cgroups leave; `None` if none of them has a limit.
    ///
    /// # Errors
    /// If the process has ended, or the controller memory is not in cgroup v2.
    pub fn room(&self, pid: u32) -> Result<Option<Room>, NoMemoryGroup> {
        let mut least: Option<Room> = None;
        let mut met = 0u64;
        for folder in self.memory_folders(pid)? {
            let Some(Limit::Bytes(max)) = Limit::parse(&text(&folder.join("memory.max"))) else { continue };
            let Ok(current) = text(&folder.join("memory.current")).trim().parse::<u64>() else { continue };
            let events = VmStat::parse(&text(&folder.join("memory.events")));
            met = met.saturating_add(events.get("max").unwrap_or(0));
            let left = max.saturating_sub(current);
            if least.as_ref().is_none_or(|least| left < least.left) {
                least = Some(Room { folder, left, met: 0 });
            }
        }
        Ok(least.map(|least| Room { met, ..least }))
    }

    /// What a stay of a process's guest needs; `None` if the guest's size is unknown. As KVM does, this
    /// counts all memory that the VMM has mapped for the guest, used or not.
    pub fn shadow_need(&self, pid: u32) -> Option<ShadowNeed> {
        let maps = read_up_to(&self.proc.join(format!("{pid}/maps")), MOST_SMAPS).ok()?;
        let maps = String::from_utf8_lossy(&maps);
        let of_guest = |m: &MapLine| m.data && m.end - m.start >= backing::GUEST;
        let mapped = maps.lines().filter_map(MapLine::parse).filter(of_guest);
        let guest = mapped.fold(0, |sum: u64, m| sum.saturating_add(m.end - m.start));
        (guest > 0).then(|| ShadowNeed::of(guest))
    }

    /// The cgroup that leaves too little for a stay of a process's guest in shadow paging. `None` if all
    /// leave enough, or if that is unknown: the guest's size is, or memory is limited by cgroup v1.
    pub fn shortage(&self, pid: u32) -> Option<Shortage> {
        // Most groups have no limit, and the mappings take longest to read.
        let Room { folder, left, .. } = self.room(pid).ok()??;
        let need = self.shadow_need(pid)?.all();
        (left < need).then_some(Shortage { folder, left, need })
    }
}

/// MiB, rounded so that a shortage never looks like enough.
fn mib(bytes: u64, round_up: bool) -> u64 {
    if round_up { bytes.div_ceil(1 << 20) } else { bytes >> 20 }
}

impl Shortage {
    /// What a user can do beside raising the limit.
    pub const REMEDY: &'static str =
        "page cache of the guest's disks counts in the cgroup too, and cache=none of QEMU keeps it out";
}

impl fmt::Display for Shortage {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let (need, left) = (mib(self.need, true), mib(self.left, false));
        let folder = printable(&self.folder.to_string_lossy());
        write!(
            f,
            "shadow paging needs up to {need} MiB of kernel memory, and cgroup {folder} has {left} MiB left: raise its memory.max \
             (MemoryMax= of systemd, hard_limit of libvirt)"
        )
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::tests::{host, put};
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    fn group(host: &Host, name: &str, files: [(&str, &str); 3]) {
        let folder = host.proc.parent().unwrap().join("sys/fs/cgroup").join(name);
        files.iter().for_each(|(file, text)| put(&folder.join(file), text.as_bytes()));
    }

    /// A process in `/a/b`, of which neither has a limit, with a guest of 4 GiB.
    fn world() -> (tempfile::TempDir, Host) {
        let (dir, host) = host();
        put(&host.proc.join("self/mounts"), b"cgroup2 /sys/fs/cgroup cgroup2 rw 0 0\n");
        put(&host.proc.join("9/cgroup"), b"0::/a/b\n");
        for name in ["a", "a/b"] {
            group(
                &host,
                name,
                [("memory.max", "max\n"), ("memory.current", "4096\n"), ("memory.events", "")],
            );
        }
        let maps = "7f0000000000-7f0100000000 rw-p 00000000 00:00 0 \n\
                    7f8000000000-7f8003ff0000 rw-p 00000000 00:00 0 [heap]\n\
                    7fa000000000-7fb000000000 ---p 00000000 00:00 0\nx\n";
        put(&host.proc.join("9/maps"), maps.as_bytes());
        (dir, host)
    }

    #[test]
    fn a_stay_needs_four_percent_of_the_guest_and_a_margin() {
        let need = ShadowNeed::of(4 << 30);
        let percent = need.tables as f64 / (4u64 << 30) as f64 * 100.0;
        assert!((4.3..4.4).contains(&percent), "{percent}");
        assert_eq!(need.all(), need.tables + need.tables / 10);
        assert_eq!(ShadowNeed::of(0), ShadowNeed { tables: 64 * SHADOW_PAGE, margin: 16 * MIB });
        assert!(ShadowNeed::of(u64::MAX).all() > 1 << 59);
    }

    #[test]
    fn the_group_that_leaves_the_least_counts() {
        let (_dir, host) = world();
        assert_eq!((host.room(9), host.shortage(9)), (Ok(None), None));
        let limits = |max: &str, current: &str, events: &str| {
            group(&host, "a/b", [("memory.max", max), ("memory.current", current), ("memory.events", events)])
        };
        limits("5368709120\n", "4294967296\n", "low 0\nhigh 9\nmax 3\noom 1\n");
        assert_eq!(host.shortage(9), None, "a GiB is enough");
        group(
            &host,
            "a",
            [("memory.max", "104857600\n"), ("memory.current", "52428801\n"), ("memory.events", "max 4\n")],
        );
        let room = host.room(9).unwrap().unwrap();
        assert_eq!((room.left, room.met), (50 * MIB - 1, 7));
        assert!(room.folder.ends_with("sys/fs/cgroup/a"));
        let said = host.shortage(9).unwrap().to_string().replace(room.folder.to_str().unwrap(), "/a");
        assert_eq!(
            said,
            "shadow paging needs up to 198 MiB of kernel memory, and cgroup /a has 49 MiB left: raise its memory.max \
             (MemoryMax= of systemd, hard_limit of libvirt)"
        );
        limits("4096\n", "8192\n", "");
        assert_eq!(host.room(9).unwrap().unwrap().left, 0, "a limit that was lowered");
    }

    #[test]
    fn what_is_not_known_is_no_shortage() {
        let (_dir, host) = world();
        for (max, current) in
            [("", "1"), ("99999999999999999999", "1"), ("4096", ""), ("-1", "1"), ("4k", "1")]
        {
            group(&host, "a/b", [("memory.max", max), ("memory.current", current), ("memory.events", "x")]);
            assert_eq!(host.room(9), Ok(None), "{max} {current}");
        }
        group(&host, "a/b", [("memory.max", "0"), ("memory.current", "0"), ("memory.events", "max -1")]);
        assert_eq!(host.shortage(9).unwrap().left, 0);
        put(&host.proc.join("9/maps"), b"7f0000000000-7f0000010000 rw-p 00000000 00:00 0\n");
        assert_eq!((host.shadow_need(9), host.shortage(9)), (None, None), "a guest of unknown size");
        std::fs::remove_file(host.proc.join("9/cgroup")).unwrap();
        assert_eq!(host.room(9), Err(NoMemoryGroup::NoGroup), "the process has ended");
        put(&host.proc.join("9/cgroup"), b"0::/\n");
        assert_eq!(host.room(9), Ok(None), "the topmost group has no limit");
        put(&host.proc.join("self/mounts"), b"c /c cgroup2 rw 0 0\nm /m cgroup rw,memory 0 0\n");
        assert_eq!((host.room(9), host.shortage(9)), (Err(NoMemoryGroup::V1), None));
    }

    proptest! {
        #[test]
        fn any_text_is_some_room(text in "[ -~\n]{0,60}") {
            let (_dir, host) = world();
            group(&host, "a/b", [("memory.max", &text), ("memory.current", &text), ("memory.events", &text)]);
            put(&host.proc.join("9/maps"), text.as_bytes());
            let _ = (host.room(9), host.shortage(9));
            put(&host.proc.join("9/cgroup"), text.as_bytes());
            let _ = host.room(9);
        }
    }
}
