// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests that start from their plans: sound ones, of which `place check` says nothing, and planted mistakes,
//! which it names. The host has CPUs 0 and 1 on node 0, CPUs 2 and 3 on node 1, distances of 21, and 2 MB
//! pages.

/// A file of wishes.
#[derive(Debug, Clone, Copy)]
pub struct Wishes {
    /// Its name.
    pub name: &'static str,
    /// Its keys of the guest, besides the name.
    pub guest: &'static str,
    /// Its table of the host.
    pub host: &'static str,
}

const fn wishes(name: &'static str, guest: &'static str) -> Wishes {
    Wishes { name, guest, host: "reserve_cpus = \"1,3\"" }
}

/// The wishes of most cases: a vCPU and 64 huge pages on each node.
pub const TWO_NODES: Wishes =
    wishes("two-nodes", "vcpus = 2\nmemory = \"256M\"\npage_size = \"2M\"\nnodes = 2");
const SMALL_PAGES: Wishes =
    wishes("small-pages", "vcpus = 2\nmemory = \"128M\"\npage_size = \"4K\"\nnodes = 2\nksm = true");

const NO_POLLING: Wishes = Wishes {
    name: "no-polling",
    guest: "vcpus = 2\nmemory = \"128M\"\npage_size = \"2M\"\nnodes = 2",
    host: "reserve_cpus = \"1,3\"\nhalt_poll_ns = 0",
};

/// Guests that are sound.
pub const SOUND: [Wishes; 11] = [
    TWO_NODES,
    NO_POLLING,
    SMALL_PAGES,
    wishes("one-vcpu", "vcpus = 1\nmemory = \"64M\"\npage_size = \"2M\""),
    wishes("one-vcpu-small-pages", "vcpus = 1\nmemory = \"64M\"\npage_size = \"4K\""),
    wishes("automatic", "vcpus = 2\nmemory = \"100M\""),
    wishes("as-the-host", "vcpus = 2\nmemory = \"192M\"\nnodes = \"host\""),
    wishes("on-node-1", "vcpus = 1\nmemory = \"128M\"\npage_size = \"2M\"\nhost_nodes = \"1\""),
    wishes("with-io-threads", "vcpus = 2\nmemory = \"128M\"\npage_size = \"2M\"\nnodes = 2\nio_threads = 2"),
    Wishes {
        name: "two-on-a-node",
        guest: "vcpus = 2\nmemory = \"128M\"\npage_size = \"2M\"\nnodes = 1",
        host: "reserve_cpus = \"0\"",
    },
    Wishes {
        name: "nothing-reserved",
        guest: "vcpus = 2\nmemory = \"96M\"\npage_size = \"2M\"\nnodes = 2",
        host: "",
    },
];

/// A mistake.
#[derive(Debug, Clone, Copy)]
pub struct Mistake {
    /// The finding that names it.
    pub finding: &'static str,
    /// The guest.
    pub wishes: Wishes,
    /// How the guest is started: a script for sed that changes the plan's command line.
    pub edit: &'static str,
    /// Whether the guest's threads are pinned behind the start.
    pub pinned: bool,
    /// What is done then, in the script's shell (see `script.rs`).
    pub then: &'static str,
    /// What takes that back.
    pub back: &'static str,
}

const fn started(finding: &'static str, edit: &'static str) -> Mistake {
    Mistake { finding, wishes: TWO_NODES, edit, pinned: true, then: "", back: "" }
}

const fn done(finding: &'static str, then: &'static str, back: &'static str) -> Mistake {
    Mistake { finding, wishes: TWO_NODES, edit: "", pinned: true, then, back }
}

/// Mistakes at a guest's start.
pub const STARTED: [Mistake; 9] = [
    started(
        "crossed-nodes",
        "s/host-nodes=0/host-nodes=x/; s/host-nodes=1/host-nodes=0/; s/host-nodes=x/host-nodes=1/",
    ),
    Mistake { pinned: false, ..started("pinned-too-early", "") },
    started("memory-not-huge", "s/hugetlb=on,hugetlbsize=2048K,//"),
    started(
        "memory-interleaved",
        "s/hugetlb=on,hugetlbsize=2048K,//; s/host-nodes=[01],policy=bind/host-nodes=0-1,policy=interleave/",
    ),
    started("distances-missing", "/-numa dist,/d"),
    started("distances-wrong", "s/val=21/val=31/"),
    started(
        "l3-over-two-nodes",
        "s/sockets=2,dies=1,cores=1/sockets=1,dies=1,cores=2/; s/l3-cache=off/l3-cache=on/; s/host-cache-info=on,//",
    ),
    // One node with all memory, in huge pages of both host nodes.
    started(
        "guest-sees-one-node",
        "/-numa/d; /id=ram1/d; s/size=131072K/size=262144K/; s/,host-nodes=0,policy=bind//; s/-machine q35/-machine q35,memory-backend=ram0/",
    ),
    started("guest-not-as-planned", "s/-m 262144K/-m 131072K/; s/size=131072K/size=65536K/"),
];

/// Mistakes in the life of a guest. Behind each, the guest is placed by its plan again and has to be sound.
pub const DONE: [Mistake; 9] = [
    done("vcpu-on-wrong-cpu", "pin $(vcpu 0) 3", ""),
    done("vcpu-unpinned", "pin $(vcpu 0) 0-1", ""),
    done("vcpu-floats-over-nodes", "pin $(vcpu 1) 0-3", ""),
    done("two-vcpus-on-one-cpu", "pin $(vcpu 1) 0", ""),
    done("emulator-on-vcpu-cpu", "pin $vm 0-3", ""),
    // A thread that has used no CPU time is no finding.
    done(
        "foreign-thread-on-vcpu-cpu",
        "$B yes > /dev/null & other=$!; pin $other 0; $B sleep 1",
        "kill $other",
    ),
    done("vcpu-low-priority", "$B renice -n 5 -p $(vcpu 0)", "$B renice -n -5 -p $(vcpu 0)"),
    done("cpu-quota", "cgroup cpu.max '50000 100000'", "no_cgroup"),
    done(
        "numa-balancing-on",
        "echo 1 > /proc/sys/kernel/numa_balancing",
        "echo 0 > /proc/sys/kernel/numa_balancing",
    ),
];

/// Mistakes that move memory, each with a guest of its own, which is not sound any more.
pub const MOVED: [Mistake; 2] = [
    // The kernel moves the guest's huge pages from one node's pool to the other's, so that the pools are not
    // as planned.
    done("cpuset-without-node", "cgroup cpuset.mems 0", "no_cgroup; force=--force"),
    done("cpuset-without-cpu", "cgroup cpuset.cpus 1-3", "no_cgroup"),
];

/// Mistakes that need another guest.
pub const OTHERS: [Mistake; 3] = [
    Mistake {
        wishes: NO_POLLING,
        ..done(
            "setting-not-as-planned",
            "echo 77777 > /sys/module/kvm/parameters/halt_poll_ns",
            "echo 0 > /sys/module/kvm/parameters/halt_poll_ns",
        )
    },
    Mistake {
        wishes: SMALL_PAGES,
        ..done(
            "ksm-merges-across-nodes",
            "echo 1 > /sys/kernel/mm/ksm/merge_across_nodes; echo 1 > /sys/kernel/mm/ksm/run",
            "echo 0 > /sys/kernel/mm/ksm/run",
        )
    },
    done(
        "cpu-offline",
        "echo 0 > /sys/devices/system/cpu/cpu2/online",
        "echo 1 > /sys/devices/system/cpu/cpu2/online",
    ),
];
