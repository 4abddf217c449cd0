// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The mappings of a process that may hold its guest's memory: from `maps`, `smaps` and `numa_maps`.

use super::NumaMap;
use crate::smaps::MOST_SMAPS;
use crate::{Host, Mapping, read_up_to};
use rustix::fs::{major, minor};
use std::collections::BTreeMap;
use std::io;
use std::os::unix::fs::MetadataExt as _;

/// Most file descriptors that are looked at.
const MOST_FDS: usize = 1 << 16;

/// A line of `/proc/PID/maps`.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct MapLine {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Whether the mapping is readable and writable but not executable.
    pub data: bool,
    /// Offset in the file.
    pub offset: u64,
    /// The device of the file system that has the file, major and minor number.
    pub device: (u32, u32),
    /// The file's number on that device; 0 without a file.
    pub inode: u64,
    /// The file, as the kernel writes it: `/memfd:memory-backend-memfd (deleted)`.
    pub file: String,
}

impl MapLine {
    /// Parses a line; `None` if it does not describe a mapping.
    pub fn parse(line: &str) -> Option<MapLine> {
        let mut words = line.splitn(6, ' ');
        let (start, end) = words.next()?.split_once('-')?;
        let hex = |text: &str| u64::from_str_radix(text, 16).ok();
        let (start, end) = (hex(start)?, hex(end)?);
        let data = words.next()?.starts_with("rw-");
        let offset = hex(words.next()?)?;
        let (major, minor) = words.next()?.split_once(':')?;
        let part = |text: &str| u32::from_str_radix(text, 16).ok();
        let device = (part(major)?, part(minor)?);
        let inode = words.next()?.parse().ok()?;
        let file = words.next().unwrap_or_default().trim().to_owned();
        (start < end && start % 4096 == 0 && end % 4096 == 0).then_some(MapLine {
            start,
            end,
            data,
            offset,
            device,
            inode,
            file,
        })
    }
}

/// Memory of a process in one piece: a mapping, or neighbours that map consecutive parts of a file.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Memory {
    /// First address.
    pub start: u64,
    /// Bytes.
    pub bytes: u64,
    /// The file that it maps; empty if none.
    pub file: String,
    /// Lowest file descriptor of that file, if it is open: files that were made one after the other have
    /// rising ones.
    pub descriptor: Option<u32>,
    /// Size of the mapping's pages in bytes: 2 MB or 1 GB in hugetlbfs, else 4 KB.
    pub page: u64,
    /// Resident bytes, hugetlbfs included.
    pub resident: u64,
    /// Resident bytes in huge pages, transparent ones included.
    pub huge: u64,
    /// Whether KSM may merge it.
    pub mergeable: bool,
    /// Memory policies of its parts, each once.
    pub policies: Vec<String>,
    /// Bytes on each node, by `numa_maps`. Empty if the kernel has no NUMA.
    pub nodes: BTreeMap<u32, u64>,
}

impl Host {
    /// The data of a process in pieces, by address. Neighbours that map consecutive parts of a file are one
    /// piece.
    ///
    /// # Errors
    /// If the process has ended, or this user may not look into it.
    pub fn memory_of(&self, pid: u32) -> io::Result<Vec<Memory>> {
        let dir = self.proc.join(pid.to_string());
        let whole = |name: &str| {
            read_up_to(&dir.join(name), MOST_SMAPS).map(|b| String::from_utf8_lossy(&b).into_owned())
        };
        // Empty, not an error, for a process that has just ended.
        let maps = whole("maps")?;
        if maps.is_empty() {
            return Err(io::ErrorKind::NotFound.into());
        }
        let mut pieces = pieces(&maps, &whole("smaps")?, &whole("numa_maps").unwrap_or_default());
        let descriptors = self.descriptors_of_files(pid);
        for (file, piece) in &mut pieces {
            piece.descriptor = file.and_then(|file| descriptors.get(&file).copied());
        }
        Ok(pieces.into_iter().map(|(_, piece)| piece).collect())
    }

    /// The lowest descriptor of each open file.
    fn descriptors_of_files(&self, pid: u32) -> BTreeMap<FileId, u32> {
        let mut found = BTreeMap::new();
        let Ok(entries) = std::fs::read_dir(self.proc.join(format!("{pid}/fd"))) else { return found };
        for entry in entries.flatten().take(MOST_FDS) {
            let fd = entry.file_name().to_str().and_then(|n| n.parse::<u32>().ok());
            // Through the link: the file itself.
            let (Some(fd), Ok(file)) = (fd, std::fs::metadata(entry.path())) else { continue };
            let id = ((major(file.dev()), minor(file.dev())), file.ino());
            let lowest = found.entry(id).or_insert(fd);
            *lowest = fd.min(*lowest);
        }
        found
    }
}

/// A file: the device, and the number there. A pipe and a memfd may have the same number, on different
/// devices.
type FileId = ((u32, u32), u64);

/// The pieces, each with its file.
fn pieces(maps: &str, smaps: &str, numa_maps: &str) -> Vec<(Option<FileId>, Memory)> {
    let amounts: BTreeMap<u64, Mapping> = Mapping::parse(smaps).into_iter().map(|m| (m.start, m)).collect();
    let numa = numa_maps.lines().filter_map(NumaMap::parse).map(|m| (m.start, m));
    let numa: BTreeMap<u64, NumaMap> = numa.collect();
    let mut found: Vec<(MapLine, Memory)> = Vec::new();
    for line in maps.lines().filter_map(MapLine::parse).filter(|l| l.data && !l.file.starts_with('[')) {
        let part = memory(&line, amounts.get(&line.start), numa.get(&line.start));
        match found.last_mut().filter(|(last, whole)| continues(last, &line) && whole.page == part.page) {
            Some((last, whole)) => {
                *last = line;
                append(whole, part);
            }
            None => found.push((line, part)),
        }
    }
    let file = |line: &MapLine| (line.inode != 0).then_some((line.device, line.inode));
    found.into_iter().map(|(line, piece)| (file(&line), piece)).collect()
}

fn continues(last: &MapLine, next: &MapLine) -> bool {
    let file = last.offset.checked_add(last.end - last.start) == Some(next.offset);
    let same = (last.device, last.inode) == (next.device, next.inode);
    last.inode != 0 && last.end == next.start && same && file
}

fn memory(line: &MapLine, amounts: Option<&Mapping>, numa: Option<&NumaMap>) -> Memory {
    let m = amounts.copied().unwrap_or_default();
    let transparent = m.huge.saturating_add(m.shared_huge).min(m.resident);
    Memory {
        start: line.start,
        bytes: line.end - line.start,
        file: line.file.clone(),
        descriptor: None,
        page: m.page.max(4096),
        resident: m.resident.saturating_add(m.hugetlb),
        huge: transparent.saturating_add(m.hugetlb),
        mergeable: m.mergeable,
        policies: numa.map(|n| n.policy.clone()).into_iter().collect(),
        nodes: numa.map(|n| n.nodes.clone()).unwrap_or_default(),
    }
}

fn append(whole: &mut Memory, part: Memory) {
    whole.bytes = whole.bytes.saturating_add(part.bytes);
    whole.resident = whole.resident.saturating_add(part.resident);
    whole.huge = whole.huge.saturating_add(part.huge);
    whole.mergeable |= part.mergeable;
    for policy in part.policies {
        if !whole.policies.contains(&policy) {
            whole.policies.push(policy);
        }
    }
    for (node, bytes) in part.nodes {
        let sum = whole.nodes.entry(node).or_default();
        *sum = sum.saturating_add(bytes);
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;
    const MAPS: &str = "\
7f0000000000-7f0000200000 rw-s 00000000 00:01 77 /memfd:memory-backend-memfd (deleted)
7f0000200000-7f0000400000 rw-s 00200000 00:01 77 /memfd:memory-backend-memfd (deleted)
7f0000400000-7f0000600000 rw-s 00000000 00:01 78 /memfd:memory-backend-memfd (deleted)
7f0000600000-7f0000700000 rwxp 00000000 00:00 0
7f0000700000-7f0000900000 rw-p 00000000 00:00 0 
7f0000900000-7f0000901000 ---p 00000000 00:00 0 
7f0000a00000-7f0000a01000 rw-p 00000000 00:00 0 
7ffc00000000-7ffc00800000 rw-p 00000000 00:00 0 [stack]
";
    const SMAPS: &str = "\
7f0000000000-7f0000200000 rw-s 00000000 00:01 77 /memfd:memory-backend-memfd (deleted)
KernelPageSize: 2048 kB
Shared_Hugetlb: 2048 kB
7f0000200000-7f0000400000 rw-s 00200000 00:01 77 /memfd:memory-backend-memfd (deleted)
KernelPageSize: 2048 kB
Private_Hugetlb: 2048 kB
7f0000700000-7f0000900000 rw-p 00000000 00:00 0
KernelPageSize: 4 kB
Rss: 1024 kB
AnonHugePages: 512 kB
VmFlags: rd wr mg
";
    const NUMA: &str = "\
7f0000000000 bind:0 file=/memfd:memory-backend-memfd\\040(deleted) huge dirty=1 N0=1 kernelpagesize_kB=2048
7f0000200000 bind:1 file=/memfd:memory-backend-memfd\\040(deleted) huge dirty=1 N1=1 kernelpagesize_kB=2048
7f0000700000 default anon=256 dirty=256 N1=256 kernelpagesize_kB=4
";

    #[test]
    fn mappings_that_continue_each_other_are_one_piece() {
        let found = pieces(MAPS, SMAPS, NUMA);
        let shape: Vec<_> = found.iter().map(|(file, m)| (*file, m.bytes / MIB, m.page)).collect();
        let file = |inode| Some(((0, 1), inode));
        assert_eq!(shape, [(file(77), 4, 2 * MIB), (file(78), 2, 4096), (None, 2, 4096), (None, 0, 4096)]);
        let (first, last) = (&found[0].1, &found[2].1);
        assert_eq!((first.resident, first.huge), (4 * MIB, 4 * MIB));
        assert_eq!(first.policies, ["bind:0", "bind:1"]);
        assert_eq!(first.nodes, BTreeMap::from([(0, 2 * MIB), (1, 2 * MIB)]));
        assert_eq!((last.resident, last.huge, last.mergeable), (MIB, MIB / 2, true));
        assert_eq!(last.nodes, BTreeMap::from([(1, MIB)]));
    }

    /// The kernel numbers pipes and files of memory each from 1 on: QEMU's stdout may have the number of its
    /// guest's memory.
    #[test]
    fn the_number_of_a_file_counts_on_its_device_only() {
        let line = |device: &str| {
            MapLine::parse(&format!("7f0000000000-7f0000200000 rw-s 00000000 {device} 4 /x")).unwrap()
        };
        assert_eq!((line("00:01").device, line("fd:1a").device), ((0, 1), (0xfd, 0x1a)));
        let next =
            MapLine { start: 0x7f00_0020_0000, end: 0x7f00_0040_0000, offset: 0x20_0000, ..line("00:0e") };
        assert!(continues(&MapLine { device: (0, 0xe), ..line("00:01") }, &next));
        assert!(!continues(&line("00:01"), &next));
    }

    #[test]
    fn this_process_has_memory_and_one_that_ended_has_not() {
        let held = vec![1_u8; 64 << 20];
        let host = Host::live();
        let found = host.memory_of(std::process::id()).unwrap();
        let at = held.as_ptr() as u64;
        let piece = found.iter().find(|m| (m.start..m.start + m.bytes).contains(&at)).unwrap();
        assert!(piece.resident >= 64 << 20, "{piece:?}");
        assert!(host.memory_of(u32::MAX).is_err());
    }

    proptest! {
        #[test]
        fn any_text_is_some_pieces(text in "[0-9a-f rwxps:/-]{0,60}\n[0-9a-f]{1,4}-[0-9a-f]{4,8} rw-p [0-9a-f]{1,9} 00:00 [0-9]{1,3}\n") {
            pieces(&text, &text, &text);
        }
    }
}
