// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs an experiment: case after case, each with guests of its own.
//!
//! All guests of a case start together, and their loads begin when every one is ready. From then on samples
//! are taken, and the case's policy decides after each. At the end, orders give everything back, and then the
//! guests are ended. If a guest fails, the outcome notes it and the case continues. If the user stops the
//! run, the case ends, and the outcome has everything up to then.

mod case;

use super::outcome::{CaseOutcome, Outcome, Sample};
use super::paging;
use super::spec::Spec;
use crate::experiment::run::{available_mib, hold_ksm};
use crate::experiment::{Ending, ExperimentError};
use bifold_base::with_causes;
use bifold_guest::kernel;
use bifold_guest::qemu;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::{KsmGuard, Setting, Settings};
use bifold_live::order::folder;
use case::Machine;
use std::sync::atomic::{AtomicBool, Ordering};

/// Memory of an emulator besides the guest's.
const EMULATOR_MIB: u64 = 110;

/// What a run needs besides the experiment.
#[derive(Debug)]
pub struct RunOptions<'a> {
    /// The host.
    pub host: &'a Host,
    /// The guardian of orders about sizes.
    pub orders: &'a Guardian,
    /// Places of the lock and journal of KSM's settings, and their guardian.
    pub ksm: (&'a Places, &'a Guardian),
    /// Whether guests run under KVM, and not emulated.
    pub kvm: bool,
    /// Set this to end the run.
    pub stop: &'a AtomicBool,
}

/// Progress of a run.
#[derive(Debug)]
#[non_exhaustive]
pub enum Notice<'a> {
    /// A stage of the preparation.
    Stage(&'a str),
    /// A case begins: its index among all that are planned, and its name.
    Case(usize, &'a str),
    /// A sample was taken.
    Sample(&'a Sample),
    /// A note for the user.
    Note(&'a str),
}

/// Runs an experiment.
///
/// # Errors
/// If nothing could be run: no emulator, no kernel, too little memory; with KSM, not root. A failure within a
/// case is in the case's ending.
pub fn run(
    spec: &Spec,
    options: &RunOptions,
    tell: &mut dyn FnMut(Notice),
) -> Result<Outcome, ExperimentError> {
    let guests = spec.plan();
    fits(spec, options.host)?;
    if options.kvm {
        usable_kvm()?;
    }
    if spec.cases.iter().any(|c| c.paging) {
        paging::usable(options.host, spec)?;
    }
    let qemu = qemu::find()?;
    // Before anything is fetched.
    let mut hold =
        || hold_ksm(options.host, options.ksm.0, options.ksm.1, &mut |text| tell(Notice::Note(text)));
    let guard = spec.cases.iter().any(|c| c.sharing).then(&mut hold).transpose()?;
    let journals = folder()?;
    let mut kernels = Vec::new();
    for kind in &spec.guests {
        kernels.push(kernel::for_guest(Some(&kind.kernel), &mut |s| tell(Notice::Stage(s)))?);
    }
    let repeated = spec.repetitions > 1;
    let mut outcome = Outcome {
        host_kernel: options.host.kernel_release(),
        qemu: qemu.version.clone(),
        kvm: options.kvm,
        cases: Vec::new(),
        planned: spec.cases.len() * spec.repetitions as usize,
    };
    let all = (1..=spec.repetitions).flat_map(|n| spec.cases.iter().map(move |case| (n, case)));
    for (n, (repetition, case)) in all.enumerate() {
        if options.stop.load(Ordering::Relaxed) {
            break;
        }
        let mut result = CaseOutcome {
            spec: case.clone(),
            repetition,
            repeated,
            guests: Vec::new(),
            samples: Vec::new(),
            ending: Ending::Whole,
            notes: Vec::new(),
        };
        tell(Notice::Case(n, &result.title()));
        let machine =
            Machine { spec, case, guests: &guests, kernels: &kernels, qemu: &qemu, journals: &journals };
        let set = |guard: &KsmGuard| guard.set(&Settings::of(&[(Setting::Run, u64::from(case.sharing))]));
        let ready = guard.as_ref().map_or(Ok(()), set).map_err(ExperimentError::from);
        match ready.and_then(|()| machine.run(options, &mut result, tell)) {
            Ok(ending) => result.ending = ending,
            Err(e) => result.ending = Ending::Failed(with_causes(&e)),
        }
        let over = result.ending != Ending::Whole;
        if let Ending::Failed(why) = &result.ending {
            tell(Notice::Note(&format!("{}: {why}", result.title())));
        }
        outcome.cases.push(result);
        if over {
            break;
        }
    }
    if let Some(Err(e)) = guard.map(KsmGuard::restore) {
        let e = ExperimentError::from(e);
        // The samples are shown all the same, and the run has failed.
        let Some(last) = outcome.cases.last_mut() else { return Err(e) };
        tell(Notice::Note(&with_causes(&e)));
        last.ending = Ending::Failed(with_causes(&e));
    }
    Ok(outcome)
}

/// Refuses KVM where it cannot be used.
fn usable_kvm() -> Result<(), ExperimentError> {
    let open = std::fs::OpenOptions::new().read(true).write(true).open("/dev/kvm");
    open.map(drop).map_err(|e| ExperimentError::Kvm { why: format!("/dev/kvm: {e}") })
}

/// Refuses guests that do not fit into the host's memory.
fn fits(spec: &Spec, host: &Host) -> Result<(), ExperimentError> {
    let guests = spec.guests.iter().map(|g| u64::from(g.count)).sum::<u64>();
    let most = spec.cases.iter().filter_map(|c| c.memory_mib).max().unwrap_or(0);
    let ram: u64 = spec.guests.iter().map(|g| u64::from(g.count) * g.memory_mib.max(most)).sum();
    let (needed_mib, available_mib) = (ram + guests * EMULATOR_MIB, available_mib(host)?);
    if needed_mib > available_mib {
        return Err(ExperimentError::TooLittle { guests: guests as usize, needed_mib, available_mib });
    }
    Ok(())
}
