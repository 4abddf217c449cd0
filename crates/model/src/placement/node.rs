// SPDX-License-Identifier: Apache-2.0 OR MIT
//! On which node a page lies, by placement.
//!
//! Guest memory lies where the placement binds it, or where the vCPU runs that touched it first: QEMU leaves
//! its memory to the host's policy, which is that of the vCPU's thread (`get_task_policy`, `alloc_pages` in
//! Linux's `mm/mempolicy.c`). The hypervisor's tables lie where the thread of the faulting vCPU gets memory,
//! because KVM takes them of a cache of that vCPU (`mmu_topup_memory_caches`, `kvm_mmu_memory_cache_alloc`),
//! and the policy of guest memory, which `mbind` sets, does not reach them.
//!
//! Left out: the order within KVM's cache of 40 pages, reclaim, migration by NUMA balancing, and full nodes.

use super::{Placement, PlacementOptions};
use crate::page::Page;
use bifold_mmu::Gpa;
use bifold_trace::GuestNode;

/// The nodes of host and guest.
#[derive(Debug)]
pub(super) struct Nodes {
    host: u64,
    guest: Vec<GuestNode>,
    /// Per vCPU: the host node on which it runs.
    runs_on: Vec<u64>,
    placements: Vec<Placement>,
}

impl Nodes {
    pub fn new(options: &PlacementOptions, placements: &[Placement], vcpus: usize) -> Nodes {
        let host = u64::from(options.host_nodes.max(1));
        let guest = options.guest_nodes.clone();
        let runs_on = |vcpu: usize| {
            let own = guest.iter().position(|n| n.vcpus.contains(&(vcpu as u32)));
            match own {
                Some(node) => node as u64 % host,
                None if guest.is_empty() => vcpu as u64 * host.min(vcpus as u64) / vcpus as u64,
                None => 0,
            }
        };
        Nodes { runs_on: (0..vcpus).map(runs_on).collect(), host, placements: placements.to_vec(), guest }
    }

    pub fn host_nodes(&self) -> u8 {
        self.host as u8
    }

    pub fn guest_nodes(&self) -> u8 {
        self.guest.len().max(1) as u8
    }

    /// Whether it is known where a machine without a hypervisor has its memory. A kernel that knew no nodes
    /// in the recorded guest would know those of the machine.
    pub fn native(&self) -> bool {
        self.guest.len() > 1 || self.runs_on.len() == 1
    }

    /// The number of the guest node that has `gpa`. Memory of no node is the first one's.
    fn guest_node(&self, gpa: Gpa) -> u64 {
        let has =
            |n: &GuestNode| n.frames.iter().any(|f| (f.first..f.first + f.count).contains(&gpa.frame()));
        self.guest.iter().position(has).unwrap_or(0) as u64
    }

    /// A bit for each placement in which `page` lies on another node than `vcpu` runs on. `walk`: a walk
    /// reads the page, so guest memory is a page table.
    pub fn remote(&self, vcpu: usize, page: Page, walk: bool) -> u8 {
        let here = self.runs_on[vcpu];
        let remote = |p: &Placement| match p {
            Placement::RemoteGuestTables => walk && !matches!(page, Page::Table(_)),
            Placement::RemoteHostTables => matches!(page, Page::Table(_)),
            Placement::RemoteTables => walk,
            _ => self.node(*p, page) != here,
        };
        self.placements.iter().enumerate().fold(0, |bits, (i, p)| bits | u8::from(remote(p)) << i)
    }

    /// The node on which a placement has a page.
    pub fn node(&self, placement: Placement, page: Page) -> u64 {
        let bound = |gpa| self.guest_node(gpa) % self.host;
        match (placement, page) {
            // The machine's own kernel places the memory, as the guest's did.
            (_, Page::Machine(gpa)) => bound(gpa),
            (Placement::OneNode, _) => 0,
            (Placement::Crossed, Page::Host { gpa, .. } | Page::Region(gpa)) => (bound(gpa) + 1) % self.host,
            (Placement::GuestNuma, Page::Host { gpa, .. } | Page::Region(gpa)) => bound(gpa),
            // One region, made before the guest starts.
            (_, Page::Region(_)) => 0,
            (Placement::Interleaved, Page::Host { number, .. }) => number % self.host,
            (Placement::Interleaved, Page::Table(made)) => u64::from(made.number) % self.host,
            (_, Page::Host { first, .. }) => self.of_vcpu(first),
            (_, Page::Table(made)) => self.of_vcpu(made.vcpu),
        }
    }

    fn of_vcpu(&self, vcpu: u8) -> u64 {
        self.runs_on.get(usize::from(vcpu)).copied().unwrap_or(0)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::page::Made;
    use bifold_trace::Frames;

    const TWO: [u64; 2] = [0, 512];

    fn nodes(guest: usize, vcpus: usize) -> Nodes {
        let node = |i: usize| GuestNode {
            frames: vec![Frames { first: TWO[i], count: 512 }],
            vcpus: (0..vcpus as u32).filter(|v| *v as usize * guest / vcpus == i).collect(),
        };
        let guest_nodes = if guest > 1 { (0..guest).map(node).collect() } else { Vec::new() };
        let options = PlacementOptions { placements: Placement::ALL.into(), host_nodes: 2, guest_nodes };
        Nodes::new(&options, &Placement::ALL, vcpus)
    }

    /// Names of the placements in which the page is remote for the vCPU.
    fn remote(nodes: &Nodes, vcpu: usize, page: Page, walk: bool) -> Vec<&'static str> {
        let bits = nodes.remote(vcpu, page, walk);
        (0..MOST_BITS).filter(|i| bits >> i & 1 != 0).map(|i| Placement::ALL[i].name()).collect()
    }
    const MOST_BITS: usize = super::super::MOST;

    #[test]
    fn vcpus_of_a_guest_without_nodes_are_spread_in_blocks() {
        assert_eq!(nodes(1, 4).runs_on, [0, 0, 1, 1]);
        assert_eq!(nodes(1, 3).runs_on, [0, 0, 1]);
        assert_eq!(nodes(1, 1).runs_on, [0]);
        assert_eq!(nodes(2, 4).runs_on, [0, 0, 1, 1]);
    }

    #[test]
    fn data_lies_where_its_placement_says() {
        let nodes = nodes(2, 4);
        let page = |frame: u64, first| Page::Host { gpa: Gpa::from_frame(frame), number: frame, first };
        assert_eq!(remote(&nodes, 0, page(4, 0), false), ["crossed"]);
        assert_eq!(remote(&nodes, 0, page(5, 3), false), ["smp", "interleaved", "crossed"]);
        assert_eq!(remote(&nodes, 3, page(4, 0), false), ["guest-numa", "smp", "interleaved", "one-node"]);
        assert_eq!(remote(&nodes, 3, page(600, 2), false), ["interleaved", "crossed", "one-node"]);
        assert_eq!(remote(&nodes, 2, Page::Machine(Gpa::from_frame(600)), false), [""; 0]);
        let elsewhere = ["guest-numa", "smp", "interleaved", "crossed", "one-node"];
        assert_eq!(remote(&nodes, 2, Page::Machine(Gpa(0)), false), elsewhere);
    }

    #[test]
    fn tables_of_the_hypervisor_lie_with_the_vcpu_that_faulted() {
        let nodes = nodes(2, 2);
        let table = |vcpu, number| Page::Table(Made { vcpu, number });
        let forced = ["remote-host-tables", "remote-tables"];
        assert_eq!(remote(&nodes, 0, table(0, 0), true), forced);
        assert_eq!(remote(&nodes, 1, table(1, 1), true), [&["one-node"], &forced[..]].concat());
        let all = ["guest-numa", "smp", "interleaved", "crossed"];
        assert_eq!(remote(&nodes, 0, table(1, 3), true), [&all[..], &forced[..]].concat());
    }
}
