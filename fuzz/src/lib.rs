// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The bodies of the fuzz targets, as plain functions, so that a stable
//! compiler can run them too (`cargo test` in this folder).
//!
//! Each takes any bytes as input that someone else wrote, and panics only when
//! Bifold has a bug: a panic of its own, or a promise broken.
//!
//! ```text
//! cargo +nightly fuzz run --features libfuzzer recording
//! ```
#![forbid(unsafe_code)]

/// Event words: what can be read is written back the same.
pub fn events(data: &[u8]) {
    let words: Vec<u64> =
        data.chunks_exact(8).map(|c| u64::from_le_bytes(c.try_into().expect("8 bytes"))).collect();
    let (mut at, mut again) = (0, Vec::new());
    while let Ok((event, n)) = bifold_trace::decode(&words[at..], at) {
        let start = again.len();
        event.encode(&mut again);
        // Payload bits that an event has no use for (`Cr3Read`) are not kept.
        assert_eq!(again.len() - start, n, "{event:?}");
        let (same, _) =
            bifold_trace::decode(&again[start..], start).expect("what was encoded can be decoded");
        assert_eq!(same, event);
        at += n;
    }
}

/// A recording's bytes: any of it, and the contents of a block with the checksum right.
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

/// A generator's name: an error, or a stream that begins.
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

/// A hardware profile: an error, or one that is read.
pub fn profile(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    // What follows a line of dashes are overrides, one a line.
    let (text, overrides) = text.split_once("\n---\n").unwrap_or((text, ""));
    let overrides: Vec<String> = overrides.lines().map(Into::into).collect();
    let _ = bifold_model::Profile::parse(text, "fuzz", &overrides);
}

#[cfg(test)]
mod tests {
    use proptest::prelude::*;

    fn bytes() -> impl Strategy<Value = Vec<u8>> {
        // Small kinds and levels more often than chance would have them.
        let word = prop_oneof![
            any::<u64>(),
            (0u64..24, any::<u64>()).prop_map(|(k, p)| k << 57 | p >> 7),
            (0u64..64).prop_map(|p| 16 << 57 | p),
        ];
        proptest::collection::vec(word, 0..1200)
            .prop_map(|words| words.iter().flat_map(|w| w.to_le_bytes()).collect())
    }

    proptest! {
        #[test]
        fn any_words_are_events_or_refused(data in bytes()) {
            super::events(&data);
        }

        #[test]
        fn any_bytes_are_a_recording_or_refused(data in bytes()) {
            super::recording(&data);
            let mut with_magic = bifold_trace::file::MAGIC.to_vec();
            with_magic.extend(bifold_trace::file::VERSION.to_le_bytes());
            with_magic.extend(data);
            super::recording(&with_magic);
        }

        #[test]
        fn any_text_is_a_generator_or_refused(text in "(t|t-seq|t-4m|fork-storm|[a-z-]{0,9}):?[0-9kmgKMG.+-]{0,30}") {
            super::generator(text.as_bytes());
        }

        #[test]
        fn any_text_is_a_profile_or_refused(text in "\\PC{0,200}", value in "\\PC{0,30}", line in 0usize..400) {
            super::profile(text.as_bytes());
            for (_, good) in PROFILES {
                let mut lines: Vec<&str> = good.lines().collect();
                let at = line % lines.len();
                let changed = lines[at].split_once('=').map_or(value.clone(), |(k, _)| format!("{k}= {value}"));
                lines[at] = &changed;
                super::profile(lines.join("\n").as_bytes());
                let cut = good.char_indices().map(|c| c.0).nth(line * 7).unwrap_or(0);
                super::profile(&good.as_bytes()[..cut]);
                super::profile(format!("{good}\n---\n{changed}\n").as_bytes());
            }
        }
    }

    const PROFILES: [(&str, &str); 2] = [
        ("i5-7600", include_str!("../../profiles/i5-7600.toml")),
        ("geometry-g", include_str!("../../profiles/geometry-g.toml")),
    ];
}
