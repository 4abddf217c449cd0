// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a laboratory inside the laboratory, where KVM runs under KVM.

use anyhow::{Context, Result, ensure};

use super::{Shared, hand_made};
use crate::TINY_VMM;
use crate::exits::outer;
use crate::lab::job::{InnerBacking, Job, Machine};
use crate::lab::{Plan, beside};
use crate::validate::count::formats;

/// `cpu.entry_exits` of the laboratory's processor: VMLOAD twice, VMSAVE, STGI, CLGI, VMRUN and a write to an
/// MSR. Where the inner hypervisor went to user space in between, there are more.
const ENTRY_EXITS: u64 = 7;

/// Hand-made guests of the KVM inside exit as the model predicts, in both modes, and an entry costs as many
/// exits as documented.
pub fn guests(shared: &Shared) -> Result<()> {
    let lab = shared.lab;
    lab.needs_qemu("a laboratory under Bochs has none inside")?;
    let mut jobs = Vec::new();
    for nested in [true, false] {
        jobs.push(Job::Kvm { nested });
        jobs.extend(hand_made::jobs("count", "4k")?);
    }
    let inside = Plan { jobs: jobs.into(), programs: vec![beside(TINY_VMM)?], ..Plan::default() };
    let machine = Machine {
        memory_mib: 512,
        backing: InnerBacking::Small,
        trace: outer::EVENTS.map(String::from).to_vec(),
        trace_mib: 64,
    };
    let plan = Plan {
        jobs: vec![Job::Kvm { nested: true }, Job::Machine(machine)].into(),
        inside: Some(Box::new(inside)),
        ..Plan::default()
    };
    let output = lab.boot_for_last(&plan)?;
    for (number, mode) in [(1, "nested"), (3, "shadow")] {
        let counted = output.inside(number)?;
        hand_made::check(shared, &[counted]).with_context(|| format!("{mode} paging"))?;
    }
    let (formats, raw) = formats(&output)?;
    let entries = outer::entries(outer::Trace { raw, formats: &formats }, lab.vendor())?;
    let sevens = entries.get(&ENTRY_EXITS).copied().unwrap_or(0);
    ensure!(
        entries.keys().next() == Some(&ENTRY_EXITS) && 2 * sevens > entries.values().sum(),
        "entries into the guest by exits for them: {entries:?}, but at least {ENTRY_EXITS} were to be each and most of them"
    );
    Ok(())
}
