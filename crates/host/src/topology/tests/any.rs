// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random machines: written as the kernel does, and read again.

use super::*;
use proptest::prelude::*;

/// A machine that can be: nodes with CPUs in threads of cores of packages.
fn any_machine() -> impl Strategy<Value = Topology> {
    let shape = (1u32..4, 1u32..4, 1u32..3, 1u32..4);
    (shape, proptest::collection::vec(0u64..1 << 30, 12), any::<u64>()).prop_map(
        |((packages, cores, threads, step), kib, bits)| {
            let mut t = Topology { numa: true, ..Topology::default() };
            let per_package = cores * threads;
            for n in 0..packages * per_package {
                let (package, core) = ((n / per_package) as i32, (n % cores) as i32);
                let online = n == 0 || bits >> (n % 64) & 1 == 1;
                let cpu = Cpu {
                    online,
                    package: Some(package),
                    die: Some(0),
                    core: Some(core),
                    node: Some(package as u32 * step),
                    ..Cpu::default()
                };
                t.cpus.insert(n, if online { cpu } else { Cpu::default() });
            }
            let of = |t: &Topology, key: &dyn Fn(&Cpu) -> bool| -> NumberSet {
                t.cpus.iter().filter(|(_, c)| c.online && key(c)).map(|(n, _)| *n).collect()
            };
            let shown = t.clone();
            for cpu in t.cpus.values_mut().filter(|c| c.online) {
                cpu.threads = of(&shown, &|c| c.package == cpu.package && c.core == cpu.core);
            }
            for (n, kib) in (0..packages).zip(&kib) {
                let cpus = of(&shown, &|c| c.node == Some(n * step));
                if !cpus.is_empty() {
                    t.caches.push(Cache {
                        level: 3,
                        id: Some(n),
                        bytes: (1 + kib % 64) << 20,
                        line: 64,
                        ways: 0,
                        cpus: cpus.clone(),
                    });
                }
                let distances = (0..packages)
                    .map(|to| (to * step, if to == n { 10 } else { 10 + ((n + 1) * (to + 1)) }))
                    .collect();
                let pool = HugePool { total: kib % 99, free: kib % 9, surplus: 0 };
                let node = Node {
                    cpus,
                    memory: kib << 10,
                    free: (kib / 2) << 10,
                    distances,
                    huge: BTreeMap::from([(2048, pool)]),
                    ..Node::default()
                };
                t.nodes.insert(n * step, node);
            }
            t.caches.sort_by_key(|c| c.cpus.iter().next());
            t
        },
    )
}

/// Writes a machine as the kernel does.
fn written(t: &Topology) -> Machine {
    let online: NumberSet = t.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
    let m = Machine::with_cpus(&online.to_string());
    m.put("sys/devices/system/cpu/present", t.cpus.keys().copied().collect::<NumberSet>());
    for (n, cpu) in t.cpus.iter().filter(|(_, c)| c.online) {
        for (file, id) in [("physical_package_id", cpu.package), ("die_id", cpu.die), ("core_id", cpu.core)] {
            m.cpu(*n, &format!("topology/{file}"), id.unwrap());
        }
        m.cpu(*n, "topology/core_cpus_list", &cpu.threads);
        for c in t.caches.iter().filter(|c| c.cpus.contains(*n)) {
            for (file, text) in [
                ("level", c.level.to_string()),
                ("id", c.id.unwrap().to_string()),
                ("type", "Unified".into()),
                ("size", format!("{}K", c.bytes >> 10)),
                ("coherency_line_size", c.line.to_string()),
                ("shared_cpu_list", c.cpus.to_string()),
            ] {
                m.cpu(*n, &format!("cache/index3/{file}"), text);
            }
        }
    }
    for (n, node) in &t.nodes {
        m.node(*n, "cpulist", &node.cpus);
        m.node(
            *n,
            "meminfo",
            format!("Node {n} MemTotal: {} kB\nNode {n} MemFree: {} kB", node.memory >> 10, node.free >> 10),
        );
        m.node(*n, "distance", node.distances.values().map(u32::to_string).collect::<Vec<_>>().join(" "));
        for (kib, pool) in &node.huge {
            for (file, count) in [("nr", pool.total), ("free", pool.free), ("surplus", pool.surplus)] {
                m.node(*n, &format!("hugepages/hugepages-{kib}kB/{file}_hugepages"), count);
            }
        }
    }
    m
}

proptest! {
    #![proptest_config(ProptestConfig::with_cases(64))]

    #[test]
    fn a_machine_is_read_as_it_was_written(t in any_machine()) {
        prop_assert_eq!(written(&t).read(), t);
    }

    #[test]
    fn a_machine_with_a_damaged_file_keeps_its_other_facts(t in any_machine(), at in any::<prop::sample::Index>(), bad in "\\PC{0,20}") {
        let m = written(&t);
        let nodes: Vec<u32> = t.nodes.keys().copied().collect();
        let n = *at.get(&nodes);
        m.node(n, "distance", bad);
        let read = m.read();
        prop_assert_eq!((&read.cpus, &read.caches), (&t.cpus, &t.caches));
        for (number, node) in &t.nodes {
            let distances = if *number == n { &read.nodes[number].distances } else { &node.distances };
            prop_assert_eq!(&read.nodes[number], &Node { distances: distances.clone(), ..node.clone() });
        }
    }
}
