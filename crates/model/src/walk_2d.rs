// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The walk in two dimensions: a guest's tables, each of their entries behind a walk of nested tables, and
//! then the nested walk of the page itself (guest level 0). And the walk of nested tables alone.

use crate::access::Steady;
use crate::memory::{Hardware, Memory};
use crate::page::Page;
use bifold_mmu::{Dimension, Format, Gpa, Gva, Hpa, Start, Step, Tag, Walk, WalkCache, walk};
use std::convert::Infallible;

/// Host-physical addresses of table pages, above every frame that backs guest memory:
/// each level has a range of its own, in the order of the addresses that its tables map.
/// So the table that maps a guest address is found without reading the table above.
/// Walks nevertheless read every level.
pub(crate) const fn base(level: u8) -> u64 {
    (1 << 41) + ((level as u64) << 38)
}

/// The table of `level` on the way to `gpa`, by [`base`].
pub(crate) const fn table_of(level: u8, gpa: Gpa) -> u64 {
    base(level) + (gpa.0 >> (12 + 9 * level) << 12)
}

/// A frame that the nested tables do not map as needed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Violation {
    /// The guest-physical address.
    pub gpa: Gpa,
    /// For a write.
    pub write: bool,
}

/// Nested tables, and the memory that they map.
pub trait NestedSpace {
    /// Translates `gpa` for a walk step of guest level `guest`.
    ///
    /// # Errors
    /// If the tables do not map it for the access.
    fn translate<M: Memory>(
        &mut self,
        hw: &mut Hardware<'_, M>,
        gpa: Gpa,
        write: bool,
        guest: u8,
    ) -> Result<(), Violation>;

    /// [`NestedSpace::translate`] of what the tables map for the access, where the walk has nothing to note,
    /// with walk caches that have host steps ([`WalkCache::has_host_steps`]).
    fn translate_steady<M: Memory>(&mut self, hw: &mut Hardware<'_, M>, gpa: Gpa, write: bool, guest: u8);

    /// The host-physical address of `gpa`.
    fn hpa(&self, gpa: Gpa) -> Hpa;

    /// What decides on which node the memory at `gpa` lies.
    fn page(&self, gpa: Gpa) -> Page;

    /// The level of the nested entry that maps `gpa`.
    fn level_at(&self, gpa: Gpa) -> u8;
}

/// The walk from the table at `start` on, which is a table's address as the nested tables map it. The host's
/// address of that table may be `known`, so that it is not translated. `read` returns the guest's entry at an
/// address.
#[inline(always)]
pub fn walk_2d<S: NestedSpace, M: Memory>(
    space: &mut S,
    hw: &mut Hardware<'_, M>,
    format: &Format,
    (start, mut known): (Start, bool),
    (gva, write): (Gva, bool),
    mut read: impl FnMut(u8, u64) -> u64,
) -> Result<Walk, Violation> {
    let cached_as = format.cached_as(gva.0);
    let end = walk(format, start, gva.0, |level, at| {
        if !std::mem::take(&mut known) {
            space.translate(hw, Gpa(at), true, level)?;
        }
        // Computed only where the address matters: it costs a permutation.
        let at_host = if hw.caches.tag() == Tag::Physical { space.hpa(Gpa(at)).0 } else { 0 };
        let held = level > 1 && hw.caches.holds(Dimension::Guest, level, at_host);
        if !held {
            hw.touch(level, 0, || space.hpa(Gpa(at)), || space.page(Gpa(at)));
        }
        let entry = read(level, at);
        // A large leaf entry that the host maps in pieces is read once for each piece. A cache tagged by the
        // entry's address holds that entry as any other of its level.
        let cached = |entry| {
            let page = || format.target(level, entry) | gva.0 & ((1 << format.level(level).shift) - 1);
            !format.is_leaf(level, entry)
                || hw.caches.tag() == Tag::Physical && level > space.level_at(Gpa(page()))
        };
        if level > 1 && !held && entry & format.present != 0 && cached(entry) {
            hw.caches.fill(Dimension::Guest, level, cached_as, at_host, format.target(level, entry));
        }
        Ok(entry)
    })?;
    if let Walk::Leaf(Step { level, entry, .. }) = end {
        let offset = gva.0 & ((1 << format.level(level).shift) - 1);
        space.translate(hw, Gpa(format.target(level, entry) | offset), write, 0)?;
    }
    Ok(end)
}

/// Can the addresses of the guest's tables be translated without an exit or a note, where they have to be?
/// `is_ready` says so of the table of a level.
#[inline(always)]
pub fn tables_are_steady(
    caches: &WalkCache,
    miss: &Steady<'_>,
    mut is_ready: impl FnMut(u8) -> bool,
) -> bool {
    // The walk translates the addresses of tables from below, up to one that the guest's walk caches lead to.
    // Mostly the caches hold what points to the table of level 2, so that the walk translates that of level 1
    // at most.
    let cached = |level| caches.peek(Dimension::Guest, level, miss.gva.0);
    is_ready(1) && cached(3) || {
        let depth = miss.format.depth();
        let first = (1..=depth).find(|&level| !is_ready(level));
        first.is_none_or(|level| (2..=depth.min(level + 1)).any(cached))
    }
}

/// [`walk_2d`] where it is steady: from tables whose addresses are known, as the nested tables map them, to
/// the page at `gpa`.
#[inline(always)]
pub fn walk_2d_steady<S: NestedSpace, M: Memory>(
    space: &mut S,
    hw: &mut Hardware<'_, M>,
    format: &Format,
    gva: Gva,
    table: impl Fn(u8) -> u64,
    (gpa, write): (Gpa, bool),
) {
    let depth = format.depth();
    let start = hw.caches.first_table(Dimension::Guest, (1, depth), gva.0, &table);
    // A cached entry gives the next table's host address as well.
    let (mut level, mut known) = (start, start < depth);
    while level > 0 {
        let at = Gpa(table(level) | format.index(level, gva.0) << 3);
        if !known {
            space.translate_steady(hw, at, true, level);
        }
        known = false;
        hw.touch(level, 0, || space.hpa(at), || space.page(at));
        level -= 1;
    }
    space.translate_steady(hw, gpa, write, 0);
}

/// [`walk_host`] with walk caches that have host steps, to an entry of level `leaf` that is known to be
/// there, in tables from level `depth` on whose addresses are known.
#[inline(always)]
pub fn walk_host_steady<M: Memory>(
    hw: &mut Hardware<'_, M>,
    (leaf, depth): (u8, u8),
    gpa: Gpa,
    guest: u8,
    tables: impl Fn(u8) -> u64,
    page: impl Fn(u8, u64) -> Page,
) {
    let mut level = hw.caches.first_table(Dimension::Host, (leaf, depth), gpa.0, &tables);
    while level >= leaf {
        let at = || tables(level) | (gpa.0 >> (12 + 9 * (level - 1)) & 511) << 3;
        hw.touch(guest, level, || Hpa(at()), || page(level, at()));
        level -= 1;
    }
}

/// Where a walk from `top` begins: there, or at a table to which a walk cache leads, whose host address is
/// then known.
#[inline(always)]
pub fn first(caches: &mut WalkCache, format: &Format, top: Start, gva: Gva) -> (Start, bool) {
    let start = caches.start(Dimension::Guest, format.cached_as(gva.0), top);
    // A virtually tagged hit gives the next table's host address as well.
    (start, caches.tag() == Tag::Virtual && start != top)
}

/// The walk of nested tables from `root` to `gpa`, for a step of guest level `guest`. `read` returns the
/// entry of a level at an address, and `table` what decides on which node it lies.
#[inline]
pub fn walk_host<M: Memory>(
    hw: &mut Hardware<'_, M>,
    format: &Format,
    root: Start,
    (gpa, guest): (Gpa, u8),
    read: impl Fn(u8, u64) -> u64,
    table: impl Fn(u8, u64) -> Page,
) -> Walk {
    let start = hw.caches.start(Dimension::Host, gpa.0, root);
    let end = walk::<Infallible>(format, start, gpa.0, |level, at| {
        let held = level > 1 && hw.caches.holds(Dimension::Host, level, at);
        if !held {
            hw.touch(guest, level, || Hpa(at), || table(level, at));
        }
        let entry = read(level, at);
        if level > 1 && !held && entry & format.present != 0 && !format.is_leaf(level, entry) {
            hw.caches.fill(Dimension::Host, level, gpa.0, at, format.target(level, entry));
        }
        Ok(entry)
    });
    match end {
        Ok(walk) => walk,
        Err(never) => match never {},
    }
}

/// [`walk_host`] to an entry of level `leaf` that is known to be there, in tables whose entries lie in the
/// order of what they map ([`base`]).
#[inline]
pub fn walk_mapped<M: Memory>(
    hw: &mut Hardware<'_, M>,
    root: Start,
    leaf: u8,
    gpa: Gpa,
    guest: u8,
    table: impl Fn(u8, u64) -> Page,
) {
    let start = hw.caches.start(Dimension::Host, gpa.0, root).level;
    for level in (leaf..=start).rev() {
        let number = gpa.0 >> (12 + 9 * (level - 1));
        let at = base(level) + (number << 3);
        if level > 1 && hw.caches.holds(Dimension::Host, level, at) {
            continue;
        }
        hw.touch(guest, level, || Hpa(at), || table(level, at));
        if level > leaf {
            hw.caches.fill(Dimension::Host, level, gpa.0, at, base(level - 1) + (number << 12));
        }
    }
}
