// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Abilities of the reader's terminal: its columns and its characters. The program sets both once at its
//! start; by default lines are not broken to fit, and have characters beyond ASCII.

use std::borrow::Cow;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static COLUMNS: AtomicUsize = AtomicUsize::new(usize::MAX);
static ASCII: AtomicBool = AtomicBool::new(false);

/// Fewest columns; narrower terminals are treated as if they had this many.
const NARROWEST: usize = 40;

/// Sets the width of the terminal, to which tables and wrapped lines are broken.
pub fn set_columns(columns: usize) {
    COLUMNS.store(columns.max(NARROWEST), Ordering::Relaxed);
}

/// Makes tables and text for people consist of ASCII characters.
pub fn set_ascii() {
    ASCII.store(true, Ordering::Relaxed);
}

/// Columns of the terminal; more than any line has by default.
pub(crate) fn columns() -> usize {
    COLUMNS.load(Ordering::Relaxed)
}

/// Whether tables draw lines with ASCII characters.
pub fn ascii() -> bool {
    ASCII.load(Ordering::Relaxed)
}

/// The text in the characters of the terminal, for every text that people read there. Where there is only
/// ASCII, the characters that this program writes have signs of ASCII, and those of users and guests are
/// escaped (`\u{f6}`).
pub(crate) fn plain(text: &str) -> Cow<'_, str> {
    if ascii() { in_ascii(text) } else { Cow::Borrowed(text) }
}

fn in_ascii(text: &str) -> Cow<'_, str> {
    if text.is_ascii() {
        return Cow::Borrowed(text);
    }
    let mut out = String::with_capacity(text.len());
    for c in text.chars() {
        match c {
            c if c.is_ascii() => out.push(c),
            '±' => out.push_str("+-"),
            '─' | '–' | '−' => out.push('-'),
            // One sign for one, as tables are laid out before.
            '…' => out.push('~'),
            '×' => out.push('x'),
            '\u{a0}' => out.push(' '),
            c => out.extend(c.escape_unicode()),
        }
    }
    Cow::Owned(out)
}

/// Whether the locale has only ASCII characters, by the values of LC_ALL, LC_CTYPE and LANG: the first of
/// these that is not empty decides, and without any the locale is C (POSIX, XBD 8.2).
pub fn is_ascii_locale(variables: [Option<&str>; 3]) -> bool {
    let locale = variables.into_iter().flatten().find(|v| !v.is_empty()).unwrap_or("C");
    let charset = locale.split_once('.').map_or("", |(_, charset)| charset);
    let charset = charset.split('@').next().unwrap_or("").replace('-', "");
    !charset.eq_ignore_ascii_case("utf8")
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn text_has_signs_of_ascii_for_its_own_characters_and_escapes_for_others() {
        assert_eq!(in_ascii("cycles ± 0.99 %"), "cycles +- 0.99 %");
        assert_eq!(in_ascii("hand…ault ──"), "hand~ault --");
        assert_eq!(in_ascii("größe"), r"gr\u{f6}\u{df}e");
        assert!(matches!(in_ascii("plain"), Cow::Borrowed("plain")));
    }

    #[test]
    fn a_locale_is_of_ascii_unless_it_says_utf_8() {
        for (variables, ascii) in [
            ([None, None, None], true),
            ([Some(""), None, Some("")], true),
            ([None, None, Some("C")], true),
            ([None, None, Some("POSIX")], true),
            ([None, None, Some("de_DE")], true),
            ([None, None, Some("C.UTF-8")], false),
            ([None, None, Some("en_US.utf8")], false),
            ([None, None, Some("de_DE.UTF-8@euro")], false),
            ([Some("C"), None, Some("en_US.UTF-8")], true),
            ([Some(""), Some("en_US.UTF-8"), Some("C")], false),
            ([None, None, Some("de_DE.ISO-8859-1")], true),
        ] {
            assert_eq!(is_ascii_locale(variables), ascii, "{variables:?}");
        }
    }
}
