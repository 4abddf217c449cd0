// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a guest can choose from: a page size, a number of nodes, and a set of host nodes. Within a set, guest
//! nodes stand in the order of the host's, since the guest takes its distances from them.

use super::fill::Part;
use crate::PlanError;
use crate::cost::Cost;
use crate::room::{LOCAL, Room, distance};
use crate::wishes::{Guest, Nodes, PageSize, Smt};
use bifold_host::topology::{Device, Topology};

/// Most sets of nodes that are tried per guest and number of nodes. All sets of 5 of 16 nodes are 4368.
const MOST_SETS: usize = 5000;

/// Page sizes in KiB, the largest first.
pub const PAGES: [u64; 3] = [1 << 20, 2 << 10, 4];

/// A way to place a guest.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Choice {
    /// Page size in KiB.
    pub page_kib: u64,
    /// Nodes of the room, in ascending order, each with what it must hold.
    pub parts: Vec<(usize, Part)>,
    /// Which of `parts` holds the cores for the VMM's other threads.
    pub emulator: usize,
    /// Pages on each node.
    pub pages: u64,
    /// Whether the guest leaves the page size to the plan.
    pub automatic: bool,
    /// What it costs wherever the cores are, in an empty host.
    pub cost: Cost,
}

/// All ways to place a guest, and whether that is all.
pub struct Choices {
    pub all: Vec<Choice>,
    pub complete: bool,
    /// Why some ways are left out: a distance that the guest would have to see cannot be used.
    pub unmeasured: Option<PlanError>,
}

/// The device of a name: an address, an interface or a disk.
pub fn device<'a>(host: &'a Topology, name: &str) -> Option<&'a Device> {
    let is = |d: &&Device| {
        d.address == name
            || d.address.strip_prefix("0000:") == Some(name)
            || d.names.iter().any(|n| n == name)
    };
    host.devices.iter().find(is)
}

/// Distances from the wished devices to the nodes of the room: a row per device that has a node.
fn device_distances(host: &Topology, room: &Room, guest: &Guest) -> Result<Vec<Vec<u32>>, PlanError> {
    let mut rows = Vec::new();
    for name in &guest.near {
        let found = device(host, name).ok_or_else(|| {
            PlanError::Refused(format!(
                "guest {}: near: this host has no PCI device {}: `bifold place show` lists them",
                bifold_host::printable(&guest.name),
                bifold_host::printable(name)
            ))
        })?;
        if let Some(node) = found.node {
            let row = room.nodes.iter().map(|n| distance(host, node, n.number));
            rows.push(row.collect::<Result<Vec<u32>, _>>()?);
        }
    }
    Ok(rows)
}

/// Nodes of the room that the guest may use.
pub fn allowed(room: &Room, guest: &Guest) -> Vec<usize> {
    let may = |n: u32| guest.host_nodes.as_ref().is_none_or(|set| set.contains(n));
    (0..room.nodes.len()).filter(|i| may(room.nodes[*i].number)).collect()
}

/// Numbers of nodes that the guest may have on `most` host nodes, the least first.
pub fn counts(guest: &Guest, most: usize) -> Vec<usize> {
    let wished = match guest.nodes {
        Nodes::Auto => 1..=most,
        Nodes::Host => most..=most,
        Nodes::Number(n) => n as usize..=(n as usize).min(most),
    };
    wished.filter(|k| *k > 0 && guest.vcpus as usize % k == 0).collect()
}

/// What a node must hold of a guest with `k` nodes, without the VMM's cores; `None` if threads do not come
/// out even.
pub fn part(guest: &Guest, threads: u32, k: usize) -> Option<Part> {
    let vcpus = guest.vcpus / k as u32;
    match guest.smt {
        Smt::Cores => Some(Part { full: false, cores: vcpus, extra: 0 }),
        Smt::Threads if vcpus % threads == 0 => Some(Part { full: true, cores: vcpus / threads, extra: 0 }),
        Smt::Threads => None,
    }
}

/// Page sizes that the guest may have.
pub fn pages(guest: &Guest) -> Vec<u64> {
    match guest.page {
        PageSize::Auto => PAGES.to_vec(),
        PageSize::Kib(kib) => vec![kib],
    }
}

/// All ways to place a guest in an empty host, without regard to room.
///
/// # Errors
/// If a device is not there, or a distance is missing.
pub fn choices(host: &Topology, room: &Room, guest: &Guest) -> Result<Choices, PlanError> {
    let devices = device_distances(host, room, guest)?;
    let nodes = allowed(room, guest);
    let mut choices = Choices { all: Vec::new(), complete: true, unmeasured: None };
    for k in counts(guest, nodes.len()) {
        let Some(part) = part(guest, room.threads, k) else { continue };
        let (mut sets, complete) = sets(room, &nodes, k);
        choices.complete &= complete;
        sets.retain(|set| {
            let bad = unmeasured(host, room, set);
            let good = bad.is_none();
            choices.unmeasured = choices.unmeasured.take().or(bad);
            good
        });
        for page_kib in pages(guest) {
            if guest.memory % (page_kib * 1024 * k as u64) != 0 {
                continue;
            }
            let pages = guest.memory / (page_kib * 1024) / k as u64;
            for set in &sets {
                choices.all.push(choice(room, guest, &devices, part, (page_kib, pages), set));
            }
        }
    }
    Ok(choices)
}

/// What is wrong with a distance between two nodes of a set.
fn unmeasured(host: &Topology, room: &Room, set: &[usize]) -> Option<PlanError> {
    let pairs = || set.iter().flat_map(|a| set.iter().map(move |b| (*a, *b)));
    let (a, b) = pairs().find(|(a, b)| room.nodes[*a].distances[*b].is_none())?;
    distance(host, room.nodes[a].number, room.nodes[b].number).err()
}

fn choice(
    room: &Room,
    guest: &Guest,
    devices: &[Vec<u32>],
    part: Part,
    (page_kib, pages): (u64, u64),
    set: &[usize],
) -> Choice {
    let nodes = || set.iter().map(|i| &room.nodes[*i]);
    let sum = |figures: &mut dyn Iterator<Item = u32>| figures.map(u64::from).sum::<u64>();
    let nearest = |row: &Vec<u32>| set.iter().map(|i| row[*i]).min().expect("a set has a node") - LOCAL;
    let between = |n: &crate::room::RoomNode| -> u64 {
        let others = set.iter().filter(|i| room.nodes[**i].number != n.number);
        others.filter_map(|i| n.distances[*i]).map(u64::from).sum()
    };
    let rank = PAGES.iter().position(|kib| *kib == page_kib).expect("one of the sizes") as u64;
    let cost = Cost {
        nodes: set.len() as u64,
        pages: if guest.page == PageSize::Auto { rank } else { 0 },
        distances: nodes().map(between).sum(),
        stand_ins: sum(&mut nodes().map(|n| n.home_distance - LOCAL)),
        devices: sum(&mut devices.iter().map(nearest)),
        ..Cost::default()
    };
    let emulator = match devices.first() {
        Some(row) => (0..set.len()).min_by_key(|i| row[set[*i]]).expect("a set has a node"),
        None => 0,
    };
    let extra = |i: usize| if i == emulator { guest.emulator_cores } else { 0 };
    let parts = set.iter().enumerate().map(|(i, node)| (*node, Part { extra: extra(i), ..part })).collect();
    Choice { page_kib, parts, emulator, pages, automatic: guest.page == PageSize::Auto, cost }
}

/// All sets of `k` nodes; if they are too many, for each node the nearest others.
fn sets(room: &Room, nodes: &[usize], k: usize) -> (Vec<Vec<usize>>, bool) {
    let mut many = 1.0;
    for i in 0..k {
        many *= (nodes.len() - i) as f64 / (k - i) as f64;
    }
    if many <= MOST_SETS as f64 {
        let mut sets = Vec::new();
        subsets(nodes, k, &mut Vec::new(), &mut sets);
        return (sets, true);
    }
    let around = |start: &usize| {
        let mut near = nodes.to_vec();
        let far = |i: &usize| room.nodes[*start].distances[*i].unwrap_or(u32::MAX);
        near.sort_by_key(|i| (i != start, far(i), *i));
        near.truncate(k);
        near.sort_unstable();
        near
    };
    let mut sets: Vec<Vec<usize>> = nodes.iter().map(around).collect();
    sets.sort();
    sets.dedup();
    (sets, false)
}

fn subsets(nodes: &[usize], k: usize, begun: &mut Vec<usize>, sets: &mut Vec<Vec<usize>>) {
    if k == 0 {
        sets.push(begun.clone());
        return;
    }
    for (i, node) in nodes.iter().enumerate().take((nodes.len() + 1).saturating_sub(k)) {
        begun.push(*node);
        subsets(&nodes[i + 1..], k - 1, begun, sets);
        begun.pop();
    }
}
