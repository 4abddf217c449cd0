// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The TLBs of one CPU in one configuration, or in several whose TLBs hold the same entries.
//!
//! A profile lists any number of arrays. Each array belongs to one level, to one side or both (data,
//! code), and to one or several page sizes. The second level is looked up and filled only on a
//! first-level miss. The levels are not inclusive: an entry may leave the second level and stay in
//! the first. A page larger than any array of its side takes is held as pieces of the largest size
//! that an array takes (a "fractured" entry).
//!
//! Not modelled: prefetch into the TLB, coalescing of neighbouring pages, sharing between
//! hyper-threads.

use crate::recent::Recent;
use crate::{Assoc, Attr, Filter, Gva, PAGE_BITS, PageSize, SHARERS};

/// The side that accesses: data (loads, stores) or code (instruction fetches).
#[derive(Debug, Clone, Copy, PartialEq, Eq, Hash)]
pub enum Side {
    /// Loads and stores.
    Data,
    /// Instruction fetch.
    Code,
}

/// One array: which translations it takes, and its geometry.
#[derive(Debug, Clone)]
pub struct ArraySpec {
    /// TLB level, 1 or 2.
    pub level: u8,
    /// Holds data translations.
    pub data: bool,
    /// Holds code translations.
    pub code: bool,
    /// Page sizes it holds.
    pub sizes: Vec<PageSize>,
    /// Number of entries.
    pub entries: usize,
    /// Associativity; 0 = fully associative.
    pub ways: usize,
}

/// The result of a look-up.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Lookup {
    /// In the first level.
    L1,
    /// In the second level only; it is in the first now.
    L2,
    /// Present, but not to be written as it is (read-only or clean) by the configurations
    /// of these bits: a walk follows for them. With the size under which it is held.
    NotWritable(u8, PageSize),
    /// As that, but in the second level only.
    NotWritableL2(u8, PageSize),
    /// Nowhere: a walk follows.
    Miss,
}

/// The translation that a walk found, as a TLB entry.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Entry {
    /// Size of the translation.
    pub size: PageSize,
    /// Size of the whole page. It is larger than the entry's if the entry is a piece of a page.
    pub page: PageSize,
    /// Writes may use it as it is.
    pub writable: bool,
    /// Survives CR3 loads.
    pub global: bool,
}

/// The arrays that hold one page size for one side, or [`NONE`]. What the first level does not hold,
/// the second does not either.
#[derive(Debug, Clone, Copy)]
struct Arrays {
    first: u8,
    second: u8,
}

const NONE: u8 = u8::MAX;

/// The TLBs of one CPU. Up to [`SHARERS`] configurations share them as long as they hold the
/// same: an entry has a bit for each, by its place among them, that allows its writes.
#[derive(Debug, Clone)]
pub struct Tlb {
    first: Box<[Recent]>,
    second: Box<[Assoc]>,
    /// Per side and page size.
    sizes: [[Arrays; 3]; 2],
    /// The current address space (PCID) in a key's place for it; 0 where it is not used.
    space: u64,
    evicted: Option<(PageSize, u64)>,
    /// Some entry is or was a piece of a larger page.
    pieces: bool,
    /// Per [`region`], a bit for each size of which an entry was filed since the last whole flush.
    /// Most regions have pages of one size, and need no look-up in the arrays of the others.
    held: [u8; REGIONS],
}

const REGIONS: usize = 64;

/// The sizes of a byte of [`Tlb::held`], small to large.
#[inline(always)]
fn sizes_of(mut held: u8) -> impl Iterator<Item = PageSize> {
    std::iter::from_fn(move || {
        let size = *PageSize::ALL.get(held.trailing_zeros() as usize)?;
        held &= held - 1;
        Some(size)
    })
}

/// Number of the gigabyte around 4 KB page number `page`, by a hash: gigabytes may share one.
#[inline(always)]
fn region(page: u64) -> usize {
    ((page >> 18).wrapping_mul(0x9e37_79b9_7f4a_7c15) >> 58) as usize % REGIONS
}

/// Number of the 4 KB page around an address.
#[inline(always)]
fn page_number(gva: Gva) -> u64 {
    (gva.0 & ((1 << 57) - 1)) >> 12
}

/// The bits of the places of `n` sharers.
///
/// # Panics
/// If there are none, or more than [`SHARERS`].
#[inline]
pub fn all_sharers(n: usize) -> u8 {
    assert!((1..=SHARERS).contains(&n), "{n} sharers of a TLB");
    u8::MAX >> (SHARERS - n)
}

#[inline(always)]
fn key(size: PageSize, gva: Gva) -> u64 {
    let page = (gva.0 & ((1 << 57) - 1)) >> size.shift();
    page | (size as u64) << (PAGE_BITS - 3)
}

impl Tlb {
    /// Empty TLBs of the given arrays.
    pub fn new(specs: &[ArraySpec]) -> Tlb {
        let of_level = |level: u8| -> Vec<&ArraySpec> { specs.iter().filter(|s| s.level == level).collect() };
        let (first, second) = (of_level(1), of_level(2));
        let find = |specs: &[&ArraySpec], code: bool, size: PageSize| {
            let takes = |s: &&ArraySpec| (if code { s.code } else { s.data }) && s.sizes.contains(&size);
            specs.iter().position(takes).map_or(NONE, |i| i as u8)
        };
        let sizes = [false, true].map(|code| {
            PageSize::ALL.map(|size| {
                let (first, second) = (find(&first, code, size), find(&second, code, size));
                Arrays { first, second: if first == NONE { NONE } else { second } }
            })
        });
        Tlb {
            sizes,
            first: first
                .iter()
                .map(|s| Recent::new(s.entries, s.ways, [s.data, s.code], s.sizes == [PageSize::Size4K]))
                .collect(),
            second: second.iter().map(|s| Assoc::new(s.entries, s.ways)).collect(),
            space: 0,
            evicted: None,
            pieces: false,
            held: [0; REGIONS],
        }
    }

    /// Does this side have TLBs at all?
    pub fn has(&self, side: Side) -> bool {
        self.sizes[side as usize].iter().any(|a| a.first != NONE)
    }

    /// Looks a page up at `time`; a write needs an entry that allows it as it is for all
    /// configurations of the bits `writes` (0 for a read). `filters` (data, code) are those
    /// in front of this CPU's TLBs. A page that left the side's filter since the last look-up
    /// comes with the time of its last use: `left`.
    #[inline(never)]
    pub fn lookup(
        &mut self,
        side: Side,
        gva: Gva,
        writes: u8,
        time: u64,
        left: Option<(u64, u64)>,
        filters: &[Filter; 2],
    ) -> Lookup {
        if let Some((page, last)) = left {
            self.used_at(side, page, last);
        }
        let held = self.held[region(page_number(gva))];
        // Most regions hold 4 KB pages alone: the loops go.
        if held == 1 << PageSize::Size4K as u8 {
            return self.lookup_sizes(1 << PageSize::Size4K as u8, side, gva, writes, time, filters);
        }
        self.lookup_sizes(held, side, gva, writes, time, filters)
    }

    #[inline(always)]
    fn lookup_sizes(
        &mut self,
        held: u8,
        side: Side,
        gva: Gva,
        writes: u8,
        time: u64,
        filters: &[Filter; 2],
    ) -> Lookup {
        let Tlb { first, second, sizes, space, evicted, .. } = self;
        let sizes = &sizes[side as usize];
        for size in sizes_of(held) {
            let Some(array) = first.get_mut(usize::from(sizes[size as usize].first)) else { continue };
            if let Some(attr) = array.lookup(key(size, gva) | *space, time) {
                let missing = writes & !attr.writable;
                return if missing != 0 { Lookup::NotWritable(missing, size) } else { Lookup::L1 };
            }
        }
        for size in sizes_of(held) {
            let Arrays { first: a, second: b } = sizes[size as usize];
            let Some(array) = second.get_mut(usize::from(b)) else { continue };
            let k = key(size, gva);
            if let Some(attr) = array.lookup(k, k | *space) {
                let missing = writes & !attr.writable;
                if missing != 0 {
                    return Lookup::NotWritableL2(missing, size);
                }
                *evicted = first[usize::from(a)].insert_absent(k | *space, attr, time, filters);
                return Lookup::L2;
            }
        }
        Lookup::Miss
    }

    /// Files a translation after a walk, in both levels; `writable` has a bit for every
    /// configuration whose writes may use it. An entry that was there (`fresh` is false: it
    /// did not allow a write) is amended where it is.
    #[inline]
    #[allow(clippy::too_many_arguments)]
    pub fn fill(
        &mut self,
        side: Side,
        gva: Gva,
        entry: Entry,
        writable: u8,
        fresh: bool,
        time: u64,
        filters: &[Filter; 2],
    ) {
        let Tlb { first, second, sizes, space, evicted, pieces, held } = self;
        let sizes = &sizes[side as usize];
        // The largest size up to the entry's that an array takes.
        let mut size = entry.size;
        while sizes[size as usize].first == NONE {
            size = match size {
                PageSize::Size4K => return,
                PageSize::Size2M => PageSize::Size4K,
                PageSize::Size1G => PageSize::Size2M,
            };
        }
        let a = sizes[size as usize];
        held[region(page_number(gva))] |= 1 << size as u8;
        let piece = if entry.page > size { entry.page as u8 } else { 0 };
        *pieces |= piece != 0;
        let attr = Attr { writable, global: entry.global, piece };
        let k = key(size, gva);
        let array = &mut first[usize::from(a.first)];
        let amended = !fresh && array.allow(k | *space, writable, time);
        if !amended {
            *evicted = array.insert_absent(k | *space, attr, time, filters);
        }
        if let Some(array) = second.get_mut(usize::from(a.second)) {
            // The second level is filled on a first-level miss only.
            if fresh || !(array.allow(k, k | *space, writable) || amended) {
                array.insert_absent(k, k | *space, attr);
            }
        }
    }

    /// Do both levels miss a page around which only 4 KB pages are held? Nothing becomes more recent. May say no where
    /// [`Tlb::lookup`] says [`Lookup::Miss`].
    #[inline]
    pub fn misses_small(&mut self, side: Side, gva: Gva) -> bool {
        let Arrays { first, second } = self.sizes[side as usize][PageSize::Size4K as usize];
        let k = key(PageSize::Size4K, gva);
        let key = k | self.space;
        self.held[region(page_number(gva))] == 1 << PageSize::Size4K as u8
            && self.first.get_mut(usize::from(first)).is_some_and(|a| !a.holds(key))
            && self.second.get_mut(usize::from(second)).is_some_and(|a| !a.holds(k, key))
    }

    /// Files a 4 KB page that is not global, and [missing](Tlb::misses_small), in both levels. Returns the page that it pushed
    /// out of the first, as [`Tlb::take_evicted`] does.
    #[inline]
    pub fn fill_small(
        &mut self,
        side: Side,
        gva: Gva,
        writable: u8,
        time: u64,
        filters: &[Filter; 2],
    ) -> Option<(PageSize, u64)> {
        let Arrays { first, second } = self.sizes[side as usize][PageSize::Size4K as usize];
        let k = key(PageSize::Size4K, gva);
        let attr = Attr { writable, global: false, piece: 0 };
        self.second[usize::from(second)].insert_absent(k, k | self.space, attr);
        self.first[usize::from(first)].insert_absent(k | self.space, attr, time, filters)
    }

    /// The page, if any, that the last [`Tlb::lookup`] or [`Tlb::fill`] pushed out of the
    /// first level: the filter must not answer for it any more.
    #[inline]
    pub fn take_evicted(&mut self) -> Option<(PageSize, u64)> {
        self.evicted.take()
    }

    /// 4 KB page `page` was last used at `time`: what a filter knew, for the entry that holds it.
    #[inline(always)]
    pub fn used_at(&mut self, side: Side, page: u64, time: u64) {
        let Tlb { first, sizes, space, held, .. } = self;
        for size in sizes_of(held[region(page)]) {
            let array = first.get_mut(usize::from(sizes[side as usize][size as usize].first));
            array.into_iter().for_each(|a| a.used_at(key(size, Gva(page << 12)) | *space, time));
        }
    }

    /// May the first level hold 4 KB page `page` as part of a larger entry?
    #[inline]
    pub fn may_hold_large(&self, page: u64) -> bool {
        self.held[region(page)] > 1
    }

    /// Drops the page's entries (INVLPG, or the page fault that the address caused), global
    /// ones too, and all pieces if it is held in pieces (Intel SDM vol. 3A 4.10.4.1).
    pub fn invalidate(&mut self, gva: Gva) {
        self.invalidate_from(PageSize::Size4K, gva);
    }

    /// [`Tlb::invalidate`] without entries of 4 KB pages: for an address in the other piece of a page of 4 MB, which the
    /// arrays hold as two of 2 MB.
    pub fn invalidate_large(&mut self, gva: Gva) {
        self.invalidate_from(PageSize::Size2M, gva);
    }

    fn invalidate_from(&mut self, least: PageSize, gva: Gva) {
        for size in PageSize::ALL.into_iter().filter(|&size| size >= least) {
            let k = key(size, gva) | self.space;
            self.first.iter_mut().for_each(|array| array.remove(k));
            for array in &mut self.second {
                array.remove(key(size, gva), k);
            }
        }
        if self.pieces {
            let space = self.space;
            let keep = |k: u64, attr: Attr| {
                let whole = PageSize::ALL[usize::from(attr.piece) % 3];
                let held = PageSize::ALL[(k >> (PAGE_BITS - 3) & 3) as usize % 3];
                let number =
                    (k & ((1 << (PAGE_BITS - 3)) - 1)) >> (whole.shift() - held.shift().min(whole.shift()));
                attr.piece == 0
                    || !matches(
                        key(whole, Gva(number << whole.shift())) | k >> PAGE_BITS << PAGE_BITS,
                        attr,
                        key(whole, gva) | space,
                    )
            };
            self.first.iter_mut().for_each(|a| a.retain(keep));
            self.second.iter_mut().for_each(|a| a.retain(keep));
        }
    }

    /// Drops everything.
    pub fn flush_all(&mut self) {
        self.first.iter_mut().for_each(Recent::flush_all);
        self.second.iter_mut().for_each(Assoc::flush_all);
        self.pieces = false;
        self.held = [0; REGIONS];
    }

    /// Drops all but global entries (MOV to CR3 without PCID).
    pub fn flush_non_global(&mut self) {
        self.first.iter_mut().for_each(|a| a.retain(|_, attr| attr.global));
        self.second.iter_mut().for_each(Assoc::flush_non_global);
    }

    /// Leaves these TLBs to those of the configurations that share them whose places are the
    /// bits of `places`. They move up to the places from 0 on, in their order.
    pub fn keep_sharers(&mut self, places: u8) {
        self.first.iter_mut().for_each(|a| a.keep_sharers(places));
        self.second.iter_mut().for_each(|a| a.keep_sharers(places));
    }

    /// Do these TLBs and `other`, of the same arrays, hold the same entries, used in the same order? Rights
    /// to write do not matter. Only for TLBs that know one address space: with several, two entries
    /// may answer for a page, and which does depends on their places.
    pub fn holds_same(&mut self, other: &mut Tlb) -> bool {
        { self.first.iter().zip(&other.first) }.all(|(ours, theirs)| ours.holds_same(theirs)) && {
            self.second.iter_mut().zip(&mut other.second)
        }
        .all(|(ours, theirs)| ours.holds_same(theirs))
    }

    /// From now on the configurations that share `other`, which holds the same, share these TLBs.
    /// Their places follow the first `places` here.
    pub fn join(&mut self, other: &mut Tlb, places: usize) {
        self.first.iter_mut().zip(&other.first).for_each(|(ours, theirs)| ours.join(theirs, places));
        self.second.iter_mut().zip(&mut other.second).for_each(|(ours, theirs)| ours.join(theirs, places));
        self.pieces |= other.pieces;
        self.held.iter_mut().zip(&other.held).for_each(|(ours, theirs)| *ours |= theirs);
    }

    /// Changes the current address space without dropping anything (PCID).
    pub fn set_space(&mut self, space: u16) {
        self.space = u64::from(space) << PAGE_BITS;
    }

    /// Drops one address space's entries.
    pub fn flush_space(&mut self, space: u16) {
        let keep = |k: u64, attr: Attr| attr.global || k >> PAGE_BITS != u64::from(space);
        self.first.iter_mut().for_each(|a| a.retain(keep));
        self.second.iter_mut().for_each(|a| a.retain(keep));
    }

    /// The pages held now, as a virtual address each.
    pub fn pages(&mut self) -> Vec<Gva> {
        let mut keys: Vec<u64> = self.second.iter_mut().flat_map(Assoc::keys).collect();
        for a in &mut self.first {
            a.retain(|k, _| {
                keys.push(k);
                true
            });
        }
        let mut out: Vec<Gva> = keys
            .into_iter()
            .map(|k| {
                let k = k & ((1 << PAGE_BITS) - 1);
                let size = PageSize::ALL[(k >> (PAGE_BITS - 3)) as usize % 3];
                let va = (k & ((1 << (PAGE_BITS - 3)) - 1)) << size.shift();
                Gva(((va << 7) as i64 >> 7) as u64)
            })
            .collect();
        out.sort_unstable();
        out.dedup();
        out
    }
}

/// Is an entry filed under `key` with `attr` the one for `wanted`?
fn matches(key: u64, attr: Attr, wanted: u64) -> bool {
    key == wanted || (attr.global && (key ^ wanted) & ((1 << PAGE_BITS) - 1) == 0)
}
