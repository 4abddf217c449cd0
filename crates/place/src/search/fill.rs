// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Fills one node: which cores of which L3 each guest's part gets, at the least cost.
//!
//! Cores of an L3 with as many free and online threads are alike, and so are caches with the same cores left.
//! The search goes through the parts in order, and for each part through the numbers of cores per cache and
//! kind. A state is the caches' contents without their order; the best end of each state is remembered. A
//! bound that counts the caches each later part needs at least ends the search of a state early.

use crate::room::L3;
use std::collections::HashMap;

/// What a node must hold of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, Hash)]
pub struct Part {
    /// Cores for vCPUs.
    pub cores: u32,
    /// Cores for the VMM's other threads.
    pub extra: u32,
    /// Whether a vCPU's core must have all its threads free.
    pub full: bool,
}

/// Caches used, threads left beside vCPUs, guests beyond the first in a cache: in this order of weight.
pub type Filled = [u64; 3];

/// Cores that a part takes of a kind in a cache: for vCPUs, and for the VMM.
pub type Take = (u32, u32);

/// Online threads, free threads.
type Kind = (u32, u32);

/// A cache: whether a guest uses it, and the cores left of each kind.
#[derive(Debug, Clone, PartialEq, Eq, PartialOrd, Ord, Hash)]
struct State {
    used: bool,
    left: Vec<(Kind, u32)>,
}

/// What a part takes of each cache, in the order of the state, by kind.
type Allocation = Vec<Vec<Take>>;

/// The best end of a state.
type Best = Option<(Filled, Vec<Allocation>)>;

/// Most steps of a search: each looks at a kind of core in a cache.
const MOST_STEPS: u64 = 300_000;

/// Parts in a node.
pub struct Filling {
    /// What it costs.
    pub cost: Filled,
    /// For each part, for each cache of the node, for each kind of core there, what the part takes.
    pub takes: Vec<Vec<Vec<(Kind, Take)>>>,
}

struct Search<'a> {
    parts: &'a [Part],
    threads: u32,
    memo: HashMap<(usize, Vec<State>), Best>,
    steps: u64,
}

/// Fills a node. `None` if the parts do not fit. The second value tells whether all fillings were looked at.
pub fn fill(caches: &[L3], parts: &[Part], threads: u32) -> (Option<Filling>, bool) {
    let mut states: Vec<(State, usize)> =
        caches.iter().enumerate().map(|(i, l3)| (State { used: false, left: kinds(l3) }, i)).collect();
    states.sort();
    let mut search = Search { parts, threads, memo: HashMap::new(), steps: 0 };
    let start: Vec<State> = states.iter().map(|(s, _)| s.clone()).collect();
    let best = search.solve(0, &start);
    let complete = search.steps < MOST_STEPS;
    let Some((cost, allocations)) = best else { return (None, complete) };
    // The order of the states changes with each part; here it is followed with the caches' own places.
    let mut takes = Vec::new();
    for allocation in &allocations {
        let mut of_part = vec![Vec::new(); caches.len()];
        for ((state, place), taken) in states.iter_mut().zip(allocation) {
            of_part[*place] = state.left.iter().map(|(kind, _)| *kind).zip(taken.iter().copied()).collect();
            state.take(taken);
        }
        states.sort();
        takes.push(of_part);
    }
    (Some(Filling { cost, takes }), complete)
}

/// The kind of a core.
pub fn kind(core: &crate::room::Core) -> Kind {
    (core.online, core.cpus.len() as u32)
}

fn kinds(l3: &L3) -> Vec<(Kind, u32)> {
    let mut left: Vec<(Kind, u32)> = Vec::new();
    for core in &l3.cores {
        match left.iter_mut().find(|(k, _)| *k == kind(core)) {
            Some((_, n)) => *n += 1,
            None => left.push((kind(core), 1)),
        }
    }
    left.sort_unstable();
    left
}

impl State {
    fn total(&self) -> u32 {
        self.left.iter().map(|(_, n)| n).sum()
    }

    fn take(&mut self, taken: &[Take]) {
        for ((_, left), (cores, extra)) in self.left.iter_mut().zip(taken) {
            *left -= cores + extra;
        }
        self.used |= taken.iter().any(|t| *t != (0, 0));
    }
}

fn plus(a: Filled, b: Filled) -> Filled {
    [a[0] + b[0], a[1] + b[1], a[2] + b[2]]
}

impl Search<'_> {
    /// The best way to hold the parts from `at` on.
    fn solve(&mut self, at: usize, states: &[State]) -> Best {
        if at == self.parts.len() {
            return Some(([0; 3], Vec::new()));
        }
        let key = (at, states.to_vec());
        if let Some(known) = self.memo.get(&key) {
            return known.clone();
        }
        let best = self.bound(at, states).and_then(|bound| {
            let mut one = One { at, states, bound, best: None, begun: Vec::new(), taken: Vec::new() };
            let part = self.parts[at];
            one.next(self, part.cores, part.extra, [0; 3]);
            one.best
        });
        self.memo.insert(key, best.clone());
        best
    }

    /// Threads beside the vCPUs of a core of this kind; `None` if the part cannot have it.
    fn beside(&self, part: Part, (online, free): Kind) -> Option<u64> {
        match part.full {
            true => (free == self.threads).then(|| u64::from(online - free)),
            false => Some(u64::from(online - 1)),
        }
    }

    /// A cost that no filling of the parts from `at` on can be below; `None` if one does not fit for sure.
    fn bound(&self, at: usize, states: &[State]) -> Option<Filled> {
        let mut sizes: Vec<u32> = states.iter().map(State::total).collect();
        sizes.sort_unstable_by(|a, b| b.cmp(a));
        let all: u32 = sizes.iter().sum();
        let need: u32 = self.parts[at..].iter().map(|p| p.cores + p.extra).sum();
        if need > all {
            return None;
        }
        let (mut caches, mut beside) = (0, 0);
        for part in &self.parts[at..] {
            let mut need = part.cores + part.extra;
            for size in &sizes {
                caches += u64::from(need > 0);
                need = need.saturating_sub(*size);
            }
            let kinds = states.iter().flat_map(|s| &s.left).filter(|(_, n)| *n > 0);
            let least = kinds.filter_map(|(kind, _)| self.beside(*part, *kind)).min()?;
            beside += u64::from(part.cores) * least;
        }
        let unused = states.iter().filter(|s| !s.used && s.total() > 0).count() as u64;
        Some([caches, beside, caches.saturating_sub(unused)])
    }
}

/// The search through the allocations of one part.
struct One<'a> {
    at: usize,
    states: &'a [State],
    bound: Filled,
    best: Best,
    /// Caches that are done.
    begun: Allocation,
    /// Kinds of the cache at hand that are done.
    taken: Vec<Take>,
}

impl One<'_> {
    /// Goes on with the next kind of core. `cost` is that of the kinds done, without the caches themselves.
    fn next(&mut self, search: &mut Search, cores: u32, extra: u32, cost: Filled) {
        let reached = self.best.as_ref().is_some_and(|(c, _)| *c == self.bound || *c <= cost);
        if reached || search.steps >= MOST_STEPS {
            return;
        }
        search.steps += 1;
        let Some(state) = self.states.get(self.begun.len()) else {
            if cores + extra == 0 {
                self.end(search, cost);
            }
            return;
        };
        let Some((kind, left)) = state.left.get(self.taken.len()).copied() else {
            return self.next_cache(search, cores, extra, cost);
        };
        let part = search.parts[self.at];
        let beside = search.beside(part, kind);
        let most = if beside.is_some() { cores.min(left) } else { 0 };
        for of_cores in (0..=most).rev() {
            for of_extra in (0..=extra.min(left - of_cores)).rev() {
                self.taken.push((of_cores, of_extra));
                let beside = u64::from(of_cores) * beside.unwrap_or(0);
                self.next(search, cores - of_cores, extra - of_extra, plus(cost, [0, beside, 0]));
                self.taken.pop();
            }
        }
    }

    /// Ends a cache, unless the cache before is alike and was given less.
    fn next_cache(&mut self, search: &mut Search, cores: u32, extra: u32, cost: Filled) {
        let at = self.begun.len();
        let alike = at > 0 && self.states[at - 1] == self.states[at];
        if alike && self.taken > self.begun[at - 1] {
            return;
        }
        let used = self.taken.iter().any(|t| *t != (0, 0));
        let shares = used && self.states[at].used;
        let taken = std::mem::take(&mut self.taken);
        self.begun.push(taken);
        if self.states[at + 1..].iter().map(State::total).sum::<u32>() >= cores + extra {
            self.next(search, cores, extra, plus(cost, [u64::from(used), 0, u64::from(shares)]));
        }
        self.taken = self.begun.pop().expect("pushed above");
    }

    fn end(&mut self, search: &mut Search, cost: Filled) {
        let mut states = self.states.to_vec();
        states.iter_mut().zip(&self.begun).for_each(|(state, taken)| state.take(taken));
        states.sort();
        let Some((rest, allocations)) = search.solve(self.at + 1, &states) else { return };
        let total = plus(cost, rest);
        if self.best.as_ref().is_none_or(|(c, _)| total < *c) {
            let mut all = vec![self.begun.clone()];
            all.extend(allocations);
            self.best = Some((total, all));
        }
    }
}
