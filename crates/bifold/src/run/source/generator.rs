// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A built-in generator as a source of events.

use super::{Ending, EventSource, Feed, Length};
use crate::run::pace;
use crate::usage::UsageError;
use bifold_report::Input;
use bifold_trace::file::{Header, Source};
use bifold_trace::generate::Generator;
use std::sync::atomic::{AtomicBool, Ordering};

impl EventSource for Generator {
    fn header(&self) -> Header {
        Header {
            guest_frames: self.guest_frames(),
            vcpus: 1,
            source: Source {
                bifold_version: bifold_base::version().into(),
                generator: Some(self.to_string()),
                ..Source::default()
            },
            ..Header::default()
        }
    }

    fn input(&self) -> Input {
        Input::Generator { name: self.to_string() }
    }

    fn phase(&self) -> &'static str {
        pace::MODEL
    }

    fn run(&mut self, feed: &mut Feed, stop: &AtomicBool) -> Ending {
        feed.length = Length::Accesses(self.accesses());
        let mut sink = |words: &[u64]| {
            if stop.load(Ordering::Relaxed) {
                return Err(Stop::Interrupted);
            }
            feed.take(words).map_err(Stop::Failed)
        };
        match Generator::run(self, &mut sink) {
            Ok(()) => Ending::default(),
            Err(Stop::Interrupted) => Ending::interrupted(),
            Err(Stop::Failed(e)) => Ending::failed(e),
        }
    }

    fn look(&mut self) -> bool {
        false
    }

    fn attribute(&mut self, _: bool) -> anyhow::Result<()> {
        let problem = "needs a guest: a generator has no programs to tell apart";
        Err(UsageError::conflict("--where", problem).into())
    }
}

/// Why a source must stop.
enum Stop {
    Interrupted,
    Failed(anyhow::Error),
}
