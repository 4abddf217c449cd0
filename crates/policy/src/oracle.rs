// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle: the cheapest sequence of modes that can be chosen with the whole run known in advance.
//!
//! An interval's cost depends on when its mode was entered. The dynamic program therefore goes over stays
//! (mode, from, to) instead of intervals: n^2/2 of them. In a VM that keeps its nested tables and whose
//! memory is not yet all mapped, the cost also depends on when the mode was left before. The oracle does not
//! pay for those violations, and so stays a lower bound.

use crate::Mode;
use crate::track::Track;

/// The cheapest sequence and its cost.
#[derive(Debug, Clone, PartialEq)]
pub struct Oracle {
    /// The mode of every interval.
    pub modes: Vec<Mode>,
    /// All cycles.
    pub cycles: f64,
    /// Number of switches.
    pub switches: u64,
}

/// The cheapest sequence for a VM that starts in mode `start` and may switch before the first interval. Costs
/// of switching are divided by `switch_scale`.
pub fn oracle(track: &Track, start: Mode, switch_scale: f64) -> Oracle {
    let n = track.len();
    // best[k][m]: the least cost of intervals 0..k followed by a switch to m at k, and where the stay before
    // that switch began.
    let mut best = vec![[(f64::INFINITY, 0usize); 2]; n + 1];
    let mut end = (f64::INFINITY, 0usize, start);
    let warm_nested = track.vm.keep_nested && !track.vm.long_lived;
    let mut stay =
        |from: usize, mode: Mode, before: f64, entered: bool, best: &mut Vec<[(f64, usize); 2]>| {
            let mut cost = before;
            let mut pages = 0.0f64;
            #[allow(clippy::needless_range_loop)]
            for k in from..=n {
                if k > from {
                    let j = k - 1;
                    cost += track.ideal[j] + track.extra(mode, j);
                    let mut tables = 0.0;
                    if entered && !(mode == Mode::Nested && warm_nested) {
                        let cold = track.cold(mode, j, from, 0);
                        cost += cold.cycles / switch_scale;
                        tables = cold.tables;
                    }
                    if mode == Mode::Shadow {
                        pages = track.pages_after(j, entered.then_some(pages), tables);
                    }
                }
                // Only the first stay may be empty: the VM may switch before the first interval.
                if k == n {
                    if cost < end.0 {
                        end = (cost, from, mode);
                    }
                } else if k > from || !entered {
                    let cost = cost + track.switch_cycles(mode, pages) / switch_scale;
                    let slot = &mut best[k][mode.other() as usize];
                    if cost < slot.0 {
                        *slot = (cost, from);
                    }
                }
            }
        };
    stay(0, start, 0.0, false, &mut best);
    #[allow(clippy::needless_range_loop)]
    for from in 0..n {
        for mode in Mode::BOTH {
            let (cost, _) = best[from][mode as usize];
            if cost.is_finite() {
                stay(from, mode, cost, true, &mut best);
            }
        }
    }
    let (cycles, mut from, mut mode) = end;
    let mut modes = vec![mode; n];
    let mut switches = 0;
    // Walks back along the stays. Each except the first began with a switch.
    let mut to = n;
    loop {
        modes[from..to].fill(mode);
        let (cost, before) = best[from][mode as usize];
        if !(cost.is_finite() && (from > 0 || mode != start)) {
            break;
        }
        switches += 1;
        (to, from, mode) = (from, before, mode.other());
    }
    Oracle { modes, cycles, switches }
}
