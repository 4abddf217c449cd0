// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Data caches as lists of lines, one list per set, most recent first; nothing left out
//! because it cannot matter.

use bifold_mmu::Hpa;
use bifold_model::cache::Draws;
use bifold_model::{CacheLevel, Content, Options, Profile};
use std::collections::{BTreeSet, HashMap};

/// A page number, and the page's lines used.
type Used = (u64, BTreeSet<u64>);

pub struct DataCaches {
    levels: Vec<CacheLevel>,
    cpus: usize,
    /// Where a line lies.
    draws: Draws,
    latency: Vec<u64>,
    prefetch: usize,
    walk: usize,
    /// By level, CPU (0 where the level is shared) and set.
    sets: HashMap<(usize, usize, u64), Vec<u64>>,
    /// By CPU and set: pages and their lines used. The page of the latest new line comes first.
    pages: HashMap<(usize, u64), Vec<Used>>,
    page_cross: Option<u64>,
    /// Data accesses that missed each level, and all their waits.
    pub misses: [u64; 3],
    pub stall: u64,
    pub walk_cycles: u64,
    /// Of a dependent load that the second-level TLB answers.
    pub second_tlb: u64,
}

/// The prefetcher's set of a page.
fn prefetch_set(page: u64) -> u64 {
    page.wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 61
}

impl DataCaches {
    pub fn new(profile: &Profile, cpus: usize) -> Option<DataCaches> {
        let memory = profile.memory.as_ref()?;
        let mut latency: Vec<u64> = profile.cache.iter().map(|c| c.cycles).collect();
        latency.push(memory.cycles);
        Some(DataCaches {
            levels: profile.cache.clone(),
            cpus,
            draws: Draws { seed: Options::default().seed, frames: Default::default() },
            latency,
            prefetch: memory.prefetch_level.into(),
            walk: memory.walk_level.into(),
            sets: HashMap::new(),
            pages: HashMap::new(),
            page_cross: memory.page_cross_cycles,
            misses: [0; 3],
            stall: 0,
            walk_cycles: 0,
            second_tlb: profile.tlb.iter().find_map(|t| t.miss_cycles).unwrap_or(0),
        })
    }

    /// How long memory takes to answer.
    pub fn memory_cycles(&self) -> u64 {
        self.latency[self.latency.len() - 1]
    }

    fn set(&mut self, level: usize, cpu: usize, line: u64) -> &mut Vec<u64> {
        let spec = &self.levels[level - 1];
        let number = line % (spec.bytes / 64 / spec.ways as u64);
        let cpu = if spec.shared { 0 } else { cpu };
        self.sets.entry((level, cpu, number)).or_default()
    }

    fn take(&mut self, level: usize, cpu: usize, line: u64) -> bool {
        let set = self.set(level, cpu, line);
        let before = set.len();
        set.retain(|&l| l != line);
        set.len() != before
    }

    fn put(&mut self, level: usize, cpu: usize, line: u64) {
        let ways = self.levels[level - 1].ways;
        let set = self.set(level, cpu, line);
        set.insert(0, line);
        if set.len() <= ways {
            return;
        }
        let victim = set.pop().unwrap();
        if self.levels[level - 1].content == Content::Inclusive {
            let cpus = if self.levels[level - 1].shared { 0..self.cpus } else { cpu..cpu + 1 };
            for (below, cpu) in (1..level).flat_map(|b| cpus.clone().map(move |c| (b, c))) {
                self.take(below, cpu, victim);
            }
        }
        if self.levels.get(level).is_some_and(|above| above.content == Content::Exclusive) {
            self.take(level + 1, cpu, victim);
            self.put(level + 1, cpu, victim);
        }
    }

    /// The level that answers; one more than the last for memory.
    fn look(&mut self, cpu: usize, line: u64, first: usize, write: bool) -> usize {
        for other in (0..self.cpus).filter(|&c| write && c != cpu) {
            for level in 1..=self.levels.len() {
                if !self.levels[level - 1].shared {
                    self.take(level, other, line);
                }
            }
        }
        let n = self.levels.len();
        let answers = (first..=n).find(|&level| self.set(level, cpu, line).contains(&line)).unwrap_or(n + 1);
        if answers <= n {
            self.take(answers, cpu, line);
            if answers == first || self.levels[answers - 1].content != Content::Exclusive {
                self.set(answers, cpu, line).insert(0, line);
            }
        }
        for level in (first..answers).rev() {
            if level == first || self.levels[level - 1].content != Content::Exclusive {
                self.put(level, cpu, line);
            }
        }
        answers
    }

    /// The lines used of a page, while the prefetcher remembers the page.
    fn used(&mut self, cpu: usize, page: u64) -> BTreeSet<u64> {
        let set = self.pages.entry((cpu, prefetch_set(page))).or_default();
        set.iter().find(|(held, _)| *held == page).map_or(BTreeSet::new(), |(_, lines)| lines.clone())
    }

    pub fn data(&mut self, cpu: usize, va: u64, at: u64, write: bool, large_page: bool) {
        let (page, line) = (va >> 12, va >> 6 & 63);
        let mut used = self.used(cpu, page);
        let near = used.contains(&(line + 1)) || line > 0 && used.contains(&(line - 1));
        let beside = line == 0 && page > 0 && self.used(cpu, page - 1).contains(&63)
            || line == 63 && self.used(cpu, page + 1).contains(&0);
        if used.insert(line) {
            let set = self.pages.entry((cpu, prefetch_set(page))).or_default();
            set.retain(|(held, _)| *held != page);
            set.insert(0, (page, used));
            set.truncate(4);
        }
        let mut answers = self.look(cpu, self.draws.line(Hpa(at)), 1, write);
        let enters = !near && beside && self.page_cross.is_some();
        if (near || enters && large_page) && self.prefetch != 0 && answers > 1 {
            answers = answers.min(self.prefetch);
            // The first level's own prefetcher would leave a hit.
            answers = answers.max(1);
        }
        let mut cycles = self.latency[answers - 1];
        if let Some(most) = self.page_cross.filter(|_| enters && !large_page && self.prefetch != 0) {
            cycles = cycles.min(most);
        }
        self.stall += cycles - self.latency[0];
        (1..answers).for_each(|level| self.misses[level - 1] += 1);
    }

    pub fn walk(&mut self, cpu: usize, at: u64) {
        let answers = self.look(cpu, self.draws.line(Hpa(at)), self.walk, false);
        self.walk_cycles += self.latency[answers - 1];
    }
}
