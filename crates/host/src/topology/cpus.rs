// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs and their caches, from `devices/system/cpu` (`sysfs-devices-system-cpu`, `admin-guide/cputopology.rst`).

use super::tree::Tree;
use super::{Cache, Cpu, NumberSet};
use std::collections::BTreeMap;

const CPUS: &str = "devices/system/cpu";

/// All present CPUs, without their nodes.
pub fn cpus(sys: &Tree) -> BTreeMap<u32, Cpu> {
    let directories = sys.numbered(CPUS, "cpu");
    let present = sys.list(&format!("{CPUS}/present")).filter(|p| !p.is_empty()).unwrap_or(directories);
    let online = sys.list(&format!("{CPUS}/online"));
    present.iter().map(|n| (n, cpu(sys, n, online.as_ref()))).collect()
}

fn cpu(sys: &Tree, number: u32, online: Option<&NumberSet>) -> Cpu {
    let dir = format!("{CPUS}/cpu{number}");
    // A CPU that cannot be switched off has no file `online`.
    let off = sys.number::<u8>(&format!("{dir}/online")) == Some(0);
    if off || online.is_some_and(|o| !o.contains(number)) {
        return Cpu::default();
    }
    let id = |name: &str| sys.number::<i32>(&format!("{dir}/topology/{name}"));
    let set = |list: &str, mask: &str| {
        sys.set(&format!("{dir}/topology/{list}"), &format!("{dir}/topology/{mask}"))
    };
    // Linux 5.2 renamed the siblings of a thread.
    let threads =
        set("core_cpus_list", "core_cpus").or_else(|| set("thread_siblings_list", "thread_siblings"));
    Cpu {
        online: true,
        package: id("physical_package_id").filter(|n| *n >= 0),
        die: id("die_id").filter(|n| *n >= 0),
        core: id("core_id").filter(|n| *n >= 0),
        threads: threads.unwrap_or_default().union(&NumberSet::from_iter([number])),
        node: None,
    }
}

/// The caches of the online CPUs, each once, in order of level and first CPU.
pub fn caches(sys: &Tree, cpus: &BTreeMap<u32, Cpu>) -> Vec<Cache> {
    let mut caches: Vec<Cache> = Vec::new();
    let mut seen = std::collections::HashSet::new();
    for (&number, _) in cpus.iter().filter(|(_, c)| c.online) {
        let dir = format!("{CPUS}/cpu{number}/cache");
        for index in sys.numbered(&dir, "index").iter() {
            let Some(cache) = cache(sys, &format!("{dir}/index{index}"), number) else { continue };
            if seen.insert((cache.level, cache.cpus.clone())) {
                caches.push(cache);
            }
        }
    }
    caches.sort_by_key(|c| (c.level, c.cpus.iter().next()));
    caches
}

fn cache(sys: &Tree, dir: &str, cpu: u32) -> Option<Cache> {
    let at = |name: &str| format!("{dir}/{name}");
    if sys.text(&at("type"))? == "Instruction" {
        return None;
    }
    let shared = sys.set(&at("shared_cpu_list"), &at("shared_cpu_map")).unwrap_or_default();
    Some(Cache {
        level: sys.number(&at("level"))?,
        id: sys.id(&at("id")),
        bytes: sys.parsed(&at("size"), "size such as 32K", size).unwrap_or(0),
        line: sys.number(&at("coherency_line_size")).unwrap_or(0),
        ways: sys.number(&at("ways_of_associativity")).unwrap_or(0),
        cpus: shared.union(&NumberSet::from_iter([cpu])),
    })
}

/// Bytes of a size such as `32K`.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |number| (number, 1 << 20)),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}
