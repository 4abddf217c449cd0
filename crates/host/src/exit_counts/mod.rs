// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts KVM's exits by thread and reason, in the kernel.
//!
//! The kernel counts a trace event in a table when a histogram trigger is written to the event's file
//! (`Documentation/trace/histogram.rst`). No event is recorded and no process wakes up: an event costs one
//! look-up in a table. The triggers are in a tracing instance of their own, which leaves everybody else's
//! tracing alone.
//!
//! Threads have the ids that the host's first PID namespace gives them (`tracing_generic_entry_update`).

mod counter;
mod error;
mod histogram;
mod instance;
mod reasons;
mod table;

pub use error::ExitCountersError;
pub use histogram::{BadHistogram, Histogram, parse};
pub use reasons::{reason_name, reasons};
pub use table::{ExitCounts, ExitTable, Unknown};

use crate::Host;
use crate::tracing::remove_leftovers;
use counter::Counter;
use instance::Instance;
use std::fs::File;
use std::io;
use std::os::unix::fs::FileExt as _;

/// Most bytes of a histogram. A full table of the largest [size](Counter::size) has a sixth of that.
const MOST_BYTES: usize = 16 << 20;

/// The running counts of all exits of all VMs of a host.
///
/// The counts stop when this value is dropped. If the process is killed instead, the kernel counts on until
/// the next [`start`](ExitCounters::start) of any process removes what was left behind.
///
/// A table has room for a limited number of threads, and keeps threads that have ended. A process that counts
/// for days asks [`ExitTable::nearly_full`] after each reading, and then calls
/// [`restart`](ExitCounters::restart).
///
/// The kernel's tables take about 17 MB of its memory, reckoned from their sizes and an entry's, not
/// measured.
///
/// ```
/// use bifold_host::{Host, exit_counts::ExitCounters};
///
/// match ExitCounters::start(&Host::live()) {
///     Ok(counters) => {
///         let before = counters.read()?;
///         let interval = counters.read()?.since(&before);
///         println!("{:?}", interval.threads(&[4711]).exits); // by the number of the reason
///     }
///     Err(e) => println!("{e}"), // not root, or no KVM here
/// }
/// # Ok::<(), std::io::Error>(())
/// ```
#[derive(Debug)]
pub struct ExitCounters {
    // Closed before the instance is dropped: the kernel removes no instance that has an open file.
    histograms: Vec<Option<File>>,
    instance: Instance,
    host: Host,
}

/// The readings at a [restart](ExitCounters::restart).
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Restart {
    /// The last reading of the former tables. It ends the interval that the previous reading began.
    pub last: ExitTable,
    /// The first reading of the new tables. It begins the next interval.
    pub first: ExitTable,
}

impl ExitCounters {
    /// Starts to count. Removes what killed processes have left behind.
    ///
    /// # Errors
    /// If tracefs is not mounted, the user is not root, the kernel is locked down or has no histograms, or
    /// KVM is not loaded.
    pub fn start(host: &Host) -> Result<ExitCounters, ExitCountersError> {
        remove_leftovers(host);
        ExitCounters::within(host, Instance::create(host)?)
    }

    fn within(host: &Host, mut instance: Instance) -> Result<ExitCounters, ExitCountersError> {
        instance.shrink_buffer();
        let mut histograms = Vec::new();
        for counter in Counter::ALL {
            histograms.push(instance.count(host, counter)?);
        }
        Ok(ExitCounters { histograms, instance, host: host.clone() })
    }

    /// The counts since the start. The kernel's tables are read one after the other, some milliseconds apart
    /// if they are large, so a sum of one table may already have an event that another table does not have
    /// yet.
    ///
    /// # Errors
    /// If a table cannot be read: the module kvm was unloaded, or somebody removed or paused a trigger.
    pub fn read(&self) -> io::Result<ExitTable> {
        let counts = Counter::ALL.map(|counter| self.table(counter));
        ExitTable::new(counts)
    }

    /// Continues in new, empty tables.
    ///
    /// The kernel can clear a table, but loses the events between the last reading and the clearing, and is
    /// safe only while no event comes (`tracing_map_clear`). Therefore a second instance starts, and each of
    /// its tables is read just before the former one. No event is lost. An event between those two readings
    /// is in both intervals: `last.since(previous)` and the later `reading.since(&first)`. Both intervals are
    /// exact for a thread without exits in that moment.
    ///
    /// # Errors
    /// If the new tables cannot be made, or a table cannot be read. The former tables then count on.
    pub fn restart(&mut self) -> Result<Restart, ExitCountersError> {
        let new = ExitCounters::start(&self.host)?;
        self.replace_by(new)
    }

    fn replace_by(&mut self, new: ExitCounters) -> Result<Restart, ExitCountersError> {
        let mut last = Vec::new();
        let first = Counter::ALL.map(|counter| {
            let first = new.table(counter);
            last.push(self.table(counter));
            first
        });
        let last: [_; Counter::ALL.len()] = last.try_into().expect("one for each counter");
        let table = |counts| ExitTable::new(counts).map_err(ExitCountersError::Table);
        let restart = Restart { last: table(last)?, first: table(first)? };
        *self = new;
        Ok(restart)
    }

    /// The kernel's table of a counter.
    fn table(&self, counter: Counter) -> io::Result<Result<table::Counts, Unknown>> {
        let Some(file) = &self.histograms[counter as usize] else { return Ok(Err(Unknown::NoEvent)) };
        let path = self.instance.file(counter, "hist");
        let named = |e: io::Error| io::Error::new(e.kind(), format!("cannot read {}: {e}", path.display()));
        let mut seen = histogram(file).map_err(named)?;
        // Events without an entry: the first event came while the table was printed, or the kernel had no
        // memory to sort the table (hist_trigger_show prints 0 entries for both). The first event comes only
        // once.
        if seen.counts.is_empty() && seen.hits > 0 {
            seen = histogram(file).map_err(named)?;
            if seen.counts.is_empty() {
                return Err(named(io::ErrorKind::OutOfMemory.into()));
            }
        }
        Ok(match seen.dropped {
            0 => Ok(seen.counts),
            events => Err(Unknown::Dropped { events }),
        })
    }
}

/// One system call reads the whole text, so the text is from one call of the kernel's `hist_show`.
fn histogram(file: &File) -> io::Result<Histogram> {
    let mut bytes = vec![0; MOST_BYTES];
    let length = file.read_at(&mut bytes, 0)?;
    let text = String::from_utf8_lossy(&bytes[..length]);
    parse(&text).map_err(|e| io::Error::new(io::ErrorKind::InvalidData, e))
}

#[cfg(test)]
mod tests;
