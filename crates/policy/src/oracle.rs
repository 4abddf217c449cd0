// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The oracle: the cheapest sequence of modes that can be chosen with the whole run known in advance.
//!
//! An interval's cost depends on when its mode was entered. The dynamic program therefore goes over stays
//! (mode, from, to) instead of intervals: n^2/2 of them. In a VM that keeps its nested tables and whose
//! memory these do not map from the start, the cost also depends on when the mode was left before. The oracle
//! does not pay for those violations, and so stays a lower bound.

use crate::{Mode, PerMode, Track};

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

/// The cheapest way to a switch: its cost, and the stay before the switch.
#[derive(Debug, Clone, Copy)]
struct Way {
    cost: f64,
    from: usize,
    mode: Mode,
}

/// The cheapest sequence for a VM that starts in mode `start` and may switch before the first interval. Costs
/// of switching are divided by `switch_scale`.
///
/// # Panics
/// If the timeline lacks the mode `start`.
pub fn oracle(track: &Track, start: Mode, switch_scale: f64) -> Oracle {
    let n = track.len();
    // best[k][m]: the cheapest way through intervals 0..k that ends with a switch to m.
    let nothing: PerMode<Option<Way>> = track.samples.map(|_, _| None);
    let mut best = vec![nothing; n + 1];
    let mut end = Way { cost: f64::INFINITY, from: 0, mode: start };
    let mut stay =
        |from: usize, mode: Mode, before: f64, entered: bool, best: &mut Vec<PerMode<Option<Way>>>| {
            let mut cost = before;
            let mut pages = 0.0f64;
            #[allow(clippy::needless_range_loop)]
            for k in from..=n {
                if k > from {
                    let j = k - 1;
                    cost += track.ideal[j] + track.extra(mode, j);
                    let mut tables = 0.0;
                    if entered && !(mode == Mode::Nested && track.vm.keep_nested) {
                        let cold = track.cold(mode, j, from, 0);
                        cost += cold.cycles / switch_scale;
                        tables = cold.tables;
                    }
                    if mode != Mode::Nested {
                        pages = track.pages_after(mode, j, entered.then_some(pages), tables);
                    }
                }
                // Only the first stay may be empty: the VM may switch before the first interval.
                if k == n {
                    if cost < end.cost {
                        end = Way { cost, from, mode };
                    }
                } else if k > from || !entered {
                    let cost = cost + track.switch_cycles(mode, pages) / switch_scale;
                    for (_, way) in best[k].iter_mut().filter(|(to, _)| *to != mode) {
                        if way.is_none_or(|way| cost < way.cost) {
                            *way = Some(Way { cost, from, mode });
                        }
                    }
                }
            }
        };
    stay(0, start, 0.0, false, &mut best);
    for from in 0..n {
        for mode in track.modes() {
            if let Some(way) = best[from][mode] {
                stay(from, mode, way.cost, true, &mut best);
            }
        }
    }
    let Way { cost: cycles, mut from, mut mode } = end;
    let mut modes = vec![mode; n];
    let mut switches = 0;
    // Walks back along the stays. Each except the first began with a switch.
    let mut to = n;
    loop {
        modes[from..to].fill(mode);
        let Some(before) = best[from][mode].filter(|_| from > 0 || mode != start) else { break };
        switches += 1;
        (to, from, mode) = (from, before.from, before.mode);
    }
    Oracle { modes, cycles, switches }
}
