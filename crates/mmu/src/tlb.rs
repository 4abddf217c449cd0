// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The TLBs of one CPU in one configuration or several.
//!
//! A profile lists any number of arrays. Each array belongs to one level, to one side or both (data,
//! code), and to one or several page sizes. The second level is looked up and filled only on a
//! first-level miss. The levels are not inclusive: an entry may leave the second level and stay in
//! the first. A page larger than any array of its side takes is held as pieces of the largest size
//! that an array takes (a "fractured" entry).
//!
//! Not modelled: prefetch into the TLB, coalescing of neighbouring pages, sharing between
//! hyper-threads.

use crate::assoc::{self, Assoc};
use crate::recent::Recent;
use crate::{Attr, Filter, Gva, PAGE_BITS, PageSize, SHARERS};

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

/// The result of a look-up: a bit for each sharer, by its place, in one of four. Those in none of them hold
/// the page nowhere.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Default)]
pub struct Lookup {
    /// The first level holds the page.
    pub first: u8,
    /// The second level alone held the page; the first does now.
    pub second: u8,
    /// The first level holds the page, but not to be written as it is (read-only or clean): a walk follows.
    pub refused_first: u8,
    /// As that, but the second level alone.
    pub refused_second: u8,
}

impl Lookup {
    /// The sharers that need no walk.
    #[inline]
    pub fn held(self) -> u8 {
        self.first | self.second
    }

    /// The sharers whose entry does not allow the write.
    #[inline]
    pub fn refused(self) -> u8 {
        self.refused_first | self.refused_second
    }
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

/// A second-level array.
#[derive(Debug, Clone)]
enum Second {
    Narrow(Assoc),
    /// Of more ways than [`assoc::WAYS`].
    Wide(Recent),
}

/// Calls a method of the array, whatever its sets are.
macro_rules! each {
    ($second:expr, $array:ident => $call:expr) => {
        match $second {
            Second::Narrow($array) => $call,
            Second::Wide($array) => $call,
        }
    };
}

/// The TLBs of one CPU. Up to [`SHARERS`] configurations share them: each has a place, and masks have a bit
/// for each by its place. What the sharers hold alike is kept once.
#[derive(Debug, Clone)]
pub struct Tlb {
    first: Box<[Recent]>,
    second: Box<[Second]>,
    /// Per side and page size.
    sizes: [[Arrays; 3]; 2],
    sharers: u8,
    /// The current address space (PCID) in a key's place for it; 0 where it is not used.
    space: u64,
    /// A bit per [`region`]: some entry is or was a piece of a larger page.
    pieces: u64,
    /// Per [`region`], a bit for each size of which an entry was filed since all sharers were flushed.
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

/// When a TLB is used, and what stands in front of it.
#[derive(Debug)]
pub struct Now<'a> {
    /// The time, in accesses of the CPU.
    pub time: u64,
    /// The filters of this CPU's TLBs: data, code.
    pub filters: &'a mut [Filter; 2],
}

/// What a walk of some sharers ended with.
#[derive(Debug, Clone, Copy)]
pub struct Filing {
    /// The sharers that walked, a bit for each.
    pub of: u8,
    /// The entry that they file.
    pub entry: Entry,
    /// The sharers whose writes may use the entry.
    pub writable: u8,
    /// False if there was an entry, which did not allow a write: it is amended where it is.
    pub fresh: bool,
}

impl Tlb {
    /// Empty TLBs of the given arrays for so many sharers. `one_space`: they know one address space at a
    /// time. With several, two entries may answer for a page, and which does depends on their places, so sets
    /// that differed once stay apart.
    ///
    /// # Panics
    /// If there are no sharers, or more than [`SHARERS`].
    pub fn new(specs: &[ArraySpec], sharers: usize, one_space: bool) -> Tlb {
        let sharers = all_sharers(sharers);
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
                .map(|s| {
                    let small = s.sizes == [PageSize::Size4K];
                    Recent::new((s.entries, s.ways), [s.data, s.code], small, sharers, one_space)
                })
                .collect(),
            second: second
                .iter()
                .map(|s| match s.ways {
                    1..=assoc::WAYS => Second::Narrow(Assoc::new(s.entries, s.ways, sharers, one_space)),
                    _ => {
                        Second::Wide(Recent::new((s.entries, s.ways), [false; 2], false, sharers, one_space))
                    }
                })
                .collect(),
            sharers,
            space: 0,
            pieces: 0,
            held: [0; REGIONS],
        }
    }

    /// Does this side have TLBs at all?
    pub fn has(&self, side: Side) -> bool {
        self.sizes[side as usize].iter().any(|a| a.first != NONE)
    }

    /// Looks a page up; a write (`write`) needs an entry that allows it as it is. A page that left the side's
    /// filter since the last look-up comes with the time of its last use: `left`.
    #[inline(never)]
    pub fn lookup(
        &mut self,
        side: Side,
        gva: Gva,
        write: bool,
        left: Option<(u64, u64)>,
        now: Now<'_>,
    ) -> Lookup {
        if let Some((page, last)) = left {
            self.used_at(side, page, last);
        }
        let held = self.held[region(page_number(gva))];
        // Most regions hold 4 KB pages alone, and most sharers the same in a page's sets.
        if held == 1 << PageSize::Size4K as u8 {
            if let Some(answer) = self.lookup_alike(side, gva, write, now.time, &mut *now.filters) {
                return answer;
            }
        }
        self.lookup_sizes(held, side, gva, write, now)
    }

    /// Looks up a page around which only 4 KB pages are held. None, and nothing has changed, if the sharers
    /// hold different entries in the sets for the page.
    #[inline(always)]
    fn lookup_alike(
        &mut self,
        side: Side,
        gva: Gva,
        write: bool,
        time: u64,
        filters: &mut [Filter; 2],
    ) -> Option<Lookup> {
        let Arrays { first, second } = self.sizes[side as usize][PageSize::Size4K as usize];
        let k = key(PageSize::Size4K, gva);
        let (key, all) = (k | self.space, self.sharers);
        let refuses = |attr: Attr| if write { all & !attr.writable } else { 0 };
        let mut array = self.first.get_mut(usize::from(first))?.alike(key)?;
        if let Some(attr) = array.lookup(time) {
            let refused = refuses(attr);
            return Some(Lookup { first: all & !refused, refused_first: refused, ..Lookup::default() });
        }
        let Some(Second::Narrow(second)) = self.second.get_mut(usize::from(second)) else { return None };
        let Some(attr) = second.lookup_alike(k, key)? else { return Some(Lookup::default()) };
        let refused = refuses(attr);
        if refused == 0 {
            array.insert_absent(attr, time, filters);
        } else if refused != all {
            let array = &mut self.first[usize::from(first)];
            array.insert_absent(key, all & !refused, attr, time, filters);
        }
        Some(Lookup { second: all & !refused, refused_second: refused, ..Lookup::default() })
    }

    #[inline(never)]
    fn lookup_sizes(
        &mut self,
        held: u8,
        side: Side,
        gva: Gva,
        write: bool,
        Now { time, filters }: Now<'_>,
    ) -> Lookup {
        let Tlb { first, second, sizes, sharers, space, .. } = self;
        let sizes = &sizes[side as usize];
        let refuses = |attr: Attr, holders: u8| if write { holders & !attr.writable } else { 0 };
        let mut answer = Lookup::default();
        let mut open = *sharers;
        for size in sizes_of(held) {
            let Some(array) = first.get_mut(usize::from(sizes[size as usize].first)) else { continue };
            let key = key(size, gva) | *space;
            if let (true, Some(mut alike)) = (open == *sharers, array.alike(key)) {
                let Some(attr) = alike.lookup(time) else { continue };
                let refused = refuses(attr, open);
                return Lookup { first: open & !refused, refused_first: refused, ..answer };
            }
            let mut refused = 0;
            let found = |attr, holders| refused |= refuses(attr, holders);
            let hit = array.lookup(key, open, time, found);
            answer.first |= hit & !refused;
            answer.refused_first |= refused;
            open &= !hit;
            if open == 0 {
                return answer;
            }
        }
        for size in sizes_of(held) {
            let Arrays { first: a, second: b } = sizes[size as usize];
            let Some(array) = second.get_mut(usize::from(b)) else { continue };
            let k = key(size, gva);
            // What is found, by kind: entries that differ in rights alone go on as one.
            let (mut kinds, mut n) = ([(Attr::default(), 0); SHARERS], 0);
            let found = |attr: Attr, holders: u8| {
                let own = Attr { writable: attr.writable & holders, ..attr };
                match kinds[..n].iter_mut().find(|(kind, _)| Attr { writable: own.writable, ..*kind } == own)
                {
                    Some((kind, of)) => (kind.writable, *of) = (kind.writable | own.writable, *of | holders),
                    None => {
                        kinds[n] = (own, holders);
                        n += 1;
                    }
                }
            };
            let hit = match array {
                Second::Narrow(array) => array.lookup(k, k | *space, open, found),
                Second::Wide(array) => array.lookup(k | *space, open, time, found),
            };
            for &(attr, holders) in &kinds[..n] {
                let refused = refuses(attr, holders);
                answer.second |= holders & !refused;
                answer.refused_second |= refused;
                if holders != refused {
                    let first = &mut first[usize::from(a)];
                    first.insert_absent(k | *space, holders & !refused, attr, time, filters);
                }
            }
            open &= !hit;
            if open == 0 {
                break;
            }
        }
        answer
    }

    /// Files a translation after a walk, in both levels.
    #[inline]
    pub fn fill(&mut self, side: Side, gva: Gva, filing: Filing, Now { time, filters }: Now<'_>) {
        let Filing { of, entry, writable, fresh } = filing;
        let Tlb { first, second, sizes, space, pieces, held, .. } = self;
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
        *pieces |= u64::from(piece != 0) << region(page_number(gva));
        let attr = Attr { writable, global: entry.global, piece };
        let k = key(size, gva);
        let key = k | *space;
        let array = &mut first[usize::from(a.first)];
        let amended = if fresh { 0 } else { array.allow(key, of, writable, time) };
        if of != amended {
            array.insert_absent(key, of & !amended, attr, time, filters);
        }
        let absent = |held: u8| of & !(held | amended);
        // The second level is filled on a first-level miss only.
        match second.get_mut(usize::from(a.second)) {
            Some(Second::Narrow(array)) => {
                let absent = absent(if fresh { 0 } else { array.allow(k, key, of, writable) });
                if absent != 0 {
                    array.insert_absent(k, key, absent, attr);
                }
            }
            Some(Second::Wide(array)) => {
                let absent = absent(if fresh { 0 } else { array.allow(key, of, writable, 0) });
                if absent != 0 {
                    array.insert_absent(key, absent, attr, time, filters);
                }
            }
            None => {}
        }
    }

    /// Do both levels of all sharers miss a page around which only 4 KB pages are held? Nothing becomes more
    /// recent. May say no where [`Tlb::lookup`] finds nothing.
    #[inline]
    pub fn misses_small(&mut self, side: Side, gva: Gva) -> bool {
        let Arrays { first, second } = self.sizes[side as usize][PageSize::Size4K as usize];
        let k = key(PageSize::Size4K, gva);
        let key = k | self.space;
        self.held[region(page_number(gva))] == 1 << PageSize::Size4K as u8
            && self.first.get_mut(usize::from(first)).is_some_and(|a| !a.holds(key))
            && match self.second.get_mut(usize::from(second)) {
                Some(Second::Narrow(array)) => !array.holds(k, key),
                _ => false,
            }
    }

    /// Files a 4 KB page that is not global, and [missing](Tlb::misses_small), in both levels of all sharers.
    #[inline(always)]
    pub fn fill_small(&mut self, side: Side, gva: Gva, writable: u8, time: u64, filters: &mut [Filter; 2]) {
        let Arrays { first, second } = self.sizes[side as usize][PageSize::Size4K as usize];
        let k = key(PageSize::Size4K, gva);
        let attr = Attr { writable, global: false, piece: 0 };
        if let Some(Second::Narrow(array)) = self.second.get_mut(usize::from(second)) {
            array.insert_absent(k, k | self.space, self.sharers, attr);
        }
        let array = &mut self.first[usize::from(first)];
        match array.alike(k | self.space) {
            Some(mut set) => set.insert_absent(attr, time, filters),
            None => array.insert_absent(k | self.space, self.sharers, attr, time, filters),
        }
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
        self.drop_page(PageSize::Size4K, gva, u8::MAX);
    }

    /// [`Tlb::invalidate`] of the sharers `of`, without entries of 4 KB pages: for an address in the other
    /// piece of a page of 4 MB, which the arrays hold as two of 2 MB.
    pub fn invalidate_large(&mut self, gva: Gva, of: u8) {
        self.drop_page(PageSize::Size2M, gva, of);
    }

    fn drop_page(&mut self, least: PageSize, gva: Gva, of: u8) {
        for size in PageSize::ALL.into_iter().filter(|&size| size >= least) {
            let k = key(size, gva);
            let key = k | self.space;
            self.first.iter_mut().for_each(|array| array.remove(key, of));
            for array in &mut self.second {
                match array {
                    Second::Narrow(array) => array.remove(k, key, of),
                    Second::Wide(array) => array.remove(key, of),
                }
            }
        }
        if self.pieces >> region(page_number(gva)) & 1 != 0 {
            let space = self.space;
            let keep = |k: u64, attr: Attr, _: u8| {
                if attr.piece == 0 {
                    return true;
                }
                let whole = PageSize::ALL[usize::from(attr.piece) % 3];
                let held = PageSize::ALL[(k >> (PAGE_BITS - 3) & 3) as usize % 3];
                let number =
                    (k & ((1 << (PAGE_BITS - 3)) - 1)) >> (whole.shift() - held.shift().min(whole.shift()));
                let its = key(whole, Gva(number << whole.shift())) | k >> PAGE_BITS << PAGE_BITS;
                !matches(its, attr, key(whole, gva) | space)
            };
            self.retain(of, keep);
        }
    }

    /// Drops everything of the sharers `of`.
    pub fn flush_all(&mut self, of: u8) {
        if of == 0 {
            return;
        }
        self.first.iter_mut().for_each(|array| array.flush_all(of));
        self.second.iter_mut().for_each(|second| each!(second, array => array.flush_all(of)));
        if of == self.sharers {
            self.pieces = 0;
            self.held = [0; REGIONS];
        }
    }

    /// Drops all but global entries of the sharers `of` (MOV to CR3 without PCID).
    pub fn flush_non_global(&mut self, of: u8) {
        self.first.iter_mut().for_each(|array| array.flush_non_global(of));
        self.second.iter_mut().for_each(|second| each!(second, array => array.flush_non_global(of)));
    }

    /// Changes the current address space without dropping anything (PCID).
    pub fn set_space(&mut self, space: u16) {
        self.space = u64::from(space) << PAGE_BITS;
    }

    /// Drops one address space's entries.
    pub fn flush_space(&mut self, space: u16) {
        self.retain(u8::MAX, |k, attr, _| attr.global || k >> PAGE_BITS != u64::from(space));
    }

    /// Drops the entries of the sharers `of` for which `keep`, given the key, the attributes and those of
    /// them that hold it, is false.
    fn retain(&mut self, of: u8, mut keep: impl FnMut(u64, Attr, u8) -> bool) {
        let of = of & self.sharers;
        self.first.iter_mut().for_each(|array| array.retain(of, &mut keep));
        self.second.iter_mut().for_each(|second| each!(second, array => array.retain(of, &mut keep)));
    }

    /// The pages held now, as a virtual address each, with the sharers that hold one.
    pub fn pages(&mut self) -> Vec<(Gva, u8)> {
        let mut pages = Vec::new();
        self.retain(u8::MAX, |k, _, holders| {
            let k = k & ((1 << PAGE_BITS) - 1);
            let size = PageSize::ALL[(k >> (PAGE_BITS - 3)) as usize % 3];
            let va = (k & ((1 << (PAGE_BITS - 3)) - 1)) << size.shift();
            pages.push((Gva(((va << 7) as i64 >> 7) as u64), holders));
            true
        });
        pages.sort_unstable();
        let same = |(gva, holders): &mut (Gva, u8), (first, all): &mut (Gva, u8)| {
            *all |= if gva == first { *holders } else { 0 };
            gva == first
        };
        pages.dedup_by(same);
        pages
    }
}

/// Is an entry filed under `key` with `attr` the one for `wanted`?
fn matches(key: u64, attr: Attr, wanted: u64) -> bool {
    key == wanted || (attr.global && (key ^ wanted) & ((1 << PAGE_BITS) - 1) == 0)
}
