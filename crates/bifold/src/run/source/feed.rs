// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The feed passes a source's events to the model, to a recording if there is one, and to the progress line.

use crate::console::Progress;
use crate::run::pace::Pace;
use anyhow::Context as _;
use bifold_attribute::Attribution;
use bifold_model::Model;
use bifold_trace::{Thin, file};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Instant;

/// Takes whole events, in order.
pub struct Feed {
    /// The model.
    pub model: Model,
    /// Models of the same events whose hosts hold less.
    pub limited: Vec<Model>,
    /// Costs by place, with `--where`.
    pub places: Option<Attribution>,
    /// Thins whole events to a sample, if `--sample` is given and the source is no guest.
    pub thin: Option<Thin>,
    /// The recording's writer, until it fails.
    pub writer: Option<file::Writer>,
    /// Why the recording could not be written. The run goes on without its recording and ends with this
    /// error.
    pub unwritten: Option<file::FileError>,
    /// The progress line.
    pub progress: Progress,
    /// The phase that the progress line names, and when it began.
    pub phase: (&'static str, Instant),
    /// The phase's length, as the source knows it.
    pub length: Length,
    /// Whether stderr gets notes.
    pub notes: bool,
    /// When the run ends for its accuracy, with `--until`.
    pub until: Option<Until>,
}

/// The accuracy at which a sampled run ends.
pub struct Until {
    percent: f64,
    enough: Arc<AtomicBool>,
    /// Windows at the last check.
    windows: u64,
}

impl Until {
    /// Fewer windows say too little of how far they spread.
    const WINDOWS: u64 = 30;

    /// Sets `enough` when every interval's half-width is at most `percent` of its overhead.
    pub fn new(percent: f64, enough: Arc<AtomicBool>) -> Until {
        // With --runs, the run before has set the flag.
        enough.store(false, Ordering::Relaxed);
        Until { percent, enough, windows: 0 }
    }

    fn check(&mut self, model: &Model) {
        let windows = model.windows();
        if windows == self.windows || windows < Self::WINDOWS {
            return;
        }
        self.windows = windows;
        if model.so_far().is_some_and(|s| s.percent <= self.percent) {
            self.enough.store(true, Ordering::Relaxed);
        }
    }
}

/// The length of a phase.
#[derive(Debug, Clone, Copy)]
pub enum Length {
    Unknown,
    /// Guest instructions.
    Instructions(u64),
    /// Accesses.
    Accesses(u64),
    /// This part of it is done, from 0 to 1.
    Done(f64),
}

impl Feed {
    /// Passes events to the model and to the recording.
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
        for model in &mut self.limited {
            model.consume(words).context("cannot make sense of the events")?;
        }
        if let Some(places) = &mut self.places {
            self.model.take_charges(&mut |charge| places.take(charge));
        }
        if let Some(writer) = &mut self.writer {
            if let Err(e) = writer.write(words) {
                // A writer that is dropped removes its unfinished file.
                self.writer = None;
                self.unwritten = Some(e);
            }
        }
        if let Some(until) = &mut self.until {
            until.check(&self.model);
        }
        self.show();
        Ok(())
    }

    /// Names the phase on the progress line, if it is another one.
    pub fn begin(&mut self, phase: &'static str) {
        if self.phase.0 != phase {
            (self.phase, self.length) = ((phase, Instant::now()), Length::Unknown);
        }
    }

    fn show(&mut self) {
        let Feed { model, progress, phase: (phase, begun), length, .. } = self;
        progress.say_again(|| {
            let (seconds, instructions) = (begun.elapsed().as_secs_f64(), model.instructions());
            let done = match *length {
                Length::Unknown => None,
                Length::Instructions(n) => Some(instructions as f64 / n as f64),
                Length::Accesses(n) => Some(model.accesses() as f64 / n as f64),
                Length::Done(part) => Some(part),
            };
            let accuracy = model.so_far().map(|s| (s.config.name(), s.percent));
            Pace { phase, seconds, instructions, done, accuracy }.words()
        });
    }
}
