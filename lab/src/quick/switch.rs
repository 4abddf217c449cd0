// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the tiny VMM's switch cases with the modules of `kernel/build`.

use anyhow::Result;
use bifold_tiny_vmm::switch::{ALL, Runs};

use super::Shared;
use crate::switch::{Machine, judge, run};

/// The cases of a kind.
pub fn check(shared: &Shared, runs: Runs) -> Result<()> {
    let lab = shared.lab.switching()?;
    let cases: Vec<String> = ALL.iter().filter(|c| c.runs == runs).map(|c| c.name.to_owned()).collect();
    judge(&run(&lab, &cases, Machine { memory_mib: 1536, seconds: 400, exact: true })?)
}
