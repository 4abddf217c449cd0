// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-trace`: event words, recordings and generators' names.

/// Event words: decoded events encode to the words that they came from.
pub fn events(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    let (mut at, mut again) = (0, Vec::new());
    while let Ok((event, n)) = bifold_trace::decode(&words[at..], at) {
        let start = again.len();
        event.encode(&mut again);
        // An event drops payload bits that it does not use (`Cr3Read`).
        assert_eq!(again.len() - start, n, "{event:?}");
        let (same, _) =
            bifold_trace::decode(&again[start..], start).expect("what was encoded can be decoded");
        assert_eq!(same, event);
        at += n;
    }
}

/// Event words as a whole stream that is thinned to a sample: the result has whole events.
pub fn thin(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    let (seed, doubles) = (words.len() as u64, words.len() as u64 % 3);
    let windows = bifold_trace::Windows { window: 5, warm_up: 5, period: 50, seed, doubles };
    let mut out = Vec::new();
    if bifold_trace::Thin::new(windows).take(&words, &mut out).is_ok() {
        let mut at = 0;
        while at < out.len() {
            at += bifold_trace::decode(&out[at..], at).expect("whole events are left").1;
        }
    }
}

/// The bytes of a recording, and the bytes of a block behind its checksum.
pub fn recording(data: &[u8]) {
    if let Ok(mut reader) = bifold_trace::Reader::from_read("fuzz", std::io::Cursor::new(data.to_vec())) {
        let (mut block, mut blocks) = (Vec::new(), 0);
        while let Ok(true) = reader.next_block(&mut block) {
            blocks += 1;
            assert!(blocks <= data.len() / 24, "a block has a head of 24 bytes");
        }
    }
    if let [low, high, bytes @ ..] = data {
        let count = usize::from(u16::from_le_bytes([*low, *high]));
        if let Some(words) = bifold_trace::codec::decode_any(bytes, count) {
            assert_eq!(words.len(), count);
        }
    }
}

/// The name of a generator: an error, or a stream that starts.
pub fn generator(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    match bifold_trace::Generator::parse(text) {
        Err(e) => assert!(e.to_string().len() < text.len() * 2 + 200),
        Ok(g) => {
            assert_eq!(bifold_trace::Generator::parse(&g.to_string()), Ok(g));
            let stopped = g.run(&mut |words| if words.is_empty() { Ok(()) } else { Err("enough") });
            assert_eq!(stopped, Err("enough"));
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    proptest! {
        #[test]
        fn any_words_are_events_or_refused(data in bytes()) {
            events(&data);
        }

        #[test]
        fn any_words_are_thinned_or_refused(data in bytes()) {
            thin(&data);
        }

        #[test]
        fn any_bytes_are_a_recording_or_refused(data in bytes()) {
            recording(&data);
            let mut with_magic = bifold_trace::file::MAGIC.to_vec();
            with_magic.extend(bifold_trace::file::VERSION.to_le_bytes());
            with_magic.extend(data);
            recording(&with_magic);
        }

        #[test]
        fn any_text_is_a_generator_or_refused(text in "(t|t-seq|t-4m|fork-storm|[a-z-]{0,9}):?[0-9kmgKMG.+-]{0,30}") {
            generator(text.as_bytes());
        }
    }
}
