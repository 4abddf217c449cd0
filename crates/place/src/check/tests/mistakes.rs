// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Mistakes, each with the names of its findings: with a plan, and without.

use super::*;

/// Makes a mistake and compares the findings' names.
pub fn found(planned: &[&str], alone: &[&str], mistake: impl Fn(&mut Scene)) {
    let mut scene = Scene::new();
    mistake(&mut scene);
    assert_eq!(scene.names(true), planned, "with the plan: {:?}", scene.findings(true));
    assert_eq!(scene.names(false), alone, "without: {:?}", scene.findings(false));
    let told = scene.findings(true).into_iter().chain(scene.findings(false));
    told.for_each(|f| assert!(!f.evidence.is_empty() && !f.mend.is_empty(), "{f:?}"));
}

/// A mistake with the same findings either way.
pub fn always(names: &[&str], mistake: impl Fn(&mut Scene)) {
    found(names, names, mistake);
}

#[test]
fn crossed_nodes() {
    let names = ["crossed-nodes", "crossed-nodes", "memory-on-wrong-node", "memory-on-wrong-node"];
    always(&names, |s| s.guest().blocks = vec![block(0, 1), block(1, 0)]);
    // Bound the wrong way round: without a plan, the binding is what was wanted.
    found(&names, &["crossed-nodes", "crossed-nodes", "distances-wrong"][..2], |s| {
        let crossed = OPTIONS.replace("host-nodes=0", "host-nodes=x").replace("host-nodes=1", "host-nodes=0");
        s.guest().view = view(&crossed.replace("host-nodes=x", "host-nodes=1"));
        s.guest().blocks = vec![block(0, 1), block(1, 0)];
    });
}

#[test]
fn vcpus_that_are_not_pinned() {
    always(&["vcpu-unpinned"], |s| s.vcpu(1, "2-7"));
    always(&["vcpu-floats-over-nodes"], |s| s.vcpu(1, "2,4,12"));
    found(&["vcpu-on-wrong-cpu"], &[], |s| s.vcpu(1, "6"));
    found(&["vcpu-unpinned"], &["vcpu-floats-on-isolated-cpus"], |s| {
        s.topology.isolated = set("4-7");
        s.vcpu(1, "4-5");
    });
}

#[test]
fn a_cpu_for_two() {
    found(&["vcpu-on-wrong-cpu", "two-vcpus-on-one-cpu"], &["two-vcpus-on-one-cpu"], |s| s.vcpu(1, "2"));
    always(&["cpu-shared-with-guest", "cpu-shared-with-guest"], |s| {
        let mut other = guest();
        (other.pid, other.name) = (200, "db".into());
        other.threads.truncate(2);
        other.threads.push(thread(210, "CPU 0/KVM", Role::Vcpu(0), "4"));
        other.threads.iter_mut().for_each(|t| t.id += 100);
        other.view = view("-smp 1 -m 128M");
        other.blocks.clear();
        s.seen.guests.push(other);
    });
}

#[test]
fn other_threads_on_a_vcpus_cpu() {
    always(&["emulator-on-vcpu-cpu"], |s| s.guest().threads[0].cpus = set("0-2"));
    found(&["emulator-off-plan"], &[], |s| s.guest().threads[0].cpus = set("0,6"));
    always(&["io-thread-on-vcpu-cpu"], |s| s.guest().threads[1].cpus = set("2"));
    found(&["io-thread-off-plan"], &[], |s| s.guest().threads[1].cpus = set("0"));
}

#[test]
fn a_pool_that_is_short() {
    always(&["pool-short"], |s| s.guest().blocks[1].memory.resident -= 8 * MIB);
    // The guest does not run at all.
    let mut scene = Scene::new();
    scene.seen.guests.clear();
    scene.topology.nodes.get_mut(&0).unwrap().huge.get_mut(&2048).unwrap().free = 60;
    let findings = check_absent(&scene.topology, &scene.plan, &scene.seen);
    let names: Vec<&str> = findings.iter().map(|f| f.kind.name()).collect();
    assert_eq!(names, ["vm-not-running", "pool-short"]);
    assert_eq!(
        findings[1].evidence,
        "node 0 has 60 free pages of 2048 KiB, the plan needs 64, node 1 has 0 free pages of 2048 KiB, the plan needs 64"
    );
    assert!(
        findings[1].mend.starts_with("echo 68 > /sys/devices/system/node/node0/hugepages/"),
        "{:?}",
        findings[1]
    );
}

#[test]
fn memory_elsewhere() {
    always(&["memory-on-wrong-node"], |s| s.guest().blocks[0].pages = on(&[(0, 60), (1, 4)]));
    found(&["memory-on-wrong-node"], &[], |s| {
        s.with("host-nodes=0,policy=bind,", "");
        s.guest().blocks[0].pages = on(&[(0, 63), (1, 1)]);
    });
    always(&["memory-interleaved"], |s| {
        s.guest().blocks[0].pages = on(&[(0, 32), (1, 32)]);
        s.guest().blocks[0].memory.policies = vec!["interleave:0-1".into()];
    });
    always(&["node-overcommitted"], |s| s.topology.nodes.get_mut(&1).unwrap().memory = 100 * MIB);
}

#[test]
fn small_pages() {
    always(&["memory-not-huge"], |s| s.guest().blocks[0].memory.huge = 0);
    found(&["memory-not-huge"], &[], |s| s.plan.guests[0].page_kib = 1 << 20);
    found(&["memory-not-huge"], &[], |s| {
        s.guest().view = view(&OPTIONS.replace("hugetlb=on,", ""));
        s.guest().blocks.iter_mut().for_each(|b| (b.memory.page, b.memory.huge) = (4096, 0));
    });
}

#[test]
fn a_cpuset_that_lacks_something() {
    let cpuset =
        |cpus, mems| Some(Cpuset { folder: "/sys/fs/cgroup/a b".into(), cpus: set(cpus), mems: set(mems) });
    always(&["cpuset-without-node"], |s| s.guest().cpuset = cpuset("0-15", "0"));
    always(&["cpuset-without-node"], |s| s.guest().threads[0].mems = set("1"));
    found(&["cpuset-without-cpu"], &[], |s| s.guest().cpuset = cpuset("0-10", "0-1"));
    let mut scene = Scene::new();
    scene.guest().cpuset = cpuset("0-15", "0");
    assert_eq!(scene.findings(true)[0].mend, "echo 0-1 > '/sys/fs/cgroup/a b/cpuset.mems'");
}

#[test]
fn a_vcpu_whose_own_cgroup_lacks_its_cpu() {
    let mut scene = Scene::new();
    scene.within_libvirts_cgroups();
    scene.guest().thread_cpusets.get_mut(&112).unwrap().cpus = set("11");
    assert_eq!(scene.names(true), ["cpuset-without-cpu"]);
    let finding = &scene.findings(true)[0];
    assert_eq!(finding.evidence, "/sys/fs/cgroup/libvirt/vcpu2 has CPU 11, the plan uses 10");
    assert_eq!(finding.mend, "echo 10-11 > /sys/fs/cgroup/libvirt/vcpu2/cpuset.cpus");
    assert_eq!(scene.names(false), [] as [&str; 0]);
}

#[test]
fn free_cpus_are_those_of_the_threads_own_cgroup() {
    let mut scene = Scene::new();
    scene.vcpu(1, "2");
    scene.within_libvirts_cgroups();
    scene.guest().threads[0].cpus = set("2");
    scene.guest().threads[1].cpus = set("2");
    let mends: Vec<(&str, String)> =
        scene.findings(false).into_iter().map(|f| (f.kind.name(), f.mend)).collect();
    assert!(mends[0].1.starts_with("pin one of them elsewhere: virsh vcpupin"), "{mends:?}");
    assert_eq!(mends[1], ("emulator-on-vcpu-cpu", "taskset -pc 0-1 100".into()));
    assert_eq!(mends[2], ("io-thread-on-vcpu-cpu", "taskset -pc 1 101".into()));
}

#[test]
fn pins_before_the_vcpus_existed() {
    let inherited = |s: &mut Scene| (0..4).for_each(|vcpu| s.vcpu(vcpu, "0-1"));
    let mut scene = Scene::new();
    inherited(&mut scene);
    for planned in [true, false] {
        assert!(scene.names(planned).contains(&"pinned-too-early"), "{:?}", scene.findings(planned));
        assert!(!scene.names(planned).iter().any(|n| n.starts_with("vcpu-")));
    }
    let early = &scene.findings(true)[0];
    assert_eq!(early.mend, "taskset -pc 2 110; taskset -pc 4 111; taskset -pc 10 112; taskset -pc 12 113");
}

#[test]
fn caches_and_cores_that_the_guest_sees_otherwise() {
    found(&["l3-over-two-nodes"], &["l3-over-two-nodes"], |s| {
        s.with("sockets=2,cores=2", "sockets=1,cores=4");
    });
    always(&["guest-l3-wrong"], |s| {
        s.topology.caches[0].cpus = set("0-3");
        s.topology.caches.push(Cache { level: 3, cpus: set("4-7"), ..Cache::default() });
        // The plan was made for guests whose L3s are dies.
        s.plan.guests[0].smp.dies = 2;
        s.plan.guests[0].smp.cores = 1;
    });
    found(&["vcpu-on-wrong-cpu", "smt-as-cores"], &["smt-as-cores"], |s| s.vcpu(1, "3"));
    always(&["cores-as-smt"], |s| s.with("cores=2,threads=1", "cores=1,threads=2"));
}

#[test]
fn nodes_that_the_guest_sees_otherwise() {
    let mut scene = Scene::new();
    scene.guest().view = view("-smp 4,sockets=2,cores=2 -m 128M");
    scene.guest().blocks.truncate(1);
    assert_eq!(scene.names(false), ["guest-sees-one-node"]);
    assert_eq!(scene.names(true)[..2], ["guest-not-as-planned", "guest-sees-one-node"]);
    found(
        &["vcpu-on-wrong-cpu", "vcpus-of-node-apart", "l3-over-two-nodes"],
        &["vcpus-of-node-apart", "l3-over-two-nodes"],
        |s| {
            s.vcpu(1, "14");
        },
    );
    always(&["distances-missing"], |s| s.with("-numa dist,src=0,dst=1,val=21", ""));
    always(&["distances-wrong"], |s| s.with("val=21", "val=31"));
}

#[test]
fn what_the_host_does_around_the_guest() {
    found(&["interrupts-on-vcpu-cpu"], &["interrupts-on-vcpu-cpu"], |s| {
        s.seen.host.interrupts[0].cpus = set("4");
        s.seen.host.interrupts[0].counts = BTreeMap::from([(4, 1 << 20)]);
    });
    found(&["interrupts-on-vcpu-cpu"], &[], |s| {
        s.seen.host.interrupts[0].cpus = set("4");
        s.seen.host.interrupts[0].counts = BTreeMap::from([(4, 7)]);
    });
    found(&[], &["device-far"], |s| s.topology.devices[0].node = Some(2));
    always(&["tables-remote"], |s| {
        s.topology.nodes.insert(2, Node { kvm_tables: Some(64 * MIB), ..Node::default() });
    });
    found(&["numa-balancing-on", "setting-not-as-planned"], &["numa-balancing-on"], |s| {
        s.seen.host.numa_balancing = Some(1);
        s.seen.host.settings.insert(BALANCING.into(), Some("1".into()));
    });
    always(&["ksm-merges-across-nodes"], |s| {
        s.seen.host.ksm_run = Some(1);
        s.guest().blocks[0].memory.mergeable = true;
    });
}

#[test]
fn a_plan_that_is_not_of_this_host_or_guest() {
    found(&["cpu-offline"], &[], |s| {
        // The kernel has let the thread run elsewhere, and it was pinned again.
        s.topology.cpus.insert(12, Cpu { online: false, ..Cpu::default() });
        s.plan.guests[0].vcpus[3].cpu = 12;
    });
    found(&["plan-of-another-host"], &[], |s| s.plan.guests[0].vcpus[3].cpu = 99);
    found(&["plan-of-another-host"], &[], |s| s.plan.guests[0].nodes[1].host_node = 7);
    found(&["guest-not-as-planned"], &[], |s| s.plan.guests[0].nodes[0].memory = 64 * MIB);
    found(&["setting-not-as-planned"], &[], |s| {
        s.plan.steps.push(step("/sys/kernel/mm/ksm/run", "0"));
        s.seen.host.settings.insert("/sys/kernel/mm/ksm/run".into(), Some("1".into()));
    });
}

#[test]
fn every_kind_has_a_test() {
    let tests = [include_str!("mistakes.rs"), include_str!("schedule.rs"), include_str!("mod.rs")].concat();
    let missing: Vec<&str> =
        Kind::ALL.iter().map(|k| k.name()).filter(|n| !tests.contains(&format!("\"{n}\""))).collect();
    assert_eq!(missing, [] as [&str; 0]);
}

#[test]
fn reports_show_names_with_markup_escaped() {
    let mut scene = Scene::new();
    scene.guest().name = "\u{1b}[31m<b>".into();
    scene.plan.guests[0].name = "\u{1b}[31m<b>".into();
    scene.guest().threads[0].name = "a\u{7}".into();
    scene.guest().threads[0].cpus = set("2");
    let findings = scene.findings(true);
    let text = report(&scene.seen, &[PID], &findings);
    assert_eq!(
        text,
        "error emulator-on-vcpu-cpu: \\u{1b}[31m<b> (100)\n    100 (a\\u{7}) may run on CPU 2; vCPUs have CPU 2,4,10,12\n    \
         mend: taskset -pc 0-1 100\n"
    );
    let sound = report(&scene.seen, &[PID], &[]);
    assert_eq!(sound, "sound: \\u{1b}[31m<b> (100): 4 vCPUs, 128 pages looked at\n");
    let json = serde_json::to_value(document(&scene.seen, &[PID], &findings)).unwrap();
    assert_eq!(
        (&json["schema"], &json["findings"][0]["name"]),
        (&SCHEMA.into(), &"emulator-on-vcpu-cpu".into())
    );
    assert_eq!(json["guests"][0]["memory"][0]["pages_by_node"]["0"], 64);
}
