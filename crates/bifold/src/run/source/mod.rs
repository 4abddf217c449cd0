// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sources of events: each has a file here with a type that implements [`EventSource`].
//!
//! A plan holds a source as `Box<dyn EventSource>`. The trait has everything that a run needs to know of its
//! source. A source is called once per run, so the virtual call costs nothing.

mod feed;
mod generator;
mod guest;
mod recording;
mod stdin;

pub use feed::{Feed, Length, Until};
pub use guest::Guest;
pub use recording::{Recording, is_recording, what_else};

use bifold_guest::{Clock, Written};
use bifold_report::{Input, Partial};
use bifold_trace::file::{Header, Trailer};
use bifold_trace::{CommandExit, Stats};
use std::fs::File;
use std::sync::Arc;
use std::sync::atomic::AtomicBool;

/// A source of a run's events.
pub trait EventSource {
    /// Describes the source before it runs, as a recording's header does.
    fn header(&self) -> Header;

    /// Describes the source for a report.
    fn input(&self) -> Input;

    /// The phase before the first events arrive, for the progress line.
    fn phase(&self) -> &'static str;

    /// Feeds events until the source ends or `stop` is set.
    fn run(&mut self, feed: &mut Feed, stop: &AtomicBool) -> Ending;

    /// Asks the source for events that say who runs, as `--where` needs; also who called whom, if `stacks`.
    fn attribute(&mut self, stacks: bool) -> anyhow::Result<()>;

    /// Asks the source for looks at the guest's memory. Whether there may be some: a recording has them or
    /// not.
    fn look(&mut self) -> bool {
        true
    }

    /// Prepares the source once, before output files are created.
    fn prepare(&mut self) -> anyhow::Result<()> {
        Ok(())
    }

    /// What to set to end a command that runs now, when its estimate is accurate enough.
    fn enough(&self) -> Option<Arc<AtomicBool>> {
        None
    }

    /// Whether the events are of a command that runs now. Then the command's exit status is passed on, and
    /// the guest takes samples itself instead of leaving them to the feed.
    fn live(&self) -> bool {
        false
    }

    /// Whether the figures until a failure are shown. A damaged file's are not, because a reader would take
    /// them for the whole file's.
    fn shows_what_it_has(&self) -> bool {
        true
    }
}

/// How a source ended.
#[derive(Default)]
pub struct Ending {
    /// How the command ended; none without a command, or if its end was not seen.
    pub exit: Option<CommandExit>,
    /// Why events are missing; none if all are there.
    pub partial: Option<Partial>,
    /// Results of the capture's self-checks.
    pub stats: Option<Stats>,
    /// Release of the guest's kernel, if the guest ran now.
    pub kernel_version: Option<String>,
    /// Version of QEMU, if the guest ran now.
    pub qemu_version: Option<String>,
    /// How time passed for the command.
    pub clock: Option<Clock>,
    /// Number and size of the files that the command wrote.
    pub written: Option<Written>,
    /// An archive of the files that the command wrote, with `--keep`.
    pub kept: Option<File>,
    /// What the command said of a lack of memory; none if it said nothing of one.
    pub short_of_memory: Option<String>,
    /// The error that ended the source.
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

/// The trailer of a recording whose source ended so.
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
        accurate_enough: ending.exit == Some(CommandExit::AccurateEnough),
        stats: ending.stats,
        kernel_version: ending.kernel_version.clone(),
        qemu_version: ending.qemu_version.clone(),
        clock: ending.clock,
    }
}

/// The guest's description for a report; none for a generator.
pub fn describe(header: &Header, ending: &Ending) -> Option<bifold_report::Guest> {
    let source = &header.source;
    if source.command.is_empty() {
        return None;
    }
    Some(bifold_report::Guest {
        command: source.command.clone(),
        timing: source.timing.clone(),
        vcpus: header.vcpus,
        nodes: (!header.guest_nodes.is_empty()).then_some(header.guest_nodes.len() as u32),
        tables: header.guest_tables,
        kpti: source.kpti,
        thp: source.thp.clone(),
        hugetlb_mib: source.hugetlb_mib,
        memory_mib: source.memory_mib,
        root: source.root.clone(),
        kernel: ending.kernel_version.clone().or_else(|| source.kernel_version.clone()),
        region: source.region.clone(),
        qemu: ending.qemu_version.clone().or_else(|| source.qemu_version.clone()),
    })
}
