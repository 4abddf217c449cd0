// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why an order may not begin. Each refusal says what is wrong and what to do.

use super::facts::{Facts, NoMonitor, POLLING, is_seldom};
use super::{Goal, OrderRequest, SizeObservation};
use bifold_host::guest_memory::NoMemoryGroup;
use bifold_host::printable;

const MIB: u64 = 1 << 20;
/// The pages of a balloon.
const PAGE: u64 = 4096;

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

/// What the order is to do, or why it may not begin.
///
/// # Errors
/// The refusal.
pub fn refusal(facts: &Facts, wish: &OrderRequest) -> Result<Goal, Refusal> {
    let OrderRequest { way, size, floor, step } = *wish;
    let machine = match &facts.machine {
        Ok(machine) => Some(machine),
        // Another VMM than QEMU has no monitor, and a cgroup needs none.
        Err(_) if way.pages_out() => None,
        Err(why) => return Err(Refusal::NoMonitor(why.clone())),
    };
    if let Some(machine) = machine {
        if !machine.running {
            return Err(Refusal::Stopped(machine.state.clone()));
        }
        if let Some(state) = &machine.migration {
            return Err(Refusal::Migrating(state.clone()));
        }
    }
    let balloon = machine.and_then(|m| m.balloon.as_ref());
    let goal = Goal {
        way,
        size: size.next_multiple_of(PAGE),
        floor,
        step,
        statistics: true,
        polling_s: balloon.map_or(POLLING, |b| if is_seldom(b.polling_s) { POLLING } else { b.polling_s }),
        deflates: false,
        slack: MIB,
        unit: PAGE,
    };
    let goal = way.goal(goal, facts)?;
    let has = way.size(facts).ok_or(Refusal::NoFloor("its size is not known"))?;
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

impl Refusal {
    /// The refusal of a size below a floor that follows from what the guest uses.
    pub(super) fn below(goal: &Goal, look: &SizeObservation, floor: u64) -> Refusal {
        let (used, hint) = (look.used.unwrap_or(0), goal.way.margin(goal.deflates));
        let why = format!("it uses {} MiB, and a margin stays{hint}", used.div_ceil(MIB));
        Refusal::BelowLeast { size: goal.size / MIB, least: floor.div_ceil(MIB), why: printable(&why) }
    }
}
