// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the tiny VMM's switch cases with the modules of `kernel/build`.

use anyhow::Result;
use bifold_tiny_vmm::switch::{ALL, Runs};

use super::{Shared, Skipped};
use crate::switch::{Machine, judge, run};

fn check(shared: &Shared, runs: Runs) -> Result<()> {
    let release = &shared.lab.kernel().version;
    let Some(modules) = shared.lab.built_modules() else {
        return Err(Skipped(format!("no modules for {release}: make kernel builds them")).into());
    };
    let lab = shared.lab.clone().with_modules(modules);
    let cases: Vec<String> = ALL.iter().filter(|c| c.runs == runs).map(|c| c.name.to_owned()).collect();
    judge(&run(&lab, &cases, Machine { memory_mib: 1536, seconds: 400, exact: true })?)
}

/// Permissions, refusals, and vCPUs in every state.
pub fn control(shared: &Shared) -> Result<()> {
    check(shared, Runs::Control)
}

/// Switches that cannot come about, protection keys, guests of guests, and VMMs that set state during a
/// switch.
pub fn sound(shared: &Shared) -> Result<()> {
    check(shared, Runs::Sound)
}

/// Kept tables, dirty logs, memory slots, guest tables.
pub fn memory(shared: &Shared) -> Result<()> {
    check(shared, Runs::Memory)
}

/// The host's changes of guest memory during switches.
pub fn host(shared: &Shared) -> Result<()> {
    check(shared, Runs::Host)
}
