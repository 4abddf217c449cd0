// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a sync of a leaf table would leave as it is.
//!
//! KVM re-reads a whole table at each sync, and guests have their tables synced often: an inner hypervisor on
//! AMD after each entry that it sets. Mostly one entry of 512 differs from what the last sync found.

use super::pages::Pages;
use super::spte::{ACC_WRITE, ACCESS_SHIFT, HOST_WRITABLE, WRITE};

/// A page's entries that the next sync leaves as they are, unless the guest's have changed.
#[derive(Debug, Clone)]
pub(super) struct Settled {
    /// A bit for each such spte: an absent one, or one that the last sync made. Any change of an spte drops
    /// its bit.
    sptes: [u64; 8],
    /// The guest's entries at the last sync.
    gptes: [u64; 512],
}

impl Settled {
    pub fn new() -> Box<Settled> {
        Box::new(Settled { sptes: [0; 8], gptes: [0; 512] })
    }

    /// The spte changes.
    #[inline]
    pub fn overwrite(&mut self, index: usize) {
        self.sptes[index >> 6] &= !(1 << (index & 63));
    }

    /// A bit for each of the `word`th 64 entries that a sync has to look at, now that the guest's are
    /// `gptes`.
    fn due(&mut self, word: usize, gptes: &[u64; 512]) -> u64 {
        let of_word = word << 6..(word + 1) << 6;
        let (old, new) = (&mut self.gptes[of_word.clone()], &gptes[of_word]);
        if old != new {
            for (i, (old, new)) in old.iter_mut().zip(new).enumerate() {
                self.sptes[word] &= !(u64::from(old != new) << i);
                *old = *new;
            }
        }
        !self.sptes[word]
    }
}

impl Pages {
    /// [`Settled::due`] of a page.
    pub fn due(&mut self, slot: usize, word: usize, gptes: &[u64; 512]) -> u64 {
        self.settled[slot].get_or_insert_with(Settled::new).due(word, gptes)
    }

    /// A sync has brought the spte up to date. It leaves what it made as it is, but for an spte without write
    /// access to which one with it may follow: where its frame is no table any more.
    pub fn settle(&mut self, id: usize) {
        let spte = self.spte(id);
        let may_write = spte & HOST_WRITABLE != 0 && spte & u64::from(ACC_WRITE) << ACCESS_SHIFT != 0;
        if let (true, Some(settled)) = (!may_write || spte & WRITE != 0, &mut self.settled[id >> 9]) {
            settled.sptes[id >> 6 & 7] |= 1 << (id & 63);
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::spte::Role;
    use super::*;

    #[test]
    fn what_was_settled_is_due_once_it_or_the_guests_entry_changes() {
        let mut gptes = [0; 512];
        (gptes[3], gptes[511]) = (7, 9);
        let mut settled = Settled::new();
        let due = |settled: &mut Settled, gptes: &[u64; 512]| {
            let due: Vec<u64> = (0..8).map(|word| settled.due(word, gptes)).collect();
            settled.sptes = [!0; 8];
            due
        };
        assert_eq!(due(&mut settled, &gptes), [!0; 8], "never synced");
        assert_eq!(due(&mut settled, &gptes), [0; 8]);
        gptes[511] = 0;
        settled.overwrite(3);
        assert_eq!(due(&mut settled, &gptes), [1 << 3, 0, 0, 0, 0, 0, 0, 1 << 63]);
        assert_eq!(due(&mut settled, &gptes), [0; 8]);
    }

    #[test]
    fn an_spte_that_lacks_the_write_access_it_may_have_is_never_settled() {
        let mut pages = Pages::new(64);
        let access = u64::from(ACC_WRITE) << ACCESS_SHIFT;
        let cases = [
            (HOST_WRITABLE | access, 1),
            (HOST_WRITABLE | access | WRITE, 0),
            (HOST_WRITABLE, 0),
            (access, 0),
        ];
        let slot = pages.alloc(5, Role { level: 1, direct: false, access: 7, quadrant: 0 });
        pages.due(slot, 0, &[0; 512]);
        for (spte, due) in cases {
            pages.update(slot << 9, spte);
            pages.settle(slot << 9);
            assert_eq!(pages.due(slot, 0, &[0; 512]) & 1, due, "{spte:#x}");
        }
    }
}
