// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests in which nothing is wrong.

use super::*;

/// No findings, with the plan and without.
fn is_sound(scene: &Scene) {
    for planned in [true, false] {
        assert_eq!(scene.findings(planned), [], "planned: {planned}");
    }
}

/// No findings without a plan.
fn is_sound_alone(scene: &Scene) {
    assert_eq!(scene.findings(false), []);
}

#[test]
fn a_guest_as_planned() {
    is_sound(&Scene::new());
}

#[test]
fn a_host_of_one_node_whose_guest_floats() {
    let mut scene = Scene::new();
    scene.topology.nodes.remove(&1);
    scene.topology.cpus.retain(|n, _| *n < 8);
    scene.topology.caches.truncate(1);
    scene.seen.host.numa_balancing = Some(1);
    scene.seen.host.ksm_run = Some(1);
    let guest = scene.guest();
    guest.threads.iter_mut().for_each(|t| t.cpus = set("0-7"));
    guest.view = view("-smp 4 -m 256M");
    guest.blocks.truncate(1);
    guest.blocks[0].memory.policies = vec!["default".into()];
    guest.blocks[0].memory.mergeable = true;
    is_sound_alone(&scene);
}

#[test]
fn a_guest_within_one_node() {
    let mut scene = Scene::new();
    for (vcpu, cpu) in [(0, "8"), (1, "10"), (2, "12"), (3, "14")] {
        scene.vcpu(vcpu, cpu);
    }
    let guest = scene.guest();
    guest.view = view(
        "-smp 4,cores=4 -m 128M -object memory-backend-ram,id=r,size=128M,host-nodes=1,policy=bind -machine memory-backend=r",
    );
    guest.blocks = vec![block(0, 1)];
    scene.topology.nodes.values_mut().for_each(|n| n.kvm_tables = Some(2 * MIB));
    is_sound_alone(&scene);
}

#[test]
fn sibling_threads_that_the_guest_knows_of() {
    let mut scene = Scene::new();
    scene.with("cores=2,threads=1", "cores=1,threads=2");
    for (vcpu, cpu) in [(1, "3"), (3, "11"), (2, "10")] {
        scene.vcpu(vcpu, cpu);
    }
    is_sound_alone(&scene);
}

#[test]
fn small_pages_by_plan() {
    let mut scene = Scene::new();
    scene.plan.guests[0].page_kib = 4;
    scene.with("hugetlb=on,", "");
    for block in &mut scene.guest().blocks {
        (block.memory.page, block.memory.huge) = (4096, 0);
    }
    scene.guest().view = view(&OPTIONS.replace("hugetlb=on,", ""));
    is_sound(&scene);
}

#[test]
fn another_vmm_that_floats_within_a_node() {
    let mut scene = Scene::new();
    let guest = scene.guest();
    guest.view = None;
    guest.threads.iter_mut().for_each(|t| t.cpus = set("8-15"));
    guest.blocks = vec![block(0, 1)];
    scene.topology.nodes.values_mut().for_each(|n| n.kvm_tables = Some(2 * MIB));
    is_sound_alone(&scene);
}

#[test]
fn vcpus_that_share_a_cpu_because_the_plan_says_so() {
    let mut scene = Scene::new();
    scene.vcpu(1, "2");
    scene.plan.guests[0].vcpus[1].cpu = 2;
    assert_eq!(scene.findings(true), []);
}

#[test]
fn an_smp_guest_over_nodes_because_the_plan_says_so() {
    let mut scene = Scene::new();
    let planned = &mut scene.plan.guests[0];
    planned.nodes.truncate(1);
    planned.nodes[0].distances = vec![10];
    planned.vcpus.iter_mut().for_each(|v| v.node = 0);
    planned.smp = Smp { sockets: 1, dies: 1, cores: 4, threads: 1 };
    let guest = scene.guest();
    guest.view = view(
        "-smp 4,cores=4 -m 128M -object iothread,id=disk -object memory-backend-memfd,id=m0,size=128M,hugetlb=on,host-nodes=0,policy=bind -machine memory-backend=m0",
    );
    guest.blocks.truncate(1);
    assert_eq!(scene.findings(true), []);
}

#[test]
fn a_guest_of_libvirt_whose_threads_have_cgroups_of_their_own() {
    let mut scene = Scene::new();
    scene.within_libvirts_cgroups();
    is_sound(&scene);
    // Its interrupt may leave for any free CPU.
    scene.seen.host.interrupts[0].cpus = set("2");
    scene.seen.host.interrupts[0].counts = BTreeMap::from([(2, 1 << 20)]);
    let mends: Vec<String> = scene.findings(false).into_iter().map(|f| f.mend).collect();
    assert_eq!(mends, ["echo 0-1,3,5-9,11,13-15 > /proc/irq/24/smp_affinity_list"]);
}

#[test]
fn a_host_whose_plan_leaves_balancing_and_interrupts() {
    let mut scene = Scene::new();
    scene.plan.steps.clear();
    scene.seen.host.numa_balancing = Some(1);
    scene.seen.host.interrupts[0].cpus = set("4");
    scene.seen.host.interrupts[0].counts = BTreeMap::from([(4, 1 << 20)]);
    assert_eq!(scene.findings(true), []);
    assert_eq!(scene.names(false), ["interrupts-on-vcpu-cpu", "numa-balancing-on"]);
}

#[test]
fn a_larger_pool_than_planned() {
    let mut scene = Scene::new();
    let path = "/sys/devices/system/node/node0/hugepages/hugepages-2048kB/nr_hugepages";
    scene.plan.steps.push(step(path, "64"));
    for (pages, names) in [("64", vec![]), ("512", vec![]), ("63", vec!["setting-not-as-planned"])] {
        scene.seen.host.settings.insert(path.into(), Some(pages.into()));
        assert_eq!(scene.names(true), names, "{pages}");
    }
}

#[test]
fn a_node_without_memory_and_a_node_without_cpus() {
    let mut scene = Scene::new();
    let guest = scene.guest();
    guest.view = None;
    guest.threads.iter_mut().for_each(|t| t.cpus = set("8-15"));
    guest.blocks = vec![block(0, 0)];
    assert_eq!(scene.names(false), ["crossed-nodes", "tables-remote"]);
    // The vCPUs' node has no memory, so node 0's is the nearest.
    scene.topology.nodes.get_mut(&1).unwrap().memory = 0;
    scene.topology.nodes.insert(0, Node { kvm_tables: Some(64 * MIB), ..scene.topology.nodes[&0].clone() });
    is_sound_alone(&scene);
    let far = Node { memory: 4096 * MIB, kvm_tables: Some(0), ..Node::default() };
    scene.topology.nodes.insert(2, far);
    scene.topology.nodes.get_mut(&1).unwrap().distances.insert(2, 40);
    is_sound_alone(&scene);
    // A device may be on a node of memory alone.
    let mut scene = Scene::new();
    scene.topology.nodes.insert(2, Node { kvm_tables: Some(0), ..Node::default() });
    scene.topology.devices[0].node = Some(2);
    is_sound_alone(&scene);
}

#[test]
fn guests_that_nobody_pinned_beside_isolated_and_missing_cpus() {
    let mut scene = Scene::new();
    scene.topology.cpus.retain(|n, _| *n < 4 || *n >= 8);
    scene.topology.isolated = set("10-15");
    let guest = scene.guest();
    guest.view = view("-smp 16,sockets=1,cores=16 -m 128M");
    guest.blocks.truncate(1);
    // All but the isolated CPUs, and CPUs that are possible but not there.
    for cpus in ["0-3,8-9", "0-9", "0-63"] {
        scene.guest().threads = threads(&[cpus; 16]);
        scene.guest().threads[0].cpus = set(cpus);
        assert!(!scene.names(false).contains(&"pinned-too-early"), "{cpus}: {:?}", scene.findings(false));
    }
    scene.guest().threads = threads(&["0-3"; 16]);
    scene.guest().threads[0].cpus = set("0-3");
    assert!(scene.names(false).contains(&"pinned-too-early"));
}

#[test]
fn a_vcpu_with_the_largest_number() {
    let mut scene = Scene::new();
    let last = thread(PID + 50, "vcpu4294967295", Role::Vcpu(u32::MAX), "6");
    scene.guest().threads.push(last);
    assert!(scene.names(true).contains(&"guest-not-as-planned"));
}

#[test]
fn two_guests_beside_each_other() {
    let mut scene = Scene::new();
    let mut other = guest();
    (other.pid, other.name) = (200, "db".into());
    for (thread, cpus) in other.threads.iter_mut().zip(["0-1", "1", "6", "7", "14", "15"]) {
        thread.cpus = set(cpus);
        thread.id += 100;
    }
    other.view = view(&OPTIONS.replace("cores=2,threads=1", "cores=1,threads=2"));
    scene.seen.guests.push(other);
    is_sound(&scene);
}

#[test]
fn a_hundred_stray_pages_without_a_binding() {
    let mut scene = Scene::new();
    scene.with("host-nodes=0,policy=bind,", "");
    scene.guest().blocks[0].pages = on(&[(0, 9900), (1, 100)]);
    is_sound_alone(&scene);
}

#[test]
fn a_host_without_any_interface_but_threads() {
    let mut scene = Scene::new();
    scene.seen.host = HostFacts::default();
    scene.topology.nodes.values_mut().for_each(|n| (n.kvm_tables, n.huge) = (None, BTreeMap::new()));
    scene.guest().blocks.clear();
    is_sound(&scene);
}
