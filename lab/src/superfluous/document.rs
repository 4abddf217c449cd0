// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes the comparison as a page of the docs.

use std::fmt::Write;

use super::table::{OperationRow, markdown, tally};
use crate::lab::Lab;
use crate::validate::document::{emulators, today};

/// The results under one kernel.
#[derive(Debug)]
pub struct Results {
    /// The kernel's version.
    pub kernel: String,
    /// The rows of all guests.
    pub rows: Vec<OperationRow>,
    /// Reads of QEMU's own pages, which the comparison leaves out.
    pub others: u64,
}

/// The page. `lab`: one of the laboratories.
pub fn page(lab: &Lab, memory_mib: u64, limit_mib: u64, all: &[Results]) -> String {
    let mut out = format!(
        "# Superfluous swap operations: the model beside the real kernel\n\n\
         Written by `lab superfluous` on {}; {}. Guests of {memory_mib} MiB,\n\
         1 vCPU, 4 KB host pages, nested paging; the host holds {limit_mib} MiB of them. `swaps-file` reads a file of 48 MB from the disk and\n\
         from its cache by turns, `swaps-direct` reads 40 MB of it past the cache and uses them by turns, `swaps-allocate` allocates, uses and\n\
         frees 40 MB by turns (`lab/programs/superfluous.c`). What the kinds are:\n\
         [the guide](../../docs/guide/reclaim.md#superfluous-swap-operations); how they are counted: `lab/src/superfluous/events.rs`. Superfluous\n\
         operations are close within 15 % of the count, or 10; all writes and reads stand beside them.\n",
        today(),
        emulators(lab),
    );
    for of in all {
        let (judged, close) = tally(&of.rows);
        let _ = write!(
            out,
            "\n## Linux {}\n\n{close} of {judged} rows are close. The host read {} pages of QEMU's own besides.\n\n{}",
            of.kernel,
            of.others,
            markdown(&of.rows)
        );
    }
    out
}
