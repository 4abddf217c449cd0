// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that access data and leave their tables alone, apart from A and D bits.

use super::{MEMORY, VA, page};
use crate::asm::STRIDE;
use crate::guest::Guest;
use crate::tables::{ACCESSED, DATA, DIRTY, FRESH, PRESENT, TABLE, WRITE};

const PAGES: u64 = 24;

/// A guest with `PAGES` pages of cold data, and another page that a first phase reads so that the hypervisor
/// knows the tables above.
fn with_pages(name: &'static str, flags: u64) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    g.map(g.root, VA, PAGES, flags);
    g.map(g.root, page(504), 1, DATA);
    g.phase("walk");
    g.load(page(504));
    g
}

pub fn cold_write(name: &'static str) -> Guest {
    let mut g = with_pages(name, DATA);
    g.phase("write");
    // One violation each; shadow on 2 MB: one fault for each block of 8.
    g.closed([PAGES, 0, PAGES, PAGES / 8]);
    (0..PAGES).for_each(|n| g.store(page(n)));
    g.phase("again");
    g.closed([0; 4]);
    (0..PAGES).for_each(|n| g.store(page(n)));
    g.phase("backwards");
    g.closed([0; 4]);
    (0..PAGES).rev().for_each(|n| g.load(page(n)));
    g.finish()
}

pub fn cold_read_write(name: &'static str) -> Guest {
    let mut g = with_pages(name, DATA);
    g.phase("read");
    let half = PAGES / 2;
    g.closed([half, 0, half, half.div_ceil(8)]);
    (0..PAGES / 2).for_each(|n| g.load(page(n)));
    g.phase("read again");
    g.closed([0; 4]);
    (0..PAGES / 2).for_each(|n| g.load(page(n)));
    g.phase("write");
    // Two each: the zero page's replacement makes the first fault stale (`is_page_fault_stale`).
    g.closed([2 * half, 0, 2 * half, 0]);
    (0..PAGES / 2).for_each(|n| g.store(page(n)));
    g.phase("write again");
    g.closed([0; 4]);
    (0..PAGES / 2).for_each(|n| g.store(page(n)));
    g.phase("read and write in turn");
    g.closed([3 * half, 0, 3 * half, 1]);
    for n in PAGES / 2..PAGES {
        g.load(page(n));
        g.store(page(n));
    }
    g.finish()
}

pub fn clean_dirty(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    g.map(g.root, VA, PAGES, FRESH);
    g.map(g.root, page(504), 1, DATA);
    // Eight frames, fresh at pages 64 to 71, and elsewhere each in a block of its own.
    let gpa = g.data(8, 8);
    g.map_at(g.root, page(64), gpa, 8, FRESH);
    let warm = |n: u64| VA + (1 << 30) + n * STRIDE;
    for n in 0..8 {
        g.map_at(g.root, warm(n), gpa + (n << 12), 1, DATA);
    }
    g.phase("walk");
    g.load(page(504));
    g.phase("back");
    (0..8).for_each(|n| g.store(warm(n)));
    g.phase("read backed");
    // No prefetch: the entries' A bits are clear.
    g.closed([0, 0, 8, 8]);
    (0..8).for_each(|n| g.load(page(64 + n)));
    g.phase("write backed");
    // Mapped read-only until the D bit is set (`FNAME(protect_clean_gpte)`).
    g.closed([0, 0, 8, 8]);
    (0..8).for_each(|n| g.store(page(64 + n)));
    g.phase("write backed again");
    g.closed([0; 4]);
    (0..8).for_each(|n| g.store(page(64 + n)));
    g.phase("read cold");
    g.closed([PAGES, 0, PAGES, PAGES]);
    (0..PAGES).for_each(|n| g.load(page(n)));
    g.phase("write cold");
    g.closed([2 * PAGES, 0, 2 * PAGES, PAGES]);
    (0..PAGES).for_each(|n| g.store(page(n)));
    g.phase("write again");
    (0..PAGES).for_each(|n| g.store(page(n)));
    g.finish()
}

pub fn clear_bits(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    let gpa = g.data(8, 8);
    let leaf = g.map_at(g.root, VA, gpa, 8, DATA);
    let alias = g.expose(leaf);
    g.phase("write");
    (0..8).for_each(|n| g.store(page(n)));
    let entry = |n: usize, flags| (gpa + ((n as u64) << 12)) | flags;
    g.phase("clear D, no flush");
    (0..4).for_each(|n| g.set(alias, leaf, n, entry(n, DATA & !DIRTY)));
    g.phase("clear A and D, INVLPG");
    for n in 4..8 {
        g.set(alias, leaf, n, entry(n, PRESENT | WRITE));
        g.invlpg(page(n as u64));
    }
    g.phase("read");
    (0..8).for_each(|n| g.load(page(n)));
    g.phase("write after");
    (0..8).for_each(|n| g.store(page(n)));
    g.phase("reload CR3");
    g.load_cr3(g.root);
    g.phase("write after reload");
    // The writes before went through old entries that KVM had not looked at again: the guest's
    // D bits are clear still, and the sync made the entries read-only.
    g.closed([0, 0, 4, 4]);
    (0..8).for_each(|n| g.store(page(n)));
    g.phase("clear A, keep D, reload CR3");
    (0..4).for_each(|n| g.set(alias, leaf, n, entry(n, DATA & !ACCESSED)));
    g.load_cr3(g.root);
    g.phase("read after clear A");
    (0..8).for_each(|n| g.load(page(n)));
    g.finish()
}

pub fn prefetch(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    let gpa = g.data(64, 8);
    g.map_at(g.root, VA, gpa, 64, DATA);
    // The same frames under a second root: leaf entries of their own.
    let other = g.new_root();
    for n in 0..64u64 {
        let flags = match n {
            11 => DATA & !ACCESSED,     // block 1: a hole in the middle
            16 => 0,                    // block 2: starts with an absent one
            24..32 => FRESH | ACCESSED, // block 3: clean
            35 => DATA & !WRITE,        // block 4: one read-only
            _ => DATA,
        };
        if flags != 0 {
            g.tables.map(other, page(n), 1, (gpa + (n << 12)) | flags);
        }
    }
    g.phase("back");
    (0..48).for_each(|n| g.store(page(n)));
    g.phase("switch");
    g.load_cr3(other);
    for block in 0..6 {
        g.phase(format!("read block {block}"));
        // Prefetch goes from the block's start to the first entry that it cannot use: not
        // accessed in block 1 (its fault, then one for the rest), absent in block 2 (all singly).
        let shadow = [1, 2, 7, 1, 1, 1][block as usize];
        if block > 0 {
            g.closed([0, 0, shadow, shadow]);
        }
        (0..8).filter(|n| block * 8 + n != 16).for_each(|n| g.load(page(block * 8 + n)));
    }
    g.phase("write blocks 0 and 3");
    g.closed([0, 0, 8, 8]);
    (0..8).chain(24..32).for_each(|n| g.store(page(n)));
    g.phase("read cold block 6 from its end");
    (48..56).rev().for_each(|n| g.load(page(n)));
    g.phase("write cold block 7 from its middle");
    (0..8).for_each(|n| g.store(page(56 + (n + 4) % 8)));
    g.finish()
}

pub fn large_guest(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    let huge = 2u64 << 20;
    let at = |n: u64| VA + n * huge;
    for n in 0..4 {
        let gpa = g.data(512, 512);
        g.map_large(g.root, at(n), gpa, if n == 2 { FRESH } else { DATA });
    }
    // The 2 MB page that holds the tables and the code themselves.
    g.map_large(g.root, at(4), 0, DATA);
    g.phase("walk");
    g.load(at(3));
    g.phase("write 16 small pages of one");
    g.closed([16, 1, 16, 1]);
    (0..16).for_each(|n| g.store(at(0) + (n << 12)));
    g.phase("write again");
    (0..16).for_each(|n| g.store(at(0) + (n << 12)));
    g.phase("read 16 of another, then write");
    (0..16).for_each(|n| g.load(at(1) + (n << 12)));
    (0..16).for_each(|n| g.store(at(1) + (n << 12)));
    g.phase("a clean one: read 8");
    g.closed([8, 1, 8, 1]);
    (0..8).for_each(|n| g.load(at(2) + (n << 12)));
    g.phase("a clean one: write 8");
    // Two each for the zero page, the first of which also replaces the read-only direct table
    // (`validate_direct_spte`).
    g.closed([16, 0, 16, 1]);
    (0..8).for_each(|n| g.store(at(2) + (n << 12)));
    g.phase("a clean one: write 8 others");
    (8..16).for_each(|n| g.store(at(2) + (n << 12)));
    g.phase("the one with the tables: write beside them");
    (0..4).for_each(|n| g.store(at(4) + (0x1f0 << 12) + (n << 12)));
    g.finish()
}

pub fn guest_fault(name: &'static str) -> Guest {
    let mut g = Guest::new(name, MEMORY, 1);
    g.handle_faults();
    let gpa = g.data(8, 8);
    let leaf = g.map_at(g.root, VA, gpa, 8, DATA);
    for n in 4..8 {
        g.tables.set(leaf, n as usize, (gpa + (n << 12)) | (DATA & !WRITE));
    }
    let alias = g.expose(leaf);
    let away = VA + (64 << 30);
    // Two places with tables of their own.
    let cold = [VA + (1 << 39), VA + (2 << 39)];
    for va in cold {
        g.map(g.root, va + 0x1000, 1, DATA & !WRITE);
    }
    g.phase("warm");
    g.warm_system();
    g.load(page(0));
    g.phase("absent in a leaf table");
    g.closed([0, 0, 8, 8]);
    (8..12).for_each(|n| g.fault(page(n), false, 0));
    (12..16).for_each(|n| g.fault(page(n), true, 2));
    g.phase("absent above");
    g.closed([0, 0, 4, 4]);
    (0..4).for_each(|n| g.fault(away + (n << 12), false, 0));
    g.phase("write-protected, not yet read");
    (4..6).for_each(|n| g.fault(page(n), true, 3));
    g.phase("write-protected, read before");
    for n in 6..8 {
        g.load(page(n));
        g.fault(page(n), true, 3);
    }
    g.phase("absent, tables not seen yet");
    // The walk that finds nothing reads the tables above: a violation for each.
    g.closed([3, 0, 1, 1]);
    g.fault(cold[0], false, 0);
    g.phase("write-protected, tables not seen yet");
    g.closed([3, 0, 1, 1]);
    g.fault(cold[1] + 0x1000, true, 3);
    g.phase("read it");
    g.closed([1, 0, 1, 1]);
    g.load(cold[1] + 0x1000);
    g.phase("mapped by the handler");
    for n in 8..12 {
        g.fault(page(n), true, 2);
        g.set(alias, leaf, n as usize, (gpa + ((n - 8) << 12)) | TABLE | DIRTY);
        g.store(page(n));
    }
    g.finish()
}
