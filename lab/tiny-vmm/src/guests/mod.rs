// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Lists the hand-made guests. Each exercises a rule of docs/design/model.md (shadow paging, nested paging).

mod data;
mod random;
mod roots;
mod stores;

pub use random::{Rng, random};

use crate::guest::Guest;

/// Memory of a guest whose number of shadow pages does not matter.
pub const MEMORY: u64 = 64 << 20;
/// Address of the data, in a PML4 entry of its own.
const VA: u64 = 0x40_0000_0000;

type Make = fn(&'static str) -> Guest;

/// Name, subject and constructor of each guest.
const ALL: &[(&str, &str, Make)] = &[
    ("cold-write", "writes of cold pages, one violation each; again", data::cold_write),
    (
        "cold-read-write",
        "reads of cold pages, then writes: the zero page and its replacement",
        data::cold_read_write,
    ),
    ("clean-dirty", "reads then writes through entries whose D bit is clear", data::clean_dirty),
    ("clear-bits", "A and D bits cleared by the guest, with and without INVLPG", data::clear_bits),
    ("prefetch", "blocks of 8 entries, whole and with holes, after their pages are backed", data::prefetch),
    ("large-guest", "2 MB guest pages, written and read, a table inside one", data::large_guest),
    ("guest-fault", "page faults of the guest's own, absent and write-protected", data::guest_fault),
    ("leaf-rewrite", "entries of one leaf table rewritten, with and without INVLPG", stores::leaf_rewrite),
    ("upper-write", "stores to a page directory: the third without a walk between zaps", stores::upper_write),
    ("string-stores", "STOSQ, REP STOSQ and MOVSQ to tables", stores::string_stores),
    ("table-life", "a table made, linked, unlinked, used for data", stores::table_life),
    ("invlpg", "INVLPG of mapped, unmapped and changed pages", stores::invlpg),
    ("cr3-switch", "CR3 loads among 1 to 6 roots: one current and three cached", roots::cr3_switch),
    ("cr3-read", "MOV from CR3, the value compared", roots::cr3_read),
    ("cr4-pge", "CR4.PGE toggled, with and without unsync tables", roots::cr4_pge),
    (
        "unsync-switch",
        "a leaf table changed before a CR3 load, under its own and another root",
        roots::unsync_switch,
    ),
    ("budget", "more leaf tables than the VM may have shadow pages", roots::budget),
    ("two-vcpus", "two vCPUs under one root and under two", roots::two_vcpus),
];

/// The guests with these names, or all guests if there are no names.
pub fn named(names: &[String]) -> Vec<Guest> {
    let wanted = |name: &str| names.is_empty() || names.iter().any(|n| n == name);
    ALL.iter().filter(|(name, ..)| wanted(name)).map(|(name, _, make)| make(name)).collect()
}

/// All names.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|(name, ..)| *name).collect()
}

/// A line of help for each guest.
pub fn help() -> String {
    ALL.iter().map(|(name, about, _)| format!("  {name:<16} {about}\n")).collect()
}

/// Address of page `n` of the data.
fn page(n: u64) -> u64 {
    VA + (n << 12)
}
