// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that change roots, global flushes, many tables, several vCPUs.

use super::{MEMORY, VA, page};
use crate::guest::{CR4, CR4_PGE, Guest};
use crate::tables::DATA;

/// A guest with `n` roots, each with four pages of its own at [`VA`].
fn with_roots(name: &'static str, n: usize, vcpus: usize) -> (Guest, Vec<u64>) {
    let mut g = Guest::new(name, MEMORY, vcpus);
    let mut roots = vec![g.root];
    (1..n).for_each(|_| roots.push(g.new_root()));
    for &root in &roots {
        g.map(root, VA, 4, DATA);
    }
    (g, roots)
}

fn visit(g: &mut Guest, root: u64) {
    g.load_cr3(root);
    (0..4).for_each(|n| g.store(page(n)));
}

pub fn cr3_switch(name: &'static str) -> Guest {
    let (mut g, roots) = with_roots(name, 6, 1);
    for (n, &root) in roots.iter().enumerate() {
        g.phase(format!("first visit of root {n}"));
        visit(&mut g, root);
    }
    g.phase("the same root again");
    g.closed([0, 0, 1, 1]);
    visit(&mut g, roots[5]);
    for n in 2..=6 {
        g.phase(format!("among {n}, first round"));
        roots[..n].iter().for_each(|&r| visit(&mut g, r));
        g.phase(format!("among {n}, two more rounds"));
        // A root that is not cached is found in the hash: no further exits.
        g.closed([0, 0, 2 * n as u64, 2 * n as u64]);
        (0..2).for_each(|_| roots[..n].iter().for_each(|&r| visit(&mut g, r)));
    }
    g.finish()
}

pub fn cr3_read(name: &'static str) -> Guest {
    let (mut g, roots) = with_roots(name, 3, 1);
    g.phase("read 4 times");
    (0..4).for_each(|_| g.read_cr3());
    g.phase("load and read each root");
    for &root in &roots {
        g.load_cr3(root);
        g.read_cr3();
    }
    g.phase("load the same, read");
    g.closed([0, 0, 2, 2]);
    g.load_cr3(roots[2]);
    g.read_cr3();
    g.finish()
}

pub fn cr4_pge(name: &'static str) -> Guest {
    let (mut g, roots) = with_roots(name, 3, 1);
    let leaf: Vec<u64> = roots.iter().map(|&r| g.tables.find(r, VA, 1).expect("mapped")).collect();
    let alias: Vec<u64> = leaf.iter().map(|&t| g.expose(t)).collect();
    let toggle = |g: &mut Guest| {
        g.load_cr4(CR4 & !CR4_PGE);
        g.load_cr4(CR4);
    };
    g.phase("visit all");
    roots.iter().rev().for_each(|&r| visit(&mut g, r));
    g.phase("toggle twice");
    g.closed([4; 4]);
    (0..2).for_each(|_| toggle(&mut g));
    g.phase("write the same value");
    g.load_cr4(CR4);
    g.phase("access after");
    (0..4).for_each(|n| g.store(page(n)));
    g.phase("change own table, toggle, access");
    let e = g.tables.entry(leaf[0], 1);
    g.set(alias[0], leaf[0], 0, e);
    toggle(&mut g);
    (0..4).for_each(|n| g.store(page(n)));
    g.phase("change another root's table, toggle");
    let e = g.tables.entry(leaf[1], 1);
    g.set(alias[1], leaf[1], 0, e);
    toggle(&mut g);
    for n in [2, 1, 0] {
        g.phase(format!("visit root {n} after"));
        visit(&mut g, roots[n]);
    }
    g.finish()
}

pub fn unsync_switch(name: &'static str) -> Guest {
    let (mut g, roots) = with_roots(name, 2, 1);
    let leaf: Vec<u64> = roots.iter().map(|&r| g.tables.find(r, VA, 1).expect("mapped")).collect();
    let alias: Vec<u64> = leaf.iter().map(|&t| g.expose(t)).collect();
    g.phase("visit both");
    [1, 0].iter().for_each(|&n| visit(&mut g, roots[n]));
    for (name, own) in [("own", 0), ("the other's", 1)] {
        g.phase(format!("change {name} table"));
        let entry: Vec<u64> = (0..4).map(|i| g.tables.entry(leaf[own], i)).collect();
        (0..4).for_each(|i| g.set(alias[own], leaf[own], i, entry[(i + 1) % 4]));
        g.phase(format!("to and fro after {name}"));
        visit(&mut g, roots[1]);
        visit(&mut g, roots[0]);
        g.phase(format!("change {name} table again"));
        (0..4).for_each(|i| g.set(alias[own], leaf[own], i, entry[i]));
        g.phase(format!("to and fro after {name} again"));
        visit(&mut g, roots[1]);
        visit(&mut g, roots[0]);
    }
    g.finish()
}

/// 16 MB: `KVM_MIN_ALLOC_MMU_PAGES` shadow pages, 64.
pub fn budget(name: &'static str) -> Guest {
    let mut g = Guest::new(name, 12 << 20, 1);
    let gpa = g.data(1, 1);
    let at = |n: u64| VA + (n << 21);
    (0..100).for_each(|n| {
        g.map_at(g.root, at(n), gpa, 1, DATA);
    });
    g.phase("touch 50");
    (0..50).for_each(|n| g.store(at(n)));
    g.phase("touch 50 again");
    g.closed([0; 4]);
    (0..50).for_each(|n| g.store(at(n)));
    for n in 0..5 {
        g.phase(format!("touch 10 more, {n}"));
        // Where the upper tables go as the oldest pages, one more: the code's.
        let shadow = [11, 10, 10, 10, 11][n as usize];
        g.closed([10, 0, shadow, shadow]);
        (50 + n * 10..60 + n * 10).for_each(|n| g.store(at(n)));
    }
    g.phase("touch all in order");
    (0..100).for_each(|n| g.store(at(n)));
    g.phase("touch the last 20");
    (80..100).for_each(|n| g.store(at(n)));
    g.phase("touch all backwards");
    (0..100).rev().for_each(|n| g.store(at(n)));
    g.finish()
}

pub fn two_vcpus(name: &'static str) -> Guest {
    let (mut g, roots) = with_roots(name, 3, 2);
    let leaf = g.tables.find(roots[0], VA, 1).expect("mapped");
    let alias = g.expose(leaf);
    g.phase("first touches");
    (0..4).for_each(|n| g.store(page(n)));
    g.on(1);
    g.phase("second under the same root");
    (0..4).for_each(|n| g.store(page(n)));
    g.phase("second changes a leaf table");
    let entry: Vec<u64> = (0..4).map(|i| g.tables.entry(leaf, i)).collect();
    g.set(alias, leaf, 0, entry[1]);
    g.set(alias, leaf, 1, entry[0]);
    g.on(0);
    g.phase("first changes it too, INVLPG");
    g.set(alias, leaf, 2, entry[3]);
    g.invlpg(page(2));
    g.phase("first accesses");
    (0..4).for_each(|n| g.load(page(n)));
    g.on(1);
    g.phase("second reloads CR3 and accesses");
    visit(&mut g, roots[0]);
    g.phase("second under another root");
    visit(&mut g, roots[1]);
    g.on(0);
    g.phase("first follows there");
    visit(&mut g, roots[1]);
    g.phase("first goes on to a third");
    visit(&mut g, roots[2]);
    g.on(1);
    g.phase("second back and to the third");
    visit(&mut g, roots[0]);
    visit(&mut g, roots[2]);
    g.finish()
}
