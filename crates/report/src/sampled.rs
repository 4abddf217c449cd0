// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Accuracy of a sampled run: its windows, and the interval of each overhead.

use crate::Comparison;
use crate::text::{decimals, fixed, grouped, number};

/// With fewer windows, Student's t is far from normal, and the windows are likely to miss phases.
const FEW_WINDOWS: u64 = 10;

/// The windows, and the share of instructions that they measured.
pub(crate) fn windows_line(c: &Comparison) -> Option<String> {
    let s = c.outcome.sampling?;
    let all = s.head_instructions + s.measured_instructions + s.warm_up_instructions + s.other_instructions;
    let share = 100.0 * s.measured_instructions as f64 / all.max(1) as f64;
    let mean = s.measured_instructions / s.windows.max(1);
    let (n, mean) = (grouped(s.windows), grouped(mean));
    let head = grouped(s.head_instructions);
    let share = number(share);
    if s.windows < FEW_WINDOWS && s.other_instructions > 0 {
        return Some(format!(
            "only {n} windows of {mean} instructions and the first {head} instructions were measured: intervals are \
             wide or missing; sample shorter periods, or record the whole run"
        ));
    }
    Some(format!(
        "{n} windows of {mean} instructions ({share} % of the run) and the first {head} instructions were \
         measured; figures are estimates"
    ))
}

/// One row per configuration: its overhead with the half-width of its 95 % interval.
pub(crate) fn table(c: &Comparison) -> Option<String> {
    c.outcome.sampling?;
    let overhead = |cycles: f64| 100.0 * cycles / c.outcome.ideal_cycles().max(1.0);
    let estimates = || c.outcome.configs.iter().filter_map(|r| Some((r, r.estimate?)));
    let max = estimates().map(|(r, _)| overhead(r.total.extra_cycles() as f64)).fold(0.0, f64::max);
    let digits = decimals(max);
    let rows = estimates().map(|(r, e)| {
        let total = overhead(r.total.extra_cycles() as f64);
        let cell = |v: f64| fixed(v, digits);
        let (half, share) = match e.half_width_cycles.map(overhead) {
            Some(h) => (cell(h), if total > 0.0 { number(100.0 * h / total) } else { "-".into() }),
            None => ("-".into(), "-".into()),
        };
        vec![r.config.name(), cell(total), half, share, cell(overhead(e.exact_cycles as f64))]
    });
    let head = [
        "sampled\nconfiguration",
        "overhead\n%",
        "95 % interval\n± points",
        "interval in %\nof overhead",
        "counted exactly\n% of ideal",
    ];
    Some(crate::text_table::table(head.map(String::from).to_vec(), rows.collect()))
}
