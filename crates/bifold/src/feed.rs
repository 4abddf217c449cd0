// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where events go: into the model, into a recording if one is made, and into
//! the progress line.

use anyhow::Context as _;
use bifold_model::Model;
use bifold_trace::{Thin, file};
use indicatif::{ProgressBar, ProgressStyle};
use std::time::{Duration, Instant};

/// Takes whole events, in order.
pub struct Feed {
    /// The model.
    pub model: Model,
    /// Thins whole events to a sample, if that is wanted of what is no guest.
    pub thin: Option<Thin>,
    /// The recording, until it cannot be written any more.
    pub writer: Option<file::Writer>,
    /// Why it cannot: told at the end, as the run goes on without its recording.
    pub unwritten: Option<file::FileError>,
    /// The progress line.
    pub progress: Progress,
}

impl Feed {
    /// Hands events to the model and the recording.
    pub fn take(&mut self, words: &[u64]) -> anyhow::Result<()> {
        let mut thinned = Vec::new();
        let words = match &mut self.thin {
            None => words,
            Some(thin) => {
                thin.take(words, &mut thinned).context("cannot make sense of the events")?;
                &thinned
            }
        };
        self.model.consume(words).context("cannot make sense of the events")?;
        if let Some(writer) = &mut self.writer {
            if let Err(e) = writer.write(words) {
                // Dropped, it removes what it has written.
                self.writer = None;
                self.unwritten = Some(e);
            }
        }
        self.progress.at(self.model.instructions());
        Ok(())
    }
}

/// A line on stderr that says how far a run is; nothing where no one would see it.
#[derive(Clone)]
pub struct Progress {
    bar: ProgressBar,
    started: Instant,
    said: Instant,
}

impl Progress {
    const EVERY: Duration = Duration::from_millis(100);

    /// Starts the line, if it is to be shown, with what is being done.
    pub fn start(shown: bool, what: &str) -> Progress {
        let bar = if shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        let style = ProgressStyle::with_template("{spinner} {msg}");
        bar.set_style(style.expect("the template is a valid one"));
        bar.set_message(what.to_string());
        if shown {
            bar.enable_steady_tick(Self::EVERY);
        }
        Progress { bar, started: Instant::now(), said: Instant::now() }
    }

    /// Something else is being done now.
    pub fn say(&self, what: &str) {
        self.bar.set_message(what.to_string());
    }

    /// The model is at this many instructions.
    fn at(&mut self, instructions: u64) {
        if self.bar.is_hidden() || self.said.elapsed() < Self::EVERY {
            return;
        }
        self.said = Instant::now();
        let seconds = self.started.elapsed().as_secs_f64();
        let millions = instructions as f64 / 1e6;
        self.say(&format!(
            "{millions:.0} million instructions, {seconds:.0} s, {:.0} million/s (Ctrl-C stops and shows what is there)",
            millions / seconds
        ));
    }

    /// Takes the line away.
    pub fn end(&self) {
        self.bar.finish_and_clear();
    }
}
