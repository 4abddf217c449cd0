// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The checks of this machine.

use super::needs::{KSM, KVM, MODULE, SWITCHING};
use crate::full;
use bifold_guest::doctor::{Check, checks};
use bifold_host::ksm::{Counter, Ksm, KsmError, Setting};
use bifold_host::{Host, HostError, Kvm, Vm, printable};

/// Runs the checks for everything that some verb needs.
pub fn all_checks(host: &Host) -> Vec<Check> {
    let mut all = checks();
    let ksm = Ksm::of(host);
    all.push(ksm_counters(Ksm::of(host)));
    all.push(ksm_check(ksm.and_then(|ksm| ksm.may_write().map(|()| ksm))));
    all.push(module_check(host));
    all.extend(kvm_checks(host));
    all.extend(full::folder_check());
    all
}

/// Whether VMs can be watched, by the rule of `bifold_live::Watch`.
fn module_check(host: &Host) -> Check {
    let found = host.kvm().map(|kvm| match kvm.hardware.first() {
        Some(hardware) => format!("kvm and {} are loaded", hardware.module),
        None => "kvm is loaded".into(),
    });
    let missing =
        |e: HostError| (e.to_string(), "use a machine with hardware virtualization, and load KVM's modules");
    check(MODULE, &["stat", "top", "daemon"], found.map_err(missing))
}

pub fn check(
    name: &'static str,
    needed_by: &'static [&'static str],
    found: Result<String, (String, &str)>,
) -> Check {
    let ok = found.is_ok();
    let (detail, remedy) =
        found.map_or_else(|(detail, remedy)| (detail, remedy.into()), |d| (d, String::new()));
    Check { name, ok, detail, remedy, needed_by }
}

const NO_KSM: &str = "boot a kernel built with CONFIG_KSM=y, as distributions' are";

/// Whether KSM's counters can be read.
pub fn ksm_counters(found: Result<Ksm, KsmError>) -> Check {
    let told = found.and_then(|ksm| Ok(ksm.counter(Counter::PagesShared)?.unwrap_or(0)));
    let found = match told {
        Ok(shared) => Ok(format!("{shared} pages shared")),
        Err(KsmError::NoKsm { .. }) => Err(("this kernel has no KSM".into(), NO_KSM)),
        Err(e) => Err((e.to_string(), "look at /sys/kernel/mm/ksm")),
    };
    check("KSM counters", &["share watch", "share advise"], found)
}

/// Whether the kernel has KSM and this user may change its settings.
pub fn ksm_check(found: Result<Ksm, KsmError>) -> Check {
    let told = found.and_then(|ksm| {
        let settings = ksm.settings()?;
        let run = settings.get(Setting::Run).unwrap_or(0);
        let without: Vec<_> =
            Setting::ALL.iter().filter(|s| settings.get(**s).is_none()).map(|s| s.name()).collect();
        let without = match without.len() {
            0 => String::new(),
            _ => format!("; this kernel does not have {}", without.join(", ")),
        };
        Ok(format!("run = {run}{without}"))
    });
    let found = match told {
        Ok(detail) => Ok(detail),
        Err(KsmError::NoKsm { .. }) => Err(("this kernel has no KSM".into(), NO_KSM)),
        Err(KsmError::NotRoot { .. }) => Err((
            "only root may change KSM's settings".into(),
            "run these verbs with sudo; share watch, advise, model and potential do not need root",
        )),
        Err(e) => Err((e.to_string(), "look at /sys/kernel/mm/ksm")),
    };
    check(KSM, &["share run", "share check"], found)
}

/// Most VMs that a check names.
const MOST_NAMED: usize = 10;

/// A line for each VM that KVM would not switch now.
fn refused(vms: &[Vm]) -> String {
    let mut lines = vms.iter().filter_map(|vm| {
        let (to, obstacle) = vm.paging.obstacle()?;
        let name = vm.name.as_ref().map_or(String::new(), |name| format!(" ({})", printable(name)));
        Some(format!("\nVM {}{name} {}", vm.id, obstacle.sentence(to.name())))
    });
    let named: String = lines.by_ref().take(MOST_NAMED).collect();
    match lines.count() {
        0 => named,
        n => named + &format!("\n{n} more cannot be switched: `bifold mode` lists them"),
    }
}

/// A warning about public holes of the loaded modules, and a line for each hole.
fn holes(kvm: &Kvm) -> String {
    let lines = kvm.open_holes().into_iter().map(|hole| format!("\n{}", hole.line()));
    kvm.holes_warning().map_or(String::new(), |warning| format!("\n{warning}{}", lines.collect::<String>()))
}

/// Whether KVM shows its VMs, and whether KVM can switch them.
pub fn kvm_checks(host: &Host) -> [Check; 2] {
    let seen = host.kvm().and_then(|kvm| host.vms().map(|vms| (kvm, vms)));
    let (kvm, switching) = match seen {
        Ok((kvm, vms)) => {
            let switching = match kvm.default {
                Some(mode) => {
                    let own = format!("each VM has a mode of its own, {} at first", mode.name());
                    Ok(own + &refused(&vms) + &holes(&kvm))
                }
                None => Err((
                    "this KVM has one paging mode for all VMs".to_string(),
                    "load the modules of `make kernel`",
                )),
            };
            (Ok(format!("{} VMs", vms.len())), switching)
        }
        Err(e) => {
            let missing = match &e {
                HostError::NotRoot { path } => {
                    (format!("only root may read {}", path.display()), "run this verb with sudo")
                }
                HostError::NoDebugfs { .. } => {
                    ("debugfs is not mounted".into(), "as root: mount -t debugfs none /sys/kernel/debug")
                }
                _ => (e.to_string(), "use a machine with hardware virtualization"),
            };
            (Err(missing), Err(("KVM cannot be asked".to_string(), "see KVM above")))
        }
    };
    [
        check(KVM, &["mode", "stat", "top", "daemon"], kvm),
        check(SWITCHING, &["mode VM nested|shadow"], switching),
    ]
}
