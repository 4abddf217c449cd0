// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a laboratory inside the laboratory, where KVM runs under KVM.

use anyhow::{Context, Result};

use super::{Shared, Skipped, hand_made};
use crate::lab::job::{InnerBacking, Job, Jobs, Machine};
use crate::lab::{Plan, beside};
use crate::vendor::Emulator;

/// Hand-made guests of the KVM inside exit as the model predicts, in both modes.
pub fn guests(shared: &Shared) -> Result<()> {
    let lab = shared.lab;
    if let Emulator::Bochs { .. } = lab.vendor().emulator {
        return Err(Skipped("a laboratory under Bochs has none inside".into()).into());
    }
    let mut jobs = Vec::new();
    for nested in [true, false] {
        jobs.push(Job::Kvm { nested });
        jobs.extend(hand_made::jobs("count", "4k")?);
    }
    let inside = Plan {
        jobs: Jobs { jobs, huge_pages: 0 },
        programs: vec![beside(hand_made::TINY_VMM)?],
        ..Plan::default()
    };
    let machine = Machine { memory_mib: 512, backing: InnerBacking::Small, trace: Vec::new(), trace_mib: 0 };
    let plan = Plan {
        jobs: Jobs { jobs: vec![Job::Kvm { nested: true }, Job::Machine(machine)], huge_pages: 0 },
        inside: Some(Box::new(inside)),
        ..Plan::default()
    };
    let output = lab.boot_for_last(&plan)?;
    for (number, mode) in [(1, "nested"), (3, "shadow")] {
        let counted = output.inside(number)?;
        hand_made::check(shared, &[counted]).with_context(|| format!("{mode} paging"))?;
    }
    Ok(())
}
