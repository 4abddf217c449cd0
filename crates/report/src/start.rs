// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The line of a run that says what the guest's own start was, which is in no figure.

use crate::Comparison;
use crate::text::{grouped, seconds};
use bifold_model::Paging;

/// None where the stream does not say where the command's program begins. The time is that of the first
/// configuration with a hypervisor, or else of the first.
pub(crate) fn line(c: &Comparison) -> Option<String> {
    let o = &c.outcome;
    let start = o.start.as_ref()?;
    let of = start.iter().find(|r| r.config.mode != Paging::Native).or(start.first())?;
    let cycles = of.total.ideal_cycles(o.base_cpi) + of.total.extra_cycles() as f64;
    Some(format!(
        "the guest's init and exec are left out: {} instructions, {} in {}",
        grouped(of.total.instructions),
        seconds(cycles / o.frequency_hz.max(1) as f64),
        of.config.name()
    ))
}

/// Ideal cycles of the start.
pub(crate) fn ideal_cycles(c: &Comparison) -> f64 {
    let first = c.outcome.start.iter().flatten().next();
    first.map_or(0.0, |r| r.total.ideal_cycles(c.outcome.base_cpi))
}
