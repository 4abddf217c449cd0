// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attribution of costs: the process, binary, function and mapping of a guest that a cost
//! belongs to.
//!
//! The model charges costs to addresses ([`bifold_model::Charge`]). The stream's own log tells,
//! at the same place of the stream, the task that runs and its mappings. [`Attribution`] joins
//! both while events are consumed, and [`Where`] has the rows. Functions are looked up at the
//! end, in this machine's files. Nothing is sampled: a configuration's costs sum to its totals.
//!
//! ```
//! use bifold_attribute::{Attribution, Metric};
//! use bifold_mmu::Gva;
//! use bifold_model::{Charge, Config, Costs, Place};
//!
//! let mut attribution = Attribution::new(&Config::ALL[..1]);
//! let place = Place { vcpu: 0, code: Gva(0x40_0000), data: Some(Gva(0x60_0000)), size: None };
//! let cost = Costs { tlb_misses: 3, walk_cycles: 90, ..Costs::default() };
//! attribution.take(Charge::Cost(place, &[cost]));
//! let costs = attribution.finish();
//! assert_eq!(costs.totals(), [cost]);
//! assert_eq!(costs.ranked(0, Metric::TlbMisses).len(), 1);
//! ```
#![forbid(unsafe_code)]

pub mod elf;
pub mod kernel;
pub mod perf;
mod rows;
pub mod space;

use bifold_mmu::{Gva, PageSize};
use bifold_model::{Charge, Config, Costs, Place};
use bifold_trace::event::log;
use rustc_hash::FxHashMap;
use space::{FileId, Spaces};
use std::collections::BTreeMap;

pub use rows::{Metric, Missing, Row, Where};

/// Bytes of symbols, and of maps of one process, that are kept: a kernel has 5 MB of lines.
const MOST_TEXT: usize = 64 << 20;
/// Processes whose maps are kept.
const MOST_MAPS: usize = 1024;
/// Most places; costs of further places are charged to one place.
const MOST_PLACES: usize = 4 << 20;

/// The code that ran.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Code {
    /// Code of a file, at this offset.
    File(FileId, u64),
    /// Code in memory that no file backs: the kernel's name of the memory, if known, process, address.
    Memory(Option<FileId>, u32, u64),
    /// Code of the kernel, at this address.
    Kernel(u64),
    /// No record tells what is mapped at the address.
    Unknown,
}

/// The kind of mapping that was accessed.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, PartialOrd, Ord)]
enum Target {
    /// The code itself was fetched.
    Code,
    /// A mapping of a file, or memory that the kernel names.
    Mapped(FileId),
    /// No record tells what is mapped at the address.
    Unknown,
    /// A region of the kernel's address space.
    Kernel(&'static str),
    /// A control register was written or read.
    Register,
    /// A place beyond the limit of places.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// Index of the process's name.
    process: u32,
    code: Code,
    target: Target,
    size: Option<PageSize>,
}

/// The costs by place that have been charged so far.
#[derive(Debug)]
pub struct Attribution {
    configs: Vec<Config>,
    spaces: Spaces,
    /// Per vCPU.
    streams: Vec<perf::Stream>,
    kallsyms: Vec<u8>,
    /// By PID.
    perf_maps: BTreeMap<u32, Vec<u8>>,
    numbers: FxHashMap<Key, u32>,
    keys: Vec<Key>,
    /// Costs of each key in every configuration, key by key.
    costs: Vec<Costs>,
}

impl Attribution {
    /// An attribution without charges, for a model of these configurations.
    pub fn new(configs: &[Config]) -> Attribution {
        Attribution {
            configs: configs.to_vec(),
            spaces: Spaces::default(),
            streams: Vec::new(),
            kallsyms: Vec::new(),
            perf_maps: BTreeMap::new(),
            numbers: FxHashMap::default(),
            keys: Vec::new(),
            costs: Vec::new(),
        }
    }

    /// Takes the next charge, in the order in which the model hands them over.
    pub fn take(&mut self, charge: Charge<'_>) {
        match charge {
            Charge::Cost(place, costs) => {
                let n = self.number(place) * self.configs.len();
                for (sum, cost) in self.costs[n..].iter_mut().zip(costs) {
                    sum.add(cost);
                }
            }
            Charge::Restart => {
                self.numbers.clear();
                self.keys.clear();
                self.costs.clear();
            }
            Charge::Log { stream: log::PERF, number, bytes } => {
                // A capture has at most 8 vCPUs; only a damaged stream has more.
                let vcpu = number.min(7) as usize;
                if self.streams.len() <= vcpu {
                    self.streams.resize_with(vcpu + 1, perf::Stream::default);
                }
                let spaces = &mut self.spaces;
                self.streams[vcpu].push(bytes, |record| spaces.follow(vcpu, record));
            }
            Charge::Log { stream: log::SYMBOLS, bytes, .. } => append(&mut self.kallsyms, bytes),
            Charge::Log { stream: log::PERF_MAP, number, bytes } => {
                let pid = number as u32;
                if self.perf_maps.len() < MOST_MAPS || self.perf_maps.contains_key(&pid) {
                    append(self.perf_maps.entry(pid).or_default(), bytes);
                }
            }
            Charge::Log { .. } => {}
        }
    }

    /// Index of a place's costs.
    fn number(&mut self, place: Place) -> usize {
        let mut key = self.key(place);
        if self.keys.len() >= MOST_PLACES && !self.numbers.contains_key(&key) {
            key = Key { process: 0, code: Code::Unknown, target: Target::Other, size: None };
        }
        if let Some(n) = self.numbers.get(&key) {
            return *n as usize;
        }
        let n = self.keys.len();
        self.numbers.insert(key, n as u32);
        self.keys.push(key);
        self.costs.resize(self.costs.len() + self.configs.len(), Costs::default());
        n
    }

    fn key(&self, place: Place) -> Key {
        let Place { vcpu, code, data, size } = place;
        let space = self.spaces.space(self.spaces.running(vcpu));
        let of = |Gva(address)| space.at(address).map(|m| (m.file, m.base.wrapping_add(address)));
        let place = match code {
            Gva(0) => Code::Unknown,
            Gva(kernel) if kernel >> 63 != 0 => Code::Kernel(kernel),
            user => match of(user) {
                Some((file, offset)) if self.spaces.files[file as usize].is_path() => {
                    Code::File(file, offset)
                }
                other => Code::Memory(other.map(|(file, _)| file), space.pid, user.0),
            },
        };
        let target = match data {
            None => Target::Register,
            Some(data) if data == code => Target::Code,
            Some(Gva(kernel)) if kernel >> 63 != 0 => Target::Kernel(kernel::region(kernel)),
            Some(user) => of(user).map_or(Target::Unknown, |(file, _)| Target::Mapped(file)),
        };
        Key { process: space.name, code: place, target, size }
    }
}

/// Appends as many bytes as there is room for.
fn append(text: &mut Vec<u8>, bytes: &[u8]) {
    text.extend_from_slice(&bytes[..bytes.len().min(MOST_TEXT - text.len())]);
}
