// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's NUMA nodes: how a guest's memory and vCPUs are dealt out to them.
//!
//! QEMU lays the memory of the nodes one after the other into the guest's RAM (`numa_init_memdev_container`),
//! whose hole below 4 GB is the machine's. All nodes of a captured guest are parts of one file, so the
//! plugin's mapping of guest-physical addresses is that of a guest without nodes.

use bifold_trace::{Frames, GuestNode};
use std::ops::Range;

use crate::spec::{GuestSpec, LOW_MIB};

/// Frames of 4 KB in a MiB, as a shift.
const FRAMES_OF_MIB: u32 = 8;
/// End of the hole below 4 GB, MiB.
const HIGH_MIB: u64 = 4096;

/// The part of the RAM that is node `n`'s, in MiB of the RAM.
pub(crate) fn memory(spec: &GuestSpec, n: u32) -> Range<u64> {
    let cut = |n: u32| spec.memory_mib * u64::from(n) / u64::from(spec.nodes);
    cut(n)..cut(n + 1)
}

/// The vCPUs of node `n`: a block.
pub(crate) fn vcpus(spec: &GuestSpec, n: u32) -> Range<u32> {
    let cut = |n: u32| spec.vcpus * n / spec.nodes;
    cut(n)..cut(n + 1)
}

/// The nodes of the guest; empty if it has one and so knows none.
pub fn guest_nodes(spec: &GuestSpec) -> Vec<GuestNode> {
    if spec.nodes < 2 {
        return Vec::new();
    }
    let node = |n| {
        let Range { start, end } = memory(spec, n);
        let parts = [(start..end.min(LOW_MIB), 0), (start.max(LOW_MIB)..end, HIGH_MIB - LOW_MIB)];
        let frames = |(mib, hole): (Range<u64>, u64)| Frames {
            first: (mib.start + hole) << FRAMES_OF_MIB,
            count: mib.end.saturating_sub(mib.start) << FRAMES_OF_MIB,
        };
        let frames = parts.into_iter().map(frames).filter(|f| f.count > 0).collect();
        GuestNode { frames, vcpus: vcpus(spec, n).collect() }
    };
    (0..spec.nodes).map(node).collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    fn spec(memory_mib: u64, vcpus: u32, nodes: u32) -> GuestSpec {
        GuestSpec { memory_mib, vcpus, nodes, ..GuestSpec::new(vec!["true".into()]) }
    }

    #[test]
    fn memory_and_vcpus_are_dealt_out_in_blocks() {
        assert_eq!(guest_nodes(&spec(512, 4, 1)), []);
        let two = guest_nodes(&spec(513, 3, 2));
        let frames = |first: u64, count: u64| vec![Frames { first: first << 8, count: count << 8 }];
        assert_eq!(two[0], GuestNode { frames: frames(0, 256), vcpus: vec![0] });
        assert_eq!(two[1], GuestNode { frames: frames(256, 257), vcpus: vec![1, 2] });
    }

    #[test]
    fn the_hole_below_4_gb_parts_a_node() {
        let nodes = guest_nodes(&spec(5120, 2, 2));
        let mib: Vec<Vec<(u64, u64)>> =
            nodes.iter().map(|n| n.frames.iter().map(|f| (f.first >> 8, f.count >> 8)).collect()).collect();
        assert_eq!(mib, [vec![(0, 2048), (4096, 512)], vec![(4608, 2560)]]);
        let all: u64 = nodes.iter().flat_map(|n| &n.frames).map(|f| f.count).sum();
        assert_eq!(all, 5120 << 8);
        assert_eq!(crate::guest_frames(&spec(5120, 2, 2)), (4608 + 2560) << 8);
    }
}
