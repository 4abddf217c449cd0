// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Paging modes as JSON. Times are in nanoseconds; unknown values are null.

use super::{HostVms, OneVm};
use bifold_host::Mode;
use bifold_host::{Forecast, Happened, Kvm, Paging, PagingStats, Switch, Vm};
use serde_json::{Map, Value, json};

/// Every VM.
pub fn list(seen: &HostVms) -> anyhow::Result<String> {
    let one = |vm: &Vm| {
        let stats = vm.paging.stats();
        let mut value = describe(vm, &seen.kvm);
        value.insert("switches_to_shadow".into(), stats.switches_to_shadow.into());
        value.insert("switches_to_nested".into(), stats.switches_to_nested.into());
        Value::Object(value)
    };
    let vms: Vec<Value> = seen.vms.iter().map(one).collect();
    document("mode-list", [("kvm", kvm(&seen.kvm)), ("vms", vms.into())])
}

/// One VM and its figures.
pub fn show(one: &OneVm) -> anyhow::Result<String> {
    let mut vm = describe(&one.vm, &one.kvm);
    let stats = match &one.vm.paging {
        Paging::Own { stats: Ok(stats), .. } => figures(stats),
        _ => Value::Null,
    };
    vm.insert("stats".into(), stats);
    document("mode-stats", [("kvm", kvm(&one.kvm)), ("vm", vm.into())])
}

/// The result of a switch.
pub fn switched(vm: &Vm, switch: &Switch) -> anyhow::Result<String> {
    let fields = [
        ("vm", vm.id.to_string().into()),
        ("pid", vm.pid.into()),
        ("name", vm.name.clone().into()),
        ("mode", switch.to.name().into()),
        ("switched", (switch.happened != Happened::Nothing).into()),
        ("stats_of_others", (switch.happened == Happened::Crowded).into()),
        ("wall_ns", u64::try_from(switch.wall.as_nanos()).unwrap_or(u64::MAX).into()),
        ("stats", figures(&switch.stats)),
    ];
    document("mode-switch", fields)
}

fn document<const N: usize>(schema: &str, fields: [(&str, Value); N]) -> anyhow::Result<String> {
    let mut document = json!({ "schema": format!("bifold.{schema}/1"), "bifold": bifold_base::version() });
    for (name, value) in fields {
        document[name] = value;
    }
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

fn kvm(kvm: &Kvm) -> Value {
    let hardware = kvm
        .hardware
        .iter()
        .map(|h| json!({ "module": h.module, "parameter": h.parameter, "nested": h.nested }));
    json!({
        "default_mode": kvm.default.map(Mode::name),
        "host_mode": kvm.host_mode().map(Mode::name),
        "modules": hardware.collect::<Vec<_>>(),
    })
}

fn describe(vm: &Vm, kvm: &Kvm) -> Map<String, Value> {
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
    let fields: [(&str, Value); 9] = [
        ("vm", vm.id.to_string().into()),
        ("pid", vm.pid.into()),
        ("name", vm.name.clone().into()),
        ("vcpus", vm.vcpus.into()),
        ("switchable", matches!(vm.paging, Paging::Own { .. }).into()),
        ("mode", state.map(|s| s.mode().name()).into()),
        ("switching_to", state.and_then(|s| s.switching_to()).map(Mode::name).into()),
        ("refusal", refusal.into()),
        ("refusal_vcpu", forecast.obstacle().and_then(|o| o.vcpu).into()),
    ];
    fields.into_iter().map(|(name, value)| (name.to_string(), value)).collect()
}

fn figures(stats: &PagingStats) -> Value {
    let all = PagingStats::STATS.iter().zip(stats.values());
    Value::Object(all.map(|(s, v)| (s.name.to_string(), v.into())).collect())
}
