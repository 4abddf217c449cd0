// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The wishes as they are written, and what their keys mean. Each value keeps its place in the text, so that
//! an error can name the line.

use bifold_host::keys::Table;
use bifold_host::toml_table;
use serde::Deserialize;
use toml::{Spanned, Value};

/// All tables, in the order of the documentation.
pub const TABLES: &[Table] = &[GUEST, HOST];

/// Wishes with the keys that most hosts need.
pub const EXAMPLE: &str = include_str!("example.toml");

/// A value with its place.
pub type At<T> = Spanned<T>;

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    #[serde(default)]
    pub host: Host,
    #[serde(default)]
    pub guest: Vec<Guest>,
}

toml_table! {
    #[derive(Debug)]
    Guest, GUEST: "[[guest]]", "A guest. The file has one such table per guest, at most 256." {
        name: At<String> = "",
            "The VM's name: any text without control characters, up to 128 bytes, given once.";
        vcpus: At<i64> = "",
            "Number of vCPUs, 1 to 4096. Each gets a CPU of its own.";
        memory: At<String> = "",
            "Memory with its unit, such as \"64G\": a whole number of 8K. Every guest node gets an equal part.";
        page_size: Option<At<String>> = "\"auto\"",
            "Pages of the guest's memory on the host: \"4K\", \"2M\", \"1G\", or \"auto\" for the largest that fit. Pools of 1G \
             pages are enlarged only for guests with \"1G\", because a running host rarely has 1G in one piece; with \"auto\" such pages \
             come from pools that have them.";
        nodes: Option<At<Value>> = "\"auto\"",
            "Number of guest nodes, each on a host node of its own; \"auto\" for as few as fit; \"host\" for one per host node that \
             has free CPUs.";
        host_nodes: Option<At<String>> = "all",
            "Host nodes that the guest may use, such as \"0-1,4\".";
        smt: Option<At<String>> = "\"threads\"",
            "Host cores with several threads: \"threads\" makes the guest's threads of the host's threads, core by core; \"cores\" \
             gives a core to each vCPU, and leaves the other threads idle.";
        emulator_cores: Option<At<i64>> = "0",
            "Cores for the VMM's other threads and I/O threads alone, 0 to 64, on the guest node nearest to the first device of \
             `near`. With 0, they run on the host's reserved CPUs.";
        io_threads: Option<At<i64>> = "0",
            "Number of I/O threads, 0 to 64.";
        #[serde(default)]
        near: Vec<At<String>> = "[]",
            "Devices that a guest node should be near: PCI addresses, interfaces or disks, such as \"0000:3b:00.0\" or \"eth0\".";
        #[serde(default)]
        tickless: bool = "false",
            "Whether the vCPUs' CPUs should be isolated and without a tick. Both are boot parameters: the plan names them.";
        interrupts_away: Option<bool> = "true",
            "Whether interrupts of PCI devices leave the vCPUs' CPUs.";
        #[serde(default)]
        ksm: bool = "false",
            "Whether KSM may merge the guest's pages. Pages of 2M and 1G are never merged.";
    }
}

toml_table! {
    #[derive(Debug, Default)]
    Host, HOST: "[host]", "What the guests may use of the host, and which settings of the host the plan may change." {
        cpus: Option<At<String>> = "all online",
            "CPUs that guests and the host's share may use, such as \"0-31\", for a host whose other CPUs are given away.";
        reserve_cpus: Option<At<String>> = "see text",
            "CPUs for the host and the VMMs' own threads, such as \"0,32\"; name all threads of a core. By default the CPUs that are \
             not isolated, if only some are isolated; otherwise the first core.";
        reserve_memory: Option<At<String>> = "\"0\"",
            "Memory of each node that stays free for the host, such as \"2G\".";
        huge_pages: Option<At<String>> = "\"reserve\"",
            "\"reserve\" enlarges pools of 2M and 1G pages from free memory where they are short; \"keep\" takes the pools as they are.";
        numa_balancing: Option<At<String>> = "\"off\"",
            "\"off\" turns the kernel's automatic NUMA balancing off, which has nothing to move where all is bound; \"keep\" leaves it.";
        halt_poll_ns: Option<At<i64>> = "as it is",
            "Time that KVM polls before a halted vCPU sleeps, in ns, 0 to 1000000: longer wakes faster and burns the CPU.";
    }
}
