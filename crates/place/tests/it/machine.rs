// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Machines made by hand.

use bifold_host::topology::{Cache, Cpu, Device, HugePool, Node, Topology};

/// A node: for each L3 the number of cores, and memory.
#[derive(Debug, Clone, Default)]
pub struct Spec {
    pub number: u32,
    pub cores: Vec<u32>,
    pub memory: u64,
    /// Free pages of 2 MB and of 1 GB.
    pub pools: (u64, u64),
}

/// A machine whose cores have this many threads. CPUs are numbered as on most servers: the first threads of
/// all cores, then the second ones. `distance` is between any two nodes.
pub fn machine(specs: &[Spec], threads: u32, distance: u32) -> Topology {
    let mut host = Topology { numa: true, ..Topology::default() };
    let all: u32 = specs.iter().flat_map(|s| &s.cores).sum();
    let mut core = 0;
    for (package, spec) in specs.iter().enumerate() {
        let mut node = Node { memory: spec.memory, free: spec.memory, ..Node::default() };
        for n in &spec.cores {
            let mut cache = Cache { level: 3, bytes: 16 << 20, line: 64, ..Cache::default() };
            for first in core..core + n {
                let cpus = || (0..threads).map(|t| first + t * all);
                for cpu in cpus() {
                    let cpu_facts = Cpu {
                        online: true,
                        package: Some(package as i32),
                        die: Some(0),
                        core: Some(first as i32),
                        threads: cpus().collect(),
                        node: Some(spec.number),
                    };
                    host.cpus.insert(cpu, cpu_facts);
                    cache.cpus.insert(cpu);
                    node.cpus.insert(cpu);
                }
            }
            core += n;
            host.caches.push(cache);
        }
        for (kib, free) in [(2048, spec.pools.0), (1 << 20, spec.pools.1)] {
            node.huge.insert(kib, HugePool { total: free, free, surplus: 0 });
        }
        node.distances = specs.iter().map(|to| (to.number, distance)).collect();
        node.distances.insert(spec.number, 10);
        host.nodes.insert(spec.number, node);
    }
    host
}

/// A network card on a node.
pub fn device(address: &str, name: &str, node: Option<u32>) -> Device {
    Device { address: address.into(), class: 0x02_0000, node, names: vec![name.into()], ..Device::default() }
}
