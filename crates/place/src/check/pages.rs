// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Asks the kernel where pages of a process are, page by page.
//!
//! Up to [`MOST_PAGES`] pages of a guest, each one is asked for. Of more, every run of k neighbours has one,
//! chosen by a fixed pseudo-random rule: a fixed distance would see one node only where pages alternate
//! between nodes.

use super::seen::Pages;
use crate::os::{Where, nodes_of_pages};
use bifold_host::placement::Memory;
use std::io;

/// Most pages of a guest that are looked at: 4 GB in pages of 4 KB.
pub const MOST_PAGES: u64 = 1 << 20;
/// Pages in one system call.
const BATCH: usize = 4096;

/// The pages of a guest's memory. `progress` gets the pages done and all.
///
/// # Errors
/// If the process has ended, or this user may not look.
pub fn look(pid: u32, memory: &[&Memory], most: u64, progress: &dyn Fn(u64, u64)) -> io::Result<Vec<Pages>> {
    let all: u64 = memory.iter().map(|m| m.bytes / m.page).sum();
    let every = all.div_ceil(most.max(1)).max(1);
    let mut done = 0;
    let mut found = Vec::new();
    for piece in memory {
        let mut pages = Pages { all: piece.bytes / piece.page, ..Pages::default() };
        let mut addresses = Vec::with_capacity(BATCH);
        let mut chosen = chosen(pages.all, every).peekable();
        while let Some(page) = chosen.next() {
            addresses.push(piece.start + page * piece.page);
            if addresses.len() == BATCH || chosen.peek().is_none() {
                count(pid, &addresses, &mut pages)?;
                addresses.clear();
                progress((done + pages.looked * every).min(all), all);
            }
        }
        done += pages.all;
        found.push(pages);
    }
    Ok(found)
}

/// One page of each run of `every` pages.
fn chosen(pages: u64, every: u64) -> impl Iterator<Item = u64> {
    (0..pages.div_ceil(every)).map(move |run| {
        let first = run * every;
        first + mixed(run) % every.min(pages - first)
    })
}

/// The finalizer of SplitMix64 (Steele, Lea, Flood: Fast splittable pseudorandom number generators).
fn mixed(n: u64) -> u64 {
    let mut z = n.wrapping_add(0x9e37_79b9_7f4a_7c15);
    z = (z ^ (z >> 30)).wrapping_mul(0xbf58_476d_1ce4_e5b9);
    z = (z ^ (z >> 27)).wrapping_mul(0x94d0_49bb_1331_11eb);
    z ^ (z >> 31)
}

fn count(pid: u32, addresses: &[u64], pages: &mut Pages) -> io::Result<()> {
    for place in nodes_of_pages(pid, addresses)? {
        pages.looked += 1;
        if let Where::Node(node) = place {
            *pages.nodes.entry(node).or_default() += 1;
        }
    }
    Ok(())
}

/// What `numa_maps` tells instead, where the kernel lacks move_pages(2).
pub fn by_numa_maps(piece: &Memory) -> Pages {
    let nodes = piece.nodes.iter().map(|(node, bytes)| (*node, bytes / piece.page)).collect();
    let all = piece.bytes / piece.page;
    Pages { looked: all, all, nodes }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;
    use std::cell::Cell;

    #[test]
    fn a_sample_sees_both_nodes_of_alternating_pages() {
        for (every, nodes) in [(2, 2), (4, 2), (6, 3), (64, 4)] {
            let mut seen = vec![0_u64; nodes];
            chosen(1 << 16, every).for_each(|page| seen[page as usize % nodes] += 1);
            let fair = (1 << 16) / every / nodes as u64;
            assert!(seen.iter().all(|n| n.abs_diff(fair) < fair / 4), "{every}: {seen:?}");
        }
    }

    #[test]
    fn this_processs_pages_are_found_and_counted() {
        const PAGES: u64 = 10_000;
        let held = vec![1_u8; (PAGES as usize + 1) * 4096];
        let start = (held.as_ptr() as u64).next_multiple_of(4096);
        let piece = Memory { start, bytes: PAGES * 4096, page: 4096, ..Memory::default() };
        let calls = Cell::new(0);
        let progress = |done, all| {
            assert!(done <= all, "{done} {all}");
            calls.set(calls.get() + 1);
        };
        let whole = &look(std::process::id(), &[&piece], MOST_PAGES, &progress).unwrap()[0];
        assert_eq!((whole.looked, whole.present(), calls.get()), (PAGES, PAGES, 3));
        let sample = &look(std::process::id(), &[&piece], 100, &progress).unwrap()[0];
        assert_eq!((sample.looked, sample.all, sample.is_sample()), (100, PAGES, true));
    }

    proptest! {
        #[test]
        fn each_run_has_one_page(pages in 0_u64..5000, every in 1_u64..70) {
            let found: Vec<u64> = chosen(pages, every).collect();
            prop_assert_eq!(found.len() as u64, pages.div_ceil(every));
            prop_assert!(found.iter().enumerate().all(|(run, p)| p / every == run as u64 && *p < pages));
        }
    }
}
