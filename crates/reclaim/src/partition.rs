// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Memory in parts: by a level that all parts share, and by the least sum of costs.

/// Sizes within bounds that use `total` frames, or as many as they can: `at(i, level)`, which rises with the
/// level, is what guest i gets.
pub(crate) fn by_level(total: u64, bounds: &[(u64, u64)], at: impl Fn(usize, f64) -> f64) -> Vec<u64> {
    let size = |i: usize, level: f64| at(i, level).clamp(bounds[i].0 as f64, bounds[i].1 as f64);
    let sum = |level: f64| (0..bounds.len()).map(|i| size(i, level)).sum::<f64>();
    let (mut low, mut high) = (0.0, 1.0);
    while sum(high) < total as f64 && high < 1e18 {
        high *= 2.0;
    }
    for _ in 0..200 {
        let middle = (low + high) / 2.0;
        *if sum(middle) > total as f64 { &mut high } else { &mut low } = middle;
    }
    let mut sizes: Vec<u64> = (0..bounds.len()).map(|i| size(i, low) as u64).collect();
    // Frames that rounding left: to those at the level first.
    let mut left = total.saturating_sub(sizes.iter().sum());
    for at_level in [true, false] {
        for (i, (size, bound)) in sizes.iter_mut().zip(bounds).enumerate() {
            if left > 0 && *size < bound.1 && (!at_level || at(i, low) >= bound.0 as f64) {
                *size += 1;
                left -= 1;
            }
        }
    }
    sizes
}

/// `total` frames in equal parts within bounds.
pub(crate) fn equally(total: u64, bounds: &[(u64, u64)]) -> Vec<u64> {
    by_level(total, bounds, |_, level| level)
}

/// How many units each of several costs gets of `total`, so that their sum is least: `costs[i][n]` is the
/// cost of i with n units. Of equal sums, one that uses few units.
///
/// Dynamic programming over the costs, as they need not be convex: giving each unit to the one that gains
/// most by it can end at a sum that is not the least. All curves of a program that runs through more than it
/// has are of that kind.
pub(crate) fn least_cost(costs: &[Vec<f64>], total: usize) -> Vec<usize> {
    // best[n]: the least sum of the costs so far with at most n units; chosen[i][n]: the units of i in it.
    let mut best = vec![0.0; total + 1];
    let mut chosen = Vec::with_capacity(costs.len());
    for cost in costs {
        let mut choice = vec![0usize; total + 1];
        let next: Vec<f64> = (0..=total)
            .map(|n| {
                let mut least = f64::INFINITY;
                for (units, cost) in cost.iter().enumerate().take(n + 1) {
                    let sum = best[n - units] + cost;
                    if sum < least {
                        (least, choice[n]) = (sum, units);
                    }
                }
                least
            })
            .collect();
        best = next;
        chosen.push(choice);
    }
    let mut left = total;
    let mut units: Vec<usize> = chosen
        .iter()
        .rev()
        .map(|choice| {
            let units = choice[left];
            left -= units;
            units
        })
        .collect();
    units.reverse();
    units
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn sum(costs: &[Vec<f64>], units: &[usize]) -> f64 {
        costs.iter().zip(units).map(|(cost, &n)| cost[n]).sum()
    }

    /// Each unit to the one that gains most by it.
    fn greedy(costs: &[Vec<f64>], total: usize) -> Vec<usize> {
        let mut units = vec![0; costs.len()];
        for _ in 0..total {
            let gain = |i: &usize| costs[*i].get(units[*i] + 1).map_or(0.0, |c| costs[*i][units[*i]] - c);
            let best = (0..costs.len()).max_by(|a, b| gain(a).total_cmp(&gain(b))).unwrap();
            units[best] = (units[best] + 1).min(costs[best].len() - 1);
        }
        units
    }

    #[test]
    fn a_loop_that_fits_whole_or_not_at_all_is_beyond_greed() {
        // The first runs in a loop over 4 units: fewer are of no use. The second gains a little by each.
        let costs = [vec![100.0, 100.0, 100.0, 100.0, 0.0], vec![50.0, 40.0, 30.0, 20.0, 10.0]];
        assert_eq!(least_cost(&costs, 4), [4, 0]);
        assert_eq!(sum(&costs, &least_cost(&costs, 4)), 50.0);
        assert_eq!(sum(&costs, &greedy(&costs, 4)), 110.0);
        assert_eq!(least_cost(&costs, 6), [4, 2]);
        assert_eq!(least_cost(&costs, 100), [4, 4]);
    }

    proptest! {
        #[test]
        fn no_other_parts_cost_less(
            costs in prop::collection::vec(prop::collection::vec((0u32..50).prop_map(f64::from), 1..7), 1..4), total in 0usize..12,
        ) {
            let units = least_cost(&costs, total);
            prop_assert!(units.iter().sum::<usize>() <= total);
            let mut all = vec![vec![]];
            for cost in &costs {
                all = all.iter().flat_map(|some: &Vec<usize>| (0..cost.len()).map(|n| [&some[..], &[n]].concat())).collect();
            }
            let least = all.iter().filter(|u| u.iter().sum::<usize>() <= total).map(|u| sum(&costs, u)).fold(f64::INFINITY, f64::min);
            prop_assert_eq!(sum(&costs, &units), least);
        }

        #[test]
        fn parts_by_a_level_use_all_within_their_bounds(
            guests in prop::collection::vec((1u64..1000, 0u64..5000, 1u64..100), 1..6), extra in 0u64..20_000,
        ) {
            let bounds: Vec<_> = guests.iter().map(|(least, more, _)| (*least, least + more)).collect();
            let total = bounds.iter().map(|b| b.0).sum::<u64>() + extra;
            let sizes = by_level(total, &bounds, |i, level| level * guests[i].2 as f64);
            prop_assert_eq!(sizes.iter().sum::<u64>(), total.min(bounds.iter().map(|b| b.1).sum()));
            for (i, size) in sizes.iter().enumerate() {
                prop_assert!((bounds[i].0..=bounds[i].1).contains(size));
                for (j, other) in sizes.iter().enumerate() {
                    let within = |k: usize, size: u64| bounds[k].0 < size && size < bounds[k].1;
                    if within(i, *size) && within(j, *other) {
                        let [a, b] = [(i, size), (j, other)].map(|(k, size)| *size as f64 / guests[k].2 as f64);
                        prop_assert!((a - b).abs() <= 1.0 + 1e-6, "{} and {}", a, b);
                    }
                }
            }
        }
    }

    #[test]
    fn equal_parts_fill_up_to_each_bound() {
        assert_eq!(equally(100, &[(1, 1000), (1, 1000), (1, 10)]), [45, 45, 10]);
        assert_eq!(equally(100, &[(80, 1000), (1, 1000)]), [80, 20]);
        assert_eq!(equally(10, &[(1, 1000), (1, 1000), (1, 1000)]), [4, 3, 3]);
        assert_eq!(equally(100, &[(1, 3), (1, 3)]), [3, 3]);
    }
}
