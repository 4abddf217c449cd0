// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests a guest of which the host holds a part: a short form of what `lab reclaim` counts.

use anyhow::{Context, Result, ensure};

use super::Shared;
use crate::reclaim::count::{Run, count};
use crate::reclaim::workload;

const PROGRAM: &str = "reclaim-zipf";
const MIB: u64 = 20;

/// The program itself checks what it reads.
pub fn swaps(shared: &Shared) -> Result<()> {
    shared.lab.needs_qemu("a machine under Bochs has no disk to swap to")?;
    let workload = workload(&[PROGRAM.to_owned()], 256)?;
    let counted = count(shared.lab, &workload, Run { config: "nested-4k", mib: MIB, number: 0 })?;
    let window = workload.window(PROGRAM).and_then(|w| counted.windows.get(&w)).context("no window")?;
    let violations = window.exits.get("violation").copied().unwrap_or(0);
    // The program uses 28 MiB.
    ensure!(
        window.pages_read > 1000 && violations >= window.pages_read,
        "{} refaults and {violations} violations",
        window.pages_read
    );
    let held = counted.limited.last;
    ensure!(held <= (MIB + 4) << 8, "the host held {held} frames with a limit of {}", MIB << 8);
    Ok(())
}
