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
    /// Per vCPU.
    private: Vec<Vec<Level>>,
    shared: Vec<Level>,
    /// Number of private levels, and of all.
    n_private: usize,
    n: usize,
    /// Every line is simulated. Only then do lines of several classes share a set.
    exact: bool,
}

impl DataCaches {
    pub fn new(specs: &[CacheLevel], classes: &Classes, vcpus: usize) -> DataCaches {
        let n_private = specs.iter().take_while(|s| !s.shared).count();
        let levels = |s: &[CacheLevel]| s.iter().map(|s| Level::new(s, classes)).collect::<Vec<_>>();
        DataCaches {
            private: vec![levels(&specs[..n_private]); vcpus],
            shared: levels(&specs[n_private..]),
            n_private,
            n: specs.len(),
            exact: classes.len() == 64,
        }
    }

    #[inline]
    fn level(&mut self, vcpu: usize, i: usize) -> &mut Level {
        if i < self.n_private { &mut self.private[vcpu][i] } else { &mut self.shared[i - self.n_private] }
    }

    /// An access of `vcpu` to a line that looks in levels from index `first` on. Returns the index of
    /// the level that answers; the number of levels if memory does.
    #[inline]
    pub fn access(&mut self, vcpu: usize, line: Line, rank: usize, first: usize, write: bool) -> usize {
        if write && self.private.len() > 1 {
            self.take_from_others(vcpu, line, rank);
        }
        if self.level(vcpu, first).lookup(line, rank) {
            return first;
        }
        self.miss(vcpu, line, rank, first)
    }

    fn miss(&mut self, vcpu: usize, line: Line, rank: usize, first: usize) -> usize {
        let n = self.n;
        let answers = (first + 1..n).find(|&i| self.level(vcpu, i).lookup(line, rank)).unwrap_or(n);
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
            self.fill(vcpu, i, line, rank);
        }
        answers
    }

    /// Files a line in level `i`, which lacks it, and follows its victim.
    fn fill(&mut self, vcpu: usize, mut i: usize, mut line: Line, mut rank: usize) {
        while let Some(victim) = self.level(vcpu, i).insert(line, rank) {
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
            if self.level(vcpu, i).lookup(victim, rank) {
                return;
            }
            line = victim;
        }
    }

    /// Level `i` evicts a line that the levels below may hold: of all vCPUs if it is shared.
    fn drop_below(&mut self, vcpu: usize, i: usize, line: Line, rank: usize) {
        if i < self.n_private {
            self.private[vcpu][..i].iter_mut().for_each(|l| _ = l.remove(line, rank));
            return;
        }
        self.shared[..i - self.n_private].iter_mut().for_each(|l| _ = l.remove(line, rank));
        self.private.iter_mut().flatten().for_each(|l| _ = l.remove(line, rank));
    }

    /// A store makes the line this vCPU's alone.
    fn take_from_others(&mut self, vcpu: usize, line: Line, rank: usize) {
        for (other, levels) in self.private.iter_mut().enumerate() {
            if other != vcpu {
                levels.iter_mut().for_each(|l| _ = l.remove(line, rank));
            }
        }
    }
}
