// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses a process's mappings from `/proc/PID/smaps`.

use std::str::SplitAsciiWhitespace;

/// Bytes of a page.
const PAGE: u64 = 4096;
/// Upper limit for the file: by default a process has at most 65,530 mappings (vm.max_map_count), with about
/// 1 KiB of text each.
pub(crate) const MOST_SMAPS: u64 = 1 << 30;

/// A mapping. Amounts are in bytes, 0 where the kernel lacks the line.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Mapping {
    /// First address.
    pub start: u64,
    /// End address, exclusive.
    pub end: u64,
    /// Whether the mapping is readable and writable but not executable (`rw-`).
    pub data: bool,
    /// Resident bytes (`Rss`).
    pub resident: u64,
    /// Proportional bytes: a page with n mappings counts 1/n (`Pss`).
    pub proportional: u64,
    /// Resident bytes that were used since [`Host::forget_uses`](crate::Host::forget_uses), or since the
    /// start (`Referenced`).
    pub referenced: u64,
    /// Bytes in the host's swap (`Swap`).
    pub swapped: u64,
    /// Resident bytes in transparent huge pages of private memory (`AnonHugePages`).
    pub huge: u64,
    /// Resident bytes in transparent huge pages of files and shared memory (`FilePmdMapped`,
    /// `ShmemPmdMapped`).
    pub shared_huge: u64,
    /// Bytes in pages of hugetlbfs (`Private_Hugetlb`, `Shared_Hugetlb`), which are not in `resident`.
    pub hugetlb: u64,
    /// Size of the mapping's pages, in bytes (`KernelPageSize`): 2 MB or 1 GB in hugetlbfs.
    pub page: u64,
    /// Whether KSM may merge the mapping (flag `mg`).
    pub mergeable: bool,
}

impl Mapping {
    /// Parses `/proc/PID/smaps`, in its order. Unknown lines are skipped, because kernels add lines.
    pub fn parse(smaps: &str) -> Vec<Mapping> {
        let mut found: Vec<Mapping> = Vec::new();
        // Whether the current lines belong to the last mapping found.
        let mut inside = false;
        for line in smaps.lines() {
            let mut words = line.split_ascii_whitespace();
            let first = words.next().unwrap_or_default();
            // The names of amounts begin with capitals. Of a VM's file, all but a few hundred of ten thousand
            // lines are such.
            let named = first.starts_with(|c: char| c.is_ascii_uppercase());
            if let Some((start, end)) = (!named).then(|| range(first)).flatten() {
                inside = start < end && start % PAGE == 0 && end % PAGE == 0;
                if inside {
                    let data = words.next().is_some_and(|mode| mode.starts_with("rw-"));
                    found.push(Mapping { start, end, data, ..Mapping::default() });
                }
                continue;
            }
            let Some(mapping) = found.last_mut().filter(|_| inside) else { continue };
            match first {
                "Rss:" => mapping.resident = bytes(words),
                "Pss:" => mapping.proportional = bytes(words),
                "Referenced:" => mapping.referenced = bytes(words),
                "Swap:" => mapping.swapped = bytes(words),
                "AnonHugePages:" => mapping.huge = bytes(words),
                "FilePmdMapped:" | "ShmemPmdMapped:" => {
                    mapping.shared_huge = mapping.shared_huge.saturating_add(bytes(words))
                }
                "Private_Hugetlb:" | "Shared_Hugetlb:" => {
                    mapping.hugetlb = mapping.hugetlb.saturating_add(bytes(words))
                }
                "KernelPageSize:" => mapping.page = bytes(words),
                "VmFlags:" => mapping.mergeable = words.any(|w| w == "mg"),
                _ => {}
            }
        }
        found
    }
}

/// `START-END` in hexadecimal.
fn range(word: &str) -> Option<(u64, u64)> {
    let (start, end) = word.split_once('-')?;
    let hex = |s| u64::from_str_radix(s, 16).ok();
    Some((hex(start)?, hex(end)?))
}

fn bytes(mut words: SplitAsciiWhitespace) -> u64 {
    words.next().and_then(|kib| kib.parse::<u64>().ok()?.checked_mul(1024)).unwrap_or(0)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mapping_has_its_lines_and_no_others() {
        let smaps = "7f0000000000-7f0000200000 rw-p 00000000 00:00 0 \nSize: 2048 kB\nKernelPageSize: 4 kB\nRss: 1024 kB\n\
                     Pss: 512 kB\nPss_Dirty: 7 kB\nReferenced: 64 kB\nAnonHugePages:   256 kB\nNew: 9 kB\n\
                     VmFlags: rd wr mr mw me ac mg \n\
                     7f0000300000-7f0000400000 r-xp 00000000 00:00 0  /lib/x\nRss: much kB\nVmFlags: rd ex\n\
                     7f0000400001-7f0000401000 rw-p 00000000 00:00 0\nRss: 4 kB\nVmFlags: mg";
        let found = Mapping::parse(smaps);
        let (a, b) = (0x7f00_0000_0000, 0x7f00_0030_0000);
        let none = Mapping { start: b, end: b + (1 << 20), ..Mapping::default() };
        let first = Mapping {
            start: a,
            end: a + (2 << 20),
            data: true,
            resident: 1 << 20,
            proportional: 512 << 10,
            referenced: 64 << 10,
            huge: 256 << 10,
            page: 4096,
            mergeable: true,
            ..Mapping::default()
        };
        assert_eq!(found, [first, none], "the third begins in the middle of a page");
        assert_eq!(Mapping::parse("a line without a mapping\nRss: 4 kB\n"), []);
    }
}
