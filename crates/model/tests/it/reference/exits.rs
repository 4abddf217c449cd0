// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The exits of a guest whose tables never change, in nested and shadow paging: no TLB, no walk cache. An
//! access exits until the tables of the mode map its page, and a TLB holds nothing that these do not map.

use super::host::{Host, Key};
use bifold_model::Sample;
use std::collections::{HashMap, HashSet};
use std::ops::Range;

/// A page of the guest: the level of its entry, its first address and frame, and the addresses of the entries
/// on the way.
#[derive(Clone)]
pub struct GuestPage {
    pub level: u8,
    pub gva: u64,
    pub gfn: u64,
    pub path: Vec<u64>,
}

pub struct Vm {
    pub host: Host,
    shadow: bool,
    guest: Vec<GuestPage>,
    /// Shadow entries by level and number: the first frame, and whether for writing.
    sptes: HashMap<Key, (u64, bool)>,
    /// Those with the accessed bit.
    accessed: HashSet<Key>,
    pub violations: u64,
    pub hidden: u64,
    pub permission: u64,
    /// Backed pages of 4 KB and of 2 MB.
    pub backed: [u64; 2],
}

impl Vm {
    pub fn new(host: Host, shadow: bool, guest: &[GuestPage]) -> Vm {
        Vm {
            host,
            shadow,
            guest: guest.to_vec(),
            sptes: HashMap::new(),
            accessed: HashSet::new(),
            violations: 0,
            hidden: 0,
            permission: 0,
            backed: [0; 2],
        }
    }

    /// The model's counts of the same.
    pub fn counts_of(s: &Sample) -> [u64; 5] {
        [s.exits_violation, s.exits_hidden_fault, s.exits_permission, s.frames_backed, s.huge_frames_backed]
    }

    pub fn counts(&self) -> [u64; 5] {
        [self.violations, self.hidden, self.permission, self.backed[0], self.backed[1]]
    }

    /// An access to `gva`, which is in page number `page`.
    pub fn access(&mut self, page: usize, gva: u64, write: bool) {
        let page = self.guest[page].clone();
        let gpa = (page.gfn << 12) + (gva - page.gva);
        if self.shadow {
            while !self.in_shadow(gva, write) {
                self.fault(&page, gva, gpa, write);
            }
            return;
        }
        // The walk reads tables as if it wrote them.
        self.refer(page.path.iter().map(|at| (*at, true)).chain([(gpa, write)]));
    }

    /// A load of CR3 reads the entries of PAE's root, and does not write them.
    pub fn read_root(&mut self, at: u64) {
        if !self.shadow {
            self.refer([(at, false)]);
        }
    }

    fn refer(&mut self, to: impl IntoIterator<Item = (u64, bool)>) {
        for (gpa, write) in to {
            while !self.is_mapped(gpa, write) {
                self.violations += 1;
                let mut backed = 0;
                let level = self.host.key(gpa).0;
                self.host.resolve(gpa, write, &mut backed, 0, &mut None);
                self.backed[usize::from(level) - 1] += backed;
            }
            self.host.accessed.insert(self.host.key(gpa));
        }
    }

    fn is_mapped(&self, gpa: u64, write: bool) -> bool {
        self.host.mapped.get(&self.host.key(gpa)).is_some_and(|writable| *writable || !write)
    }

    fn in_shadow(&mut self, gva: u64, write: bool) -> bool {
        let key = [(1, gva >> 12), (2, gva >> 21)].into_iter().find(|key| self.sptes.contains_key(key));
        let Some(key) = key.filter(|key| self.sptes[key].1 || !write) else { return false };
        self.accessed.insert(key);
        true
    }

    fn fault(&mut self, page: &GuestPage, gva: u64, gpa: u64, write: bool) {
        let present = self.sptes.contains_key(&(1, gva >> 12)) || self.sptes.contains_key(&(2, gva >> 21));
        let level = self.host.key(gpa).0;
        let touch = self.host.back(gpa, write);
        self.backed[usize::from(level) - 1] += u64::from(touch.newly);
        if touch.replaced {
            self.hidden += 1;
            let frame = gpa >> 12..(gpa >> 12) + 1;
            return self.unmap(&[frame]);
        }
        *(if present { &mut self.permission } else { &mut self.hidden }) += 1;
        let level = level.min(page.level);
        let shift = 3 + 9 * u32::from(level);
        let key = (level, gva >> shift);
        self.sptes.insert(key, (gpa >> shift << (shift - 12), self.host.backing(gpa)));
        self.accessed.insert(key);
        if level == 1 {
            self.prefetch(page.level == 2, gva >> 12);
        }
    }

    /// The frame of the guest's 4 KB page with this number.
    fn frame(&self, number: u64) -> Option<u64> {
        let of = |p: &GuestPage| {
            let n = number.checked_sub(p.gva >> 12)?;
            (n < 1 << (9 * (p.level - 1))).then_some(p.gfn + n)
        };
        self.guest.iter().find_map(of)
    }

    /// Entries of the block of 8 that are missing, as long as the host has pages of the guest's own: in a
    /// small guest page's block up to the first that it has not, in a large one's past it if that is not the
    /// first of its run.
    fn prefetch(&mut self, large: bool, number: u64) {
        let mut stopped = false;
        let mut in_run = false;
        for n in number & !7..(number & !7) + 8 {
            if n == number || self.sptes.contains_key(&(1, n)) {
                (stopped, in_run) = (false, false);
                continue;
            }
            let resident = self.frame(n).filter(|gfn| self.host.backing(gfn << 12));
            match resident {
                Some(gfn) if !stopped => {
                    self.sptes.insert((1, n), (gfn, true));
                    in_run = true;
                }
                Some(_) => {}
                None if large && (in_run || stopped) => stopped = true,
                None => return,
            }
        }
    }

    fn unmap(&mut self, gone: &[Range<u64>]) {
        self.host.unmap(gone);
        let Vm { sptes, accessed, .. } = self;
        sptes.retain(|key, (gfn, _)| {
            let end = *gfn + (1 << (9 * (key.0 - 1)));
            let kept = gone.iter().all(|g| end <= g.start || g.end <= *gfn);
            if !kept {
                accessed.remove(key);
            }
            kept
        });
    }

    pub fn take_back(&mut self, gfns: Range<u64>, swap: bool) {
        let gone = self.host.take_back(gfns, swap);
        self.unmap(&gone);
    }

    pub fn look(&mut self) {
        let Vm { host, sptes, accessed, .. } = self;
        host.look(|page| {
            let young = |key: &Key| {
                let gfn = sptes[key].0;
                gfn < page.end && page.start < gfn + (1 << (9 * (key.0 - 1)))
            };
            let before = accessed.len();
            accessed.retain(|key| !young(key));
            accessed.len() < before
        });
    }

    /// The VM goes on in the other mode or in its own.
    pub fn switch(&mut self, shadow: bool, keep: bool) {
        if shadow == self.shadow {
            return;
        }
        self.shadow = shadow;
        self.sptes.clear();
        self.accessed.clear();
        if shadow && !keep {
            self.host.mapped.clear();
            self.host.accessed.clear();
        }
    }
}
