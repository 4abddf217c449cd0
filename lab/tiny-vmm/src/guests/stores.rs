// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that store to their tables.

use super::{MEMORY, VA, page};
use crate::guest::{ABSENT, Guest};
use crate::tables::{DATA, TABLE, index};

/// A guest with sixteen pages at [`VA`], sixteen further frames, all backed, and an exposed leaf table.
struct Leaf {
    g: Guest,
    table: u64,
    alias: u64,
    /// The mapped frames, and the other frames.
    gpa: [u64; 2],
}

fn leaf(name: &'static str) -> Leaf {
    let mut g = Guest::new(name, MEMORY, 1);
    let gpa = [g.data(16, 8), g.data(16, 8)];
    let table = g.map_at(g.root, VA, gpa[0], 16, DATA);
    g.map_at(g.root, VA + (4 << 21), gpa[1], 16, DATA);
    let alias = g.expose(table);
    g.phase("back");
    (0..16).for_each(|n| g.store(page(n)));
    (0..16).for_each(|n| g.store(page(n) + (4 << 21)));
    Leaf { g, table, alias, gpa }
}

impl Leaf {
    /// Makes page `n` map frame `m` of set `set`.
    fn remap(&mut self, n: u64, set: usize, m: u64) {
        self.g.set(self.alias, self.table, n as usize, (self.gpa[set] + (m << 12)) | DATA);
    }
}

pub fn leaf_rewrite(name: &'static str) -> Guest {
    let mut l = leaf(name);
    l.g.phase("rewrite one");
    l.remap(0, 1, 0);
    l.g.phase("rewrite others");
    l.g.closed([0; 4]);
    (1..8).for_each(|n| l.remap(n, 1, n));
    l.g.phase("INVLPG them");
    l.g.closed([0, 0, 8, 8]);
    (0..8).for_each(|n| l.g.invlpg(page(n)));
    l.g.phase("access them");
    l.g.closed([0; 4]);
    (0..8).for_each(|n| l.g.store(page(n)));
    l.g.phase("rewrite and INVLPG, each");
    l.g.closed([0, 0, 8, 8]);
    for n in 8..16 {
        l.remap(n, 1, n);
        l.g.invlpg(page(n));
    }
    l.g.phase("access those");
    l.g.closed([0; 4]);
    (8..16).for_each(|n| l.g.store(page(n)));
    l.g.phase("rewrite all, reload CR3");
    l.g.closed([0, 0, 1, 1]);
    (0..16).for_each(|n| l.remap(n, 0, n));
    l.g.load_cr3(l.g.root);
    l.g.phase("access all");
    l.g.closed([0, 0, 2, 2]);
    (0..16).for_each(|n| l.g.load(page(n)));
    l.g.phase("rewrite one after the flush");
    l.g.closed([0, 0, 1, 1]);
    l.remap(3, 1, 3);
    l.remap(4, 1, 4);
    l.g.phase("unmap 4, map 4 new ones, INVLPG");
    for n in 0..4 {
        let i = n as usize;
        l.g.set(l.alias, l.table, i, ABSENT);
        l.g.invlpg(page(n));
        l.remap(n + 16, 0, n);
        l.g.invlpg(page(n + 16));
    }
    l.g.phase("access new ones");
    (16..20).for_each(|n| l.g.store(page(n)));
    l.g.phase("map 4 more, reload CR3");
    (4..8).for_each(|n| l.remap(n + 16, 0, n));
    l.g.load_cr3(l.g.root);
    l.g.phase("access those 4");
    l.g.closed([0, 0, 1, 1]);
    (20..24).for_each(|n| l.g.store(page(n)));
    l.g.finish()
}

pub fn upper_write(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    let at = |n: u64| VA + (n << 21);
    for n in 0..8 {
        g.map(g.root, at(n), 4, DATA);
    }
    let pd = g.tables.find(g.root, VA, 2).expect("mapped");
    let alias = g.expose(pd);
    let entry: Vec<u64> = (0..8).map(|n| g.tables.entry(pd, n)).collect();
    g.phase("back");
    (0..8).for_each(|n| g.store(at(n)));
    (0..8).for_each(|n| g.store(at(n) + 0x1000));
    g.phase("one store");
    g.set(alias, pd, 0, ABSENT);
    g.phase("and back, walk");
    g.closed([0, 0, 3, 3]);
    g.set(alias, pd, 0, entry[0]);
    g.invlpg(at(0));
    g.load(at(0));
    g.phase("two stores, walk");
    g.closed([0, 0, 3, 3]);
    g.set(alias, pd, 1, ABSENT);
    g.set(alias, pd, 1, entry[1]);
    g.load(at(1));
    g.phase("three stores");
    g.closed([0, 0, 3, 3]);
    g.set(alias, pd, 2, ABSENT);
    g.set(alias, pd, 2, entry[2]);
    g.set(alias, pd, 3, entry[3]);
    g.phase("walk all");
    g.closed([0, 0, 8, 8]);
    (0..8).for_each(|n| g.load(at(n)));
    g.phase("eight stores");
    g.closed([0, 0, 4, 4]);
    (0..8).for_each(|n| g.set(alias, pd, n, entry[n]));
    g.phase("walk all again");
    g.closed([0, 0, 8, 8]);
    (0..8).for_each(|n| g.load(at(n)));
    g.phase("stores to absent entries, a walk after each");
    for n in 8..12usize {
        g.set(alias, pd, n, entry[n - 8]);
        g.load(at(n as u64));
    }
    g.phase("stores to absent entries, no walk");
    (12..20).for_each(|n| g.set(alias, pd, n, entry[n - 12]));
    g.phase("walk those");
    (12..20).for_each(|n| g.load(at(n)));
    g.finish()
}

pub fn string_stores(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    let at = |n: u64| VA + (n << 21);
    for n in 0..4 {
        g.map(g.root, at(n), 16, DATA);
    }
    let pd = g.tables.find(g.root, VA, 2).expect("mapped");
    let leaf = g.tables.find(g.root, VA, 1).expect("mapped");
    let (pd_alias, leaf_alias) = (g.expose(pd), g.expose(leaf));
    let code = VA + (1 << 38);
    g.storing_page(code);
    let upper = g.tables.entry(pd, 1);
    let lower = g.tables.entry(leaf, 1);
    g.phase("back");
    (0..4).for_each(|n| g.store(at(n)));
    (0..16).for_each(|n| g.store(page(n)));
    g.phase("STOSQ to a leaf table, twice");
    g.set_by_stos(leaf_alias, leaf, 2, 1, lower);
    g.set_by_stos(leaf_alias, leaf, 3, 1, lower);
    g.phase("reload CR3, REP STOSQ of 8 to a leaf table");
    g.load_cr3(g.root);
    g.set_by_stos(leaf_alias, leaf, 4, 8, ABSENT);
    g.phase("walk");
    (0..4).for_each(|n| g.load(page(n)));
    g.phase("STOSQ to a page directory");
    g.set_by_stos(pd_alias, pd, 2, 1, upper);
    g.phase("walk all");
    (0..4).for_each(|n| g.load(at(n)));
    g.phase("STOSQ to it again, the same place");
    g.set_by_stos(pd_alias, pd, 2, 1, upper);
    g.phase("walk all again");
    (0..4).for_each(|n| g.load(at(n)));
    g.phase("MOVSQ within it");
    g.copy_by_movs(pd_alias, pd, 1, 3);
    g.phase("walk all a third time");
    (0..4).for_each(|n| g.load(at(n)));
    g.phase("MOV, then REP STOSQ of 16 to absent entries");
    g.set(pd_alias, pd, 8, upper);
    g.set_by_stos(pd_alias, pd, 16, 16, ABSENT);
    g.phase("walk all at last");
    (0..4).for_each(|n| g.load(at(n)));
    for n in 0..4 {
        g.phase(format!("the same STOSQ, the same place, {n}"));
        g.set_by_stos_at(code, pd_alias, pd, 2, upper);
        g.phase(format!("walk all after {n}"));
        // The second and the fourth are emulated, not retried: the table stays
        // (`retry_instruction`: `last_retry_eip`, `last_retry_addr`).
        let shadow = if n % 2 == 0 { 4 } else { 1 };
        g.closed([0, 0, shadow, shadow]);
        (0..4).for_each(|n| g.load(at(n)));
    }
    for n in 4..6 {
        g.phase(format!("the same STOSQ, another place, {n}"));
        g.set_by_stos_at(code, pd_alias, pd, n, upper);
        g.phase(format!("walk all after {n}"));
        (0..4).for_each(|n| g.load(at(n)));
    }
    g.finish()
}

pub fn table_life(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    g.map(g.root, VA, 4, DATA);
    let pd = g.tables.find(g.root, VA, 2).expect("mapped");
    let alias = g.expose(pd);
    let gpa = g.data(8, 8);
    // Two leaf tables not linked yet, and a page directory.
    let fresh = [g.tables.table(1), g.tables.table(1)];
    let fresh_alias = fresh.map(|t| g.expose(t));
    let at = |n: u64| VA + ((8 + n) << 21);
    g.phase("walk");
    g.store(page(0));
    for n in 0..2usize {
        g.phase(format!("fill table {n}"));
        (0..4).for_each(|i| g.set(fresh_alias[n], fresh[n], i, (gpa + ((i as u64) << 12)) | DATA));
        g.phase(format!("link table {n}"));
        g.set(alias, pd, index(at(n as u64), 2), fresh[n] << 12 | TABLE);
        g.phase(format!("use table {n}"));
        (0..4).for_each(|i| g.store(at(n as u64) + (i << 12)));
        g.phase(format!("add to table {n}"));
        (4..8).for_each(|i| g.set(fresh_alias[n], fresh[n], i, (gpa + ((i as u64) << 12)) | DATA));
        g.phase(format!("use what was added to table {n}"));
        (4..8).for_each(|i| g.store(at(n as u64) + (i << 12)));
    }
    g.phase("unlink both, reload CR3");
    for n in 0..2 {
        g.set(alias, pd, index(at(n), 2), ABSENT);
    }
    g.load_cr3(g.root);
    g.phase("clear both");
    for n in 0..2 {
        (0..8).for_each(|i| g.set(fresh_alias[n], fresh[n], i, ABSENT));
    }
    g.phase("link the first again, use it");
    g.set(fresh_alias[0], fresh[0], 0, gpa | DATA);
    g.set(alias, pd, index(at(0), 2), fresh[0] << 12 | TABLE);
    g.store(at(0));
    g.finish()
}

pub fn invlpg(name: &'static str) -> Guest {
    let mut l = leaf(name);
    l.g.phase("of mapped pages");
    l.g.closed([0, 0, 4, 4]);
    (0..4).for_each(|n| l.g.invlpg(page(n)));
    l.g.phase("access them");
    (0..4).for_each(|n| l.g.load(page(n)));
    l.g.phase("of pages without an entry, without a table");
    l.g.closed([0, 0, 8, 8]);
    (100..104).for_each(|n| l.g.invlpg(page(n)));
    (0..4).for_each(|n| l.g.invlpg(VA + (64 << 30) + (n << 12)));
    l.g.phase("of pages of an unsync table, changed and not");
    l.remap(0, 1, 0);
    (0..4).for_each(|n| l.g.invlpg(page(n)));
    l.g.phase("access the changed and others");
    (0..4).for_each(|n| l.g.store(page(n)));
    l.g.phase("of an entry that came");
    l.remap(20, 1, 4);
    l.g.invlpg(page(20));
    l.g.store(page(20));
    l.g.phase("of an entry that went");
    l.g.set(l.alias, l.table, 5, ABSENT);
    l.g.invlpg(page(5));
    l.g.phase("of one that came without accessed bit");
    let fresh = l.gpa[1] + (6 << 12);
    l.g.set(l.alias, l.table, 21, fresh | crate::tables::FRESH);
    l.g.invlpg(page(21));
    l.g.load(page(21));
    l.g.store(page(21));
    l.g.finish()
}
