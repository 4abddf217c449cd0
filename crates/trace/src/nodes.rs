// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The NUMA nodes that a captured guest has: which frames and which vCPUs belong to each. A recording's
//! header has them, and a guest without nodes has an empty list, as have all recordings made before there
//! were nodes.

use serde::{Deserialize, Serialize};

/// The most vCPUs of a captured guest, for options, recordings and the plugin (`BF_MOST_VCPUS`). The plugin
/// has a table of vCPUs that is searched at each switch. More vCPUs would be of little use: they take turns
/// on one thread of the host.
pub const MOST_VCPUS: u32 = 8;

/// The most nodes of a guest: each has a vCPU.
pub const MOST_NODES: usize = MOST_VCPUS as usize;

/// A run of guest frames.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize)]
pub struct Frames {
    /// Number of the first 4 KB frame.
    pub first: u64,
    /// How many frames.
    pub count: u64,
}

/// A NUMA node of a guest.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
pub struct GuestNode {
    /// Its memory: two runs where the hole for devices below 4 GB parts it.
    pub frames: Vec<Frames>,
    /// Its vCPUs.
    pub vcpus: Vec<u32>,
}

/// What is wrong with the nodes of a guest with so many frames and vCPUs, if anything is.
pub(crate) fn problem(nodes: &[GuestNode], guest_frames: u64, vcpus: u32) -> Option<&'static str> {
    if nodes.len() > MOST_NODES {
        return Some("more than 8 guest nodes");
    }
    let mut runs: Vec<Frames> = nodes.iter().flat_map(|n| n.frames.iter().copied()).collect();
    if runs.len() > 2 * MOST_NODES {
        return Some("guest nodes of too many runs of frames");
    }
    if runs.iter().any(|f| f.count == 0 || f.first.checked_add(f.count).is_none_or(|end| end > guest_frames))
    {
        return Some("a guest node with frames beyond the guest's memory");
    }
    runs.sort_by_key(|f| f.first);
    if runs.windows(2).any(|w| w[0].first + w[0].count > w[1].first) {
        return Some("guest nodes that share frames");
    }
    let mut cpus: Vec<u32> = nodes.iter().flat_map(|n| n.vcpus.iter().copied().take(1 << 10)).collect();
    cpus.sort_unstable();
    let all = cpus.iter().enumerate().all(|(i, v)| *v as usize == i) && cpus.len() == vcpus as usize;
    (!nodes.is_empty() && !all).then_some("guest nodes that do not have each vCPU once")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn nodes_that_cannot_be_are_named() {
        let node = |first, count, vcpus: &[u32]| GuestNode {
            frames: vec![Frames { first, count }],
            vcpus: vcpus.to_vec(),
        };
        let problem = |nodes: &[GuestNode]| problem(nodes, 100, 2).unwrap_or("none");
        assert_eq!(problem(&[]), "none");
        assert_eq!(problem(&[node(0, 50, &[0]), node(50, 50, &[1])]), "none");
        assert_eq!(problem(&[node(0, 50, &[0, 1]), node(60, 10, &[])]), "none");
        assert!(problem(&[node(0, 51, &[0]), node(50, 50, &[1])]).contains("share frames"));
        assert!(problem(&[node(0, 50, &[0]), node(50, 51, &[1])]).contains("beyond"));
        assert!(problem(&[node(0, 50, &[0]), node(u64::MAX, 2, &[1])]).contains("beyond"));
        assert!(problem(&[node(0, 50, &[0]), node(50, 50, &[])]).contains("each vCPU once"));
        assert!(problem(&[node(0, 50, &[0]), node(50, 50, &[0, 1])]).contains("each vCPU once"));
        assert!(problem(&vec![GuestNode::default(); 9]).contains("more than 8"));
    }
}
