// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The words of an event: layout, encoding and decoding.

use super::{Event, MemoryLook, Stats};

/// Bit position of the kind within a head word.
pub const KIND_SHIFT: u32 = 57;
/// Mask of the payload within a head word.
pub const PAYLOAD_MASK: u64 = (1 << KIND_SHIFT) - 1;
/// Words of the longest event ([`Event::Table`]).
pub const MAX_WORDS: usize = 513;
/// Number of values in [`Event::Stats`].
pub const STATS_WORDS: usize = 8;
/// Words of an [`Event::Look`] behind its head; those that [`MemoryLook`] does not use are 0.
pub const LOOK_WORDS: usize = 16;
/// Data words of an [`Event::Log`].
pub const LOG_WORDS: usize = 32;

/// Event kinds, as stored in the top 7 bits of a head word.
#[allow(missing_docs)] // each is documented at the `Event` variant of its name
pub mod kind {
    pub const LOAD: u64 = 1;
    pub const STORE: u64 = 2;
    pub const STORE_OTHER: u64 = 3;
    pub const FETCH: u64 = 4;
    pub const LOAD_DEPENDENT: u64 = 5;
    pub const LOAD_BEFORE_CHAIN: u64 = 6;
    pub const INSNS: u64 = 8;
    pub const VCPU: u64 = 9;
    pub const CR3: u64 = 10;
    pub const CR3_READ: u64 = 11;
    pub const INVLPG: u64 = 12;
    pub const CR4: u64 = 13;
    pub const FAULT: u64 = 14;
    pub const PT_STORE: u64 = 15;
    pub const TABLE: u64 = 16;
    pub const RETIRE: u64 = 17;
    pub const CHECK: u64 = 18;
    pub const MARKER: u64 = 19;
    pub const STATS: u64 = 20;
    pub const RESIDENT: u64 = 21;
    pub const LOG: u64 = 22;
    pub const BLOCK: u64 = 23;
    pub const GAP: u64 = 24;
    pub const TICKS: u64 = 25;
    pub const CALL: u64 = 26;
    pub const RETURN: u64 = 27;
    pub const TRANSFER: u64 = 28;
    pub const FREE: u64 = 29;
    pub const LOOK: u64 = 30;
    pub const IPI: u64 = 31;
}

/// Why words are no events of the guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum DecodeError {
    /// The kind is not one of [`kind`].
    #[error("unknown event kind {kind} at word {word}")]
    Kind {
        /// The kind found.
        kind: u64,
        /// Index of the word.
        word: usize,
    },
    /// The words end within an event.
    #[error("events end within an event of {need} words at word {word}")]
    Truncated {
        /// Words the event needs.
        need: usize,
        /// Index of the head word.
        word: usize,
    },
    /// A table's level is not 1 to 5.
    #[error("table level {level} at word {word} is not 1 to 5")]
    Level {
        /// The level found.
        level: u64,
        /// Index of the head word.
        word: usize,
    },
    /// A log claims more bytes than fit into its words.
    #[error("a log of {bytes} bytes at word {word}: {} at most", 8 * LOG_WORDS)]
    Log {
        /// The number of bytes found.
        bytes: usize,
        /// Index of the head word.
        word: usize,
    },
    /// An event of a vCPU that the guest does not have.
    #[error("vCPU {vcpu} at word {word}, in a guest of {}", vcpus_in_words(*vcpus))]
    Vcpu {
        /// The vCPU found, from 0 on.
        vcpu: u64,
        /// The guest's number of vCPUs.
        vcpus: usize,
        /// Index of the head word.
        word: usize,
    },
}

fn vcpus_in_words(n: usize) -> String {
    if n == 1 { "1 vCPU, number 0".into() } else { format!("{n} vCPUs, numbers 0 to {}", n - 1) }
}

/// A head word.
#[inline]
pub const fn head(kind: u64, payload: u64) -> u64 {
    (kind << KIND_SHIFT) | (payload & PAYLOAD_MASK)
}

/// The canonical virtual address in a head word's payload.
#[inline]
pub const fn head_va(word: u64) -> u64 {
    (((word << 7) as i64) >> 7) as u64
}

/// The further words of an event whose head is of this kind, or `None` for an
/// unknown kind.
#[inline]
pub const fn extra_words(kind: u64) -> Option<usize> {
    match kind {
        kind::LOAD..=kind::LOAD_BEFORE_CHAIN
        | kind::INSNS..=kind::CR4
        | kind::RETIRE
        | kind::MARKER
        | kind::BLOCK
        | kind::GAP
        | kind::CALL
        | kind::RETURN
        | kind::IPI => Some(0),
        kind::FAULT | kind::CHECK | kind::RESIDENT | kind::TICKS | kind::TRANSFER | kind::FREE => Some(1),
        kind::PT_STORE => Some(2),
        kind::STATS => Some(STATS_WORDS),
        kind::TABLE => Some(512),
        kind::LOG => Some(LOG_WORDS),
        kind::LOOK => Some(LOOK_WORDS),
        _ => None,
    }
}

impl Event<'_> {
    /// Appends the event's words.
    pub fn encode(&self, out: &mut Vec<u64>) {
        match *self {
            Event::Load(va) => out.push(head(kind::LOAD, va)),
            Event::Store(va) => out.push(head(kind::STORE, va)),
            Event::StoreOther(va) => out.push(head(kind::STORE_OTHER, va)),
            Event::Fetch(va) => out.push(head(kind::FETCH, va)),
            Event::LoadDependent(va) => out.push(head(kind::LOAD_DEPENDENT, va)),
            Event::LoadBeforeChain(va) => out.push(head(kind::LOAD_BEFORE_CHAIN, va)),
            Event::Insns(n) => out.push(head(kind::INSNS, n)),
            Event::Vcpu(n) => out.push(head(kind::VCPU, n)),
            Event::Cr3(v) => out.push(head(kind::CR3, v)),
            Event::Ipi(code) => out.push(head(kind::IPI, code)),
            Event::Cr3Read => out.push(head(kind::CR3_READ, 0)),
            Event::Invlpg(va) => out.push(head(kind::INVLPG, va)),
            Event::Cr4(v) => out.push(head(kind::CR4, v)),
            Event::Fault { gva, error } => out.extend([head(kind::FAULT, gva), error]),
            Event::PtStore { gpa, old, new } => out.extend([head(kind::PT_STORE, gpa), old, new]),
            Event::Table { gfn, level, entries } => {
                out.push(head(kind::TABLE, gfn << 4 | u64::from(level)));
                out.extend_from_slice(entries);
            }
            Event::Retire { gfn } => out.push(head(kind::RETIRE, gfn)),
            Event::Check { gva, gpa } => out.extend([head(kind::CHECK, gva), gpa]),
            Event::Marker(code) => out.push(head(kind::MARKER, code)),
            Event::Stats(s) => {
                out.push(head(kind::STATS, 0));
                out.extend(s.words());
            }
            Event::Resident { gfn, frames } => out.extend([head(kind::RESIDENT, gfn), frames]),
            Event::Ticks { timer, others } => out.extend([head(kind::TICKS, timer), others]),
            Event::Log { stream, number, bytes, data } => {
                out.push(head(kind::LOG, number << 32 | (stream & 0xffff) << 16 | bytes as u64));
                out.extend_from_slice(data);
            }
            Event::Block(va) => out.push(head(kind::BLOCK, va)),
            Event::Gap(code) => out.push(head(kind::GAP, code)),
            Event::Call(va) => out.push(head(kind::CALL, va)),
            Event::Return(va) => out.push(head(kind::RETURN, va)),
            Event::Transfer { gpa, bytes, write } => {
                out.extend([head(kind::TRANSFER, gpa), u64::from(write) << 32 | u64::from(bytes)]);
            }
            Event::Free { gfn, frames } => out.extend([head(kind::FREE, gfn), frames]),
            Event::Look(look) => {
                out.push(head(kind::LOOK, 0));
                out.extend(look.words());
            }
        }
    }
}

/// Decodes the event at the start of `words`; returns the event and its length in words.
/// `at` is the index of `words[0]` in its stream, for errors.
#[inline]
pub fn decode(words: &[u64], at: usize) -> Result<(Event<'_>, usize), DecodeError> {
    let Some(&w) = words.first() else {
        return Err(DecodeError::Truncated { need: 1, word: at });
    };
    let k = w >> KIND_SHIFT;
    let payload = w & PAYLOAD_MASK;
    let Some(extra) = extra_words(k) else {
        return Err(DecodeError::Kind { kind: k, word: at });
    };
    let Some(x) = words.get(1..1 + extra) else {
        return Err(DecodeError::Truncated { need: 1 + extra, word: at });
    };
    let event = match k {
        kind::LOAD => Event::Load(head_va(w)),
        kind::STORE => Event::Store(head_va(w)),
        kind::STORE_OTHER => Event::StoreOther(head_va(w)),
        kind::FETCH => Event::Fetch(head_va(w)),
        kind::LOAD_DEPENDENT => Event::LoadDependent(head_va(w)),
        kind::LOAD_BEFORE_CHAIN => Event::LoadBeforeChain(head_va(w)),
        kind::INSNS => Event::Insns(payload),
        kind::VCPU => Event::Vcpu(payload),
        kind::CR3 => Event::Cr3(payload),
        kind::CR3_READ => Event::Cr3Read,
        kind::INVLPG => Event::Invlpg(head_va(w)),
        kind::CR4 => Event::Cr4(payload),
        kind::FAULT => Event::Fault { gva: head_va(w), error: x[0] },
        kind::PT_STORE => Event::PtStore { gpa: payload, old: x[0], new: x[1] },
        kind::TABLE => {
            let level = payload & 0xf;
            if !(1..=5).contains(&level) {
                return Err(DecodeError::Level { level, word: at });
            }
            let entries = x.try_into().expect("a table has 512 further words");
            Event::Table { gfn: payload >> 4, level: level as u8, entries }
        }
        kind::RETIRE => Event::Retire { gfn: payload },
        kind::CHECK => Event::Check { gva: head_va(w), gpa: x[0] },
        kind::MARKER => Event::Marker(payload),
        kind::RESIDENT => Event::Resident { gfn: payload, frames: x[0] },
        kind::TICKS => Event::Ticks { timer: payload, others: x[0] },
        kind::LOG => {
            let bytes = (payload & 0xffff) as usize;
            if bytes > 8 * LOG_WORDS {
                return Err(DecodeError::Log { bytes, word: at });
            }
            let data = x.try_into().expect("length follows the kind");
            Event::Log { stream: payload >> 16 & 0xffff, number: payload >> 32, bytes, data }
        }
        kind::BLOCK => Event::Block(head_va(w)),
        kind::GAP => Event::Gap(payload),
        kind::CALL => Event::Call(head_va(w)),
        kind::RETURN => Event::Return(head_va(w)),
        kind::TRANSFER => Event::Transfer { gpa: payload, bytes: x[0] as u32, write: x[0] >> 32 & 1 == 1 },
        kind::FREE => Event::Free { gfn: payload, frames: x[0] },
        kind::IPI => Event::Ipi(payload),
        kind::LOOK => Event::Look(MemoryLook::from_words(x.try_into().expect("length follows the kind"))),
        _ => Event::Stats(Stats::from_words(x.try_into().expect("length follows the kind"))),
    };
    Ok((event, 1 + extra))
}

impl Stats {
    fn words(&self) -> [u64; STATS_WORDS] {
        [
            self.cr3_checks,
            self.cr3_mismatches,
            self.translation_checks,
            self.translation_mismatches,
            self.table_checks,
            self.table_mismatches,
            self.accesses,
            self.instructions,
        ]
    }

    fn from_words(w: &[u64; STATS_WORDS]) -> Self {
        Stats {
            cr3_checks: w[0],
            cr3_mismatches: w[1],
            translation_checks: w[2],
            translation_mismatches: w[3],
            table_checks: w[4],
            table_mismatches: w[5],
            accesses: w[6],
            instructions: w[7],
        }
    }
}

impl MemoryLook {
    fn words(&self) -> [u64; LOOK_WORDS] {
        [
            self.frames,
            self.free,
            self.free_blocks,
            self.free_held,
            self.free_blocks_held,
            self.cache_clean,
            self.cache_dirty,
            self.anonymous,
            self.kernel,
            self.tables,
            self.zero,
            self.same,
            self.sampled,
            self.compressed_bytes,
            0,
            0,
        ]
    }

    fn from_words(w: &[u64; LOOK_WORDS]) -> Self {
        MemoryLook {
            frames: w[0],
            free: w[1],
            free_blocks: w[2],
            free_held: w[3],
            free_blocks_held: w[4],
            cache_clean: w[5],
            cache_dirty: w[6],
            anonymous: w[7],
            kernel: w[8],
            tables: w[9],
            zero: w[10],
            same: w[11],
            sampled: w[12],
            compressed_bytes: w[13],
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn canonical_addresses_of_both_halves_survive_a_head_word() {
        for va in [0, 0x7fff_ffff_f000, 0xffff_8880_0000_0000, 0xff11_0000_0000_0000, u64::MAX] {
            assert_eq!(head_va(head(kind::LOAD, va)), va);
        }
    }

    #[test]
    fn an_unknown_kind_and_a_cut_event_are_refused_with_their_place() {
        assert_eq!(decode(&[head(100, 0)], 7), Err(DecodeError::Kind { kind: 100, word: 7 }));
        assert_eq!(
            decode(&[head(kind::PT_STORE, 8), 1], 3),
            Err(DecodeError::Truncated { need: 3, word: 3 })
        );
        let mut words = vec![head(kind::TABLE, 9)];
        words.extend([0; 512]);
        assert_eq!(decode(&words, 0), Err(DecodeError::Level { level: 9, word: 0 }));
        let mut words = vec![head(kind::LOG, super::super::log::PERF << 16 | 257)];
        words.extend([0; LOG_WORDS]);
        assert_eq!(decode(&words, 5), Err(DecodeError::Log { bytes: 257, word: 5 }));
    }

    fn any_event() -> impl Strategy<Value = (u64, u64, u64, u64)> {
        (1u64..=31, any::<u64>(), any::<u64>(), any::<u64>())
    }

    proptest! {
        #[test]
        fn encode_after_decode_is_the_identity(v in proptest::collection::vec(any_event(), 1..50)) {
            let mut words = Vec::new();
            for (k, p, a, b) in v {
                let Some(extra) = extra_words(k) else { continue };
                let p = match k {
                    kind::TABLE => (p & 0xffff_ffff) << 4 | (p % 5 + 1),
                    kind::CR3_READ | kind::STATS | kind::LOOK => 0,
                    kind::LOG => p & !0xffff | (p % 257),
                    _ => p,
                };
                words.push(head(k, p));
                words.extend((0..extra as u64).map(|i| a.wrapping_mul(i) ^ b));
                match k {
                    kind::TRANSFER => *words.last_mut().unwrap() &= (1 << 33) - 1,
                    kind::LOOK => words.iter_mut().rev().take(2).for_each(|w| *w = 0),
                    _ => {}
                }
            }
            let (mut at, mut again) = (0, Vec::new());
            while at < words.len() {
                let (e, n) = decode(&words[at..], at).unwrap();
                e.encode(&mut again);
                at += n;
            }
            prop_assert_eq!(words, again);
        }

        #[test]
        fn any_words_decode_to_an_event_or_an_error(words in proptest::collection::vec(any::<u64>(), 0..600)) {
            let mut at = 0;
            while let Ok((_, n)) = decode(&words[at..], at) { at += n; }
        }
    }
}
