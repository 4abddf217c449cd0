// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an order may not begin. Each refusal says what is wrong and what to do.

use super::{Goal, Way};
use bifold_host::guest_memory::{
    Balloon, Limit, Machine, MemoryGroup, MonitorPlace, NoMemoryGroup, ProcessMemory, Swap, VirtioMem,
};
use bifold_host::{Host, printable};
use std::time::Duration;

const MIB: u64 = 1 << 20;
/// The pages of a balloon.
const PAGE: u64 = 4096;
/// Locked memory below this part of the resident is that of libraries, such as the rings of io_uring.
const LOCKED_PART: u64 = 4;

/// Time limit of what the monitor is asked for, together.
const LIMIT: Duration = Duration::from_secs(10);
/// Seconds between two requests for statistics during an order.
pub(super) const POLLING: u64 = 1;
/// A longer interval is another program's for its charts: an order would judge the guest too late.
const SELDOM: u64 = 3;

/// Whether an order shortens the interval of a guest's statistics. With 0, QEMU asks for none.
pub(super) fn is_seldom(polling_s: u64) -> bool {
    !(1..=SELDOM).contains(&polling_s)
}

/// Part of the host's swap that an order leaves for others.
const SWAP_RESERVE_PART: u64 = 10;

/// Why the monitor tells nothing of a guest.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum NoMonitor {
    /// The command line of QEMU has none.
    #[error("its command line has no monitor: start QEMU with -qmp unix:PATH,server=on,wait=off")]
    NotAsked,
    /// Its place, and the system's or QEMU's error.
    #[error("its monitor ({0}) does not answer: {1}")]
    Silent(String, String),
    /// The answers lack the size.
    #[error("its monitor does not tell its size")]
    NoSize,
}

/// What has to be known of a guest before an order.
#[derive(Debug, Clone)]
pub struct Facts {
    /// What the monitor says, or why it says nothing.
    pub machine: Result<Machine, NoMonitor>,
    /// The process's memory.
    pub memory: ProcessMemory,
    /// Files of VFIO; `None` if this user may not look.
    pub vfio: Option<usize>,
    /// The process's cgroup.
    pub group: Result<MemoryGroup, NoMemoryGroup>,
    /// The process's id, and those of other processes in the cgroup.
    pub pid: u32,
    /// The host's swap.
    pub swap: Option<Swap>,
    /// Whether the command line asks for hugetlbfs.
    pub hugetlb: bool,
}

/// Reads the facts. Changes nothing.
pub fn facts(host: &Host, pid: u32, place: Option<&MonitorPlace>) -> Facts {
    let ask = |place: &MonitorPlace| {
        let mut monitor = place.open_within(host, pid, LIMIT)?;
        Machine::ask(&mut monitor)
    };
    let machine = match place {
        Some(place) => {
            ask(place).map_err(|e| NoMonitor::Silent(printable(&place.to_string()), e.to_string()))
        }
        None => Err(NoMonitor::NotAsked),
    };
    Facts {
        machine,
        memory: host.process_memory(pid),
        vfio: host.vfio_files(pid),
        group: host.memory_group(pid),
        pid,
        swap: host.swap(),
        hugetlb: host.command_line(pid).is_some_and(|line| line.asks_for_hugetlb()),
    }
}

/// Why an order may not begin.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
#[allow(missing_docs)] // the messages say it
pub enum Refusal {
    #[error(transparent)]
    NoMonitor(#[from] NoMonitor),
    #[error("its vCPUs do not run (QEMU says `{0}`): a stopped guest cannot return memory")]
    Stopped(String),
    #[error("a migration is under way (QEMU says `{0}`): wait until it has ended")]
    Migrating(String),
    #[error(
        "it has no balloon: start QEMU with -device virtio-balloon-pci,deflate-on-oom=on,free-page-reporting=on, or take memory --by cgroup"
    )]
    NoBalloon,
    #[error(
        "QEMU does not tell what its balloon leaves: `query-balloon` needs a KVM that follows changes of memory"
    )]
    NoSize,
    #[error(
        "it has no device of virtio-mem with an id: add -device virtio-mem-pci,id=vm0,... or take memory --by balloon"
    )]
    NoVirtioMem,
    #[error("it has {0} devices of virtio-mem, and an order is for one")]
    SeveralVirtioMem(usize),
    #[error(
        "the size of its virtio-mem does not follow the last request ({requested} of {size} MiB): another order is under way"
    )]
    Moving { requested: u64, size: u64 },
    #[error("{0} of its files are devices of VFIO: {1}")]
    Vfio(usize, &'static str),
    #[error(
        "{0} MiB of its memory are locked (VmLck): a locked page cannot be taken; start QEMU without -overcommit mem-lock=on"
    )]
    Locked(u64),
    #[error(
        "/proc/{0}/fd and status cannot be read, so its memory may be locked or open to a device of VFIO: run the command with sudo"
    )]
    Unread(u32),
    #[error("its memory is in hugetlbfs: {0}")]
    Hugetlb(&'static str),
    #[error("{0}")]
    Group(#[from] NoMemoryGroup),
    #[error("this kernel has no memory.reclaim (Linux 5.19 and newer have it)")]
    NoReclaim,
    #[error(
        "{0} is in the same cgroup, and the kernel would take its memory too: give the guest a cgroup of its own"
    )]
    Shared(String),
    #[error(
        "the host has no swap, so the kernel cannot page a guest out: add swap (zram takes no disk), or take memory --by balloon"
    )]
    NoSwap,
    #[error(
        "the host's swap has {free} MiB for the guest (of its cgroup's memory.swap.max, and without a tenth of all for others), and {wanted} MiB are to be taken"
    )]
    SwapFull { free: u64, wanted: u64 },
    #[error(
        "it has {has} MiB, and the order is for {size} MiB: an order takes memory; `bifold reclaim restore` gives back what an order took, and QEMU's `balloon` gives more"
    )]
    AboveSize { has: u64, size: u64 },
    #[error("{size} MiB are below its least size, {least} MiB: {why}")]
    BelowLeast { size: u64, least: u64, why: String },
    #[error("what it uses is not known, because {0}; so the least safe size is not known")]
    NoFloor(&'static str),
    #[error(
        "its size moves, from {from} to {to} MiB, without an order: another program orders sizes, or the guest has not followed the last order"
    )]
    Unsettled { from: u64, to: u64 },
    #[error("{0}")]
    Before(String),
}

/// The size of a guest, as the way counts it.
pub(super) fn size_of(facts: &Facts, way: Way) -> Option<u64> {
    match way {
        Way::Cgroup => facts.group.as_ref().ok()?.current,
        Way::Balloon => facts.machine.as_ref().ok()?.balloon.as_ref()?.actual,
        Way::VirtioMem => {
            let machine = facts.machine.as_ref().ok()?;
            Some(machine.base?.saturating_add(one(&machine.virtio_mem).ok()?.size))
        }
    }
}

/// The device of virtio-mem that an order changes.
pub(super) fn one(devices: &[VirtioMem]) -> Result<&VirtioMem, Refusal> {
    match devices {
        [device] if device.id.is_some() => Ok(device),
        [] | [_] => Err(Refusal::NoVirtioMem),
        many => Err(Refusal::SeveralVirtioMem(many.len())),
    }
}

/// What the order is to do, or why it may not begin. `size` and `floor` are the user's.
///
/// # Errors
/// The refusal.
pub fn refusal(
    facts: &Facts,
    way: Way,
    size: u64,
    floor: Option<u64>,
    step: Option<u64>,
) -> Result<Goal, Refusal> {
    let machine = match (&facts.machine, way) {
        (Ok(machine), _) => Some(machine),
        // Another VMM than QEMU has no monitor, and a cgroup needs none.
        (Err(_), Way::Cgroup) => None,
        (Err(why), _) => return Err(Refusal::NoMonitor(why.clone())),
    };
    if let Some(machine) = machine {
        if !machine.running {
            return Err(Refusal::Stopped(machine.state.clone()));
        }
        if let Some(state) = &machine.migration {
            return Err(Refusal::Migrating(state.clone()));
        }
    }
    pinned(facts, way)?;
    let balloon = machine.and_then(|m| m.balloon.as_ref());
    let goal = Goal {
        way,
        size: size.next_multiple_of(PAGE),
        floor,
        step,
        statistics: true,
        polling_s: balloon.map_or(POLLING, |b| if is_seldom(b.polling_s) { POLLING } else { b.polling_s }),
        // A balloon that deflates gives nothing back of virtio-mem. A guest that is paged out keeps all of
        // its memory.
        deflates: match way {
            Way::Balloon => balloon.is_some_and(|b| b.deflate_on_oom),
            Way::VirtioMem => false,
            Way::Cgroup => true,
        },
        slack: MIB,
        unit: PAGE,
    };
    let goal = match way {
        Way::Balloon => {
            balloon.ok_or(Refusal::NoBalloon)?.actual.ok_or(Refusal::NoSize)?;
            goal
        }
        Way::VirtioMem => of_virtio_mem(goal, machine.unwrap_or(&Machine::default()))?,
        Way::Cgroup => of_group(goal, facts, balloon)?,
    };
    let has = size_of(facts, way).ok_or(Refusal::NoFloor("its size is not known"))?;
    if goal.size > has {
        return Err(Refusal::AboveSize { has: has / MIB, size: goal.size / MIB });
    }
    match floor {
        Some(floor) if goal.size < floor => {
            let (size, least) = (goal.size / MIB, floor.div_ceil(MIB));
            Err(Refusal::BelowLeast { size, least, why: "--floor says so".into() })
        }
        _ => Ok(goal),
    }
}

/// Refuses where the way cannot take the guest's pages: they are locked, a device may write to them, or they
/// are huge.
fn pinned(facts: &Facts, way: Way) -> Result<(), Refusal> {
    if way != Way::VirtioMem && (facts.vfio.is_none() || facts.memory.locked.is_none()) {
        return Err(Refusal::Unread(facts.pid));
    }
    let locked = facts.memory.locked.unwrap_or(0);
    if way != Way::VirtioMem && locked > facts.memory.resident.unwrap_or(0) / LOCKED_PART && locked > MIB {
        return Err(Refusal::Locked(locked / MIB));
    }
    let huge = facts.hugetlb || facts.memory.hugetlb.is_some_and(|b| b > 0);
    let vfio = facts.vfio.unwrap_or(0);
    match way {
        Way::Balloon if vfio > 0 => {
            return Err(Refusal::Vfio(
                vfio,
                "QEMU takes no pages out of such a guest, because the device may write to them",
            ));
        }
        Way::Balloon if huge => {
            return Err(Refusal::Hugetlb(
                "a balloon takes 4 KiB pages, and a huge page is given back only as a whole",
            ));
        }
        Way::Cgroup if vfio > 0 => {
            return Err(Refusal::Vfio(vfio, "their guest's pages are pinned and cannot be paged out"));
        }
        Way::Cgroup if huge => return Err(Refusal::Hugetlb("the kernel does not page it out")),
        _ => {}
    }
    Ok(())
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
pub(super) fn has_swap(swap: Option<Swap>, group: &MemoryGroup, wanted: u64) -> Result<(), Refusal> {
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

impl Refusal {
    /// The refusal of a size below a floor that follows from what the guest uses.
    pub(super) fn below(goal: &Goal, floor: u64, used: u64) -> Refusal {
        let hint = match (goal.way, goal.deflates) {
            (Way::Balloon, false) => ", twice as much as with deflate-on-oom=on",
            (Way::VirtioMem, _) => ", twice that of a balloon that deflates",
            _ => "",
        };
        let why = format!("it uses {} MiB, and a margin stays{hint}", used.div_ceil(MIB));
        Refusal::BelowLeast { size: goal.size / MIB, least: floor.div_ceil(MIB), why: printable(&why) }
    }
}
