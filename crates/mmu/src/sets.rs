// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sets of a TLB array that several configurations share.
//!
//! All configurations see the same accesses, so that most sets hold the same in all of them. Such a set is
//! kept once. Where configurations differ in a set, the set has a version for each of the parts that agree:
//! the version's holders. A change that concerns some of a version's holders only splits the version, and
//! versions that come to hold the same are joined.
//!
//! A flush only notes that it took place. A set that was last used before a flush is flushed at its next use.

use crate::tag::SHARERS;

/// What a set consists of: some of these.
pub(crate) trait Part: Copy {
    /// Drops the entries that are not global.
    fn drop_non_global(set: &mut [Self]);

    /// Equal for sets that hold the same. Quicker than [`Part::same`].
    fn digest(set: &[Self]) -> u64;

    /// Do both hold the same entries, in the same order of recency? Where in a set entries are, and who may
    /// write through them, does not matter.
    fn same(ours: &[Self], theirs: &[Self]) -> bool;

    /// Leaves each entry the rights to write of `holders`, and adds those of `others` to `theirs`, which
    /// holds the same.
    fn join(ours: &mut [Self], holders: u8, theirs: &[Self], others: u8);
}

/// Changes of a set after its first use, or after a flush, until its versions are compared.
const AFTER_FLUSH: u8 = 16;

/// In place of a number of flushes.
const SPLIT: u64 = u64::MAX;
/// In place of the flushes that a set has seen: it was never used.
const UNUSED: u64 = u64::MAX;

/// The most changes of a set between two comparisons of its versions.
const PAUSE: u8 = 64;

/// The sets of an array.
#[derive(Debug, Clone)]
pub(crate) struct Sets<T> {
    /// The parts of each version: the first version of each set by the set's number, then further versions.
    parts: Vec<T>,
    /// Parts of a set.
    len: usize,
    versions: Vec<Version>,
    /// By set: the flushes that the set had seen when it was found to have one version, or [`SPLIT`] where
    /// that is not known.
    alike: Box<[u64]>,
    /// Numbers of versions that are not in use.
    free: Vec<u32>,
    sets: usize,
    /// `sets - 1`, or `usize::MAX` where their number is no power of two.
    mask: usize,
    empty: Box<[T]>,
    /// Versions that hold the same are joined.
    joins: bool,
    /// Flushes so far.
    flushes: u64,
    /// By sharer: its last whole flush, and its last flush of what is not global.
    flushed: [[u64; SHARERS]; 2],
}

#[derive(Debug, Clone, Copy)]
struct Version {
    /// Flushes that the set has seen, or [`UNUSED`]. Only a set's first version has this and the next two.
    seen: u64,
    /// Changes until versions are compared, and the changes between two comparisons: twice as many after one
    /// that joins nothing.
    due: u8,
    pause: u8,
    /// The number of the set's next version; 0 = none.
    next: u32,
    /// A bit for each sharer for which the set holds this.
    holders: u8,
}

impl<T: Part> Sets<T> {
    /// Empty sets, each like `empty`, of the sharers with a bit in `sharers`. `joins`: versions that hold the
    /// same are joined.
    pub fn new(sets: usize, empty: Vec<T>, sharers: u8, joins: bool) -> Self {
        Sets {
            parts: empty.repeat(sets),
            len: empty.len(),
            versions: vec![
                Version { seen: UNUSED, due: AFTER_FLUSH, pause: 1, next: 0, holders: sharers };
                sets
            ],
            alike: vec![SPLIT; sets].into(),
            free: Vec::new(),
            sets,
            mask: if sets.is_power_of_two() { sets - 1 } else { usize::MAX },
            empty: empty.into(),
            joins,
            flushes: 0,
            flushed: [[0; SHARERS]; 2],
        }
    }

    /// The number of the set for `index`.
    #[inline(always)]
    fn number(&self, index: u64) -> usize {
        if self.mask != usize::MAX { index as usize & self.mask } else { (index % self.sets as u64) as usize }
    }

    /// The number of the set for `index`, after the flushes that the set has not seen.
    #[inline(always)]
    pub fn of(&mut self, index: u64) -> usize {
        let set = self.number(index);
        if self.versions[set].seen != self.flushes {
            self.catch_up(set);
        }
        set
    }

    /// The set for `index`, after the flushes that the set has not seen, if all sharers hold the same.
    #[inline(always)]
    pub fn alike(&mut self, index: u64) -> Option<&mut [T]> {
        let set = self.number(index);
        if self.alike[set] != self.flushes && !self.becomes_alike(set) {
            return None;
        }
        Some(&mut self.parts[set * self.len..][..self.len])
    }

    #[cold]
    #[inline(never)]
    fn becomes_alike(&mut self, set: usize) -> bool {
        if self.versions[set].seen != self.flushes {
            self.catch_up(set);
        }
        let alike = self.versions[set].next == 0;
        if alike {
            self.alike[set] = self.flushes;
        }
        alike
    }

    /// Is `such` true of some version of the set?
    #[inline(always)]
    pub fn any(&self, set: usize, such: impl Fn(&[T]) -> bool) -> bool {
        let mut version = set;
        loop {
            if such(self.parts(version)) {
                return true;
            }
            match self.versions[version].next {
                0 => return false,
                next => version = next as usize,
            }
        }
    }

    /// Changes the set for the sharers `of`: where `find` finds something in a version, `change` changes it,
    /// for those of them that hold the version. Returns the sharers for which something was changed.
    #[inline(always)]
    pub fn change<W>(
        &mut self,
        set: usize,
        of: u8,
        find: impl Fn(&[T]) -> Option<W>,
        mut change: impl FnMut(&mut [T], W, u8),
    ) -> u8 {
        let (mut version, mut changed) = (set, 0);
        loop {
            let Version { holders, next, .. } = self.versions[version];
            let concerned = holders & of;
            if let (true, Some(found)) = (concerned != 0, find(self.parts(version))) {
                let own = if concerned == holders { version } else { self.split(set, version, concerned) };
                change(&mut self.parts[own * self.len..][..self.len], found, concerned);
                changed |= concerned;
            }
            if next == 0 {
                return changed;
            }
            version = next as usize;
        }
    }

    /// Each version of each set that some of `of` hold, with those of them.
    pub fn for_each(&mut self, of: u8, mut f: impl FnMut(&mut [T], u8)) {
        for set in 0..self.sets {
            // Most sets of a large array hold nothing.
            if of & !self.emptied(self.versions[set].seen) == 0 {
                continue;
            }
            self.of(set as u64);
            self.change(set, of, |_| Some(()), |parts, (), holders| f(parts, holders));
        }
    }

    /// The sharers for which a set that has seen so many flushes is known to be empty.
    fn emptied(&self, seen: u64) -> u8 {
        if seen == UNUSED { u8::MAX } else { self.late(0, seen) }
    }

    /// The sharers with a flush of this kind that a set has not seen.
    fn late(&self, kind: usize, seen: u64) -> u8 {
        let late = |(place, &last): (usize, &u64)| u8::from(last > seen) << place;
        self.flushed[kind].iter().enumerate().map(late).fold(0, |bits, bit| bits | bit)
    }

    /// A change of the set is over: joins versions that hold the same. `note` brings a version up to date
    /// before it is compared.
    #[inline(always)]
    pub fn changed(&mut self, set: usize, note: impl FnMut(&mut [T])) {
        let Version { next, due, pause, .. } = &mut self.versions[set];
        if *next == 0 || !self.joins {
            return;
        }
        *due -= 1;
        if *due == 0 {
            // If nothing is joined; a join sets both to 1.
            *pause = (2 * *pause).min(PAUSE);
            *due = *pause;
            self.join(set, note);
        }
    }

    #[inline(never)]
    fn join(&mut self, set: usize, mut note: impl FnMut(&mut [T])) {
        let mut ours = set;
        loop {
            let mut before = ours;
            let mut digest = T::digest(self.parts(ours));
            loop {
                let theirs = self.versions[before].next as usize;
                if theirs == 0 {
                    break;
                }
                if T::digest(self.parts(theirs)) != digest || !self.join_two(ours, theirs, &mut note) {
                    before = theirs;
                    continue;
                }
                let Version { next, holders, .. } = self.versions[theirs];
                self.versions[ours].holders |= holders;
                self.versions[before].next = next;
                self.free.push(theirs as u32);
                (self.versions[set].due, self.versions[set].pause) = (1, 1);
                digest = T::digest(self.parts(ours));
            }
            ours = self.versions[ours].next as usize;
            if ours == 0 {
                return;
            }
        }
    }

    /// Makes `ours` hold what both versions do, if they hold the same.
    fn join_two(&mut self, ours: usize, theirs: usize, note: &mut impl FnMut(&mut [T])) -> bool {
        let (low, high) = self.parts.split_at_mut(ours.max(theirs) * self.len);
        let (low, high) = (&mut low[ours.min(theirs) * self.len..][..self.len], &mut high[..self.len]);
        let (to, from) = if ours < theirs { (low, high) } else { (high, low) };
        note(to);
        note(from);
        let same = T::same(to, from);
        if same {
            T::join(to, self.versions[ours].holders, from, self.versions[theirs].holders);
        }
        same
    }

    /// Empties all sets for the sharers `of`.
    pub fn flush_all(&mut self, of: u8) {
        self.note_flush(0, of);
    }

    /// Drops what is not global for the sharers `of`.
    pub fn flush_non_global(&mut self, of: u8) {
        self.note_flush(1, of);
    }

    fn note_flush(&mut self, kind: usize, of: u8) {
        self.flushes += 1;
        let sharers = self.flushed[kind].iter_mut().enumerate().filter(|(place, _)| of >> place & 1 != 0);
        sharers.for_each(|(_, last)| *last = self.flushes);
    }

    /// Carries out the flushes that a set has not seen.
    #[cold]
    #[inline(never)]
    fn catch_up(&mut self, set: usize) {
        let seen = std::mem::replace(&mut self.versions[set].seen, self.flushes);
        let [all, non_global] = [0, 1].map(|kind| self.late(kind, seen));
        let empty = std::mem::take(&mut self.empty);
        self.change(set, non_global & !all, |_| Some(()), |parts, (), _| T::drop_non_global(parts));
        self.change(set, all, |_| Some(()), |parts, (), _| parts.copy_from_slice(&empty));
        self.empty = empty;
        // Where flushes are frequent, versions joined soon after one would differ again after the next.
        self.versions[set].due = AFTER_FLUSH;
    }

    #[inline(always)]
    fn parts(&self, version: usize) -> &[T] {
        &self.parts[version * self.len..][..self.len]
    }

    /// Gives some of a version's holders a version of their own, which follows: its number.
    #[cold]
    #[inline(never)]
    fn split(&mut self, set: usize, version: usize, some: u8) -> usize {
        self.alike[set] = SPLIT;
        let from = version * self.len..(version + 1) * self.len;
        let next = self.versions[version].next;
        let own = Version { seen: 0, due: 1, pause: 1, next, holders: some };
        let number = match self.free.pop() {
            Some(number) => {
                self.versions[number as usize] = own;
                self.parts.copy_within(from, number as usize * self.len);
                number
            }
            None => {
                self.versions.push(own);
                self.parts.extend_from_within(from);
                (self.versions.len() - 1) as u32
            }
        };
        let Version { next, holders, .. } = &mut self.versions[version];
        *holders &= !some;
        *next = number;
        number as usize
    }
}
