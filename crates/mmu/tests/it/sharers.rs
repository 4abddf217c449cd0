// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLBs that configurations share answer each of them as its own would.

use bifold_mmu::{ArraySpec, Entry, Filing, Filter, Gva, Lookup, Now, PageSize, Side, Tlb};
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

/// TLBs of some sharers, with the filter in front of them as the model has it.
struct Cpu {
    tlb: Tlb,
    all: u8,
    filters: [Filter; 2],
}

impl Cpu {
    fn new(specs: &[ArraySpec], sharers: usize) -> Cpu {
        let tlb = Tlb::new(specs, sharers, true);
        Cpu { tlb, all: (1 << sharers) - 1, filters: [Filter::default(), Filter::default()] }
    }

    /// A load or store. What misses is filed as each sharer's walk ends.
    fn access(&mut self, gva: Gva, write: bool, walks: &[Walk], time: u64) -> Lookup {
        let Cpu { tlb, all, filters } = self;
        let page = gva.0 >> 12;
        if filters[0].hit(page, write, time) {
            return Lookup { first: *all, ..Lookup::default() };
        }
        let left = filters[0].take(page);
        let answer = tlb.lookup(Side::Data, gva, write, left, Now { time, filters });
        for (place, walk) in walks.iter().enumerate() {
            let of = 1 << place;
            if answer.held() & of == 0 {
                let (writable, fresh) =
                    (if walk.writable || write { of } else { 0 }, answer.refused() & of == 0);
                let filing = Filing { of, entry: walk.entry(), writable, fresh };
                tlb.fill(Side::Data, gva, filing, Now { time, filters });
            }
        }
        filters[0].file(page, write, tlb.may_hold_large(page), time);
        answer
    }

    /// Something is dropped, so that the filter answers for no page any more.
    fn drop_some(&mut self, drop: impl FnOnce(&mut Tlb)) {
        drop(&mut self.tlb);
        self.filters.iter_mut().for_each(Filter::forget);
    }
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
        let mut shared = Cpu::new(&specs, SHARERS);
        let mut own: Vec<Cpu> = (0..SHARERS).map(|_| Cpu::new(&specs, 1)).collect();
        for (time, (op, page, write, of)) in (1u64..).zip(ops) {
            // Eight pages of 2 MB, of which five 4 KB pages each are used: sharers hold some at different
            // sizes.
            let region = page / 5;
            let gva = Gva((region << 21) + ((page % 5) << 12));
            let concerned = |place: usize| u8::from(of >> place & 1 != 0);
            match op {
                0 => {
                    shared.drop_some(|tlb| tlb.flush_all(of));
                    let each = own.iter_mut().enumerate();
                    each.for_each(|(place, cpu)| cpu.drop_some(|tlb| tlb.flush_all(concerned(place))));
                }
                1 | 2 => {
                    shared.drop_some(|tlb| tlb.flush_non_global(of));
                    let each = own.iter_mut().enumerate();
                    each.for_each(|(place, cpu)| cpu.drop_some(|tlb| tlb.flush_non_global(concerned(place))));
                }
                3 => {
                    shared.drop_some(|tlb| tlb.invalidate(gva));
                    own.iter_mut().for_each(|cpu| cpu.drop_some(|tlb| tlb.invalidate(gva)));
                }
                _ => {
                    let walks = &walks[region as usize];
                    let together = shared.access(gva, write, walks, time);
                    for (place, cpu) in own.iter_mut().enumerate() {
                        let alone = cpu.access(gva, write, &walks[place..=place], time);
                        prop_assert_eq!(of_one(together, place), alone, "sharer {}", place);
                    }
                }
            }
            let pages = shared.tlb.pages();
            for (place, cpu) in own.iter_mut().enumerate() {
                let held = pages.iter().filter(|(_, holders)| holders >> place & 1 != 0).map(|(gva, _)| *gva);
                let alone = cpu.tlb.pages().into_iter().map(|(gva, _)| gva);
                prop_assert!(held.eq(alone), "sharer {} holds other pages", place);
            }
        }
    }
}
