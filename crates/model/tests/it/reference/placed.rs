// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where pages lie, written apart from the model: maps from pages to those who touched or made them, and a
//! sentence for each placement. Every reference is looked up and counted on its own.

use bifold_model::{Placement, Split};
use std::collections::HashMap;
use std::collections::hash_map::Entry;

/// Frames of the guest's first node.
pub const FIRST_NODE: u64 = 0x1_0200;

/// The counts of one placement.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct Counts {
    pub guest_tables: Split,
    pub host_tables: Split,
    pub data: Split,
    /// Remote references that memory answered: of walks, and of data.
    pub from_memory: [u64; 2],
}

/// A page that is read.
#[derive(Debug, Clone, Copy)]
pub enum Read {
    /// The guest's table at this guest-physical address.
    GuestTable(u64),
    /// The hypervisor's table of this level and number.
    HostTable(u8, u64),
    /// Data at this guest-physical address.
    Data(u64),
}

pub struct Placed {
    pub cpus: usize,
    pub guest_nodes: u64,
    pub host_nodes: u64,
    /// Shift of the host's pages; none without a hypervisor.
    pub host_page: Option<u32>,
    /// By shift and number of the host page: the vCPU that touched it.
    pub first: HashMap<(u32, u64), usize>,
    /// By level and number: the vCPU that made it, and its how manieth it was.
    pub made: HashMap<(u8, u64), (usize, u64)>,
    /// By CPU: how many it made.
    tables_of: HashMap<usize, u64>,
    pub counts: Vec<(Placement, Counts)>,
}

impl Placed {
    pub fn new(cpus: usize, guest_nodes: u64, host_nodes: u64, host_page: Option<u32>) -> Placed {
        let counts = Placement::ALL.map(|p| (p, Counts::default())).to_vec();
        Placed {
            cpus,
            guest_nodes,
            host_nodes,
            host_page,
            first: HashMap::new(),
            // The root is the first CPU's first table.
            made: HashMap::from([((4, 0), (0, 0))]),
            tables_of: HashMap::from([(0, 1)]),
            counts,
        }
    }

    pub fn guest_node_of_cpu(&self, cpu: usize) -> u64 {
        cpu as u64 * self.guest_nodes / self.cpus as u64
    }

    fn runs_on(&self, cpu: usize) -> u64 {
        let parts =
            if self.guest_nodes > 1 { self.guest_nodes } else { self.host_nodes.min(self.cpus as u64) };
        cpu as u64 * parts / self.cpus as u64 % self.host_nodes
    }

    fn guest_node(&self, gpa: u64) -> u64 {
        u64::from(self.guest_nodes > 1 && gpa >> 12 >= FIRST_NODE)
    }

    pub fn touched(&mut self, gpa: u64, shift: u32, cpu: usize) {
        self.first.insert((shift, gpa >> shift), cpu);
    }

    pub fn table(&mut self, level: u8, number: u64, cpu: usize) {
        if let Entry::Vacant(entry) = self.made.entry((level, number)) {
            let before = self.tables_of.entry(cpu).or_default();
            entry.insert((cpu, *before));
            *before += 1;
        }
    }

    fn is_remote(&self, placement: Placement, cpu: usize, read: Read) -> bool {
        let here = self.runs_on(cpu);
        let table = !matches!(read, Read::Data(_));
        let node = match (placement, read) {
            (Placement::RemoteTables, _) => return table,
            (Placement::RemoteGuestTables, _) => return matches!(read, Read::GuestTable(_)),
            (Placement::RemoteHostTables, _) => return matches!(read, Read::HostTable(..)),
            (_, Read::GuestTable(gpa) | Read::Data(gpa)) => {
                let bound = self.guest_node(gpa) % self.host_nodes;
                match (placement, self.host_page) {
                    (_, None) | (Placement::GuestNuma, _) => bound,
                    (Placement::Crossed, _) => (bound + 1) % self.host_nodes,
                    (Placement::OneNode, _) => 0,
                    (Placement::Interleaved, Some(shift)) => (gpa >> shift) % self.host_nodes,
                    // A piece of a page that was split once, or the page.
                    (_, Some(_)) => {
                        let touched = |shift: u32| self.first.get(&(shift, gpa >> shift)).copied();
                        let first = [12, 21, 30].into_iter().find_map(touched).unwrap_or(0);
                        self.runs_on(first)
                    }
                }
            }
            (_, Read::HostTable(level, number)) => {
                let (by, before) = self.made.get(&(level, number)).copied().unwrap_or((0, 0));
                match placement {
                    Placement::OneNode => 0,
                    Placement::Interleaved => before % self.host_nodes,
                    _ => self.runs_on(by),
                }
            }
        };
        node != here
    }

    pub fn count(&mut self, cpu: usize, read: Read, from_memory: bool) {
        for i in 0..self.counts.len() {
            let remote = self.is_remote(self.counts[i].0, cpu, read);
            let counts = &mut self.counts[i].1;
            let (split, which) = match read {
                Read::GuestTable(_) => (&mut counts.guest_tables, 0),
                Read::HostTable(..) => (&mut counts.host_tables, 0),
                Read::Data(_) => (&mut counts.data, 1),
            };
            if remote {
                split.remote += 1;
                counts.from_memory[which] += u64::from(from_memory);
            } else {
                split.local += 1;
            }
        }
    }
}
