// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How data caches were simulated, in words, with the error of a sample.

use crate::Comparison;
use crate::text::number;

/// Classes of lines: the lines of a 4 KB page.
const ALL: u64 = 64;

/// The line of the table; none without data caches.
pub(crate) fn line(c: &Comparison) -> Option<String> {
    let facts = c.outcome.caches?;
    let n = facts.simulated_classes;
    if n == ALL {
        return Some("every line is simulated".into());
    }
    Some(format!("{n} of {ALL} lines of each page are simulated: cycles ± {} %", number(error_percent(c))))
}

/// The largest error of any configuration's cycles from sampling the caches, in percent: half the
/// width of the 95 % interval.
fn error_percent(c: &Comparison) -> f64 {
    let of = |o: &bifold_model::ConfigOutcome| {
        let cycles = o.total.ideal_cycles(c.outcome.base_cpi) + o.total.extra_cycles() as f64;
        let half = o.cache_error.map_or(0.0, |e| e.half_width_cycles);
        if cycles > 0.0 { 100.0 * half / cycles } else { 0.0 }
    };
    c.outcome.configs.iter().map(of).fold(0.0, f64::max)
}
