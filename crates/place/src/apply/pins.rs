// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pins the threads of a guest that runs: vCPUs, I/O threads, and all others as the emulator's.

use super::kept::Entry;
use super::{ApplyError, Event, Work};
use crate::check::threads_of;
use crate::os;
use crate::plan::GuestPlan;
use bifold_host::LiveGuest;
use bifold_host::placement::{Role, Thread};
use bifold_host::topology::NumberSet;

/// Longest id of an I/O thread that the thread's name can have: names have 15 bytes, of which QEMU takes 3
/// (`IO `).
pub(crate) const MOST_ID: usize = 12;
/// A VMM makes threads while others are pinned: so many times the list is read again.
const ROUNDS: usize = 8;

impl Work<'_> {
    /// Pins a guest's threads, and returns how many.
    pub(super) fn pin(&mut self, guest: &LiveGuest, plan: &GuestPlan) -> Result<usize, ApplyError> {
        let mut pinned = 0;
        for _ in 0..ROUNDS {
            let ended = || ApplyError::Ended(guest.name.clone());
            let (threads, io_ids) = threads_of(self.host, guest).ok_or_else(ended)?;
            let vcpus = threads.iter().filter(|t| matches!(t.role, Role::Vcpu(_))).count();
            let known = |t: &Thread| match t.role {
                Role::Vcpu(n) => plan.vcpus.iter().any(|v| v.vcpu == n),
                _ => true,
            };
            if vcpus != plan.vcpus.len() || !threads.iter().all(known) {
                return Err(ApplyError::Vcpus {
                    vm: guest.name.clone(),
                    has: vcpus,
                    planned: plan.vcpus.len(),
                });
            }
            let wanted = |t: &Thread| (t.id, t.cpus.clone(), wanted(plan, &io_ids, t));
            let strays: Vec<(u32, NumberSet, NumberSet)> = threads
                .iter()
                .map(wanted)
                .filter(|(_, is, wanted)| is != wanted && !wanted.is_empty())
                .collect();
            if strays.is_empty() {
                return Ok(pinned);
            }
            pinned += self.pin_these(guest, strays)?;
        }
        Err(ApplyError::Restless(guest.name.clone()))
    }

    /// Whether a thread of the process with this id and start runs: an id can come again.
    pub(super) fn is_thread(&self, pid: u32, thread: u32, started: u64) -> bool {
        let there = self.host.proc.join(format!("{pid}/task/{thread}")).is_dir();
        there && self.host.started(thread) == Some(started)
    }

    fn pin_these(
        &mut self,
        guest: &LiveGuest,
        strays: Vec<(u32, NumberSet, NumberSet)>,
    ) -> Result<usize, ApplyError> {
        let mut recorded = Vec::new();
        for (thread, found, cpus) in strays {
            // A thread that has ended has nothing to restore.
            if let Some(started) = self.host.started(thread) {
                recorded.push((self.record.entries.len(), thread, started, cpus));
                let entry = Entry::Thread { pid: guest.pid, thread, started, found, set: None };
                self.record.entries.push(entry);
            }
        }
        self.write_down()?;
        let mut pinned = 0;
        for (at, thread, started, cpus) in recorded {
            if !self.is_thread(guest.pid, thread, started) {
                continue;
            }
            let failed =
                |source| ApplyError::Pin { vm: guest.name.clone(), thread, cpus: cpus.clone(), source };
            match os::pin(thread, &cpus) {
                Err(e) if e.raw_os_error() == Some(libc::ESRCH) => continue,
                other => other.map_err(failed)?,
            }
            (self.told)(&Event::Pinned { thread, cpus: cpus.to_string() });
            let is = self.host.allowed_cpus(guest.pid, thread);
            if is.is_ok_and(|is| is != cpus) {
                // The kernel leaves out CPUs beyond the cgroup's.
                return Err(failed(std::io::ErrorKind::InvalidInput.into()));
            }
            if let Entry::Thread { set, .. } = &mut self.record.entries[at] {
                *set = Some(cpus);
            }
            pinned += 1;
        }
        Ok(pinned)
    }
}

/// The CPUs of a thread by the plan; empty if the plan has none for it.
fn wanted(plan: &GuestPlan, io_ids: &[String], thread: &Thread) -> NumberSet {
    match &thread.role {
        Role::Vcpu(n) => plan.vcpus.iter().filter(|v| v.vcpu == *n).map(|v| v.cpu).collect(),
        Role::Io(name) => io_cpus(plan, io_ids, name),
        Role::Recovery | Role::Emulator => plan.emulator.clone(),
    }
}

/// The CPUs of an I/O thread by the plan: its own, or for workers without an id those of all.
pub(crate) fn io_cpus(plan: &GuestPlan, io_ids: &[String], name: &str) -> NumberSet {
    let cut: Vec<usize> = (0..io_ids.len()).filter(|at| is_cut(name, &io_ids[*at])).collect();
    // A name that was cut off may be the beginning of several ids: it then tells none of them.
    let at = io_ids.iter().position(|id| id == name).or(if let [only] = cut[..] { Some(only) } else { None });
    let own = at.and_then(|at| plan.io_threads.get(at)).filter(|set| !set.is_empty()).cloned();
    own.unwrap_or_else(|| plan.io_threads.iter().fold(plan.emulator.clone(), |all, set| all.union(set)))
}

/// Whether the name of a thread is an id that was cut off.
fn is_cut(name: &str, id: &str) -> bool {
    name.len() == MOST_ID && id.len() > MOST_ID && id.starts_with(name)
}
