// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counts of local and remote references of one configuration, for all placements at once, and the cycles
//! of the remote ones.
//!
//! Only remote references that memory answers cost more than local ones, by `memory.remote_cycles` less
//! `memory.cycles`. Where data caches simulate a sample of lines, a reference outside the sample reaches
//! memory as often as those of its walk step in the sample.

use super::{MOST, Placement};
use crate::memory::{HITS, Refs};
use crate::profile::Memory;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// References by the node that they go to.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Split {
    /// On the node of the vCPU.
    pub local: u64,
    /// On another node.
    pub remote: u64,
}

impl Split {
    /// The remote ones of all, in percent; 0 of none.
    pub fn remote_percent(self) -> f64 {
        let all = self.local + self.remote;
        if all == 0 { 0.0 } else { 100.0 * self.remote as f64 / all as f64 }
    }

    /// Both together.
    pub fn with(self, other: Split) -> Split {
        Split { local: self.local + other.local, remote: self.remote + other.remote }
    }
}

/// What remote memory costs beyond local memory, as far as the core does not hide it.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct PlacedCycles {
    /// Cycles of walks. Unit: cycles.
    pub walk: u64,
    /// Cycles that data accesses wait. Unit: cycles.
    pub data: u64,
}

/// The references of one configuration in one placement.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Placed {
    /// Where memory and tables lie.
    pub placement: Placement,
    /// References of walks to the guest's page tables.
    pub guest_tables: Split,
    /// References of walks to the hypervisor's page tables, nested or shadow.
    pub host_tables: Split,
    /// Data accesses.
    pub data: Split,
    /// What remote memory costs beyond local memory, less what the core hides; null without data caches or
    /// without `memory.remote_cycles`.
    pub cycles: Option<PlacedCycles>,
}

impl Placed {
    /// All references of walks.
    pub fn walks(&self) -> Split {
        self.guest_tables.with(self.host_tables)
    }

    /// Adds the counts of another region in the same placement.
    pub(crate) fn add(&mut self, other: &Placed) {
        self.guest_tables = self.guest_tables.with(other.guest_tables);
        self.host_tables = self.host_tables.with(other.host_tables);
        self.data = self.data.with(other.data);
        if let (Some(cycles), Some(more)) = (&mut self.cycles, other.cycles) {
            cycles.walk += more.walk;
            cycles.data += more.data;
        }
    }

    /// All references.
    pub fn all(&self) -> Split {
        self.walks().with(self.data)
    }
}

/// The step of a walk, and the level of memory that answered.
#[derive(Debug, Clone, Copy)]
pub(super) struct Step {
    pub guest: usize,
    pub host: usize,
    pub answered: usize,
}

/// Remote ones, by placement.
type Remote = [u64; MOST];
/// By `[dependent][guest level][host level][level of memory that answered]`.
type Walks = [[[[Remote; HITS]; 6]; 6]; 2];
/// The place in [`HITS`] of references whose level of memory is not known.
const UNKNOWN: usize = 0;
/// The place of memory.
const MEMORY: usize = HITS - 1;

/// The remote references of one configuration.
#[derive(Debug, Clone, Default)]
pub(super) struct Tally {
    walks: Box<Walks>,
    /// Data accesses in all, and the remote ones.
    accesses: u64,
    data: Remote,
    /// Of data that memory answered, by dependence.
    from_memory: [Remote; 2],
}

fn add(remote: &mut Remote, bits: u8, n: u64) {
    remote.iter_mut().enumerate().for_each(|(i, sum)| *sum += u64::from(bits >> i & 1) * n);
}

impl Tally {
    #[inline]
    pub fn reference(&mut self, step: Step, remote: u8, dependent: bool) {
        add(&mut self.walks[usize::from(dependent)][step.guest][step.host][step.answered], remote, 1);
    }

    pub fn data(&mut self, remote: u8, accesses: u64) {
        self.accesses += accesses;
        add(&mut self.data, remote, accesses);
    }

    pub fn data_from_memory(&mut self, remote: u8, weight: u64, dependent: bool) {
        add(&mut self.from_memory[usize::from(dependent)], remote, weight);
    }

    /// The counts of placement number `bit`, of the walks in `refs`. `host_tables`: walks of one dimension
    /// read the hypervisor's tables.
    pub fn placed(
        &self,
        placement: Placement,
        bit: usize,
        refs: &Refs,
        host_tables: bool,
        memory: Option<&Memory>,
    ) -> Placed {
        let split = |of_host: bool| {
            let mut split = Split::default();
            for (guest, host) in steps().filter(|s| (host_tables || s.1 > 0) == of_host) {
                let remote: u64 = self.walks.iter().flat_map(|w| &w[guest][host]).map(|r| r[bit]).sum();
                split.remote += remote;
                split.local += refs.at(guest, host) - remote;
            }
            split
        };
        Placed {
            placement,
            guest_tables: split(false),
            host_tables: split(true),
            data: Split { local: self.accesses - self.data[bit], remote: self.data[bit] },
            cycles: memory.and_then(|m| self.cycles(bit, refs, m)),
        }
    }

    fn cycles(&self, bit: usize, refs: &Refs, memory: &Memory) -> Option<PlacedCycles> {
        let more = (memory.remote_cycles? - memory.cycles) as f64;
        let exposed = |[independent, dependent]: [f64; 2], overlap: f64| {
            (more * (independent / overlap + dependent)).round() as u64
        };
        let walks = [0, 1].map(|d| steps().map(|s| self.walks_from_memory(d, s, bit, refs)).sum());
        let data = self.from_memory.map(|remote| remote[bit] as f64);
        Some(PlacedCycles {
            walk: exposed(walks, memory.walk_overlap),
            data: exposed(data, memory.data_overlap),
        })
    }

    /// Remote references of one walk step that memory answers, those outside the sample included.
    fn walks_from_memory(
        &self,
        dependent: usize,
        (guest, host): (usize, usize),
        bit: usize,
        refs: &Refs,
    ) -> f64 {
        let remote = &self.walks[dependent][guest][host];
        let in_sample = |hits: [u64; HITS]| (hits[MEMORY], hits[UNKNOWN + 1..].iter().sum::<u64>());
        // Remote lines may miss more often than the local ones of their step.
        let both = [0, 1].map(|d| self.walks[d][guest][host].map(|r| r[bit]));
        let share = match in_sample(std::array::from_fn(|i| both[0][i] + both[1][i])) {
            (_, 0) => match in_sample(refs.hits(guest, host)) {
                (_, 0) => 0.0,
                (memory, all) => memory as f64 / all as f64,
            },
            (memory, all) => memory as f64 / all as f64,
        };
        remote[MEMORY][bit] as f64 + remote[UNKNOWN][bit] as f64 * share
    }
}

/// Every walk step: guest level and host level.
fn steps() -> impl Iterator<Item = (usize, usize)> {
    (0..6).flat_map(|guest| (0..6).map(move |host| (guest, host)))
}
