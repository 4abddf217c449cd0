// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Placements of a guest on a host with two nodes, as QEMU's arguments and a script for the host.
//!
//! The host has two CPUs in each of two nodes, the guest a vCPU for each node. The arguments are those that
//! an operator writes by hand; `memory-backend-memfd` with `host-nodes` and `prealloc` puts huge pages where
//! they belong before the guest starts. vCPU threads exist only after that, so the script waits for them
//! before it pins.

use std::collections::BTreeMap;

use bifold_guest::qemu::{BARE, MACHINE, guest_cpu};

use crate::BUSYBOX;
use crate::lab::job::at;

/// Nodes of the laboratory, and CPUs of a node.
pub const NODES: u32 = 2;
/// CPUs of a node: one for a vCPU, one for the emulator's other threads.
pub const CPUS_OF_NODE: u32 = 2;
/// vCPUs of a guest: one for each node.
pub const VCPUS: u32 = 2;
/// Memory of a guest in MiB.
pub const GUEST_MIB: u64 = 512;
/// 2 MB pages of a guest.
pub const GUEST_PAGES: u64 = GUEST_MIB / 2;

/// Where a guest's memory is.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Memory {
    /// Where the kernel puts transparent huge pages at the first access.
    Transparent,
    /// In huge pages of pools of the same size on both nodes.
    Huge,
    /// In huge pages, each guest node's on this host node. The guest sees two nodes.
    Nodes([u32; 2]),
}

/// A placement.
#[derive(Debug, Clone, Copy)]
pub struct Placement {
    /// Its name.
    pub name: &'static str,
    /// What it is, in a line.
    pub about: &'static str,
    /// Where memory is.
    pub memory: Memory,
    /// Whether vCPU 0 has a CPU of node 0, vCPU 1 one of node 1, and other threads the other CPUs.
    pub pinned: bool,
}

/// The placements of the paper, and a mistake.
pub const PLACEMENTS: [Placement; 5] = [
    Placement {
        name: "smp",
        about: "no guest nodes, no pinning, transparent huge pages",
        memory: Memory::Transparent,
        pinned: false,
    },
    Placement {
        name: "pinned",
        about: "the same, a CPU for each vCPU",
        memory: Memory::Transparent,
        pinned: true,
    },
    Placement {
        name: "hugetlbfs",
        about: "no guest nodes, no pinning, memory in huge pages reserved on both nodes",
        memory: Memory::Huge,
        pinned: false,
    },
    Placement {
        name: "numa",
        about: "guest nodes as the host's: pinned, each node's memory bound and in huge pages",
        memory: Memory::Nodes([0, 1]),
        pinned: true,
    },
    Placement {
        name: "crossed",
        about: "a mistake: the same, each guest node's memory on the other host node",
        memory: Memory::Nodes([1, 0]),
        pinned: true,
    },
];

const APPEND: &str = "console=ttyS0 quiet nokaslr panic=-1 rdinit=/init no_timer_check tsc=reliable pti=off mitigations=off \
     transparent_hugepage=madvise random.trust_cpu=on cryptomgr.notests=1";

/// A backend of guest memory in huge pages, bound to a node if there is one.
fn huge(id: &str, mib: u64, node: Option<u32>) -> String {
    let bound = node.map(|n| format!(",host-nodes={n},policy=bind")).unwrap_or_default();
    format!("memory-backend-memfd,id={id},size={mib}M,hugetlb=on,hugetlbsize=2M,prealloc=on{bound}")
}

impl Placement {
    /// The placement's own part of QEMU's command line.
    fn arguments(&self) -> Vec<String> {
        let word = String::from;
        match self.memory {
            Memory::Transparent => vec![
                word("-machine"),
                word(MACHINE),
                word("-object"),
                format!("memory-backend-ram,id=ram,size={GUEST_MIB}M"),
            ],
            Memory::Huge => {
                vec![word("-machine"), word(MACHINE), word("-object"), huge("ram", GUEST_MIB, None)]
            }
            Memory::Nodes(on) => {
                let machine = MACHINE.replace("memory-backend=ram,", "");
                let mut args = vec![word("-machine"), machine];
                for (node, host) in on.into_iter().enumerate() {
                    let id = format!("ram{node}");
                    args.extend([word("-object"), huge(&id, GUEST_MIB / 2, Some(host))]);
                    args.extend([word("-numa"), format!("node,nodeid={node},cpus={node},memdev={id}")]);
                }
                for distance in ["src=0,dst=1,val=21", "src=1,dst=0,val=21"] {
                    args.extend([word("-numa"), format!("dist,{distance}")]);
                }
                args
            }
        }
    }

    /// MiB of guest memory on each host node, where the placement reserves them.
    pub fn expected_mib(&self) -> Option<BTreeMap<u32, u64>> {
        let each = GUEST_MIB / u64::from(NODES);
        (self.memory != Memory::Transparent).then(|| (0..NODES).map(|node| (node, each)).collect())
    }

    /// The CPU of a vCPU.
    pub fn cpu_of(vcpu: u32) -> u32 {
        vcpu * CPUS_OF_NODE
    }

    /// The script that starts the guest: shell functions and one call, with the guest's process in `$vm`, and
    /// files 4 and 5 to and from its port.
    pub fn start(&self, initrd: &str, port: &str) -> String {
        let pool = match self.memory {
            Memory::Transparent => 0,
            Memory::Huge | Memory::Nodes(_) => GUEST_PAGES / u64::from(NODES),
        };
        let pin = if self.pinned {
            let vcpus: String =
                (0..VCPUS).map(|v| format!("pin $(vcpu {v}) {}\n", Placement::cpu_of(v))).collect();
            let others: Vec<String> =
                (0..NODES).map(|n| (n * CPUS_OF_NODE + CPUS_OF_NODE - 1).to_string()).collect();
            format!("for t in /proc/$vm/task/*; do pin ${{t##*/}} {}; done\n{vcpus}", others.join(","))
        } else {
            String::new()
        };
        let arguments: Vec<String> = self.arguments().iter().map(|a| format!("'{a}'")).collect();
        format!(
            "{FUNCTIONS}\n\
             echo madvise > /sys/kernel/mm/transparent_hugepage/enabled\n\
             pools {pool}\n\
             $B mkfifo /tmp/place.in /tmp/place.out\n\
             $BIFOLD_QEMU {} -accel kvm -cpu {} -smp {VCPUS},sockets={VCPUS} -m {GUEST_MIB}M \
             -name {},debug-threads=on -kernel {} -initrd {initrd} -append '{APPEND}' \
             -serial file:$OUT/console -device virtio-serial-pci -chardev pipe,id=place,path=/tmp/place \
             -device virtserialport,chardev=place,name={port} {} 2> $OUT/qemu.log &\n\
             vm=$!\n\
             exec 4<>/tmp/place.in 5<>/tmp/place.out\n\
             until_true '[ -n \"$(vcpu {})\" ]'\n\
             {pin}",
            arguments.join(" "),
            guest_cpu(&[]),
            self.name,
            at::INNER_KERNEL,
            BARE.join(" "),
            VCPUS - 1,
        )
        .replace("$B ", &format!("{BUSYBOX} "))
    }
}

/// Shell functions of the host: wait for a condition, the thread of a vCPU, pin a thread, reserve 2 MB pages
/// on each node.
const FUNCTIONS: &str = r#"
until_true() {
    n=0
    until eval "$1"; do
        n=$((n + 1))
        [ $n -lt 600 ] && [ -d /proc/$vm ] || { echo "in vain: $1" >&2; $B cat $OUT/qemu.log >&2; exit 9; }
        $B sleep 0.1
    done
}
vcpu() { $B grep -lxs "CPU $1/KVM" /proc/$vm/task/*/comm | $B cut -d / -f 5; }
pin() { $B taskset -pc $2 $1 > /dev/null || exit 8; }
pools() {
    for n in /sys/devices/system/node/node[0-9]*; do
        echo $1 > $n/hugepages/hugepages-2048kB/nr_hugepages
        read -r got < $n/hugepages/hugepages-2048kB/nr_hugepages
        [ $got = $1 ] || { echo "$n has $got of $1 huge pages" >&2; exit 7; }
    done
}
"#;
