// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Turns what is written into a configuration, and finds values out of range and contradictions.

use super::{Config, Decides, Limits, Metrics, Pattern, Recording, Rule, file, memory};
use crate::probe::Probing;
use bifold_base::bounded;
use bifold_live::Measured;
use bifold_policy::{Estimator, Named, SpecError};
use std::path::Path;

/// What is wrong, each with its key.
pub(super) type Wrong = Vec<String>;

/// The configuration of a file in this folder.
pub fn config(file: file::File, folder: &Path) -> Result<Config, Wrong> {
    let mut wrong = Wrong::new();
    let interval_s = file.interval_s.unwrap_or(1.0);
    within(interval_s, 0.05, 3600.0, "interval_s", &mut wrong);
    let limits = limits(&Limits::default(), &file.limits, "limits.", &mut wrong);
    let estimator = match &file.estimator {
        Some(path) => estimator(&folder.join(path), &mut wrong),
        None => Some(Estimator::fitted().clone()),
    };
    for (place, text) in file.never.iter().enumerate() {
        if text.is_empty() {
            wrong.push(format!("never[{place}] is empty: give a name, a pattern or a PID-FD"));
        }
    }
    let has_memory = file.memory.is_some();
    let share = file.memory.and_then(|given| memory::share(given, &mut wrong));
    let (mut rules, mut notes): (Vec<Rule>, Vec<String>) = (Vec::new(), Vec::new());
    for (place, vm) in file.vm.into_iter().enumerate() {
        let at = format!("vm[{place}] ({})", vm.name.escape_debug());
        if let Some(before) = rules.iter().find(|r| covers(r.vms.text(), &vm.name)) {
            let before = before.vms.text().escape_debug();
            wrong.push(format!("{at} is never used: the rule for {before} comes first and fits all its VMs"));
        }
        // Not wrong: adding a VM to `never` is the way to have it left alone.
        if let Some(never) = file.never.iter().find(|never| covers(never, &vm.name)) {
            notes.push(format!("{at} is not used: never = [\"{}\"] comes first", never.escape_debug()));
        }
        if vm.memory.is_some() && !has_memory {
            wrong.push(format!("{at}: memory needs the table [memory] with a limit and a policy"));
        }
        let rule = rule(vm, &at, (&limits, share.as_ref()), estimator.as_ref(), folder, &mut wrong);
        notes.extend(rule.iter().filter(|r| r.untrusted).map(|_| untrusted(&at)));
        rules.extend(rule);
    }
    if has_memory && rules.iter().all(|r| r.memory.is_none()) {
        notes.push("memory is not used: no rule has a table vm.memory".into());
    }
    let recording = file.recording.map(|r| recording(r, folder, &mut wrong));
    let metrics = metrics(file.metrics, folder, &mut wrong);
    if let (Some(r), Some(m)) = (&recording, &metrics.file) {
        if r.file == *m {
            wrong.push("recording.file and metrics.file name one file".into());
        }
    }
    match (estimator, wrong.is_empty()) {
        (Some(estimator), true) => {
            let never = file.never.iter().map(|text| Pattern::new(text)).collect();
            Ok(Config { interval_s, never, rules, notes, recording, metrics, memory: share, estimator })
        }
        _ => Err(wrong),
    }
}

/// Whether a pattern surely fits all names that another fits. A name that is no pattern is fitted like any
/// name.
fn covers(earlier: &str, later: &str) -> bool {
    earlier == later
        || (!later.contains(['*', '?']) && wildmatch::WildMatch::new(earlier).matches(later))
        || earlier == "*"
}

pub(super) fn within(value: f64, least: f64, most: f64, key: &str, wrong: &mut Wrong) {
    // NaN is in no range.
    if !(least..=most).contains(&value) {
        wrong.push(format!("{key} = {value} is not {least} to {most}"));
    }
}

fn limits(general: &Limits, given: &file::Limits, at: &str, wrong: &mut Wrong) -> Limits {
    if *given == file::Limits::default() {
        // Errors in the general limits are reported once.
        return *general;
    }
    let limits = Limits {
        min_stay_s: given.min_stay_s.unwrap_or(general.min_stay_s),
        most_switches_per_hour: given.most_switches_per_hour.unwrap_or(general.most_switches_per_hour),
        blackout_s: given.blackout_s.unwrap_or(general.blackout_s.min(given.min_stay_s.unwrap_or(f64::MAX))),
    };
    within(limits.min_stay_s, 0.0, 86_400.0, &format!("{at}min_stay_s"), wrong);
    within(limits.blackout_s, 0.0, 86_400.0, &format!("{at}blackout_s"), wrong);
    if !(1..=36_000).contains(&limits.most_switches_per_hour) {
        wrong.push(format!(
            "{at}most_switches_per_hour = {} is not 1 to 36000 (for no switch at all, leave out `act`)",
            limits.most_switches_per_hour
        ));
    }
    if limits.blackout_s > limits.min_stay_s {
        wrong.push(format!(
            "{at}blackout_s = {} is longer than min_stay_s = {}: the policy sees nothing when the VM may be switched again",
            limits.blackout_s, limits.min_stay_s
        ));
    }
    limits
}

fn estimator(path: &Path, wrong: &mut Wrong) -> Option<Estimator> {
    let text = bounded::read_to_string(path, bounded::TEXT)
        .map_err(|e| wrong.push(format!("estimator: cannot read {}: {e}", path.display())))
        .ok()?;
    Estimator::parse(&text)
        .map_err(|e| wrong.push(format!("estimator {}: {}", path.display(), e.to_string().trim_end())))
        .ok()
}

fn rule(
    vm: file::Vm,
    at: &str,
    (general, share): (&Limits, Option<&memory::ShareMemory>),
    estimator: Option<&Estimator>,
    folder: &Path,
    wrong: &mut Wrong,
) -> Option<Rule> {
    if vm.name.is_empty() {
        wrong.push(format!("{at}: name is empty: give a name, a pattern or a PID-FD"));
    }
    let of_rule = file::Limits {
        min_stay_s: vm.min_stay_s,
        most_switches_per_hour: vm.most_switches_per_hour,
        blackout_s: vm.blackout_s,
    };
    let limits = limits(general, &of_rule, &format!("{at}: "), wrong);
    let decides = match (&vm.policy, vm.probe) {
        (Some(name), None) => {
            let named = policy(&vm, name, folder).map_err(|e| wrong.push(format!("{at}: {e}"))).ok()?;
            can_be_counted(&named, estimator, at, wrong);
            Some(Decides::Policy(named))
        }
        (None, Some(probe)) => Some(Decides::Probes(probing(&vm, probe, &limits, at, wrong))),
        (Some(_), Some(_)) => {
            wrong.push(format!("{at} has a policy and a table probe: remove one of them"));
            return None;
        }
        (None, None) if vm.memory.is_some() => {
            if vm.act {
                wrong.push(format!(
                    "{at}: act is for a policy or probes: for memory, write it into vm.memory"
                ));
            }
            None
        }
        (None, None) => {
            wrong.push(format!(
                "{at} has neither a policy nor a table probe or memory: `bifold policy list` shows policies"
            ));
            return None;
        }
    };
    if vm.reporter.as_deref().is_some_and(|path| !path.starts_with('/')) {
        wrong.push(format!("{at}: reporter is no absolute path"));
    }
    let vms = Pattern::new(&vm.name);
    let of_memory = vm.memory.and_then(|given| memory::of_rule(given, share, at, wrong));
    let trusted = vm.trusted.unwrap_or(!vms.is_wildcard());
    Some(Rule {
        decides,
        act: vm.act && trusted,
        untrusted: vm.act && !trusted && vm.trusted.is_none(),
        limits,
        reporter: vm.reporter,
        memory: of_memory,
        vms,
    })
}

/// What to write into a rule whose pattern may fit guests of others.
fn untrusted(at: &str) -> String {
    format!(
        "{at}: the daemon does not switch VMs of a pattern, since a guest in shadow paging reaches more of KVM: write `trusted = \
         true` into the rule if you trust all guests that may get such a name, or give each VM a rule of its own before this one"
    )
}

fn policy(vm: &file::Vm, name: &str, folder: &Path) -> Result<Named, SpecError> {
    let is_file = name.ends_with(".toml");
    let path = folder.join(name);
    Named::load(if is_file { path.to_str().unwrap_or(name) } else { name })?.with(&vm.parameters)
}

/// Refuses a policy that needs what no live host counts.
fn can_be_counted(named: &Named, estimator: Option<&Estimator>, at: &str, wrong: &mut Wrong) {
    let needs = match estimator {
        Some(e) if named.spec.needs_other() => named.spec.needs().and(e.needs()),
        _ => named.spec.needs(),
    };
    if let Some(counter) = needs.less(Measured::possible()).iter().next() {
        wrong.push(format!(
            "{at}: policy {} needs the counter {}, which no live host counts: choose a policy that does not need the counter",
            named.name, counter.name
        ));
    }
}

fn probing(vm: &file::Vm, probe: file::Probe, limits: &Limits, at: &str, wrong: &mut Wrong) -> Probing {
    let how = Probing {
        every_s: probe.every_s.unwrap_or(600.0),
        length_s: probe.length_s.unwrap_or(20.0),
        least_gain_percent: probe.least_gain_percent.unwrap_or(3.0),
    };
    within(how.every_s, 10.0, 86_400.0, &format!("{at}: probe.every_s"), wrong);
    within(how.length_s, 1.0, 3600.0, &format!("{at}: probe.length_s"), wrong);
    within(how.least_gain_percent, 0.0, 1000.0, &format!("{at}: probe.least_gain_percent"), wrong);
    if how.length_s < limits.min_stay_s {
        wrong.push(format!(
            "{at}: probe.length_s = {} is shorter than min_stay_s = {}: a probe could not end in time",
            how.length_s, limits.min_stay_s
        ));
    }
    if limits.most_switches_per_hour < 2 {
        wrong.push(format!("{at}: most_switches_per_hour = 1 does not allow a probe, which is two switches"));
    }
    if 4.0 * how.length_s > how.every_s {
        wrong.push(format!(
            "{at}: probe.length_s = {} is more than a quarter of probe.every_s = {}: the VM would be probed most of the time",
            how.length_s, how.every_s
        ));
    }
    if !vm.parameters.is_empty() {
        wrong.push(format!("{at}: parameters are a policy's, and probes have none: remove them"));
    }
    how
}

fn recording(given: file::Recording, folder: &Path, wrong: &mut Wrong) -> Recording {
    let most_mib = given.most_mib.unwrap_or(1024);
    if !(1..=1 << 20).contains(&most_mib) {
        wrong.push(format!("recording.most_mib = {most_mib} is not 1 to 1048576"));
    }
    Recording { file: folder.join(given.file), most_mib }
}

fn metrics(given: file::Metrics, folder: &Path, wrong: &mut Wrong) -> Metrics {
    if let Some(address) = given.listen.filter(|a| !a.ip().is_loopback()) {
        wrong.push(format!(
            "metrics.listen = {address} is no loopback address: metrics name the host's VMs; put a proxy with authentication before \
             127.0.0.1"
        ));
    }
    Metrics { file: given.file.map(|f| folder.join(f)), listen: given.listen }
}
