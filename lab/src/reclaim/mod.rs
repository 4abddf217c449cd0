// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares the model with the real KVM where the host holds only a part of the guest. The same guest runs
//! the same programs: once captured, where the model predicts, and as an inner guest in a cgroup with a
//! limit, where refaults and exits are counted. `predict` and `count` give a program's figures, `table`
//! compares them, `drive` runs everything, and `document` writes the page.

pub mod count;
pub mod document;
pub mod drive;
pub mod predict;
pub mod table;

use anyhow::{Context, Result};

use crate::validate::{RECLAIM, Workload, programs};

/// The configurations that are compared.
pub const CONFIGS: [&str; 2] = ["nested-4k", "shadow-4k"];

/// The program in whose window the host's limit begins.
pub const LIMIT: &str = "reclaim-limit";

/// Frames in a MiB.
pub(crate) const FRAMES: u64 = 256;

/// The reasons of exits that bring back what was swapped out, and that make it writable.
fn exit_reasons(config: &str) -> &'static [&'static str] {
    if config.starts_with("nested") { &["violation"] } else { &["hidden_fault", "permission"] }
}

/// The programs named, or all, after the one in which the limit begins.
pub fn workload(only: &[String], memory_mib: u64) -> Result<Workload> {
    let names = match only {
        [] => programs()?.into_iter().map(|p| p.name).filter(|name| name.starts_with(RECLAIM)).collect(),
        _ => [&[LIMIT.to_owned()], only].concat(),
    };
    Workload::new(&names, memory_mib, 1)
}

/// The window in which the limit begins.
pub(crate) fn limit_window(workload: &Workload) -> Result<u64> {
    workload.window(LIMIT).context("the workload has no window for the limit")
}
