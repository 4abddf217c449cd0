// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at a live guest and orders its size.

use super::facts::{LIMIT, size_facts};
use super::way::page_out;
use super::{Facts, Goal, NoMonitor, OrderError, SizeObservation, Way, facts};
use bifold_host::Host;
use bifold_host::guest_memory::MonitorPlace;
use std::io;
use std::time::Instant;

/// Looks at a guest, and carries out an order on it.
#[derive(Debug)]
pub struct OrderDriver {
    host: Host,
    guest: (u32, u64),
    place: Option<MonitorPlace>,
    way: Way,
    /// Whether the looks are paced by the host's counts, for lack of a need for the guest's statistics.
    counts: bool,
    begun: Instant,
    looks: u64,
    /// What the last look found, if all was to be read, and when.
    pub seen: Option<(Instant, Facts)>,
}

impl OrderDriver {
    /// For a guest's process, by its id and its start, and what the order is to reach.
    pub fn new(host: Host, guest: (u32, u64), place: Option<MonitorPlace>, goal: &Goal) -> OrderDriver {
        // With a floor of the user's, a cgroup needs no statistics of the guest.
        let counts = goal.way.pages_out() && goal.floor.is_some();
        OrderDriver { host, guest, place, way: goal.way, counts, begun: Instant::now(), looks: 0, seen: None }
    }

    /// Looks once, and reads `all` that findings need or the size alone.
    ///
    /// # Errors
    /// If the guest has ended, or what its size comes from does not answer.
    pub fn look(&mut self, all: bool) -> Result<SizeObservation, OrderError> {
        self.seen = None;
        self.alive()?;
        self.looks += 1;
        let read = if all || self.way.pages_out() { facts } else { size_facts };
        let facts = read(&self.host, self.guest.0, self.place.as_ref());
        // The process may have ended meanwhile, and another one have its id.
        self.alive()?;
        let look = match &facts.machine {
            Err(NoMonitor::Silent(_, why)) if !self.way.pages_out() => Err(why.clone()),
            _ => SizeObservation::of(&facts, self.way)
                .ok_or_else(|| "it does not tell the guest's size any more".to_owned()),
        };
        self.seen = all.then(|| (Instant::now(), facts));
        let look = look.map_err(|why| self.silent(io::Error::other(why)))?;
        let updated = if self.counts { Some(self.looks) } else { look.updated };
        Ok(SizeObservation { at: self.begun.elapsed(), updated, ..look })
    }

    /// Orders a size. In a cgroup, the kernel takes the difference to the size of the last look.
    ///
    /// # Errors
    /// If the guest has ended, or QEMU or the kernel refuses.
    pub fn order(&mut self, look: &SizeObservation, size: u64) -> Result<(), OrderError> {
        self.alive()?;
        let pid = self.guest.0;
        if self.way.pages_out() {
            let taken = page_out(&self.host, pid, look.size.saturating_sub(size));
            return taken.map_err(|source| OrderError::Group { pid, source });
        }
        let place = self.place.as_ref().ok_or_else(|| self.silent(io::ErrorKind::NotFound.into()))?;
        let ordered =
            place.open_within(&self.host, pid, LIMIT).and_then(|mut m| self.way.order(&mut m, size));
        ordered.map_err(|e| self.silent(e))
    }

    fn alive(&self) -> Result<(), OrderError> {
        let (pid, started) = self.guest;
        match self.host.lives(pid, started) {
            Ok(true) => Ok(()),
            Ok(false) => Err(OrderError::Gone { pid }),
            Err(e) => Err(self.silent(e)),
        }
    }

    fn silent(&self, source: io::Error) -> OrderError {
        let place = self.place.as_ref().map_or("none".into(), ToString::to_string);
        OrderError::Monitor { pid: self.guest.0, place, source }
    }
}
