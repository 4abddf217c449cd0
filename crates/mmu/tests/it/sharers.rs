// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLBs that configurations share answer each of them as its own would.

use bifold_mmu::{ArraySpec, Entry, Filter, Gva, Lookup, PageSize, Side, Tlb};
use proptest::prelude::*;

/// Sharers of the TLBs under test.
const SHARERS: usize = 3;
const ALL: u8 = (1 << SHARERS) - 1;

fn array(level: u8, sizes: &[PageSize], entries: usize, ways: usize) -> ArraySpec {
    ArraySpec { level, data: true, code: false, sizes: sizes.to_vec(), entries, ways }
}

/// A configuration's walk.
#[derive(Debug, Clone, Copy)]
struct Walk {
    large: bool,
    global: bool,
    writable: bool,
}

impl Walk {
    fn entry(self) -> Entry {
        let size = if self.large { PageSize::Size2M } else { PageSize::Size4K };
        Entry { size, page: PageSize::Size2M, writable: self.writable, global: self.global }
    }
}

/// Looks a page up for the sharers of `tlb`, and files what each walks to where a walk follows.
fn access(
    tlb: &mut Tlb,
    gva: Gva,
    write: bool,
    walks: &[Walk],
    time: u64,
    filters: &mut [Filter; 2],
) -> Lookup {
    let answer = tlb.lookup(Side::Data, gva, write, time, None, filters);
    for (place, walk) in walks.iter().enumerate() {
        let of = 1 << place;
        if answer.held() & of == 0 {
            let (writable, fresh) = (if walk.writable || write { of } else { 0 }, answer.refused() & of == 0);
            tlb.fill(Side::Data, gva, of, walk.entry(), writable, fresh, time, filters);
        }
    }
    answer
}

/// The part of an answer that is of one sharer, as that of the only one.
fn of_one(answer: Lookup, place: usize) -> Lookup {
    let bit = |bits: u8| bits >> place & 1;
    Lookup {
        first: bit(answer.first),
        second: bit(answer.second),
        refused_first: bit(answer.refused_first),
        refused_second: bit(answer.refused_second),
    }
}

fn walk() -> impl Strategy<Value = Walk> {
    (any::<bool>(), any::<bool>(), any::<bool>()).prop_map(|(large, global, writable)| Walk {
        large,
        global,
        writable,
    })
}

proptest! {
    #[test]
    fn shared_tlbs_answer_each_sharer_as_its_own(
        wide in any::<bool>(),
        walks in proptest::collection::vec([walk(), walk(), walk()], 8),
        ops in proptest::collection::vec((0u8..60, 0u64..40, any::<bool>(), 1u8..=ALL), 1..900),
    ) {
        let small = [PageSize::Size4K];
        let second = if wide { (18, 0) } else { (16, 4) };
        let specs = [
            array(1, &small, 8, 4),
            array(1, &[PageSize::Size2M], 4, 2),
            array(2, &[PageSize::Size4K, PageSize::Size2M], second.0, second.1),
        ];
        let mut shared = Tlb::new(&specs, SHARERS, true);
        let mut own = vec![Tlb::new(&specs, 1, true); SHARERS];
        let filters = || [Filter::default(), Filter::default()];
        for (time, (op, page, write, of)) in (1u64..).zip(ops) {
            // Eight pages of 2 MB, of which five 4 KB pages each are used: sharers hold some at different sizes.
            let region = page / 5;
            let gva = Gva((region << 21) + ((page % 5) << 12));
            let concerned = |place: &usize| of >> place & 1 != 0;
            match op {
                0 => {
                    shared.flush_all(of);
                    (0..SHARERS).filter(concerned).for_each(|place| own[place].flush_all(1));
                }
                1 | 2 => {
                    shared.flush_non_global(of);
                    (0..SHARERS).filter(concerned).for_each(|place| own[place].flush_non_global(1));
                }
                3 => {
                    shared.invalidate(gva);
                    own.iter_mut().for_each(|tlb| tlb.invalidate(gva));
                }
                _ => {
                    let walks = &walks[region as usize];
                    let together = access(&mut shared, gva, write, walks, time, &mut filters());
                    for (place, tlb) in own.iter_mut().enumerate() {
                        let alone = access(tlb, gva, write, &walks[place..=place], time, &mut filters());
                        prop_assert_eq!(of_one(together, place), alone, "sharer {}", place);
                    }
                }
            }
            let pages = shared.pages();
            for (place, tlb) in own.iter_mut().enumerate() {
                let held = pages.iter().filter(|(_, holders)| holders >> place & 1 != 0).map(|(gva, _)| *gva);
                let alone = tlb.pages().into_iter().map(|(gva, _)| gva);
                prop_assert!(held.eq(alone), "sharer {} holds other pages", place);
            }
        }
    }
}
