// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Logs in the stream: what ran in the guest and what was mapped, as the guest itself reports it.

use super::{Event, LOG_WORDS};

/// Records of the guest kernel's perf events, laid out by `linux/perf_event.h`; the number is the
/// vCPU. A record may continue in the next such event of its vCPU.
pub const PERF: u64 = 1;
/// Lines of the guest's `/proc/kallsyms`.
pub const SYMBOLS: u64 = 2;
/// The guest's `/tmp/perf-PID.map`; the number is the PID.
pub const PERF_MAP: u64 = 3;

/// Appends `bytes` as [`Event::Log`]s.
pub fn log_events(stream: u64, number: u64, bytes: &[u8], out: &mut Vec<u64>) {
    for part in bytes.chunks(8 * LOG_WORDS) {
        let mut data = [0; LOG_WORDS];
        for (word, bytes) in data.iter_mut().zip(part.chunks(8)) {
            let mut eight = [0; 8];
            eight[..bytes.len()].copy_from_slice(bytes);
            *word = u64::from_le_bytes(eight);
        }
        Event::Log { stream, number, bytes: part.len(), data: &data }.encode(out);
    }
}

/// The bytes of a log's words.
pub fn log_bytes(data: &[u64; LOG_WORDS]) -> [u8; 8 * LOG_WORDS] {
    let mut bytes = [0; 8 * LOG_WORDS];
    for (eight, word) in bytes.chunks_exact_mut(8).zip(data) {
        eight.copy_from_slice(&word.to_le_bytes());
    }
    bytes
}
#[cfg(test)]
mod tests {
    use super::*;
    use crate::decode;

    #[test]
    fn bytes_of_any_length_come_back_from_logs() {
        for length in [0, 1, 7, 8, 256, 257, 1000] {
            let bytes: Vec<u8> = (0..length).map(|i| (i * 7) as u8).collect();
            let (mut words, mut at, mut again) = (Vec::new(), 0, Vec::new());
            log_events(PERF_MAP, 4711, &bytes, &mut words);
            while at < words.len() {
                let (event, n) = decode(&words[at..], at).unwrap();
                let Event::Log { stream: PERF_MAP, number: 4711, bytes, data } = event else {
                    panic!("{event:?}");
                };
                again.extend_from_slice(&log_bytes(data)[..bytes]);
                at += n;
            }
            assert_eq!(again, bytes);
        }
    }
}
