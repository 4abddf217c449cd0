// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources of events: each has a file here with a type that implements [`EventSource`].
//!
//! A plan holds a source as `Box<dyn EventSource>`. Nobody asks which source it is: what a run needs to
//! know stands in the trait. Events are counted in blocks, so a virtual call per run costs nothing.

mod feed;
mod generator;
mod guest;
mod recording;
mod stdin;

pub use feed::Feed;
pub use guest::Guest;
pub use recording::Recording;

use bifold_guest::{Clock, Written};
use bifold_report::{Input, Partial};
use bifold_trace::file::{Header, Trailer};
use bifold_trace::{CommandExit, Stats};
use std::fs::File;
use std::sync::atomic::AtomicBool;

/// Where the events of a run come from.
pub trait EventSource {
    /// Describes the source before it runs, as a recording's header does.
    fn header(&self) -> Header;

    /// Describes the source for a report.
    fn input(&self) -> Input;

    /// Says what the source is doing before the first events arrive.
    fn doing(&self) -> &'static str;

    /// Feeds events until the source ends or `stop` is set.
    fn run(&mut self, feed: &mut Feed, stop: &AtomicBool) -> Ending;

    /// Asks the source for events that say who runs, as `--where` needs.
    fn attribute(&mut self) -> anyhow::Result<()>;

    /// Does what has to be done once, before output files are created.
    fn prepare(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// Whether the events are of a command that runs now. Then the command's exit status is passed on, and
    /// the guest takes samples itself instead of leaving them to the feed.
    fn live(&self) -> bool {
        false
    }

    /// Whether the figures until a failure are worth showing. Those of a damaged file are not: they
    /// would be taken for the file's.
    fn shows_what_it_has(&self) -> bool {
        true
    }
}

/// How a source ended.
#[derive(Default)]
pub struct Ending {
    /// How the command ended, if there was one and its end was seen.
    pub exit: Option<CommandExit>,
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

/// How a recording says that its source ended.
pub fn trailer(ending: &Ending) -> Trailer {
    Trailer {
        exit: match ending.exit {
            Some(CommandExit::Code(c)) => Some(c),
            _ => None,
        },
        signal: match ending.exit {
            Some(CommandExit::Signal(s)) => Some(s),
            _ => None,
        },
        partial: ending.partial.is_some(),
        region_ended: ending.exit == Some(CommandExit::AfterRegion),
        stats: ending.stats,
        kernel_version: ending.kernel_version.clone(),
        qemu_version: ending.qemu_version.clone(),
        clock: ending.clock,
    }
}

/// What a report says of the guest; nothing for a generator.
pub fn describe(header: &Header, ending: &Ending) -> Option<bifold_report::Guest> {
    let source = &header.source;
    if source.command.is_empty() {
        return None;
    }
    Some(bifold_report::Guest {
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
