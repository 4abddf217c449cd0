// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The pages that guests wish of each host node, and whether the node has them.
//!
//! Pages come from their pool. A pool grows from the node's free memory, if the wishes allow: that of 2 MB
//! pages for any guest, that of 1 GB pages only for guests that ask for such pages, as few hosts have a free
//! GB in one piece.

use super::options::{Choice, PAGES};
use crate::room::Room;

/// Pages wished of each host node, by size as in [`PAGES`]; last, those of the largest size for guests that
/// leave the size to the plan.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Demand(Vec<(u32, [u64; 4])>);

/// What a node must do for its pages.
pub struct Growth {
    /// KiB by which its pools grow.
    pub grow: u64,
    /// KiB that are not there.
    pub short: u64,
}

impl Demand {
    pub fn new(room: &Room) -> Demand {
        Demand(room.memory.keys().map(|n| (*n, [0; 4])).collect())
    }

    fn change(&mut self, home: u32, choice: &Choice, change: impl Fn(&mut u64)) {
        let size = PAGES.iter().position(|k| *k == choice.page_kib).expect("one of the sizes");
        let (_, pages) = self.0.iter_mut().find(|(n, _)| *n == home).expect("a home has memory");
        change(&mut pages[size]);
        if size == 0 && choice.automatic {
            change(&mut pages[3]);
        }
    }

    pub fn add(&mut self, home: u32, choice: &Choice) {
        self.change(home, choice, |pages| *pages += choice.pages);
    }

    pub fn remove(&mut self, home: u32, choice: &Choice) {
        self.change(home, choice, |pages| *pages -= choice.pages);
    }

    /// KiB by which pools must grow; `None` if memory is short.
    pub fn reserved_kib(&self, room: &Room) -> Option<u64> {
        self.0
            .iter()
            .map(|(node, _)| Some(self.growth(room, *node)).filter(|g| g.short == 0).map(|g| g.grow))
            .sum()
    }

    /// What the pages on a host node need.
    pub fn growth(&self, room: &Room, home: u32) -> Growth {
        let (_, [giant, large, small, automatic]) =
            *self.0.iter().find(|(n, _)| *n == home).expect("a home has memory");
        let memory = &room.memory[&home];
        let [giant_kib, large_kib, small_kib] = PAGES;
        let missing = |pages: u64, kib| pages.saturating_sub(memory.free_pages(kib)).saturating_mul(kib);
        let (giants, larges) = (missing(giant, giant_kib), missing(large, large_kib));
        let grow = giants.saturating_add(larges);
        let mut short =
            grow.saturating_add(small.saturating_mul(small_kib)).saturating_sub(memory.free / 1024);
        if automatic > 0 || !memory.pools.contains_key(&giant_kib) {
            short = short.saturating_add(giants);
        }
        if !room.reserve_pages {
            short = short.saturating_add(grow);
        }
        Growth { grow, short }
    }
}
