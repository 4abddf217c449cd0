// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Trace T and its parts: loads alone, one instruction each, over two regions
//! of 1 GiB that the guest maps with 4 KB pages. No fetches, so that the counts
//! of data-TLB misses are exactly those of other simulators.

use super::guest::{CHUNK, Memory, USER_DATA, USER_TABLE};
use super::random::SplitMix64;
use crate::event::{Event, head, kind};

const RANDOM: u64 = 0x1_0000_0000;
const SEQUENTIAL: u64 = 0x2_0000_0000;
const REGION_PAGES: u64 = 1 << 18;
const SEED: u64 = 42;
/// Frames of both regions, and 16 MiB for page tables.
pub const FRAMES: u64 = 2 * REGION_PAGES + 4096;

#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pattern {
    Both,
    Sequential,
    Random4M,
}

fn load(va: u64) -> u64 {
    head(kind::LOAD, va)
}

fn sequential(i: u64) -> u64 {
    load(SEQUENTIAL + ((i * 8) & 0x3fff_ffff))
}

pub fn run<E>(pattern: Pattern, n: u64, push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    start(push)?;
    let mut random = SplitMix64(SEED);
    // The last word is the number of instructions.
    let mut words = vec![0; CHUNK + 1];
    let mut i = 0;
    while i < n {
        let now = (n - i).min(CHUNK as u64) as usize;
        let loads = &mut words[..now];
        match pattern {
            Pattern::Both => {
                // `i` is even here, CHUNK being so.
                for (half, pair) in loads.chunks_mut(2).enumerate() {
                    pair[0] = load(RANDOM + ((random.next() >> 34) & !7));
                    if let Some(odd) = pair.get_mut(1) {
                        *odd = sequential(i / 2 + half as u64);
                    }
                }
            }
            Pattern::Sequential => {
                for (j, w) in loads.iter_mut().enumerate() {
                    *w = sequential(i + j as u64);
                }
            }
            Pattern::Random4M => {
                for w in loads {
                    *w = load(RANDOM + ((random.next() >> 42) & !7));
                }
            }
        }
        words[now] = head(kind::INSNS, now as u64);
        push(&words[..=now])?;
        i += now as u64;
    }
    Ok(())
}

/// Hands on the page tables of both regions, then the load of CR3.
fn start<E>(push: &mut dyn FnMut(&[u64]) -> Result<(), E>) -> Result<(), E> {
    let mut memory = Memory::new(FRAMES, 1);
    let root = memory.new_table(4);
    // Tables first, so that the data lies in 2 * 2^18 frames after them as a fresh guest would give them out.
    let first = FRAMES - 2 * REGION_PAGES;
    for (region, base) in [RANDOM, SEQUENTIAL].into_iter().enumerate() {
        for page in 0..REGION_PAGES {
            let gfn = first + region as u64 * REGION_PAGES + page;
            memory.map(root, base + (page << 12), 1, gfn << 12 | USER_DATA, USER_TABLE);
        }
    }
    let mut words = Vec::new();
    memory.describe(root, 0..512, &mut words, push)?;
    Event::Cr3(root << 12).encode(&mut words);
    push(&words)
}
