// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the reader's terminal can show. Tables are the same everywhere until the program says, once and at
//! its start, that its reader has fewer columns or no characters beyond ASCII.

use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};

static COLUMNS: AtomicUsize = AtomicUsize::new(usize::MAX);
static ASCII: AtomicBool = AtomicBool::new(false);

/// Narrower terminals are written to as if they had so many columns.
const NARROWEST: usize = 40;

/// Says how wide the terminal is that tables and wrapped lines are for: both are then broken to fit.
pub fn set_columns(columns: usize) {
    COLUMNS.store(columns.max(NARROWEST), Ordering::Relaxed);
}

/// Says that lines are to be drawn with ASCII characters.
pub fn set_ascii() {
    ASCII.store(true, Ordering::Relaxed);
}

/// Columns that there are; more than any line has if nobody said.
pub(crate) fn columns() -> usize {
    COLUMNS.load(Ordering::Relaxed)
}

/// Whether lines are to be drawn with ASCII characters.
pub(crate) fn ascii() -> bool {
    ASCII.load(Ordering::Relaxed)
}

/// Whether the locale is one of ASCII alone, by the values of LC_ALL, LC_CTYPE and LANG: the first of these
/// that is not empty decides, and without any the locale is C (POSIX, XBD 8.2).
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
