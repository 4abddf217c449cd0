// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The commonest miss of a program that misses often: no TLB holds the page, a 4 KB page of the guest's that is not
//! global, and no configuration's walk takes an exit or notes anything new. Such a miss changes the TLBs, the walk caches and
//! counts alone, so it takes a shorter way to the same state as [`super::miss`]. Whether a miss is such a one is known before
//! anything is changed.

use super::Model;
use super::groups::Group;
use crate::access::Steady;
use bifold_mmu::{Gva, Side};
use bifold_trace::event::PAYLOAD_MASK;

/// The most configurations for which a miss may take the shorter way.
const MOST: usize = u64::BITS as usize;

impl Model {
    /// Takes an access to data that the filter did not answer, if it is a steady miss.
    #[inline(never)]
    pub(super) fn steady(&mut self, gva: Gva, write: bool) -> bool {
        let Model { regimes, groups, guest, vcpus, current, frames, .. } = self;
        let v = &mut vcpus[*current];
        if regimes.len() > MOST || !groups.iter_mut().all(|g| g.tlbs[*current].misses_small(Side::Data, gva))
        {
            return false;
        }
        let Some(path) = guest.path(v.root, gva) else { return false };
        let format = guest.format();
        let (entry, needed) = (path.entry, format.present | format.accessed);
        let writable = path.writable && entry & format.write != 0 && entry & format.dirty != 0;
        if entry & (needed | format.global) != needed || write && !writable {
            return false;
        }
        let miss = Steady { vcpu: *current, gva, write, path, writable, format };
        if miss.gpa().frame() >= *frames {
            return false;
        }
        // A bit for each configuration through whose entry writes may go.
        let mut writable = 0u64;
        for (r, regime) in regimes.iter_mut().enumerate() {
            match regime.steady(&miss, guest) {
                Some(allowed) => writable |= u64::from(allowed) << r,
                None => return false,
            }
        }
        let [filter, _] = &mut v.filters;
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        let leaves = filter.take(page);
        for Group { members, tlbs } in groups {
            let tlb = &mut tlbs[*current];
            if let Some((left, last)) = leaves {
                tlb.used_at(Side::Data, left, last);
            }
            let bit = |(place, &r): (usize, &usize)| ((writable >> r & 1) as u8) << place;
            let bits = members.iter().enumerate().fold(0, |bits, member| bits | bit(member));
            if let Some((size, page)) = tlb.fill_small(Side::Data, gva, bits, v.time, &v.filters) {
                v.filters.iter_mut().for_each(|f| f.dropped(size, page));
            }
        }
        regimes.iter_mut().for_each(|regime| regime.walk_steady(&miss));
        v.filters[Side::Data as usize].file(page, write, false, v.time);
        true
    }
}

#[cfg(test)]
mod tests {
    use crate::{Model, Options, Profile};
    use bifold_mmu::{Gpa, Gva};
    use bifold_trace::{Event, Generator};

    /// First address of trace T's random part.
    const RANDOM: u64 = 0x1_0000_0000;

    /// A model that has read T's first 4,096 pages in their order, so that no TLB holds the first ones.
    fn model() -> Model {
        let generator = Generator::parse("t:2").unwrap();
        let profile = Profile::load("geometry-g", &[]).unwrap();
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

    #[test]
    fn a_load_of_a_known_page_that_no_tlb_holds_is_a_steady_miss_of_every_configuration() {
        let mut model = model();
        let before = model.totals();
        for n in 0..64 {
            assert!(model.steady(page(n), false), "page {n}");
            assert!(!model.steady(page(n), false), "page {n} is held");
        }
        assert!(!model.steady(page(5000), false), "a page never read");
        assert!(!model.steady(page(100), true), "a page that the host has not given for writes");
        for ((config, now), (_, before)) in model.totals().into_iter().zip(before) {
            let more = now.since(&before);
            assert_eq!([more.walks, more.l1_misses, more.tlb_misses()], [64; 3], "{}", config.name());
            assert_eq!(more.all_exits(), 0);
        }
    }

    #[test]
    fn walk_caches_that_may_lead_to_a_table_that_was_left_take_the_general_way() {
        let mut model = model();
        assert!(model.steady(page(0), false));
        let path = model.guest.path(model.vcpus[0].root, page(0)).unwrap();
        let (upper, leaves) = (path.table(2), path.table(1));
        let entries = *model.guest.entries(leaves >> 12).unwrap();
        // Another table with the same entries takes the place of the first.
        let mut words = Vec::new();
        let old = model.guest.read(Gpa(upper));
        let new = (old & 0xfff) | (leaves + (600 << 12));
        Event::Table { gfn: new >> 12, level: 1, entries: &entries }.encode(&mut words);
        Event::PtStore { gpa: upper, new, old }.encode(&mut words);
        model.consume(&words).unwrap();
        read(&mut model, 520..4096);
        assert!(!model.steady(page(1), false));
        assert!(!model.steady(page(600), false), "also where nothing has changed");
        words.clear();
        Event::Invlpg(page(1).0).encode(&mut words);
        model.consume(&words).unwrap();
        read(&mut model, 0..4096);
        assert!(model.steady(page(1), false), "the flush leaves nothing behind");
    }
}
