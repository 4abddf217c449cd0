// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A ready entry's walk is the walk of any entry, and what the host does to a page reaches the tables.

use super::*;
use crate::KvmVersion;
use crate::host::Taking;
use crate::memory::{Refs, Uncached};
use bifold_mmu::CacheSpec;
use bifold_mmu::Tag;
use bifold_mmu::format::{X86_64_4_LEVEL, X86_64_5_LEVEL};
use proptest::prelude::*;

/// Tables with their walk caches and counts.
struct Side(Nested, WalkCache, Refs, HostMemory);

impl Side {
    fn new(format: &'static Format, page: PageSize, tag: Tag, nested_tlb: bool) -> Side {
        let specs = [(2, 4), (3, 2), (4, 2)].map(|(level, entries)| CacheSpec {
            levels: vec![level],
            guest: false,
            host: true,
            entries,
            ways: 0,
        });
        let host = HostMemory::new(page, 1 << 12, Default::default(), 1).of_version(KvmVersion::Linux6_1);
        let caches = WalkCache::new(tag, &specs, nested_tlb.then_some((4, 2)));
        Side(Nested::new(&host, format), caches, Refs::default(), host)
    }

    /// Translates, violations included; returns their number and whether the page may be written.
    fn translate(&mut self, gpa: Gpa, write: bool) -> (u32, bool) {
        for violations in 0.. {
            let mut hw = Hardware { caches: &mut self.1, memory: &mut Uncached, refs: &mut self.2 };
            match self.0.translate(&mut hw, gpa, write, 0) {
                Ok(()) => return (violations, self.0.writable(gpa)),
                Err(v) => drop(self.0.resolve(&mut self.3, v, 0)),
            }
        }
        unreachable!()
    }
}

proptest! {
    /// The same tables, of which one side forgets its ready bits before every step.
    #[test]
    fn ready_bits_change_no_reference_no_violation_and_no_age(
        five in any::<bool>(), large in any::<bool>(), physical in any::<bool>(), nested_tlb in any::<bool>(),
        ops in proptest::collection::vec((0u8..40, 0u64..64, any::<bool>()), 1..600),
    ) {
        let page = if large { PageSize::Size2M } else { PageSize::Size4K };
        let tag = if physical { Tag::Physical } else { Tag::Virtual };
        let format = if five { &X86_64_5_LEVEL } else { &X86_64_4_LEVEL };
        let side = || Side::new(format, page, tag, nested_tlb);
        let (mut with, mut without) = (side(), side());
        for (op, n, write) in ops {
            // Pages near each other, and under several tables of the level above.
            let gfn = (n & 7) | ((n >> 3) * 488);
            for side in [&mut with, &mut without] {
                match op {
                    0 => side.0.begin_interval(),
                    1 if side.0.host_unmapped(gfn..gfn + 3) => side.1.flush_all(),
                    2 => {
                        // The other mode backs a frame meanwhile.
                        side.3.note_unmapped(true);
                        _ = side.3.touch(Gpa::from_frame(gfn), true, 0);
                        side.3.take_unmapped().into_iter().flatten().for_each(|gfns| _ = side.0.host_unmapped(gfns));
                        side.3.note_unmapped(false);
                        side.0.resume();
                        side.1.flush_all();
                    }
                    3 => side.1.flush_guest(),
                    4 => {
                        let gone = side.3.take_back(gfn..gfn + 3, if write { Taking::Swap } else { Taking::Discard });
                        let mut dropped = false;
                        gone.into_iter().for_each(|gfns| dropped |= side.0.host_unmapped(gfns));
                        if dropped {
                            side.1.flush_all();
                        }
                    }
                    5 => {
                        let Side(nested, caches, _, host) = &mut *side;
                        if host.look(|gfns| nested.clear_young(gfns)) {
                            caches.flush_all();
                        }
                    }
                    _ => {}
                }
            }
            without.0.ready.fill(0);
            if op > 5 {
                let gpa = Gpa::from_frame(gfn);
                prop_assert_eq!(with.translate(gpa, write), without.translate(gpa, write));
            }
            prop_assert_eq!(with.2, without.2);
            prop_assert_eq!(with.0.reuse(), without.0.reuse());
            prop_assert_eq!(with.3.oldest(64), without.3.oldest(64));
        }
    }
}

/// A read brings a part of a large page back from swap, read-only, and its entry is kept while the other mode
/// writes the page. Such parts have no ready bits.
#[test]
fn a_kept_read_only_entry_stays_so_when_the_hosts_page_becomes_writable() {
    let mut side = Side::new(&X86_64_4_LEVEL, PageSize::Size2M, Tag::Physical, true);
    let gpa = Gpa::from_frame(5);
    assert_eq!(side.translate(gpa, true), (1, true));
    for gfns in side.3.take_back(5..6, Taking::Swap) {
        side.0.host_unmapped(gfns);
    }
    side.1.flush_all();
    assert_eq!(side.translate(gpa, false), (1, false));
    assert_eq!(side.3.touch(gpa, true, 0), None, "the other mode's write reuses the page");
    side.0.resume();
    assert_eq!(side.translate(gpa, false), (0, false));
    assert_eq!(side.translate(gpa, true), (1, true));
}
