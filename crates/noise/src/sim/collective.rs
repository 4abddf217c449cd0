// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Collective operations, as messages between ranks.
//!
//! | operation | messages | noiseless time, with `m` = 2o + L + (bytes-1)G and M = max(o, g) + (bytes-1)G |
//! |---|---|---|
//! | dissemination | in round k, rank r sends to r + 2^k (Hensgen et al. 1988) | ceil(log2 N) m |
//! | recursive doubling | in round k, rank r exchanges with r xor 2^k | log2(N) m; if N is no power of 2, at most floor(log2 N) m + 2 m |
//! | reduce, broadcast | binomial tree to and from rank 0 | largest depth of the tree: m each; N = 2^k: k m |
//! | tree | reduce and then broadcast: a barrier | both |
//! | ring | rank r passes on to r + 1 what r - 1 sent | (N-1) m |
//! | linear | all send to rank 0, which then sends to all (one byte) | 4o + 2L + 2(N-2) max(o, g) |
//! | ideal | all wait for the last one, at no cost | 0 |
//!
//! The formulas of the table hold for M at most m; they are tests. Recursive doubling with N between two
//! powers of two follows MPICH (Thakur et al. 2005): of the first 2(N - 2^k) ranks, each even one hands its
//! part to the next rank, which takes part for both and returns the result.

use super::engine::{Ranks, Sender};
use schemars::JsonSchema;
use serde::Serialize;

/// A collective operation.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash, Serialize, JsonSchema)]
#[serde(rename_all = "kebab-case")]
#[allow(missing_docs)] // the table above says it
pub enum Collective {
    Dissemination,
    RecursiveDoubling,
    Reduce,
    Broadcast,
    Tree,
    Ring,
    Linear,
    Ideal,
}

impl Collective {
    /// All operations.
    pub const ALL: [Collective; 8] = [
        Collective::Dissemination,
        Collective::RecursiveDoubling,
        Collective::Reduce,
        Collective::Broadcast,
        Collective::Tree,
        Collective::Ring,
        Collective::Linear,
        Collective::Ideal,
    ];

    /// The name of the operation.
    pub fn name(self) -> &'static str {
        match self {
            Collective::Dissemination => "dissemination",
            Collective::RecursiveDoubling => "recursive-doubling",
            Collective::Reduce => "reduce",
            Collective::Broadcast => "broadcast",
            Collective::Tree => "tree",
            Collective::Ring => "ring",
            Collective::Linear => "linear",
            Collective::Ideal => "ideal",
        }
    }

    /// All ranks take part in the operation. A rank alone has nothing to do.
    pub fn run(self, ranks: &mut Ranks) {
        if ranks.len() < 2 {
            return;
        }
        match self {
            Collective::Dissemination => dissemination(ranks),
            Collective::RecursiveDoubling => recursive_doubling(ranks),
            Collective::Reduce => reduce(ranks),
            Collective::Broadcast => broadcast(ranks),
            Collective::Tree => {
                reduce(ranks);
                broadcast(ranks);
            }
            Collective::Ring => (1..ranks.len()).for_each(|r| ranks.message(r - 1, r)),
            Collective::Linear => linear(ranks),
            Collective::Ideal => ranks.wait_for_all(),
        }
    }
}

fn dissemination(ranks: &mut Ranks) {
    let n = ranks.len();
    let mut distance = 1;
    while distance < n {
        ranks.exchange(Sender::Below(distance));
        distance *= 2;
    }
}

fn recursive_doubling(ranks: &mut Ranks) {
    let n = ranks.len();
    let power = 1 << n.ilog2();
    let folded = n - power;
    for r in 0..folded {
        ranks.message(2 * r, 2 * r + 1);
    }
    if folded == 0 {
        let mut distance = 1;
        while distance < n {
            ranks.exchange(Sender::Flipped(distance));
            distance *= 2;
        }
        return;
    }
    // The ranks that take part, in order.
    let member = |i: usize| if i < folded { 2 * i + 1 } else { i + folded };
    let mut arrivals = vec![0.0; power];
    let mut distance = 1;
    while distance < power {
        for (i, arrival) in arrivals.iter_mut().enumerate() {
            *arrival = ranks.send(member(i)) + ranks.wire();
        }
        for i in 0..power {
            ranks.receive(member(i), arrivals[i ^ distance]);
        }
        distance *= 2;
    }
    for r in 0..folded {
        ranks.message(2 * r + 1, 2 * r);
    }
}

/// Rank r sends to its parent, r without the highest bit, when all its children have sent: the nearest ones
/// last.
fn reduce(ranks: &mut Ranks) {
    for distance in (0..=(ranks.len() - 1).ilog2()).rev().map(|k| 1 << k) {
        for r in distance..ranks.len().min(2 * distance) {
            ranks.message(r, r - distance);
        }
    }
}

fn broadcast(ranks: &mut Ranks) {
    for distance in (0..=(ranks.len() - 1).ilog2()).map(|k| 1 << k) {
        for r in distance..ranks.len().min(2 * distance) {
            ranks.message(r - distance, r);
        }
    }
}

/// Rank 0 takes the messages in the order of their arrival.
fn linear(ranks: &mut Ranks) {
    let mut arrivals: Vec<f64> = (1..ranks.len()).map(|r| ranks.send(r) + ranks.wire()).collect();
    arrivals.sort_unstable_by(f64::total_cmp);
    for arrival in arrivals {
        ranks.receive(0, arrival);
    }
    for r in 1..ranks.len() {
        ranks.message(0, r);
    }
}
