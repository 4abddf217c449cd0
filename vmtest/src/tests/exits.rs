// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A short form of the comparison that `vmtest validate` does in full.

use std::collections::BTreeMap;

use anyhow::{Result, ensure};

use super::{Shared, once};
use crate::validate::count::{self, Run};
use crate::validate::table::{self, Verdict};
use crate::validate::{Workload, predict};

/// One of each kind: faults of cold pages, INVLPG, full flushes and CR3, tables that come and go.
const PROGRAMS: [&str; 4] = ["touch-cold", "mprotect-invlpg", "switch-4", "mremap-move"];
const MIB: u64 = 512;
const CONFIGS: [&str; 2] = ["nested-4k", "shadow-4k"];

pub fn nested(shared: &Shared) -> Result<()> {
    compare(shared, CONFIGS[0])
}

pub fn shadow(shared: &Shared) -> Result<()> {
    compare(shared, CONFIGS[1])
}

fn compare(shared: &Shared, config: &'static str) -> Result<()> {
    let workload = Workload::new(&PROGRAMS.map(String::from), MIB)?;
    let counted = count::count(shared.lab, &workload, Run { config, kpti: false, number: 0 }, false)?;
    let counted: BTreeMap<_, _> = counted.iter().map(|(w, x)| (*w, count::reasons(x))).collect();
    let predicted = once(&shared.predicted, || predict::predict(shared.lab, &workload, &CONFIGS, false))?;
    let predicted = predicted[config].iter().map(|(w, s)| (*w, predict::reasons(s))).collect();
    let rows = table::rows(&workload.programs, false, config, &predicted, &[counted]);
    let far: Vec<String> = rows
        .iter()
        .filter(|r| r.verdict() != Verdict::Close)
        .map(|r| format!("{} {}: predicted {}, counted {}", r.program, r.reason, r.predicted, r.mean()))
        .collect();
    ensure!(far.is_empty(), "{} of {} rows are not close: {}", far.len(), rows.len(), far.join("; "));
    ensure!(!rows.is_empty(), "nothing was counted");
    Ok(())
}
