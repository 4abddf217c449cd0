// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paging modes as JSON. Unknown values are null.

use super::{HostVms, OneVm};
use bifold_host::{
    Forecast, Happened, Kvm, Mode, Of, Paging, PagingStats, RefusalReason, Stat, Switch, Unit, Vm,
};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use serde_json::{Map, Value, json};
use std::borrow::Cow;

// Names and versions of the documents.
const LIST: &str = "bifold.mode-list/1";
const SWITCH: &str = "bifold.mode-switch/1";
const STATS: &str = "bifold.mode-stats/1";

/// What `bifold mode --format json` writes: the paging modes of this host's VMs.
#[derive(Serialize, JsonSchema)]
struct List<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The host's KVM.
    kvm: KvmRow,
    /// The VMs.
    vms: Vec<Counted<'a>>,
}

/// What `bifold mode VM --format json` writes: the paging mode of one VM, and KVM's figures of its switches.
#[derive(Serialize, JsonSchema)]
struct One<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// The host's KVM.
    kvm: KvmRow,
    /// The VM.
    vm: Shown<'a>,
}

/// What `bifold mode VM MODE --format json` writes: the result of a switch.
#[derive(Serialize, JsonSchema)]
struct Switched<'a> {
    /// Name and version of this schema.
    schema: &'static str,
    /// Version of Bifold.
    bifold: &'static str,
    /// KVM's identifier of the VM: thread and file descriptor.
    vm: String,
    /// The VM's process.
    pid: u32,
    /// The VM's name, else its process's; null if the process is not visible.
    name: Option<&'a str>,
    /// The mode that was asked for.
    mode: Mode,
    /// Whether the VM was switched; false if the VM had the mode already.
    switched: bool,
    /// Whether others switched the VM meanwhile, so that `stats` may be of their switch.
    stats_of_others: bool,
    /// Time of the request. Unit: ns.
    wall_ns: u64,
    /// KVM's figures after the request.
    stats: Figures<'a>,
}

/// The host's KVM.
#[derive(Serialize, JsonSchema)]
struct KvmRow {
    /// The mode in which a new VM starts; null if KVM has one mode for all VMs.
    default_mode: Option<Mode>,
    /// The mode of all VMs, if KVM has one mode for all; null if unknown.
    host_mode: Option<Mode>,
    /// The loaded modules for a vendor's processors.
    modules: Vec<Module>,
    /// Public holes that VMs may reach in shadow paging, as the modules do not name their fixes; empty if KVM
    /// has one mode for all VMs.
    open_holes: Vec<&'static str>,
}

/// A module of KVM.
#[derive(Serialize, JsonSchema)]
struct Module {
    /// Name of the module: `kvm_amd` or `kvm_intel`.
    module: &'static str,
    /// Name of the parameter for nested paging: `npt` or `ept`.
    parameter: &'static str,
    /// Whether the module uses nested paging; null if the parameter cannot be read.
    nested: Option<bool>,
}

/// A VM.
#[derive(Serialize, JsonSchema)]
struct VmRow<'a> {
    /// KVM's identifier of the VM: thread and file descriptor.
    vm: String,
    /// The VM's process.
    pid: u32,
    /// The VM's name, else its process's; null if the process is not visible.
    name: Option<&'a str>,
    /// Number of vCPUs.
    vcpus: usize,
    /// Whether the VM has a mode of its own, as with Bifold's modules of KVM.
    switchable: bool,
    /// The VM's mode; during a switch, the mode that the VM leaves. Null if unknown.
    mode: Option<Mode>,
    /// The new mode, if a switch is under way; null otherwise.
    switching_to: Option<Mode>,
    /// Why KVM would refuse to switch the VM to its other mode now, as in `paging_refusal`: `none` if KVM
    /// would not refuse; null if unknown. `room` if a cgroup leaves too little memory for a stay in shadow
    /// paging, which Bifold then does not ask KVM for.
    refusal: Option<&'a str>,
    /// The first vCPU that has the reason; null if the reason is of no vCPU.
    refusal_vcpu: Option<u32>,
    /// The cgroup behind the refusal `room`; null for other reasons.
    room: Option<RoomRow>,
}

/// A cgroup that leaves too little memory for a stay in shadow paging.
#[derive(Serialize, JsonSchema)]
struct RoomRow {
    /// The cgroup's folder.
    cgroup: String,
    /// What the cgroup has left. Unit: bytes.
    left_bytes: u64,
    /// What a stay needs. Unit: bytes.
    need_bytes: u64,
}

/// A VM of the list.
#[derive(Serialize, JsonSchema)]
struct Counted<'a> {
    #[serde(flatten)]
    vm: VmRow<'a>,
    /// Switches to shadow mode since the VM was made; null if unknown.
    switches_to_shadow: Option<u64>,
    /// Switches to nested mode since the VM was made; null if unknown.
    switches_to_nested: Option<u64>,
}

/// A VM and its figures.
#[derive(Serialize, JsonSchema)]
struct Shown<'a> {
    #[serde(flatten)]
    vm: VmRow<'a>,
    /// KVM's figures of the VM's switches; null if they cannot be read.
    stats: Option<Figures<'a>>,
}

/// KVM's figures under their names in `paging_stats`.
struct Figures<'a>(&'a PagingStats);

impl Serialize for Figures<'_> {
    fn serialize<S: Serializer>(&self, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(PagingStats::STATS.iter().map(|s| s.name).zip(self.0.values()))
    }
}

impl JsonSchema for Figures<'_> {
    fn schema_name() -> Cow<'static, str> {
        "Figures".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let figure = |s: &Stat| {
            let of = match s.of {
                Of::Life | Of::Part => "",
                Of::Last => ", of the last switch",
                Of::Worst => ", the most of all switches",
            };
            let unit = if s.unit == Unit::Nanoseconds { " Unit: ns." } else { "" };
            let meaning = format!(
                "KVM's figure of {}{of}; null if KVM's modules do not have the figure.{unit}",
                s.label
            );
            (s.name.into(), json!({ "type": ["integer", "null"], "minimum": 0, "description": meaning }))
        };
        let names: Vec<_> = PagingStats::STATS.iter().map(|s| s.name).collect();
        let figures: Map<String, Value> = PagingStats::STATS.iter().map(figure).collect();
        json_schema!({ "type": "object", "properties": figures, "required": names })
    }
}

/// The schemas of the documents.
pub fn schemas() -> Vec<Value> {
    use bifold_report::schema::schema;
    vec![schema::<List>(LIST), schema::<One>(STATS), schema::<Switched>(SWITCH)]
}

/// Every VM.
pub fn list(seen: &HostVms) -> anyhow::Result<String> {
    let vms = seen.vms.iter().map(|vm| {
        let stats = vm.paging.stats();
        Counted {
            vm: describe(vm, &seen.kvm),
            switches_to_shadow: stats.switches_to_shadow,
            switches_to_nested: stats.switches_to_nested,
        }
    });
    let vms = vms.collect();
    text(&List { schema: LIST, bifold: bifold_base::version(), kvm: kvm(&seen.kvm), vms })
}

/// One VM and its figures.
pub fn show(one: &OneVm) -> anyhow::Result<String> {
    let stats = match &one.vm.paging {
        Paging::Own { stats: Ok(stats), .. } => Some(Figures(stats)),
        _ => None,
    };
    let vm = Shown { vm: describe(&one.vm, &one.kvm), stats };
    text(&One { schema: STATS, bifold: bifold_base::version(), kvm: kvm(&one.kvm), vm })
}

/// The result of a switch.
pub fn switched(vm: &Vm, switch: &Switch) -> anyhow::Result<String> {
    text(&Switched {
        schema: SWITCH,
        bifold: bifold_base::version(),
        vm: vm.id.to_string(),
        pid: vm.pid,
        name: vm.name.as_deref(),
        mode: switch.to,
        switched: switch.happened != Happened::Nothing,
        stats_of_others: switch.happened == Happened::Crowded,
        wall_ns: u64::try_from(switch.wall.as_nanos()).unwrap_or(u64::MAX),
        stats: Figures(&switch.stats),
    })
}

fn text(document: &impl Serialize) -> anyhow::Result<String> {
    Ok(serde_json::to_string_pretty(document)? + "\n")
}

fn kvm(kvm: &Kvm) -> KvmRow {
    let module =
        |h: &bifold_host::Hardware| Module { module: h.module, parameter: h.parameter, nested: h.nested };
    KvmRow {
        default_mode: kvm.default,
        host_mode: kvm.host_mode(),
        modules: kvm.hardware.iter().map(module).collect(),
        open_holes: kvm.open_holes().iter().map(|hole| hole.name).collect(),
    }
}

fn describe<'a>(vm: &'a Vm, kvm: &Kvm) -> VmRow<'a> {
    let state = vm.state(kvm);
    let forecast = match &vm.paging {
        Paging::Own { forecast: Ok(forecast), .. } => forecast,
        _ => &Forecast::Unknown,
    };
    let refusal = match forecast {
        Forecast::Unknown => None,
        Forecast::Fine => Some("none"),
        Forecast::Refused(obstacle) => Some(obstacle.reason.word()),
    };
    let room = match forecast.obstacle().map(|o| &o.reason) {
        Some(RefusalReason::Room(shortage)) => Some(RoomRow {
            cgroup: shortage.folder.display().to_string(),
            left_bytes: shortage.left,
            need_bytes: shortage.need,
        }),
        _ => None,
    };
    VmRow {
        vm: vm.id.to_string(),
        pid: vm.pid,
        name: vm.name.as_deref(),
        vcpus: vm.vcpus,
        switchable: matches!(vm.paging, Paging::Own { .. }),
        mode: state.map(|s| s.mode()),
        switching_to: state.and_then(|s| s.switching_to()),
        refusal,
        refusal_vcpu: forecast.obstacle().and_then(|o| o.vcpu),
        room,
    }
}
