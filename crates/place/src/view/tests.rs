// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Command lines as people, libvirt and `bifold place plan` write them.

use super::*;
use proptest::prelude::*;

fn view(line: &str) -> View {
    View::parse(&CommandLine::parse(line.replace(' ', "\0").as_bytes())).unwrap()
}

fn set(list: &str) -> NumberSet {
    list.parse().unwrap()
}

#[test]
fn nodes_backends_and_distances_are_read() {
    let view = view(
        "/usr/bin/qemu-system-x86_64 -smp 4,sockets=2,cores=2,threads=1 -m 256M \
         -object memory-backend-memfd,id=m0,size=128M,hugetlb=on,host-nodes=0,policy=bind,prealloc=on \
         -object {\"qom-type\":\"memory-backend-ram\",\"id\":\"m1\",\"size\":134217728,\"host-nodes\":[1],\"policy\":\"bind\"} \
         -numa node,nodeid=0,cpus=0-1,memdev=m0 -numa node,nodeid=1,cpus=2,cpus=3,memdev=m1 \
         -numa dist,src=0,dst=1,val=21 -object iothread,id=io0 -device vfio-pci,host=3b:00.0 \
         -machine q35,smp-cache.0.cache=l3,smp-cache.0.topology=socket",
    );
    assert_eq!((view.vcpus, view.levels.sockets, view.memory), (4, 2, 256 << 20));
    assert_eq!(view.nodes[&0].vcpus, set("0-1"));
    assert_eq!(view.nodes[&1].vcpus, set("2-3"));
    assert_eq!((view.node_of(3), view.node_bytes(1)), (1, Some(128 << 20)));
    assert_eq!((view.distance(0, 1), view.distance(1, 0), view.distance(1, 1)), (21, 21, 10));
    let [m0, m1] = &view.backends[..] else { panic!("{view:?}") };
    assert!(m0.file && m0.huge && m0.prealloc && !m1.file && !m1.huge);
    assert_eq!((m0.host_nodes.clone(), &m1.policy[..]), (set("0"), "bind"));
    assert_eq!((view.io_threads, view.devices), (vec!["io0".into()], vec!["0000:3b:00.0".into()]));
    assert_eq!(view.l3, Some(Level::Socket));
}

#[test]
fn an_l3_is_qemus_or_the_hosts_or_none() {
    for (cpu, l3) in [
        ("host", Some(Level::Die)),
        ("host,l3-cache=off", None),
        ("host,l3-cache=off,host-cache-info=off", None),
        ("host,host-cache-info=on,l3-cache=off", Some(Level::Die)),
    ] {
        assert_eq!(view(&format!("qemu-system-x86_64 -cpu {cpu}")).l3, l3, "{cpu}");
    }
}

#[test]
fn missing_levels_are_qemus() {
    for (smp, sockets, cores, threads, vcpus) in [
        ("8", 1, 8, 1, 8),
        ("8,sockets=2", 2, 4, 1, 8),
        ("8,cores=2", 4, 2, 1, 8),
        ("8,threads=2", 1, 4, 2, 8),
        ("8,sockets=2,cores=2", 2, 2, 2, 8),
        ("sockets=2,cores=3,threads=2", 2, 3, 2, 12),
        ("2,maxcpus=8", 1, 8, 1, 2),
        ("x,sockets=0", 1, 1, 1, 1),
    ] {
        let view = view(&format!("qemu-system-x86_64 -smp {smp}"));
        let levels = view.levels;
        assert_eq!(
            (levels.sockets, levels.cores, levels.threads, view.vcpus),
            (sockets, cores, threads, vcpus),
            "{smp}"
        );
    }
}

#[test]
fn cpus_without_a_node_go_by_socket_and_numa_cpu_names_levels() {
    let by_socket = view("qemu-system-x86_64 -smp 4,sockets=2,cores=2 -numa node,mem=64 -numa node,mem=64");
    assert_eq!((by_socket.node_of(1), by_socket.node_of(2)), (0, 1));
    assert_eq!(by_socket.node_bytes(1), Some(64 << 20));
    let by_level = view(
        "qemu-system-x86_64 -smp 4,sockets=1,cores=2,threads=2 -numa node,nodeid=3 -numa node,nodeid=5 \
         -numa cpu,node-id=3,socket-id=0,core-id=1 -numa cpu,node-id=5,core-id=0",
    );
    assert_eq!(
        (by_level.nodes[&3].vcpus.clone(), by_level.nodes[&5].vcpus.clone()),
        (set("2-3"), set("0-1"))
    );
}

#[test]
fn what_is_not_qemu_has_no_view() {
    assert_eq!(View::parse(&CommandLine::parse(b"/usr/bin/firecracker\0--id\0x\0")), None);
    assert_eq!(View::parse(&CommandLine::parse(b"")), None);
    let bare = view("kvm -mem-path /dev/hugepages -m 1G");
    assert_eq!((bare.whole.as_deref(), bare.backends[0].huge), (Some("pc.ram"), true));
}

proptest! {
    #[test]
    fn a_vcpu_has_one_place(sockets in 1_u32..4, dies in 1_u32..3, cores in 1_u32..5, threads in 1_u32..3) {
        let smp = format!("sockets={sockets},dies={dies},cores={cores},threads={threads}");
        let view = view(&format!("qemu-system-x86_64 -smp {smp}"));
        let mut expected = 0..;
        for socket in 0..sockets {
            for die in 0..dies {
                for core in 0..cores {
                    for thread in 0..threads {
                        let vcpu = expected.next().unwrap();
                        prop_assert_eq!(view.levels.of(vcpu), [socket, die, 0, core, thread]);
                    }
                }
            }
        }
        prop_assert_eq!(view.vcpus, expected.next().unwrap());
    }

    #[test]
    fn any_command_line_is_some_view(
        words in prop::collection::vec("-?(smp|numa|object|m|machine|cpu|device|qmp)|[a-z0-9=,{}\":-]{0,40}", 0..12)
    ) {
        View::parse(&CommandLine::parse(format!("qemu-system-x86_64\0{}", words.join("\0")).as_bytes()));
    }
}
