// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a short form of the comparison that `lab validate` makes in full.

use anyhow::{Result, ensure};

use super::{Shared, once};
use crate::validate::count::{self, Run};
use crate::validate::table::{self, Verdict};
use crate::validate::{Workload, predict};

/// A program of each kind: faults of cold pages, full flushes, clean entries, CR3 loads. `idle` runs first and
/// is not checked, because deferred work of the booted kernel falls into its time. No program lets the kernel's
/// slabs grow: RCU frees at times that differ between runs, and each new page is an exit.
const PROGRAMS: [&str; 5] = [IDLE, "touch-cold", "dontneed-refill", "clean-dirty", "switch-4"];
const IDLE: &str = "idle";
const MIB: u64 = 256;
const CONFIGS: [&str; 2] = ["nested-4k", "shadow-4k"];

pub fn nested(shared: &Shared) -> Result<()> {
    compare(shared, CONFIGS[0])
}

pub fn shadow(shared: &Shared) -> Result<()> {
    compare(shared, CONFIGS[1])
}

fn compare(shared: &Shared, config: &'static str) -> Result<()> {
    let workload = Workload::new(&PROGRAMS.map(String::from), MIB, 1)?;
    let counted = count::count(shared.lab, &workload, Run { config, kpti: false, number: 0 }, false)?;
    let counted = count::reasons(&workload, &counted, false);
    let predicted =
        once(&shared.predicted, || predict::predict(shared.lab, &workload, &CONFIGS, false, false))?;
    let predicted = predict::reasons(&predicted[config]);
    let rows = table::rows(&workload.programs, false, config, &predicted, &[counted]);
    let far: Vec<String> = rows
        .iter()
        .filter(|r| r.program != IDLE && r.verdict() != Verdict::Close)
        .map(|r| format!("{} {}: predicted {}, counted {}", r.program, r.reason, r.predicted, r.mean()))
        .collect();
    ensure!(far.is_empty(), "{} of {} rows are not close: {}", far.len(), rows.len(), far.join("; "));
    ensure!(!rows.is_empty(), "nothing was counted");
    Ok(())
}
