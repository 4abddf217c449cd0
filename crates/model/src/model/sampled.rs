// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sampled streams: the model between windows, and the estimate of the whole run from windows.
//!
//! Some counts are exact, because the stream holds their causes between windows too: exits for the
//! guest's page faults, stores to page tables, control registers and INVLPG; exits of the access
//! that a page fault interrupted, which is repeated after the fault; and exits for the kernel's own
//! memory, whose first touches the stream has everywhere.
//!
//! Other counts are estimated from windows: page walks, and the remaining exits for user memory,
//! such as those for pages that the kernel mapped around a fault and for dropped shadow entries.
//! Between windows, accesses bypass the TLBs and go straight to the tables. TLBs keep their entries
//! meanwhile, and the warm-up before each window replaces entries that are out of date.

mod whole;

use super::Model;
use super::miss::translate;
use crate::access::{AccessKind, Miss};
use crate::charge::{Part, Place};
use crate::counts::Tally;
use crate::estimate::Mean;
use crate::memory::{Refs, Uncached};
use crate::regime::Regime;
use crate::timeline::{Shared, counts};
use crate::{Config, Sample};
use bifold_mmu::{Gpa, Gva, Side};
use bifold_trace::event::gap;
use bifold_trace::{DecodeError, Event, Windows};
use whole::EndSampled;
use whole::whole;

/// Roots of one address space may differ in this bit under KPTI.
const KPTI_PAIR: u64 = 1 << 12;

/// State of a sampled stream.
#[derive(Debug)]
pub(super) struct Sampled {
    part: u64,
    /// Per vCPU: the access that its last page fault interrupted, until it is repeated.
    pending: Vec<Option<Pending>>,
    /// Instructions before the current part, and in parts of each code.
    since: u64,
    instructions: [u64; 4],
    /// Per regime, at the beginning of the current window.
    begin: Vec<Counted>,
    /// Per regime, the head.
    head: Vec<Counted>,
    /// Per regime, all windows together, each as often as its weight says, and their instructions.
    measured: Vec<Counted>,
    weighted: u64,
    /// Per regime, every window: cycles, instructions and weight.
    windows: Vec<Vec<(u64, u64, u64)>>,
    /// What windows stand for.
    places: Option<Windows>,
}

impl Sampled {
    /// How often the window that ends now stands for itself.
    fn weight(&self) -> u64 {
        let n = self.windows.first().map_or(0, Vec::len) as u64;
        self.places.map_or(1, |w| w.weight(n))
    }
}

#[derive(Debug, Clone, Copy)]
struct Pending {
    root: Gpa,
    gva: Gva,
    kind: AccessKind,
    /// The tables map it now.
    mended: bool,
}

/// The counts of one regime that are estimated.
#[derive(Debug, Clone, Copy, Default)]
struct Counted {
    all: Sample,
    user: Sample,
    refs: Refs,
}

impl Counted {
    fn now(index: usize, regime: &Regime, shared: Shared<'_>) -> Counted {
        let user = regime.counts.tally.as_ref().map_or_else(Sample::default, |t| t.user);
        Counted { all: counts(index, regime, shared), user, refs: regime.counts.refs }
    }

    /// Adds what came between `earlier` and `now`.
    fn add(&mut self, now: &Counted, earlier: &Counted) {
        self.all.add(&now.all.since(&earlier.all));
        self.user.add(&now.user.since(&earlier.user));
        self.refs.add_since(&now.refs, &earlier.refs);
    }

    /// Adds a window as often as its weight says.
    fn add_weighted(&mut self, window: &Counted, weight: u64) {
        let times = |s: &Sample| Sample::from_values(s.values().map(|n| n * weight));
        self.all.add(&times(&window.all));
        self.user.add(&times(&window.user));
        self.refs.add_scaled(&window.refs, |n| n * weight);
    }
}

/// How well a sampled run is known so far.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct SoFar {
    /// The configuration whose overhead is known worst.
    pub config: Config,
    /// Half the width of its 95 % interval, in percent of its overhead. Infinite if there is no overhead yet.
    pub percent: f64,
}

impl Model {
    /// Windows of a sampled stream so far; 0 for a whole one.
    pub fn windows(&self) -> u64 {
        self.sampled.as_ref().and_then(|s| s.windows.first()).map_or(0, |w| w.len() as u64)
    }

    /// How well a sampled run is known so far; `None` for a whole stream and with fewer than 3 windows.
    pub fn so_far(&self) -> Option<SoFar> {
        let s = self.sampled.as_ref().filter(|s| s.weighted > 0)?;
        let shared = self.shared();
        let known = |(i, regime): (usize, &Regime)| {
            let end = Counted::now(i, regime, shared);
            let rest = (end.all.instructions - s.instructions[gap::HEAD as usize]) as f64;
            let (total, _) = whole(&end, &s.head[i], &s.measured[i], rest / s.weighted as f64, &self.profile);
            let half = Mean::per_instruction(&s.windows[i]).half_width? * rest;
            let percent = 100.0 * half / total.extra_cycles() as f64;
            Some(SoFar {
                config: regime.config,
                percent: if percent.is_nan() { f64::INFINITY } else { percent },
            })
        };
        let all: Option<Vec<SoFar>> = self.regimes.iter().enumerate().map(known).collect();
        all?.into_iter().max_by(|a, b| a.percent.total_cmp(&b.percent))
    }

    /// Is the stream between windows?
    #[inline]
    pub(super) fn in_gap(&self) -> bool {
        self.sampled.as_ref().is_some_and(|s| s.part == gap::BEGIN)
    }

    /// How often a window counts in the end, beside its weight, so that all windows stand for all that is not
    /// the head; 0 without windows.
    pub fn window_scale(&self) -> f64 {
        let of = |s: &Sampled| {
            (self.common.instructions - s.instructions[gap::HEAD as usize]) as f64 / s.weighted as f64
        };
        self.sampled.as_deref().filter(|s| s.weighted > 0).map_or(0.0, of)
    }

    /// A sampled stream enters another of its parts.
    pub(super) fn gap(&mut self, code: u64) {
        self.charge_rest();
        let Model { sampled, regimes, vcpus, common, profile, observers, options, charges, .. } = self;
        let shared = Shared { common, profile, caches: observers.caches.as_deref() };
        let s = sampled.get_or_insert_with(|| {
            let tally = Tally::new(vcpus.len(), options.guest_format);
            regimes.iter_mut().for_each(|r| r.counts.tally = Some(Box::new(tally.clone())));
            Box::new(Sampled {
                part: gap::WARM_UP,
                pending: vec![None; vcpus.len()],
                since: 0,
                instructions: [0; 4],
                begin: Vec::new(),
                head: vec![Counted::default(); regimes.len()],
                measured: vec![Counted::default(); regimes.len()],
                weighted: 0,
                windows: vec![Vec::new(); regimes.len()],
                places: options.windows,
            })
        });
        let passed = common.instructions - s.since;
        s.since = common.instructions;
        s.instructions[s.part as usize] += passed;
        // A window without instructions counts for nothing.
        let mut ended = (s.part == gap::MEASURE).then_some(0);
        if s.part == gap::MEASURE && passed > 0 {
            let weight = s.weight();
            ended = Some(weight);
            s.weighted += passed * weight;
            for (i, regime) in regimes.iter().enumerate() {
                let now = Counted::now(i, regime, shared);
                let mut window = Counted::default();
                window.add(&now, &s.begin[i]);
                s.measured[i].add_weighted(&window, weight);
                let cycles = window.all.exposed_memory_cycles() + profile.exit.cycles(&window.user);
                s.windows[i].push((cycles, passed, weight));
            }
        }
        if s.part == gap::HEAD {
            for (i, regime) in regimes.iter().enumerate() {
                s.head[i].add(&Counted::now(i, regime, shared), &s.begin[i]);
            }
        }
        // A damaged stream may name unknown parts: they are not measured.
        s.part = if code > gap::HEAD { gap::WARM_UP } else { code };
        if let Some(charges) = charges {
            let part = match s.part {
                gap::HEAD => Part::Counted,
                gap::MEASURE => Part::Window,
                _ => Part::Between,
            };
            charges.enter(part, ended);
        }
        s.begin.clear();
        if s.part == gap::MEASURE || s.part == gap::HEAD {
            s.begin.extend(regimes.iter().enumerate().map(|(i, r)| Counted::now(i, r, shared)));
        }
        s.pending.fill(None);
    }

    /// Consumes the events of a gap, from word `i` on; returns the index of the first word after it.
    pub(super) fn consume_gap(&mut self, words: &[u64], mut i: usize) -> Result<usize, DecodeError> {
        while i < words.len() && self.in_gap() {
            let (event, n) = self.decode(words, i)?;
            i += n;
            match event {
                Event::Load(gva) | Event::LoadDependent(gva) | Event::LoadBeforeChain(gva) => {
                    self.touch(Side::Data, Gva(gva), AccessKind::Read)
                }
                Event::Store(gva) => self.touch(Side::Data, Gva(gva), AccessKind::Write),
                Event::StoreOther(gva) => self.touch(Side::Data, Gva(gva), AccessKind::WriteOther),
                Event::Fetch(gva) => self.touch(Side::Code, Gva(gva), AccessKind::Fetch),
                Event::Block(gva) => self.vcpus[self.current].running.block(Gva(gva)),
                event => {
                    self.event(event);
                    match event {
                        Event::Fault { gva, error } => self.fault_in_gap(Gva(gva), error),
                        Event::PtStore { .. } | Event::Cr3(_) => self.mend(),
                        _ => {}
                    }
                }
            }
        }
        Ok(i)
    }

    /// An access of a gap: the tables come to hold what they have to, the TLBs stay as they are.
    fn touch(&mut self, side: Side, gva: Gva, kind: AccessKind) {
        if side == Side::Code && !self.has_code {
            return;
        }
        let vcpu = self.current;
        let Model { regimes, guest, vcpus, untranslated, frames, observers, charges, .. } = self;
        let root = vcpus[vcpu].root;
        let write = kind.writes();
        let miss = match translate(guest, root, gva, write) {
            Some(leaf) if leaf.page.frame() >= *frames => return,
            Some(leaf) => Miss { vcpu, gva, kind, leaf, root },
            None => {
                *untranslated += 1;
                return;
            }
        };
        for regime in regimes.iter_mut() {
            regime.walk(&miss, guest, &mut Uncached);
        }
        if let Some(charges) = charges {
            let running = &mut vcpus[vcpu].running;
            let code = if kind == AccessKind::Fetch { gva } else { running.code };
            let place = Place { vcpu, code, data: Some(gva), size: Some(miss.leaf.size) };
            charges.charge(regimes, observers.caches.as_deref(), place, false, running);
        }
        observers.backed();
        self.flush_asked();
    }

    /// Notes a page fault: the access is repeated after the fault and may exit then.
    pub(super) fn note_fault(&mut self, vcpu: usize, gva: Gva) {
        for tally in self.regimes.iter_mut().filter_map(|r| r.counts.tally.as_mut()) {
            tally.guest_fault(vcpu, gva);
        }
    }

    fn fault_in_gap(&mut self, gva: Gva, error: u64) {
        const WRITE: u64 = 1 << 1;
        const FETCH: u64 = 1 << 4;
        let kind = match error {
            e if e & FETCH != 0 => AccessKind::Fetch,
            e if e & WRITE != 0 => AccessKind::Write,
            _ => AccessKind::Read,
        };
        let root = self.vcpus[self.current].root;
        if let Some(s) = &mut self.sampled {
            s.pending[self.current] = Some(Pending { root, gva, kind, mended: false });
        }
    }

    /// Repeats the access that a page fault interrupted, once the tables map it and are loaded.
    fn mend(&mut self) {
        let vcpu = self.current;
        let root = self.vcpus[vcpu].root;
        let Some(pending) = self.sampled.as_mut().and_then(|s| s.pending[vcpu].as_mut()) else { return };
        if (pending.root.0 ^ root.0) & !KPTI_PAIR != 0 {
            return;
        }
        if !pending.mended {
            let write = pending.kind == AccessKind::Write;
            pending.mended = self.guest.lookup(pending.root, pending.gva).is_ok_and(|l| l.writable || !write);
        }
        if pending.mended && pending.root == root {
            let Pending { gva, kind, .. } = *pending;
            if let Some(s) = &mut self.sampled {
                s.pending[vcpu] = None;
            }
            let side = if kind == AccessKind::Fetch { Side::Code } else { Side::Data };
            self.touch(side, gva, kind);
        }
    }

    /// Ends the last part; what was seen, and each regime's counts.
    pub(super) fn end_sampled(&mut self) -> Option<EndSampled> {
        self.sampled.as_ref()?;
        // A window that the end cut off is not like the others.
        if let Some(s) = self.sampled.as_mut().filter(|s| s.part == gap::MEASURE) {
            s.part = gap::WARM_UP;
        }
        self.gap(gap::WARM_UP);
        let shared = self.shared();
        let end = self.regimes.iter().enumerate().map(|(i, r)| Counted::now(i, r, shared)).collect();
        Some(EndSampled { sampled: self.sampled.take()?, end, profile: self.profile.clone() })
    }
}
