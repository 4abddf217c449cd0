// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accesses: the loop over a stream's words, and the filter. What the filter does not answer goes to the TLBs
//! of each group of configurations: see [`super::miss`].

use super::observe::{Deciding, Observers, Several, Using, Watcher};
use super::{Model, Vcpu};
use crate::access::AccessKind;
use bifold_mmu::{Gva, Side};
use bifold_trace::DecodeError;
use bifold_trace::event::{KIND_SHIFT, PAYLOAD_MASK, head_va, kind};
use zerocopy::IntoBytes;

/// Words looked at together by [`Model::read_ahead`].
const WINDOW: usize = 128;

/// What a word is, as far as a filter may answer it.
pub(super) const LOAD: u8 = 1;
pub(super) const STORE: u8 = 2;
const FETCH: u8 = 4;
const BLOCK: u8 = 8;
/// By the kind of a word: 0 of a load that a chain follows, and of all that is no access and no block.
pub(super) const KINDS: [u8; 1 << (u64::BITS - KIND_SHIFT)] = {
    let mut kinds = [0; 1 << (u64::BITS - KIND_SHIFT)];
    kinds[kind::LOAD as usize] = LOAD;
    kinds[kind::LOAD_DEPENDENT as usize] = LOAD;
    kinds[kind::STORE as usize] = STORE;
    kinds[kind::STORE_OTHER as usize] = STORE;
    kinds[kind::FETCH as usize] = FETCH;
    kinds[kind::BLOCK as usize] = BLOCK;
    kinds
};

impl Model {
    /// Consumes whole events.
    ///
    /// # Errors
    /// If the words are no events, or name a vCPU beyond [`Options::vcpus`](super::Options::vcpus).
    pub fn consume(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        // Two loops, so that a run without observers does not ask at every access.
        if self.observers.any() {
            self.consume_words::<true>(words)
        } else {
            self.consume_words::<false>(words)
        }
    }

    fn consume_words<const OBSERVED: bool>(&mut self, words: &[u64]) -> Result<(), DecodeError> {
        let mut i = self.consume_gap(words, 0)?;
        let mut window = WINDOW;
        let mut misses = self.misses;
        loop {
            i = self.consume_hits::<OBSERVED>(words, i, window);
            if self.missed_all && self.charges.is_none() && !(OBSERVED && self.observers.sees_every_walk()) {
                i = self.consume_steady::<OBSERVED>(words, i, window);
            }
            let Some(&w) = words.get(i) else { break };
            if i >= window {
                // Where misses are dense, their table entries are read ahead, all of a window's
                // at once: one after the other, each would wait for memory.
                if self.misses - misses > WINDOW as u64 / 8 {
                    self.read_ahead(&words[i..words.len().min(i + WINDOW)]);
                }
                window = i + WINDOW;
                misses = self.misses;
                continue;
            }
            let page = (w & PAYLOAD_MASK) >> 12;
            match w >> KIND_SHIFT {
                k @ (kind::LOAD | kind::LOAD_DEPENDENT | kind::LOAD_BEFORE_CHAIN) => {
                    let dependent = k == kind::LOAD_DEPENDENT;
                    self.common.accesses += 1;
                    if let (true, Some(caches)) = (k == kind::LOAD_BEFORE_CHAIN, &mut self.observers.caches) {
                        caches.chain_begins(self.current, self.common.accesses);
                    }
                    if let (true, true, Some(caches)) = (OBSERVED, dependent, &mut self.observers.caches) {
                        caches.watch(self.current).dependent_load(self.common.accesses);
                    }
                    let v = &mut self.vcpus[self.current];
                    v.time += 1;
                    if !v.filters[Side::Data as usize].hit(page, false, v.time) {
                        self.access::<OBSERVED>(Side::Data, Gva(head_va(w)), AccessKind::Read, dependent);
                    }
                    if OBSERVED {
                        self.observe(Gva(head_va(w)), false, dependent);
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
                        self.observe(Gva(head_va(w)), true, false);
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
                    if OBSERVED {
                        self.observe_fetch(Gva(head_va(w)));
                    }
                    i += 1;
                }
                kind::BLOCK => {
                    self.vcpus[self.current].running.block(Gva(head_va(w)));
                    i += 1;
                }
                _ => {
                    let (event, n) = self.decode(words, i)?;
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

    /// Consumes accesses from word `i` on as long as the filters answer them and they change nothing that
    /// observers simulate, at most up to word `end`. Returns the number of the first word left.
    #[inline(always)]
    pub(super) fn consume_hits<const OBSERVED: bool>(
        &mut self,
        words: &[u64],
        i: usize,
        end: usize,
    ) -> usize {
        let Model {
            vcpus,
            current,
            observers: Observers { caches, places, uses, swaps },
            has_code,
            common,
            ..
        } = self;
        let (vcpu, accesses, words) = (*current, &mut common.accesses, &words[..end.min(words.len())]);
        let v = &mut vcpus[vcpu];
        let watch = caches.as_deref_mut().filter(|_| OBSERVED).map(|caches| caches.watch(vcpu));
        let places = places.as_deref_mut().filter(|_| OBSERVED);
        let uses = uses.as_deref_mut().filter(|_| OBSERVED).map(|uses| Using { uses, vcpu });
        let swaps = swaps.as_deref().filter(|_| OBSERVED).map(|swaps| Deciding { swaps, vcpu });
        match (watch, places, uses, swaps) {
            (None, None, None, None) => hits(words, i, v, accesses, *has_code, ()),
            (Some(watch), None, None, None) => hits(words, i, v, accesses, *has_code, watch),
            (None, None, Some(using), None) => hits(words, i, v, accesses, *has_code, using),
            (None, None, None, Some(deciding)) => hits(words, i, v, accesses, *has_code, deciding),
            (watch, places, uses, swaps) => {
                hits(words, i, v, accesses, *has_code, Several { watch, places, uses, swaps, vcpu })
            }
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

/// The loop of [`Model::consume_hits`]. Most words end here, so the loop calls nothing.
#[inline(always)]
pub(super) fn hits(
    words: &[u64],
    mut i: usize,
    v: &mut Vcpu,
    accesses: &mut u64,
    has_code: bool,
    mut watcher: impl Watcher,
) -> usize {
    let Vcpu { filters: [data, code], time, generation, running, .. } = v;
    let (mut now, mut made) = (*time, *accesses);
    while let Some(&w) = words.get(i) {
        let (kind, gva) = (w >> KIND_SHIFT, Gva(head_va(w)));
        let is = |kinds: u8| KINDS[kind as usize] & kinds != 0;
        if is(BLOCK) {
            running.block(gva);
            i += 1;
            continue;
        }
        if !is(LOAD | STORE | FETCH) {
            break;
        }
        let (write, fetch, page) = (is(STORE), is(FETCH), (w & PAYLOAD_MASK) >> 12);
        // Without a jump for each kind, which a processor cannot foresee.
        let filter = if fetch { &mut *code } else { &mut *data };
        if !(fetch && !has_code || filter.hit(page, write, now + 1)) {
            break;
        }
        // The general way comes next after a break, and finds the filter as it would be without.
        let taken = if fetch {
            watcher.fetches(gva, *generation)
        } else {
            watcher.takes(gva, write, kind == kind::LOAD_DEPENDENT, *generation, made + 1)
        };
        if !taken {
            break;
        }
        made += u64::from(!fetch);
        now += 1;
        i += 1;
    }
    (*time, *accesses) = (now, made);
    i
}
