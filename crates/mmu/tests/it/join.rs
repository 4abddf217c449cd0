// SPDX-License-Identifier: Apache-2.0 OR MIT
//! TLBs of two configurations that join answer each of them as its own would.

use bifold_mmu::{ArraySpec, Entry, Filter, Gva, Lookup, PageSize, Side, Tlb};
use proptest::prelude::*;

fn array(level: u8, sizes: &[PageSize], entries: usize, ways: usize) -> ArraySpec {
    ArraySpec { level, data: true, code: false, sizes: sizes.to_vec(), entries, ways }
}

/// Looks `gva` up, and files it where a walk would: the answer, and what left the first level.
fn access(tlb: &mut Tlb, gva: Gva, writes: u8, entry: Entry, writable: u8, time: u64) -> (Lookup, Evicted) {
    let filters = [Filter::default(), Filter::default()];
    let answer = tlb.lookup(Side::Data, gva, writes, time, None, &filters);
    match answer {
        Lookup::L1 | Lookup::L2 => {}
        Lookup::Miss => tlb.fill(Side::Data, gva, entry, writable | writes, true, time, &filters),
        _ => tlb.fill(Side::Data, gva, entry, writes, false, time, &filters),
    }
    (answer, tlb.take_evicted())
}

type Evicted = Option<(PageSize, u64)>;

/// The answers of a first and a second sharer as one.
fn together(a: Lookup, b: Lookup) -> Lookup {
    use Lookup::{L1, L2, NotWritable, NotWritableL2};
    match (a, b) {
        (NotWritable(..), L1) => a,
        (NotWritableL2(..), L2) => a,
        (L1, NotWritable(_, size)) => NotWritable(2, size),
        (L2, NotWritableL2(_, size)) => NotWritableL2(2, size),
        (NotWritable(_, size), NotWritable(..)) => NotWritable(3, size),
        (NotWritableL2(_, size), NotWritableL2(..)) => NotWritableL2(3, size),
        _ => {
            assert_eq!(a, b);
            a
        }
    }
}

proptest! {
    #[test]
    fn joined_tlbs_answer_each_as_its_own(
        wide in any::<bool>(),
        ops in proptest::collection::vec((0u8..60, 0u64..30, any::<bool>(), 0u8..4), 1..900),
    ) {
        let (small, large) = ([PageSize::Size4K], [PageSize::Size2M]);
        let second = if wide { (18, 0) } else { (16, 4) };
        let mut a = Tlb::new(&[
            array(1, &small, 8, 4),
            array(1, &large, 4, 2),
            array(2, &[PageSize::Size4K, PageSize::Size2M], second.0, second.1),
        ]);
        let mut b = a.clone();
        let mut both: Option<Tlb> = None;
        for (time, (op, page, write, writable)) in (1u64..).zip(ops) {
            if op == 0 {
                // A flush that concerns one: they join when they hold the same again.
                b.flush_all();
                both = None;
            }
            if both.is_none() && a.holds_same(&mut b) {
                let mut joined = a.clone();
                joined.join(&mut b.clone(), 1);
                both = Some(joined);
            }
            let size = if page < 24 { PageSize::Size4K } else { PageSize::Size2M };
            let gva = Gva(page << size.shift());
            let entry = Entry { size, page: size, writable: true, global: false };
            let w = u8::from(write);
            let (of_a, out_a) = access(&mut a, gva, w, entry, writable & 1, time);
            let (of_b, out_b) = access(&mut b, gva, w, entry, writable >> 1, time);
            if let Some(both) = &mut both {
                let (of_both, out) = access(both, gva, 3 * w, entry, writable, time);
                prop_assert_eq!((of_both, out), (together(of_a, of_b), out_a));
                prop_assert_eq!(out, out_b);
                prop_assert_eq!(both.pages(), a.pages());
            }
        }
    }

    #[test]
    fn tlbs_that_differ_by_one_use_do_not_hold_the_same(
        wide in any::<bool>(), pages in proptest::collection::vec(0u64..30, 1..60), last in 0u64..30,
    ) {
        let second = if wide { (18, 0) } else { (16, 4) };
        let small = [PageSize::Size4K];
        let mut a = Tlb::new(&[array(1, &small, 8, 4), array(2, &small, second.0, second.1)]);
        let size = PageSize::Size4K;
        let entry = Entry { size, page: size, writable: true, global: false };
        for (time, page) in (1u64..).zip(&pages) {
            access(&mut a, Gva(page << 12), 0, entry, 1, time);
        }
        let mut b = a.clone();
        prop_assert!(a.holds_same(&mut b));
        access(&mut b, Gva(last << 12), 0, entry, 1, 1000);
        prop_assert!(!a.holds_same(&mut b));
    }
}
