// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slow TLB: every array a list of entries, every rule of `bifold_mmu::Tlb` and of
//! the Intel SDM (vol. 3A 4.10.4.1) said once, in the shortest way.

use super::lists::Lists;
use bifold_mmu::PageSize;
use bifold_model::Profile;

#[derive(Clone)]
struct Entry {
    page: u64,
    size: PageSize,
    /// Size of the guest's page, of which this may be a piece.
    guest: PageSize,
    /// Bits of the offset in that page, or in the 4 MB of which it is half.
    guest_shift: u32,
    va: u64,
    /// What it maps, at `va`.
    gpa: u64,
    writable: bool,
    global: bool,
    space: u16,
}

#[derive(Clone)]
struct Array {
    level: u8,
    data: bool,
    code: bool,
    sizes: Vec<PageSize>,
    lists: Lists<Entry>,
}

#[derive(Clone)]
pub struct Tlb {
    arrays: Vec<Array>,
    /// The address space (PCID).
    pub space: u16,
    /// Guest-physical address that the last hit gave, unless it was a piece of a larger page.
    pub hit: Option<u64>,
}

#[derive(Debug, PartialEq, Eq)]
pub enum Found {
    /// In this level, good for the access.
    Level(u8),
    /// In this level, but a write needs a walk.
    ReadOnly(u8),
    Nowhere,
}

fn page(va: u64, size: PageSize) -> u64 {
    (va & ((1 << 57) - 1)) >> size.shift()
}

impl Tlb {
    pub fn new(profile: &Profile) -> Tlb {
        let arrays = profile.tlb.iter().map(|t| {
            let sides: Vec<String> = t.sides.iter().map(|s| format!("{s:?}")).collect();
            Array {
                level: t.level,
                data: sides.iter().any(|s| s == "Data"),
                code: sides.iter().any(|s| s == "Code"),
                sizes: t.sizes.clone(),
                lists: Lists::new(t.entries, t.ways),
            }
        });
        Tlb { arrays: arrays.collect(), space: 0, hit: None }
    }

    fn array(&mut self, level: u8, code: bool, size: PageSize) -> Option<&mut Array> {
        self.arrays
            .iter_mut()
            .find(|a| a.level == level && (if code { a.code } else { a.data }) && a.sizes.contains(&size))
    }

    pub fn has_code(&self) -> bool {
        self.arrays.iter().any(|a| a.level == 1 && a.code)
    }

    /// Looks up both levels. What only the second holds and is good enters the first.
    pub fn look_up(&mut self, code: bool, va: u64, write: bool) -> Found {
        let space = self.space;
        for level in [1, 2] {
            for size in PageSize::ALL {
                let Some(array) = self.array(level, code, size) else { continue };
                let p = page(va, size);
                let here = |e: &Entry| e.page == p && e.size == size && (e.global || e.space == space);
                let Some(entry) = array.lists.find(p, here) else { continue };
                if write && !entry.writable {
                    return Found::ReadOnly(level);
                }
                let entry = entry.clone();
                self.hit = (entry.guest == size).then_some(entry.gpa ^ entry.va ^ va);
                if level == 2 {
                    if let Some(first) = self.array(1, code, size) {
                        first.lists.insert(p, entry);
                    }
                }
                return Found::Level(level);
            }
        }
        Found::Nowhere
    }

    /// Files what a walk found in both levels, in pieces of the largest size that the first
    /// takes. An entry that is there is amended in its place.
    pub fn file(
        &mut self,
        code: bool,
        (va, gpa): (u64, u64),
        (size, guest, guest_shift): (PageSize, PageSize, u32),
        writable: bool,
        global: bool,
    ) {
        let Some(size) =
            PageSize::ALL.into_iter().rev().find(|&s| s <= size && self.array(1, code, s).is_some())
        else {
            return;
        };
        let p = page(va, size);
        let space = self.space;
        let entry = Entry { page: p, size, guest, guest_shift, va, gpa, writable, global, space };
        let mut amended = false;
        for level in [1, 2] {
            if let Some(array) = self.array(level, code, size) {
                let same = |e: &Entry| e.page == p && e.size == size && (e.global || e.space == space);
                match array.lists.peek(p, same) {
                    Some(there) => {
                        there.writable |= writable;
                        amended = true;
                    }
                    // The second level is filled on a first-level miss only.
                    None if amended => {}
                    None => array.lists.insert(p, entry.clone()),
                }
            }
        }
    }

    /// INVLPG, and the page fault at an address: the entries for its page go, global ones too.
    /// Of a page held in pieces, all go.
    pub fn invalidate(&mut self, va: u64) {
        let space = self.space;
        for a in &mut self.arrays {
            a.lists.retain(|e| {
                let whole = e.guest_shift.max(e.size.shift());
                (e.va ^ va) & ((1 << 57) - 1) >> whole << whole != 0 || !(e.global || e.space == space)
            });
        }
    }

    pub fn flush(&mut self, global_too: bool) {
        self.arrays.iter_mut().for_each(|a| a.lists.retain(|e| e.global && !global_too));
    }

    pub fn flush_space(&mut self) {
        let space = self.space;
        self.arrays.iter_mut().for_each(|a| a.lists.retain(|e| e.global || e.space != space));
    }
}
