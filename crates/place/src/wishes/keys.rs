// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The keys of a file of wishes, and what they mean. The reference page is made of this list.

/// A key of the wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The table that has the key: `host` or `guest`.
    pub table: &'static str,
    /// The key.
    pub name: &'static str,
    /// Value if the key is not given, as text; empty if the key must be given.
    pub default: &'static str,
    /// Meaning, with unit and range.
    pub doc: &'static str,
}

/// A table of the wishes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The name in [`Key::table`].
    pub name: &'static str,
    /// The table as a file has it.
    pub head: &'static str,
    /// What the table is for.
    pub doc: &'static str,
}

/// All tables, in the order of the documentation.
pub const TABLES: &[Table] = &[
    Table {
        name: "guest",
        head: "[[guest]]",
        doc: "A guest. The file has one such table per guest, at most 256.",
    },
    Table {
        name: "host",
        head: "[host]",
        doc: "What the guests may use of the host, and which settings of the host the plan may change.",
    },
];

/// Wishes with the keys that most hosts need.
pub const EXAMPLE: &str = include_str!("example.toml");

const fn key(table: &'static str, name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key { table, name, default, doc }
}

/// All keys; a test compares them with what is read.
pub const KEYS: &[Key] = &[
    key(
        "guest",
        "name",
        "",
        "The VM's name: any text without control characters, up to 128 bytes, given once.",
    ),
    key("guest", "vcpus", "", "Number of vCPUs, 1 to 4096. Each gets a CPU of its own."),
    key(
        "guest",
        "memory",
        "",
        "Memory with its unit, such as \"64G\": a whole number of 8K. Every guest node gets an equal part.",
    ),
    key(
        "guest",
        "page_size",
        "\"auto\"",
        "Pages of the guest's memory on the host: \"4K\", \"2M\", \"1G\", or \"auto\" for the largest that fit. Pools of 1G \
         pages are enlarged only for guests with \"1G\", because a running host rarely has 1G in one piece; with \"auto\" such pages \
         come from pools that have them.",
    ),
    key(
        "guest",
        "nodes",
        "\"auto\"",
        "Number of guest nodes, each on a host node of its own; \"auto\" for as few as fit; \"host\" for one per host node that \
         has free CPUs.",
    ),
    key("guest", "host_nodes", "all", "Host nodes that the guest may use, such as \"0-1,4\"."),
    key(
        "guest",
        "smt",
        "\"threads\"",
        "Host cores with several threads: \"threads\" makes the guest's threads of the host's threads, core by core; \"cores\" \
         gives a core to each vCPU, and leaves the other threads idle.",
    ),
    key(
        "guest",
        "emulator_cores",
        "0",
        "Cores for the VMM's other threads and I/O threads alone, 0 to 64, on the guest node nearest to the first device of \
         `near`. With 0, they run on the host's reserved CPUs.",
    ),
    key("guest", "io_threads", "0", "Number of I/O threads, 0 to 64."),
    key(
        "guest",
        "near",
        "[]",
        "Devices that a guest node should be near: PCI addresses, interfaces or disks, such as \"0000:3b:00.0\" or \"eth0\".",
    ),
    key(
        "guest",
        "tickless",
        "false",
        "Whether the vCPUs' CPUs should be isolated and without a tick. Both are boot parameters: the plan names them.",
    ),
    key("guest", "interrupts_away", "true", "Whether interrupts of PCI devices leave the vCPUs' CPUs."),
    key(
        "guest",
        "ksm",
        "false",
        "Whether KSM may merge the guest's pages. Pages of 2M and 1G are never merged.",
    ),
    key(
        "host",
        "cpus",
        "all online",
        "CPUs that guests and the host's share may use, such as \"0-31\", for a host whose other CPUs are given away.",
    ),
    key(
        "host",
        "reserve_cpus",
        "see text",
        "CPUs for the host and the VMMs' own threads, such as \"0,32\"; name all threads of a core. By default the CPUs that are \
         not isolated, if only some are isolated; otherwise the first core.",
    ),
    key(
        "host",
        "reserve_memory",
        "\"0\"",
        "Memory of each node that stays free for the host, such as \"2G\".",
    ),
    key(
        "host",
        "huge_pages",
        "\"reserve\"",
        "\"reserve\" enlarges pools of 2M and 1G pages from free memory where they are short; \"keep\" takes the pools as they are.",
    ),
    key(
        "host",
        "numa_balancing",
        "\"off\"",
        "\"off\" turns the kernel's automatic NUMA balancing off, which has nothing to move where all is bound; \"keep\" leaves it.",
    ),
    key(
        "host",
        "halt_poll_ns",
        "as it is",
        "Time that KVM polls before a halted vCPU sleeps, in ns, 0 to 1000000: longer wakes faster and burns the CPU.",
    ),
];
