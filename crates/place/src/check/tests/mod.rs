// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes made up in facts: each is found under its name, and none is found in sound guests.

mod live;
mod mistakes;
mod schedule;
mod sound;
mod unseen;

use super::*;
use crate::plan::{Caches, Cost, GuestNode, GuestPlan, SCHEMA as PLAN_SCHEMA, Smp, Step, VcpuPlan};
use crate::view::View;
use bifold_host::CommandLine;
use bifold_host::placement::{Cpuset, Interrupt, Memory, Role, Thread};
use bifold_host::topology::{Cache, Cpu, Device, HugePool, Node, NumberSet};
use std::collections::BTreeMap;

const MIB: u64 = 1 << 20;
/// The guest's process.
const PID: u32 = 100;
const IRQ: &str = "/proc/irq/24/smp_affinity_list";
const BALANCING: &str = "/proc/sys/kernel/numa_balancing";

fn set(list: &str) -> NumberSet {
    list.parse().unwrap()
}

/// Two nodes of eight CPUs, which are four cores of two threads with one L3. 21 apart.
fn topology() -> Topology {
    let cpu = |n: u32| Cpu {
        online: true,
        package: Some(n as i32 / 8),
        die: Some(0),
        core: Some(n as i32 / 2),
        threads: set(&format!("{}-{}", n & !1, n | 1)),
        node: Some(n / 8),
    };
    let node = |n: u32| Node {
        cpus: set(&format!("{}-{}", n * 8, n * 8 + 7)),
        memory: 4096 * MIB,
        free: 2048 * MIB,
        kvm_tables: Some(if n == 0 { 3 * MIB } else { 2 * MIB }),
        distances: BTreeMap::from([(0, if n == 0 { 10 } else { 21 }), (1, if n == 0 { 21 } else { 10 })]),
        huge: BTreeMap::from([(2048, HugePool { total: 64, free: 0, surplus: 0 })]),
        ..Node::default()
    };
    let cache = |n: u32| Cache {
        level: 3,
        bytes: 16 * MIB,
        cpus: set(&format!("{}-{}", n * 8, n * 8 + 7)),
        ..Cache::default()
    };
    Topology {
        cpus: (0..16).map(|n| (n, cpu(n))).collect(),
        nodes: (0..2).map(|n| (n, node(n))).collect(),
        caches: (0..2).map(cache).collect(),
        devices: vec![Device { address: "0000:3b:00.0".into(), node: Some(0), ..Device::default() }],
        ..Topology::default()
    }
}

fn thread(id: u32, name: &str, role: Role, cpus: &str) -> Thread {
    Thread {
        id,
        name: name.into(),
        role,
        cpus: set(cpus),
        mems: set("0-1"),
        last_cpu: None,
        scheduling: None,
    }
}

fn threads(pins: &[&str]) -> Vec<Thread> {
    let vcpu = |(n, cpus): (u32, &&str)| thread(PID + 10 + n, &format!("CPU {n}/KVM"), Role::Vcpu(n), cpus);
    let mut threads = vec![
        thread(PID, "qemu-system-x86", Role::Emulator, "0-1"),
        thread(PID + 1, "IO disk", Role::Io("disk".into()), "1"),
    ];
    threads.extend((0..).zip(pins).map(vcpu));
    threads
}

const OPTIONS: &str = "-smp 4,sockets=2,cores=2,threads=1 -m 256M -object iothread,id=disk \
    -object memory-backend-memfd,id=m0,size=128M,hugetlb=on,host-nodes=0,policy=bind,prealloc=on \
    -object memory-backend-memfd,id=m1,size=128M,hugetlb=on,host-nodes=1,policy=bind,prealloc=on \
    -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2-3,memdev=m1 \
    -numa dist,src=0,dst=1,val=21 -device vfio-pci,host=0000:3b:00.0";

fn view(options: &str) -> Option<View> {
    View::parse(&CommandLine::parse(format!("qemu-system-x86_64 {options}").replace(' ', "\0").as_bytes()))
}

/// Memory of 128 MB in 2 MB pages on a host node.
fn block(node: u32, host_node: u32) -> Block {
    let memory = Memory {
        start: 1 << (30 + node),
        bytes: 128 * MIB,
        page: 2 * MIB,
        resident: 128 * MIB,
        huge: 128 * MIB,
        policies: vec![format!("bind:{host_node}")],
        ..Memory::default()
    };
    Block { node: Some(node), memory, pages: on(&[(host_node, 64)]) }
}

fn on(nodes: &[(u32, u64)]) -> Pages {
    let all = nodes.iter().map(|n| n.1).sum();
    Pages { looked: all, all, nodes: nodes.iter().copied().collect() }
}

fn guest() -> GuestFacts {
    GuestFacts {
        pid: PID,
        name: "web".into(),
        kvm: true,
        threads: threads(&["2", "4", "10", "12"]),
        cpuset: None,
        thread_cpusets: BTreeMap::new(),
        cpu_groups: Vec::new(),
        view: view(OPTIONS),
        blocks: vec![block(0, 0), block(1, 1)],
        unknown: Vec::new(),
    }
}

fn seen(guest: GuestFacts) -> PlacementFacts {
    let irq = Interrupt {
        number: 24,
        handlers: "eth0-rx-0".into(),
        cpus: set("0"),
        counts: BTreeMap::from([(0, 1 << 20)]),
    };
    let settings = [(IRQ, "0"), (BALANCING, "0")].map(|(p, v)| (p.to_string(), Some(v.to_string())));
    let host = HostFacts {
        numa_balancing: Some(0),
        ksm_run: Some(0),
        ksm_across: Some(1),
        interrupts: vec![irq],
        foreign: Vec::new(),
        uptime_s: Some(1000.0),
        settings: settings.into_iter().collect(),
    };
    PlacementFacts { host, guests: vec![guest] }
}

fn step(path: &str, value: &str) -> Step {
    Step { path: path.into(), value: value.into(), needed: true, why: "because".into() }
}

fn plan() -> Plan {
    let vcpu = |(vcpu, cpu): (u32, u32)| VcpuPlan { vcpu, cpu, node: vcpu / 2 };
    let node = |node: u32| GuestNode {
        node,
        host_node: node,
        memory: 128 * MIB,
        distances: if node == 0 { vec![10, 21] } else { vec![21, 10] },
        latency_ns: None,
        bandwidth_mb: None,
    };
    let guest = GuestPlan {
        name: "web".into(),
        vcpus: (0..).zip([2, 4, 10, 12]).map(vcpu).collect(),
        nodes: (0..2).map(node).collect(),
        page_kib: 2048,
        smp: Smp { sockets: 2, dies: 1, cores: 2, threads: 1 },
        emulator: set("0-1"),
        io_threads: vec![set("1")],
        bound: true,
        caches: Caches::Emulated,
        topoext: false,
        ksm: false,
        reasons: Vec::new(),
    };
    Plan {
        schema: PLAN_SCHEMA.into(),
        guests: vec![guest],
        steps: vec![step(IRQ, "0-1"), step(IRQ, "0"), step(BALANCING, "0")],
        notes: Vec::new(),
        cost: Cost::default(),
        proven: true,
    }
}

/// A host, a plan and what is seen: sound.
struct Scene {
    topology: Topology,
    plan: Plan,
    seen: PlacementFacts,
}

impl Scene {
    fn new() -> Scene {
        Scene { topology: topology(), plan: plan(), seen: seen(guest()) }
    }

    fn guest(&mut self) -> &mut GuestFacts {
        &mut self.seen.guests[0]
    }

    fn vcpu(&mut self, vcpu: u32, cpus: &str) {
        let thread = self.guest().threads.iter_mut().find(|t| t.role == Role::Vcpu(vcpu));
        thread.unwrap().cpus = set(cpus);
    }

    /// Gives the threads the cgroups that libvirt makes: the emulator's, each I/O thread's and each vCPU's.
    fn within_libvirts_cgroups(&mut self) {
        let cpuset = |name: &str, cpus: &NumberSet| Cpuset {
            folder: format!("/sys/fs/cgroup/libvirt/{name}").into(),
            cpus: cpus.clone(),
            mems: set("0-1"),
        };
        let guest = self.guest();
        guest.cpuset = Some(cpuset("emulator", &set("0-1")));
        for thread in &guest.threads {
            let name = match &thread.role {
                Role::Vcpu(n) => format!("vcpu{n}"),
                Role::Io(_) => "iothread1".to_string(),
                Role::Recovery | Role::Emulator => continue,
            };
            guest.thread_cpusets.insert(thread.id, cpuset(&name, &thread.cpus));
        }
    }

    /// Starts the guest with other options.
    fn with(&mut self, from: &str, to: &str) {
        assert!(OPTIONS.contains(from));
        self.guest().view = view(&OPTIONS.replace(from, to));
    }

    fn findings(&self, planned: bool) -> Vec<Finding> {
        let pids: Vec<u32> = self.seen.guests.iter().map(|g| g.pid).collect();
        check(&self.topology, planned.then_some(&self.plan), &self.seen, &pids)
    }

    fn names(&self, planned: bool) -> Vec<&'static str> {
        self.findings(planned).iter().map(|f| f.kind.name()).collect()
    }
}
