// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A recording as a source of events.

use super::{Ending, EventSource, Feed, Length};
use crate::run::pace;
use crate::usage::UsageError;
use bifold_report::{Input, Partial};
use bifold_trace::CommandExit;
use bifold_trace::file::{Header, Reader};
use std::io::Read as _;
use std::path::{Path, PathBuf};
use std::sync::atomic::{AtomicBool, Ordering};

/// A recording that was opened.
pub struct Recording {
    /// The recording's reader, at the first event.
    pub reader: Box<Reader>,
    /// The recording's path, as given.
    pub path: PathBuf,
}

/// Whether a file is a recording. Pipes are not looked into.
pub fn is_recording(path: &Path) -> bool {
    path.is_file() && Reader::open(path).is_ok()
}

/// What a file is that a verb does not read, and the verb that reads it; none if it is not known.
pub fn what_else(path: &Path) -> Option<String> {
    const FIRST: u64 = 4096;
    let shown = path.display();
    if is_recording(path) {
        return Some(format!(
            "{shown} is a recording: `bifold compare {shown}` and `bifold reclaim show {shown}` read it"
        ));
    }
    if let Some(kind) = bifold_import::kind_of(path) {
        let made = path.with_extension("bifold");
        return Some(format!(
            "{shown} is a trace of {}: `bifold import {shown} -o {}` makes a recording of it",
            kind.tool(),
            made.display()
        ));
    }
    let mut first = Vec::new();
    let file = std::fs::File::open(path).ok().filter(|_| path.is_file())?;
    file.take(FIRST).read_to_end(&mut first).ok()?;
    let first = String::from_utf8_lossy(&first);
    let after = first.strip_prefix('{')?.split_once("\"schema\":")?.1.trim_start().strip_prefix('"')?;
    let reader = match after.split_once('/')?.0 {
        "bifold.compare" | "bifold.runs" => "a result: `bifold diff` compares two",
        "bifold.memory-timeline" => "a timeline of memory: `bifold reclaim plan` reads it",
        "bifold.tune" => "the ranking of `bifold tune`",
        _ => return None,
    };
    Some(format!("{shown} is {reader}"))
}

impl EventSource for Recording {
    fn header(&self) -> Header {
        self.reader.header().clone()
    }

    fn input(&self) -> Input {
        Input::Recording {
            path: self.path.to_string_lossy().into_owned(),
            generator: self.reader.header().source.generator.clone(),
            imported: self.reader.header().source.imported.clone(),
            program: self.reader.header().source.program.clone(),
        }
    }

    fn phase(&self) -> &'static str {
        pace::MODEL
    }

    fn run(&mut self, feed: &mut Feed, stop: &AtomicBool) -> Ending {
        let mut words = Vec::new();
        // The length of a pipe is 0.
        let size = std::fs::metadata(&self.path).ok().map(|m| m.len()).filter(|size| *size > 0);
        loop {
            if stop.load(Ordering::Relaxed) {
                return Ending::interrupted();
            }
            words.clear();
            match self.reader.next_block(&mut words) {
                Ok(true) => {}
                Ok(false) => break,
                Err(e) => return Ending::failed(e.into()),
            }
            if let Some(size) = size {
                feed.length = Length::Done(self.reader.offset() as f64 / size as f64);
            }
            if let Err(e) = feed.take(&words) {
                return Ending::failed(e);
            }
        }
        let trailer = self.reader.trailer().cloned().unwrap_or_default();
        Ending {
            exit: trailer
                .signal
                .map(CommandExit::Signal)
                .or(trailer.exit.map(CommandExit::Code))
                .or(trailer.region_ended.then_some(CommandExit::AfterRegion))
                .or(trailer.accurate_enough.then_some(CommandExit::AccurateEnough)),
            partial: trailer.partial.then_some(Partial::Recording),
            stats: trailer.stats,
            kernel_version: trailer.kernel_version,
            qemu_version: trailer.qemu_version,
            clock: trailer.clock,
            written: None,
            kept: None,
            short_of_memory: None,
            failure: None,
        }
    }

    fn attribute(&mut self, stacks: bool) -> anyhow::Result<()> {
        let source = &self.reader.header().source;
        let (what, option) = match stacks {
            false if source.attributed => return Ok(()),
            true if source.stacks => return Ok(()),
            false => ("who ran", "--where"),
            true => ("who called whom", "--where=stacks"),
        };
        let problem = format!(
            "needs to know {what}, and {} does not say: record with `bifold record {option}`",
            self.path.display()
        );
        Err(UsageError::conflict("--where", problem).failing().into())
    }

    fn shows_what_it_has(&self) -> bool {
        false
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_file_of_another_kind_names_the_verb_that_reads_it() {
        let dir = tempfile::tempdir().unwrap();
        let of = |name: &str, text: &str| {
            let path = dir.path().join(name);
            std::fs::write(&path, text).unwrap();
            what_else(&path)
        };
        for (name, text, verb) in [
            ("x.lackey", "I  00401000,3\n S 00600000,8\n", "`bifold import "),
            ("x.json", "{\n  \"schema\": \"bifold.compare/1\",\n", "`bifold diff`"),
            ("x.memory", "{\"schema\":\"bifold.memory-timeline/1\",", "`bifold reclaim plan`"),
        ] {
            let said = of(name, text).unwrap();
            assert!(said.contains(verb) && said.contains(name), "{said}");
        }
        assert_eq!(of("x", "{\"schema\": \"another/1\"}"), None);
        assert_eq!(of("y", "text"), None);
        assert_eq!(what_else(&dir.path().join("missing")), None);
        assert_eq!(what_else(dir.path()), None);
    }
}
