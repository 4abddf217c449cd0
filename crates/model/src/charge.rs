// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Charges: what each access and each instruction cost, in the order of the events, so that a
//! consumer can sum costs by process, function or mapping.
//!
//! Work of the guest's kernel has a cause outside the kernel: the user code that ran before the kernel
//! was entered. [`Running`] remembers it, and an [`Entry`] names it before the first charge of the work.
//!
//! A charge is the growth of a configuration's counters since the charge before. So the charges sum
//! to the totals, and the code that counts a cost need not know that charges exist.
//!
//! In a sampled stream, some costs are counted everywhere, and others in the head and in windows only, which
//! stand for their periods. A window's charges of the second kind are items of their own.

use crate::cache::Caches;
use crate::memory::Refs;
use crate::regime::Regime;
use crate::{Profile, Sample};
use bifold_mmu::{Gva, PageSize};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// What something cost in one configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default, Serialize, Deserialize, JsonSchema)]
pub struct Costs {
    /// Misses of all TLB levels.
    pub tlb_misses: u64,
    /// Cycles in page walks.
    pub walk_cycles: u64,
    /// The part of walk_cycles that the core hides behind independent work. Unit: cycles.
    pub walk_hidden_cycles: u64,
    /// Exits of all reasons.
    pub exits: u64,
    /// Cycles in exits and in the hypervisor's work for them.
    pub vmm_cycles: u64,
    /// Cycles of waits for data beyond the ideal run's waits, as far as the core hides neither; less than 0
    /// where the ideal run's placement in the caches was less lucky. Of sampled lines of caches, each wait
    /// stands for those of its lines. Unit: cycles.
    pub data_wait_cycles: i64,
}

impl Costs {
    /// A sample's cost.
    pub fn of(s: &Sample) -> Costs {
        Costs {
            tlb_misses: s.tlb_misses(),
            walk_cycles: s.walk_cycles,
            walk_hidden_cycles: s.walk_hidden_cycles,
            exits: s.all_exits(),
            vmm_cycles: s.vmm_cycles,
            data_wait_cycles: s.data_wait_cycles(),
        }
    }

    /// These costs, so many times.
    #[must_use]
    pub fn times(&self, factor: f64) -> Costs {
        let of = |n: u64| (n as f64 * factor).round() as u64;
        Costs {
            tlb_misses: of(self.tlb_misses),
            walk_cycles: of(self.walk_cycles),
            walk_hidden_cycles: of(self.walk_hidden_cycles),
            exits: of(self.exits),
            vmm_cycles: of(self.vmm_cycles),
            data_wait_cycles: (self.data_wait_cycles as f64 * factor).round() as i64,
        }
    }

    /// Adds another cost to this one.
    pub fn add(&mut self, other: &Costs) {
        self.tlb_misses += other.tlb_misses;
        self.walk_cycles += other.walk_cycles;
        self.walk_hidden_cycles += other.walk_hidden_cycles;
        self.exits += other.exits;
        self.vmm_cycles += other.vmm_cycles;
        self.data_wait_cycles += other.data_wait_cycles;
    }

    /// Cycles beyond the ideal run's, as far as the core does not hide them: of walks, of exits, and of waits
    /// for data, which may be less than the ideal run's. Summed over all places: [`Sample::extra_cycles`],
    /// which is 0 at the least.
    pub fn extra_cycles(&self) -> i64 {
        (self.walk_cycles - self.walk_hidden_cycles + self.vmm_cycles) as i64 + self.data_wait_cycles
    }
}

/// Where something happened, as the events tell it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Place {
    /// The vCPU.
    pub vcpu: usize,
    /// Start of the block of code that ran, or the address fetched; 0 if the stream has not named it.
    pub code: Gva,
    /// The address accessed, fetched, invalidated or faulted on; none for a control register.
    pub data: Option<Gva>,
    /// Size of the guest's page there; none where the guest maps nothing.
    pub size: Option<PageSize>,
}

/// How a vCPU came from user code into the guest's kernel.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// The vCPU.
    pub vcpu: usize,
    /// Start of the last block of user code. Blocks without events are unknown.
    pub user: Gva,
    /// The address of the page fault that entered the kernel, if one did.
    pub fault: Option<Gva>,
    /// The first code of the kernel that the stream names; 0 if it names none.
    pub kernel: Gva,
}

/// The code that a vCPU runs, and how it came there, as far as the stream tells blocks.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Running {
    /// Start of the block that runs.
    pub code: Gva,
    user: Gva,
    fault: Option<Gva>,
    kernel: Gva,
    /// Whether an [`Entry`] has named the user code since it ran last.
    told: bool,
}

impl Running {
    pub(crate) fn new() -> Running {
        Running { code: Gva(0), user: Gva(0), fault: None, kernel: Gva(0), told: true }
    }

    /// The next block starts here.
    #[inline(always)]
    pub(crate) fn block(&mut self, code: Gva) {
        self.code = code;
        if !code.is_kernel() {
            *self = Running { code, user: code, fault: None, kernel: Gva(0), told: false };
        } else if self.kernel == Gva(0) {
            self.kernel = code;
        }
    }

    /// A page fault was delivered. A fault of the kernel's own code belongs to the work that it interrupts.
    pub(crate) fn fault(&mut self, gva: Gva, error: u64) {
        const USER: u64 = 1 << 2;
        if error & USER != 0 {
            *self = Running { fault: Some(gva), kernel: Gva(0), told: false, ..*self };
        }
    }

    /// The entry into the kernel code at `code`, once per entry.
    fn entry(&mut self, vcpu: usize, code: Gva) -> Option<Entry> {
        if std::mem::replace(&mut self.told, true) {
            return None;
        }
        let kernel = if self.kernel == Gva(0) && code.is_kernel() { code } else { self.kernel };
        Some(Entry { vcpu, user: self.user, fault: self.fault, kernel })
    }
}

/// One item that [`Model::take_charges`](crate::Model::take_charges) returns.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Charge<'a> {
    /// A cost: one per configuration, in the order of [`Options::configs`](crate::Options::configs).
    Cost(Place, &'a [Costs]),
    /// A cost of a window, which stands for its period: see [`Charge::WindowEnd`].
    Window(Place, &'a [Costs]),
    /// A window has ended. The costs of its items count so many times, and in the end
    /// [`Model::window_scale`](crate::Model::window_scale) times. A window that does not end does not count.
    WindowEnd(u64),
    /// The first region to be measured begins: the costs before it do not count. Between regions there are no
    /// costs.
    Restart,
    /// The kernel was entered. Stands before the first charge to kernel code, or the first log, since user
    /// code ran on the vCPU.
    Entry(Entry),
    /// The code called a function of user code, or returned.
    Stack {
        /// The vCPU.
        vcpu: usize,
        /// Where on the stack the return address is.
        slot: Gva,
        /// Start of the block that called; none for a return.
        caller: Option<Gva>,
    },
    /// A part of the stream's own log ([`bifold_trace::Event::Log`]).
    Log {
        /// The log: each log has records of one kind.
        stream: u64,
        /// Number of the record in its log.
        number: u64,
        /// The record's bytes.
        bytes: &'a [u8],
    },
}

#[derive(Debug)]
enum Item {
    Cost(Place),
    Window(Place),
    WindowEnd(u64),
    Restart,
    Entry(Entry),
    Stack { vcpu: usize, slot: Gva, caller: Option<Gva> },
    Log { stream: u64, number: u64, bytes: usize },
}

/// A configuration's counters when last looked at.
#[derive(Debug, Clone, Copy, Default)]
struct LastCounters {
    misses: u64,
    walk: u64,
    hidden: u64,
    exits: u64,
    /// Exits to an outer hypervisor alone.
    fills: u64,
    vmm: u64,
    data: i64,
    /// Of user accesses in a sampled stream.
    user_exits: u64,
    user_vmm: u64,
}

/// The part of a stream, by what its charges count.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum Part {
    /// All.
    Counted,
    /// What is counted everywhere; the rest stands for its period.
    Window,
    /// What is counted everywhere.
    Between,
}

/// Charges not yet taken.
#[derive(Debug)]
pub(crate) struct Charges {
    profile: Profile,
    items: Vec<Item>,
    /// Costs of all cost items, in order.
    costs: Vec<Costs>,
    /// Bytes of all log items, in order.
    bytes: Vec<u8>,
    /// Per static configuration. Switching VMs come after these and are left out.
    seen: Vec<LastCounters>,
    /// Whether calls and returns are items.
    calls: bool,
    /// Between two regions, nothing is charged. Logs, calls and returns go on.
    paused: bool,
    part: Part,
    /// What the last charge has of a window.
    window: Vec<Costs>,
}

/// Exits of all reasons: [`Sample::all_exits`] without its names, for the access path.
#[inline]
fn exits(s: &Sample) -> u64 {
    s.exits_violation
        + s.exits_guest_fault
        + s.exits_hidden_fault
        + s.exits_permission
        + s.exits_unsync
        + s.exits_emulated_write
        + s.exits_unprotect
        + s.exits_cr3_write
        + s.exits_cr3_read
        + s.exits_invlpg
        + s.exits_cr4_write
        + s.exits_hypercall
        + s.exits_ipi
}

/// Cycles of walks with these references. Only nested walks read host tables.
#[inline]
fn walk_cycles(refs: &Refs, profile: &Profile, host: bool) -> u64 {
    let w = &profile.walk;
    let mut cycles = refs.at(1, 0) * w.guest_leaf;
    cycles += (2..6).map(|level| refs.at(level, 0)).sum::<u64>() * w.guest_upper;
    if host {
        for guest in 0..6 {
            cycles += refs.at(guest, 1) * w.host_leaf;
            cycles += (2..6).map(|level| refs.at(guest, level)).sum::<u64>() * w.host_upper;
        }
    }
    cycles
}

impl Charges {
    /// Charges what these configurations cost from now on.
    pub(crate) fn new(profile: &Profile, regimes: &[Regime], calls: bool) -> Charges {
        let mut charges = Charges {
            profile: profile.clone(),
            items: Vec::new(),
            costs: Vec::new(),
            bytes: Vec::new(),
            seen: vec![LastCounters::default(); regimes.len()],
            calls,
            paused: false,
            part: Part::Counted,
            window: Vec::new(),
        };
        let nowhere = Place { vcpu: 0, code: Gva(0), data: None, size: None };
        charges.charge(regimes, None, nowhere, true, &mut Running::new());
        charges.clear();
        charges
    }

    /// Charges to `place` what was counted since the last call. Without an exit the
    /// hypervisor's work is looked at only if `all` is asked for.
    pub(crate) fn charge(
        &mut self,
        regimes: &[Regime],
        caches: Option<&Caches>,
        place: Place,
        all: bool,
        running: &mut Running,
    ) {
        if self.paused {
            return;
        }
        let first = self.costs.len();
        let (mut any, mut any_window) = (false, false);
        for (i, (regime, seen)) in regimes.iter().zip(&mut self.seen).enumerate() {
            let s = &regime.counts.now;
            let (walk, hidden) = match caches {
                Some(caches) => caches.walk_cycles(i),
                None => {
                    let host = regime.reads_host_tables();
                    (walk_cycles(&regime.counts.refs, &self.profile, host), 0)
                }
            };
            let mut now = LastCounters {
                misses: s.tlb_misses(),
                walk,
                hidden,
                exits: exits(s),
                fills: s.outer_fills,
                ..*seen
            };
            if all || (now.exits, now.fills) != (seen.exits, seen.fills) {
                let outer_exits = regime.outer_exits(s, &self.profile);
                let mut counts = Sample { outer_exits, ..*s };
                regime.add_derived(&mut counts);
                now.vmm = self.profile.exit.cycles(&counts);
                if let Some(tally) = &regime.counts.tally {
                    now.user_exits = exits(&tally.user);
                    now.user_vmm = self.profile.exit.cycles(&tally.user);
                }
            }
            let mut cost = Costs {
                tlb_misses: now.misses - seen.misses,
                walk_cycles: now.walk - seen.walk,
                walk_hidden_cycles: now.hidden - seen.hidden,
                exits: now.exits - seen.exits,
                vmm_cycles: now.vmm - seen.vmm,
                data_wait_cycles: 0,
            };
            if self.part != Part::Counted {
                let exits = now.user_exits - seen.user_exits;
                let vmm_cycles = now.user_vmm - seen.user_vmm;
                let window = Costs { exits, vmm_cycles, ..cost };
                cost = Costs {
                    exits: cost.exits - exits,
                    vmm_cycles: cost.vmm_cycles - vmm_cycles,
                    ..Costs::default()
                };
                any_window |= window != Costs::default();
                self.window.push(window);
            }
            any |= cost != Costs::default();
            self.costs.push(cost);
            *seen = now;
        }
        if any {
            self.put(Item::Cost(place), place, running)
        } else {
            self.costs.truncate(first)
        }
        if any_window && self.part == Part::Window {
            self.costs.extend_from_slice(&self.window);
            self.put(Item::Window(place), place, running);
        }
        self.window.clear();
    }

    /// Charges what an access to data waited, beyond the waits at the last call. `place` is its place by the
    /// block that runs.
    pub(crate) fn charge_waits(
        &mut self,
        caches: &Caches,
        place: impl FnOnce(Gva) -> Place,
        running: &mut Running,
    ) {
        if self.paused {
            return;
        }
        let first = self.costs.len();
        let mut any = false;
        for (waits, seen) in caches.data_waits().zip(&mut self.seen) {
            let data_wait_cycles = waits - std::mem::replace(&mut seen.data, waits);
            any |= data_wait_cycles != 0;
            self.costs.push(Costs { data_wait_cycles, ..Costs::default() });
        }
        if !any || self.part == Part::Between {
            self.costs.truncate(first);
            return;
        }
        let place = place(running.code);
        let item = if self.part == Part::Window { Item::Window(place) } else { Item::Cost(place) };
        self.put(item, place, running);
    }

    /// The costs that were pushed last are this item's, which has this place.
    fn put(&mut self, item: Item, place: Place, running: &mut Running) {
        if place.code.is_kernel() {
            self.items.extend(running.entry(place.vcpu, place.code).map(Item::Entry));
        }
        self.items.push(item);
    }

    /// A part of the stream's log, whose place among the charges matters. The kernel writes logs, so the
    /// entry into the kernel comes before: after a record of a switch, the user code would be another task's.
    pub(crate) fn log(&mut self, stream: u64, number: u64, bytes: &[u8], vcpu: usize, running: &mut Running) {
        self.items.extend(running.entry(vcpu, running.code).map(Item::Entry));
        self.items.push(Item::Log { stream, number, bytes: bytes.len() });
        self.bytes.extend_from_slice(bytes);
    }

    /// A call by the block at `caller`, or a return.
    pub(crate) fn stack(&mut self, vcpu: usize, slot: Gva, caller: Option<Gva>) {
        if self.calls {
            self.items.push(Item::Stack { vcpu, slot, caller });
        }
    }

    /// The counters were set to 0 at a region's begin. What was charged so far counts only if it is of
    /// another region.
    pub(crate) fn restart(&mut self) {
        self.seen.fill(LastCounters::default());
        self.part = Part::Counted;
        if !std::mem::take(&mut self.paused) {
            self.items.push(Item::Restart);
        }
    }

    /// Another part of a sampled stream begins. `ended`: of a window that ends with it, how often it counts.
    pub(crate) fn enter(&mut self, part: Part, ended: Option<u64>) {
        self.items.extend(ended.map(Item::WindowEnd));
        self.part = part;
    }

    /// A region has ended.
    pub(crate) fn pause(&mut self) {
        self.paused = true;
    }

    fn clear(&mut self) {
        self.items.clear();
        self.costs.clear();
        self.bytes.clear();
    }

    /// Passes on all items since the last call.
    pub(crate) fn take(&mut self, sink: &mut dyn FnMut(Charge<'_>)) {
        let (mut costs, mut bytes) = (&self.costs[..], &self.bytes[..]);
        for item in &self.items {
            match *item {
                Item::Cost(place) => {
                    let (these, rest) = costs.split_at(self.seen.len());
                    costs = rest;
                    sink(Charge::Cost(place, these));
                }
                Item::Window(place) => {
                    let (these, rest) = costs.split_at(self.seen.len());
                    costs = rest;
                    sink(Charge::Window(place, these));
                }
                Item::WindowEnd(times) => sink(Charge::WindowEnd(times)),
                Item::Restart => sink(Charge::Restart),
                Item::Entry(entry) => sink(Charge::Entry(entry)),
                Item::Stack { vcpu, slot, caller } => sink(Charge::Stack { vcpu, slot, caller }),
                Item::Log { stream, number, bytes: n } => {
                    let (these, rest) = bytes.split_at(n);
                    bytes = rest;
                    sink(Charge::Log { stream, number, bytes: these });
                }
            }
        }
        self.clear();
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn exits_are_summed_as_the_sample_sums_them() {
        let mut values = [0; Sample::COUNTERS.len()];
        values.iter_mut().enumerate().for_each(|(i, v)| *v = 1 << i);
        let s = Sample::from_values(values);
        assert_eq!(exits(&s), s.all_exits());
    }
}
