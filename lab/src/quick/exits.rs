// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a short form of the comparison that `lab validate` makes in full.

use anyhow::{Context as _, Result, ensure};
use bifold_guest::TableFormat;

use super::{BUSYBOX, Shared, once};
use crate::lab::job::Job;
use crate::lab::{Lab, Plan, Skipped};
use crate::validate::count::{self, Run};
use crate::validate::table::{self, Verdict};
use crate::validate::{Workload, predict};

/// A program of each kind: faults of cold pages, full flushes, clean entries, CR3 loads. `idle` runs first
/// and is not checked, because deferred work of the booted kernel falls into its time. No program lets the
/// kernel's slabs grow: RCU frees at times that differ between runs, and each new page is an exit.
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
    let predicted =
        once(&shared.predicted, || predict::predict(shared.lab, &workload, &CONFIGS, false, false))?;
    close(shared.lab, &workload, config, &predicted[config])
}

/// The same in guests in 32-bit mode with PAE.
pub fn pae(shared: &Shared) -> Result<()> {
    let skipped = |e: anyhow::Error| anyhow::Error::from(Skipped(format!("{e:#}")));
    let lab =
        shared.lab.clone().with_inner_tables(TableFormat::Pae, &mut |_| ()).map_err(|e| skipped(e.into()))?;
    let workload =
        Workload::with_tables(&PROGRAMS.map(String::from), MIB, 1, TableFormat::Pae).map_err(skipped)?;
    let predicted = predict::predict(&lab, &workload, &CONFIGS, false, false)?;
    // With nested paging, such a guest resets while it boots under QEMU's emulation of SVM; 2 levels boot,
    // and so does shadow paging.
    close(&lab, &workload, CONFIGS[1], &predicted[CONFIGS[1]])
}

/// A guest with 5 levels, on a processor that has them, says that it uses them: Linux clears the flag
/// otherwise.
pub fn five_levels(shared: &Shared) -> Result<()> {
    shared.lab.needs_qemu("only QEMU's processor takes the flag la57")?;
    let lab = shared.lab.clone().of(shared.lab.vendor(), Some("+la57".into()), Vec::new())?;
    let lab = lab.with_inner_tables(TableFormat::FiveLevel, &mut |_| ())?;
    for nested in [true, false] {
        let mut jobs = vec![Job::Kvm { nested }];
        jobs.extend(super::inner::jobs_of(TableFormat::FiveLevel));
        let plan = Plan {
            jobs: jobs.into(),
            programs: vec![BUSYBOX.into()],
            exact: true,
            memory_mib: 1536,
            ..Plan::default()
        };
        let outputs = lab.boot(&plan, &mut |_, _| String::new())?;
        let text = &outputs.last().context("no output")?.done.stdout;
        ensure!(
            text.split_whitespace().any(|word| word == "la57"),
            "the guest uses no 5 levels, nested paging {nested}: {text}"
        );
    }
    Ok(())
}

fn close(lab: &Lab, workload: &Workload, config: &'static str, predicted: &predict::Predicted) -> Result<()> {
    let counted = count::count(lab, workload, Run { config, kpti: false, number: 0 }, false)?;
    let counted = count::reasons(workload, &counted, false);
    let predicted = predict::reasons(predicted);
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
