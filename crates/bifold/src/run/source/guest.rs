// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A command that runs in a guest now, as a source of events.

use super::{Ending, EventSource, Feed, Length, stdin};
use crate::console::note;
use crate::run::pace;
use bifold_guest::{Begin, CaptureProgress, GuestSpec, Region, Root, Timing, capture};
use bifold_report::{Input, Partial, grouped};
use bifold_trace::file::{Header, Source};
use bifold_trace::{CommandExit, Granularity};
use std::cell::Cell;
use std::io::Write as _;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A guest and its command. The command's output goes to stderr when the guest has ended.
pub struct Guest(pub Box<GuestSpec>);

impl EventSource for Guest {
    fn header(&self) -> Header {
        Header {
            guest_frames: bifold_guest::guest_frames(&self.0),
            vcpus: self.0.vcpus,
            guest_nodes: bifold_guest::guest_nodes(&self.0),
            guest_tables: self.0.tables,
            granularity: Granularity::Byte,
            source: self.source(),
        }
    }

    fn input(&self) -> Input {
        Input::Guest
    }

    fn phase(&self) -> &'static str {
        pace::BOOT
    }

    fn run(&mut self, feed: &mut Feed, stop: &AtomicBool) -> Ending {
        let mut broken = None;
        let (bar, notes) = (feed.progress.clone(), feed.notes);
        let started = Cell::new(false);
        let mut progress = |p: CaptureProgress| match p {
            CaptureProgress::Stage(what) => bar.say(&format!("{}: {what}", pace::BOOT)),
            CaptureProgress::Note(text) => bar.suspend(|| note(notes, text)),
            CaptureProgress::Recording => started.set(true),
            _ => {}
        };
        let region = self.0.region.clone();
        let mut sink = |words: &[u64]| {
            if started.get() {
                follow(feed, &region);
            }
            feed.take(words).map_err(|e| {
                let text = e.to_string();
                broken = Some(e);
                text.into()
            })
        };
        let result = capture(&self.0, stop, &mut progress, &mut sink);
        bar.end();
        let report = match result {
            Ok(report) => report,
            // If the sink failed, its error says more than the capture's.
            Err(e) => return Ending::failed(broken.unwrap_or_else(|| e.into())),
        };
        let mut stderr = std::io::stderr().lock();
        // When stderr is closed, there is no place to report the error.
        let _ = stderr.write_all(&report.stdout).and_then(|()| stderr.write_all(&report.stderr));
        let partial = match report.exit {
            CommandExit::TimedOut => Some(Partial::TimedOut),
            CommandExit::Interrupted => Some(Partial::Interrupted),
            _ => (!report.complete).then_some(Partial::Failed),
        };
        let short_of_memory = short_of_memory(&report.stderr);
        Ending {
            exit: Some(report.exit),
            short_of_memory,
            partial,
            // A guest that was killed could not report its counts.
            stats: report.complete.then_some(report.stats),
            kernel_version: Some(report.kernel_version),
            qemu_version: Some(report.qemu_version),
            clock: Some(report.clock),
            written: report.written,
            kept: report.kept,
            failure: None,
        }
    }

    fn attribute(&mut self, stacks: bool) -> anyhow::Result<()> {
        (self.0.attribute, self.0.stacks) = (true, stacks);
        Ok(())
    }

    fn look(&mut self) -> bool {
        self.0.looks = true;
        true
    }

    fn prepare(&mut self) -> anyhow::Result<()> {
        self.0.stdin = stdin::read(bifold_guest::most_stdin(self.0.memory_mib))?;
        Ok(())
    }

    fn live(&self) -> bool {
        true
    }

    fn enough(&self) -> Option<Arc<AtomicBool>> {
        self.0.enough.clone()
    }
}

/// Names the phase of the command's run, and its length where the region gives one.
fn follow(feed: &mut Feed, region: &Region) {
    let waits = region.begin != Begin::Command;
    let before = (waits || region.skip > 0) && feed.model.before_region().is_none();
    let length = match before {
        true => (!waits).then_some(region.skip),
        false => region.length.filter(|_| !region.several()),
    };
    feed.begin(if before { pace::SKIP } else { pace::RUN });
    feed.length = length.map_or(Length::Unknown, Length::Instructions);
}

impl Guest {
    /// The guest's description before it runs.
    fn source(&self) -> Source {
        Source {
            bifold_version: bifold_base::version().into(),
            command: self.0.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
            timing: Some(
                match self.0.timing {
                    Timing::Exact => "exact",
                    Timing::Fast => "fast",
                }
                .into(),
            ),
            kpti: Some(self.0.kpti),
            thp: Some(self.0.thp.word().into()),
            hugetlb_mib: (self.0.hugetlb_mib > 0).then_some(self.0.hugetlb_mib),
            memory_mib: Some(self.0.memory_mib),
            root: Some(
                match self.0.root {
                    Root::Host => "host",
                    Root::Initramfs { .. } => "initramfs",
                }
                .into(),
            ),
            attributed: self.0.attribute,
            stacks: self.0.stacks,
            region: region(&self.0.region),
            sample: self.0.region.sample,
            ..Source::default()
        }
    }
}

/// What programs, libraries and languages say when an allocation fails (strerror(ENOMEM), GCC, C++, Python,
/// Java, Go).
const NO_MEMORY: [&str; 8] = [
    "cannot allocate memory",
    "out of memory",
    "memory exhausted",
    "std::bad_alloc",
    "memoryerror",
    "outofmemoryerror",
    "memory allocation of",
    "not enough memory",
];

/// The last line of stderr that speaks of a lack of memory, at most 100 characters of it.
fn short_of_memory(stderr: &[u8]) -> Option<String> {
    let says = |line: &&[u8]| {
        let line = String::from_utf8_lossy(line).to_lowercase();
        NO_MEMORY.iter().any(|words| line.contains(words))
    };
    let line = stderr.split(|b| *b == b'\n').rev().find(says)?;
    Some(String::from_utf8_lossy(line).trim().chars().take(100).filter(|c| !c.is_control()).collect())
}

/// In words, the part of the command that is recorded; none for the whole command.
fn region(region: &Region) -> Option<String> {
    let mut parts = Vec::new();
    match &region.begin {
        Begin::Command => {}
        Begin::Marker => parts.push(match region.regions {
            Some(1) => "from bifold_begin() to bifold_end()".to_owned(),
            Some(n) => format!("the first {n} from bifold_begin() to bifold_end()"),
            None => "each from bifold_begin() to bifold_end()".to_owned(),
        }),
        Begin::Function(name) => parts.push(format!("from function {name} on")),
    }
    if region.skip > 0 {
        parts.push(format!("after {} instructions", grouped(region.skip)));
    }
    if let Some(n) = region.length {
        let most = if region.several() { " at most" } else { "" };
        parts.push(format!("for {} instructions{most}", grouped(n)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_a_region_with_a_length_alone_begins_with_its_command() {
        let later = |r: Region| bifold_trace::region_begins_later(region(&r).as_deref());
        assert!(!later(Region::default()) && !later(Region { length: Some(5), ..Region::default() }));
        assert!(later(Region { skip: 5, length: Some(5), ..Region::default() }));
        assert!(later(Region { begin: Begin::Marker, ..Region::default() }));
        assert!(later(Region { begin: Begin::Function("for".into()), ..Region::default() }));
    }

    #[test]
    fn a_header_says_whether_a_command_may_have_several_regions() {
        let of = |begin, regions| Region { begin, regions, length: Some(5), ..Region::default() };
        for (r, words) in [
            (of(Begin::Marker, None), "each from bifold_begin() to bifold_end(), for 5 instructions at most"),
            (
                of(Begin::Marker, Some(2)),
                "the first 2 from bifold_begin() to bifold_end(), for 5 instructions at most",
            ),
            (of(Begin::Marker, Some(1)), "from bifold_begin() to bifold_end(), for 5 instructions"),
            (of(Begin::Function("each".into()), None), "from function each on, for 5 instructions"),
            (of(Begin::Command, None), "for 5 instructions"),
        ] {
            let said = region(&r);
            assert_eq!(said.as_deref(), Some(words));
            assert_eq!(bifold_trace::several_regions(said.as_deref()), r.several(), "{words}");
        }
    }

    #[test]
    fn a_command_that_lacks_memory_is_known_by_its_words() {
        for (stderr, expected) in [
            ("", None),
            ("no such file\n", None),
            ("a\nsort: memory exhausted\nb\n", Some("sort: memory exhausted")),
            (
                "terminate called after throwing an instance of 'std::bad_alloc'",
                Some("terminate called after throwing an instance of 'std::bad_alloc'"),
            ),
            ("MemoryError\n", Some("MemoryError")),
            (
                "cc1: out of memory allocating 65536 bytes\n",
                Some("cc1: out of memory allocating 65536 bytes"),
            ),
            ("sh: fork: Cannot allocate memory\x1b[31m\n", Some("sh: fork: Cannot allocate memory[31m")),
        ] {
            assert_eq!(short_of_memory(stderr.as_bytes()).as_deref(), expected, "{stderr}");
        }
        let long = format!("out of memory {}", "x".repeat(500));
        assert_eq!(short_of_memory(long.as_bytes()).unwrap().len(), 100);
    }
}
