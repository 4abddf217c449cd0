// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Walk caches against lists: for random walks of both dimensions, the same starts and
//! the same entries held.

use bifold_mmu::{CacheSpec, Dimension, Start, Tag, WalkCache};
use proptest::prelude::*;

/// Most recent first: dimension, level, tag, table.
type List = Vec<(bool, u8, u64, u64)>;

struct Lists {
    specs: Vec<(Vec<u8>, bool, bool, usize)>,
    lists: Vec<List>,
    physical: bool,
}

impl Lists {
    fn of(&self, host: bool, level: u8) -> Option<usize> {
        self.specs.iter().position(|s| s.0.contains(&level) && if host { s.2 } else { s.1 })
    }

    fn find(&mut self, host: bool, level: u8, tag: u64) -> Option<u64> {
        let physical = self.physical;
        let at = self.of(host, level)?;
        let list = &mut self.lists[at];
        let at = list.iter().position(|e| e.0 == host && (physical || e.1 == level) && e.2 == tag)?;
        let e = list.remove(at);
        list.insert(0, e);
        Some(e.3)
    }

    fn file(&mut self, host: bool, level: u8, tag: u64, table: u64) {
        let Some(i) = self.of(host, level) else { return };
        self.lists[i].insert(0, (host, level, tag, table));
        let n = self.specs[i].3;
        self.lists[i].truncate(n);
    }
}

fn spec(levels: &[u8], guest: bool, host: bool, entries: usize) -> CacheSpec {
    CacheSpec { levels: levels.to_vec(), guest, host, entries, ways: 0 }
}

proptest! {
    #[test]
    fn fully_associative_caches_behave_as_lists(
        physical: bool,
        shared: bool,
        ops in proptest::collection::vec((0u8..40, any::<bool>(), 0u64..3, 0u64..4, 0u64..6), 1..400),
    ) {
        let specs = if shared {
            vec![spec(&[2, 3, 4], true, true, 7)]
        } else {
            vec![spec(&[4], true, false, 2), spec(&[3], true, false, 3), spec(&[2], true, true, 5), spec(&[3, 4], false, true, 4)]
        };
        let tag = if physical { Tag::Physical } else { Tag::Virtual };
        let mut fast = WalkCache::new(tag, &specs, None);
        let mut slow = Lists {
            lists: vec![List::new(); specs.len()],
            specs: specs.into_iter().map(|s| (s.levels, s.guest, s.host, s.entries)).collect(),
            physical,
        };
        let root = Start { level: 4, table: 0 };
        for (op, host, a, b, c) in ops {
            match op {
                0 => { fast.flush_all(); slow.lists.iter_mut().for_each(Vec::clear); continue; }
                1..=3 => { fast.flush_guest(); slow.lists.iter_mut().for_each(|l| l.retain(|e| e.0)); continue; }
                _ => {}
            }
            let dim = if host { Dimension::Host } else { Dimension::Guest };
            let va = a << 39 | b << 30 | c << 21;
            let prefix = |level: u8| va >> (3 + 9 * u32::from(level));
            // What the entry of a level points to and where it lies are given by its prefix.
            let table = |level: u8| (prefix(level) << 16 | u64::from(level) << 12 | u64::from(host) << 60) & !0xfff;
            let at = |level: u8| (if level == 4 { 0 } else { table(level + 1) }) + 8 * (prefix(level) & 511) + (u64::from(host) << 50);
            let got = fast.start(dim, va, root);
            let found = if physical { None } else { (2..=4).find_map(|l| Some((l, slow.find(host, l, prefix(l))?))) };
            let expected = found.map_or(root, |(l, table)| Start { level: l - 1, table });
            prop_assert_eq!(got, expected);
            for level in (2..=got.level).rev() {
                let held = fast.holds(dim, level, at(level));
                prop_assert_eq!(held, physical && slow.find(host, level, at(level) >> 3).is_some());
                if !held {
                    fast.fill(dim, level, va, at(level), table(level));
                    slow.file(host, level, if physical { at(level) >> 3 } else { prefix(level) }, table(level));
                }
            }
        }
    }

    #[test]
    fn the_nested_tlb_answers_writes_only_for_pages_filed_writable(
        ops in proptest::collection::vec((0u64..12, any::<bool>(), any::<bool>()), 1..300),
    ) {
        let mut fast = WalkCache::new(Tag::Virtual, &[], Some((8, 0)));
        let mut slow: Vec<(u64, bool)> = Vec::new();
        for (page, write, writable) in ops {
            let got = fast.nested_lookup(page, write);
            let at = slow.iter().position(|e| e.0 == page);
            let held = at.is_some_and(|at| { let e = slow.remove(at); slow.insert(0, e); !write || e.1 });
            prop_assert_eq!(got, held);
            if !held {
                let writable = writable || write;
                fast.nested_fill(page, write, writable);
                slow.retain(|e| e.0 != page);
                slow.insert(0, (page, writable));
                slow.truncate(8);
            }
            fast.flush_guest();
        }
    }
}
