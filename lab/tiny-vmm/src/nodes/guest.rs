// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest: two vCPUs, two nodes, and pages whose tables, data and first vCPU are of one node or the other
//! in every combination.

use crate::asm::STRIDE;
use crate::guest::{CODE, CODE_PAGES, Guest};
use crate::tables::{DATA, TABLE, index};
use bifold_mmu::PageSize;

/// Memory of a guest node: 3 GB, so that host tables of level 2 differ as well.
pub const NODE: u64 = 3 << 30;
/// Both nodes.
pub const GUEST_NODES: u64 = 2;
/// The guest's tables of a node, from here on in its memory.
const TABLES: u64 = 64 << 20;
/// The data of a node, from here on in its memory.
const DATA_AT: u64 = 128 << 20;
/// Leaf tables of the guest on each node.
const LEAVES: u64 = 2;
/// First addresses of the pages whose tables lie on a node: half a terabyte apart.
const VA: u64 = 0x40_0000_0000;
/// Turns that the vCPUs take in touching pages for the first time.
const ROUNDS: u64 = 3;
/// A page of data.
#[derive(Debug)]
pub struct Page {
    pub va: u64,
    pub gpa: u64,
    /// The vCPU that touches it first.
    pub first: usize,
    pub round: u64,
}

/// Pages of data: of each node, each in a 2 MB page of its own.
pub fn pages(size: PageSize) -> Vec<Page> {
    let each = if size == PageSize::Size4K { 48 } else { 12 };
    let apart = ((NODE - DATA_AT) / each) & !((2 << 20) - 1);
    let page = |n: u64| {
        let (node, i) = (n % GUEST_NODES, n / GUEST_NODES);
        // The tables' node, the data's node and the first vCPU are independent of each other.
        let (tables, first, leaf) = (n / 2 % 2, (n / 4 % 2) as usize, n / 8 % LEAVES);
        let gpa = node * NODE + DATA_AT + i * apart + ((n * 37 % 512) << 12);
        // Alone in its block of 8 entries, as KVM prefetches within a block. The first block has the tables'
        // page.
        let block = 1 + n / (8 * LEAVES) * 8 + n % 8;
        let place = (8 * block) << 12;
        Page { va: leaf_va(tables, leaf) + place, gpa, first, round: n / 16 % ROUNDS }
    };
    (0..GUEST_NODES * each).map(page).collect()
}

/// First address that a leaf table maps.
fn leaf_va(node: u64, leaf: u64) -> u64 {
    VA + (node << 39) + (leaf << 21)
}

/// The guest's tables of a node, with a page of data for each leaf table. Returns the pages' addresses.
fn place_tables(g: &mut Guest, node: u64) -> Vec<u64> {
    let mut frame = (node * NODE + TABLES) >> 12;
    let mut take = || {
        frame += 1;
        frame - 1
    };
    let (top, middle) = (take(), take());
    g.tables.place(3, top);
    g.tables.place(2, middle);
    g.tables.set(g.root, index(leaf_va(node, 0), 4), top << 12 | TABLE);
    g.tables.set(top, index(leaf_va(node, 0), 3), middle << 12 | TABLE);
    let leaves = 0..LEAVES;
    leaves
        .map(|leaf| {
            let (va, table, page) = (leaf_va(node, leaf), take(), take());
            g.tables.place(1, table);
            g.tables.set(middle, index(va, 2), table << 12 | TABLE);
            g.tables.set(table, index(va, 1), page << 12 | DATA);
            va
        })
        .collect()
}

/// The guest. The first vCPU walks all guest tables first, as the host has their pages from a thread on its
/// node.
pub fn guest(pages: &[Page]) -> Guest {
    let mut g = Guest::new("nodes", GUEST_NODES * NODE, GUEST_NODES as usize);
    let probes: Vec<u64> = (0..GUEST_NODES).flat_map(|node| place_tables(&mut g, node)).collect();
    for p in pages {
        let leaf = g.tables.find(g.root, p.va, 1).expect("placed above");
        g.tables.set(leaf, index(p.va, 1), p.gpa | DATA);
    }
    g.phase("tables");
    let code = |vcpu: usize| (0..CODE_PAGES as u64).map(move |page| (vcpu, page));
    for (vcpu, page) in (0..GUEST_NODES as usize).flat_map(code) {
        let va = CODE + ((vcpu as u64) << 21) + page * STRIDE;
        g.load(va);
    }
    probes.into_iter().for_each(|va| g.store(va));
    for (round, vcpu) in (0..ROUNDS).flat_map(|r| [(r, 0), (r, 1)]) {
        g.on(vcpu);
        g.phase("first touches");
        pages.iter().filter(|p| (p.round, p.first) == (round, vcpu)).for_each(|p| g.store(p.va));
    }
    for (n, p) in pages.iter().enumerate() {
        for vcpu in 0..GUEST_NODES as usize {
            g.on(vcpu);
            g.phase("flush");
            g.load_cr3(g.root);
            let (kind, name) = if n % 3 == 0 { (true, "store") } else { (false, "load") };
            g.phase(format!("vCPU {vcpu}, page {n}, {name}"));
            if kind { g.store(p.va) } else { g.load(p.va) }
        }
    }
    g.finish()
}

/// Whether a phase comes before all single accesses.
pub fn first_touches(name: &str) -> bool {
    !is_access(name) && name != "flush"
}

/// Whether a phase is one access with empty TLBs.
pub fn is_access(name: &str) -> bool {
    name.starts_with("vCPU")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn pages_of_data_share_nothing() {
        for size in [PageSize::Size4K, PageSize::Size2M] {
            let pages = pages(size);
            let mut vas: Vec<u64> = pages.iter().map(|p| p.va >> 15).collect();
            let mut regions: Vec<u64> = pages.iter().map(|p| p.gpa >> 21).collect();
            vas.sort_unstable();
            regions.sort_unstable();
            assert!(vas.windows(2).all(|w| w[0] < w[1]), "two pages in a block of 8 entries");
            assert!(regions.windows(2).all(|w| w[0] < w[1]), "two pages in one of 2 MB");
            for (tables, node, first) in [(0, 0, 1), (1, 0, 0), (0, 1, 1), (1, 1, 0)] {
                let is = |p: &&Page| (p.va >> 39 & 1, p.gpa / NODE, p.first) == (tables, node, first);
                assert!(pages.iter().any(|p| is(&p)), "no page of {tables} {node} {first}");
            }
        }
    }
}
