// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commonest miss of a program that misses often: no TLB holds the page, a 4 KB page of the guest's that
//! is not global, and no configuration's walk takes an exit or notes anything new. Such a miss changes the
//! TLBs, the walk caches and counts alone, so it takes a shorter way to the same state as [`super::miss`].
//! Whether a miss is such a one is known before anything is changed.

use super::Model;
use super::access::{KINDS, LOAD, STORE};
use crate::access::Steady;
use crate::memory::Uncached;
use crate::regime::Regime;
use bifold_mmu::{Gva, Side};
use bifold_trace::event::{KIND_SHIFT, PAYLOAD_MASK, head_va, kind};

/// The most configurations for which a miss may take the shorter way.
const MOST: usize = u64::BITS as usize;

impl Model {
    /// Consumes accesses from word `i` on, which the filter does not answer: steady misses, and in between
    /// what filters answer, at most up to word `end`. Returns the number of the first word left. Of
    /// observers, data caches alone may be there.
    #[inline(never)]
    pub(super) fn consume_steady<const OBSERVED: bool>(
        &mut self,
        words: &[u64],
        mut i: usize,
        end: usize,
    ) -> usize {
        let Model { regimes, groups, guest, current, .. } = self;
        let words = &words[..end.min(words.len())];
        let access =
            |i: usize| words.get(i).filter(|&w| KINDS[(w >> KIND_SHIFT) as usize] & (LOAD | STORE) != 0);
        let may = |regimes: &[Regime]| regimes.iter().all(|r| r.may_be_steady(*current, guest));
        // Most accesses that come here after a lone miss are held by some TLB.
        let misses_all =
            |&w: &u64| groups.iter_mut().all(|g| g.tlbs[*current].misses_small(Side::Data, Gva(head_va(w))));
        if !access(i).is_some_and(misses_all) || regimes.len() > MOST || !may(regimes) {
            return i;
        }
        let mut taken = 0;
        while let Some(&w) = access(i) {
            let (kind, gva) = (w >> KIND_SHIFT, Gva(head_va(w)));
            let (write, dependent) = (KINDS[kind as usize] == STORE, kind == kind::LOAD_DEPENDENT);
            if !self.take_steady::<OBSERVED>(gva, write, dependent) {
                break;
            }
            taken += 1;
            self.common.accesses += 1;
            if OBSERVED {
                self.observe(gva, write, dependent);
            }
            i = self.consume_hits::<OBSERVED>(words, i + 1, end);
        }
        self.misses += taken;
        self.regimes.iter_mut().for_each(|regime| regime.count_steady(taken));
        i
    }

    /// Takes an access to data that the filter did not answer, if it is a steady miss. What all of a run have
    /// in common is the caller's to count. `dependent`: the core waits for the access's walk.
    #[inline(always)]
    fn take_steady<const OBSERVED: bool>(&mut self, gva: Gva, write: bool, dependent: bool) -> bool {
        let Model { regimes, groups, guest, vcpus, current, frames, common, observers, .. } = self;
        let (v, access) = (&mut vcpus[*current], common.accesses + 1);
        let (vcpu, time) = (v.index, v.time + 1);
        if !groups.iter_mut().all(|g| g.tlbs[vcpu].misses_small(Side::Data, gva)) {
            return false;
        }
        let Some(path) = guest.path(v.root, gva) else { return false };
        let format = guest.format();
        let (entry, needed) = (path.entry, format.present | format.accessed);
        let writable = path.writable && entry & format.write != 0 && entry & format.dirty != 0;
        if entry & (needed | format.global) != needed || write && !writable {
            return false;
        }
        let miss = Steady { vcpu, gva, write, path, writable, format };
        if miss.gpa().frame() >= *frames {
            return false;
        }
        // A bit for each configuration through whose entry writes may go.
        let mut writable = 0u64;
        for (r, regime) in regimes.iter_mut().enumerate() {
            match regime.steady(&miss) {
                Some(allowed) => writable |= u64::from(allowed) << r,
                None => return false,
            }
        }
        v.time = time;
        let [filter, _] = &mut v.filters;
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        let leaves = filter.take(page);
        for group in groups.iter_mut() {
            let bits = group.mask(|r| writable >> r & 1 != 0);
            let tlb = &mut group.tlbs[vcpu];
            if let Some((left, last)) = leaves {
                tlb.used_at(Side::Data, left, last);
            }
            tlb.fill_small(Side::Data, gva, bits, time, &mut v.filters);
        }
        if OBSERVED {
            let at_once = observers.walks(access, vcpu, dependent);
            for (r, regime) in regimes.iter_mut().enumerate() {
                if let Some(caches) = &mut observers.caches {
                    regime.walk_steady(&miss, &mut caches.walker(r, vcpu, at_once));
                }
            }
        } else {
            regimes.iter_mut().for_each(|regime| regime.walk_steady(&miss, &mut Uncached));
        }
        let all = u64::MAX >> (MOST - regimes.len());
        v.filters[Side::Data as usize].file(page, write || writable == all, false, time);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::{CacheMode, Model, Options, Profile};
    use bifold_mmu::{Gpa, Gva};
    use bifold_trace::{DecodeError, Event, Generator};

    /// First address of trace T's random part.
    const RANDOM: u64 = 0x1_0000_0000;

    /// A model that has read T's first 4,096 pages in their order, so that no TLB holds the first ones.
    fn model() -> Model {
        model_of("geometry-g")
    }

    fn model_of(profile: &str) -> Model {
        let generator = Generator::parse("t:2").unwrap();
        let profile = Profile::load(profile, &[]).unwrap();
        let options = Options { guest_frames: generator.guest_frames(), ..Options::default() };
        let mut model = Model::new(&profile, options);
        generator.run(&mut |words| model.consume(words)).unwrap();
        read(&mut model, 0..4096);
        model
    }

    fn page(n: u64) -> Gva {
        Gva(RANDOM + (n << 12))
    }

    fn read(model: &mut Model, pages: std::ops::Range<u64>) {
        let mut words = Vec::new();
        pages.for_each(|n| Event::Load(page(n).0).encode(&mut words));
        model.consume(&words).unwrap();
    }

    /// Takes accesses to these pages as far as they are steady misses: how many were consumed.
    fn steady(model: &mut Model, pages: &[u64], write: bool) -> usize {
        let mut words = Vec::new();
        for &n in pages {
            let at = page(n).0;
            if write { Event::Store(at) } else { Event::Load(at) }.encode(&mut words);
        }
        model.consume_steady::<false>(&words, 0, words.len())
    }

    #[test]
    fn a_load_of_a_known_page_that_no_tlb_holds_is_a_steady_miss_of_every_configuration() {
        let mut model = model();
        let before = model.totals();
        assert_eq!(steady(&mut model, &(0..32).collect::<Vec<_>>(), false), 32);
        assert_eq!(steady(&mut model, &[31], false), 0, "it is held, and the filter would have answered");
        assert_eq!(steady(&mut model, &[32, 32, 33, 33, 5000, 34], false), 4, "page 5000 was never read");
        assert_eq!(steady(&mut model, &[100], true), 0, "a page that the host has not given for writes");
        assert_eq!(steady(&mut model, &(34..64).collect::<Vec<_>>(), false), 30);
        for ((config, now), (_, before)) in model.totals().into_iter().zip(before) {
            let more = now.since(&before);
            assert_eq!([more.walks, more.l1_misses, more.tlb_misses()], [64; 3], "{}", config.name());
            assert_eq!(more.accesses, 66, "{}", config.name());
            assert_eq!(more.all_exits(), 0);
        }
    }

    #[test]
    fn a_store_to_the_page_of_a_steady_load_is_answered_where_all_may_write() {
        let mut model = model();
        let mut words = Vec::new();
        (0..2048).for_each(|n| Event::Store(page(n).0).encode(&mut words));
        model.consume(&words).unwrap();
        read(&mut model, 2048..4096);
        let pairs = |pages: std::ops::Range<u64>| {
            let mut words = Vec::new();
            for n in pages {
                Event::Load(page(n).0).encode(&mut words);
                Event::Store(page(n).0).encode(&mut words);
            }
            words
        };
        let before = model.totals();
        assert_eq!(model.consume_steady::<false>(&pairs(0..32), 0, 64), 64);
        assert_eq!(model.consume_steady::<false>(&pairs(2048..2080), 0, 64), 1, "only the load");
        for ((config, now), (_, before)) in model.totals().into_iter().zip(before) {
            let more = now.since(&before);
            assert_eq!([more.accesses, more.walks, more.l1_misses], [65, 33, 33], "{}", config.name());
        }
    }

    /// With charges, every miss takes the general way.
    #[test]
    fn steady_misses_wait_for_data_caches_as_they_do_on_the_general_way() {
        let mut words = Vec::new();
        let mut keep = |w: &[u64]| {
            words.extend_from_slice(w);
            Ok::<(), DecodeError>(())
        };
        Generator::parse("t:20000").unwrap().run(&mut keep).unwrap();
        // Every other load of a random page depends on the one before.
        for n in 0..20_000u64 {
            let at = page(n * 2_654_435_761 % 4096).0 | ((n * 832) & 0xfc0);
            if n % 2 == 0 { Event::Load(at) } else { Event::LoadDependent(at) }.encode(&mut words);
        }
        for profile in ["i5-7600", "zen4"] {
            for caches in [CacheMode::Sampled, CacheMode::Exact] {
                let totals = |charges: bool| {
                    let guest_frames = Generator::parse("t:20000").unwrap().guest_frames();
                    let options = Options { guest_frames, caches, ..Options::default() };
                    let mut model = Model::new(&Profile::load(profile, &[]).unwrap(), options);
                    if charges {
                        model.charge(false);
                    }
                    model.consume(&words).unwrap();
                    model.totals()
                };
                assert_eq!(totals(false), totals(true), "{profile} {caches:?}");
            }
        }
    }

    #[test]
    fn the_last_use_of_a_page_that_the_code_array_has_dropped_reaches_the_data_array() {
        let mut model = model_of("i5-7600");
        // All are of one set of the arrays for data and for code, and the last has the first one's place in
        // the filter.
        let [used, others @ .., evicts] = [64, 80, 96, 112, 64 + 1024];
        let mut words = Vec::new();
        let loads = [used].into_iter().chain(others).chain([used]);
        loads.for_each(|n| Event::Load(page(n).0).encode(&mut words));
        let fetches = [used].into_iter().chain((0..8).map(|n| 2048 + 16 * n));
        fetches.for_each(|n| Event::Fetch(page(n).0).encode(&mut words));
        model.consume(&words).unwrap();
        assert_eq!(steady(&mut model, &[evicts], false), 1);
        let misses = |model: &Model| model.totals().iter().map(|(_, s)| s.l1_misses).collect::<Vec<_>>();
        let before = misses(&model);
        read(&mut model, used..used + 1);
        assert_eq!(misses(&model), before, "another page of the set was used before it");
        read(&mut model, 80..81);
        assert_eq!(misses(&model), before.iter().map(|n| n + 1).collect::<Vec<_>>(), "that page is out");
    }

    #[test]
    fn walk_caches_that_may_lead_to_a_table_that_was_left_take_the_general_way() {
        let mut model = model();
        assert_eq!(steady(&mut model, &[0], false), 1);
        let path = model.guest.path(model.vcpus[0].root, page(0)).unwrap();
        let (upper, leaves) = (path.table(2), path.table(1));
        let entries = *model.guest.entries(leaves >> 12, 0).unwrap();
        // Another table with the same entries takes the place of the first.
        let mut words = Vec::new();
        let old = model.guest.read(Gpa(upper));
        let new = (old & 0xfff) | (leaves + (600 << 12));
        Event::Table { gfn: new >> 12, level: 1, entries: &entries }.encode(&mut words);
        Event::PtStore { gpa: upper, new, old }.encode(&mut words);
        model.consume(&words).unwrap();
        read(&mut model, 520..4096);
        assert_eq!(steady(&mut model, &[1], false), 0);
        assert_eq!(steady(&mut model, &[600], false), 0, "also where nothing has changed");
        words.clear();
        Event::Invlpg(page(1).0).encode(&mut words);
        model.consume(&words).unwrap();
        read(&mut model, 0..4096);
        assert_eq!(steady(&mut model, &[1], false), 1, "the flush leaves nothing behind");
    }
}
