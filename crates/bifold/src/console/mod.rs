// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The terminal and the files of a run: data goes to stdout or to files that the user names, notes and
//! progress go to stderr, and Ctrl-C asks a run to end.

mod closed;
mod files;
mod output;
mod progress;
mod terminal;

pub use closed::stdout_was_closed;
pub use files::{Named, distinct, named};
pub use output::{Delivery, OutputFile, create, create_for_data, not_stdout};
pub use progress::{Progress, duration, left};
pub use terminal::{detect_terminal, has_ascii_only, redraws, wants_colors};

use anyhow::Context as _;
use std::io::{self, Write as _};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// Prints data to stdout. A closed pipe is no failure.
pub fn print(text: &str) -> anyhow::Result<()> {
    let mut stdout = io::stdout().lock();
    match stdout.write_all(text.as_bytes()).and_then(|()| stdout.flush()) {
        Err(e) if e.kind() != io::ErrorKind::BrokenPipe => Err(e).context("cannot write to stdout"),
        _ => Ok(()),
    }
}

/// Prints a note to stderr, if notes are shown.
pub fn note(shown: bool, text: impl std::fmt::Display) {
    if shown {
        eprintln!("bifold: {text}");
    }
}

/// Notes on stderr that a file was written.
pub fn note_file(shown: bool, what: &str, path: &Path) {
    note(shown, format_args!("{what} written to {}", path.display()));
}

/// A flag that the first Ctrl-C (or a request to terminate) sets. The run then ends by itself and shows
/// the figures that it has until then.
pub fn stop_on_signals() -> anyhow::Result<Arc<AtomicBool>> {
    use signal_hook::consts::{SIGHUP, SIGINT, SIGTERM};
    let stop = Arc::new(AtomicBool::new(false));
    for signal in [SIGINT, SIGTERM, SIGHUP] {
        signal_hook::flag::register(signal, Arc::clone(&stop)).context("cannot watch signals")?;
    }
    Ok(stop)
}
