// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest's memory, page tables and vCPUs lie on a host of several nodes, and which references are
//! remote: of another node than that of the vCPU that makes them.
//!
//! A walk is the same wherever its tables lie. So all [placements](Placement) are counted in one pass, side
//! by side: each reference that passes [`Hardware::touch`](crate::memory::Hardware::touch) comes with the
//! [`Page`] that it reads, and each data access with the page of its data. [`node`] says on which node a
//! placement has that page, and [`tally`] counts. `docs/design/model.md#placement` lists the rules.
//!
//! vCPUs are pinned, and stay on the same host nodes in all placements. Data caches see one set of addresses:
//! a remote line that a cache holds is answered as fast as a local one.

mod data;
mod node;
mod tally;

use crate::memory::Refs;
use crate::page::{Made, Page};
use crate::{Config, Paging, Profile};
use bifold_mmu::{Gpa, Gva};
use bifold_trace::GuestNode;
use data::Memo;
use node::Nodes;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
pub use tally::{Placed, PlacedCycles, Split};
use tally::{Step, Tally};

/// The most placements of a run: a remote reference has a bit for each.
pub const MOST: usize = 8;
/// The most nodes of a host.
pub const MOST_NODES: u8 = 64;

/// Where a host puts a guest's memory and the hypervisor's tables.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
pub enum Placement {
    /// Each guest node's memory is bound to a host node of its own, as `host-nodes=N,policy=bind` of a QEMU
    /// memory backend binds it.
    GuestNuma,
    /// No policy: the host backs a page on the node of the vCPU that touches it first (`MPOL_LOCAL`).
    Smp,
    /// QEMU under `numactl --interleave=all`: guest pages in turn by their number (`interleave_nid`), tables
    /// in turn as each vCPU's thread allocates them (`interleave_nodes`).
    Interleaved,
    /// Each guest node's memory is bound to the next host node, and so to none of its vCPUs'.
    Crossed,
    /// QEMU under `numactl --membind=0`: all memory and all tables on the first node.
    OneNode,
    /// All is local but the guest's page tables.
    RemoteGuestTables,
    /// All is local but the hypervisor's page tables, nested or shadow.
    RemoteHostTables,
    /// All page tables are remote, and only data is local.
    RemoteTables,
}

impl Placement {
    /// All, in the order of outputs.
    pub const ALL: [Placement; MOST] = [
        Placement::GuestNuma,
        Placement::Smp,
        Placement::Interleaved,
        Placement::Crossed,
        Placement::OneNode,
        Placement::RemoteGuestTables,
        Placement::RemoteHostTables,
        Placement::RemoteTables,
    ];

    /// The name used on the command line and in every output.
    pub fn name(self) -> &'static str {
        match self {
            Placement::GuestNuma => "guest-numa",
            Placement::Smp => "smp",
            Placement::Interleaved => "interleaved",
            Placement::Crossed => "crossed",
            Placement::OneNode => "one-node",
            Placement::RemoteGuestTables => "remote-guest-tables",
            Placement::RemoteHostTables => "remote-host-tables",
            Placement::RemoteTables => "remote-tables",
        }
    }

    /// The placement of that [`name`](Placement::name).
    pub fn from_name(name: &str) -> Option<Placement> {
        Placement::ALL.into_iter().find(|p| p.name() == name)
    }

    /// Whether a guest needs nodes of its own for this placement.
    pub fn needs_guest_nodes(self) -> bool {
        matches!(self, Placement::GuestNuma | Placement::Crossed)
    }
}

/// What [`Options::placed`](crate::Options::placed) asks for.
#[derive(Debug, Clone)]
pub struct PlacementOptions {
    /// The placements, at most [`MOST`].
    pub placements: Vec<Placement>,
    /// Nodes of the host, up to [`MOST_NODES`].
    pub host_nodes: u8,
    /// The guest's nodes. Empty for a guest that knows none: its vCPUs are spread over the host's nodes in
    /// blocks, the first ones on the first node.
    pub guest_nodes: Vec<GuestNode>,
}

/// The host of the placements, and what a remote reference costs there.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacedFacts {
    /// NUMA nodes of the host.
    pub host_nodes: u8,
    /// NUMA nodes of the guest; 1 if it knows none.
    pub guest_nodes: u8,
    /// `memory.cycles` of the profile; null without data caches.
    pub local_cycles: Option<u64>,
    /// `memory.remote_cycles` of the profile; null without data caches or without that key.
    pub remote_cycles: Option<u64>,
}

/// A nested table, and the node on which a placement has it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct TableNode {
    /// The table's level, 1 for the one whose entries map 4 KB pages.
    pub level: u8,
    /// The first guest-physical address that the table maps.
    pub gpa: Gpa,
    /// The host's node.
    pub node: u64,
}

/// The placements of a run: their nodes, and the counts of each configuration.
#[derive(Debug)]
pub(crate) struct Places {
    placements: Vec<Placement>,
    nodes: Nodes,
    tallies: Vec<Tally>,
    /// Per vCPU: pages of data used lately.
    memos: Vec<Memo>,
    /// Changes whenever a host backs a page.
    epoch: u64,
    cached: bool,
}

impl Places {
    pub fn new(options: &PlacementOptions, vcpus: usize, configs: &[Config]) -> Box<Places> {
        let placements: Vec<Placement> = options.placements.iter().copied().take(MOST).collect();
        Box::new(Places {
            nodes: Nodes::new(options, &placements, vcpus),
            tallies: vec![Tally::default(); configs.len()],
            memos: vec![Memo::new(configs.len()); vcpus],
            epoch: 0,
            cached: false,
            placements,
        })
    }

    /// Where to count the references of configuration `config`'s walks by node; VMs that switch have no such
    /// counts.
    #[inline]
    pub fn walker(&mut self, config: usize, vcpu: usize, dependent: bool) -> PlacedReferences<'_> {
        PlacedReferences { nodes: &self.nodes, tally: self.tallies.get_mut(config), vcpu, dependent }
    }

    /// A host has backed a page: what is known of nodes is out of date.
    pub fn forget(&mut self) {
        self.epoch += 1;
    }

    /// Is it known where the page of this access lies? Then [`Places::count`] will do for an access.
    #[inline(always)]
    pub fn knows(&self, vcpu: usize, gva: Gva, generation: u64) -> bool {
        self.memos[vcpu].knows(gva.0 >> 12, generation, self.epoch)
    }

    /// Counts an access to a page that is [known](Places::knows).
    #[inline(always)]
    pub fn count(&mut self, vcpu: usize, gva: Gva) {
        self.memos[vcpu].count(gva.0 >> 12);
    }

    /// Counts an access to a page that is not known; `page` has what decides where the page lies in a
    /// configuration.
    pub fn access(&mut self, vcpu: usize, gva: Gva, generation: u64, page: impl Fn(usize) -> Page) {
        let Places { memos, tallies, nodes, .. } = self;
        let remote = |config: usize| nodes.remote(vcpu, page(config), false);
        memos[vcpu].file(gva.0 >> 12, generation, self.epoch, tallies, remote);
        self.count(vcpu, gva);
    }

    /// Memory answered an access of configuration `config` that stands for `weight` such. The access was
    /// counted just now.
    pub fn data_from_memory(&mut self, config: usize, vcpu: usize, gva: Gva, weight: u64, dependent: bool) {
        let remote = self.memos[vcpu].remote(gva.0 >> 12, config);
        if let Some(tally) = self.tallies.get_mut(config) {
            tally.data_from_memory(remote, weight, dependent);
        }
    }

    /// Sets the counts to 0, and forgets the pages used lately.
    pub fn reset_counts(&mut self, configs: usize) {
        self.memos.iter_mut().for_each(|m| *m = Memo::new(configs));
        self.tallies = vec![Tally::default(); configs];
        self.forget();
    }

    /// Where a placement has tables of these levels, first addresses and makers.
    pub fn nested_tables(&self, placement: Placement, tables: Vec<(u8, Gpa, Made)>) -> Vec<TableNode> {
        let node = |made| self.nodes.node(placement, Page::Table(made));
        tables.into_iter().map(|(level, gpa, made)| TableNode { level, gpa, node: node(made) }).collect()
    }

    /// No more accesses come.
    pub fn finish(&mut self, cached: bool) {
        self.cached = cached;
        let Places { memos, tallies, .. } = self;
        memos.iter_mut().for_each(|m| m.flush(tallies));
    }

    /// The counts of configuration `config`, which is in `mode` and whose walks made the references `refs`:
    /// one of each placement, or none if it is not known where a machine without a hypervisor has its memory.
    pub fn counts(&self, config: usize, mode: Paging, refs: &Refs, profile: &Profile) -> Vec<Placed> {
        if mode == Paging::Native && !self.nodes.native() {
            return Vec::new();
        }
        let memory = profile.memory.as_ref().filter(|_| self.cached);
        let of = |(bit, p): (usize, &Placement)| {
            self.tallies[config].placed(*p, bit, refs, mode == Paging::Shadow, memory)
        };
        self.placements.iter().enumerate().map(of).collect()
    }

    /// The host, and what a remote reference costs.
    pub fn facts(&self, profile: &Profile) -> PlacedFacts {
        let memory = profile.memory.as_ref().filter(|_| self.cached);
        PlacedFacts {
            host_nodes: self.nodes.host_nodes(),
            guest_nodes: self.nodes.guest_nodes(),
            local_cycles: memory.map(|m| m.cycles),
            remote_cycles: memory.and_then(|m| m.remote_cycles),
        }
    }
}

/// The references of a configuration's walks, counted by the node that they go to.
#[derive(Debug)]
pub(crate) struct PlacedReferences<'a> {
    nodes: &'a Nodes,
    /// None of VMs that switch.
    tally: Option<&'a mut Tally>,
    vcpu: usize,
    dependent: bool,
}

impl PlacedReferences<'_> {
    /// A walk reads an entry in `page`: see [`Memory::touch`](crate::memory::Memory::touch). `answered`: by
    /// this level of memory.
    #[inline]
    pub fn touch(&mut self, guest: u8, host: u8, page: Page, answered: usize) {
        if let Some(tally) = &mut self.tally {
            let remote = self.nodes.remote(self.vcpu, page, true);
            let step = Step { guest: guest.into(), host: host.into(), answered };
            tally.reference(step, remote, self.dependent);
        }
    }
}
