// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What backs a guest's memory on the host: pages by size, and NUMA nodes, from `/proc/PID/smaps` and
//! `numa_maps`.

use crate::smaps::MOST_SMAPS;
use crate::{Host, Mapping, read_up_to};
use std::collections::BTreeMap;

/// A process's mapping of at least so many bytes holds memory of its guest; smaller ones are the process's
/// own.
pub(crate) const GUEST: u64 = 64 << 20;

/// The memory of a guest that its host has backed, in bytes.
///
/// The kernel looks at every page for these figures, so a caller that watches many guests asks for them now
/// and then only.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Backing {
    /// In pages of 4 KB.
    pub small: u64,
    /// In pages of 2 MB, transparent or of hugetlbfs.
    pub huge: u64,
    /// In pages of 1 GB.
    pub giant: u64,
    /// On each NUMA node. Empty if this kernel does not tell.
    pub nodes: BTreeMap<u32, u64>,
}

impl Backing {
    /// All of it.
    pub fn total(&self) -> u64 {
        self.small.saturating_add(self.huge).saturating_add(self.giant)
    }

    /// The backing, from the text of `smaps` and of `numa_maps`.
    pub fn parse(smaps: &str, numa_maps: &str) -> Backing {
        let guest: Vec<Mapping> =
            Mapping::parse(smaps).into_iter().filter(|m| m.data && m.end - m.start >= GUEST).collect();
        let mut backing = Backing::default();
        for m in &guest {
            let thp = m.huge.saturating_add(m.shared_huge).min(m.resident);
            let (large, giant) = if m.page >= 1 << 30 { (0, m.hugetlb) } else { (m.hugetlb, 0) };
            backing.small = backing.small.saturating_add(m.resident - thp);
            backing.huge = backing.huge.saturating_add(thp).saturating_add(large);
            backing.giant = backing.giant.saturating_add(giant);
        }
        for (start, node, bytes) in numa_maps.lines().flat_map(nodes) {
            if guest.iter().any(|m| m.start == start) {
                let sum = backing.nodes.entry(node).or_default();
                *sum = sum.saturating_add(bytes);
            }
        }
        backing
    }
}

impl Host {
    /// What backs the guest of this process; `None` if this user may not look, or the process has ended.
    pub fn backing(&self, pid: u32) -> Option<Backing> {
        let dir = self.proc.join(pid.to_string());
        let whole = |name| read_up_to(&dir.join(name), MOST_SMAPS).ok();
        let smaps = whole("smaps").filter(|s| !s.is_empty())?;
        let numa_maps = whole("numa_maps").unwrap_or_default();
        Some(Backing::parse(&String::from_utf8_lossy(&smaps), &String::from_utf8_lossy(&numa_maps)))
    }
}

/// Start address, node and bytes of each `N<node>=<pages>` in a line of `numa_maps`.
fn nodes(line: &str) -> Vec<(u64, u32, u64)> {
    let mut words = line.split_whitespace();
    let start = words.next().and_then(|w| u64::from_str_radix(w, 16).ok());
    let Some(start) = start else { return Vec::new() };
    let (mut found, mut page) = (Vec::new(), 4096);
    for word in words {
        if let Some(kib) = word.strip_prefix("kernelpagesize_kB=") {
            page = kib.parse::<u64>().unwrap_or(4).saturating_mul(1024);
        } else if let Some((node, pages)) = word.strip_prefix('N').and_then(|w| w.split_once('=')) {
            if let (Ok(node), Ok(pages)) = (node.parse(), pages.parse::<u64>()) {
                found.push((node, pages));
            }
        }
    }
    found.into_iter().map(|(node, pages)| (start, node, pages.saturating_mul(page))).collect()
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    const MIB: u64 = 1 << 20;

    /// Two mappings of guest memory (transparent pages, and 1 GB pages), and one of the process's own.
    const SMAPS: &str = "7f0000000000-7f0010000000 rw-p 00000000 00:00 0\nRss: 204800 kB\nAnonHugePages: 102400 kB\n\
        KernelPageSize: 4 kB\n\
        7f4000000000-7f4080000000 rw-s 00000000 00:0e 77 /dev/hugepages1G/x\nRss: 0 kB\nShared_Hugetlb: 1048576 kB\n\
        KernelPageSize: 1048576 kB\n\
        7f8000000000-7f8001000000 rw-p 00000000 00:00 0\nRss: 9999 kB\nKernelPageSize: 4 kB\n";
    const NUMA: &str = "7f0000000000 default anon=51200 dirty=51200 N0=25600 N1=25600 kernelpagesize_kB=4\n\
        7f4000000000 bind:1 file=/dev/hugepages1G/x huge dirty=1 N1=1 kernelpagesize_kB=1048576\n\
        7f8000000000 default anon=9 N0=9 kernelpagesize_kB=4\n";

    #[test]
    fn guest_memory_is_told_by_size_and_node() {
        let backing = Backing::parse(SMAPS, NUMA);
        assert_eq!([backing.small, backing.huge, backing.giant], [100 * MIB, 100 * MIB, 1024 * MIB]);
        assert_eq!(backing.nodes, BTreeMap::from([(0, 100 * MIB), (1, 1124 * MIB)]));
        assert_eq!(backing.total(), 1224 * MIB);
    }

    #[test]
    fn without_numa_maps_nodes_are_unknown_and_without_smaps_everything() {
        let (_dir, host) = crate::tests::host();
        assert_eq!(host.backing(7), None);
        std::fs::create_dir_all(host.proc.join("7")).unwrap();
        std::fs::write(host.proc.join("7/smaps"), SMAPS).unwrap();
        let backing = host.backing(7).unwrap();
        assert!(backing.nodes.is_empty() && backing.huge == 100 * MIB);
    }

    proptest! {
        #[test]
        fn any_text_is_some_backing(smaps in "[0-9a-fA-Z:=_ \n-]{0,400}", numa in "[0-9a-fN:=_ \n]{0,200}") {
            Backing::parse(&smaps, &numa).total();
        }
    }
}
