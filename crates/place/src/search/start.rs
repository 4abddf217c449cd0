// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A first placement of guests that fill a host: the bound of the search that follows, and the plan if that
//! search finds no better one.
//!
//! All guests are somewhere from the beginning, and some nodes have too much. A move takes a guest to another
//! choice, or two guests to each other's nodes. A move is taken if the excess does not rise by more than a
//! threshold, which falls to nothing within a round (threshold accepting: Dueck and Scheuer, Journal of
//! Computational Physics 90, 1990). Each round begins with another placement. Random numbers have a fixed
//! seed, so equal wishes have equal plans. At the end, moves that lower the cost are taken until there is
//! none.

use super::demand::Demand;
use super::options::Choice;
use super::{Fillings, nodes, of_cores};
use crate::cost::Cost;
use crate::room::Room;
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Rounds, and moves of a round.
const ROUNDS: u64 = 24;
const MOVES: u64 = 60_000;
/// Placements whose cost is looked at in the end.
const MOST_LOOKS: u64 = 5000;
/// Excess of a node that lacks all that is wished of its cores, or of its memory.
const WHOLE: u64 = 1 << 20;
/// Threshold at the beginning of a round.
const THRESHOLD: u64 = WHOLE / 8;

type Guests = [(usize, Vec<Choice>)];

/// A placement with its cost, if one is found, and the number of placements of a guest that were tried.
pub fn start(room: &Room, fillings: &mut Fillings, guests: &Guests) -> (Option<(Cost, Vec<usize>)>, u64) {
    let mut rng = Pcg64::seed_from_u64(0);
    let mut tried = 0;
    for _ in 0..ROUNDS {
        let mut load = Load::new(room, guests, &mut rng);
        load.round(&mut rng, &mut tried);
        if load.excess == 0 {
            // Whether cores fit together is known for sure only now: the caches play a part where the search
            // of a node ends early.
            if let Some(cost) = total(room, fillings, guests, &load.picked) {
                let (looks, found) = improved(room, fillings, guests, (cost, load.picked));
                return (Some(found), tried + looks);
            }
        }
    }
    (None, tried)
}

/// Where guests are, with the excess of each node.
struct Load<'a> {
    room: &'a Room,
    guests: &'a Guests,
    picked: Vec<usize>,
    /// Cores that guests have, and those of them that must be full, by node of the room.
    wished: Vec<[u64; 2]>,
    /// Cores, and full cores, by node of the room.
    cores: Vec<[u64; 2]>,
    memory: Demand,
    excess: u64,
}

impl<'a> Load<'a> {
    /// Guests at random places, the cheaper the likelier.
    fn new(room: &'a Room, guests: &'a Guests, rng: &mut Pcg64) -> Load<'a> {
        let cores = |n: &crate::room::RoomNode| {
            let all = || n.caches.iter().flat_map(|l3| &l3.cores);
            [all().count() as u64, all().filter(|c| c.cpus.len() as u32 == room.threads).count() as u64]
        };
        let mut load = Load {
            room,
            guests,
            picked: vec![0; guests.len()],
            wished: vec![[0; 2]; room.nodes.len()],
            cores: room.nodes.iter().map(cores).collect(),
            memory: Demand::new(room),
            excess: 0,
        };
        for guest in 0..guests.len() {
            load.picked[guest] = load.any_choice(guest, rng);
            load.change(guest, true);
        }
        load
    }

    fn any_choice(&self, guest: usize, rng: &mut Pcg64) -> usize {
        let all = self.guests[guest].1.len();
        let most = rng.random_range(0..all);
        rng.random_range(0..=most)
    }

    fn round(&mut self, rng: &mut Pcg64, tried: &mut u64) {
        for step in 0..MOVES {
            if self.excess == 0 {
                return;
            }
            *tried += 1;
            let threshold = THRESHOLD * (MOVES - step) / MOVES;
            let most = self.excess + rng.random_range(0..=threshold);
            let guest = rng.random_range(0..self.guests.len());
            let other = rng.random_range(0..self.guests.len());
            if step % 2 == 0 || other == guest {
                let pick = self.any_choice(guest, rng);
                self.take(&[(guest, pick)], most);
            } else if let (Some(a), Some(b)) =
                (self.in_place_of(guest, other), self.in_place_of(other, guest))
            {
                self.take(&[(guest, a), (other, b)], most);
            }
        }
    }

    /// The choice of a guest that has the nodes of another guest.
    fn in_place_of(&self, guest: usize, other: usize) -> Option<usize> {
        in_place_of(self.guests, &self.picked, guest, other)
    }

    /// Moves guests, unless the excess is above `most` then.
    fn take(&mut self, moves: &[(usize, usize)], most: u64) {
        let before: Vec<(usize, usize)> =
            moves.iter().map(|(guest, _)| (*guest, self.picked[*guest])).collect();
        self.put(moves);
        if self.excess > most {
            self.put(&before);
        }
    }

    fn put(&mut self, moves: &[(usize, usize)]) {
        for (guest, pick) in moves {
            self.change(*guest, false);
            self.picked[*guest] = *pick;
            self.change(*guest, true);
        }
    }

    /// Adds a guest to its nodes, or removes it.
    fn change(&mut self, guest: usize, add: bool) {
        let guests = self.guests;
        let choice = &guests[guest].1[self.picked[guest]];
        for (node, part) in &choice.parts {
            let home = self.room.nodes[*node].home;
            self.excess -= self.of_cores(*node) + self.of_memory(home);
            let full = if part.full { part.cores } else { 0 };
            for (wished, cores) in self.wished[*node].iter_mut().zip([part.cores + part.extra, full]) {
                *wished = if add { *wished + u64::from(cores) } else { *wished - u64::from(cores) };
            }
            if add {
                self.memory.add(home, choice);
            } else {
                self.memory.remove(home, choice);
            }
            self.excess += self.of_cores(*node) + self.of_memory(home);
        }
    }

    fn of_cores(&self, node: usize) -> u64 {
        let over = |i: usize| self.wished[node][i].saturating_sub(self.cores[node][i]);
        over(0).max(over(1)) * WHOLE / self.cores[node][0].max(1)
    }

    fn of_memory(&self, home: u32) -> u64 {
        let short = u128::from(self.memory.growth(self.room, home).short);
        let memory = &self.room.memory[&home];
        let pools: u64 = memory.pools.iter().map(|(kib, pool)| kib.saturating_mul(pool.free)).sum();
        let all = u128::from((memory.free / 1024).saturating_add(pools).max(1));
        // Any shortage counts, and none so much that a sum of them overflows.
        (short * u128::from(WHOLE)).div_ceil(all).min(1 << 40) as u64
    }
}

fn in_place_of(guests: &Guests, picked: &[usize], guest: usize, other: usize) -> Option<usize> {
    let own = &guests[guest].1;
    let there = &guests[other].1[picked[other]];
    let page = own[picked[guest]].page_kib;
    own.iter().position(|c| c.page_kib == page && nodes(c) == nodes(there))
}

/// What a placement costs; `None` if it does not fit.
fn total(room: &Room, fillings: &mut Fillings, guests: &Guests, picked: &[usize]) -> Option<Cost> {
    let mut parts = vec![Vec::new(); room.nodes.len()];
    let mut memory = Demand::new(room);
    let mut cost = Cost::default();
    for ((_, choices), pick) in guests.iter().zip(picked) {
        let choice = &choices[*pick];
        for (node, part) in &choice.parts {
            parts[*node].push(*part);
            memory.add(room.nodes[*node].home, choice);
        }
        cost = cost + Cost { caches: 0, siblings: 0, shared: 0, reserved_kib: 0, ..choice.cost };
    }
    let reserved_kib = memory.reserved_kib(room)?;
    for (node, parts) in parts.iter_mut().enumerate() {
        parts.sort_unstable_by(|a, b| b.cmp(a));
        cost = cost + of_cores(fillings.cost(node, parts)?);
    }
    Some(Cost { reserved_kib, ..cost })
}

/// A placement that no move of a guest and no exchange of two makes cheaper, unless the looks end before.
fn improved(
    room: &Room,
    fillings: &mut Fillings,
    guests: &Guests,
    (mut cost, mut picked): (Cost, Vec<usize>),
) -> (u64, (Cost, Vec<usize>)) {
    let mut looks = 0;
    let mut look = |picked: &mut Vec<usize>, cost: &mut Cost, moves: &[(usize, usize)]| {
        if looks == MOST_LOOKS {
            return false;
        }
        looks += 1;
        let before = picked.clone();
        moves.iter().for_each(|(guest, pick)| picked[*guest] = *pick);
        let better = total(room, fillings, guests, picked).filter(|c| c < cost);
        match better {
            Some(lower) => *cost = lower,
            None => *picked = before,
        }
        better.is_some()
    };
    loop {
        let mut better = false;
        for guest in 0..guests.len() {
            for pick in 0..guests[guest].1.len() {
                better |= pick != picked[guest] && look(&mut picked, &mut cost, &[(guest, pick)]);
            }
            for other in 0..guest {
                let (a, b) =
                    (in_place_of(guests, &picked, guest, other), in_place_of(guests, &picked, other, guest));
                if let (Some(a), Some(b)) = (a, b) {
                    better |= a != picked[guest] && look(&mut picked, &mut cost, &[(guest, a), (other, b)]);
                }
            }
        }
        if !better {
            return (looks, (cost, picked));
        }
    }
}
