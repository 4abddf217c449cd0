// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The planner's reference: it tries every use of every core and every page size, and follows the definitions
//! word by word. It shares no code with the planner but the types of host, wishes and plan.

use bifold_host::topology::{NumberSet, Topology};
use bifold_place::plan::{Cost, Plan};
use bifold_place::wishes::{Guest, Nodes, PageSize, Smt, Wishes};
use std::collections::BTreeMap;

/// A core with free CPUs.
#[derive(Debug)]
struct Core {
    free: NumberSet,
    online: usize,
    node: u32,
    /// Its L3, or that it has none.
    cache: (u32, Option<usize>),
}

/// What a core is used for.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Use {
    Free,
    Vcpus(usize),
    Emulator(usize),
}

pub struct Reference<'a> {
    host: &'a Topology,
    wishes: &'a Wishes,
    cores: Vec<Core>,
    /// The node whose memory a node with free cores uses.
    homes: BTreeMap<u32, u32>,
    threads: usize,
}

fn reserved(host: &Topology, wishes: &Wishes, online: &NumberSet) -> NumberSet {
    if let Some(wished) = &wishes.host.reserve_cpus {
        return wished.clone();
    }
    let shared = online.difference(&host.isolated);
    if !shared.is_empty() && shared != *online {
        return shared;
    }
    let first = online.iter().next().expect("a CPU is online");
    host.cpus[&first].threads.clone()
}

impl<'a> Reference<'a> {
    pub fn new(host: &'a Topology, wishes: &'a Wishes) -> Reference<'a> {
        let online: NumberSet = host.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
        let free = online.difference(&reserved(host, wishes, &online));
        let mut cores: Vec<Core> = Vec::new();
        for cpu in free.iter() {
            if cores.iter().any(|c| c.free.contains(cpu)) {
                continue;
            }
            let facts = &host.cpus[&cpu];
            let node = facts.node.unwrap();
            cores.push(Core {
                free: facts.threads.intersection(&free),
                online: facts.threads.intersection(&online).len(),
                node,
                cache: (node, host.caches.iter().position(|c| c.cpus.contains(cpu))),
            });
        }
        let mut homes = BTreeMap::new();
        for core in &cores {
            let with_memory = host.nodes.iter().filter(|(_, n)| n.memory > 0);
            let home =
                with_memory.min_by_key(|(n, _)| (**n != core.node, host.nodes[&core.node].distances[n], **n));
            if let Some((home, _)) = home {
                homes.insert(core.node, *home);
            }
        }
        cores.retain(|c| homes.contains_key(&c.node));
        let threads = cores.iter().map(|c| c.free.len()).max().unwrap_or(1);
        Reference { host, wishes, cores, homes, threads }
    }

    fn distance(&self, from: u32, to: u32) -> u64 {
        self.host.nodes[&from].distances[&to].into()
    }

    /// The least cost, or none if nothing fits.
    pub fn best(&self) -> Option<Cost> {
        let mut best = None;
        self.next(&mut Vec::new(), &mut best);
        best
    }

    /// Tries all uses of the next core.
    fn next(&self, uses: &mut Vec<Use>, best: &mut Option<Cost>) {
        if uses.len() == self.cores.len() {
            let found = self.with_all_pages(uses);
            *best = [*best, found].into_iter().flatten().min();
            return;
        }
        let given = |of: Use| uses.iter().filter(|u| **u == of).count() as u32;
        let mut all = vec![Use::Free];
        for (g, guest) in self.wishes.guests.iter().enumerate() {
            all.extend(Some(Use::Vcpus(g)).filter(|u| given(*u) < guest.vcpus));
            all.extend(Some(Use::Emulator(g)).filter(|u| given(*u) < guest.emulator_cores));
        }
        for of in all {
            uses.push(of);
            self.next(uses, best);
            uses.pop();
        }
    }

    /// The least cost of some uses over all page sizes.
    fn with_all_pages(&self, uses: &[Use]) -> Option<Cost> {
        let nodes: Vec<Vec<u32>> =
            (0..self.wishes.guests.len()).map(|g| self.nodes(uses, g)).collect::<Option<_>>()?;
        let cost = self.of_cores(uses, &nodes);
        let sizes = [1 << 20, 2048, 4];
        let guests = self.wishes.guests.len();
        let mut best = None;
        for number in 0..3usize.pow(guests as u32) {
            let pages: Vec<u64> = (0..guests).map(|g| sizes[number / 3usize.pow(g as u32) % 3]).collect();
            if let Some((pages, reserved_kib)) = self.of_memory(&nodes, &pages) {
                best = [best, Some(Cost { pages, reserved_kib, ..cost })].into_iter().flatten().min();
            }
        }
        best
    }

    /// The nodes of a guest, if its cores are as wished.
    fn nodes(&self, uses: &[Use], g: usize) -> Option<Vec<u32>> {
        let guest = &self.wishes.guests[g];
        let cores = || self.cores.iter().zip(uses).filter(move |(_, u)| **u == Use::Vcpus(g)).map(|(c, _)| c);
        let mut by_node: BTreeMap<u32, usize> = BTreeMap::new();
        for core in cores() {
            *by_node.entry(core.node).or_default() += match guest.smt {
                Smt::Threads if core.free.len() == self.threads => self.threads,
                Smt::Threads => return None,
                Smt::Cores => 1,
            };
        }
        let nodes: Vec<u32> = by_node.keys().copied().collect();
        let allowed = |n: &u32| guest.host_nodes.as_ref().is_none_or(|set| set.contains(*n));
        let counts = match guest.nodes {
            Nodes::Auto => true,
            Nodes::Number(n) => n as usize == nodes.len(),
            Nodes::Host => self.homes.keys().filter(|n| allowed(n)).count() == nodes.len(),
        };
        let even = by_node.values().all(|n| n * nodes.len() == guest.vcpus as usize);
        (!nodes.is_empty() && counts && even && nodes.iter().all(allowed) && self.emulator(uses, g, &nodes))
            .then_some(nodes)
    }

    /// Whether the cores of the guest's emulator are where they belong.
    fn emulator(&self, uses: &[Use], g: usize, nodes: &[u32]) -> bool {
        let guest = &self.wishes.guests[g];
        let device = guest.near.iter().find_map(|name| self.node_of(name));
        let place = match device {
            Some(from) => *nodes.iter().min_by_key(|n| (self.distance(from, **n), **n)).unwrap(),
            None => nodes[0],
        };
        let mut cores = self.cores.iter().zip(uses).filter(|(_, u)| **u == Use::Emulator(g));
        cores.clone().count() == guest.emulator_cores as usize && cores.all(|(c, _)| c.node == place)
    }

    fn node_of(&self, device: &str) -> Option<u32> {
        self.host.devices.iter().find(|d| d.names.iter().any(|n| n == device)).and_then(|d| d.node)
    }

    /// What does not depend on pages.
    fn of_cores(&self, uses: &[Use], nodes: &[Vec<u32>]) -> Cost {
        let mut cost = Cost::default();
        let mut users: BTreeMap<_, Vec<usize>> = BTreeMap::new();
        for (core, of) in self.cores.iter().zip(uses) {
            let guest = match of {
                Use::Free => continue,
                Use::Vcpus(g) => {
                    let used = match self.wishes.guests[*g].smt {
                        Smt::Threads => core.free.len(),
                        Smt::Cores => 1,
                    };
                    cost.siblings += (core.online - used) as u64;
                    g
                }
                Use::Emulator(g) => g,
            };
            let users = users.entry(core.cache).or_default();
            if !users.contains(guest) {
                users.push(*guest);
            }
        }
        cost.caches = users.values().map(|u| u.len() as u64).sum();
        cost.shared = users.values().map(|u| u.len() as u64 - 1).sum();
        for (guest, nodes) in self.wishes.guests.iter().zip(nodes) {
            cost.nodes += nodes.len() as u64;
            for from in nodes {
                cost.distances +=
                    nodes.iter().filter(|to| *to != from).map(|to| self.distance(*from, *to)).sum::<u64>();
                cost.stand_ins += self.distance(*from, self.homes[from]) - 10;
            }
            for device in guest.near.iter().filter_map(|name| self.node_of(name)) {
                cost.devices += nodes.iter().map(|n| self.distance(device, *n) - 10).min().unwrap();
            }
        }
        cost
    }

    /// Steps down from the largest pages, and KiB to reserve; none if a size is not as wished or memory is
    /// short.
    fn of_memory(&self, nodes: &[Vec<u32>], pages: &[u64]) -> Option<(u64, u64)> {
        let mut steps = 0;
        let mut wished: BTreeMap<(u32, u64), u64> = BTreeMap::new();
        // Nodes that have pages of 1 GB for a guest which did not ask for them.
        let mut unasked = NumberSet::default();
        for ((guest, nodes), kib) in self.wishes.guests.iter().zip(nodes).zip(pages) {
            match guest.page {
                PageSize::Auto => steps += [1 << 20, 2048, 4].iter().position(|k| k == kib).unwrap() as u64,
                PageSize::Kib(fixed) if fixed != *kib => return None,
                PageSize::Kib(_) => {}
            }
            let per_node = guest.memory / nodes.len() as u64;
            if guest.memory % nodes.len() as u64 != 0 || per_node % (kib * 1024) != 0 {
                return None;
            }
            for node in nodes {
                if *kib == 1 << 20 && guest.page == PageSize::Auto {
                    unasked.insert(self.homes[node]);
                }
                *wished.entry((self.homes[node], *kib)).or_default() += per_node / 1024;
            }
        }
        let mut reserved = 0;
        for (number, node) in &self.host.nodes {
            let wished = |kib| wished.get(&(*number, kib)).copied().unwrap_or(0);
            let pool = |kib| node.huge.get(&kib).map_or(0, |p| p.free) * kib;
            let grow_of = |kib| wished(kib).saturating_sub(pool(kib));
            let grow = grow_of(2048) + grow_of(1 << 20);
            if grow_of(1 << 20) > 0 && (unasked.contains(*number) || !node.huge.contains_key(&(1 << 20))) {
                return None;
            }
            if grow > 0 && !self.wishes.host.reserve_pages {
                return None;
            }
            if (wished(4) + grow) * 1024 + self.wishes.host.reserve_memory > node.free && wished(4) + grow > 0
            {
                return None;
            }
            reserved += grow;
        }
        Some((steps, reserved))
    }

    /// What a plan costs by the reference's rules; panics if the plan is not as wished.
    pub fn cost_of(&self, plan: &Plan) -> Cost {
        let mut uses = vec![Use::Free; self.cores.len()];
        let mut mark = |cpu: u32, of: Use| {
            let place = self.cores.iter().position(|c| c.free.contains(cpu)).expect("a free core");
            assert!(uses[place] == Use::Free || uses[place] == of, "CPU {cpu} of {plan:?}");
            uses[place] = of;
        };
        for (g, (guest, wish)) in plan.guests.iter().zip(&self.wishes.guests).enumerate() {
            guest.vcpus.iter().for_each(|v| mark(v.cpu, Use::Vcpus(g)));
            if wish.emulator_cores > 0 {
                guest.emulator.iter().for_each(|cpu| mark(cpu, Use::Emulator(g)));
            }
            self.is_whole(guest, wish);
        }
        let nodes: Vec<Vec<u32>> =
            (0..plan.guests.len()).map(|g| self.nodes(&uses, g).expect("nodes are as wished")).collect();
        let pages: Vec<u64> = plan.guests.iter().map(|g| g.page_kib).collect();
        let (pages, reserved_kib) = self.of_memory(&nodes, &pages).expect("memory is as wished");
        Cost { pages, reserved_kib, ..self.of_cores(&uses, &nodes) }
    }

    /// A guest's numbers agree with each other.
    fn is_whole(&self, guest: &bifold_place::plan::GuestPlan, wish: &Guest) {
        let cpus: NumberSet = guest.vcpus.iter().map(|v| v.cpu).collect();
        assert_eq!(cpus.len(), wish.vcpus as usize, "each vCPU has a CPU of its own");
        assert!(guest.vcpus.iter().enumerate().all(|(i, v)| v.vcpu as usize == i));
        assert_eq!(guest.nodes.iter().map(|n| n.memory).sum::<u64>(), wish.memory);
        for vcpu in &guest.vcpus {
            let node = self.host.cpus[&vcpu.cpu].node.unwrap();
            assert_eq!(self.homes[&node], guest.nodes[vcpu.node as usize].host_node);
        }
        let smp = guest.smp;
        assert_eq!(smp.sockets * smp.dies * smp.cores * smp.threads, wish.vcpus);
        // Threads of a guest's core are threads of one host core.
        for core in guest.vcpus.chunks(smp.threads as usize) {
            assert!(core.iter().all(|v| self.host.cpus[&core[0].cpu].threads.contains(v.cpu)));
        }
        // A die of the guest is on one node.
        for die in guest.vcpus.chunks((smp.cores * smp.threads) as usize) {
            assert!(die.iter().all(|v| v.node == die[0].node));
        }
        assert!(!guest.emulator.is_empty() && guest.emulator.intersection(&cpus).is_empty());
    }
}
