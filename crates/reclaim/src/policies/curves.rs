// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The sizes that cost the fewest misses by the guests' last curves.
//!
//! The next 16 steps are taken to be as the last one. Misses are those from what a guest holds to what it
//! would get, so that a change has its price; over one short step, memory that fills slowly would seem to
//! gain nothing. The search is exact over 256 parts of what the guests can share ([`least_cost`]). Memory
//! that would spare no miss is divided equally. Averages of several steps were tried: with them a policy is
//! later where a program changes, and no better where it does not.
//!
//! The sum may be least where one guest pays for the others. The fair variant gives no guest less than the
//! size with which the last step would have had twice the refaults of the equal split. A guest that rests is
//! not protected.

use crate::grid::Curve;
use crate::partition::{by_level, least_cost};
use crate::replay::{Now, Policy, View};

/// Parts of the memory above the guests' least.
const PARTS: u64 = 256;
/// What taking a frame costs, in misses: little, so that of equal sums one is chosen that takes few.
const TAKE: f64 = 0.01;
/// Steps that are taken to be as the last one.
const AHEAD: f64 = 16.0;
/// Refaults that a guest would have had in the last step, over those under the equal split.
const MOST_LOSS: f64 = 2.0;

pub(crate) struct Curves {
    /// Whether guests are protected.
    pub fair: bool,
}

impl Policy for Curves {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        let past: Option<Vec<&Curve>> =
            guests.iter().map(|guest| guest.past.map(|past| &past.curve)).collect();
        let equal = super::equal::Equal.decide(now, guests);
        let Some(past) = past else { return equal };
        let least = |(i, guest): (usize, &View)| match self.fair {
            true => protected_size(past[i], guest.least, equal[i]),
            false => guest.least,
        };
        let guests: Vec<View> = guests
            .iter()
            .enumerate()
            .map(|(i, guest)| View { least: least((i, guest)), ..guest.clone() })
            .collect();
        let next: Vec<Curve> = past.iter().map(|curve| curve.times(AHEAD)).collect();
        least_misses(now.host, &guests, |i, size| {
            let held = guests[i].held.min(size);
            next[i].misses_while_growing(held, size, guests[i].in_use - held).0
        })
    }
}

/// The smallest size, up to that of the equal split, with refaults within [`MOST_LOSS`].
fn protected_size(past: &Curve, least: u64, equal: u64) -> u64 {
    let refaults = |size: u64| past.misses(size as f64) - past.first();
    // One refault is allowed where there were none.
    let most = MOST_LOSS * (refaults(equal) + 1.0);
    let (mut low, mut high) = (least, equal);
    while low < high {
        let middle = (low + high) / 2;
        if refaults(middle) <= most { high = middle } else { low = middle + 1 }
    }
    high
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

#[cfg(test)]
mod tests {
    use super::*;
    use crate::replay::tests::looping;
    use crate::steps::Step;

    #[test]
    fn a_guest_keeps_what_spares_it_half_of_its_refaults() {
        let curve = looping(512, 1000, 0).curve;
        // The loop fits under the equal split, so it fits, to the line between 448 and 512.
        assert_eq!(protected_size(&curve, 64, 600), 512);
        // It does not fit under the equal split, and any size is as bad.
        assert_eq!(protected_size(&curve, 64, 400), 64);
        assert_eq!(protected_size(&curve, 64, 64), 64);
    }

    #[test]
    fn only_the_fair_variant_spares_the_guest_that_gains_less() {
        fn view(past: &Step) -> View<'_> {
            View {
                least: 64,
                most: 1024,
                size: 500,
                held: 500.0,
                in_use: past.in_use,
                pressure: 0.0,
                touched: None,
                past: Some(past),
            }
        }
        // Either loop fits, and both do not. The second one runs rarely.
        let (often, rarely) = (looping(600, 10_000, 0), looping(450, 1000, 0));
        let guests = [view(&often), view(&rarely)];
        let sizes = |fair| Curves { fair }.decide(Now { host: 1000, seconds: 1.0 }, &guests);
        assert!(sizes(false)[0] >= 600, "{:?}", sizes(false));
        assert!(sizes(true)[1] >= 450, "{:?}", sizes(true));
    }

    #[test]
    fn memory_goes_to_the_loop_that_fits_and_the_rest_is_divided() {
        fn view(past: &Step, held: f64) -> View<'_> {
            View {
                least: 64,
                most: 1024,
                size: 500,
                held,
                in_use: past.in_use,
                pressure: 0.0,
                touched: Some(past.working_set),
                past: Some(past),
            }
        }
        let (large, small) = (looping(700, 1000, 0), looping(200, 1000, 0));
        let guests = [view(&large, 500.0), view(&small, 200.0)];
        for fair in [false, true] {
            let sizes = Curves { fair }.decide(Now { host: 1000, seconds: 1.0 }, &guests);
            assert_eq!(sizes.iter().sum::<u64>(), 1000);
            assert!(sizes[0] >= 700 && sizes[1] >= 200, "{sizes:?}");
        }
    }
}
