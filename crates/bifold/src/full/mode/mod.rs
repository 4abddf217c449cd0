// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold mode`: the paging modes of this host's VMs, and switching one.
//!
//! [`bifold_host`] reads and switches the modes; [`text`] and [`json`] print them.

mod args;
mod json;
mod text;

pub use args::ModeArgs;
pub use json::schemas;

use crate::console::{note, print};
use crate::doctor::needs::{KVM, Needs, SWITCHING};
use crate::status::Status;
use crate::usage::UsageError;
use bifold_host::{Happened, Host, HostError, Kvm, Mode, Paging, Switch, Vm, select};
use bifold_report::Format;

/// What the verb needs of the machine.
pub const NEEDS: &[Needs] =
    &[Needs { parts: &[(SWITCHING, "it shows modes and switches none")], ..Needs::of("", &[KVM]) }];

/// Carries out the verb on this machine.
pub fn run(args: &ModeArgs) -> anyhow::Result<Status> {
    let (data, notes) = answer(&Host::live(), args)?;
    print(&data)?;
    notes.iter().for_each(|n| note(!args.quiet, n));
    Ok(Status::Done)
}

/// Data for stdout, and notes.
fn answer(host: &Host, args: &ModeArgs) -> anyhow::Result<(String, Vec<String>)> {
    let seen = HostVms { kvm: host.kvm()?, vms: host.vms()? };
    let Some(word) = &args.vm else {
        let data = match args.format {
            Format::Json => json::list(&seen)?,
            _ => text::list(&seen),
        };
        return Ok((data, seen.notes()));
    };
    let HostVms { kvm, vms } = seen;
    let vm = select(vms, word).map_err(|e| match e {
        HostError::NoVm { .. } | HostError::SeveralVms { .. } => UsageError::value("VM", e).failing().into(),
        e => anyhow::Error::from(e),
    })?;
    let one = OneVm { kvm, vm };
    let Some(mode) = args.mode else {
        let data = match args.format {
            Format::Json => json::show(&one)?,
            _ => text::show(&one),
        };
        return Ok((data, one.notes()));
    };
    let switch = host.switch(&one.vm, mode)?;
    let holes = one.kvm.holes_warning().filter(|_| mode == Mode::Shadow);
    let data = match args.format {
        Format::Json => json::switched(&one.vm, &switch)?,
        _ => text::switched(&one.vm, &switch),
    };
    Ok((data, notes_of(&switch).into_iter().chain(holes).collect()))
}

/// A host's VMs.
struct HostVms {
    kvm: Kvm,
    vms: Vec<Vm>,
}

/// One VM of a host.
struct OneVm {
    kvm: Kvm,
    vm: Vm,
}

impl HostVms {
    fn notes(&self) -> Vec<String> {
        let mut notes: Vec<String> = self.vms.iter().flat_map(unreadable).collect();
        if self.vms.is_empty() {
            notes.push("no VM is running here".into());
        }
        notes.extend(one_mode(&self.kvm, &self.vms));
        notes.extend(self.kvm.holes_warning());
        notes
    }
}

impl OneVm {
    fn notes(&self) -> Vec<String> {
        let mut notes = unreadable(&self.vm);
        notes.extend(one_mode(&self.kvm, std::slice::from_ref(&self.vm)));
        notes.extend(self.kvm.holes_warning());
        notes
    }
}

/// Notes on the files of a VM that could not be read.
fn unreadable(vm: &Vm) -> Vec<String> {
    let Paging::Own { state, stats, forecast } = &vm.paging else { return Vec::new() };
    let files = [
        ("paging_mode", state.as_ref().err()),
        ("paging_stats", stats.as_ref().err()),
        ("paging_refusal", forecast.as_ref().err()),
    ];
    let said = files.into_iter().filter_map(|(file, e)| Some(format!("VM {}: {file}: {}", vm.id, e?)));
    said.collect()
}

/// A note that this KVM cannot switch VMs.
fn one_mode(kvm: &Kvm, vms: &[Vm]) -> Option<String> {
    let own = kvm.default.is_some() || vms.iter().any(|vm| matches!(vm.paging, Paging::Own { .. }));
    (!own).then(|| {
        format!(
            "this KVM has one paging mode for all VMs ({}); with the modules of `make kernel` each VM has its own",
            kvm.describe()
        )
    })
}

fn notes_of(switch: &Switch) -> Vec<String> {
    let crowded = "others switched this VM meanwhile: the figures may be of their switch, not of this one";
    (switch.happened == Happened::Crowded).then(|| crowded.into()).into_iter().collect()
}

#[cfg(test)]
mod tests;
