// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a compact recording leaves out of a stream: where in its page a load or a fetch lies, and what a load
//! waits for.
//!
//! TLBs, walk caches and tables know pages alone, of 4 KB and more. So the events of a compact recording
//! change them as the whole stream's do, whatever their geometry, the paging mode and the sizes of pages.
//! Data caches know lines, and need the whole stream. Stores keep their addresses: a hypervisor with shadow
//! tables decodes one to a page that is a table, or was one, and the entry that it writes follows from the
//! address (KVM's `kvm_mmu_pte_write`). Fetches keep theirs where costs are to be charged to functions. No
//! event is dropped, so counts, and the instructions between events, stay as they are.

use crate::event::{DecodeError, KIND_SHIFT, extra_words, head, kind};
use serde::{Deserialize, Serialize};

const OFFSET: u64 = 0xfff;

/// What the addresses of a recording's loads and fetches tell.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Hash, Serialize, Deserialize)]
#[serde(rename_all = "kebab-case")]
pub enum Granularity {
    /// The byte.
    #[default]
    Byte,
    /// The 4 KB page: the recording is compact.
    Page,
}

impl Granularity {
    pub(crate) fn is_byte(&self) -> bool {
        *self == Granularity::Byte
    }
}

/// Appends whole events as a compact recording has them. `attributed`: costs are to be charged to functions.
///
/// # Errors
/// If the words are no whole events.
pub fn compact(words: &[u64], attributed: bool, out: &mut Vec<u64>) -> Result<(), DecodeError> {
    out.reserve(words.len());
    let mut i = 0;
    while let Some(&word) = words.get(i) {
        let k = word >> KIND_SHIFT;
        match k {
            kind::LOAD | kind::LOAD_DEPENDENT | kind::LOAD_BEFORE_CHAIN => {
                out.push(head(kind::LOAD, word & !OFFSET));
            }
            kind::FETCH if !attributed => out.push(word & !OFFSET),
            kind::STORE | kind::STORE_OTHER => out.push(word),
            _ => {
                let extra = extra_words(k).ok_or(DecodeError::Kind { kind: k, word: i })?;
                let whole = words.get(i..=i + extra);
                out.extend_from_slice(whole.ok_or(DecodeError::Truncated { need: 1 + extra, word: i })?);
                i += extra;
            }
        }
        i += 1;
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::{Event, decode};
    use proptest::prelude::*;

    /// As [`compact`], event by event.
    fn slowly(words: &[u64], attributed: bool) -> Vec<u64> {
        let (mut at, mut out) = (0, Vec::new());
        while at < words.len() {
            let (event, n) = decode(&words[at..], at).unwrap();
            match event {
                Event::Load(va) | Event::LoadDependent(va) | Event::LoadBeforeChain(va) => {
                    Event::Load(va / 4096 * 4096).encode(&mut out);
                }
                Event::Fetch(va) if !attributed => Event::Fetch(va / 4096 * 4096).encode(&mut out),
                other => other.encode(&mut out),
            }
            at += n;
        }
        out
    }

    proptest! {
        #[test]
        fn loads_and_fetches_lose_their_place_in_the_page_and_nothing_else_changes(
            events in proptest::collection::vec((1u64..=19, any::<u64>(), any::<u64>()), 0..80), attributed: bool
        ) {
            let mut words = Vec::new();
            for (k, payload, more) in events {
                // There is no kind 7; a table has a level from 1 to 5; a read of CR3 has no payload.
                let payload = match k {
                    kind::TABLE => (payload << 4) | (1 + payload % 5),
                    kind::CR3_READ => 0,
                    _ => payload,
                };
                if let Some(extra) = extra_words(k) {
                    words.push(head(k, payload));
                    words.extend((0..extra as u64).map(|i| more.rotate_left(i as u32)));
                }
            }
            let mut out = Vec::new();
            compact(&words, attributed, &mut out).unwrap();
            prop_assert_eq!(&out, &slowly(&words, attributed));
            let mut again = Vec::new();
            compact(&out, attributed, &mut again).unwrap();
            prop_assert_eq!(again, out);
        }
    }

    #[test]
    fn words_that_are_no_whole_events_are_refused() {
        let mut out = Vec::new();
        let cut = compact(&[head(kind::LOAD, 1), head(kind::PT_STORE, 8), 1], false, &mut out);
        assert_eq!(cut, Err(DecodeError::Truncated { need: 3, word: 1 }));
        assert_eq!(compact(&[head(99, 0)], false, &mut out), Err(DecodeError::Kind { kind: 99, word: 0 }));
    }
}
