// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A pointer chase: every load's address comes from the load before it, in a
//! random cyclic order over the 2^24 cache lines of 1 GiB. Around the loads a
//! small program runs: code in two pages and some accesses to its stack. The
//! guest maps all of it with 4 KB pages and has written every page before.
//!
//! The order is a full-period congruential sequence through a bijection of 24
//! bits, so that it needs no table.

use super::guest::{CHUNK, Memory, USER_DATA, USER_TABLE, USER_TEXT};
use crate::event::{Event, head, kind};

const DATA: u64 = 0x7f00_0000_0000;
const DATA_PAGES: u64 = 1 << 18;
const CODE: u64 = 0x40_1000;
const STACK: u64 = 0x7fff_ffff_d000;
/// Frames of the region, and 16 MiB for page tables, code and stack.
pub const FRAMES: u64 = DATA_PAGES + 4096;

/// Loads per call of the function in the second code page.
const PER_CALL: u64 = 64;
/// Instructions per load: the load, a count, a compare, a branch.
const INSNS_PER_LOAD: u64 = 4;
const INSNS_PER_CALL: u64 = 20;

const LINES: u32 = 24;

/// A bijection of 24 bits: odd multiplications and right shifts are.
fn mix(x: u64) -> u64 {
    let mask = (1 << LINES) - 1;
    let x = ((x ^ (x >> 13)) * 0x0095_1dd5) & mask;
    let x = ((x ^ (x >> 11)) * 0x00c2_b2af) & mask;
    x ^ (x >> 12)
}

pub fn run<E>(n: u64, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    start(push)?;
    let mut words = Vec::with_capacity(CHUNK + 16);
    let mut state = 1u64;
    let mut i = 0;
    while i < n {
        let now = (n - i).min(PER_CALL);
        for _ in 0..now {
            // Hull and Dobell: full period, since 4 divides a - 1 and c is odd.
            state = (state * 0x5_deed + 0xb) & ((1 << LINES) - 1);
            words.push(head(kind::LOAD_DEPENDENT, DATA + (mix(state) << 6)));
        }
        // Progress is kept: a call that pushes its return address and one register.
        words.push(head(kind::STORE_OTHER, STACK + 0xf00));
        words.push(head(kind::FETCH, CODE + 0x1000));
        words.push(head(kind::STORE_OTHER, STACK + 0xef8));
        words.push(head(kind::STORE, STACK + 0xfe0 - (i / PER_CALL % 4) * 0x1000));
        words.push(head(kind::LOAD, STACK + 0xef8));
        words.push(head(kind::LOAD, STACK + 0xf00));
        words.push(head(kind::INSNS, now * INSNS_PER_LOAD + INSNS_PER_CALL));
        words.push(head(kind::FETCH, CODE));
        if words.len() >= CHUNK {
            push(&words)?;
            words.clear();
        }
        i += now;
    }
    push(&words)
}

fn start<E>(push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    let mut memory = Memory::new(FRAMES, 16);
    let root = memory.new_table(4);
    for page in 0..2 {
        let gfn = memory.take();
        memory.map(root, CODE + (page << 12), 1, gfn << 12 | USER_TEXT, USER_TABLE);
    }
    for page in 0..4 {
        let gfn = memory.take();
        memory.map(root, STACK - (page << 12), 1, gfn << 12 | USER_DATA, USER_TABLE);
    }
    for page in 0..DATA_PAGES {
        let gfn = FRAMES - DATA_PAGES + page;
        memory.map(root, DATA + (page << 12), 1, gfn << 12 | USER_DATA, USER_TABLE);
    }
    let mut words = Vec::new();
    memory.describe(root, 0..512, &mut words, push)?;
    Event::Cr3(root << 12).encode(&mut words);
    Event::Fetch(CODE).encode(&mut words);
    push(&words)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_order_visits_every_line_once_before_it_repeats() {
        let (mut seen, mut state) = (vec![false; 1 << LINES], 1u64);
        for _ in 0..1 << LINES {
            state = (state * 0x5_deed + 0xb) & ((1 << LINES) - 1);
            assert!(!std::mem::replace(&mut seen[mix(state) as usize], true));
        }
    }

    #[test]
    fn neighbouring_loads_lie_in_pages_far_apart() {
        let (mut near, mut state, mut before) = (0, 1u64, 0u64);
        for _ in 0..100_000 {
            state = (state * 0x5_deed + 0xb) & ((1 << LINES) - 1);
            let page = mix(state) >> 6;
            near += u64::from(page.abs_diff(before) < 512);
            before = page;
        }
        // Uniform over 2^18 pages: 0.4 % of pairs are within 512.
        assert!((200..700).contains(&near), "{near}");
    }
}
