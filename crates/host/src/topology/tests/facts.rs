// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts, one kind after the other.

use super::*;
use std::os::unix::fs::symlink;

#[test]
fn a_folder_without_cpus_is_refused_with_what_to_give() {
    let error = Machine::new().host().topology().unwrap_err();
    assert!(!error.cannot_work_here());
    let text = error.to_string();
    assert!(text.contains("/sys/devices/system/cpu has no CPUs") && text.contains("sys and proc"), "{text}");
}

#[test]
fn cpus_are_offline_by_either_file_and_have_no_other_facts() {
    let m = Machine::with_cpus("0-1,3");
    m.put("sys/devices/system/cpu/present", "0-4");
    m.cpu(3, "online", 0);
    m.cpu(2, "topology/core_id", 7);
    for (file, text) in [("physical_package_id", "0"), ("die_id", "1"), ("core_cpus", "3")] {
        m.cpu(1, &format!("topology/{file}"), text);
    }
    let cpus = m.read().cpus;
    assert_eq!(cpus.keys().copied().collect::<Vec<_>>(), [0, 1, 2, 3, 4]);
    assert_eq!([&cpus[&2], &cpus[&3], &cpus[&4]], [&Cpu::default(); 3]);
    let one = Cpu {
        online: true,
        package: Some(0),
        die: Some(1),
        core: Some(1),
        threads: set("0-1"),
        node: Some(0),
    };
    assert_eq!(cpus[&1], one);
}

#[test]
fn packages_without_numbers_of_their_own_get_that_of_their_first_cpu() {
    let m = Machine::with_cpus("0-3");
    for n in 0..4 {
        m.cpu(n, "topology/physical_package_id", -1);
        m.cpu(n, "topology/core_siblings", if n < 2 { "3" } else { "c" });
    }
    let t = m.read();
    assert_eq!(t.cpus.values().map(|c| c.package).collect::<Vec<_>>(), [Some(0), Some(0), Some(2), Some(2)]);
    assert!(
        t.notes.iter().any(|n| n.starts_with("the packages' numbers are missing or not unique")),
        "{:?}",
        t.notes
    );
    // CPUs that contradict each other say nothing about packages.
    m.cpu(3, "topology/core_siblings", "f");
    assert!(m.read().cpus.values().all(|c| c.package.is_none()));
}

#[test]
fn a_cache_counts_once_if_its_cpus_agree_and_an_instruction_cache_never() {
    let m = Machine::with_cpus("0-2");
    for n in 0..3 {
        let cache = |index: u32, files: &[(&str, &str)]| {
            files.iter().for_each(|(file, text)| m.cpu(n, &format!("cache/index{index}/{file}"), text));
        };
        cache(0, &[("level", "1"), ("type", "Instruction"), ("size", "32K"), ("shared_cpu_list", "0-2")]);
        cache(
            1,
            &[("level", "3"), ("type", "Unified"), ("size", "8M"), ("shared_cpu_map", "7"), ("id", "5")],
        );
        cache(
            1,
            &[("coherency_line_size", "64"), ("number_of_sets", "8192"), ("ways_of_associativity", "3")],
        );
        cache(
            2,
            &[
                ("level", "2"),
                ("type", "Unified"),
                ("size", "much"),
                ("shared_cpu_list", if n == 0 { "0-1" } else { "0-2" }),
            ],
        );
        cache(3, &[("type", "Unified"), ("size", "4K")]);
    }
    let t = m.read();
    let l3 = Cache { level: 3, id: Some(5), bytes: 8 << 20, line: 64, ways: 16, cpus: set("0-2") };
    assert_eq!(t.caches, [l3]);
    assert!(t.notes.iter().any(|n| n.contains("CPU 0 says that CPU 0-1 share an L2 cache")), "{:?}", t.notes);
    assert!(t.notes.iter().any(|n| n.contains("`much` is no size such as 32K")), "{:?}", t.notes);
}

#[test]
fn nodes_have_sparse_numbers_and_may_lack_cpus_or_memory() {
    let m = Machine::with_cpus("0-3");
    m.memory(0, 4 << 20);
    m.node(0, "cpulist", "0-1");
    m.node(3, "cpumap", "c");
    m.node(3, "meminfo", "Node 3 MemTotal: 0 kB");
    m.memory(8, 1 << 20);
    m.node(8, "cpulist", "");
    m.node(8, "meminfo", "Node 8 MemTotal: 1048576 kB\nNode 8 MemFree: 1 kB\nNode 8 SecPageTables: 12 kB");
    for (n, row) in [(0, "10 21 17"), (3, "21 10 28"), (8, "17 28 10")] {
        m.node(n, "distance", row);
    }
    for (file, n) in [("nr", 64), ("free", 60), ("surplus", 1)] {
        m.node(0, &format!("hugepages/hugepages-2048kB/{file}_hugepages"), n);
    }
    m.node(0, "hugepages/hugepages-1048576kB/nr_hugepages", 2);
    let t = m.read();
    assert!(t.numa && t.notes == ["the caches are not known: sysfs does not tell"], "{:?}", t.notes);
    assert_eq!(t.nodes.keys().copied().collect::<Vec<_>>(), [0, 3, 8]);
    assert_eq!(t.nodes[&3].distances, BTreeMap::from([(0, 21), (3, 10), (8, 28)]));
    assert_eq!((t.nodes[&3].memory, &t.nodes[&3].cpus), (0, &set("2-3")));
    assert_eq!(
        (t.nodes[&8].memory, t.nodes[&8].free, t.nodes[&8].kvm_tables),
        (1 << 30, 1024, Some(12 << 10))
    );
    assert!(t.nodes[&8].cpus.is_empty());
    let pools = [
        (2048, HugePool { total: 64, free: 60, surplus: 1 }),
        (1 << 20, HugePool { total: 2, ..HugePool::default() }),
    ];
    assert_eq!(t.nodes[&0].huge, BTreeMap::from(pools));
    assert_eq!(t.cpus.values().map(|c| c.node).collect::<Vec<_>>(), [Some(0), Some(0), Some(3), Some(3)]);
}

#[test]
fn distances_that_are_missing_short_or_asymmetric_are_noted() {
    let m = Machine::with_cpus("0");
    m.node(0, "cpulist", "0");
    m.put("sys/devices/system/cpu/cpu0/cache/index0/type", "Unified");
    m.put("sys/devices/system/cpu/cpu0/cache/index0/level", 1);
    (0..4).for_each(|n| m.memory(n, 1024));
    m.node(0, "distance", "10 20 30 40");
    m.node(1, "distance", "21 10 20 20");
    m.node(2, "distance", "30 20");
    let t = m.read();
    assert_eq!(t.nodes[&0].distances.len(), 4);
    assert!(t.nodes[&2].distances.is_empty() && t.nodes[&3].distances.is_empty());
    let end = |n: usize, text: &str| assert!(t.notes[n].ends_with(text), "{:?}", t.notes);
    end(0, "node2/distance: 2 distances for 4 nodes; left out");
    end(
        1,
        "the distances of node 2-3 are missing: the firmware has no SLIT, or sysfs has no file `distance`",
    );
    end(2, "distances are asymmetric: 20 from node 0 to 1, 21 from 1 to 0");
    assert_eq!(t.notes.len(), 3);
}

#[test]
fn two_nodes_never_share_a_cpu() {
    let m = Machine::with_cpus("0-3");
    m.node(0, "cpulist", "0-2");
    m.node(1, "cpulist", "2-3,7");
    let t = m.read();
    assert_eq!((&t.nodes[&0].cpus, &t.nodes[&1].cpus), (&set("0-2"), &set("3")));
    assert!(t.notes.iter().any(|n| n.starts_with("node 1 claims CPU 2 of an earlier node")), "{:?}", t.notes);
}

#[test]
fn the_hmat_is_read_by_class_and_zero_is_no_figure() {
    let m = Machine::with_cpus("0");
    m.memory(0, 1024);
    for (class, latency) in [(0, 80), (1, 95)] {
        m.node(0, &format!("access{class}/initiators/read_latency"), latency);
        m.node(0, &format!("access{class}/initiators/write_bandwidth"), 0);
        fs::create_dir(m.at(&format!("sys/devices/system/node/node0/access{class}/initiators/node{class}")))
            .unwrap();
    }
    m.node(0, "memory_side_cache/index1/size", 4096);
    m.node(0, "memory_side_cache/index1/line_size", 64);
    m.memory(1, 1024);
    m.node(1, "access0/initiators/read_latency", 0);
    let t = m.read();
    let access = |node, latency| {
        Some(Access { initiators: set(node), read_latency: Some(latency), ..Access::default() })
    };
    assert_eq!((&t.nodes[&0].access, &t.nodes[&0].cpu_access), (&access("0", 80), &access("1", 95)));
    assert_eq!(t.nodes[&0].side_caches, [SideCache { level: 1, bytes: 4096, line: 64 }]);
    assert_eq!(t.nodes[&1].access, None);
}

#[test]
fn without_numa_one_node_stands_for_the_machine() {
    let m = Machine::with_cpus("0-1");
    m.put("proc/meminfo", "MemTotal: 2048 kB\nMemFree: 1024 kB");
    m.put("sys/kernel/mm/hugepages/hugepages-2048kB/nr_hugepages", 3);
    m.put("sys/devices/system/cpu/isolated", 1);
    m.put("sys/devices/system/cpu/nohz_full", "(null)");
    let t = m.read();
    assert!(!t.numa && t.tickless.is_empty() && t.isolated == set("1"));
    let node = &t.nodes[&0];
    assert_eq!((node.memory, node.free, &node.cpus), (2 << 20, 1 << 20, &set("0-1")));
    assert_eq!((node.huge[&2048].total, &node.distances), (3, &BTreeMap::from([(0, 10)])));
    assert!(t.cpus.values().all(|c| c.node == Some(0)));
}

#[test]
fn devices_have_their_names_and_interrupts() {
    let m = Machine::with_cpus("0");
    let pci =
        |address: &str, file: &str, text: &str| m.put(&format!("sys/bus/pci/devices/{address}/{file}"), text);
    for (address, class, node) in [
        ("0000:3b:00.0", "0x020000", "1"),
        ("10000:01:00.1", "0x010802", "-1"),
        ("0000:00:1f.0", "0x060100", "0"),
    ] {
        pci(address, "class", class);
        pci(address, "numa_node", node);
    }
    pci("0000:3b:00.0", "local_cpulist", "0");
    ["40", "41", "x"].iter().for_each(|n| pci("0000:3b:00.0", &format!("msi_irqs/{n}"), "msi"));
    pci("0000:3b:00.0", "irq", "17");
    pci("10000:01:00.1", "irq", "9");
    pci("0000:00:1f.0", "irq", "0");
    symlink("../../../../bus/pci/drivers/vfio-pci", m.at("sys/bus/pci/devices/10000:01:00.1/driver"))
        .unwrap();
    symlink("../../../../bus/pci/drivers/mlx5_core", m.at("sys/bus/pci/devices/0000:3b:00.0/driver"))
        .unwrap();
    let device = "sys/devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0";
    fs::create_dir_all(m.at(&format!("{device}/net/eth0/x"))).unwrap();
    for (class, name, target) in [
        ("net", "eth0", "../../devices/pci0000:3a/0000:3a:00.0/0000:3b:00.0/net/eth0"),
        ("net", "lo", "../../devices/virtual/net/lo"),
        ("block", "nvme0n1", "../../devices/pci10000:00/10000:01:00.1/nvme/nvme0/nvme0n1"),
        ("block", "nvme0n1p1", "../../devices/pci10000:00/10000:01:00.1/nvme/nvme0/nvme0n1/nvme0n1p1"),
    ] {
        symlink(target, m.at(&format!("sys/class/{class}/{name}"))).unwrap();
    }
    m.put("sys/devices/pci10000:00/10000:01:00.1/nvme/nvme0/nvme0n1/nvme0n1p1/partition", 1);
    let t = m.read();
    let devices: Vec<_> = t
        .devices
        .iter()
        .map(|d| (&*d.address, d.class, d.node, d.interrupts.to_string(), &d.names[..]))
        .collect();
    assert_eq!(
        devices,
        [
            ("0000:00:1f.0", 0x06_01_00, Some(0), String::new(), &[][..]),
            ("0000:3b:00.0", 0x02_00_00, Some(1), "40-41".into(), &["eth0".to_string()][..]),
            ("10000:01:00.1", 0x01_08_02, None, "9".into(), &["nvme0n1".to_string()][..]),
        ]
    );
    assert_eq!(t.devices[1].cpus, set("0"));
    let drivers: Vec<_> = t.devices.iter().map(|d| (d.driver.as_deref(), d.is_passed_through())).collect();
    assert_eq!(drivers, [(None, false), (Some("mlx5_core"), false), (Some("vfio-pci"), true)]);
}

/// A file that is no regular file would block a reader, or never end.
#[test]
fn pipes_devices_and_broken_links_in_a_copied_tree_are_passed_over() {
    let m = Machine::with_cpus("0");
    m.memory(0, 1024);
    let pipe = m.at("sys/devices/system/node/node0/cpulist");
    rustix::fs::mknodat(rustix::fs::CWD, &pipe, rustix::fs::FileType::Fifo, 0o600.into(), 0).unwrap();
    symlink("/dev/zero", m.at("sys/devices/system/node/node0/distance")).unwrap();
    symlink("nothing", m.at("sys/devices/system/cpu/isolated")).unwrap();
    fs::create_dir(m.at("sys/devices/system/cpu/nohz_full")).unwrap();
    let t = m.read();
    assert!(t.nodes[&0].cpus.is_empty() && t.nodes[&0].distances.is_empty() && t.isolated.is_empty());
}
