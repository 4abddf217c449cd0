// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How each change is made, and what it costs.

use super::Change;
use std::borrow::Cow;

/// A change in words.
pub(crate) struct How {
    /// The change, in a few words.
    pub name: Cow<'static, str>,
    /// Commands to copy.
    pub commands: &'static [&'static str],
    /// What it costs beside memory that is counted.
    pub price: &'static str,
}

impl Change {
    /// The change in words, with how to make it.
    pub(crate) fn how(&self) -> How {
        match self {
            Change::Host4k => How {
                name: "4 KB host pages".into(),
                commands: &["host: echo never | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"],
                price: "none",
            },
            Change::Host2m => How {
                name: "2 MB host pages".into(),
                commands: &[
                    "host: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled   # then restart the VM",
                    "or QEMU: -object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,hugetlbsize=2M,prealloc=on -machine memory-backend=ram",
                ],
                price: "a touch of 4 KB takes 2 MB of the host; KSM and swapping split transparent pages, and cannot take those of hugetlbfs",
            },
            Change::Host1g => How {
                name: "1 GB host pages".into(),
                commands: &[
                    "host, kernel command line: hugepagesz=1G hugepages=N",
                    "QEMU: -object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,hugetlbsize=1G,prealloc=on -machine memory-backend=ram",
                ],
                price: "reserved at the host's boot; never swapped, shared or taken back",
            },
            Change::Inner4k => How {
                name: "4 KB pages of the inner hypervisor".into(),
                commands: &[
                    "in the VM that runs the guest: echo never | sudo tee /sys/kernel/mm/transparent_hugepage/enabled",
                ],
                price: "none",
            },
            Change::Inner2m => How {
                name: "2 MB pages of the inner hypervisor".into(),
                commands: &[
                    "in the VM that runs the guest: sudo sysctl vm.nr_hugepages=N",
                    "Firecracker: \"machine-config\": {\"huge_pages\": \"2M\"}; QEMU: -object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,hugetlbsize=2M -machine memory-backend=ram",
                ],
                price: "reserved memory of that VM; a balloon does not take it back, and snapshots are of whole 2 MB pages",
            },
            Change::Inner1g => How {
                name: "1 GB pages of the inner hypervisor".into(),
                commands: &[
                    "in the VM that runs the guest, kernel command line: hugepagesz=1G hugepages=N",
                    "QEMU: -object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,hugetlbsize=1G -machine memory-backend=ram",
                ],
                price: "reserved at that VM's boot; never swapped, shared or taken back",
            },
            Change::Outer4k => How {
                name: "4 KB pages of the outer host".into(),
                commands: &["outer host: echo never | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"],
                price: "none; of a rented VM, the provider decides",
            },
            Change::Outer2m => How {
                name: "2 MB pages of the outer host".into(),
                commands: &[
                    "outer host: QEMU -object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,hugetlbsize=2M,prealloc=on -machine memory-backend=ram",
                ],
                price: "of a rented VM, the provider decides: choose a VM type with memory of its own; KSM and swapping cannot take the memory",
            },
            Change::Outer1g => How {
                name: "1 GB pages of the outer host".into(),
                commands: &[
                    "outer host: QEMU -object memory-backend-memfd,id=ram,size=SIZE,hugetlb=on,hugetlbsize=1G,prealloc=on -machine memory-backend=ram",
                ],
                price: "of a rented VM, the provider decides; reserved at the outer host's boot",
            },
            Change::InnerNested => How {
                name: "nested paging of the inner hypervisor".into(),
                commands: &[
                    "in the VM that runs the guest: sudo modprobe -r kvm_intel && sudo modprobe kvm_intel ept=1    # AMD: kvm_amd npt=1",
                ],
                price: "the mode of all guests of that VM",
            },
            Change::InnerShadow => How {
                name: "shadow paging of the inner hypervisor".into(),
                commands: &[
                    "in the VM that runs the guest: sudo modprobe -r kvm_intel && sudo modprobe kvm_intel ept=0    # AMD: kvm_amd npt=0",
                ],
                price: "the mode of all guests of that VM",
            },
            Change::Pvm => How {
                name: "PVM as the inner hypervisor".into(),
                commands: &[
                    "in the VM that runs the guest: a kernel with the PVM patches, modprobe kvm-pvm (https://github.com/virt-pvm/linux)",
                ],
                price: "a patched kernel in that VM and a guest kernel built for PVM",
            },
            Change::Nested => How {
                name: "nested paging".into(),
                commands: &[
                    "host: sudo modprobe -r kvm_intel && sudo modprobe kvm_intel ept=1    # AMD: kvm_amd npt=1",
                ],
                price: "the mode of all VMs of the host, unless its KVM has a mode per VM (docs/guide/switch.md)",
            },
            Change::Shadow => How {
                name: "shadow paging".into(),
                commands: &[
                    "host: sudo modprobe -r kvm_intel && sudo modprobe kvm_intel ept=0    # AMD: kvm_amd npt=0",
                ],
                price: "the mode of all VMs of the host, unless its KVM has a mode per VM (docs/guide/switch.md)",
            },
            Change::ThpAlways => How {
                name: "THP always in the guest".into(),
                commands: &["guest: echo always | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"],
                price: "all programs of the guest; sparse memory is filled up to 2 MB, and zeroed at its first touch",
            },
            Change::ThpMadvise => How {
                name: "THP madvise in the guest".into(),
                commands: &["guest: echo madvise | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"],
                price: "none",
            },
            Change::ThpNever => How {
                name: "THP never in the guest".into(),
                commands: &["guest: echo never | sudo tee /sys/kernel/mm/transparent_hugepage/enabled"],
                price: "programs that ask for huge pages get none",
            },
            Change::MallocDefault => {
                How { name: "malloc as built".into(), commands: &["unset GLIBC_TUNABLES"], price: "none" }
            }
            Change::MallocThp => How {
                name: "malloc with THP".into(),
                commands: &["GLIBC_TUNABLES=glibc.malloc.hugetlb=1 CMD"],
                price: "needs glibc 2.35, and THP madvise or always; this program's heap alone",
            },
            Change::MallocHugetlb => How {
                name: "malloc with hugetlbfs".into(),
                commands: &[
                    "guest: sudo sysctl vm.nr_hugepages=N",
                    "GLIBC_TUNABLES=glibc.malloc.hugetlb=2 CMD",
                ],
                price: "needs glibc 2.35; the reserved memory is of no other use, and is not taken back by a balloon",
            },
            Change::KptiOff => How {
                name: "KPTI off in the guest".into(),
                commands: &["guest, kernel command line: pti=off"],
                price: "only on processors without Meltdown (/sys/devices/system/cpu/vulnerabilities/meltdown: Not affected)",
            },
            Change::BindNodes => How {
                name: "guest nodes bound to host nodes".into(),
                commands: &[
                    "bifold place plan                # pins and policies for libvirt and QEMU, for all guests of the host",
                    "QEMU, for each node: -object memory-backend-memfd,id=nodeN,size=SIZE,host-nodes=N,policy=bind -numa node,memdev=nodeN,cpus=…",
                ],
                price: "each host node needs room for its part; vCPUs have to be pinned to the same node",
            },
            Change::FirstTouch => How {
                name: "memory at first touch".into(),
                commands: &["start QEMU without a memory policy, and with pinned vCPUs"],
                price: "a page that another node's vCPU touched first stays there",
            },
            Change::Interleave => How {
                name: "interleaved memory".into(),
                commands: &["numactl --interleave=all qemu-system-x86_64 …"],
                price: "the same part of all references is remote, whoever makes them",
            },
            Change::OneNode => How {
                name: "all memory on one node".into(),
                commands: &["numactl --cpunodebind=0 --membind=0 qemu-system-x86_64 …"],
                price: "one node needs room for the whole guest",
            },
            Change::Own(value) => How {
                name: value.clone().into(),
                commands: &["the value of --axis"],
                price: "not known here",
            },
            Change::KptiOn => How {
                name: "KPTI on in the guest".into(),
                commands: &["guest, kernel command line: pti=on"],
                price: "none",
            },
        }
    }
}
