// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How data caches were simulated, in words, with the error of a sample.

use crate::Comparison;
use crate::text::number;
use bifold_model::Frames;

/// Classes of lines: the lines of a 4 KB page.
const ALL: u64 = 64;

/// The line of the table; none without data caches.
pub(crate) fn line(c: &Comparison) -> Option<String> {
    let facts = c.outcome.caches?;
    let n = facts.simulated_classes;
    let lines = if n == ALL {
        "every line is simulated".into()
    } else {
        format!("{n} of {ALL} lines of each page are simulated")
    };
    let host = match c.outcome.host_frames {
        Frames::Fresh => "a fresh",
        Frames::Aged => "an aged",
    };
    Some(format!("{lines}, in {host} host's frames: overheads ± {} points", number(error_points(c))))
}

/// The largest error of any configuration's overhead, in points.
fn error_points(c: &Comparison) -> f64 {
    let of = |o: &bifold_model::ConfigOutcome| o.cache_error.map_or(0.0, |e| e.half_width_extra_cycles);
    let ideal = c.outcome.ideal_cycles();
    let largest = c.outcome.configs.iter().map(of).fold(0.0, f64::max);
    if ideal > 0.0 { 100.0 * largest / ideal } else { 0.0 }
}
