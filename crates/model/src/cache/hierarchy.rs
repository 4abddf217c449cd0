// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The data caches of one configuration: private levels per vCPU, shared levels for all.
//!
//! An access looks in the levels from the first on, and the lowest level that has the line answers.
//! The line is then brought into the levels below the answering one. What a level evicts goes
//! into an exclusive level above; an inclusive level evicts its line below as well. A store drops
//! the line from the private levels of the other vCPUs. Write-backs cost nothing here, and caches of
//! instructions are not simulated.

use super::classes::Classes;
use super::level::{Level, Line};
use crate::profile::{CacheLevel, Content};

/// The most levels a profile may have.
pub const MOST_LEVELS: usize = 3;

/// The data caches of one configuration.
#[derive(Debug, Clone)]
pub(crate) struct DataCaches {
    /// The private levels of each vCPU, then the shared ones.
    levels: Vec<Level>,
    vcpus: usize,
    /// Number of private levels, and of all.
    n_private: usize,
    n: usize,
    /// Every line is simulated. Only then do lines of several classes share a set.
    exact: bool,
    /// There are three levels of one vCPU, and what the first evicts concerns no other: see
    /// [`miss_of_three`].
    three: bool,
}

impl DataCaches {
    pub fn new(specs: &[CacheLevel], classes: &Classes, vcpus: usize) -> DataCaches {
        let n_private = specs.iter().take_while(|s| !s.shared).count();
        let (private, shared) = specs.split_at(n_private);
        let specs_of_all = (0..vcpus).flat_map(|_| private).chain(shared);
        DataCaches {
            levels: specs_of_all.map(|s| Level::new(s, classes)).collect(),
            vcpus,
            n_private,
            n: specs.len(),
            exact: classes.len() == 64,
            three: vcpus == 1
                && specs.len() == 3
                && specs[0].content != Content::Inclusive
                && specs[1].content != Content::Exclusive,
        }
    }

    #[inline(always)]
    fn level(&mut self, vcpu: usize, i: usize) -> &mut Level {
        let before = if i < self.n_private { vcpu } else { self.vcpus - 1 };
        &mut self.levels[before * self.n_private + i]
    }

    /// The set of `line` in the first level, from the most recently used line on.
    #[inline(always)]
    pub fn first_level(&mut self, vcpu: usize, line: Line, rank: usize) -> &mut [Line] {
        self.level(vcpu, 0).lines_of(line, rank)
    }

    /// The private levels of a vCPU, from the first to `end`.
    fn private(&mut self, vcpu: usize, end: usize) -> &mut [Level] {
        &mut self.levels[vcpu * self.n_private..][..end]
    }

    /// An access of `vcpu` to a line that looks in levels from index `first` on. Returns the index of
    /// the level that answers; the number of levels if memory does.
    #[inline(always)]
    pub fn access(&mut self, vcpu: usize, line: Line, rank: usize, first: usize, write: bool) -> usize {
        if write && self.vcpus > 1 {
            self.take_from_others(vcpu, line, rank);
        }
        let level = self.level(vcpu, first);
        let set = level.set(line, rank);
        if level.lookup(set, line) { first } else { self.miss(vcpu, line, rank, first, set) }
    }

    /// [`DataCaches::access`] of a line that the first level lacks.
    #[inline(always)]
    pub fn access_above(&mut self, vcpu: usize, line: Line, rank: usize, write: bool) -> usize {
        if write && self.vcpus > 1 {
            self.take_from_others(vcpu, line, rank);
        }
        let set = self.level(vcpu, 0).set(line, rank);
        self.miss(vcpu, line, rank, 0, set)
    }

    /// The same of a line that level `first` lacks, whose set there is known.
    #[inline]
    fn miss(&mut self, vcpu: usize, line: Line, rank: usize, first: usize, set: usize) -> usize {
        match &mut self.levels[..] {
            [l1, l2, l3] if self.three && first == 0 => {
                miss_of_three([l1, l2, l3], line, rank, set, self.exact)
            }
            _ => self.miss_of_any(vcpu, line, rank, first, set),
        }
    }

    #[inline(never)]
    fn miss_of_any(&mut self, vcpu: usize, line: Line, rank: usize, first: usize, set: usize) -> usize {
        let n = self.n;
        let mut sets = [set; MOST_LEVELS];
        let holds = |&i: &usize| {
            let level = self.level(vcpu, i);
            sets[i] = level.set(line, rank);
            level.lookup(sets[i], line)
        };
        let answers = (first + 1..n).find(holds).unwrap_or(n);
        if answers < n && self.level(vcpu, answers).content == Content::Exclusive {
            self.level(vcpu, answers).remove(line, rank);
        }
        // From above, so that an inclusive level's victim is gone before a level below is filled.
        for i in (first..answers).rev() {
            // An exclusive level has only what the level below evicted, unless it is where
            // this access (a walk) begins.
            if i > first && self.level(vcpu, i).content == Content::Exclusive {
                continue;
            }
            if let Some(victim) = self.level(vcpu, i).insert(sets[i], line) {
                self.follow(vcpu, i, victim, rank);
            }
        }
        answers
    }

    /// Level `i` has evicted `victim`, which was in the set of a line of class `rank`: files the victim where
    /// it belongs.
    fn follow(&mut self, vcpu: usize, mut i: usize, mut victim: Line, mut rank: usize) {
        loop {
            if self.exact {
                rank = (victim & 63) as usize;
            }
            if self.level(vcpu, i).content == Content::Inclusive {
                self.drop_below(vcpu, i, victim, rank);
            }
            i += 1;
            if i == self.n || self.level(vcpu, i).content != Content::Exclusive {
                return;
            }
            let level = self.level(vcpu, i);
            let set = level.set(victim, rank);
            if level.lookup(set, victim) {
                return;
            }
            match level.insert(set, victim) {
                Some(next) => victim = next,
                None => return,
            }
        }
    }

    /// Level `i` evicts a line that the levels below may hold: of all vCPUs if it is shared.
    fn drop_below(&mut self, vcpu: usize, i: usize, line: Line, rank: usize) {
        let below = if i < self.n_private {
            self.private(vcpu, i)
        } else {
            let shared = (self.vcpus - 1) * self.n_private;
            &mut self.levels[..shared + i]
        };
        below.iter_mut().for_each(|l| _ = l.remove(line, rank));
    }

    /// A store makes the line this vCPU's alone.
    fn take_from_others(&mut self, vcpu: usize, line: Line, rank: usize) {
        for other in (0..self.vcpus).filter(|&other| other != vcpu) {
            self.private(other, self.n_private).iter_mut().for_each(|l| _ = l.remove(line, rank));
        }
    }
}

/// [`DataCaches::miss`] of the commonest caches: three levels of one vCPU, the second of which is not
/// exclusive. The line is not in its set of the first, which is not inclusive.
#[inline(never)]
fn miss_of_three([l1, l2, l3]: [&mut Level; 3], line: Line, rank: usize, set: usize, exact: bool) -> usize {
    let class = |victim: Line| if exact { (victim & 63) as usize } else { rank };
    let set2 = l2.set(line, rank);
    if l2.lookup(set2, line) {
        l1.insert(set, line);
        return 1;
    }
    let set3 = l3.set(line, rank);
    let mut answers = 2;
    if !l3.lookup(set3, line) {
        answers = 3;
        if l3.content != Content::Exclusive {
            let victim = l3.insert(set3, line);
            if let (Some(victim), Content::Inclusive) = (victim, l3.content) {
                l1.remove(victim, class(victim));
                l2.remove(victim, class(victim));
            }
        }
    } else if l3.content == Content::Exclusive {
        l3.remove(line, rank);
    }
    if let Some(victim) = l2.insert(set2, line) {
        if l2.content == Content::Inclusive {
            l1.remove(victim, class(victim));
        }
        if l3.content == Content::Exclusive {
            let set3 = l3.set(victim, class(victim));
            if !l3.lookup(set3, victim) {
                l3.insert(set3, victim);
            }
        }
    }
    l1.insert(set, line);
    answers
}
