// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes that could change places.

use super::fill::Part;
use super::options::{self, Choice};
use crate::room::{Memory, Room, RoomNode};

/// For each node, the lower nodes that it could change places with: swapping the two changes nothing for any
/// guest.
pub fn twins(
    room: &Room,
    kinds: &[usize],
    guests: &[(usize, Vec<Choice>)],
    like_before: &[bool],
) -> Vec<Vec<usize>> {
    let most_of = |(_, choices): &(usize, Vec<Choice>)| choices.iter().map(|c| c.pages * c.page_kib).max();
    let most: u64 = guests.iter().filter_map(most_of).sum::<u64>().saturating_mul(1024);
    let alike = |a: usize, b: usize| {
        let (x, y) = (&room.nodes[a], &room.nodes[b]);
        let mut others = (0..room.nodes.len()).filter(|i| *i != a && *i != b);
        let mut different = guests.iter().zip(like_before).filter(|(_, like)| !**like).map(|(g, _)| g);
        kinds[a] == kinds[b]
            && owns_memory(room, x)
            && owns_memory(room, y)
            && like_memory(&room.memory[&x.home], &room.memory[&y.home], most)
            && x.distances[b] == y.distances[a]
            && others.all(|i| {
                let other = &room.nodes[i].distances;
                x.distances[i] == y.distances[i] && other[a] == other[b]
            })
            && different.all(|(_, choices)| choices.len() <= MOST_SWAPPED && swaps(choices, a, b))
    };
    (0..room.nodes.len()).map(|b| (0..b).filter(|a| alike(*a, b)).collect()).collect()
}

/// Most choices of a guest that are compared to find twins.
const MOST_SWAPPED: usize = 2000;

/// Whether a node has memory that no other node uses.
fn owns_memory(room: &Room, node: &RoomNode) -> bool {
    node.home == node.number && room.nodes.iter().filter(|n| n.home == node.home).count() == 1
}

/// Whether guests cannot tell two nodes' memory apart: equal pools, and as much free, or enough for all
/// guests.
fn like_memory(a: &Memory, b: &Memory, most: u64) -> bool {
    options::PAGES.iter().all(|kib| a.free_pages(*kib) == b.free_pages(*kib))
        && (a.free == b.free || a.free.min(b.free) >= most)
}

/// Whether swapping two nodes turns a guest's choices into each other, at the same cost.
fn swaps(choices: &[Choice], a: usize, b: usize) -> bool {
    let swapped = |n: usize| {
        if n == a {
            b
        } else if n == b {
            a
        } else {
            n
        }
    };
    // What a choice is but for the order of its nodes.
    let form = |c: &Choice, swap: bool| {
        let mut parts: Vec<(usize, Part)> =
            c.parts.iter().map(|(n, p)| (if swap { swapped(*n) } else { *n }, *p)).collect();
        parts.sort_unstable();
        (c.page_kib, parts, c.cost)
    };
    let mut plain: Vec<_> = choices.iter().map(|c| form(c, false)).collect();
    let mut turned: Vec<_> = choices.iter().map(|c| form(c, true)).collect();
    plain.sort();
    turned.sort();
    plain == turned
}
