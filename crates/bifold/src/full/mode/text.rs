// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Modes for people.

use super::{HostVms, OneVm};
use bifold_host::{Happened, Of, Paging, PagingStats, Stat, State, Switch, Unit, Vm};
use bifold_report::{grouped, seconds, shell_words, text_table, wrapped};

/// Stands for what is not known.
const UNKNOWN: &str = "-";
/// Columns left of a VM's facts.
const LABEL: usize = 9;

/// One row per VM, and a line for each VM that KVM would not switch now.
pub fn list(seen: &HostVms) -> String {
    let head = [
        "\nname",
        "\nPID-FD",
        "\nprocess",
        "\nvCPUs",
        "\nmode",
        "switches\nto shadow",
        "switches\nto nested",
    ];
    let rows = seen.vms.iter().map(|vm| {
        let stats = vm.paging.stats();
        let switches = |n: Option<u64>| n.map_or(UNKNOWN.into(), grouped);
        vec![
            name(vm).unwrap_or(UNKNOWN.into()),
            vm.id.to_string(),
            vm.pid.to_string(),
            vm.vcpus.to_string(),
            vm.state(&seen.kvm).map_or(UNKNOWN.into(), |s| s.to_string()),
            switches(stats.switches_to_shadow),
            switches(stats.switches_to_nested),
        ]
    });
    let table = text_table(head.map(String::from).into(), rows.collect());
    let refused = seen.vms.iter().filter_map(|vm| {
        let (to, obstacle) = vm.paging.obstacle()?;
        Some(wrapped(&format!("{} {}", whole_name(vm), obstacle.sentence(to.name())), 2))
    });
    table + &refused.collect::<String>()
}

/// One VM and its figures.
pub fn show(one: &OneVm) -> String {
    let vm = &one.vm;
    let mode = match (&vm.paging, vm.state(&one.kvm)) {
        (_, None) => "unknown".into(),
        (_, Some(now @ State::To(_))) => format!("{now}, a switch is under way"),
        (Paging::HostWide, Some(now)) => format!("{now}, as all VMs here"),
        (Paging::Own { .. }, Some(now)) => now.to_string(),
    };
    let mut out = format!("VM       {}\n", whole_name(vm));
    out += &format!("process  {}\nvCPUs    {}\nmode     {mode}\n", vm.pid, vm.vcpus);
    if let Some((to, obstacle)) = vm.paging.obstacle() {
        out += &wrapped(&format!("switch   {}; {}", obstacle.sentence(to.name()), obstacle.remedy()), LABEL);
    }
    if let Paging::Own { stats: Ok(stats), .. } = &vm.paging {
        // Parts of a sum are worth a line if something was counted.
        let counts = PagingStats::STATS.iter().zip(stats.values());
        let life = counts.filter(|(s, v)| s.of == Of::Life || (s.of == Of::Part && v.is_some_and(|n| n > 0)));
        let life = life.map(|(s, v)| vec![s.label.to_string(), value(s.unit, v)]);
        out += &format!("\n{}", text_table(vec!["since its start".into(), String::new()], life.collect()));
        let worst = |label| of(stats, Of::Worst).find(|(s, _)| s.label == label);
        let rows = of(stats, Of::Last).map(|(s, v)| {
            let worst = worst(s.label).map_or(String::new(), |(s, v)| value(s.unit, v));
            vec![s.label.to_string(), value(s.unit, v), worst]
        });
        let head = ["switches", "last", "worst"].map(String::from);
        out += &format!("\n{}", text_table(head.into(), rows.collect()));
    }
    out
}

/// The result of a switch.
pub fn switched(vm: &Vm, switch: &Switch) -> String {
    let (vm, to, wall) = (whole_name(vm), switch.to.name(), seconds(switch.wall.as_secs_f64()));
    if switch.happened == Happened::Nothing {
        return format!("{vm} is in {to} mode already: nothing was done\n");
    }
    let rows = of(&switch.stats, Of::Last).map(|(s, v)| vec![s.label.to_string(), value(s.unit, v)]);
    let figures = text_table(vec!["this switch".into(), String::new()], rows.collect());
    format!("{vm} was switched to {to} mode in {wall}\n\n{figures}")
}

/// The figures of one kind, with their values.
fn of(stats: &PagingStats, of: Of) -> impl Iterator<Item = (&'static Stat, Option<u64>)> {
    PagingStats::STATS.iter().zip(stats.values()).filter(move |(s, _)| s.of == of)
}

fn value(unit: Unit, value: Option<u64>) -> String {
    match (unit, value) {
        (_, None) => "missing".into(),
        (Unit::Count, Some(n)) => grouped(n),
        (Unit::Nanoseconds, Some(n)) => seconds(n as f64 / 1e9),
    }
}

/// The name as a shell takes it, so that it can be given to `bifold mode`.
fn name(vm: &Vm) -> Option<String> {
    vm.name.as_ref().map(|n| shell_words(&[n]))
}

fn whole_name(vm: &Vm) -> String {
    name(vm).map_or(vm.id.to_string(), |name| format!("{name} ({})", vm.id))
}
