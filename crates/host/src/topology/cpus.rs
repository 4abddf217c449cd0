// SPDX-License-Identifier: Apache-2.0 OR MIT
//! CPUs and their caches, from `devices/system/cpu` (`sysfs-devices-system-cpu`,
//! `admin-guide/cputopology.rst`).

use super::tree::Tree;
use super::{Cache, Cpu, NumberSet};
use std::collections::{BTreeMap, BTreeSet};

const CPUS: &str = "devices/system/cpu";

/// All present CPUs, without their nodes.
pub fn cpus(sys: &Tree) -> BTreeMap<u32, Cpu> {
    let directories = sys.numbered(CPUS, "cpu");
    let present = sys.list(&format!("{CPUS}/present")).filter(|p| !p.is_empty()).unwrap_or(directories);
    let online = sys.list(&format!("{CPUS}/online"));
    let mut cpus: BTreeMap<u32, Cpu> = present.iter().map(|n| (n, cpu(sys, n, online.as_ref()))).collect();
    number_packages(sys, &mut cpus);
    cpus
}

fn cpu(sys: &Tree, number: u32, online: Option<&NumberSet>) -> Cpu {
    let dir = format!("{CPUS}/cpu{number}");
    // A CPU that cannot be switched off has no file `online`.
    let off = sys.number::<u8>(&format!("{dir}/online")) == Some(0);
    if off || online.is_some_and(|o| !o.contains(number)) {
        return Cpu::default();
    }
    let id = |name: &str| sys.number::<i32>(&format!("{dir}/topology/{name}")).filter(|n| *n >= 0);
    Cpu {
        online: true,
        package: id("physical_package_id"),
        die: id("die_id"),
        core: id("core_id"),
        // Linux 5.2 renamed the siblings of a thread.
        threads: siblings(sys, number, ["core_cpus", "thread_siblings"])
            .unwrap_or_else(|| NumberSet::from_iter([number])),
        node: None,
    }
}

/// The CPUs in the first of these files that is there, with the CPU itself.
fn siblings(sys: &Tree, number: u32, files: [&str; 2]) -> Option<NumberSet> {
    let at = |name: &str| format!("{CPUS}/cpu{number}/topology/{name}");
    let found = files.iter().find_map(|name| sys.set(&at(name), &at(&format!("{name}_list"))))?;
    Some(found.union(&NumberSet::from_iter([number])))
}

/// Makes the numbers of packages tell packages apart. On some machines there is no number, or packages of
/// different nodes have the same one; the CPUs of each package are known all the same. A package then has the
/// number of its first CPU.
fn number_packages(sys: &Tree, cpus: &mut BTreeMap<u32, Cpu>) {
    let online = || cpus.iter().filter(|(_, c)| c.online);
    let set = |n: &u32| Some((*n, siblings(sys, *n, ["package_cpus", "core_siblings"])?));
    let Some(sets) = online().map(|(n, _)| set(n)).collect::<Option<BTreeMap<u32, NumberSet>>>() else {
        return;
    };
    let numbers: BTreeSet<_> = online().map(|(_, c)| c.package).collect();
    let both: BTreeSet<_> = online().map(|(n, c)| (c.package, &sets[n])).collect();
    let told_apart = both.len() == numbers.len() && !numbers.contains(&None);
    let agree = |set: &NumberSet| set.iter().filter_map(|n| sets.get(&n)).all(|other| other == set);
    if told_apart || !sets.values().all(agree) {
        return;
    }
    for (number, set) in &sets {
        let first = set.iter().next().and_then(|n| i32::try_from(n).ok());
        cpus.entry(*number).and_modify(|c| c.package = first);
    }
    sys.note(
        "the packages' numbers are missing or not unique: each package has the number of its first CPU"
            .into(),
    );
}

/// The caches of the online CPUs, each once, in order of level and first CPU. A cache counts if all its CPUs
/// describe it alike.
pub fn caches(sys: &Tree, cpus: &BTreeMap<u32, Cpu>) -> Vec<Cache> {
    let online = || cpus.iter().filter(|(_, c)| c.online);
    let mut found: BTreeMap<(u32, bool, NumberSet), (Cache, NumberSet)> = BTreeMap::new();
    for (&number, cpu) in online() {
        let dir = format!("{CPUS}/cpu{number}/cache");
        for index in sys.numbered(&dir, "index").iter() {
            let Some((cache, data)) = cache(sys, &format!("{dir}/index{index}"), number, cpu) else {
                continue;
            };
            let key = (cache.level, data, cache.cpus.clone());
            found.entry(key).or_insert_with(|| (cache, NumberSet::default())).1.insert(number);
        }
    }
    let online: NumberSet = online().map(|(n, _)| *n).collect();
    let (agreed, disputed): (Vec<_>, Vec<_>) =
        found.into_values().partition(|(cache, by)| cache.cpus.intersection(&online) == *by);
    for (cache, by) in disputed {
        sys.note(format!(
            "CPU {by} says that CPU {} share an L{} cache, and not all of these say so; left out",
            cache.cpus, cache.level
        ));
    }
    let mut caches: Vec<Cache> = agreed.into_iter().map(|(cache, _)| cache).collect();
    caches.sort_by_key(|c| (c.level, c.cpus.iter().next()));
    caches
}

/// A cache, and whether it has data alone.
fn cache(sys: &Tree, dir: &str, number: u32, cpu: &Cpu) -> Option<(Cache, bool)> {
    let at = |name: &str| format!("{dir}/{name}");
    let kind = sys.text(&at("type")).unwrap_or_default();
    if kind == "Instruction" {
        return None;
    }
    let shared = sys.set(&at("shared_cpu_map"), &at("shared_cpu_list"));
    // On ia64 the kernel leaves some sets empty.
    let shared = shared.map(|set| if set.is_empty() { cpu.threads.clone() } else { set });
    let bytes = sys.parsed(&at("size"), "size such as 32K", size).unwrap_or(0);
    let figure = |name: &str| sys.number(&at(name));
    let line = figure("coherency_line_size").unwrap_or(0);
    let cache = Cache {
        level: sys.number(&at("level"))?,
        id: sys.id(&at("id")),
        bytes,
        line,
        ways: ways(bytes, line, [figure("number_of_sets"), figure("physical_line_partition").or(Some(1))]),
        cpus: shared.unwrap_or_default().union(&NumberSet::from_iter([number])),
    };
    Some((cache, kind == "Data"))
}

/// Ways by the number of sets: the file `ways_of_associativity` has 0, -1 or 15 where the architecture's
/// tables have no number.
fn ways(bytes: u64, line: u32, [sets, lines_of_a_tag]: [Option<u32>; 2]) -> u32 {
    // One set would be a cache that is fully associative.
    let Some(sets) = sets.filter(|n| *n > 1) else { return 0 };
    let of_a_way =
        [line, lines_of_a_tag.unwrap_or(1), sets].into_iter().map(u64::from).try_fold(1, u64::checked_mul);
    let ways = of_a_way.and_then(|n| bytes.checked_div(n));
    ways.and_then(|n| u32::try_from(n).ok()).unwrap_or(0)
}

/// Bytes of a size such as `32K`.
fn size(text: &str) -> Option<u64> {
    let (number, unit) = match text.strip_suffix('K') {
        Some(number) => (number, 1 << 10),
        None => text.strip_suffix('M').map_or((text, 1), |number| (number, 1 << 20)),
    };
    number.parse::<u64>().ok()?.checked_mul(unit)
}
