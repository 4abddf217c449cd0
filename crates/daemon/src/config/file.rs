// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The configuration as it is written, and what its keys mean.

use serde::Deserialize;
use std::net::SocketAddr;
use std::path::PathBuf;

/// A key of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Key {
    /// The table that has the key: empty, `limits`, `recording`, `metrics` or `vm`.
    pub table: &'static str,
    /// The key.
    pub name: &'static str,
    /// Value if the key is not given, as text; empty if the key must be given.
    pub default: &'static str,
    /// Meaning, with unit and range.
    pub doc: &'static str,
}

/// A table of the configuration.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Table {
    /// The name in [`Key::table`].
    pub name: &'static str,
    /// The table as a file has it, or what stands for it in a list.
    pub head: &'static str,
    /// What the table is for.
    pub doc: &'static str,
}

/// All tables, in the order of the documentation.
pub const TABLES: &[Table] = &[
    Table { name: "", head: "Top level", doc: "These keys come before all tables." },
    Table {
        name: "limits",
        head: "[limits]",
        doc: "How often a VM may be switched, unless its rule says otherwise.",
    },
    Table {
        name: "recording",
        head: "[recording]",
        doc: "Where readings and decisions are recorded; without this table, nowhere.",
    },
    Table { name: "metrics", head: "[metrics]", doc: "Where metrics for Prometheus go." },
    Table {
        name: "vm",
        head: "[[vm]]",
        doc: "A rule: the policy of some VMs. The first rule that fits a VM is the VM's.",
    },
    Table {
        name: "vm.probe",
        head: "[vm.probe]",
        doc: "Probes in place of a policy, for guests whose reporter tells their progress: a short try of the other mode, kept only if the \
              guest gets on faster in it.",
    },
];

/// A configuration with the keys that most hosts need.
pub const EXAMPLE: &str = include_str!("example.toml");

const fn key(table: &'static str, name: &'static str, default: &'static str, doc: &'static str) -> Key {
    Key { table, name, default, doc }
}

/// All keys. The man page and the reference are made of these; a test compares them with what is read.
pub const KEYS: &[Key] = &[
    key("", "interval_s", "1", "Time between two readings of each VM, in seconds, 0.05 to 3600."),
    key(
        "",
        "never",
        "[]",
        "VMs that are never switched: patterns as in `vm.name`. They come before all rules.",
    ),
    key(
        "",
        "estimator",
        "built in",
        "File with the coefficients that estimate the other mode's cost, as `bifold policy train estimator` writes it.",
    ),
    key(
        "limits",
        "min_stay_s",
        "10",
        "Least time that a VM stays in a mode before the next switch, in seconds, 0 to 86400.",
    ),
    key(
        "limits",
        "most_switches_per_hour",
        "60",
        "Most switches of a VM in any hour, 1 to 36000. Switches by others count. Giving a VM back is always allowed.",
    ),
    key(
        "limits",
        "blackout_s",
        "1",
        "Time after a switch that the policy does not see, in seconds, because tables and TLBs are cold; at most min_stay_s.",
    ),
    key(
        "recording",
        "file",
        "",
        "File for every reading and decision, as JSON lines that `bifold policy replay` reads. Lines are added to a file that exists.",
    ),
    key(
        "recording",
        "most_mib",
        "1024",
        "Size at which the file is renamed (`.1` is added, an older such file is removed) and begun anew, in MiB, 1 to 1048576.",
    ),
    key(
        "metrics",
        "file",
        "none",
        "File for Prometheus's text format, replaced every 5 s (or every interval, if that is longer); for node_exporter it must end in .prom.",
    ),
    key(
        "metrics",
        "listen",
        "none",
        "Address such as 127.0.0.1:9178 that answers HTTP with the metrics. Only a loopback address is accepted.",
    ),
    key(
        "vm",
        "name",
        "",
        "The VMs that the rule is for: a name, in which * stands for any characters and ? for one, or KVM's identifier PID-FD.",
    ),
    key(
        "vm",
        "policy",
        "none",
        "A policy of `bifold policy list`, or a TOML file with one. A rule needs either a policy or the table probe.",
    ),
    key(
        "vm",
        "parameters",
        "{}",
        "Parameters of the policy that differ from its own, as `bifold policy list` names them.",
    ),
    key(
        "vm",
        "act",
        "false",
        "Whether the daemon switches the VM. With false, the daemon only says what it would do.",
    ),
    key("vm", "min_stay_s", "of limits", "As in `limits`, for these VMs."),
    key("vm", "most_switches_per_hour", "of limits", "As in `limits`, for these VMs."),
    key("vm", "blackout_s", "of limits", "As in `limits`, for these VMs."),
    key(
        "vm",
        "reporter",
        "of the command line",
        "Unix socket of the VM's reporter, if the VMM's command line does not name it; {name} stands for the VM's name.",
    ),
    key(
        "vm",
        "modelled_pmu",
        "none",
        "File of `lab modelled-pmu`, for guests that run the modelled program on a machine without a PMU: the guest's progress, times the model's counts of a step, stands for hardware counters. For laboratories.",
    ),
    key(
        "vm.probe",
        "every_s",
        "600",
        "Time between two probes, in seconds, 10 to 86400. Each probe in a row that brings nothing doubles the time, up to 32 times.",
    ),
    key(
        "vm.probe",
        "length_s",
        "20",
        "Time of progress that is compared in either mode, in seconds, 1 to 3600; at least min_stay_s, and at most a quarter of every_s.",
    ),
    key(
        "vm.probe",
        "least_gain_percent",
        "3",
        "Gain of progress for which the other mode is kept, in percent, 0 to 1000.",
    ),
];

/// The file.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct File {
    pub interval_s: Option<f64>,
    #[serde(default)]
    pub never: Vec<String>,
    pub estimator: Option<PathBuf>,
    #[serde(default)]
    pub limits: Limits,
    pub recording: Option<Recording>,
    #[serde(default)]
    pub metrics: Metrics,
    #[serde(default)]
    pub vm: Vec<Vm>,
}

/// `[limits]`.
#[derive(Debug, Clone, Copy, Default, PartialEq, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Limits {
    pub min_stay_s: Option<f64>,
    pub most_switches_per_hour: Option<u64>,
    pub blackout_s: Option<f64>,
}

/// `[recording]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Recording {
    pub file: PathBuf,
    pub most_mib: Option<u64>,
}

/// `[metrics]`.
#[derive(Debug, Default, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Metrics {
    pub file: Option<PathBuf>,
    pub listen: Option<SocketAddr>,
}

/// `[[vm]]`.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Vm {
    pub name: String,
    pub policy: Option<String>,
    pub probe: Option<Probe>,
    #[serde(default)]
    pub parameters: toml::Table,
    #[serde(default)]
    pub act: bool,
    pub min_stay_s: Option<f64>,
    pub most_switches_per_hour: Option<u64>,
    pub blackout_s: Option<f64>,
    pub reporter: Option<String>,
    pub modelled_pmu: Option<PathBuf>,
}

/// `[vm.probe]`.
#[derive(Debug, Clone, Copy, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Probe {
    pub every_s: Option<f64>,
    pub length_s: Option<f64>,
    pub least_gain_percent: Option<f64>,
}

/// A file of the folder of parts: rules alone.
#[derive(Debug, Deserialize)]
#[serde(deny_unknown_fields)]
pub struct Part {
    #[serde(default)]
    pub vm: Vec<Vm>,
}
