// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Facts that hwloc printed.

use super::facts::{Facts, cache, group, memory};
use super::output::{Object, Output};
use bifold_host::topology::NumberSet;

impl Facts {
    /// What hwloc printed. For a node without CPUs of its own, hwloc guesses whose neighbour it is: no fact.
    pub fn of_hwloc(hwloc: &Output, nodes_with_cpus: &NumberSet) -> Facts {
        let mut facts = Facts::default();
        cpus(&mut facts, hwloc);
        memories(&mut facts, hwloc, nodes_with_cpus);
        devices(&mut facts, hwloc);
        facts
    }
}

fn cpus(facts: &mut Facts, hwloc: &Output) {
    facts.add("CPUs", format!("visible: {}", hwloc.cpus()));
    if let Some(hidden) = &hwloc.hidden {
        facts.add("CPUs", format!("hidden: {hidden}"));
    }
    if let Some(group) = &hwloc.group {
        facts.add("CPUs", format!("cgroup: {group}"));
    }
    let numbered = hwloc.packages_have_numbers();
    for (kind, subject) in [("Package", "packages"), ("Die", "dies"), ("Core", "cores")] {
        for o in hwloc.all(kind).filter(|o| !o.cpus.is_empty()) {
            facts.add(subject, group(o.os.filter(|_| numbered || kind != "Package"), &o.cpus));
        }
    }
    for level in 1..=5 {
        let kind = format!("L{level}Cache");
        let caches = hwloc.all(&kind).filter(|o| !o.cpus.is_empty());
        // An instruction cache has a type of its own in text, and number 2 in XML.
        for o in caches.filter(|o| o.attributes.get("cache_type").is_none_or(|t| t != "2")) {
            let [line, ways] =
                [["linesize", "cache_linesize"], ["ways", "cache_associativity"]].map(|n| o.number(n));
            let bytes = o.amount(["size", "cache_size"]);
            let subject = if o.subtype == "MemorySideCache" { "memory-side L3" } else { "caches" };
            facts.add(subject, cache(level, o.os, bytes, [line as u32, ways as u32], &o.cpus));
        }
    }
}

fn memories(facts: &mut Facts, hwloc: &Output, nodes_with_cpus: &NumberSet) {
    let in_mib = hwloc.in_mib();
    for o in hwloc.all("NUMANode") {
        let number = o.os.unwrap();
        let bytes = if in_mib { o.number(["MB", "MB"]) << 20 } else { o.amount(["local", "local_memory"]) };
        facts.add("memory", memory(number, bytes, in_mib));
        if nodes_with_cpus.contains(number) {
            facts.add("nodes", format!("{number}: CPUs {}", o.cpus));
        }
        // The first size is that of small pages.
        for (size, count) in o.pages.iter().skip(1) {
            facts.add("huge pages", format!("{number}: {count} of {size} bytes"));
        }
    }
    for o in hwloc.all("MemCache") {
        let nodes: NumberSet = hwloc.below(o).filter(|o| o.kind == "NUMANode").filter_map(|o| o.os).collect();
        let line = o.number(["linesize", "cache_linesize"]);
        let bytes = o.amount(["size", "cache_size"]);
        facts.add("side caches", format!("{nodes}: {bytes} bytes, lines of {line}"));
    }
    for ((a, b), d) in &hwloc.distances {
        facts.add("distances", format!("{a} to {b}: {d}"));
    }
    for ((name, node), value) in
        hwloc.speeds.iter().filter(|((n, _), _)| n.starts_with("Read") || n.starts_with("Write"))
    {
        facts.add("speeds", format!("{node}: {name} {value}"));
    }
}

fn devices(facts: &mut Facts, hwloc: &Output) {
    for o in hwloc.objects.iter() {
        if let Some(address) = o.pci_address() {
            facts.add(
                if o.is_bridge() { "bridges" } else { "devices" },
                format!("{address}: class {}", o.pci_class()),
            );
            // The first object above that has CPUs below: bridges have none.
            let near = hwloc.above(o).find(|o| !o.cpus.is_empty());
            facts.add(
                "localities",
                format!("{address}: CPUs {}", near.map_or(NumberSet::default(), |o| o.cpus.clone())),
            );
        }
        // 0 is a disk, 2 an interface, 3 an InfiniBand adapter.
        let class = o.attributes.get("osdev_type").map(String::as_str);
        let known = ["Block", "Network", "Net", "OpenFabrics"].contains(&&*o.kind)
            || ["0", "2", "3"].map(Some).contains(&class);
        if let (true, Some(address)) = (known, hwloc.above(o).find_map(Object::pci_address)) {
            facts.add("names", format!("{address}: {}", o.name));
        }
    }
}
