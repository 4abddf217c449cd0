// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Where a guest's CPUs and memory belong on a host.
//!
//! [`wishes`] reads what a user wants. [`plan()`] finds the placement of least [`plan::Cost`] on a
//! [`Topology`]. [`plan`](mod@plan) has the result: for each guest the CPU of every vCPU, the host node of
//! every guest node, pages, and the host's settings that go with them. A plan is data: it is printed, kept,
//! applied, undone, and compared with what runs. [`qemu`] and [`libvirt`] turn a guest's plan into what
//! starts the guest. [`apply`](mod@apply) sets the host and pins guests that run, and takes both back.
//! [`check`](mod@check) compares what runs with a plan. [`view`] is what a guest sees, by its command line.
#![deny(unsafe_code)]

pub mod apply;
pub mod check;
mod cost;
pub mod libvirt;
mod os;
pub mod plan;
pub mod qemu;
mod room;
mod search;
mod settings;
mod shape;
mod short;
mod steps;
mod valid;
pub mod view;
pub mod wishes;

use bifold_host::topology::Topology;
use plan::{Plan, SCHEMA};
use std::path::{Path, PathBuf};
use wishes::Wishes;

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, Eq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// A fact of the host, or a wish about it, that cannot be used.
    #[error("{0}")]
    Refused(String),
    /// A distance between nodes that no placement does without is missing, or cannot be used.
    #[error(
        "{}/devices/system/node/node{node}/distance: {why}: give guests one node each (nodes = 1), or put the distances to all \
         nodes into this file of a copied tree and name the tree with --root", .sys.display()
    )]
    Distance {
        /// Where the host's sysfs is.
        sys: PathBuf,
        /// The node that should tell.
        node: u32,
        /// What is wrong.
        why: String,
    },
    /// The wishes do not fit: what is short where.
    #[error("the wishes do not fit:{}", wishes::listed(.0))]
    Short(Vec<String>),
    /// The search ended at its limit before it had any placement. The wishes may fit.
    #[error(
        "the search gave up after {placements} placements, none of which has room for all of these guests: {}; the wishes may fit \
         nevertheless: name host_nodes for some of the guests, or plan fewer of them together", .guests.join(", ")
    )]
    GaveUp {
        /// The names of the guests that were to be placed together.
        guests: Vec<String>,
        /// Placements of a guest that were tried.
        placements: u64,
    },
}

impl PlanError {
    /// The error with the place of the host's sysfs in the names of files.
    #[must_use]
    pub fn below(self, place: &Path) -> PlanError {
        match self {
            PlanError::Distance { node, why, .. } => PlanError::Distance { sys: place.into(), node, why },
            other => other,
        }
    }
}

/// The maker of the host's processor.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub enum Processor {
    /// AMD, or Hygon: a guest sees threads and caches by the CPU flag `topoext` only.
    Amd,
    /// Another maker of x86.
    Other,
    /// A processor that is no x86: a plan's CPUs and nodes hold, but not its page sizes and what starts its
    /// guests.
    NotX86,
    /// The host does not tell.
    #[default]
    Unknown,
}

impl Processor {
    /// The maker that `/proc/cpuinfo` names, as `arch/x86/kernel/cpu/proc.c` of Linux has it. Of other
    /// kernels, that of s390 alone has a line `vendor_id`, too.
    pub fn of_cpuinfo(text: &str) -> Processor {
        let vendor = text.lines().find_map(|l| l.strip_prefix("vendor_id")?.split_once(':'));
        match vendor.map(|(_, name)| name.trim()) {
            Some("AuthenticAMD" | "HygonGenuine") => Processor::Amd,
            Some("IBM/S390") => Processor::NotX86,
            Some(_) => Processor::Other,
            None if text.trim().is_empty() => Processor::Unknown,
            None => Processor::NotX86,
        }
    }
}

/// The placement of least cost for all guests together, and what to set on the host.
///
/// # Errors
/// If the wishes do not fit, name what is not there, or the host lacks facts that a plan needs.
pub fn plan(host: &Topology, wishes: &Wishes, processor: Processor) -> Result<Plan, PlanError> {
    let room = room::Room::new(host, &wishes.host)?;
    let choices = wishes
        .guests
        .iter()
        .map(|g| search::options::choices(host, &room, g))
        .collect::<Result<Vec<_>, _>>()?;
    let mut found = search::search(&room, &choices).map_err(|none| {
        let unmeasured = choices.iter().find_map(|c| c.unmeasured.clone());
        unmeasured.unwrap_or_else(|| short::explain(&room, &wishes.guests, &choices, none))
    })?;
    let guests = shape::guests(host, &room, wishes, &mut found, processor)?;
    let (steps, mut notes) = steps::steps(host, &room, wishes, &guests);
    if processor == Processor::Unknown && guests.iter().any(|g| g.smp.threads > 1) {
        notes.push(
            "no /proc/cpuinfo: on an AMD processor, add the CPU flag topoext, or guests see no threads"
                .into(),
        );
    }
    notes.extend(of_qemu(processor, &guests));
    if !found.proven {
        notes.push(format!(
            "the search ended after {} placements: the plan is the best of them, and a better one may exist",
            search::MOST_STEPS
        ));
    }
    Ok(Plan { schema: SCHEMA.into(), guests, steps, notes, cost: found.cost, proven: found.proven })
}

/// Most vCPUs of the machine q35 in QEMU 7.2, the oldest that plans are made for (`hw/i386/pc_q35.c`: 288 up
/// to version 8.0, 1024 in 8.1 and 8.2, 4096 from 9.0 on).
const MOST_VCPUS: usize = 288;

/// What QEMU cannot give.
fn of_qemu(processor: Processor, guests: &[plan::GuestPlan]) -> Vec<String> {
    let foreign = (processor == Processor::NotX86).then(|| {
        "the processor is no x86: what starts guests is for x86-64 alone, and the kernel's pages may have other sizes than 4 KB, 2 MB \
         and 1 GB"
            .to_string()
    });
    let large = guests.iter().filter(|g| g.vcpus.len() > MOST_VCPUS).map(|g| {
        format!(
            "guest {}: {} vCPUs: the machine q35 takes {MOST_VCPUS} up to QEMU 8.0, 1024 up to QEMU 8.2, and 4096 from QEMU 9.0 on",
            bifold_host::printable(&g.name),
            g.vcpus.len()
        )
    });
    foreign.into_iter().chain(large).collect()
}
