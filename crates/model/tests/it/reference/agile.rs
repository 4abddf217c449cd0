// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Agile paging from its rules: which tables are walked in shadow and which in nested mode, and the policy.
//! The shadow tables are in `shadow.rs`, the host and the nested tables are those of nested paging.

mod walks;

use super::shadow::{Asked, Shadow};
use super::*;
use bifold_model::{AgileStart, Sample};
use std::collections::BTreeSet;

/// What is known of an address space.
#[derive(Debug, Clone, Default)]
struct Space {
    gfn: u64,
    /// The hardware has the guest address of its root.
    fresh: bool,
    walks: u64,
    nested_refs: u64,
    exit_cycles: u64,
    refs_per_walk: Option<f64>,
    new: bool,
    fill: f64,
    regret: f64,
    returns: i32,
}

#[derive(Debug, Clone, Default)]
struct OnCpu {
    cr3: u64,
    space: Option<usize>,
    cached: Vec<u64>,
}

pub struct Agile {
    profile: Profile,
    shadow: Shadow,
    cpus: Vec<OnCpu>,
    spaces: Vec<Space>,
    /// Tables that are not shadowed and were written in this interval.
    written: BTreeSet<u64>,
    /// Tables that writes moved: how often, and intervals since they were written.
    moved: HashMap<u64, (u32, u32)>,
    shadowed: bool,
    interval: u64,
    next: u64,
    instructions: u64,
    /// Cycles of the loads of CR3.
    cr3_load_cycles: u64,
    /// An interval has ended, and the hypervisor has not run since.
    due: bool,
    /// The nested tables lost an entry in this exit.
    nested_lost: bool,
    /// In this interval: loads of CR3, those that exited, and entries that violations have made.
    loads: u64,
    load_exits: u64,
    violated: u64,
    /// Entries of the nested tables that were used since the policy acted.
    young: u64,
    exits_seen: u64,
    pub done: Sample,
}

impl Agile {
    pub fn new(profile: &Profile, format: Tables, cpus: usize, interval_seconds: f64) -> Agile {
        let interval = ((interval_seconds * profile.cpu.frequency_hz as f64) as u64).max(1);
        let keys = profile.agile;
        Agile {
            profile: profile.clone(),
            shadow: Shadow::new(format, cpus, keys.writes, keys.sets_both, profile.kvm),
            cpus: vec![OnCpu::default(); cpus],
            spaces: Vec::new(),
            written: BTreeSet::new(),
            moved: HashMap::new(),
            shadowed: false,
            interval,
            next: interval,
            instructions: 0,
            cr3_load_cycles: 0,
            due: false,
            nested_lost: false,
            loads: 0,
            load_exits: 0,
            violated: 0,
            young: 0,
            exits_seen: 0,
            done: Sample::default(),
        }
    }

    /// All is shadow paging.
    fn is_plain(&self) -> bool {
        self.profile.agile.writes == 0
    }

    fn is_nested(&self, space: usize) -> bool {
        self.shadow.nested.contains(&self.spaces[space].gfn)
    }

    fn space(&mut self, gfn: u64) -> usize {
        if let Some(at) = self.spaces.iter().position(|s| s.gfn == gfn) {
            return at;
        }
        let fresh = self.profile.agile.start == AgileStart::Nested;
        if fresh {
            self.shadow.nested.insert(gfn);
        }
        self.shadowed |= !fresh;
        self.spaces.push(Space { gfn, fresh, ..Space::default() });
        self.spaces.len() - 1
    }

    fn space_on(&mut self, cpu: usize) -> &mut Space {
        &mut self.spaces[self.cpus[cpu].space.expect("the vCPU has loaded CR3")]
    }

    fn enter(&mut self, cpu: usize, cr3: u64) -> usize {
        let space = self.space((cr3 & ADDRESS) >> 12);
        (self.cpus[cpu].cr3, self.cpus[cpu].space) = (cr3, Some(space));
        space
    }

    /// What the hypervisor does in an exit counts, and its cycles count for the address space that runs.
    fn exited(&mut self, cpu: usize, host: &mut Host, done: Sample) {
        self.done.add(&done);
        self.load_exits += done.exits_cr3_write;
        let cycles = self.profile.exit.cycles(&Sample { exits_cr3_write: 0, ..done });
        self.space_on(cpu).exit_cycles += cycles;
        for gone in std::mem::take(&mut self.shadow.unmapped) {
            if host.unmap(&[gone]) {
                self.nested_lost = true;
                self.shadow.asked = Asked::All;
            }
        }
    }

    /// What the hypervisor decides at an interval's end.
    fn decide(&mut self, guest: &HashMap<u64, Vec<u64>>, host: &Host) {
        self.due = false;
        let mut stay: HashSet<u64> = std::mem::take(&mut self.written).into_iter().collect();
        stay.retain(|gfn| !self.shadow.is_protected(*gfn));
        for gfn in std::mem::take(&mut self.shadow.moved) {
            self.moved.entry(gfn).or_default().0 += 1;
        }
        for (gfn, (times, quiet)) in &mut self.moved {
            *quiet = if stay.contains(gfn) { 0 } else { *quiet + 1 };
            if *quiet < 2u32.pow((*times - 1).min(6)) {
                stay.insert(*gfn);
            }
        }
        let walk = &self.profile.walk;
        let each_ref = (walk.host_upper + walk.host_leaf) as f64 / 2.0;
        let exit = &self.profile.exit;
        let each_load = exit.cr3_write.cycles as f64;
        let (loads, load_exits) =
            (std::mem::take(&mut self.loads) as f64, std::mem::take(&mut self.load_exits) as f64);
        let loads = if self.profile.agile.cr3_cache > 0 { 0.0 } else { loads };
        let (nested, shadowed): (Vec<&Space>, Vec<&Space>) =
            self.spaces.iter().partition(|s| self.shadow.nested.contains(&s.gfn));
        let all_walks = nested.iter().map(|s| s.walks).sum::<u64>().max(1) as f64;
        let sharers = shadowed.len().max(1) as f64;
        let expected = std::mem::take(&mut self.young) as f64 / 4.0 * exit.hidden_fault.cycles as f64;
        let (mut to_shadow, mut to_nested) = (false, Vec::new());
        for s in &mut self.spaces {
            let mut nested = self.shadow.nested.contains(&s.gfn);
            let part = s.walks as f64 / all_walks;
            let fill = if nested { s.fill.max(part * expected) } else { s.fill };
            let limit = fill * 2f64.powi(s.returns.min(6));
            if nested && s.walks > 0 {
                s.refs_per_walk = Some(s.nested_refs as f64 / s.walks as f64);
                let saved = s.nested_refs as f64 * each_ref - part * (loads * each_load);
                s.regret = (s.regret + saved).max(0.0);
                if s.regret > limit {
                    (nested, s.fresh, s.new, s.regret, to_shadow) = (false, false, true, 0.0, true);
                }
            } else if s.new {
                s.new = false;
                s.fill = s.exit_cycles as f64;
            } else if let (false, Some(refs)) = (nested, s.refs_per_walk) {
                let gain = (s.walks as f64 * refs - s.nested_refs as f64) * each_ref;
                s.regret += s.exit_cycles as f64 + load_exits * each_load / sharers - gain;
                if s.regret > limit {
                    s.returns += 1;
                    s.regret = 0.0;
                    to_nested.push(s.gfn);
                } else if s.regret < -limit {
                    (s.returns, s.regret) = (0, -s.fill);
                }
            }
            stay.remove(&s.gfn);
            if nested {
                stay.insert(s.gfn);
            }
            (s.walks, s.nested_refs, s.exit_cycles) = (0, 0, 0);
        }
        self.shadow.writes.clear();
        let before = std::mem::replace(&mut self.shadow.nested, stay);
        let left: Vec<u64> = before.into_iter().filter(|gfn| !self.shadow.nested.contains(gfn)).collect();
        let switched = left.into_iter().filter(|gfn| self.shadow.drop_switches(*gfn)).count() > 0;
        if switched || to_shadow {
            self.shadow.asked = Asked::All;
        }
        to_nested.into_iter().for_each(|gfn| self.shadow.enter_nested(gfn));
        self.shadowed = (0..self.spaces.len()).any(|space| !self.is_nested(space));
        let mut done = Sample::default();
        for cpu in 0..self.cpus.len() {
            let OnCpu { cr3, space, .. } = self.cpus[cpu];
            if to_shadow && space.is_some_and(|space| !self.is_nested(space)) {
                self.shadow.load_root(cpu, cr3, guest, host, &mut done);
            }
        }
        self.shadow.settle(None, &mut done);
        self.done.add(&Sample { exits_cr3_write: 0, ..done });
    }
}

impl Reference {
    /// The same over agile paging's tables, with intervals of so many seconds, or over shadow paging's if
    /// nothing ever moves.
    pub fn agile(self, profile: &Profile, interval_seconds: f64) -> Reference {
        let agile = Agile::new(profile, self.format, self.cpus.len(), interval_seconds);
        Reference { agile: Some(Box::new(agile)), ..self }
    }

    pub(super) fn agile_event(&mut self, a: &mut Agile, event: Event<'_>) {
        let cpu = self.current;
        match event {
            Event::Load(va) | Event::LoadBeforeChain(va) | Event::LoadDependent(va) => {
                self.agile_access(a, false, va, (false, false));
            }
            Event::Store(va) => self.agile_access(a, false, va, (true, false)),
            Event::StoreOther(va) => self.agile_access(a, false, va, (true, true)),
            Event::Fetch(va) => self.agile_access(a, true, va, (false, false)),
            Event::Vcpu(n) => self.current = n as usize,
            Event::Insns(n) => {
                a.instructions += n;
                let executed = a.instructions as f64 * a.profile.cpu.base_cpi;
                let cycles = (executed + a.cr3_load_cycles as f64) as u64;
                while a.next <= cycles {
                    a.next += a.interval;
                    a.due = true;
                    let host = self.host.as_mut().expect("agile paging has a host");
                    a.young += host.end_interval() + std::mem::take(&mut a.violated);
                }
            }
            Event::Cr3(value) => self.agile_cr3(a, value),
            Event::Cr4(value) => {
                let Some(old) = self.cpus[cpu].cr4.replace(value) else { return };
                assert_eq!((old ^ value) & !(1 << 7), 0, "no bit but PGE changes here");
                let svm = a.profile.cpu.virtualization == Virtualization::Svm;
                if a.is_plain() && (svm || old != value) {
                    if old != value {
                        self.read_registers();
                    }
                    let host = host_of(&self.host);
                    if old != value {
                        a.shadow.load_registers(cpu, self.cpus[cpu].registers);
                        a.shadow.reload(cpu, &self.tables, host);
                        a.shadow.flush_global(cpu, &self.tables, host);
                    }
                    a.shadow.settle(Some((&self.tables, host)), &mut a.done);
                }
                a.done.exits_cr4_write += u64::from(svm || a.is_plain() && old != value);
                self.carry_out(a);
                if old != value && !a.is_plain() {
                    self.flush_cpu(a, cpu);
                }
            }
            Event::Cr3Read => a.done.exits_cr3_read += u64::from(a.is_plain()),
            Event::Invlpg(va) => {
                self.cpus[cpu].tlb.invalidate(va);
                self.cpus[cpu].caches.flush_guest();
                if a.is_plain() {
                    let host = host_of(&self.host);
                    a.shadow.invalidate(cpu, va, true, &self.tables, host);
                    a.shadow.settle(Some((&self.tables, host)), &mut a.done);
                    a.done.exits_invlpg += 1;
                    self.carry_out(a);
                }
            }
            Event::Fault { gva, error } => {
                self.agile_fault(a, gva, error);
                self.carry_out(a);
                self.cpus[cpu].tlb.invalidate(gva);
            }
            Event::PtStore { gpa, old, new } => {
                if self.cpus[cpu].started && !a.shadow.is_protected(gpa >> 12) {
                    a.written.insert(gpa >> 12);
                }
                self.store(gpa, old, new);
            }
            Event::Table { gfn, entries, .. } => _ = self.tables.insert(gfn, entries.to_vec()),
            Event::Retire { gfn } if a.is_plain() => _ = self.tables.remove(&gfn),
            Event::Retire { gfn } => {
                assert!(a.spaces.iter().all(|s| s.gfn != gfn), "no root ends here");
                a.written.remove(&gfn);
                a.moved.remove(&gfn);
                if a.shadow.nested.remove(&gfn) && a.shadow.drop_switches(gfn) {
                    a.shadow.asked = Asked::All;
                }
                self.carry_out(a);
                self.tables.remove(&gfn);
            }
            _ => {}
        }
    }

    fn agile_cr3(&mut self, a: &mut Agile, value: u64) {
        let cpu = self.current;
        let root = self.format.root(value);
        let same = std::mem::replace(&mut self.cpus[cpu].root, root) == root;
        let first = !std::mem::replace(&mut self.cpus[cpu].started, true);
        if !first {
            a.cr3_load_cycles += a.profile.cpu.cr3_load_cycles.unwrap_or(0);
        }
        self.read_registers();
        a.shadow.load_registers(cpu, self.cpus[cpu].registers);
        let mut flush = true;
        let mut number = 0;
        if self.pcid {
            let (space, ran) = self.cpus[cpu].spaces.enter(root);
            (number, flush) = (space, same || !ran);
        }
        if first {
            let space = a.enter(cpu, value);
            if !a.is_nested(space) {
                a.shadow.begin(cpu, value);
            }
        } else {
            self.load_agile_root(a, value);
        }
        self.carry_out(a);
        self.cpus[cpu].tlb.space = number;
        if first || a.is_plain() {
            return; // the hypervisor has flushed
        }
        match (self.pcid, flush) {
            (true, true) => self.cpus[cpu].tlb.flush_space(),
            (true, false) => {}
            (false, _) => self.cpus[cpu].tlb.flush(false),
        }
        self.cpus[cpu].caches.flush_guest();
        self.counts.flushes += u64::from(flush);
    }

    /// A load of CR3 exits while some address space is shadowed, unless the hardware knows the root.
    fn load_agile_root(&mut self, a: &mut Agile, value: u64) {
        let cpu = self.current;
        if a.due && !a.is_plain() {
            a.decide(&self.tables, host_of(&self.host));
        }
        let space = a.enter(cpu, value);
        a.loads += 1;
        let size = usize::from(a.profile.agile.cr3_cache);
        let cached = &mut a.cpus[cpu].cached;
        let known = cached.contains(&value);
        if a.shadowed && size > 0 {
            cached.retain(|cached| *cached != value);
            cached.insert(0, value);
            cached.truncate(size);
        }
        let mut done = Sample::default();
        let nested = a.is_nested(space);
        if !nested {
            a.shadow.load_root(cpu, value, &self.tables, host_of(&self.host), &mut done);
            // The page of the root that it knows is gone, and another one was made.
            let gone = done.shadow_pages_made > 0;
            done.exits_cr3_write = u64::from(!known || gone);
        } else if a.shadowed && !known {
            done.exits_cr3_write = 1;
        }
        let Some(host) = &mut self.host else { return };
        a.exited(cpu, host, done);
    }

    fn flush_cpu(&mut self, a: &Agile, cpu: usize) {
        self.cpus[cpu].tlb.flush(true);
        if a.nested_lost {
            self.cpus[cpu].caches.flush_all();
        } else {
            self.cpus[cpu].caches.flush_guest();
        }
        self.counts.flushes += 1;
    }

    /// The flushes that the hypervisor asked for. Without tags, any exit flushes the vCPU's TLB.
    fn carry_out(&mut self, a: &mut Agile) {
        let exits = a.done.all_exits() + self.counts.violations;
        let exited = std::mem::replace(&mut a.exits_seen, exits) != exits;
        match std::mem::take(&mut a.shadow.asked) {
            Asked::All => (0..self.cpus.len()).for_each(|cpu| self.flush_cpu(a, cpu)),
            Asked::One(cpu) => self.flush_cpu(a, cpu),
            Asked::Nothing if exited && !a.profile.cpu.tlb_tagged => self.flush_cpu(a, self.current),
            Asked::Nothing => {}
        }
    }
}
