// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The search for the placement of least [`Cost`]: branch and bound over the guests' choices.
//!
//! Guests are placed one after the other, large ones first. A placement of some guests costs at least what
//! they cost now, plus what each other guest costs in an empty host: all figures of a cost grow with each
//! guest, and lexicographic order keeps under addition. Guests that share caches cost at least the caches
//! used beyond those that there are.
//!
//! Two symmetries are used. Guests with equal choices take them in ascending order. Of two nodes that could
//! change places (equal cores and memory, equal distances to all others), and that hold the same guests so
//! far, the lower one is used first. Choices are ordered by cost, then by their nodes, so the least placement
//! of each class keeps both rules.
//!
//! A short search comes first, which suffices for most wishes. If it ends at its limit, [`start`] looks for
//! any placement, and that bounds the search that follows. The search ends after a number of steps; then the
//! best placement so far is taken, and is not called proven unless it costs no more than the guests' least
//! costs together.

mod demand;
pub mod fill;
pub mod options;
mod start;
mod twins;

use crate::cost::Cost;
use crate::room::Room;
use bifold_host::topology::NumberSet;
use demand::Demand;
use fill::{Filled, Filling, Part, fill};
use options::{Choice, Choices};
use std::collections::HashMap;
use twins::twins;

/// Most placements of a guest that the search tries.
pub const MOST_STEPS: u64 = 100_000;
/// Most of them before [`start`] looks for a bound.
const FIRST_STEPS: u64 = 5000;

/// Where all guests are.
pub struct Found {
    /// The choice of each guest, in the order given, and the guest's nodes in ascending order.
    pub guests: Vec<(Choice, Vec<Placed>)>,
    /// What they cost together.
    pub cost: Cost,
    /// Whether nothing costs less.
    pub proven: bool,
}

/// A guest's node: its node in the room, and its cores.
pub struct Placed {
    /// The node in the room.
    pub node: usize,
    /// CPUs of each core for vCPUs by L3, in the order of the node's caches.
    pub caches: Vec<(usize, Vec<Vec<u32>>)>,
    /// CPUs for the VMM's other threads.
    pub emulator: NumberSet,
}

impl Placed {
    /// All CPUs of the guest in the node.
    pub fn cpus(&self) -> impl Iterator<Item = u32> + '_ {
        self.caches.iter().flat_map(|(_, cores)| cores).flatten().copied().chain(self.emulator.iter())
    }
}

/// The placement of least cost. Without one, the error tells whether there is surely none.
pub fn search(room: &Room, choices: &[Choices]) -> Result<Found, NotFound> {
    let complete = choices.iter().all(|c| c.complete);
    let mut fillings = Fillings::new(room);
    let alone = choices.iter().map(|c| c.all.len() as u64).sum();
    let mut guests: Vec<(usize, Vec<Choice>)> =
        choices.iter().enumerate().map(|(i, guest)| (i, fillings.priced(&guest.all))).collect();
    if guests.iter().any(|(_, choices)| choices.is_empty()) {
        return Err(NotFound { proven: complete && fillings.complete, steps: alone });
    }
    let size = |choices: &[Choice]| {
        let first = choices.first();
        first.map(|c| c.parts.iter().map(|(_, p)| u64::from(p.cores + p.extra)).sum::<u64>())
    };
    guests.sort_by(|(_, a), (_, b)| {
        (size(b), b.first().map(|c| c.pages * c.page_kib))
            .cmp(&(size(a), a.first().map(|c| c.pages * c.page_kib)))
    });
    let mut branch = Branch::new(room, fillings, &guests);
    branch.run(FIRST_STEPS);
    let mut steps = branch.steps;
    if branch.steps >= FIRST_STEPS {
        let (start, tried) = start::start(room, &mut branch.fillings, &guests);
        branch.start = start;
        branch.run(MOST_STEPS);
        steps += tried + branch.steps;
    }
    let ended = branch.steps < MOST_STEPS && branch.fillings.complete;
    let start =
        branch.start.take().filter(|(cost, _)| branch.best.as_ref().is_none_or(|(best, _)| cost < best));
    let Some((cost, picked)) = start.or(branch.best.take()) else {
        return Err(NotFound { proven: complete && ended, steps });
    };
    let proven = complete && (ended || branch.at_least(branch.rest[0]) >= cost);
    let mut found: Vec<(usize, Choice)> =
        guests.iter().zip(picked).map(|((i, choices), pick)| (*i, choices[pick].clone())).collect();
    found.sort_by_key(|(i, _)| *i);
    let mut guests: Vec<(Choice, Vec<Placed>)> = found.into_iter().map(|(_, c)| (c, Vec::new())).collect();
    for node in 0..room.nodes.len() {
        let part = |(guest, (choice, _)): (usize, &(Choice, _))| {
            choice.parts.iter().find(|(n, _)| *n == node).map(|(_, part)| (guest, *part))
        };
        let parts: Vec<(usize, Part)> = guests.iter().enumerate().filter_map(part).collect();
        for (guest, placed) in placed(room, node, &parts) {
            guests[guest].1.push(placed);
        }
    }
    Ok(Found { guests, cost, proven })
}

/// No placement was found.
pub struct NotFound {
    /// Whether there is none.
    pub proven: bool,
    /// Placements of a guest that were tried.
    pub steps: u64,
}

/// What nodes cost with parts in them, remembered.
struct Fillings<'a> {
    room: &'a Room,
    /// Nodes with the same number here have the same cores.
    kinds: Vec<usize>,
    known: HashMap<(usize, Vec<Part>), Option<Filled>>,
    complete: bool,
}

impl<'a> Fillings<'a> {
    fn new(room: &'a Room) -> Fillings<'a> {
        let of = |i: usize| {
            let mut caches: Vec<Vec<_>> =
                room.nodes[i].caches.iter().map(|l3| l3.cores.iter().map(fill::kind).collect()).collect();
            caches.iter_mut().for_each(|c: &mut Vec<_>| c.sort_unstable());
            caches.sort();
            caches
        };
        let all: Vec<_> = (0..room.nodes.len()).map(of).collect();
        let kinds = all.iter().map(|c| all.iter().position(|d| c == d).expect("c is there")).collect();
        Fillings { room, kinds, known: HashMap::new(), complete: true }
    }

    /// What a node costs with these parts, in descending order; `None` if they do not fit.
    fn cost(&mut self, node: usize, parts: &[Part]) -> Option<Filled> {
        let key = (self.kinds[node], parts.to_vec());
        if let Some(known) = self.known.get(&key) {
            return *known;
        }
        let (filling, complete) = fill(&self.room.nodes[node].caches, parts, self.room.threads);
        self.complete &= complete;
        let cost = filling.map(|f| f.cost);
        self.known.insert(key, cost);
        cost
    }

    /// The choices that fit into an empty host, with what they cost there, the cheapest first.
    fn priced(&mut self, choices: &[Choice]) -> Vec<Choice> {
        let mut priced: Vec<Choice> = choices.iter().filter_map(|c| self.price(c.clone())).collect();
        priced.sort_by_key(|c| (c.cost, nodes(c)));
        priced
    }

    fn price(&mut self, mut choice: Choice) -> Option<Choice> {
        let mut memory = Demand::new(self.room);
        for (node, part) in &choice.parts {
            let filled = self.cost(*node, std::slice::from_ref(part))?;
            choice.cost = choice.cost + of_cores(filled);
            memory.add(self.room.nodes[*node].home, &choice);
        }
        choice.cost.reserved_kib = memory.reserved_kib(self.room)?;
        Some(choice)
    }
}

fn nodes(choice: &Choice) -> Vec<usize> {
    choice.parts.iter().map(|(n, _)| *n).collect()
}

fn of_cores([caches, siblings, shared]: Filled) -> Cost {
    Cost { caches, siblings, shared, ..Cost::default() }
}

/// The search.
struct Branch<'a> {
    room: &'a Room,
    fillings: Fillings<'a>,
    guests: &'a [(usize, Vec<Choice>)],
    /// Whether a guest has the choices of the guest before.
    like_before: Vec<bool>,
    /// What the guests from each on cost at least.
    rest: Vec<Cost>,
    /// Caches in all.
    caches: u64,
    /// For each node, the lower nodes that it could change places with.
    twins: Vec<Vec<usize>>,
    /// Choices so far.
    picked: Vec<usize>,
    /// Parts in each node, in descending order, and what they cost.
    parts: Vec<(Vec<Part>, Filled)>,
    /// Sum of what does not depend on other guests.
    alone: Cost,
    memory: Demand,
    best: Option<(Cost, Vec<usize>)>,
    /// A placement from elsewhere: nothing that costs more is of interest.
    start: Option<(Cost, Vec<usize>)>,
    steps: u64,
    most_steps: u64,
}

impl<'a> Branch<'a> {
    fn new(room: &'a Room, fillings: Fillings<'a>, guests: &'a [(usize, Vec<Choice>)]) -> Branch<'a> {
        let mut rest = vec![Cost::default()];
        for (_, choices) in guests.iter().rev() {
            let least = choices.first().map_or(Cost::default(), |c| c.cost);
            rest.push(*rest.last().expect("there is one") + least);
        }
        rest.reverse();
        let like_before: Vec<bool> =
            (0..guests.len()).map(|i| i > 0 && guests[i - 1].1 == guests[i].1).collect();
        let twins = twins(room, &fillings.kinds, guests, &like_before);
        Branch {
            room,
            fillings,
            guests,
            like_before,
            rest,
            caches: room.nodes.iter().map(|n| n.caches.len() as u64).sum(),
            twins,
            picked: Vec::new(),
            parts: vec![(Vec::new(), [0; 3]); room.nodes.len()],
            alone: Cost::default(),
            memory: Demand::new(room),
            best: None,
            start: None,
            steps: 0,
            most_steps: 0,
        }
    }

    /// Searches from the start, with at most this many steps.
    fn run(&mut self, most_steps: u64) {
        (self.best, self.steps, self.most_steps) = (None, 0, most_steps);
        self.place(0);
    }

    /// Places the guests from `at` on.
    fn place(&mut self, at: usize) {
        let so_far = self.cost().expect("what was placed fits");
        let Some((_, choices)) = self.guests.get(at) else {
            if self.best.as_ref().is_none_or(|(best, _)| so_far < *best) {
                self.best = Some((so_far, self.picked.clone()));
            }
            return;
        };
        let from = if self.like_before[at] { self.picked[at - 1] } else { 0 };
        for (pick, choice) in choices.iter().enumerate().skip(from) {
            if self.too_dear(so_far + choice.cost + self.rest[at + 1]) || self.steps >= self.most_steps {
                return;
            }
            if self.has_lower_twin(choice) {
                continue;
            }
            self.steps += 1;
            if let Some(before) = self.add(choice) {
                let cost = self.cost();
                if cost.is_some_and(|c| !self.too_dear(c + self.rest[at + 1])) {
                    self.picked.push(pick);
                    self.place(at + 1);
                    self.picked.pop();
                }
                self.remove(choice, before);
            }
        }
    }

    /// Whether nothing that costs at least this much is of interest.
    fn too_dear(&self, bound: Cost) -> bool {
        let bound = self.at_least(bound);
        // What costs as much as the start is of interest: the placement found first stays the same with and
        // without a start.
        self.best.as_ref().is_some_and(|(best, _)| bound >= *best)
            || self.start.as_ref().is_some_and(|(start, _)| bound > *start)
    }

    /// What a sum of guests' least costs amounts to at least, as they share the caches that there are.
    fn at_least(&self, mut bound: Cost) -> Cost {
        let shared = bound.caches.saturating_sub(self.caches);
        if bound.shared < shared {
            // More sharing than in the sum may come with fewer new pages.
            (bound.shared, bound.reserved_kib) = (shared, 0);
        }
        bound
    }

    /// Cost of what is placed; `None` if memory is short.
    fn cost(&self) -> Option<Cost> {
        let cores = self.parts.iter().fold([0; 3], |a, (_, b)| [a[0] + b[0], a[1] + b[1], a[2] + b[2]]);
        let reserved_kib = self.memory.reserved_kib(self.room)?;
        Some(Cost { reserved_kib, ..self.alone + of_cores(cores) })
    }

    /// Adds a choice; `None` if its cores do not fit. The result undoes it.
    fn add(&mut self, choice: &Choice) -> Option<Before> {
        let mut before = Vec::new();
        for (node, part) in &choice.parts {
            let mut parts = self.parts[*node].0.clone();
            parts.insert(parts.partition_point(|p| p >= part), *part);
            let cost = self.fillings.cost(*node, &parts)?;
            before.push((parts, cost));
        }
        for ((node, _), new) in choice.parts.iter().zip(&mut before) {
            std::mem::swap(&mut self.parts[*node], new);
            self.memory.add(self.room.nodes[*node].home, choice);
        }
        let alone = self.alone;
        self.alone = alone + Cost { caches: 0, siblings: 0, shared: 0, reserved_kib: 0, ..choice.cost };
        Some(Before { parts: before, alone })
    }

    fn remove(&mut self, choice: &Choice, before: Before) {
        for ((node, _), old) in choice.parts.iter().zip(before.parts) {
            self.parts[*node] = old;
            self.memory.remove(self.room.nodes[*node].home, choice);
        }
        self.alone = before.alone;
    }

    /// Whether the choice has a node, and not its lower twin that holds the same guests so far.
    fn has_lower_twin(&self, choice: &Choice) -> bool {
        let has = |c: &Choice, node: usize| c.parts.iter().any(|(n, _)| *n == node);
        let same_so_far = |a: usize, b: usize| {
            self.picked.iter().zip(self.guests).all(|(pick, (_, choices))| {
                let c = &choices[*pick];
                has(c, a) == has(c, b)
            })
        };
        let skips = |node: usize| {
            self.twins[node].iter().any(|lower| !has(choice, *lower) && same_so_far(*lower, node))
        };
        choice.parts.iter().any(|(node, _)| skips(*node))
    }
}

/// What a choice changed.
struct Before {
    parts: Vec<(Vec<Part>, Filled)>,
    alone: Cost,
}

/// The cores of the guests in a node, by their `parts` of the node.
fn placed(room: &Room, node: usize, parts: &[(usize, Part)]) -> Vec<(usize, Placed)> {
    let mut order = parts.to_vec();
    order.sort_by_key(|(guest, part)| (std::cmp::Reverse(*part), *guest));
    let sorted: Vec<Part> = order.iter().map(|(_, p)| *p).collect();
    let caches = &room.nodes[node].caches;
    let (filling, _) = fill(caches, &sorted, room.threads);
    let Filling { takes, .. } = filling.expect("the search filled this node");
    let mut left: Vec<Vec<_>> = caches.iter().map(|l3| l3.cores.clone()).collect();
    let mut take = |cache: usize, kind, n: u32| -> Vec<Vec<u32>> {
        let mut taken = Vec::new();
        for _ in 0..n {
            let place =
                left[cache].iter().position(|c| fill::kind(c) == kind).expect("the filling counted them");
            taken.push(left[cache].remove(place).cpus);
        }
        taken
    };
    let mut found = Vec::new();
    for ((guest, _), of_part) in order.iter().zip(takes) {
        let mut placed = Placed { node, caches: Vec::new(), emulator: NumberSet::default() };
        for (cache, of_cache) in of_part.iter().enumerate() {
            let mut vcpus = Vec::new();
            for (kind, (cores, extra)) in of_cache {
                vcpus.extend(take(cache, *kind, *cores));
                take(cache, *kind, *extra).iter().flatten().for_each(|cpu| {
                    placed.emulator.insert(*cpu);
                });
            }
            if !vcpus.is_empty() {
                vcpus.sort();
                placed.caches.push((cache, vcpus));
            }
        }
        found.push((*guest, placed));
    }
    found
}
