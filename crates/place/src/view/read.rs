// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the options of a command line that say what a guest sees.

use super::{Backend, Level, Levels, View, ViewNode};
use bifold_host::topology::NumberSet;
use bifold_host::{CommandLine, Pairs};
use std::collections::BTreeMap;

/// Most vCPUs that are believed: QEMU's own limit is 4,096.
const MOST_VCPUS: u32 = 1 << 16;
const MIB: u64 = 1 << 20;
/// Memory without `-m`.
const DEFAULT_MEMORY: u64 = 128 * MIB;

pub fn view(line: &CommandLine) -> Option<View> {
    let program = line.program();
    if !(program.starts_with("qemu-system-") || program == "qemu-kvm" || program == "kvm") {
        return None;
    }
    let mut view = View { memory: DEFAULT_MEMORY, l3: Some(Level::Die), ..View::default() };
    let mut numa: Vec<Pairs> = Vec::new();
    let (mut smp, mut path, mut prealloc) = (Pairs::default(), None, false);
    for (name, value) in line.options() {
        match name {
            "smp" => smp = Pairs::parse(value, "cpus"),
            "m" => {
                let bytes = Pairs::parse(value, "size").size("size", MIB);
                view.memory = bytes.unwrap_or(view.memory);
            }
            "numa" => numa.push(Pairs::parse(value, "type")),
            "object" => object(&mut view, &Pairs::parse(value, "qom-type")),
            "machine" | "M" => machine(&mut view, &Pairs::parse(value, "type")),
            "cpu" => cpu(&mut view, &Pairs::parse(value, "model")),
            "device" => device(&mut view, &Pairs::parse(value, "driver")),
            "mem-path" => path = Some(value.to_owned()),
            _ => {}
        }
        // An option without a value stands before another option or an argument of its own.
        prealloc |= name == "mem-prealloc";
    }
    (view.levels, view.vcpus, view.most_vcpus) = levels(&smp);
    if path.is_some() && view.whole.is_none() {
        let huge = path.as_deref().is_some_and(|p| p.contains("huge"));
        let bytes = view.memory;
        view.whole = Some("pc.ram".into());
        view.backends.push(Backend {
            id: "pc.ram".into(),
            file: true,
            path,
            bytes,
            huge,
            prealloc,
            ..plain()
        });
    }
    nodes(&mut view, &numa);
    Some(view)
}

fn plain() -> Backend {
    Backend { policy: "default".into(), ..Backend::default() }
}

/// Levels, vCPUs and the most vCPUs. Missing levels: cores take what is left, as since QEMU 6.2.
fn levels(smp: &Pairs) -> (Levels, u32, u32) {
    let given = |name| smp.number(name).filter(|n| (1..MOST_VCPUS).contains(n));
    let (cpus, most) = (given("cpus"), given("maxcpus"));
    let one = |name| given(name).unwrap_or(1);
    let (dies, modules) = (one("dies"), one("modules"));
    let (sockets, cores, threads) = (given("sockets"), given("cores"), given("threads"));
    let all = most.or(cpus);
    let rest = |parts: [u32; 4]| {
        let product = parts.iter().fold(1_u32, |a, n| a.saturating_mul(*n));
        all.map_or(1, |all| (all / product).max(1))
    };
    let (sockets, cores, threads) = match (sockets, cores, threads) {
        (sockets, None, threads) => {
            let (sockets, threads) = (sockets.unwrap_or(1), threads.unwrap_or(1));
            (sockets, rest([sockets, dies, modules, threads]), threads)
        }
        (None, Some(cores), threads) => {
            let threads = threads.unwrap_or(1);
            (rest([dies, modules, cores, threads]), cores, threads)
        }
        (Some(sockets), Some(cores), threads) => {
            (sockets, cores, threads.unwrap_or_else(|| rest([sockets, dies, modules, cores])))
        }
    };
    let levels = Levels { sockets, dies, modules, cores, threads };
    let product = u32::try_from(levels.product()).unwrap_or(MOST_VCPUS).min(MOST_VCPUS);
    let most = most.unwrap_or_else(|| cpus.map_or(product, |c| c.max(product)));
    (levels, cpus.unwrap_or(most).min(MOST_VCPUS), most)
}

fn object(view: &mut View, object: &Pairs) {
    let Some(id) = object.get("id").map(String::from) else { return };
    let kind = object.get("qom-type").unwrap_or_default();
    if kind == "iothread" {
        view.io_threads.push(id);
        return;
    }
    let Some(kind) = kind.strip_prefix("memory-backend-") else { return };
    let path = object.get("mem-path").map(String::from);
    let huge = object.is_on("hugetlb") || path.as_deref().is_some_and(|p| p.contains("huge"));
    let lists = object.all("host-nodes").filter_map(|l| l.parse::<NumberSet>().ok());
    view.backends.push(Backend {
        id,
        file: kind != "ram",
        bytes: object.size("size", 1).unwrap_or(0),
        huge,
        path,
        host_nodes: lists.fold(NumberSet::default(), |all, l| all.union(&l)),
        policy: object.get("policy").unwrap_or("default").to_owned(),
        prealloc: object.is_on("prealloc"),
    });
}

fn machine(view: &mut View, machine: &Pairs) {
    if let Some(id) = machine.get("memory-backend") {
        view.whole = Some(id.to_owned());
    }
    // smp-cache.N.cache=l3,smp-cache.N.topology=die
    for n in 0..8 {
        if machine.get(&format!("smp-cache.{n}.cache")) == Some("l3") {
            let level = match machine.get(&format!("smp-cache.{n}.topology")) {
                Some("socket") => Level::Socket,
                Some("module") => Level::Module,
                Some("core") => Level::Core,
                Some("thread") => Level::Thread,
                _ => Level::Die,
            };
            view.l3 = Some(level);
        }
    }
}

fn cpu(view: &mut View, cpu: &Pairs) {
    // The host's caches take the place of QEMU's own.
    if cpu.get("l3-cache") == Some("off") && !cpu.is_on("host-cache-info") {
        view.l3 = None;
    }
}

fn device(view: &mut View, device: &Pairs) {
    if device.get("driver").is_some_and(|d| d.starts_with("vfio-pci")) {
        let host = device
            .get("host")
            .map(|a| if a.matches(':').count() == 1 { format!("0000:{a}") } else { a.into() });
        view.devices.extend(host);
    }
    let plugs = |driver: &str| {
        ["pc-dimm", "nvdimm"].contains(&driver)
            || ["virtio-mem", "virtio-pmem"].iter().any(|d| driver.starts_with(d))
    };
    if device.get("driver").is_some_and(plugs) {
        view.plugged.extend(device.get("memdev").map(String::from));
    }
}

fn nodes(view: &mut View, numa: &[Pairs]) {
    let mut nodes: BTreeMap<u32, ViewNode> = BTreeMap::new();
    let mut named = NumberSet::default();
    for pairs in numa.iter().filter(|p| p.get("type") == Some("node")) {
        let number =
            pairs.number("nodeid").unwrap_or_else(|| (0..).find(|n| !nodes.contains_key(n)).unwrap_or(0));
        let node = nodes.entry(number).or_default();
        let lists = pairs.all("cpus").filter_map(|l| l.parse::<NumberSet>().ok());
        node.vcpus = lists.fold(NumberSet::default(), |all, l| all.union(&l));
        named = named.union(&node.vcpus);
        node.backend = pairs.get("memdev").map(String::from);
        node.memory = pairs.size("mem", MIB);
    }
    for pairs in numa.iter().filter(|p| p.get("type") == Some("cpu")) {
        let Some(node) = pairs.number("node-id").and_then(|n| nodes.get_mut(&n)) else { continue };
        let wanted =
            ["socket-id", "die-id", "module-id", "core-id", "thread-id"].map(|name| pairs.number(name));
        for vcpu in 0..view.most_vcpus {
            let of = view.levels.of(vcpu);
            if wanted.iter().zip(of).all(|(want, is)| want.is_none_or(|w| w == is)) {
                node.vcpus.insert(vcpu);
                named.insert(vcpu);
            }
        }
    }
    for pairs in numa.iter().filter(|p| p.get("type") == Some("dist")) {
        let number = |name| pairs.number(name);
        if let (Some(from), Some(to), Some(value)) = (number("src"), number("dst"), number("val")) {
            view.distances.insert((from, to), value);
        }
    }
    // QEMU places CPUs itself only if the command line places none.
    if named.is_empty() && !nodes.is_empty() {
        let numbers: Vec<u32> = nodes.keys().copied().collect();
        for vcpu in 0..view.most_vcpus {
            let socket = view.levels.of(vcpu)[0] as usize;
            let node = nodes.get_mut(&numbers[socket % numbers.len()]);
            node.expect("the number is one of its keys").vcpus.insert(vcpu);
        }
    }
    view.nodes = nodes;
}
