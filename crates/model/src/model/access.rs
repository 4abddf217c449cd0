// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses: the loop over a stream's words, and the filter. What the filter does not answer goes to the TLBs of each
//! group of configurations: see [`super::miss`].

use super::groups::join_equal;
use super::observe::Observers;
use super::{Model, Vcpu};
use crate::access::AccessKind;
use bifold_mmu::{Gva, Side};
use bifold_trace::event::{KIND_SHIFT, PAYLOAD_MASK, head_va, kind};
use bifold_trace::{DecodeError, decode};
use zerocopy::IntoBytes;

/// Words looked at together by [`Model::read_ahead`].
const WINDOW: usize = 128;

/// The kinds of words that a filter may answer, a bit each.
const LOADS: u64 = 1 << kind::LOAD | 1 << kind::LOAD_DEPENDENT;
const STORES: u64 = 1 << kind::STORE | 1 << kind::STORE_OTHER;
const FETCHES: u64 = 1 << kind::FETCH;

/// Misses between two attempts to join groups, at the start fewer. An attempt looks at few sets if they differ.
const JOIN: u64 = 4096;

impl Model {
    /// Consumes whole events.
    pub fn consume(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        // Two loops, so that a run without observers does not ask at every access.
        if self.observers.any() {
            self.consume_words::<true>(words)
        } else {
            self.consume_words::<false>(words)
        }
    }

    fn consume_words<const OBSERVED: bool>(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        let watched = self.observers.caches.as_ref().map_or(0, |c| c.watched());
        let mut i = self.consume_gap(words, 0)?;
        let mut window = WINDOW;
        let mut misses = self.misses;
        loop {
            i = self.consume_hits::<OBSERVED>(words, i, window, watched);
            let Some(&w) = words.get(i) else { break };
            if i >= window {
                // Where misses are dense, their table entries are read ahead, all of a window's
                // at once: one after the other, each would wait for memory.
                if self.misses - misses > WINDOW as u64 / 8 {
                    self.read_ahead(&words[i..words.len().min(i + WINDOW)]);
                }
                window = i + WINDOW;
                misses = self.misses;
                if misses >= self.join_at {
                    self.join_groups();
                }
            }
            let page = (w & PAYLOAD_MASK) >> 12;
            match w >> KIND_SHIFT {
                k @ (kind::LOAD | kind::LOAD_DEPENDENT | kind::LOAD_BEFORE_CHAIN) => {
                    let dependent = k == kind::LOAD_DEPENDENT;
                    self.common.accesses += 1;
                    if let (true, Some(caches)) = (k == kind::LOAD_BEFORE_CHAIN, &mut self.observers.caches) {
                        caches.chain_begins(self.current, self.common.accesses);
                    }
                    if OBSERVED && dependent {
                        self.observers.dependent_load(self.current, self.common.accesses);
                    }
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, false, v.time) {
                        self.access::<OBSERVED>(Side::Data, Gva(head_va(w)), AccessKind::Read, dependent);
                    }
                    if OBSERVED {
                        self.observe(Gva(head_va(w)), false, dependent, watched);
                    }
                    i += 1;
                }
                k @ (kind::STORE | kind::STORE_OTHER) => {
                    self.common.accesses += 1;
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, true, v.time) {
                        let kind = if k == kind::STORE { AccessKind::Write } else { AccessKind::WriteOther };
                        self.access::<OBSERVED>(Side::Data, Gva(head_va(w)), kind, false);
                    }
                    if OBSERVED {
                        self.observe(Gva(head_va(w)), true, false, watched);
                    }
                    i += 1;
                }
                kind::FETCH => {
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if self.has_code && !v.filters[Side::Code as usize].hit(page, false, v.time) {
                        // The core has nothing to do before the instructions are there.
                        self.access::<OBSERVED>(Side::Code, Gva(head_va(w)), AccessKind::Fetch, true);
                    }
                    i += 1;
                }
                kind::BLOCK => {
                    self.vcpus[self.current].running.block(Gva(head_va(w)));
                    i += 1;
                }
                _ => {
                    let (event, n) = decode(&words[i..], self.words + i)?;
                    self.event(event);
                    i += n;
                    if self.in_gap() {
                        i = self.consume_gap(words, i)?;
                    }
                }
            }
        }
        self.hash.update(words.as_bytes());
        self.words += words.len();
        Ok(())
    }

    /// Consumes accesses from word `i` on as long as the filters answer them and they change nothing in
    /// data caches, at most up to word `end`. Returns the number of the first word left. Most words end
    /// here, so the loop calls nothing.
    #[inline(always)]
    fn consume_hits<const OBSERVED: bool>(
        &mut self,
        words: &[u64],
        mut i: usize,
        end: usize,
        watched: u64,
    ) -> usize {
        let Model { vcpus, current, observers, has_code, common, .. } = self;
        let Vcpu { filters: [data, code], time, generation, running, .. } = &mut vcpus[*current];
        let settled = |w: u64, write: bool, observers: &Observers| {
            !OBSERVED || observers.is_settled(*current, Gva(head_va(w)), write, *generation, watched)
        };
        while let Some(&w) = words[..end.min(words.len())].get(i) {
            let (kind, gva) = (w >> KIND_SHIFT, Gva(head_va(w)));
            if kind == kind::BLOCK {
                running.block(gva);
                i += 1;
                continue;
            }
            // Without a jump for each kind, which a processor cannot foresee.
            let is = |kinds: u64| kinds.checked_shr(kind as u32).is_some_and(|k| k & 1 != 0);
            let (write, fetch) = (is(STORES), is(FETCHES));
            let filter = if fetch { &mut *code } else { &mut *data };
            let page = (w & PAYLOAD_MASK) >> 12;
            if !is(LOADS | STORES | FETCHES)
                || !fetch && !settled(w, write, observers)
                || !(fetch && !*has_code || filter.hit(page, write, *time + 1))
            {
                return i;
            }
            common.accesses += u64::from(!fetch);
            if OBSERVED && !fetch {
                observers.count(*current, gva);
                if kind == kind::LOAD_DEPENDENT {
                    observers.dependent_load(*current, common.accesses);
                }
            }
            *time += 1;
            i += 1;
        }
        i
    }

    /// Joins groups whose TLBs hold the same again: those of a program that keeps missing do, some time
    /// after a flush that concerned only some.
    fn join_groups(&mut self) {
        self.join_at = self.misses + self.misses.clamp(64, JOIN);
        if self.groups.len() > 1 && !self.profile.cpu.pcid {
            join_equal(&mut self.groups);
        }
    }

    /// Reads the leaf entries, guest's and host's, of the window's accesses. Only a hint:
    /// a word that is no access, or tables that change within the window, do no harm.
    fn read_ahead(&mut self, words: &[u64]) {
        let mut frames = [0u64; WINDOW];
        let v = &self.vcpus[self.current];
        let mut n = 0;
        for &w in words {
            if !v.filters[Side::Data as usize].answers((w & PAYLOAD_MASK) >> 12) {
                frames[n] = self.guest.peek(v.root, Gva(head_va(w))).unwrap_or(0);
                n += 1;
            }
        }
        let mut seen = 0;
        for regime in &self.regimes {
            seen ^= regime.read_ahead(&frames[..n]);
        }
        self.seen ^= seen;
    }
}
