// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The feed passes a source's events to the model, to a recording if there is one, and to the progress line.

use crate::console::Progress;
use anyhow::Context as _;
use bifold_attribute::Attribution;
use bifold_model::Model;
use bifold_trace::{Thin, file};

/// Takes whole events, in order.
pub struct Feed {
    /// The model.
    pub model: Model,
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
        let instructions = self.model.instructions();
        self.progress.say_again(|seconds| {
            let millions = instructions as f64 / 1e6;
            format!(
                "{millions:.0} million instructions, {seconds:.0} s, {:.0} million/s \
                 (Ctrl-C stops the run and shows its figures until then)",
                millions / seconds
            )
        });
        Ok(())
    }
}
