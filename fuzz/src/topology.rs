// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The body for `bifold_host::topology`: a small tree of files of sysfs and procfs with any content.

use bifold_host::Host;
use bifold_host::topology::{NumberSet, Topology};
use std::fs;
use std::path::Path;

/// Files of a machine with CPUs 0 to 3, nodes 0, 1 and 4, a PCI device and cgroups.
const FILES: [&str; 38] = [
    "sys/devices/system/cpu/online",
    "sys/devices/system/cpu/present",
    "sys/devices/system/cpu/isolated",
    "sys/devices/system/cpu/nohz_full",
    "sys/devices/system/cpu/cpu0/online",
    "sys/devices/system/cpu/cpu0/topology/core_cpus",
    "sys/devices/system/cpu/cpu0/topology/core_siblings",
    "sys/devices/system/cpu/cpu0/topology/physical_package_id",
    "sys/devices/system/cpu/cpu0/topology/die_id",
    "sys/devices/system/cpu/cpu0/cache/index0/level",
    "sys/devices/system/cpu/cpu0/cache/index0/size",
    "sys/devices/system/cpu/cpu0/cache/index0/coherency_line_size",
    "sys/devices/system/cpu/cpu0/cache/index0/number_of_sets",
    "sys/devices/system/cpu/cpu0/cache/index0/shared_cpu_map",
    "sys/devices/system/cpu/cpu1/online",
    "sys/devices/system/cpu/cpu1/topology/core_siblings_list",
    "sys/devices/system/cpu/cpu1/topology/thread_siblings_list",
    "sys/devices/system/cpu/cpu1/cache/index0/level",
    "sys/devices/system/cpu/cpu1/cache/index0/shared_cpu_list",
    "sys/devices/system/cpu/cpu3/topology/core_id",
    "sys/devices/system/node/node0/cpumap",
    "sys/devices/system/node/node0/distance",
    "sys/devices/system/node/node0/meminfo",
    "sys/devices/system/node/node1/cpulist",
    "sys/devices/system/node/node1/distance",
    "sys/devices/system/node/node1/hugepages/hugepages-2048kB/nr_hugepages",
    "sys/devices/system/node/node4/distance",
    "sys/devices/system/node/node4/access0/initiators/read_latency",
    "sys/devices/system/node/node4/memory_side_cache/index1/size",
    "sys/bus/pci/devices/0000:3b:00.0/class",
    "sys/bus/pci/devices/0000:3b:00.0/numa_node",
    "sys/bus/pci/devices/0000:3b:00.0/local_cpus",
    "proc/self/mounts",
    "proc/self/cgroup",
    "proc/self/cpuset",
    "cg/cpuset.cpus",
    "cg/cpuset.mems",
    "run/systemd/container",
];

/// What separates a file from the next; its first byte says which file it is.
const NEXT: u8 = 0xff;

/// Any files: a machine without contradictions, or an error.
pub fn topology(data: &[u8]) {
    let memory = Path::new("/dev/shm");
    let dir = if memory.is_dir() { tempfile::tempdir_in(memory) } else { tempfile::tempdir() };
    let dir = dir.expect("a folder for temporary files");
    for part in data.split(|b| *b == NEXT) {
        let Some((which, content)) = part.split_first() else { continue };
        let path = dir.path().join(FILES[usize::from(*which) % FILES.len()]);
        fs::create_dir_all(path.parent().expect("it is in a folder")).expect("a folder can be made");
        fs::write(path, content).expect("a file can be written");
    }
    if let Ok(t) = Host::copied(dir.path()).topology() {
        check(&t);
    }
}

fn check(t: &Topology) {
    let online: NumberSet = t.cpus.iter().filter(|(_, c)| c.online).map(|(n, _)| *n).collect();
    let mut of_nodes = NumberSet::default();
    for (number, node) in &t.nodes {
        assert!(
            node.cpus.is_subset(&online) && node.cpus.intersection(&of_nodes).is_empty(),
            "node {number}"
        );
        assert!(node.cpus.iter().all(|n| t.cpus[&n].node == Some(*number)), "node {number}");
        assert!(node.distances.keys().all(|to| t.nodes.contains_key(to)), "node {number}");
        of_nodes = of_nodes.union(&node.cpus);
    }
    for (number, cpu) in t.cpus.iter().filter(|(_, c)| c.online) {
        assert!(cpu.threads.contains(*number), "CPU {number}");
    }
    assert!(t.caches.iter().all(|c| !c.cpus.intersection(&online).is_empty()), "{:?}", t.caches);
    assert!(!t.nodes.is_empty() && t.notes.len() < 100, "{} notes", t.notes.len());
    assert!(!t.notes.iter().any(|n| n.contains(char::is_control)), "{:?}", t.notes);
}

#[cfg(test)]
mod tests {
    use super::super::inputs::bytes;
    use super::*;
    use proptest::prelude::*;

    /// Contents that some file takes, and damaged ones.
    fn content() -> impl Strategy<Value = String> {
        prop_oneof![
            "[0-9]{1,3}(-[0-9]{1,3})?(,[0-9]{1,5}){0,2}",
            "(0x)?[0-9a-f]{1,8}(,[0-9a-f]{1,8}){0,3}",
            "-?[0-9]{1,20}",
            "[0-9]{1,9}[KMG]",
            "([0-9]{1,3} ){0,4}",
            "(Node [0-4] (MemTotal|MemFree|SecPageTables): [0-9]{1,20} kB\n){0,3}",
            "(c(group2?|puset) /cg\\\\?0?4?0? (cgroup2?|cpuset) (rw,)?(cpuset|cpuset_v2_mode)? 0 0\n){0,2}",
            "[0-9]{0,2}:(cpuset|cpu,cpuset)?:/[a-z./]{0,9}",
            "\\PC{0,9}",
        ]
    }

    proptest! {
        #[test]
        fn any_files_are_a_machine_without_contradictions_or_an_error(
            files in proptest::collection::vec((0..FILES.len(), content()), 0..60), data in bytes(),
        ) {
            topology(&data[..data.len().min(2000)]);
            let mut text = vec![];
            for (which, content) in files {
                text.push(which as u8);
                text.extend(content.bytes());
                text.push(NEXT);
            }
            topology(&text);
        }
    }
}
