// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs an experiment: case after case, each with guests of its own.
//!
//! The loads of a case begin when every one is ready. The case's policy decides after each sample. At the
//! end, orders give everything back, and then the guests are ended.

mod case;

use super::outcome::{CaseOutcome, Outcome, Sample};
use super::spec::{CaseSpec, Spec};
use crate::ExperimentError;
use crate::paging;
use crate::run::{EMULATOR_MIB, Ending, Tell, available_mib, cases, hold_ksm};
use bifold_base::with_causes;
use bifold_guest::kernel;
use bifold_guest::qemu;
use bifold_host::Host;
use bifold_host::held::{Guardian, Places};
use bifold_host::ksm::KsmGuard;
use bifold_live::order::folder;
use case::Machine;
use std::sync::atomic::AtomicBool;

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
pub type Notice<'a> = crate::run::Notice<'a, Sample>;

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
    fits(spec, options.host)?;
    usable_kvm(options.kvm)?;
    if spec.cases.iter().any(|c| c.paging) {
        paging::usable(options.host, spec.swap_mib())?;
    }
    let qemu = qemu::find()?;
    // Before anything is fetched.
    let sharing = spec.cases.iter().any(|c| c.sharing);
    let guard = sharing.then(|| hold_ksm(options.host, options.ksm, tell)).transpose()?;
    let journals = folder()?;
    let mut kernels = Vec::new();
    for kind in &spec.guests {
        kernels.push(kernel::for_guest(Some(&kind.kernel), &mut |s| tell(Notice::Stage(s)))?);
    }
    let all = (1..=spec.repetitions).flat_map(|n| spec.cases.iter().map(move |case| (n, case)));
    let of = |(repetition, case): (u32, &CaseSpec)| CaseOutcome {
        spec: case.clone(),
        repetition,
        repeated: spec.repetitions > 1,
        guests: Vec::new(),
        samples: Vec::new(),
        ending: Ending::Whole,
        notes: Vec::new(),
    };
    let machine = Machine {
        spec,
        options,
        guests: &spec.plan(),
        kernels: &kernels,
        qemu: &qemu,
        journals: &journals,
        guard: guard.as_ref(),
    };
    let run = |mut result: CaseOutcome, tell: Tell<Sample>| {
        result.ending = machine.run(&mut result, tell).unwrap_or_else(Ending::from);
        let ending = result.ending.clone();
        (result, ending)
    };
    let planned = all.map(of).map(|result| (result.title(), result));
    let mut outcome = Outcome {
        host_kernel: options.host.kernel_release(),
        qemu: qemu.version.clone(),
        kvm: options.kvm,
        cases: cases(planned, options.stop, tell, run),
        planned: spec.cases.len() * spec.repetitions as usize,
    };
    if let Some(Err(e)) = guard.map(KsmGuard::restore) {
        let e = ExperimentError::from(e);
        // The samples are shown all the same, and the run has failed.
        let Some(last) = outcome.cases.last_mut() else { return Err(e) };
        tell(Notice::Note(&with_causes(&e)));
        last.ending = Ending::Failed(with_causes(&e));
    }
    Ok(outcome)
}

/// Refuses KVM, if that is wished, where it cannot be used.
fn usable_kvm(wished: bool) -> Result<(), ExperimentError> {
    if !wished {
        return Ok(());
    }
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
