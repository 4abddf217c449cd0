// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sizes that cost the fewest misses by the guests' last curves.
//!
//! The next step is taken to be as an average of the last ones, of which each newer one counts as much as all older ones. Misses are those
//! from what a guest holds to what it would get, so that a change has its price. The search is exact over 256 parts of what the
//! guests can share ([`least_cost`]). Memory that would spare no miss is divided equally.

use crate::grid::Curve;
use crate::partition::{by_level, least_cost};
use crate::replay::{Now, Policy, View};

/// Parts of the memory above the guests' least.
const PARTS: u64 = 256;
/// What taking a frame costs, in misses: little, so that of equal sums one is chosen that takes few.
const TAKE: f64 = 0.01;
/// The last step's part of the average.
const NEW: f64 = 0.5;

#[derive(Default)]
pub(crate) struct Curves {
    expected: Vec<Curve>,
}

impl Policy for Curves {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        let past: Option<Vec<&Curve>> =
            guests.iter().map(|guest| guest.past.map(|past| &past.curve)).collect();
        let Some(past) = past else { return super::equal::Equal.decide(now, guests) };
        if self.expected.is_empty() {
            self.expected = past.into_iter().cloned().collect();
        } else {
            for (expected, past) in self.expected.iter_mut().zip(past) {
                *expected = expected.scaled(1.0 - NEW);
                expected.add(past, NEW);
            }
        }
        least_misses(now.host, guests, |i, size| {
            let held = guests[i].held.min(size);
            self.expected[i].misses_while_growing(held, size, guests[i].in_use - held).0
        })
    }
}

/// The sizes with the least sum of `misses(i, size)`.
pub(super) fn least_misses(host: u64, guests: &[View], misses: impl Fn(usize, f64) -> f64) -> Vec<u64> {
    let shared = host.saturating_sub(guests.iter().map(|guest| guest.least).sum());
    let unit = shared.div_ceil(PARTS).max(1);
    let costs: Vec<Vec<f64>> = guests
        .iter()
        .enumerate()
        .map(|(i, guest)| {
            let units = ((guest.most - guest.least) / unit).min(shared / unit);
            let cost = |n| {
                let size = (guest.least + n * unit) as f64;
                misses(i, size) + TAKE * (guest.held - size).max(0.0)
            };
            (0..=units).map(cost).collect()
        })
        .collect();
    let units = least_cost(&costs, (shared / unit) as usize);
    let bounds: Vec<(u64, u64)> =
        guests.iter().zip(units).map(|(guest, n)| (guest.least + n as u64 * unit, guest.most)).collect();
    let spare = |i: usize, level: f64| bounds[i].0 as f64 + level;
    by_level(host, &bounds, spare)
}
