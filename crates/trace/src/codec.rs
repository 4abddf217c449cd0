// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Event words to bytes and back: the transform before zstd.
//!
//! A block's words become two byte strings. `control` has one byte per word:
//! five bits of kind, three bits of length class. `data` has that many bytes:
//! the zigzagged difference from the word before it of the same kind, so that
//! neighbouring addresses take one or two bytes. Further words of an event
//! (table entries, old and new entry, ...) have no kind of their own; they use
//! a slot that follows from the event's kind and their place in it, and kind 0.
//!
//! Every block starts with all slots at 0, so a block needs no other. Address streams are
//! modelled by one difference; zstd finds the rest.

use crate::event::{DecodeError, KIND_SHIFT, PAYLOAD_MASK, extra_words, kind};

/// Bytes of each length class.
const LENGTH: [u8; 8] = [0, 1, 2, 3, 4, 5, 6, 8];
const MASK: [u64; 8] = {
    let mut m = [0; 8];
    let mut i = 1;
    while i < 8 {
        m[i] = u64::MAX >> (64 - 8 * LENGTH[i] as u32);
        i += 1;
    }
    m
};
/// Length class by number of leading zero bits.
const CLASS: [u8; 65] = {
    let mut t = [0; 65];
    let mut zeros = 0usize;
    while zeros <= 64 {
        let bytes = (64 - zeros).div_ceil(8);
        t[zeros] = if bytes >= 7 { 7 } else { bytes as u8 };
        zeros += 1;
    }
    t
};
/// Which bits of a word the next one of its slot is compared with: all for
/// addresses, none for kinds whose values are small by themselves.
const KEEP: [u64; 32] = {
    let mut k = [PAYLOAD_MASK; 32];
    k[kind::INSNS as usize] = 0;
    k[kind::VCPU as usize] = 0;
    k
};

/// Longest encoding of `words` words, control and data together.
pub(crate) const fn bound(words: usize) -> usize {
    9 * words
}

/// Why bytes are no encoded words.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Malformed(pub(crate) &'static str);

#[inline]
fn zigzag(d: i64) -> u64 {
    ((d << 1) ^ (d >> 63)) as u64
}

#[inline]
fn unzigzag(z: u64) -> u64 {
    (z >> 1) ^ (z & 1).wrapping_neg()
}

/// The slot of word `i` after the head of an event of kind `k`.
#[inline]
fn extra_slot(k: u64, i: usize) -> usize {
    match k {
        kind::TABLE => 0,
        kind::PT_STORE => 32 + i,
        kind::STATS => 36,
        kind::RESIDENT => 37,
        kind::TICKS => 38,
        kind::LOG => 39,
        // FAULT 6; CHECK 10, with the payloads of CR3, physical addresses too.
        k => k as usize - 8,
    }
}

/// Which bits of a further word the next one is compared with: none for text, in which zstd
/// finds repetitions that differences would hide.
#[inline]
fn extra_keep(k: u64) -> u64 {
    if k == kind::LOG { 0 } else { u64::MAX }
}

#[inline]
fn put(control: &mut u8, data: &mut [u8], kind: u8, z: u64) -> usize {
    let class = CLASS[z.leading_zeros() as usize];
    *control = kind << 3 | class;
    data[..8].copy_from_slice(&z.to_le_bytes());
    usize::from(LENGTH[usize::from(class)])
}

/// Encodes whole events from the start of `words`, as many as begin within the
/// first `limit` words; returns how many words those were. `out` becomes the
/// control bytes followed by the data bytes.
pub(crate) fn encode(words: &[u64], limit: usize, out: &mut Vec<u8>) -> Result<usize, DecodeError> {
    let most = words.len().min(limit + crate::event::MAX_WORDS);
    out.clear();
    out.resize(bound(most) + 8, 0);
    // Data is written behind where the longest control string would end, and moved up at the end.
    let (control, data) = out.split_at_mut(most);
    let (mut slots, mut at, mut end) = ([0u64; 40], 0, 0);
    while at < words.len().min(limit) {
        let w = words[at];
        let k = w >> KIND_SHIFT;
        let Some(extra) = extra_words(k) else {
            return Err(DecodeError::Kind { kind: k, word: at });
        };
        // Differences wrap within the 57 bits of a payload.
        let slot = (k & 31) as usize;
        let d = ((w.wrapping_sub(slots[slot]) << 7) as i64) >> 7;
        slots[slot] = w & KEEP[slot];
        end += put(&mut control[at], &mut data[end..], k as u8, zigzag(d));
        at += 1;
        if extra > 0 {
            let Some(further) = words.get(at..at + extra) else {
                return Err(DecodeError::Truncated { need: 1 + extra, word: at - 1 });
            };
            let keep = extra_keep(k);
            for (i, &x) in further.iter().enumerate() {
                let slot = extra_slot(k, i);
                let d = x.wrapping_sub(slots[slot]) as i64;
                slots[slot] = x & keep;
                end += put(&mut control[at], &mut data[end..], 0, zigzag(d));
                at += 1;
            }
        }
    }
    out.copy_within(most..most + end, at);
    out.truncate(at + end);
    Ok(at)
}

/// Decodes what [`encode`] made of `count` words.
pub(crate) fn decode(bytes: &[u8], count: usize, out: &mut Vec<u64>) -> Result<(), Malformed> {
    const SHORT: Malformed = Malformed("fewer bytes than its words need");
    out.clear();
    if bytes.len() < count {
        return Err(SHORT);
    }
    let (control, mut data) = bytes.split_at(count);
    out.reserve(count);
    let mut slots = [0u64; 40];
    let mut take = |c: u8| -> Result<u64, Malformed> {
        let class = usize::from(c & 7);
        let n = usize::from(LENGTH[class]);
        if let Some(eight) = data.first_chunk::<8>() {
            data = &data[n..];
            return Ok(unzigzag(u64::from_le_bytes(*eight) & MASK[class]));
        }
        let mut eight = [0; 8];
        eight[..n].copy_from_slice(data.get(..n).ok_or(SHORT)?);
        data = &data[n..];
        Ok(unzigzag(u64::from_le_bytes(eight)))
    };
    let mut at = 0;
    while let Some(&c) = control.get(at) {
        let k = u64::from(c >> 3);
        let Some(extra) = extra_words(k) else {
            return Err(Malformed("an unknown event kind"));
        };
        let slot = k as usize;
        let payload = slots[slot].wrapping_add(take(c)?) & PAYLOAD_MASK;
        slots[slot] = payload & KEEP[slot];
        out.push(k << KIND_SHIFT | payload);
        at += 1;
        if extra > 0 {
            let Some(further) = control.get(at..at + extra) else {
                return Err(Malformed("an event that is cut off"));
            };
            let keep = extra_keep(k);
            for (i, &c) in further.iter().enumerate() {
                if c >> 3 != 0 {
                    return Err(Malformed("a head within an event"));
                }
                let slot = extra_slot(k, i);
                let x = slots[slot].wrapping_add(take(c)?);
                slots[slot] = x & keep;
                out.push(x);
            }
            at += extra;
        }
    }
    if data.is_empty() { Ok(()) } else { Err(Malformed("more bytes than its words need")) }
}

/// Decodes arbitrary bytes as a block, for fuzzing and tests.
#[doc(hidden)]
pub fn decode_any(bytes: &[u8], count: usize) -> Option<Vec<u64>> {
    let mut out = Vec::new();
    decode(bytes, count, &mut out).ok().map(|()| out)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::event::{Event, head, marker};
    use proptest::prelude::*;

    fn round_trip(words: &[u64]) {
        let (mut bytes, mut again) = (Vec::new(), Vec::new());
        assert_eq!(encode(words, words.len(), &mut bytes).unwrap(), words.len());
        decode(&bytes, words.len(), &mut again).unwrap();
        assert_eq!(words, again);
    }

    #[test]
    fn a_sequential_access_takes_two_bytes_and_an_unchanged_one_one() {
        let words: Vec<u64> =
            (0..1000).map(|i| head(kind::LOAD, 0xffff_8880_0000_0000 + 8 * (i / 2))).collect();
        let mut bytes = Vec::new();
        encode(&words, words.len(), &mut bytes).unwrap();
        assert_eq!(bytes.len(), 1000 + 6 + 499);
        round_trip(&words);
    }

    #[test]
    fn a_limit_ends_the_block_after_a_whole_event() {
        let mut words = Vec::new();
        Event::Marker(marker::START).encode(&mut words);
        Event::Table { gfn: 7, level: 1, entries: &[3; 512] }.encode(&mut words);
        Event::Load(8).encode(&mut words);
        let mut bytes = Vec::new();
        assert_eq!(encode(&words, 2, &mut bytes).unwrap(), 514);
        assert_eq!(encode(&words, 514, &mut bytes).unwrap(), 514);
        assert_eq!(encode(&words, 9999, &mut bytes).unwrap(), 515);
    }

    #[test]
    fn a_cut_event_and_an_unknown_kind_are_refused() {
        let mut bytes = Vec::new();
        let cut = encode(&[head(kind::PT_STORE, 8), 1], 9, &mut bytes);
        assert_eq!(cut, Err(DecodeError::Truncated { need: 3, word: 0 }));
        let odd = encode(&[head(kind::LOAD, 8), head(33, 0)], 9, &mut bytes);
        assert_eq!(odd, Err(DecodeError::Kind { kind: 33, word: 1 }));
    }

    proptest! {
        #[test]
        fn decode_after_encode_is_the_identity(
            v in proptest::collection::vec((1u64..=25, any::<u64>(), any::<u64>(), 0u32..64), 1..60)
        ) {
            let mut words = Vec::new();
            for (k, p, a, shift) in v {
                let Some(extra) = extra_words(k) else { continue };
                words.push(head(k, p >> shift));
                words.extend((0..extra as u64).map(|i| a.wrapping_mul(i) >> shift));
            }
            round_trip(&words);
        }

        #[test]
        fn any_bytes_decode_to_whole_events_or_an_error(
            bytes in proptest::collection::vec(any::<u8>(), 0..2000), count in 0usize..600
        ) {
            if let Some(words) = decode_any(&bytes, count) {
                prop_assert_eq!(words.len(), count);
                round_trip(&words);
            }
        }
    }
}
