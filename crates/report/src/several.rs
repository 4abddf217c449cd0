// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The line of a guest of several vCPUs: how many worked, what they asked of each other, and how long they
//! waited for the lock of shadow work.

use crate::Comparison;
use crate::text::{fixed, grouped};
use bifold_model::Paging;

/// The line; none for a guest of one vCPU.
pub(crate) fn line(c: &Comparison) -> Option<String> {
    let o = &c.outcome;
    let several = o.several.as_ref()?;
    let most =
        |get: fn(&bifold_model::Sample) -> u64| o.configs.iter().map(|r| get(&r.total)).max().unwrap_or(0);
    let mut text = format!("{} of {} at work on average", fixed(several.at_work, 1), o.vcpus);
    // Older recordings have no IPIs, and a guest without any is rare.
    let ipis = most(|s| s.exits_ipi);
    if ipis > 0 {
        text +=
            &format!("; {} IPIs sent, {} TLB shootdowns", grouped(ipis), grouped(most(|s| s.tlb_shootdowns)));
    }
    let rows = o.configs.iter().zip(&several.waits).filter(|(r, _)| r.config.mode == Paging::Shadow);
    let waits: Vec<String> = rows
        .map(|(r, w)| {
            let percent = 100.0 * w.wait_cycles as f64 / r.total.ideal_cycles(o.base_cpi).max(1.0);
            format!("{} {} %", r.config.name(), fixed(percent, 2))
        })
        .collect();
    if !waits.is_empty() {
        text += &format!(
            "; waits for the lock of shadow work, by a fitted model and in no other figure: {}",
            waits.join(", ")
        );
    }
    Some(text)
}
