// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Describes a page's content in a few words.

use std::fmt;

/// Bytes of a page's beginning that are shown.
const SHOWN: usize = 16;

/// What a content is.
#[derive(Debug, Clone, PartialEq, Eq)]
pub enum What {
    /// All zeros.
    Zero,
    /// One byte, repeated.
    Byte(u8),
    /// Two, four or eight bytes, repeated.
    Word(Vec<u8>),
    /// A page of a known file.
    Known {
        /// The file's name.
        file: String,
        /// Where the page is in it, in bytes.
        offset: u64,
    },
    /// A content known only by its fingerprint, in hexadecimal digits.
    Fingerprint(String),
    /// Something else, which begins like this.
    Other([u8; SHOWN]),
}

impl What {
    /// Describes a page by its bytes alone.
    ///
    /// # Panics
    /// If the page has fewer than 16 bytes.
    pub fn of(page: &[u8]) -> What {
        let repeats = |n: usize| page.chunks_exact(n).all(|part| part == &page[..n]);
        match [1, 2, 4, 8].into_iter().find(|n| repeats(*n)) {
            Some(1) if page[0] == 0 => What::Zero,
            Some(1) => What::Byte(page[0]),
            Some(n) => What::Word(page[..n].to_vec()),
            None => What::Other(page[..SHOWN].try_into().expect("a page is longer")),
        }
    }

    /// The kind of content, as one word for programs.
    pub fn kind(&self) -> &'static str {
        match self {
            What::Zero => "zero",
            What::Byte(_) => "byte",
            What::Word(_) => "word",
            What::Known { .. } => "known",
            What::Fingerprint(_) => "fingerprint",
            What::Other(_) => "other",
        }
    }
}

impl fmt::Display for What {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let hex = |bytes: &[u8]| bytes.iter().map(|b| format!("{b:02x}")).collect::<String>();
        match self {
            What::Zero => write!(f, "zeros"),
            What::Byte(b) => write!(f, "byte {b:02x} repeated"),
            What::Word(bytes) => write!(f, "bytes {} repeated", hex(bytes)),
            What::Known { file, offset } => write!(f, "{file} at {offset:#x}"),
            What::Fingerprint(digits) => write!(f, "fingerprint {digits}"),
            What::Other(bytes) => write!(f, "{}...", hex(bytes)),
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::image::PAGE;

    #[test]
    fn contents_are_named_by_their_shortest_pattern() {
        let cases: [(&[u8], &str); 6] = [
            (&[0], "zeros"),
            (&[0xcc], "byte cc repeated"),
            (&[1, 2], "bytes 0102 repeated"),
            (&[1, 2, 1, 3], "bytes 01020103 repeated"),
            (&[0, 0, 0, 0, 0, 0, 0, 1], "bytes 0000000000000001 repeated"),
            (&[0, 1, 2, 3, 4, 5, 6, 7, 8, 9, 10, 11, 12, 13, 14, 15], "000102030405060708090a0b0c0d0e0f..."),
        ];
        for (pattern, said) in cases {
            let page: Vec<u8> = pattern.iter().copied().cycle().take(PAGE).collect();
            assert_eq!(What::of(&page).to_string(), said);
        }
        let mut page = vec![5; PAGE];
        page[PAGE - 1] = 6;
        assert_eq!(What::of(&page).kind(), "other");
    }
}
