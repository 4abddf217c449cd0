// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Says what is short where, when wishes do not fit.
//!
//! The first guest that does not fit alone is explained against the empty host; then the sum of all cores;
//! otherwise the first guest that does not fit beside those before it, against what these leave in their best
//! placement. Where a search ends at its limit without a placement, nothing is known to be short, and that is
//! what is said.

use crate::PlanError;
use crate::room::Room;
use crate::search::fill::{Part, fill};
use crate::search::options::Choices;
use crate::search::{Found, NotFound, options, search};
use crate::shape::page_name;
use crate::wishes::{Guest, Nodes, PageSize, Smt};
use bifold_host::printable;
use bifold_host::topology::NumberSet;
use std::collections::BTreeMap;

/// Why no placement of guests with these choices was found: `none` is how the search for all of them ended.
pub fn explain(room: &Room, guests: &[Guest], choices: &[Choices], none: NotFound) -> PlanError {
    // The best placement of the guests before the one that is looked at.
    let mut before = None;
    for (guest, choices) in guests.iter().zip(choices) {
        match search(room, std::slice::from_ref(choices)) {
            Ok(found) => before = before.or(Some(found)),
            Err(none) if none.proven => return PlanError::Short(alone(room, guest, &Taken::default())),
            Err(none) => return gave_up(std::slice::from_ref(guest), &none),
        }
    }
    if let Some(all) = all_together(room, guests) {
        return PlanError::Short(vec![all]);
    }
    for n in 2..guests.len() {
        match search(room, &choices[..n]) {
            Ok(found) => before = Some(found),
            Err(none) => return beside(room, &guests[..n], before, &none),
        }
    }
    beside(room, guests, before, &none)
}

/// The last guest has no room beside the others, which have some.
fn beside(room: &Room, guests: &[Guest], others: Option<Found>, none: &NotFound) -> PlanError {
    match (guests.split_last(), others) {
        (Some((last, before)), Some(found)) if none.proven => {
            let names: Vec<String> = before.iter().map(|g| printable(&g.name)).collect();
            let mut lines = alone(room, last, &taken(room, &found));
            let name = printable(&last.name);
            lines.insert(0, format!("guest {name} has no room beside {}:", names.join(", ")));
            PlanError::Short(lines)
        }
        _ => gave_up(guests, none),
    }
}

/// The search ended before it had a placement.
fn gave_up(guests: &[Guest], none: &NotFound) -> PlanError {
    PlanError::GaveUp { guests: guests.iter().map(|g| printable(&g.name)).collect(), placements: none.steps }
}

/// All guests wish more cores than the host has, wherever they are.
fn all_together(room: &Room, guests: &[Guest]) -> Option<String> {
    let least = |g: &Guest| match g.smt {
        Smt::Threads => g.vcpus / room.threads + g.emulator_cores,
        Smt::Cores => g.vcpus + g.emulator_cores,
    };
    let wished: u32 = guests.iter().map(least).sum();
    let free = room.nodes.iter().flat_map(|n| &n.caches).map(|l3| l3.cores.len() as u32).sum::<u32>();
    (wished > free).then(|| format!("all guests together: {wished} cores wished on all nodes, {free} free"))
}

/// What guests have taken.
#[derive(Default)]
struct Taken {
    cpus: NumberSet,
    /// Pages by host node and page size in KiB.
    pages: BTreeMap<(u32, u64), u64>,
}

fn taken(room: &Room, found: &Found) -> Taken {
    let mut taken = Taken::default();
    for (choice, nodes) in &found.guests {
        for placed in nodes {
            let home = room.nodes[placed.node].home;
            *taken.pages.entry((home, choice.page_kib)).or_default() += choice.pages;
            placed.cpus().for_each(|cpu| {
                taken.cpus.insert(cpu);
            });
        }
    }
    taken
}

/// What is short for a guest, beside what is taken.
fn alone(room: &Room, guest: &Guest, taken: &Taken) -> Vec<String> {
    let name = printable(&guest.name);
    let nodes = options::allowed(room, guest);
    if nodes.is_empty() {
        let set = guest.host_nodes.clone().unwrap_or_default();
        return vec![format!(
            "guest {name}: no node of host_nodes = \"{set}\" has both a free CPU and memory"
        )];
    }
    let counts = options::counts(guest, nodes.len());
    let Some(k) = counts.iter().copied().find(|k| options::part(guest, room.threads, *k).is_some()) else {
        return vec![uneven(room, guest, &counts, nodes.len())];
    };
    let part = options::part(guest, room.threads, k).expect("found above");
    let kib = match guest.page {
        PageSize::Kib(kib) => kib,
        PageSize::Auto => 4,
    };
    let per_node = kib * 1024 * k as u64;
    if guest.memory % per_node != 0 {
        let size = page_name(kib);
        return vec![format!(
            "guest {name}: its memory is no whole number of {size} pages on {}",
            if k == 1 { "one node".into() } else { format!("each of {k} nodes") }
        )];
    }
    let part = Part { extra: guest.emulator_cores, ..part };
    let mut lines: Vec<String> = Vec::new();
    for i in nodes {
        lines.extend(cores_short(room, guest, i, part, taken));
        lines.extend(memory_short(room, guest, i, (kib, guest.memory / per_node), taken));
    }
    if lines.is_empty() {
        lines.push(format!("guest {name}: {} wished; no {k} have room at the same time", counted(k, "node")));
    }
    lines
}

/// No number of nodes suits the vCPUs.
fn uneven(room: &Room, guest: &Guest, counts: &[usize], most: usize) -> String {
    let (name, vcpus, threads) = (printable(&guest.name), guest.vcpus, room.threads);
    match (guest.nodes, counts.first()) {
        (Nodes::Number(k), _) if k as usize > most => {
            format!("guest {name}: {} wished, {most} with free CPUs and memory", counted(k as usize, "node"))
        }
        (_, Some(k)) if guest.smt == Smt::Threads => format!(
            "guest {name}: {} on {} are no whole number of cores with {threads} threads on each: change vcpus, or set \
             smt = \"cores\"",
            counted(vcpus as usize, "vCPU"),
            counted(*k, "node")
        ),
        _ => {
            let wished = counted(vcpus as usize, "vCPU");
            let (over, how) = match guest.nodes {
                Nodes::Number(k) => (k as usize, ""),
                _ => (most, " that it may use (nodes = \"host\")"),
            };
            format!("guest {name}: {wished} cannot be spread evenly over the {}{how}", counted(over, "node"))
        }
    }
}

/// Cores that a node is short of.
fn cores_short(room: &Room, guest: &Guest, i: usize, part: Part, taken: &Taken) -> Option<String> {
    let mut caches = room.nodes[i].caches.clone();
    let free = |c: &crate::room::Core| !c.cpus.iter().any(|cpu| taken.cpus.contains(*cpu));
    caches.iter_mut().for_each(|l3| l3.cores.retain(free));
    let (filling, complete) = fill(&caches, &[part], room.threads);
    if filling.is_some() || !complete {
        return None;
    }
    let counts = |c: &&crate::room::Core| !part.full || c.cpus.len() as u32 == room.threads;
    let usable = caches.iter().flat_map(|l3| &l3.cores).filter(counts).count();
    let kind =
        if part.full && room.threads > 1 { format!(" with {} threads", room.threads) } else { String::new() };
    let extra = match part.extra {
        0 => String::new(),
        n => format!(" and {n} for the VMM's own threads"),
    };
    Some(format!(
        "guest {}: {}{kind}{extra} wished on node {}, {usable} free",
        printable(&guest.name),
        counted(part.cores as usize, "core"),
        room.nodes[i].number
    ))
}

/// Memory that a node is short of.
fn memory_short(
    room: &Room,
    guest: &Guest,
    i: usize,
    (kib, pages): (u64, u64),
    taken: &Taken,
) -> Option<String> {
    let node = room.nodes[i].home;
    let memory = &room.memory[&node];
    let used = |kib: u64| taken.pages.get(&(node, kib)).copied().unwrap_or(0);
    let grown_of = |kib: u64| used(kib).saturating_sub(memory.free_pages(kib)) * kib;
    let grown = grown_of(2048) + grown_of(1 << 20);
    let left = (memory.free / 1024).saturating_sub(grown + used(4) * 4);
    let name = printable(&guest.name);
    if kib == 4 {
        let wished = pages * 4;
        return (wished > left).then(|| {
            format!("guest {name}: {} of memory wished on node {node}, {} free", amount(wished), amount(left))
        });
    }
    let free = memory.free_pages(kib).saturating_sub(used(kib));
    let short = pages.saturating_sub(free);
    let can_grow = room.reserve_pages && (kib == 2048 || memory.pools.contains_key(&kib));
    if short == 0 || (can_grow && short * kib <= left) {
        return None;
    }
    let remedy = match (kib, can_grow) {
        (_, true) => format!(", and free memory for {} more", left / kib),
        (2048, false) => " (huge_pages = \"keep\")".into(),
        _ => {
            format!(
                ": boot the host with hugepagesz=1G hugepages={node}:{}",
                memory.free_pages(kib).saturating_add(short)
            )
        }
    };
    let size = page_name(kib);
    let wished = counted(pages as usize, "huge page");
    Some(format!("guest {name}: {wished} of {size} wished on node {node}, {free} free{remedy}"))
}

/// Memory in MiB, if it is a MiB at least.
fn amount(kib: u64) -> String {
    if kib < 1024 { format!("{kib} KiB") } else { format!("{} MiB", kib >> 10) }
}

/// `1 node`, `2 nodes`.
fn counted(n: usize, what: &str) -> String {
    format!("{n} {what}{}", if n == 1 { "" } else { "s" })
}
