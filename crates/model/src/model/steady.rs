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

impl Model {
    /// Takes an access to data that the filter did not answer, if it is a steady miss.
    pub(super) fn steady(&mut self, gva: Gva, write: bool) -> bool {
        let Model { regimes, groups, guest, vcpus, current, frames, .. } = self;
        let [Group { members, tlbs }] = &mut groups[..] else { return false };
        let (v, tlb) = (&mut vcpus[*current], &mut tlbs[*current]);
        if !tlb.misses_small(Side::Data, gva) {
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
        let mut writable = 0;
        for (place, &r) in members.iter().enumerate() {
            match regimes[r].steady(&miss, guest) {
                Some(allowed) => writable |= u8::from(allowed) << place,
                None => return false,
            }
        }
        let [filter, _] = &mut v.filters;
        let page = (gva.0 & PAYLOAD_MASK) >> 12;
        if let Some((left, last)) = filter.take(page) {
            tlb.used_at(Side::Data, left, last);
        }
        let evicted = tlb.fill_small(Side::Data, gva, writable, v.time, &v.filters);
        if let Some((size, page)) = evicted {
            v.filters.iter_mut().for_each(|f| f.dropped(size, page));
        }
        members.iter().for_each(|&r| regimes[r].walk_steady(&miss));
        v.filters[Side::Data as usize].file(page, write, false, v.time);
        true
    }
}
