// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What must hold of the shadow tables at any time.

use super::super::pages::sptep_to_sp;
use super::super::spte::{
    ACC_ALL, ACC_WRITE, ACCESSED, ADDRESS, LARGE, PRESENT, SWITCH, WRITE, gpte_access, pages_per_hpage,
};
use super::super::{Pages, Shadow, World};
use super::{A, D, P};
use crate::guest::GuestTables;
use crate::host::Backing;
use bifold_mmu::Gpa;

/// Every active page, oldest first.
fn active(s: &Shadow) -> Vec<usize> {
    let mut slots = Vec::new();
    let mut at = s.pages.oldest();
    while at != 0 {
        slots.push(at);
        at = s.pages.newer(at);
    }
    slots
}

/// Shadow = composition of the guest's tables and the host's placement; links are whole.
pub(super) fn check(s: &Shadow, world: World<'_>) {
    let guest = world.guest;
    let slots = active(s);
    assert_eq!(slots.len(), s.pages.used, "pages counted");
    assert!(s.pages.used <= s.pages.max, "{} pages of {}", s.pages.used, s.pages.max);
    assert!(s.invalid.is_empty() && !s.obsolete_roots);
    for &slot in &slots {
        let page = s.pages.page(slot);
        assert!(!page.invalid);
        let bits: u32 = page.unsync_child_bitmap.iter().map(|w| w.count_ones()).sum();
        assert_eq!(bits, page.unsync_children);
        assert!(!page.unsync || (page.role.level == 1 && !page.role.direct && !s.counts_writes()));
        assert!(page.role.direct || !s.is_nested(page.gfn), "a table in nested mode is shadowed");
        let roots = s.vcpus.iter().flat_map(|v| v.roots()).filter(|&r| r == slot).count();
        assert_eq!(roots as u32, page.root_count);
        for id in s.pages.parents(slot) {
            assert!(slots.contains(&sptep_to_sp(id)), "a freed page is still a parent");
            assert_eq!(s.pages.child(id), slot);
        }
        for index in 0..512 {
            let id = slot << 9 | index;
            let spte = s.pages.spte(id);
            if let Some(bits) = s.ready(Pages::hpa(slot) + 8 * index as u64) {
                assert_eq!((page.role.level, bits), (1, spte & (PRESENT | WRITE)), "ready as it is");
                assert_ne!(spte & ACCESSED, 0, "nothing is left to set");
                assert_ne!(s.touched[slot][0] >> (index >> 3) & 1, 0, "nothing is left to note");
            }
            if spte & PRESENT == 0 {
                assert_eq!(spte, 0);
            } else if spte & SWITCH != 0 {
                switch(s, world, id);
            } else if s.pages.is_last(id) {
                leaf(s, world, id);
            } else {
                link(s, guest, id, &slots);
            }
        }
        if !page.role.direct {
            let same = slots.iter().filter(|&&o| {
                let p = s.pages.page(o);
                p.gfn == page.gfn && !p.role.direct && p.role.level > 1
            });
            assert_eq!(s.pages.is_tracked(page.gfn), same.count() > 0, "tracked as long as shadowed");
            assert!(s.pages.disallow_lpage(page.gfn, 2) > 0);
        }
    }
}

/// A page whose entries must agree with the guest's now.
fn synced(s: &Shadow, guest: &GuestTables, slot: usize) -> bool {
    let page = s.pages.page(slot);
    !page.role.direct && !page.unsync && guest.level(page.gfn) == Some(page.role.level)
}

/// The guest's entry that an spte shadows, and the table or the part of a page to which that leads. In 32-bit
/// paging, four pages shadow a page directory, each a quarter by two sptes per entry, and two a leaf table.
fn gpte(s: &Shadow, guest: &GuestTables, id: usize) -> (u64, u64) {
    let page = s.pages.page(sptep_to_sp(id));
    let (level, index) = (page.role.level, id as u64 & 511);
    let format = guest.format();
    let number = match (format.entry_shift, level) {
        (3, _) => index,
        (_, 1) => u64::from(page.role.quadrant) * 512 + index,
        _ => u64::from(page.role.quadrant) * 256 + index / 2,
    };
    let gpte = guest.read(Gpa(page.gfn << 12 | number << format.entry_shift));
    let half =
        if format.entry_shift == 2 && format.is_leaf(level, gpte) && level == 2 { index & 1 } else { 0 };
    (gpte, format.target(level, gpte) + (half << 21))
}

fn leaf(s: &Shadow, World { guest, host }: World<'_>, id: usize) {
    let spte = s.pages.spte(id);
    let page = s.pages.page(sptep_to_sp(id));
    let gfn = s.pages.gfn_of(id);
    let level = page.role.level;
    assert_eq!(spte & LARGE != 0, level > 1);
    assert_eq!(s.format().target(level, spte), host.hpa(Gpa::from_frame(gfn)).0, "the host's frame");
    assert!(s.pages.rmap(gfn).contains(&id), "in the reverse map");
    assert!(
        matches!(host.backing(Gpa::from_frame(gfn)), Backing::Zero | Backing::Own),
        "the host has the page"
    );
    assert!(level <= host.size_at(Gpa::from_frame(gfn)).level(), "no larger than the host's page");
    if spte & WRITE != 0 {
        assert_eq!(host.backing(Gpa::from_frame(gfn)), Backing::Own);
        assert_ne!(page.role.access & ACC_WRITE, 0);
        for frame in gfn..gfn + pages_per_hpage(level) {
            assert!(!s.pages.is_tracked(frame), "a shadowed non-leaf table is mapped writable");
            for other in s.pages.shadows_of(frame) {
                assert!(s.pages.page(other).unsync, "a synced leaf table is mapped writable");
            }
        }
    }
    if page.role.direct {
        assert_eq!(gfn, page.gfn + (id as u64 & 511) * pages_per_hpage(level));
    } else if synced(s, guest, sptep_to_sp(id)) {
        let (gpte, maps) = gpte(s, guest, id);
        let bits = if s.hardware_sets_both() { 0 } else { A };
        assert_eq!(gpte & (P | bits), P | bits, "the guest's entry is present and accessed");
        assert_eq!(gfn, maps >> 12);
        let dirty = gpte & D != 0 || s.hardware_sets_both();
        assert!(spte & WRITE == 0 || (gpte_access(gpte) & ACC_WRITE != 0 && dirty));
    }
}

/// An entry that switches leads to the guest's table below, which has no shadow page.
fn switch(s: &Shadow, World { guest, host }: World<'_>, id: usize) {
    let gfn = s.pages.gfn_of(id);
    assert!(s.pages.page(sptep_to_sp(id)).role.level > 1);
    assert!(s.is_nested(gfn) && !s.is_protected(gfn), "the table is in nested mode");
    assert_eq!(s.pages.spte(id) & ADDRESS, host.hpa(Gpa::from_frame(gfn)).0, "where the host has it");
    assert!(s.pages.rmap(gfn).contains(&id), "in the reverse map");
    assert!(!s.pages.page(sptep_to_sp(id)).role.direct);
    if synced(s, guest, sptep_to_sp(id)) {
        let (gpte, maps) = gpte(s, guest, id);
        assert_eq!((gpte & P, maps >> 12), (P, gfn), "the guest's entry leads to the table");
    }
}

fn link(s: &Shadow, guest: &GuestTables, id: usize, slots: &[usize]) {
    let (slot, child) = (sptep_to_sp(id), s.pages.child(id));
    assert!(slots.contains(&child), "a link to a freed page");
    let (page, below) = (s.pages.page(slot), s.pages.page(child));
    assert_eq!(below.role.level, page.role.level - 1);
    assert_eq!(s.pages.spte(id) & ADDRESS, Pages::hpa(child));
    assert!(s.pages.parents(child).contains(&id));
    if below.unsync || below.unsync_children != 0 {
        assert_ne!(page.unsync_child_bitmap[(id & 511) >> 6] & 1 << (id & 63), 0, "would not be synced");
    }
    if page.role.direct {
        assert!(below.role.direct && below.role.access == page.role.access);
    } else if synced(s, guest, slot) {
        let (gpte, maps) = gpte(s, guest, id);
        let format = guest.format();
        assert_eq!(gpte & P, P);
        assert_eq!(maps >> 12, below.gfn);
        assert_eq!(below.role.quadrant, if format.entry_shift == 2 { (id & 1) as u8 } else { 0 });
        assert_eq!(format.is_leaf(page.role.level, gpte), below.role.direct);
        let most = page.role.access & gpte_access(gpte) & ACC_ALL;
        if below.role.direct {
            assert_eq!(below.role.access & !most, 0);
        } else {
            assert_eq!(below.role.access, most);
        }
    }
}
