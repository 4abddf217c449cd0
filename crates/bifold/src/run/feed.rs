// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where events go: into the model, into a recording if one is made, and into
//! the progress line.

use crate::console::terminal::{redraws, spinner};
use anyhow::Context as _;
use bifold_attribute::Attribution;
use bifold_model::Model;
use bifold_trace::{Thin, file};
use indicatif::ProgressBar;
use std::time::{Duration, Instant};

/// Takes whole events, in order.
pub struct Feed {
    /// The model.
    pub model: Model,
    /// Costs by place, if they are asked for.
    pub places: Option<Attribution>,
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
        if let Some(places) = &mut self.places {
            self.model.take_charges(&mut |charge| places.take(charge));
        }
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
        let shown = shown && redraws(&std::io::stderr());
        let bar = if shown { ProgressBar::new_spinner() } else { ProgressBar::hidden() };
        bar.set_style(spinner());
        bar.set_message(what.to_string());
        if shown {
            bar.enable_steady_tick(Self::EVERY);
        }
        Progress { bar, started: Instant::now(), said: Instant::now() }
    }

    /// Words before all that the line says.
    pub fn prefix(self, words: &str) -> Progress {
        self.bar.set_prefix(words.to_string());
        self
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
