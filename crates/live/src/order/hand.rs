// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at a live guest and orders its size.

use super::refusal::{has_swap, one};
use super::{Goal, OrderError, SizeObservation, Way};
use bifold_host::Host;
use bifold_host::guest_memory::{Balloon, Machine, MemoryGroup, MonitorPlace, VirtioMem};
use std::io;
use std::time::{Duration, Instant};

const PAGE: u64 = 4096;
/// Time limit of a look, and of an order: the order's guardian waits for 15 s.
const LIMIT: Duration = Duration::from_secs(10);

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
}

impl OrderDriver {
    /// For a guest's process, by its id and its start, and what the order is to reach.
    pub fn new(host: Host, guest: (u32, u64), place: Option<MonitorPlace>, goal: &Goal) -> OrderDriver {
        // With a floor of the user's, a cgroup needs no statistics of the guest.
        let counts = goal.way == Way::Cgroup && goal.floor.is_some();
        OrderDriver { host, guest, place, way: goal.way, counts, begun: Instant::now(), looks: 0 }
    }

    /// Looks once.
    ///
    /// # Errors
    /// If the guest has ended, or what its size comes from does not answer.
    pub fn look(&mut self) -> Result<SizeObservation, OrderError> {
        self.alive()?;
        self.looks += 1;
        let pid = self.guest.0;
        let machine = match &self.place {
            Some(place) => {
                let asked = place.open_within(&self.host, pid, LIMIT).and_then(|mut m| Machine::ask(&mut m));
                match asked {
                    Ok(machine) => Some(machine),
                    Err(_) if self.way == Way::Cgroup => None,
                    Err(e) => return Err(self.silent(e)),
                }
            }
            None => None,
        };
        let memory = self.host.process_memory(pid);
        let group = (self.way == Way::Cgroup).then(|| self.host.memory_group(pid)).transpose().ok().flatten();
        let statistics =
            machine.as_ref().and_then(|m| m.balloon.as_ref()).map(|b| b.statistics).unwrap_or_default();
        let look = SizeObservation {
            at: self.begun.elapsed(),
            running: machine.as_ref().is_none_or(|m| m.running),
            migrating: machine.as_ref().is_some_and(|m| m.migration.is_some()),
            size: self.size(machine.as_ref(), group.as_ref())?,
            available: statistics.available,
            used: machine.as_ref().and_then(|m| used(m, statistics.available?)),
            resident: memory.resident,
            oom_kills: statistics.oom_kills,
            updated: statistics.updated_s,
            faults: statistics.major_faults.or(statistics.swapped_in.map(|bytes| bytes / PAGE)),
        };
        // The process may have ended meanwhile, and another one have its id.
        self.alive()?;
        Ok(match self.way {
            // The host counts these itself, at each look.
            Way::Cgroup => SizeObservation {
                updated: if self.counts { Some(self.looks) } else { look.updated },
                faults: group.as_ref().and_then(MemoryGroup::refaults).or(memory.major_faults),
                ..look
            },
            _ => look,
        })
    }

    fn size(&self, machine: Option<&Machine>, group: Option<&MemoryGroup>) -> Result<u64, OrderError> {
        let size = match self.way {
            Way::Cgroup => group.and_then(|g| g.current),
            Way::Balloon => machine.and_then(|m| m.balloon.as_ref()?.actual),
            Way::VirtioMem => {
                machine.and_then(|m| Some(m.base?.saturating_add(one(&m.virtio_mem).ok()?.size)))
            }
        };
        size.ok_or_else(|| self.silent(io::Error::other("it does not tell the guest's size any more")))
    }

    /// Orders a size. In a cgroup, the kernel takes the difference to the size of the last look.
    ///
    /// # Errors
    /// If the guest has ended, or QEMU or the kernel refuses.
    pub fn order(&mut self, look: &SizeObservation, size: u64) -> Result<(), OrderError> {
        self.alive()?;
        let pid = self.guest.0;
        if self.way == Way::Cgroup {
            let taken = match self.host.memory_group(pid) {
                Ok(group) if group.processes.iter().any(|p| *p != pid) => {
                    Err(io::Error::other("another process has come into it"))
                }
                Ok(group) => {
                    let bytes = look.size.saturating_sub(size);
                    has_swap(self.host.swap(), &group, bytes)
                        .map_err(io::Error::other)
                        .and_then(|()| group.reclaim(bytes))
                }
                Err(e) => Err(io::Error::other(e)),
            };
            return match taken {
                Ok(_) => Ok(()),
                // A signal has stopped the kernel's work, of which a part is done.
                Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
                Err(source) => Err(OrderError::Group { pid, source }),
            };
        }
        let place = self.place.as_ref().ok_or_else(|| self.silent(io::ErrorKind::NotFound.into()))?;
        let order = || {
            let mut monitor = place.open_within(&self.host, pid, LIMIT)?;
            if self.way == Way::Balloon {
                return Balloon::order(&mut monitor, size);
            }
            let machine = Machine::ask(&mut monitor)?;
            let device = one(&machine.virtio_mem).map_err(io::Error::other)?;
            let id = device.id.as_deref().unwrap_or_default();
            let base = machine.base.ok_or_else(|| io::Error::other("QEMU does not tell its memory"))?;
            VirtioMem::order(&mut monitor, id, size.saturating_sub(base))
        };
        order().map_err(|e| self.silent(e))
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

/// Bytes that a guest cannot do without: all that it has less what is available in it. `None` if more is
/// available than it has.
pub(crate) fn used(machine: &Machine, available: u64) -> Option<u64> {
    // The balloon's figure leaves virtio-mem out, and the guest's does not.
    let plugged = machine.virtio_mem.iter().fold(0, |all: u64, device| all.saturating_add(device.size));
    machine.balloon.as_ref()?.actual?.saturating_add(plugged).checked_sub(available)
}
