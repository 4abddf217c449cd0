// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns symbols and perf maps into log events at the stream's end. The guest's init sends them when the
//! command has ended (`guest/where.h`), in parts, each behind its kind, number and length.

use bifold_trace::event::{log, log_events};

/// Largest part that init sends, in bytes.
const MOST: u64 = 1 << 16;

/// Appends the events of all whole parts. A guest that was killed may have sent an incomplete last part.
pub(crate) fn events(mut bytes: &[u8], out: &mut Vec<u64>) {
    while let Some((head, rest)) = bytes.split_first_chunk::<24>() {
        let word = |i: usize| u64::from_le_bytes(head[8 * i..8 * i + 8].try_into().expect("8 bytes"));
        let (stream, number, length) = (word(0), word(1), word(2));
        let known = matches!(stream, log::SYMBOLS | log::PERF_MAP) && number < 1 << 25 && length <= MOST;
        let (true, Some(part)) = (known, rest.get(..length as usize)) else { return };
        log_events(stream, number, part, out);
        bytes = &rest[length as usize..];
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_trace::event::LOG_WORDS;

    fn part(stream: u64, number: u64, length: u64, bytes: &[u8]) -> Vec<u8> {
        [stream, number, length].iter().flat_map(|w| w.to_le_bytes()).chain(bytes.iter().copied()).collect()
    }

    #[test]
    fn whole_parts_become_events_and_the_rest_is_left_out() {
        let mut words = Vec::new();
        let mut sent = part(log::SYMBOLS, 0, 300, &[7; 300]);
        sent.extend(part(log::PERF_MAP, 12, 3, b"abc"));
        sent.extend(part(log::SYMBOLS, 0, 300, &[7; 299]));
        events(&sent, &mut words);
        assert_eq!(words.len(), 3 * (1 + LOG_WORDS));
        for (stream, number, length) in [(9, 0, 1), (log::SYMBOLS, 1 << 25, 1), (log::SYMBOLS, 0, u64::MAX)] {
            words.clear();
            events(&part(stream, number, length, &[0; 64]), &mut words);
            assert!(words.is_empty(), "{stream} {number} {length}");
        }
    }
}
