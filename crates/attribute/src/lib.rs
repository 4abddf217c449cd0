// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Attribution of costs: the process, binary, function and mapping of a guest that a cost
//! belongs to.
//!
//! The model charges costs to addresses ([`bifold_model::Charge`]). The stream's own log tells,
//! at the same place of the stream, the task that runs and its mappings. [`Attribution`] joins
//! both while events are consumed, and [`Where`] has the rows. Functions are looked up at the
//! end, in this machine's files. A configuration's costs sum to its totals; of a sampled run up to rounding.
//!
//! Costs of the kernel's code have two rows, one in each [`View`]: the kernel function that ran, and the
//! user function for which the kernel worked.
//!
//! ```
//! use bifold_attribute::{Attribution, Metric, View};
//! use bifold_mmu::Gva;
//! use bifold_model::{Charge, Config, Costs, Place};
//!
//! let mut attribution = Attribution::new(&Config::ALL[..1]);
//! let place = Place { vcpu: 0, code: Gva(0x40_0000), data: Some(Gva(0x60_0000)), size: None };
//! let cost = Costs { tlb_misses: 3, walk_cycles: 90, ..Costs::default() };
//! attribution.take(Charge::Cost(place, &[cost]));
//! let costs = attribution.finish(0.0);
//! assert_eq!(costs.totals(View::Code), [cost]);
//! assert_eq!(costs.ranked(View::Code, 0, Metric::TlbMisses).len(), 1);
//! ```
#![forbid(unsafe_code)]

mod callers;
pub mod elf;
pub mod kernel;
pub mod perf;
mod pprof;
mod rows;
pub mod space;
mod stacks;
#[cfg(test)]
mod tests;

use bifold_mmu::{Gva, PageSize};
use bifold_model::{Charge, Config, Costs, Entry, Place};
use bifold_trace::MOST_VCPUS;
use bifold_trace::event::log;
use callers::{Caller, Callers};
use rustc_hash::FxHashMap;
use space::{FileId, Space, Spaces};
use stacks::{List, Stacks};
use std::collections::BTreeMap;

pub use rows::{Metric, Missing, PlaceRow, Stack, View, Where};

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
    /// The kernel while a vCPU has no task to run.
    Idle,
    /// The kernel while a process takes on another program.
    Exec,
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
    /// The kernel's own memory, accessed for user code that came in at this entry point.
    Entry(u64),
    /// A place beyond the limit of places.
    Other,
}

#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
struct Key {
    /// The only view that has the cost; none if both have it.
    view: Option<View>,
    /// Index of the process's name.
    process: u32,
    code: Code,
    target: Target,
    size: Option<PageSize>,
    /// The functions of user code that have called.
    callers: List,
}

/// The costs by place that have been charged so far.
#[derive(Debug)]
pub struct Attribution {
    configs: Vec<Config>,
    spaces: Spaces,
    callers: Callers,
    stacks: Stacks,
    /// Per vCPU.
    streams: Vec<perf::Stream>,
    kallsyms: Vec<u8>,
    /// By PID.
    perf_maps: BTreeMap<u32, Vec<u8>>,
    numbers: FxHashMap<Key, u32>,
    keys: Vec<Key>,
    /// Costs of each key in every configuration, key by key.
    costs: Vec<Costs>,
    /// The same of windows, which stand for their periods.
    windows: Vec<Costs>,
    /// Keys and costs of the window that has not ended.
    open: (Vec<u32>, Vec<Costs>),
}

impl Attribution {
    /// An attribution without charges, for a model of these configurations.
    pub fn new(configs: &[Config]) -> Attribution {
        Attribution {
            configs: configs.to_vec(),
            spaces: Spaces::default(),
            callers: Callers::default(),
            stacks: Stacks::default(),
            streams: Vec::new(),
            kallsyms: Vec::new(),
            perf_maps: BTreeMap::new(),
            numbers: FxHashMap::default(),
            keys: Vec::new(),
            costs: Vec::new(),
            windows: Vec::new(),
            open: (Vec::new(), Vec::new()),
        }
    }

    /// Takes the next charge, in the order in which the model hands them over.
    pub fn take(&mut self, charge: Charge<'_>) {
        match charge {
            Charge::Cost(place, costs) => self.charge(place, costs, Self::add),
            Charge::Window(place, costs) => self.charge(place, costs, Self::add_to_window),
            Charge::WindowEnd(times) => {
                let n = self.configs.len();
                let (keys, costs) = &mut self.open;
                for (key, costs) in keys.drain(..).zip(costs.chunks(n.max(1))) {
                    let sums = &mut self.windows[key as usize * n..];
                    sums.iter_mut().zip(costs).for_each(|(sum, c)| sum.add(&c.times(times as f64)));
                }
                costs.clear();
            }
            Charge::Restart => {
                self.numbers.clear();
                self.keys.clear();
                self.costs.clear();
                self.windows.clear();
                self.open = (Vec::new(), Vec::new());
            }
            Charge::Entry(entry) => {
                let caller = self.caller(entry);
                self.callers.enter(entry.vcpu, caller);
            }
            Charge::Stack { vcpu, slot, caller } => self.stacks.follow_code(vcpu, slot, caller),
            Charge::Log { stream: log::PERF, number, bytes } => {
                // Only a damaged stream has a log of a vCPU beyond.
                let vcpu = number.min(u64::from(MOST_VCPUS) - 1) as usize;
                if self.streams.len() <= vcpu {
                    self.streams.resize_with(vcpu + 1, perf::Stream::default);
                }
                let Attribution { spaces, callers, stacks, .. } = self;
                self.streams[vcpu].push(bytes, |record| {
                    callers.follow(vcpu, record);
                    stacks.follow(vcpu, record);
                    spaces.follow(vcpu, record);
                    if matches!(record, perf::Record::Comm { exec: true, .. }) {
                        let process = spaces.space(spaces.running(vcpu)).name;
                        let target = Target::Kernel(kernel::KERNEL_MEMORY);
                        callers.enter(vcpu, Caller { process, code: Code::Exec, target });
                    }
                });
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

    /// Passes the costs of a place and the keys that they belong to, one per view if the views differ.
    fn charge(&mut self, place: Place, costs: &[Costs], add: fn(&mut Self, Key, &[Costs])) {
        let callers = self.list(place.vcpu);
        let key = Key { callers, ..self.key(place) };
        match self.cause(place, key) {
            None => add(self, key, costs),
            Some(cause) => {
                let callers = self.with_entered(place.vcpu, key.callers);
                add(self, Key { view: Some(View::Code), callers, ..key }, costs);
                add(self, cause, costs);
            }
        }
    }

    /// Adds costs to those of a key.
    fn add(&mut self, key: Key, costs: &[Costs]) {
        let n = self.number(key) * self.configs.len();
        for (sum, cost) in self.costs[n..].iter_mut().zip(costs) {
            sum.add(cost);
        }
    }

    /// Adds costs to those of the window that has not ended.
    fn add_to_window(&mut self, key: Key, costs: &[Costs]) {
        let key = self.number(key) as u32;
        self.open.0.push(key);
        self.open.1.extend_from_slice(costs);
    }

    /// Index of a key's costs.
    fn number(&mut self, mut key: Key) -> usize {
        if self.keys.len() >= MOST_PLACES && !self.numbers.contains_key(&key) {
            key =
                Key { process: 0, code: Code::Unknown, target: Target::Other, size: None, callers: 0, ..key };
        }
        if let Some(n) = self.numbers.get(&key) {
            return *n as usize;
        }
        let n = self.keys.len();
        self.numbers.insert(key, n as u32);
        self.keys.push(key);
        for costs in [&mut self.costs, &mut self.windows] {
            costs.resize(costs.len() + self.configs.len(), Costs::default());
        }
        n
    }

    /// The place by the code that ran.
    fn key(&self, place: Place) -> Key {
        let Place { vcpu, code, data, size } = place;
        let space = self.spaces.space(self.spaces.running(vcpu));
        let target = match data {
            None => Target::Register,
            Some(data) if data == code => Target::Code,
            Some(data) => self.target(space, data),
        };
        Key {
            view: None,
            process: space.name,
            code: code_in(&self.spaces, space, code),
            target,
            size,
            callers: 0,
        }
    }

    /// The place by the user code that caused the work of kernel code; none if that is the place by the code
    /// that ran: of user code, and of kernel threads.
    fn cause(&self, place: Place, key: Key) -> Option<Key> {
        if !matches!(key.code, Code::Kernel(_)) {
            return None;
        }
        let cause = Key { view: Some(View::Cause), ..key };
        match self.callers.on(place.vcpu) {
            Some(Caller { process, code, target }) => Some(match key.target {
                // The kernel reads or writes the caller's memory.
                Target::Mapped(_) | Target::Unknown => Key { process, code, ..cause },
                _ => Key { process, code, target, size: None, ..cause },
            }),
            None if self.spaces.idle(place.vcpu) => Some(Key {
                code: Code::Idle,
                target: Target::Kernel(kernel::KERNEL_MEMORY),
                size: None,
                callers: 0,
                ..cause
            }),
            None => None,
        }
    }

    /// The functions that called the code that runs on this vCPU.
    fn list(&mut self, vcpu: usize) -> List {
        let Attribution { stacks, spaces, .. } = self;
        let space = spaces.space(spaces.running(vcpu));
        stacks.list(vcpu, |at| code_in(spaces, space, at))
    }

    /// The functions that called the kernel's code on this vCPU: the last is the one that entered the kernel.
    /// Without calls, none.
    fn with_entered(&mut self, vcpu: usize, callers: List) -> List {
        match self.callers.on(vcpu) {
            Some(caller) if self.stacks.called() => self.stacks.with(callers, caller.code),
            _ => callers,
        }
    }

    fn caller(&self, entry: Entry) -> Caller {
        let space = self.spaces.space(self.spaces.running(entry.vcpu));
        Caller {
            process: space.name,
            code: code_in(&self.spaces, space, entry.user),
            target: entry.fault.map_or(Target::Entry(entry.kernel.0), |gva| self.target(space, gva)),
        }
    }

    fn target(&self, space: &Space, data: Gva) -> Target {
        if data.is_kernel() {
            return Target::Kernel(kernel::region(data.0));
        }
        space.at(data.0).map_or(Target::Unknown, |m| Target::Mapped(m.file))
    }
}

/// The code at an address of this space.
fn code_in(spaces: &Spaces, space: &Space, code: Gva) -> Code {
    if code == Gva(0) {
        return Code::Unknown;
    }
    if code.is_kernel() {
        return Code::Kernel(code.0);
    }
    match space.at(code.0) {
        Some(m) if spaces.files[m.file as usize].is_path() => Code::File(m.file, m.base.wrapping_add(code.0)),
        other => Code::Memory(other.map(|m| m.file), space.pid, code.0),
    }
}

/// Appends as many bytes as there is room for.
fn append(text: &mut Vec<u8>, bytes: &[u8]) {
    text.extend_from_slice(&bytes[..bytes.len().min(MOST_TEXT - text.len())]);
}
