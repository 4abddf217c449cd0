// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds which mappings of a process hold the memory of which guest node.
//!
//! QEMU's monitor tells (`info ramblock`). Without it, a mapping is a backend's if its file bears the
//! backend's id (files in `mem-path`) or its size is the backend's. The order in which QEMU made them
//! distinguishes backends of the same size: files have rising descriptors, and the kernel hands out addresses
//! downwards.

use crate::view::{Backend, View};
use bifold_host::placement::Memory;
use std::collections::BTreeMap;

/// Without a command line that tells, smaller mappings are the VMM's own.
const GUEST: u64 = 64 << 20;

/// A RAM block of QEMU's: its id, first address in the process, and bytes.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct RamBlock {
    pub id: String,
    pub start: u64,
    pub bytes: u64,
}

/// Memory of a guest: the guest node, if known, and the mapping.
pub type Found = (Option<u32>, Memory);

/// A backend that is looked for.
struct Part {
    id: String,
    file: bool,
    bytes: u64,
}

/// The guest's memory in a process's mappings, and what is not certain.
pub fn find(view: Option<&View>, memory: &[Memory], told: &[RamBlock]) -> (Vec<Found>, Option<String>) {
    let Some(view) = view else {
        let large = memory.iter().filter(|m| m.bytes >= GUEST);
        return (large.map(|m| (Some(0), m.clone())).collect(), None);
    };
    let parts = parts(view);
    let mut found: BTreeMap<usize, Memory> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate() {
        let by_monitor = || exactly(memory, told.iter().find(|b| b.id == part.id)?);
        let by_file = || {
            let mark = format!("qemu_back_mem.{}.", part.id);
            memory.iter().find(|m| m.file.contains(&mark)).cloned()
        };
        if let Some(piece) = by_monitor().or_else(by_file) {
            found.insert(at, piece);
        }
    }
    by_size(&parts, memory, &mut found);
    let missing: Vec<&str> =
        (0..parts.len()).filter(|at| !found.contains_key(at)).map(|at| parts[at].id.as_str()).collect();
    let unknown = (!missing.is_empty()).then(|| {
        format!(
            "the mapping of its memory {} cannot be distinguished from others: give QEMU's monitor by --qmp SOCKET",
            missing.join(", ")
        )
    });
    let all = found.into_iter().flat_map(|(at, piece)| by_node(view, &parts[at], piece));
    (all.collect(), unknown)
}

/// That memory in DIMMs and the like is not looked at.
pub fn plugged(view: &View) -> Option<String> {
    let ids = view.plugged.join(", ");
    (!ids.is_empty()).then(|| {
        format!("its memory {ids} in DIMMs or virtio devices: only memory that it starts with is looked at")
    })
}

/// The backends that are memory of the guest, in the order in which QEMU makes them.
fn parts(view: &View) -> Vec<Part> {
    let used = |b: &&Backend| {
        view.whole.as_ref() == Some(&b.id) || view.nodes.values().any(|n| n.backend.as_ref() == Some(&b.id))
    };
    let part = |b: &Backend| Part { id: b.id.clone(), file: b.file, bytes: b.bytes };
    let parts: Vec<Part> = view.backends.iter().filter(used).map(part).collect();
    if !parts.is_empty() {
        return parts;
    }
    vec![Part { id: "pc.ram".into(), file: false, bytes: view.memory }]
}

/// The piece of the mappings that a RAM block of the monitor names.
fn exactly(memory: &[Memory], block: &RamBlock) -> Option<Memory> {
    let end = block.start.checked_add(block.bytes)?;
    let inside: Vec<&Memory> =
        memory.iter().filter(|m| m.start >= block.start && m.start.saturating_add(m.bytes) <= end).collect();
    joined(&inside).or_else(|| {
        let around =
            memory.iter().find(|m| m.start <= block.start && m.start.saturating_add(m.bytes) >= end)?;
        Some(cut(around, block.start, block.bytes))
    })
}

/// Several mappings as one.
fn joined(pieces: &[&Memory]) -> Option<Memory> {
    let (first, rest) = pieces.split_first()?;
    let mut whole = (*first).clone();
    for part in rest {
        whole.bytes += part.bytes;
        whole.resident += part.resident;
        whole.huge += part.huge;
        whole.mergeable |= part.mergeable;
        whole.policies.extend(part.policies.iter().filter(|p| !first.policies.contains(p)).cloned());
        part.nodes.iter().for_each(|(node, bytes)| *whole.nodes.entry(*node).or_default() += bytes);
    }
    Some(whole)
}

/// A part of a mapping; amounts that the kernel gives for the whole only are shared out by size.
fn cut(whole: &Memory, start: u64, bytes: u64) -> Memory {
    let share =
        |amount: u64| (u128::from(amount) * u128::from(bytes) / u128::from(whole.bytes.max(1))) as u64;
    let nodes = whole.nodes.iter().map(|(node, bytes)| (*node, share(*bytes))).collect();
    let (resident, huge) = (share(whole.resident), share(whole.huge));
    Memory { start, bytes, resident, huge, nodes, ..whole.clone() }
}

/// Parts that are still missing, by their size. As many mappings of a size as parts are needed.
fn by_size(parts: &[Part], memory: &[Memory], found: &mut BTreeMap<usize, Memory>) {
    let mut sizes: BTreeMap<(u64, bool), Vec<usize>> = BTreeMap::new();
    for (at, part) in parts.iter().enumerate().filter(|(at, _)| !found.contains_key(at)) {
        sizes.entry((part.bytes, part.file)).or_default().push(at);
    }
    let taken: Vec<u64> = found.values().map(|m| m.start).collect();
    for ((bytes, file), ats) in sizes {
        let mut pieces: Vec<Memory> =
            of_size(memory, bytes, file).into_iter().filter(|m| !taken.contains(&m.start)).collect();
        if pieces.len() != ats.len() {
            continue;
        }
        pieces.sort_by_key(|m| match m.descriptor {
            Some(fd) if file => u64::from(fd),
            _ => u64::MAX - m.start,
        });
        found.extend(ats.into_iter().zip(pieces));
    }
}

/// Mappings, or runs of neighbours without a file, that have these bytes.
fn of_size(memory: &[Memory], bytes: u64, file: bool) -> Vec<Memory> {
    let mut found = Vec::new();
    let mut next = 0;
    while next < memory.len() {
        let first = &memory[next];
        let wanted = bytes.next_multiple_of(first.page.max(1));
        let mut run = vec![first];
        let mut sum = first.bytes;
        while sum < wanted && !file {
            let Some(piece) = memory.get(next + run.len()) else { break };
            if piece.start != first.start + sum || piece.file != first.file {
                break;
            }
            sum += piece.bytes;
            run.push(piece);
        }
        // `memory-backend-ram,share=on` has a file of the kernel's: /dev/zero, or a memfd.
        let kind = if file { !first.file.is_empty() } else { !first.file.starts_with("/usr") };
        if sum == wanted && kind {
            found.extend(joined(&run));
            next += run.len();
        } else {
            next += 1;
        }
    }
    found
}

/// A backend's memory by guest node: several nodes share a backend if they have sizes alone
/// (`-numa node,mem=`).
fn by_node(view: &View, part: &Part, piece: Memory) -> Vec<Found> {
    let own = view.nodes.iter().find(|(_, n)| n.backend.as_ref() == Some(&part.id));
    if let Some((number, _)) = own {
        return vec![(Some(*number), piece)];
    }
    let sizes: Option<Vec<(u32, u64)>> =
        view.nodes.iter().map(|(n, node)| Some((*n, node.memory?))).collect();
    match (view.nodes.len(), sizes) {
        (0, _) => vec![(Some(0), piece)],
        (1, _) => vec![(view.nodes.keys().next().copied(), piece)],
        (_, Some(sizes)) if sizes.iter().map(|s| s.1).sum::<u64>() == piece.bytes => {
            let mut start = piece.start;
            let one = |(number, bytes)| {
                let part = cut(&piece, start, bytes);
                start += bytes;
                (Some(number), part)
            };
            sizes.into_iter().map(one).collect()
        }
        _ => vec![(None, piece)],
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_host::CommandLine;

    const MIB: u64 = 1 << 20;

    fn view(line: &str) -> View {
        View::parse(&CommandLine::parse(format!("qemu-system-x86_64 {line}").replace(' ', "\0").as_bytes()))
            .unwrap()
    }

    fn memory(start: u64, mib: u64, file: &str, descriptor: Option<u32>) -> Memory {
        Memory { start, bytes: mib * MIB, file: file.into(), descriptor, page: 4096, ..Memory::default() }
    }

    fn starts(found: &[Found]) -> Vec<(Option<u32>, u64)> {
        found.iter().map(|(node, m)| (*node, m.start)).collect()
    }

    const TWO: &str = "-m 128M -object memory-backend-memfd,id=a,size=64M -object memory-backend-memfd,id=b,size=64M \
                       -numa node,nodeid=0,memdev=b -numa node,nodeid=1,memdev=a";
    const MEMFD: &str = "/memfd:memory-backend-memfd (deleted)";

    #[test]
    fn backends_of_one_size_are_told_by_descriptor_and_by_the_monitor() {
        let mappings = [
            memory(1 << 30, 64, MEMFD, Some(12)),
            memory(2 << 30, 64, MEMFD, Some(9)),
            memory(3 << 30, 63, MEMFD, Some(3)),
        ];
        let (found, unknown) = find(Some(&view(TWO)), &mappings, &[]);
        // a is made first and has descriptor 9; it is node 1.
        assert_eq!((starts(&found), unknown), (vec![(Some(1), 2 << 30), (Some(0), 1 << 30)], None));
        let told = [("a", 1 << 30), ("b", 2 << 30)].map(|(id, start)| RamBlock {
            id: id.into(),
            start,
            bytes: 64 * MIB,
        });
        let (found, _) = find(Some(&view(TWO)), &mappings, &told);
        assert_eq!(starts(&found), [(Some(1), 1 << 30), (Some(0), 2 << 30)]);
    }

    #[test]
    fn a_missing_mapping_is_unknown_rather_than_another() {
        let (found, unknown) = find(Some(&view(TWO)), &[memory(1 << 30, 64, MEMFD, Some(12))], &[]);
        assert!(found.is_empty() && unknown.unwrap().contains("a, b"));
    }

    #[test]
    fn memory_in_dimms_is_told_as_unknown() {
        let line = "-m 64M,slots=2,maxmem=1G -object memory-backend-ram,id=more,size=64M";
        assert_eq!(plugged(&view(line)), None);
        for driver in ["pc-dimm", "virtio-mem-pci", "nvdimm"] {
            let told = plugged(&view(&format!("{line} -device {driver},id=d,memdev=more"))).unwrap();
            assert!(told.starts_with("its memory more in DIMMs"), "{told}");
        }
    }

    #[test]
    fn memory_without_backends_may_be_in_pieces() {
        let pieces = [
            memory(1 << 30, 32, "", None),
            memory((1 << 30) + 32 * MIB, 96, "", None),
            memory(2 << 30, 64, "", None),
        ];
        let (found, _) = find(Some(&view("-m 128M")), &pieces, &[]);
        assert_eq!((starts(&found), found[0].1.bytes), (vec![(Some(0), 1 << 30)], 128 * MIB));
        let halves = view("-m 128M -numa node,mem=64M -numa node,mem=64M");
        let (found, _) = find(Some(&halves), &pieces, &[]);
        assert_eq!(starts(&found), [(Some(0), 1 << 30), (Some(1), (1 << 30) + 64 * MIB)]);
    }

    #[test]
    fn files_in_a_folder_bear_the_backends_id() {
        let line = TWO.replace("memfd", "file").replace("id=", "mem-path=/dev/hugepages,id=");
        let name = |id| format!("/dev/hugepages/qemu_back_mem.{id}.Xy12 (deleted)");
        let mappings = [memory(1 << 30, 64, &name("b"), None), memory(2 << 30, 64, &name("a"), None)];
        let (found, _) = find(Some(&view(&line)), &mappings, &[]);
        assert_eq!(starts(&found), [(Some(1), 2 << 30), (Some(0), 1 << 30)]);
    }

    #[test]
    fn other_vmms_have_one_node() {
        let mappings = [memory(1 << 30, 63, "", None), memory(2 << 30, 64, "", None)];
        assert_eq!(starts(&find(None, &mappings, &[]).0), [(Some(0), 2 << 30)]);
    }
}
