// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Nodes: CPUs, memory, distances, huge pages, and what the firmware's HMAT says, from `devices/system/node`
//! (`sysfs-devices-node`, `admin-guide/mm/numaperf.rst`, `admin-guide/mm/hugetlbpage.rst`).

use super::tree::Tree;
use super::{Access, HugePool, Node, NumberSet, SideCache};
use crate::Host;
use crate::memory::kib;
use std::collections::BTreeMap;

const NODES: &str = "devices/system/node";

/// All online nodes.
pub fn nodes(sys: &Tree) -> BTreeMap<u32, Node> {
    let numbers = sys.numbered(NODES, "node");
    let mut nodes: BTreeMap<u32, Node> = numbers.iter().map(|n| (n, node(sys, n))).collect();
    for n in numbers.iter() {
        let distances = distances(sys, n, &numbers);
        nodes.entry(n).and_modify(|node| node.distances = distances);
    }
    note_distances(sys, &nodes);
    nodes
}

fn node(sys: &Tree, number: u32) -> Node {
    let dir = format!("{NODES}/node{number}");
    let at = |name: &str| format!("{dir}/{name}");
    let meminfo = sys.text(&at("meminfo"));
    // Each line begins with `Node N `.
    let text: Option<String> = meminfo.map(|t| {
        let lines =
            t.lines().filter_map(|l| l.trim_start().strip_prefix("Node ")?.split_once(' ').map(|(_, l)| l));
        lines.map(|l| l.trim_start().to_owned() + "\n").collect()
    });
    let amount = |name: &str| text.as_deref().and_then(|t| kib(t, name));
    if amount("MemTotal").is_none() {
        sys.note(format!(
            "node {number}: its memory is not known, as {} has none; taken as 0",
            sys.path(&at("meminfo")).display()
        ));
    }
    Node {
        cpus: sys.set(&at("cpumap"), &at("cpulist")).unwrap_or_default(),
        memory: amount("MemTotal").unwrap_or(0),
        free: amount("MemFree").unwrap_or(0),
        kvm_tables: amount("SecPageTables"),
        distances: BTreeMap::new(),
        huge: pools(sys, &at("hugepages")),
        access: access(sys, &at("access0")),
        cpu_access: access(sys, &at("access1")),
        side_caches: side_caches(sys, &at("memory_side_cache")),
    }
}

/// The pools in a directory `hugepages`.
fn pools(sys: &Tree, dir: &str) -> BTreeMap<u64, HugePool> {
    let pool = |name: &String| {
        let kib = name.strip_prefix("hugepages-")?.strip_suffix("kB")?.parse().ok()?;
        let count = |file: &str| sys.number(&format!("{dir}/{name}/{file}"));
        let (free, surplus) = (count("free_hugepages"), count("surplus_hugepages"));
        Some((
            kib,
            HugePool {
                total: count("nr_hugepages")?,
                free: free.unwrap_or(0),
                surplus: surplus.unwrap_or(0),
            },
        ))
    };
    sys.names(dir).iter().filter_map(pool).collect()
}

/// An access class of a node. The numbers are of its initiators, which are links beside them.
fn access(sys: &Tree, dir: &str) -> Option<Access> {
    let dir = format!("{dir}/initiators");
    // 0 stands for a figure that the firmware does not state.
    let number = |name: &str| sys.number(&format!("{dir}/{name}")).filter(|n| *n > 0);
    let access = Access {
        initiators: sys.numbered(&dir, "node"),
        read_latency: number("read_latency"),
        write_latency: number("write_latency"),
        read_bandwidth: number("read_bandwidth"),
        write_bandwidth: number("write_bandwidth"),
    };
    (access != Access::default()).then_some(access)
}

fn side_caches(sys: &Tree, dir: &str) -> Vec<SideCache> {
    let cache = |level: u32| {
        let at = |name: &str| format!("{dir}/index{level}/{name}");
        let bytes = sys.number(&at("size"))?;
        Some(SideCache { level, bytes, line: sys.number(&at("line_size")).unwrap_or(0) })
    };
    sys.numbered(dir, "index").iter().filter_map(cache).collect()
}

/// A node's distances. The file has one for each online node, in order of number.
fn distances(sys: &Tree, number: u32, nodes: &NumberSet) -> BTreeMap<u32, u32> {
    let numbers = |t: &str| t.split_whitespace().map(|w| w.parse().ok()).collect::<Option<Vec<u32>>>();
    let file = format!("{NODES}/node{number}/distance");
    let Some(found) = sys.parsed(&file, "row of distances", numbers) else { return BTreeMap::new() };
    if found.len() != nodes.len() {
        let path = sys.path(&file);
        sys.note(format!(
            "{}: {} distances for {} nodes; left out",
            path.display(),
            found.len(),
            nodes.len()
        ));
        return BTreeMap::new();
    }
    nodes.iter().zip(found).collect()
}

/// Notes what the distances lack, or where two nodes disagree.
fn note_distances(sys: &Tree, nodes: &BTreeMap<u32, Node>) {
    let without: NumberSet = nodes.iter().filter(|(_, n)| n.distances.is_empty()).map(|(n, _)| *n).collect();
    if nodes.len() > 1 && !without.is_empty() {
        sys.note(format!("the distances of node {without} are missing: the firmware has no SLIT, or sysfs has no file `distance`"));
    }
    for (&a, node) in nodes {
        for (&b, &there) in node.distances.range(a + 1..) {
            let back = nodes.get(&b).and_then(|n| n.distances.get(&a)).copied();
            if let Some(back) = back.filter(|back| *back != there) {
                sys.note(format!(
                    "distances are asymmetric: {there} from node {a} to {b}, {back} from {b} to {a}"
                ));
            }
        }
    }
}

/// The node that stands for a machine whose kernel has no NUMA.
pub fn only_node(sys: &Tree, host: &Host, cpus: NumberSet) -> Node {
    let proc = Tree::new(&host.proc);
    let meminfo = proc.text("meminfo").unwrap_or_default();
    let amount = |name: &str| kib(&meminfo, name);
    Node {
        cpus,
        memory: amount("MemTotal").unwrap_or(0),
        free: amount("MemFree").unwrap_or(0),
        kvm_tables: amount("SecPageTables"),
        distances: BTreeMap::from([(0, LOCAL)]),
        huge: pools(sys, "kernel/mm/hugepages"),
        ..Node::default()
    }
}

/// The distance of a node to itself (ACPI, System Locality Information Table).
const LOCAL: u32 = 10;
