// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration as it is written, and what its keys mean.

use bifold_host::keys::Table;
use bifold_host::toml_table;
use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// All tables, in the order of the documentation.
pub const TABLES: &[Table] = &[TOP, LIMITS, RECORDING, METRICS, MEMORY, VM, PROBE, VM_MEMORY];

/// A configuration with the keys that most hosts need.
pub const EXAMPLE: &str = include_str!("example.toml");

toml_table! {
    #[derive(Debug)]
    File, TOP: "Top level", "These keys come before all tables." {
        interval_s: Option<f64> = "1",
            "Time between two readings of each VM, in seconds, 0.05 to 3600.";
        #[serde(default)]
        never: Vec<String> = "[]",
            "VMs that are never switched, and of which no memory is taken: patterns as in `vm.name`. They come before all rules.";
        estimator: Option<PathBuf> = "built in",
            "File with the coefficients that estimate the other mode's cost, as `bifold policy train estimator` writes it.";
        + #[serde(default)] limits: Limits;
        + recording: Option<Recording>;
        + #[serde(default)] metrics: Metrics;
        + memory: Option<Memory>;
        + #[serde(default)] vm: Vec<Vm>;
    }
}

toml_table! {
    #[derive(Debug, Clone, Copy, Default, PartialEq)]
    Limits, LIMITS: "[limits]", "How often a VM may be switched, unless its rule says otherwise." {
        min_stay_s: Option<f64> = "10",
            "Least time that a VM stays in a mode before the next switch, in seconds, 0 to 86400.";
        most_switches_per_hour: Option<u64> = "60",
            "Most switches of a VM in any hour, 1 to 36000. Switches by others count. Giving a VM back is always allowed.";
        blackout_s: Option<f64> = "1",
            "Time after a switch that the policy does not see, in seconds, because tables and TLBs are cold; at most min_stay_s.";
    }
}

toml_table! {
    #[derive(Debug)]
    Recording, RECORDING: "[recording]", "Where readings and decisions are recorded; without this table, nowhere." {
        file: PathBuf = "",
            "File for every reading and decision, as JSON lines that `bifold policy replay` reads. Lines are added to a file that exists.";
        most_mib: Option<u64> = "1024",
            "Size at which the file is renamed (`.1` is added, an older such file is removed) and a new file is begun, in MiB, 1 to 1048576.";
    }
}

toml_table! {
    #[derive(Debug, Default)]
    Metrics, METRICS: "[metrics]", "Where metrics for Prometheus go." {
        file: Option<PathBuf> = "none",
            "File for Prometheus's text format, replaced every 5 s (or every interval, if that is longer); for node_exporter it must end in .prom.";
        listen: Option<SocketAddr> = "none",
            "Address such as 127.0.0.1:9178 that answers HTTP with the metrics. Only a loopback address is accepted.";
    }
}

toml_table! {
    #[derive(Debug)]
    Vm, VM: "[[vm]]", "A rule: the policy of some VMs. The first rule that fits a VM is the VM's." {
        name: String = "",
            "The VMs that the rule is for: a name, in which * stands for any characters and ? for one, or KVM's identifier PID-FD.";
        policy: Option<String> = "none",
            "A policy of `bifold policy list`, or a TOML file with one. A rule needs a policy, the table probe, or the table memory.";
        #[serde(default)]
        parameters: toml::Table = "{}",
            "Parameters of the policy that differ from its own, as `bifold policy list` names them.";
        #[serde(default)]
        act: bool = "false",
            "Whether the daemon switches the VM. With false, the daemon only says what it would do.";
        trusted: Option<bool> = "true; false if name has * or ?",
            "Whether you trust the guests: a VM in shadow paging reaches code of KVM that nested=0 closes to others. With false, `act` has no effect.";
        min_stay_s: Option<f64> = "of limits",
            "As in `limits`, for these VMs.";
        most_switches_per_hour: Option<u64> = "of limits",
            "As in `limits`, for these VMs.";
        blackout_s: Option<f64> = "of limits",
            "As in `limits`, for these VMs.";
        reporter: Option<String> = "of the command line",
            "Unix socket of the VM's reporter, if the VMM's command line does not name it; {name} stands for the VM's name.";
        + probe: Option<Probe>;
        + memory: Option<VmMemory>;
    }
}

toml_table! {
    #[derive(Debug, Clone, Copy)]
    Probe, PROBE: "[vm.probe]",
    "Probes in place of a policy, for guests whose reporter tells their progress: a short try of the other mode, kept only if the \
     guest gets on faster in it." {
        every_s: Option<f64> = "600",
            "Time between two probes, in seconds, 10 to 86400. Each probe in a row that brings nothing doubles the time, up to 32 times.";
        length_s: Option<f64> = "20",
            "Time of progress that is compared in either mode, in seconds, 1 to 3600; at least min_stay_s, and at most a quarter of every_s.";
        least_gain_percent: Option<f64> = "3",
            "Gain of progress for which the other mode is kept, in percent, 0 to 1000.";
    }
}

toml_table! {
    #[derive(Debug)]
    Memory, MEMORY: "[memory]",
    "How the memory of a host is divided among the VMs whose rules have the table `vm.memory`. Without this table, no VM's memory is \
     looked at." {
        limit: String = "",
            "What these VMs may have together: a size such as 20G, or a part of the host's memory such as 60%.";
        policy: String = "",
            "equal, mom, proxmox or feedback. What a policy has to know of a guest is in the guide.";
        interval_s: Option<f64> = "10",
            "Time between two decisions, in seconds, 1 to 3600.";
        min_stay_s: Option<f64> = "60",
            "Least time between two orders that take memory of a VM, in seconds, 0 to 86400. Giving memory back is always allowed.";
        most_orders_per_hour: Option<u64> = "20",
            "Most orders that take memory of a VM in any hour, 1 to 3600.";
    }
}

toml_table! {
    #[derive(Debug)]
    VmMemory, VM_MEMORY: "[vm.memory]", "The memory of the rule's VMs, which need a balloon. Needs the table `memory`." {
        #[serde(default)]
        act: bool = "false",
            "Whether the daemon orders sizes. With false, the daemon only says what it would do.";
        least: Option<String> = "a quarter of its memory",
            "Least size of the VM. The daemon never goes below what the VM uses plus a margin, even if this \
             value is lower.";
        most: Option<String> = "all of its memory",
            "Most size of the VM.";
        min_stay_s: Option<f64> = "of memory",
            "As in `memory`, for these VMs.";
        most_orders_per_hour: Option<u64> = "of memory",
            "As in `memory`, for these VMs.";
    }
}

/// A file of the folder of parts: rules alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    #[serde(default)]
    pub vm: Vec<Vm>,
}
