// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal: its width, its characters, and whether lines can be redrawn.

use bifold_report::terminal::{is_ascii_locale, set_ascii, set_columns};
use indicatif::ProgressStyle;
use std::io::{IsTerminal, stdout};

/// Detects the terminal's width and the locale's characters, and sets both for all tables.
pub fn detect_terminal() {
    if has_ascii_only() {
        set_ascii();
    }
    if let Some((columns, _)) = terminal_size::terminal_size_of(stdout()) {
        set_columns(columns.0.into());
    }
}

/// Whether the locale has only ASCII characters.
pub fn has_ascii_only() -> bool {
    let words = ["LC_ALL", "LC_CTYPE", "LANG"].map(|name| std::env::var(name).ok());
    is_ascii_locale(words.each_ref().map(|w| w.as_deref()))
}

/// The style of the progress line: a spinner and text, which the terminal's width cuts off.
pub(super) fn spinner() -> ProgressStyle {
    let style = ProgressStyle::with_template("{spinner} {prefix}{wide_msg}").expect("a template of ours");
    if has_ascii_only() { style.tick_chars("|/-\\ ") } else { style }
}

/// Whether lines on a stream can be redrawn: the stream is a terminal, and not a dumb one.
pub fn redraws(stream: &impl IsTerminal) -> bool {
    stream.is_terminal() && std::env::var_os("TERM").is_some_and(|t| !t.is_empty() && t != "dumb")
}

/// Whether the user wants colours: NO_COLOR is not set (<https://no-color.org>).
pub fn wants_colors() -> bool {
    std::env::var_os("NO_COLOR").is_none_or(|v| v.is_empty())
}
