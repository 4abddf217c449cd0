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

    /// Shows an activity that changes all the time, at most ten times a second.
    pub fn say_again(&mut self, what: impl FnOnce() -> String) {
        if !self.bar.is_hidden() && self.said.elapsed() >= Self::EVERY {
            self.said = Instant::now();
            self.say(&what());
        }
    }

    /// Shows how many of a known number are done since the start of the line.
    pub fn count(&self, what: &str, done: usize, all: usize) {
        self.say(&counted(what, done, all, self.started.elapsed().as_secs_f64()));
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

/// How many of a known number are done after some seconds.
fn counted(what: &str, done: usize, all: usize, seconds: f64) -> String {
    format!("{done} of {all} {what}{}", left(seconds, done as f64 / all.max(1) as f64))
}

/// Seconds before a rate says something about the rest.
const FIRST: f64 = 2.0;

/// `, 12 s left` for a work of which a part from 0 to 1 took some seconds; nothing where that is too early to
/// say.
pub fn left(seconds: f64, done: f64) -> String {
    match done > 0.0 && seconds >= FIRST {
        true => format!(", {} left", duration(seconds * (1.0 - done) / done)),
        false => String::new(),
    }
}

/// A length of time to two digits or so.
pub fn duration(seconds: f64) -> String {
    match seconds {
        s if s < 120.0 => format!("{s:.0} s"),
        s if s < 7200.0 => format!("{:.0} min", s / 60.0),
        s => format!("{:.0} h", s / 3600.0),
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_time_left_follows_from_what_is_done() {
        assert_eq!(counted("cases simulated", 5, 20, 10.0), "5 of 20 cases simulated, 30 s left");
        assert_eq!(counted("cases simulated", 0, 20, 10.0), "0 of 20 cases simulated");
        assert_eq!(counted("cases simulated", 5, 20, 1.0), "5 of 20 cases simulated");
        assert_eq!(counted("cases simulated", 20, 20, 10.0), "20 of 20 cases simulated, 0 s left");
        assert_eq!(left(60.0, 0.01), ", 99 min left");
    }
}
