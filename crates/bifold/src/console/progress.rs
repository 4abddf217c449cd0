// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The progress line.

use super::terminal::{redraws, spinner};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// A line on stderr that shows the progress of a run; hidden if stderr cannot redraw a line.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    said: Instant,
}

impl Progress {
    const EVERY: Duration = Duration::from_millis(100);

    /// Starts the line, if `shown`, with the current activity.
    pub fn start(shown: bool, what: &str) -> Progress {
        let shown = shown && redraws(&std::io::stderr());
        let bar = if shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_style(spinner());
        bar.set_message(what.to_string());
        if shown {
            bar.enable_steady_tick(Self::EVERY);
        }
        Progress { bar, started: Instant::now(), said: Instant::now() }
    }

    /// Begins the line with these words.
    pub fn prefix(self, words: &str) -> Progress {
        self.bar.set_prefix(words.to_string());
        self
    }

    /// Shows another activity.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_string());
    }

    /// Shows an activity that changes all the time, at most ten times a second. `what` gets the seconds since
    /// the line was started.
    pub fn say_again(&mut self, what: impl FnOnce(f64) -> String) {
        if !self.bar.is_hidden() && self.said.elapsed() >= Self::EVERY {
            self.said = Instant::now();
            self.say(&what(self.started.elapsed().as_secs_f64()));
        }
    }

    /// Prints to stderr without disturbing the line.
    pub fn suspend(&self, print: impl FnOnce()) {
        self.bar.suspend(print);
    }

    /// Removes the line.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
