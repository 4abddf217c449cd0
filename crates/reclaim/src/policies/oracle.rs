// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sizes that cost the fewest misses by the guests' next curves.
//!
//! For each step the sizes are those of the least sum of misses over a number of steps to come, from what a
//! guest holds, as if sizes stayed. The oracle is the best of several such numbers, from one step to all that
//! are left. It is no bound: finding the best plan of all takes a search over all sizes of all guests at all
//! times.

use super::curves::least_misses;
use crate::grid::Curve;
use crate::replay::{Guest, Host, Now, Policy, Tick, View, replay};

/// Numbers of steps to come.
const AHEAD: [usize; 6] = [1, 4, 16, 64, 256, usize::MAX];

/// Looks a number of steps ahead.
pub(crate) struct Ahead<'a> {
    guests: &'a [Guest],
    ahead: usize,
    step: usize,
    /// Curves of this step and those to come, summed, for each guest.
    sums: Vec<Curve>,
}

impl<'a> Ahead<'a> {
    pub fn new(guests: &'a [Guest], ahead: usize) -> Ahead<'a> {
        let sums = guests.iter().map(|guest| {
            let mut sum = Curve::flat(&guest.steps[0].curve);
            guest.steps.iter().take(ahead).for_each(|step| sum.add(&step.curve, 1.0));
            sum
        });
        Ahead { guests, ahead, step: 0, sums: sums.collect() }
    }
}

impl Policy for Ahead<'_> {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        let at = self.step;
        let sizes = least_misses(now.host, guests, |i, size| {
            let held = guests[i].held.min(size);
            self.sums[i].misses_while_growing(held, size, guests[i].in_use - held).0
        });
        self.step += 1;
        for (sum, guest) in self.sums.iter_mut().zip(self.guests) {
            // This step leaves the sum, and one enters at its end.
            sum.add(&guest.steps[at].curve, -1.0);
            if let Some(step) = at.checked_add(self.ahead).and_then(|end| guest.steps.get(end)) {
                sum.add(&step.curve, 1.0);
            }
        }
        sizes
    }
}

/// The replay with the fewest refaults.
pub(crate) fn best(guests: &[Guest], host: Host) -> Vec<Vec<Tick>> {
    let refaults = |ticks: &[Vec<Tick>]| ticks.iter().flatten().map(|tick| tick.refaults).sum::<f64>();
    let replays = AHEAD.map(|ahead| replay(guests, host, &mut Ahead::new(guests, ahead)));
    replays.into_iter().min_by(|a, b| refaults(a).total_cmp(&refaults(b))).expect("there is one")
}
