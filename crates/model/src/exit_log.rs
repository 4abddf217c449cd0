// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The log of exits, one by one, for comparison with the trace of a real hypervisor.
//!
//! The log compares the counters before and after each event that may exit. The code that counts an
//! exit does not log it, so the log can neither miss an exit nor invent one.

use crate::{Config, Sample};
use bifold_mmu::{Gpa, Gva};

/// One exit.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Exit {
    /// The configuration that exited.
    pub config: Config,
    /// The reason, by its name in [`Sample::exits`].
    pub reason: &'static str,
    /// The address that the guest accessed or invalidated; 0 for control registers.
    pub gva: Gva,
    /// The guest-physical address that was not mapped as needed, for a violation: of the
    /// page accessed or of a guest table on the way to it.
    pub gpa: Option<Gpa>,
    /// The access was a write. References to guest tables count as writes.
    pub write: bool,
    /// The access was an instruction fetch.
    pub fetch: bool,
    /// The tables had an entry, which did not allow the access.
    pub present: bool,
    /// Guest instructions executed, by the stream's last count. The stream has a count at least
    /// every 4096 instructions, and before every event other than an access.
    pub instructions: u64,
}

/// What may have exited.
#[derive(Debug, Clone, Copy)]
pub struct Access {
    /// See [`Exit::gva`].
    pub gva: Gva,
    /// See [`Exit::gpa`].
    pub gpa: Option<Gpa>,
    /// See [`Exit::write`].
    pub write: bool,
    /// See [`Exit::fetch`].
    pub fetch: bool,
    /// See [`Exit::present`].
    pub present: bool,
}

/// The exits of one configuration.
#[derive(Debug)]
pub struct ExitLog {
    config: Config,
    exits: Vec<Exit>,
    /// The counters when last looked at.
    seen: Sample,
    /// Guest instructions so far.
    pub instructions: u64,
    /// Between two regions, nothing is logged.
    paused: bool,
}

impl ExitLog {
    /// An empty log of what `config` counts beyond `now`.
    pub fn new(config: Config, now: &Sample, instructions: u64) -> Self {
        ExitLog { config, exits: Vec::new(), seen: *now, instructions, paused: false }
    }

    /// Logs what was counted since the last call.
    #[cold]
    pub fn note(&mut self, now: &Sample, access: Access) {
        let Access { gva, gpa, write, fetch, present } = access;
        let ExitLog { config, instructions, .. } = *self;
        for ((reason, n), (_, before)) in now.exits().zip(self.seen.exits()) {
            let exit = Exit { config, reason, gva, gpa, write, fetch, present, instructions };
            let logged = if self.paused { before } else { n };
            self.exits.extend((before..logged).map(|_| exit));
        }
        self.seen = *now;
    }

    /// A region has ended.
    pub fn pause(&mut self) {
        self.paused = true;
    }

    /// The counters were set to 0 at a region's begin. Exits that were not taken stay only if they are of
    /// another region.
    pub fn restart(&mut self) {
        if !std::mem::take(&mut self.paused) {
            self.exits.clear();
        }
        (self.seen, self.instructions) = (Sample::default(), 0);
    }

    /// Takes what was logged.
    pub fn take(&mut self) -> Vec<Exit> {
        std::mem::take(&mut self.exits)
    }
}
