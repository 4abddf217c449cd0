// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data caches: how long loads, stores and page walks wait for memory.
//!
//! Each configuration has caches of its own, through which its data and its walks go with their
//! host-physical addresses. One more set of caches belongs to the ideal run, which has no walks. Where the
//! host's frames lie in other sets than the ideal run's data, one more set sees the data alone, at those
//! frames: [`Framed`]. [`classes`] says which lines are simulated, [`hierarchy`] how a line moves, and this
//! file what an access costs: the answering level's latency, less the first level's, which is part of the
//! base CPI. `docs/design/model.md#data-caches` lists the rules.

mod classes;
mod error;
mod frames;
mod hierarchy;
mod level;
mod neighbours;
mod recent;
mod settled;
mod stalls;
mod translations;
mod walker;
mod watch;
mod window;

use crate::profile::{Content, Memory as MemoryCosts, Profile};
use crate::{Config, Sample};
use bifold_mmu::{Gpa, Gva, Hpa, PageSize};
pub use classes::CacheMode;
use classes::Classes;
pub use error::CacheError;
pub(crate) use error::Estimates;
pub use frames::Draws;
use frames::Layout;
use hierarchy::{DataCaches, MOST_LEVELS};
use level::Line;
use neighbours::{Near, Neighbours};
use recent::{MOST, Recent, Used};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use settled::Settled;
use stalls::{Stalls, Waits};
use translations::Translations;
pub(crate) use walker::CachedMemory;
pub(crate) use watch::Watch;
use window::{Chains, Limits, Now, Pace};

/// How data caches were simulated, and what the core hides of waiting for them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, Deserialize, JsonSchema)]
pub struct CacheFacts {
    /// Lines of each 4 KB page that were simulated, of 64.
    pub simulated_classes: u64,
    /// `memory.data_overlap` of the profile.
    pub data_overlap: f64,
    /// `memory.walk_overlap` of the profile.
    pub walk_overlap: f64,
}

/// The caches of one configuration, and what waiting for them took.
#[derive(Debug)]
struct Cached {
    caches: DataCaches,
    stalls: Stalls,
}

impl Cached {
    fn new(profile: &Profile, limits: Limits, classes: &Classes, vcpus: usize) -> Cached {
        Cached {
            caches: DataCaches::new(&profile.cache, classes, vcpus),
            stalls: Stalls::new(&profile.walk, limits, classes),
        }
    }
}

/// Caches of a run without walks whose data lie in host frames of one layout. It waits longer than the ideal
/// run by what the frames' places cost every configuration of that layout.
#[derive(Debug)]
struct Framed {
    layout: Layout,
    /// A configuration with these frames.
    config: usize,
    cached: Cached,
}

/// The data caches of all configurations.
#[derive(Debug)]
pub(crate) struct Caches {
    profile: Profile,
    memory: MemoryCosts,
    classes: Classes,
    draws: Draws,
    vcpus: usize,
    /// Latency by index of the answering level; the last is memory's.
    latency: [u64; MOST_LEVELS + 1],
    levels: usize,
    /// Index of the level that answers for prefetched lines; none without a prefetcher.
    prefetch: Option<usize>,
    ideal: Cached,
    configs: Vec<Cached>,
    framed: Vec<Framed>,
    /// Per configuration: its frames' place in `framed`; none if its data lie in the same sets as the ideal
    /// run's.
    framed_of: Vec<Option<usize>>,
    /// Per vCPU.
    neighbours: Vec<Neighbours>,
    translations: Vec<Translations>,
    /// Per vCPU and slot: the lines that were used last.
    recent: Vec<[Recent; 64]>,
    /// Per vCPU.
    settled: Vec<Settled>,
    /// How many lines of a slot are kept: more than one if a slot is a set of the first level.
    kept: usize,
    /// Index of the lowest level that is inclusive: what it evicts leaves the levels below.
    inclusive: usize,
    /// The access whose walk was the last one.
    walked: u64,
    limits: Limits,
    pace: Pace,
    now: Now,
    /// Per vCPU.
    chains: Vec<Chains>,
    /// Cycles that a dependent load waits longer for a hit of the second-level TLB than of the first.
    second_tlb: u64,
    /// The bits of a line's number that choose the slot: those by which every level chooses a set.
    slots: u64,
    /// The lines of one access, as [`Translations::get`] orders them.
    lines: Vec<Line>,
}

/// An access as the data caches see it.
#[derive(Debug, Clone, Copy)]
pub(crate) struct Access {
    pub vcpu: usize,
    pub gva: Gva,
    pub write: bool,
    /// How many such accesses the core has under way at once, at most: [`Caches::at_once`].
    pub at_once: u64,
    /// Changes whenever translations may have changed.
    pub generation: u64,
}

/// What the prefetcher saw of an access to a line that is simulated.
#[derive(Debug, Clone, Copy)]
pub(crate) struct SimulatedAccess {
    /// The line's class: its number among the simulated ones.
    rank: usize,
    near: Option<Near>,
}

impl Caches {
    /// Empty caches of `configs` configurations; none if the mode or the profile has none.
    pub fn new(
        profile: &Profile,
        mode: CacheMode,
        draws: Draws,
        vcpus: usize,
        configs: &[Config],
    ) -> Option<Box<Caches>> {
        let memory = profile.memory.clone().filter(|_| mode != CacheMode::Off)?;
        let specs = &profile.cache;
        let prefetch = usize::from(memory.prefetch_level).checked_sub(1);
        let classes = Classes::new(mode, specs, prefetch.is_some());
        let limits = Limits::new(profile);
        let slots = specs.iter().map(|s| s.sets().min(64)).min().unwrap_or(1);
        let kept = specs.first().filter(|s| s.sets() == slots).map_or(1, |s| s.ways.min(MOST));
        let inclusive = specs.iter().position(|s| s.content == Content::Inclusive).unwrap_or(MOST_LEVELS);
        let mut latency = [memory.cycles; MOST_LEVELS + 1];
        latency.iter_mut().zip(specs).for_each(|(l, s)| *l = s.cycles);
        let mut caches = Box::new(Caches {
            ideal: Cached::new(profile, limits, &classes, vcpus),
            profile: profile.clone(),
            draws,
            memory,
            vcpus,
            latency,
            levels: specs.len(),
            prefetch,
            configs: Vec::new(),
            framed: Vec::new(),
            framed_of: Vec::new(),
            neighbours: vec![Neighbours::default(); vcpus],
            translations: vec![Translations::default(); vcpus],
            recent: vec![std::array::from_fn(|_| Recent::default()); vcpus],
            settled: vec![Settled::default(); vcpus],
            kept,
            inclusive,
            walked: u64::MAX,
            limits,
            pace: Pace::default(),
            now: Pace::default().at(0, &limits),
            chains: vec![Chains::default(); vcpus],
            second_tlb: profile.tlb.iter().find_map(|t| t.miss_cycles).unwrap_or(0),
            slots: slots - 1,
            lines: Vec::new(),
            classes,
        });
        configs.iter().for_each(|&config| caches.add_config(config));
        Some(caches)
    }

    /// Adds empty caches for one more configuration.
    pub fn add_config(&mut self, config: Config) {
        // Its sets are empty.
        (0..64).for_each(|slot| self.forget(slot));
        let empty = || Cached::new(&self.profile, self.limits, &self.classes, self.vcpus);
        let framed = self.draws.layout(config, &self.profile.cache).map(|layout| {
            self.framed.iter().position(|f| f.layout == layout).unwrap_or_else(|| {
                self.framed.push(Framed { layout, config: self.configs.len(), cached: empty() });
                self.framed.len() - 1
            })
        });
        self.configs.push(empty());
        self.framed_of.push(framed);
    }

    /// Sets the counts of waits to 0, and numbers accesses from 0 on, where `accesses` were made. The caches
    /// keep their lines. Chains are known by the numbers of their loads, so none goes on.
    pub fn reset_counts(&mut self, accesses: u64) {
        self.pace.renumber(accesses);
        self.now.access = 0;
        self.chains.fill(Chains::default());
        let Caches { ideal, configs, framed, profile, classes, limits, .. } = self;
        for one in std::iter::once(ideal).chain(configs).chain(framed.iter_mut().map(|f| &mut f.cached)) {
            one.stalls = Stalls::new(&profile.walk, *limits, classes);
        }
    }

    /// Access number `access` comes next.
    #[inline]
    pub fn at(&mut self, access: u64) {
        self.now.access = access;
    }

    /// Behind access number `access` of a vCPU begins a chain of dependent loads.
    #[inline]
    pub fn chain_begins(&mut self, vcpu: usize, access: u64) {
        self.chains[vcpu].begins(access);
    }

    /// How many accesses like the one that [comes next](Caches::at) a core has under way at once, at most:
    /// dependent ones as many as chains, and of independent ones any number.
    #[inline]
    pub fn at_once(&self, vcpu: usize, dependent: bool) -> u64 {
        if dependent { self.chains[vcpu].at_once(self.now) } else { u64::MAX }
    }

    /// So many instructions ran, after which there were `accesses` in all.
    pub fn ran(&mut self, instructions: u64, accesses: u64) {
        self.pace.ran(instructions, accesses);
        self.now = self.pace.at(self.now.access, &self.limits);
    }

    /// The second-level TLB of configuration `config` answers a dependent load. Whether the core waits
    /// longer.
    #[inline]
    pub fn second_tlb_answers(&mut self, config: usize) -> bool {
        self.configs[config].stalls.dependent(self.second_tlb);
        self.second_tlb > 0
    }

    /// The guest's kernel gives a program a page of 2 MB that was free: see `memory.first_use_2m_cycles`.
    pub fn first_use(&mut self) {
        let cycles = self.memory.first_use_2m_cycles.unwrap_or(0);
        self.each().for_each(|one| one.stalls.dependent(cycles));
    }

    /// The prefetcher sees an access to data. Most lines are watched for it alone: what [`Caches::access`]
    /// needs of a line that is simulated.
    #[inline(always)]
    pub fn note(&mut self, vcpu: usize, gva: Gva) -> Option<SimulatedAccess> {
        let settled = &mut self.settled[vcpu];
        let near =
            self.prefetch.and_then(|_| self.neighbours[vcpu].used(gva.0, |page| settled.forget_page(page)));
        self.classes.rank(gva.0).map(|rank| SimulatedAccess { rank, near })
    }

    /// An access to data, as the prefetcher has [seen](Caches::note) it. `translate` returns the
    /// guest-physical address and its page's size, if there is one, and `place` the host-physical address of
    /// that in a configuration. `from_memory` gets each configuration in which memory answers, and the number
    /// of accesses that this one stands for.
    #[inline(always)]
    pub fn access(
        &mut self,
        a: Access,
        seen: SimulatedAccess,
        translate: impl FnOnce() -> Option<(Gpa, PageSize)>,
        place: impl Fn(usize, Gpa) -> Hpa,
        from_memory: impl FnMut(usize, u64),
    ) {
        let line = a.gva.0 >> 6;
        let slot = self.slot(a.gva);
        let recent = &mut self.recent[a.vcpu][slot];
        let first = recent.first();
        match recent.hit(line, a.generation, a.write) {
            Some(0) => return,
            None => self.simulate(a, seen, translate, place, from_memory),
            Some(_) if a.at_once > 1 && self.walked == self.now.access => {
                let now = self.now;
                self.each().for_each(|one| one.stalls.windows.answered(now, false));
            }
            Some(_) => {}
        }
        self.settled[a.vcpu].forget_line(first);
    }

    /// The slot of the address's line in [`Caches::recent`].
    #[inline(always)]
    fn slot(&self, gva: Gva) -> usize {
        (gva.0 >> 6 & self.slots) as usize % 64
    }

    /// The caches of the ideal run, of each configuration, and of each layout of frames.
    fn each(&mut self) -> impl Iterator<Item = &mut Cached> {
        let framed = self.framed.iter_mut().map(|f| &mut f.cached);
        std::iter::once(&mut self.ideal).chain(&mut self.configs).chain(framed)
    }

    /// Brings the sets of a vCPU's slot in the order of their last uses.
    #[inline]
    fn bring_in_order(&mut self, vcpu: usize, slot: usize) {
        if let Some(order) = self.recent[vcpu][slot].take_order() {
            let rank = self.classes.rank((slot as u64) << 6).unwrap_or(0);
            self.each().for_each(|one| order.apply(one.caches.first_level(vcpu, slot as u64, rank)));
        }
    }

    /// Something else than an access to data changes a slot's sets, or it may.
    fn forget(&mut self, slot: usize) {
        (0..self.vcpus).for_each(|vcpu| self.forget_of(vcpu, slot));
    }

    #[inline]
    fn forget_of(&mut self, vcpu: usize, slot: usize) {
        if self.recent[vcpu][slot].len() == 0 {
            return;
        }
        self.bring_in_order(vcpu, slot);
        let recent = &mut self.recent[vcpu][slot];
        self.settled[vcpu].forget_line(recent.first());
        recent.truncate(0);
    }

    fn simulate(
        &mut self,
        a: Access,
        SimulatedAccess { rank, near }: SimulatedAccess,
        translate: impl FnOnce() -> Option<(Gpa, PageSize)>,
        place: impl Fn(usize, Gpa) -> Hpa,
        mut from_memory: impl FnMut(usize, u64),
    ) {
        let slot = self.slot(a.gva);
        self.bring_in_order(a.vcpu, slot);
        if self.vcpus > 1 {
            self.forget_others(a.vcpu, slot);
        }
        let Caches { levels, translations, ideal, configs, framed, latency, prefetch, .. } = self;
        let Caches { classes, draws, now, memory, recent, kept, inclusive, vcpus, lines, .. } = self;
        let weight = classes.weight(rank);
        let page = a.gva.0 >> 12;
        let Some((size, frames)) =
            translations[a.vcpu].get(page, a.generation, configs.len(), translate, place)
        else {
            return;
        };
        let fetched = fetched(near, size, *prefetch, memory.page_cross_cycles);
        // Configurations with their data in the same frame have the same line, which costs a permutation.
        lines.clear();
        for (i, frame) in frames.iter().enumerate() {
            let line = match frame.like {
                like if like < i => lines[like],
                _ => draws.line(Hpa(frame.number << 12 | a.gva.0 & 0xfff)),
            };
            lines.push(line);
        }
        let (&of_guest, of_configs) = lines.split_first().expect("the ideal run's comes first");
        let recent = &mut recent[a.vcpu][slot];
        let first = ideal.caches.first_level(a.vcpu, of_guest, rank);
        let held = first[..recent.len()].iter().position(|&held| held == of_guest);
        // What is known of one set is so of all: the line is not among those that fill the set.
        let first_lacks = held.is_none() && recent.len() == first.len();
        let walked = a.at_once > 1 && self.walked == now.access;
        let mut filled = 0;
        // Whether memory answers.
        let mut wait = |one: &mut Cached, line: Line| {
            let answers = match first_lacks {
                true => one.caches.access_above(a.vcpu, line, rank, a.write),
                false => one.caches.access(a.vcpu, line, rank, 0, a.write),
            };
            filled = filled.max(answers);
            let answers = answers.min(fetched.level);
            if walked {
                one.stalls.windows.answered(*now, answers == *levels);
            }
            if answers == 0 {
                return false;
            }
            let alone = one.stalls.windows.data(*now, weight, a.at_once, answers == *levels, a.write);
            let waits = Waits { dependent: a.at_once == 1, alone };
            let cycles = latency[answers].min(fetched.cycles);
            one.stalls.data(rank, weight, answers, cycles - latency[0], waits);
            answers == *levels
        };
        wait(ideal, of_guest);
        for (config, (one, &line)) in configs.iter_mut().zip(of_configs).enumerate() {
            if wait(one, line) {
                from_memory(config, weight);
            }
        }
        for f in framed {
            wait(&mut f.cached, of_configs[f.config]);
        }
        let used = Used { line: a.gva.0 >> 6, generation: a.generation, owned: a.write || *vcpus == 1 };
        recent.used(used, held, *kept);
        // A line that an inclusive level evicted may have been one of these.
        if filled > *inclusive {
            recent.truncate(1);
        }
    }

    /// The lines that the other vCPUs used last may leave their caches.
    #[cold]
    fn forget_others(&mut self, vcpu: usize, slot: usize) {
        (0..self.vcpus).filter(|&other| other != vcpu).for_each(|other| self.forget_of(other, slot));
    }

    /// Enters what configuration `config` and the ideal run waited for.
    pub fn add_to(&self, config: usize, s: &mut Sample) {
        let stalls = &self.configs[config].stalls;
        (s.walk_cycles, s.walk_hidden_cycles) = stalls.walk_cycles();
        (s.data_stall_cycles, s.data_hidden_cycles) = stalls.data_cycles();
        let ideal = &self.ideal.stalls;
        (s.ideal_stall_cycles, s.ideal_hidden_cycles) = ideal.data_cycles();
        let framed = self.framed_of[config].map_or(ideal, |at| &self.framed[at].cached.stalls);
        (s.frames_stall_cycles, s.frames_hidden_cycles) = framed.data_cycles();
        let misses = |level| if level < self.levels { stalls.misses(level) } else { 0 };
        (s.l1d_cache_misses, s.l2_cache_misses, s.l3_cache_misses) = (misses(0), misses(1), misses(2));
    }

    /// Cycles of configuration `config`'s walks so far, and how many of them the core hides.
    pub fn walk_cycles(&self, config: usize) -> (u64, u64) {
        self.configs[config].stalls.walk_cycles()
    }

    /// Per configuration: [`Sample::data_wait_cycles`] so far.
    pub fn data_waits(&self) -> impl Iterator<Item = i64> + '_ {
        let waits = |one: &Cached| {
            let (all, hidden) = one.stalls.data_cycles();
            (all - hidden) as i64
        };
        let ideal = waits(&self.ideal);
        self.configs.iter().map(move |one| waits(one) - ideal)
    }

    /// How the caches are simulated.
    pub fn facts(&self) -> CacheFacts {
        CacheFacts {
            simulated_classes: self.classes.len(),
            data_overlap: self.memory.data_overlap,
            walk_overlap: self.memory.walk_overlap,
        }
    }

    /// Cycles of the ideal run's stalls, the hidden ones left out.
    pub fn ideal_cycles(&self) -> u64 {
        let (all, hidden) = self.ideal.stalls.data_cycles();
        all - hidden
    }
}

/// Upper limits of what an access to data costs, as the prefetcher has fetched its line.
#[derive(Debug, Clone, Copy)]
struct Fetched {
    /// Index of the answering level.
    level: usize,
    /// Load to use.
    cycles: u64,
}

/// What the prefetcher has fetched of a line in a guest's page of `size` whose neighbour is `near`.
fn fetched(near: Option<Near>, size: PageSize, prefetch: Option<usize>, page_cross: Option<u64>) -> Fetched {
    const NOTHING: Fetched = Fetched { level: MOST_LEVELS, cycles: u64::MAX };
    let in_stream = Fetched { level: prefetch.unwrap_or(MOST_LEVELS), ..NOTHING };
    match (near, page_cross) {
        (None, _) | (Some(Near::AcrossPages), None) => NOTHING,
        (Some(Near::InPage), _) => in_stream,
        (Some(Near::AcrossPages), Some(cycles)) if size == PageSize::Size4K => Fetched { cycles, ..NOTHING },
        (Some(Near::AcrossPages), Some(_)) => in_stream,
    }
}

#[cfg(test)]
mod tests;
