// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The three sources of events (a guest, a recording, a generator) behind one
//! face: each feeds a [`Feed`] until it ends and says how it ended.

use crate::run::feed::Feed;
use bifold_guest::{
    Begin, CaptureProgress, Clock, CommandExit, GuestSpec, Region, Root, Thp, Timing, Written, capture,
};
use bifold_report::{Exit, Guest, Partial, grouped};
use bifold_trace::file::{Header, Reader, Source, Trailer};
use bifold_trace::{Stats, generate::Generator};
use std::fs::File;
use std::io::Write as _;
use std::sync::atomic::{AtomicBool, Ordering};

/// How a source ended.
#[derive(Default)]
pub struct Ending {
    /// How the command ended, if there was one and its end was seen.
    pub exit: Option<Exit>,
    /// Why there are no more events than these, if there should be.
    pub partial: Option<Partial>,
    /// The capture's own checks.
    pub stats: Option<Stats>,
    /// Release of the guest's kernel, where it became known by running it.
    pub kernel_version: Option<String>,
    /// Version of QEMU, likewise.
    pub qemu_version: Option<String>,
    /// How time passed for the command.
    pub clock: Option<Clock>,
    /// What the command wrote.
    pub written: Option<Written>,
    /// The files it wrote, if they are to be kept.
    pub kept: Option<File>,
    /// What went wrong, if anything did.
    pub failure: Option<anyhow::Error>,
}

impl Ending {
    fn failed(error: anyhow::Error) -> Ending {
        Ending { partial: Some(Partial::Failed), failure: Some(error), ..Ending::default() }
    }

    fn interrupted() -> Ending {
        Ending { partial: Some(Partial::Interrupted), ..Ending::default() }
    }
}

/// Why a source was told to stop.
enum Stop {
    Interrupted,
    Failed(anyhow::Error),
}

/// Runs a command in a guest and shows its output on stderr.
pub fn run_guest(spec: &GuestSpec, feed: &mut Feed, stop: &AtomicBool) -> Ending {
    let mut broken = None;
    let bar = feed.progress.clone();
    let mut progress = |p: CaptureProgress| {
        if let CaptureProgress::Stage(what) = p {
            bar.say(what);
        }
    };
    let mut sink = |words: &[u64]| {
        feed.take(words).map_err(|e| {
            let text = e.to_string();
            broken = Some(e);
            text.into()
        })
    };
    let result = capture(spec, stop, &mut progress, &mut sink);
    bar.end();
    let report = match result {
        Ok(report) => report,
        // Our own error, if it was the sink that failed: it says more than the capture can.
        Err(e) => return Ending::failed(broken.unwrap_or_else(|| e.into())),
    };
    let mut stderr = std::io::stderr().lock();
    // Nobody is left to tell when stderr is closed.
    let _ = stderr.write_all(&report.stdout).and_then(|()| stderr.write_all(&report.stderr));
    let (exit, partial) = match report.exit {
        CommandExit::Code(c) => (Exit::Code(c), None),
        CommandExit::Signal(s) => (Exit::Signal(s), None),
        CommandExit::OutOfMemory => (Exit::OutOfMemory, None),
        CommandExit::TimedOut => (Exit::TimedOut, Some(Partial::TimedOut)),
        CommandExit::Interrupted => (Exit::Interrupted, Some(Partial::Interrupted)),
        CommandExit::AfterRegion => (Exit::AfterRegion, None),
    };
    Ending {
        exit: Some(exit),
        partial: partial.or((!report.complete).then_some(Partial::Failed)),
        // A guest that had to be killed could not say what it had counted.
        stats: report.complete.then_some(report.stats),
        kernel_version: Some(report.kernel_version),
        qemu_version: Some(report.qemu_version),
        clock: Some(report.clock),
        written: report.written,
        kept: report.kept,
        failure: None,
    }
}

/// Replays a recording.
pub fn run_recording(reader: &mut Reader, feed: &mut Feed, stop: &AtomicBool) -> Ending {
    let mut words = Vec::new();
    loop {
        if stop.load(Ordering::Relaxed) {
            return Ending::interrupted();
        }
        words.clear();
        match reader.next_block(&mut words) {
            Ok(true) => {}
            Ok(false) => break,
            Err(e) => return Ending::failed(e.into()),
        }
        if let Err(e) = feed.take(&words) {
            return Ending::failed(e);
        }
    }
    let trailer = reader.trailer().cloned().unwrap_or_default();
    Ending {
        exit: trailer
            .signal
            .map(Exit::Signal)
            .or(trailer.exit.map(Exit::Code))
            .or(trailer.region_ended.then_some(Exit::AfterRegion)),
        partial: trailer.partial.then_some(Partial::Recording),
        stats: trailer.stats,
        kernel_version: trailer.kernel_version,
        qemu_version: trailer.qemu_version,
        clock: trailer.clock,
        written: None,
        kept: None,
        failure: None,
    }
}

/// Runs a generator.
pub fn run_generator(generator: &Generator, feed: &mut Feed, stop: &AtomicBool) -> Ending {
    let mut sink = |words: &[u64]| {
        if stop.load(Ordering::Relaxed) {
            return Err(Stop::Interrupted);
        }
        feed.take(words).map_err(Stop::Failed)
    };
    match generator.run(&mut sink) {
        Ok(()) => Ending::default(),
        Err(Stop::Interrupted) => Ending::interrupted(),
        Err(Stop::Failed(e)) => Ending::failed(e),
    }
}

/// What is known of a guest before it has run.
pub fn guest_source(spec: &GuestSpec) -> Source {
    Source {
        bifold_version: env!("CARGO_PKG_VERSION").into(),
        command: spec.command.iter().map(|w| w.to_string_lossy().into_owned()).collect(),
        timing: Some(
            match spec.timing {
                Timing::Exact => "exact",
                Timing::Fast => "fast",
            }
            .into(),
        ),
        kpti: Some(spec.kpti),
        thp: Some(
            match spec.thp {
                Thp::Always => "always",
                Thp::Madvise => "madvise",
                Thp::Never => "never",
            }
            .into(),
        ),
        memory_mib: Some(spec.memory_mib),
        root: Some(
            match spec.root {
                Root::Host => "host",
                Root::Initramfs { .. } => "initramfs",
            }
            .into(),
        ),
        attributed: spec.attribute,
        region: region(&spec.region),
        sample: spec.region.sample,
        ..Source::default()
    }
}

/// Which part of the command is recorded, in words; nothing for all of it.
fn region(region: &Region) -> Option<String> {
    let mut parts = Vec::new();
    match &region.begin {
        Begin::Command => {}
        Begin::Marker => parts.push("from bifold_begin() to bifold_end()".to_owned()),
        Begin::Function(name) => parts.push(format!("from function {name} on")),
    }
    if region.skip > 0 {
        parts.push(format!("after {} instructions", grouped(region.skip)));
    }
    if let Some(n) = region.length {
        parts.push(format!("for {} instructions", grouped(n)));
    }
    (!parts.is_empty()).then(|| parts.join(", "))
}

/// How a recording says that its source ended.
pub fn trailer(ending: &Ending) -> Trailer {
    Trailer {
        exit: match ending.exit {
            Some(Exit::Code(c)) => Some(c),
            _ => None,
        },
        signal: match ending.exit {
            Some(Exit::Signal(s)) => Some(s),
            _ => None,
        },
        partial: ending.partial.is_some(),
        region_ended: ending.exit == Some(Exit::AfterRegion),
        stats: ending.stats,
        kernel_version: ending.kernel_version.clone(),
        qemu_version: ending.qemu_version.clone(),
        clock: ending.clock,
    }
}

/// What a report says of the guest; nothing for a generator.
pub fn describe(header: &Header, ending: &Ending) -> Option<Guest> {
    let source = &header.source;
    if source.command.is_empty() {
        return None;
    }
    Some(Guest {
        command: source.command.clone(),
        timing: source.timing.clone(),
        vcpus: header.vcpus,
        kpti: source.kpti,
        thp: source.thp.clone(),
        memory_mib: source.memory_mib,
        root: source.root.clone(),
        kernel: ending.kernel_version.clone().or_else(|| source.kernel_version.clone()),
        region: source.region.clone(),
        qemu: ending.qemu_version.clone().or_else(|| source.qemu_version.clone()),
    })
}
