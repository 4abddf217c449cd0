// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The ways of taking a guest's memory: all that differs between them.

use super::facts::{Facts, is_seldom};
use super::{Back, Goal, Record, Refusal};
use bifold_host::Host;
use bifold_host::guest_memory::{Balloon, Limit, Machine, MemoryGroup, Monitor, Swap, VirtioMem};
use std::io;

const MIB: u64 = 1 << 20;
/// Locked memory below this part of the resident is that of libraries, such as the rings of io_uring.
const LOCKED_PART: u64 = 4;
/// Part of the host's swap that an order leaves for others.
const SWAP_RESERVE_PART: u64 = 10;

/// How a guest's memory is taken.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Way {
    /// By virtio-balloon: the guest chooses pages. The size is what is outside of the balloon.
    Balloon,
    /// By virtio-mem: the guest gives blocks back. The size is that of the machine with its devices.
    VirtioMem,
    /// By `memory.reclaim` of the guest's cgroup: the host pages out, and the guest does not know. The size
    /// is what the cgroup has in the host's memory. Nothing is held: pages come back when the guest uses
    /// them.
    Cgroup,
}

impl Way {
    /// All ways.
    pub const ALL: [Way; 3] = [Way::Balloon, Way::VirtioMem, Way::Cgroup];

    /// The way's name.
    pub fn name(self) -> &'static str {
        match self {
            Way::Balloon => "balloon",
            Way::VirtioMem => "virtio-mem",
            Way::Cgroup => "cgroup",
        }
    }

    /// Whether the host takes the memory, without a device of QEMU: nothing is held, and nothing has to be
    /// given back.
    pub fn pages_out(self) -> bool {
        self == Way::Cgroup
    }

    /// Whether a balloon holds the memory: an order may get another size while the order runs, and DIMMs that
    /// are plugged change the size.
    pub(super) fn inflates(self) -> bool {
        self == Way::Balloon
    }

    /// The size of a guest.
    pub(super) fn size(self, facts: &Facts) -> Option<u64> {
        let machine = facts.machine.as_ref().ok();
        match self {
            Way::Cgroup => facts.group.as_ref().ok()?.current,
            Way::Balloon => machine?.balloon.as_ref()?.actual,
            Way::VirtioMem => Some(machine?.base?.saturating_add(one(&machine?.virtio_mem).ok()?.size)),
        }
    }

    /// The device that an order changes, the size that it is to have now, and what the guest has besides.
    pub(super) fn device(self, machine: &Machine) -> Option<(String, u64, u64)> {
        match self {
            Way::Balloon => machine.balloon.as_ref().and_then(|b| Some((b.path.clone(), b.actual?, 0))),
            Way::VirtioMem => {
                let device = one(&machine.virtio_mem).ok()?;
                Some((device.id.clone()?, device.requested, machine.base?))
            }
            Way::Cgroup => None,
        }
    }

    /// Completes a goal, or says why the way cannot take memory of the guest.
    pub(super) fn goal(self, goal: Goal, facts: &Facts) -> Result<Goal, Refusal> {
        self.pinned(facts)?;
        let machine = facts.machine.as_ref().ok();
        let balloon = machine.and_then(|m| m.balloon.as_ref());
        match self {
            Way::Balloon => {
                let balloon = balloon.ok_or(Refusal::NoBalloon)?;
                balloon.actual.ok_or(Refusal::NoSize)?;
                Ok(Goal { deflates: balloon.deflate_on_oom, ..goal })
            }
            // A balloon that deflates gives nothing back of virtio-mem.
            Way::VirtioMem => of_virtio_mem(goal, machine.unwrap_or(&Machine::default())),
            // A guest that is paged out keeps all of its memory.
            Way::Cgroup => of_group(Goal { deflates: true, ..goal }, facts, balloon),
        }
    }

    /// Refuses where the way cannot take the guest's pages: they are locked, a device may write to them, or
    /// they are huge.
    fn pinned(self, facts: &Facts) -> Result<(), Refusal> {
        let vfio = facts.vfio.unwrap_or(0);
        let (of_vfio, of_huge) = match self {
            Way::VirtioMem => return Ok(()),
            Way::Balloon => (
                "QEMU takes no pages out of such a guest, because the device may write to them",
                "a balloon takes 4 KiB pages, and a huge page is given back only as a whole",
            ),
            Way::Cgroup => {
                ("their guest's pages are pinned and cannot be paged out", "the kernel does not page it out")
            }
        };
        if facts.vfio.is_none() || facts.memory.locked.is_none() {
            return Err(Refusal::Unread(facts.pid));
        }
        let locked = facts.memory.locked.unwrap_or(0);
        if locked > facts.memory.resident.unwrap_or(0) / LOCKED_PART && locked > MIB {
            return Err(Refusal::Locked(locked / MIB));
        }
        if vfio > 0 {
            return Err(Refusal::Vfio(vfio, of_vfio));
        }
        if facts.hugetlb || facts.memory.hugetlb.is_some_and(|b| b > 0) {
            return Err(Refusal::Hugetlb(of_huge));
        }
        Ok(())
    }

    /// Why the margin of a goal is larger than that of a balloon that deflates, in words.
    pub(super) fn margin(self, deflates: bool) -> &'static str {
        match (self, deflates) {
            (Way::Balloon, false) => ", twice as much as with deflate-on-oom=on",
            (Way::VirtioMem, _) => ", twice that of a balloon that deflates",
            _ => "",
        }
    }

    /// Orders a size by the guest's monitor. What has none is for [`page_out`].
    pub(super) fn order(self, monitor: &mut Monitor, size: u64) -> io::Result<()> {
        match self {
            Way::Balloon => Balloon::order(monitor, size),
            Way::VirtioMem => {
                let machine = Machine::ask(monitor)?;
                let device = one(&machine.virtio_mem).map_err(io::Error::other)?;
                let id = device.id.as_deref().unwrap_or_default();
                let base = machine.base.ok_or_else(|| io::Error::other("QEMU does not tell its memory"))?;
                VirtioMem::order(monitor, id, size.saturating_sub(base))
            }
            Way::Cgroup => Ok(()),
        }
    }

    /// Orders the size that was found, unless another program has set another one since and nothing forces.
    pub(super) fn give_back(
        self,
        record: &Record,
        machine: &Machine,
        monitor: &mut Monitor,
        force: bool,
    ) -> io::Result<Back> {
        match self {
            Way::Cgroup => {}
            Way::Balloon => {
                // The driver of a device that is unplugged gives the guest all of its pages.
                let Some(balloon) = &machine.balloon else { return Ok(Back::Given) };
                let now = record.with_dimms(machine.dimms.unwrap_or(record.dimms));
                if let Some(size) = balloon.actual.filter(|size| !force && !now.is_ours(*size)) {
                    return Ok(Back::Another { size });
                }
                Balloon::order(monitor, now.found)?;
            }
            Way::VirtioMem => {
                match machine.virtio_mem.iter().find(|d| d.id.as_deref() == Some(&record.device)) {
                    // The last request is known here, unlike a balloon's.
                    Some(device) if !force && !record.is_ours(device.requested) => {
                        return Ok(Back::Another { size: device.requested });
                    }
                    Some(_) => VirtioMem::order(monitor, &record.device, record.found)?,
                    // A device is unplugged with all of its memory.
                    None if machine.dimms.is_some() => {}
                    None => return Err(io::Error::other("QEMU does not list its memory devices")),
                }
            }
        }
        Ok(Back::Given)
    }
}

/// The device of virtio-mem that an order changes.
fn one(devices: &[VirtioMem]) -> Result<&VirtioMem, Refusal> {
    match devices {
        [device] if device.id.is_some() => Ok(device),
        [] | [_] => Err(Refusal::NoVirtioMem),
        many => Err(Refusal::SeveralVirtioMem(many.len())),
    }
}

fn of_virtio_mem(goal: Goal, machine: &Machine) -> Result<Goal, Refusal> {
    let device = one(&machine.virtio_mem)?;
    let base = machine.base.ok_or(Refusal::NoFloor("QEMU does not tell its memory"))?;
    if device.requested != device.size {
        return Err(Refusal::Moving { requested: device.requested / MIB, size: device.size / MIB });
    }
    if goal.size < base {
        let why = "that is its memory without virtio-mem, which stays".into();
        return Err(Refusal::BelowLeast { size: goal.size / MIB, least: base / MIB, why });
    }
    let size = base + (goal.size - base).next_multiple_of(device.block);
    Ok(Goal { size, unit: device.block, ..goal })
}

fn of_group(goal: Goal, facts: &Facts, balloon: Option<&Balloon>) -> Result<Goal, Refusal> {
    let group = facts.group.as_ref().map_err(Clone::clone)?;
    if !group.reclaims {
        return Err(Refusal::NoReclaim);
    }
    if let Some(other) = group.processes.iter().find(|pid| **pid != facts.pid) {
        return Err(Refusal::Shared(format!("process {other}")));
    }
    has_swap(facts.swap, group, group.current.unwrap_or(0).saturating_sub(goal.size))?;
    // Nothing that has to be set back is changed for a cgroup, so QEMU has to ask on its own.
    let polled = balloon.is_some_and(|b| !is_seldom(b.polling_s) && b.statistics.available.is_some());
    if goal.floor.is_none() && !polled {
        return Err(Refusal::NoFloor(
            "its balloon sends no statistics at least every 3 s (guest-stats-polling-interval): give --floor",
        ));
    }
    Ok(goal)
}

/// Whether the host's swap, and the cgroup's part of it, have room for so many bytes, and a reserve for
/// others.
fn has_swap(swap: Option<Swap>, group: &MemoryGroup, wanted: u64) -> Result<(), Refusal> {
    let swap = swap.filter(|s| s.total > 0).ok_or(Refusal::NoSwap)?;
    let own = match group.swap_max {
        Some(Limit::Bytes(most)) => most.saturating_sub(group.swapped.unwrap_or(0)),
        _ => u64::MAX,
    };
    let free = swap.free.saturating_sub(swap.total / SWAP_RESERVE_PART).min(own);
    if wanted > free {
        return Err(Refusal::SwapFull { free: free / MIB, wanted: wanted / MIB });
    }
    Ok(())
}

/// Has the kernel take so many bytes from the cgroup of a guest that is alone in it.
///
/// # Errors
/// If there is no such cgroup, or the kernel refuses.
pub(super) fn page_out(host: &Host, pid: u32, bytes: u64) -> io::Result<()> {
    let group = host.memory_group(pid).map_err(io::Error::other)?;
    if group.processes.iter().any(|p| *p != pid) {
        return Err(io::Error::other("another process has come into it"));
    }
    has_swap(host.swap(), &group, bytes).map_err(io::Error::other)?;
    match group.reclaim(bytes) {
        // A signal has stopped the kernel's work, of which a part is done.
        Err(e) if e.kind() == io::ErrorKind::Interrupted => Ok(()),
        taken => taken.map(drop),
    }
}
