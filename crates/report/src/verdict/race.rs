// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The race between two paging modes on one host page size: the values of one assumed number at
//! which the winner changes. Of more modes, the cheapest has a race with each of the others.
//!
//! Both modes' costs are linear in every exit cost and in a factor on all exit costs, because counts do
//! not depend on costs. So the value at which the winner changes is a root of a linear equation.

use bifold_model::Paging;
use serde::{Serialize, Serializer};
use std::cmp::Ordering;

/// Costs that differ by less than this share of the larger are called equal: neither the assumed costs nor the placement of
/// pages is exact enough to decide.
pub(super) const EQUAL_SHARE: f64 = 0.05;
/// Costs that differ by less than this share of the ideal run are called equal too: no measurement of
/// time shows the difference.
pub(super) const EQUAL_OF_IDEAL: f64 = 0.001;

/// The cheapest mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Winner {
    /// This mode.
    Mode(Paging),
    /// The lowest cost and another are too close for the assumed costs to decide.
    Equal,
}

impl Winner {
    /// The mode; none if the costs are too close.
    pub fn mode(self) -> Option<Paging> {
        match self {
            Winner::Mode(mode) => Some(mode),
            Winner::Equal => None,
        }
    }

    /// The mode's name, or `equal`.
    pub fn name(self) -> &'static str {
        match self {
            Winner::Mode(mode) => mode.name(),
            Winner::Equal => "equal",
        }
    }
}

impl Serialize for Winner {
    fn serialize<S: Serializer>(&self, s: S) -> Result<S::Ok, S::Error> {
        s.serialize_str(self.name())
    }
}

/// Whether two costs, in cycles, are too close to decide, for an ideal run of `ideal` cycles.
pub(super) fn equal(a: f64, b: f64, ideal: f64) -> bool {
    (a - b).abs() <= (EQUAL_SHARE * a.max(b)).max(EQUAL_OF_IDEAL * ideal)
}

/// The winner of modes with these costs, in cycles, for an ideal run of `ideal` cycles.
pub(super) fn winner(costs: &[(Paging, f64)], ideal: f64) -> Winner {
    let Some((at, &(mode, least))) = costs.iter().enumerate().min_by(|a, b| a.1.1.total_cmp(&b.1.1)) else {
        return Winner::Equal;
    };
    let wins = |(i, (_, cost)): (usize, &(Paging, f64))| i == at || !equal(least, *cost, ideal);
    if costs.iter().enumerate().all(wins) { Winner::Mode(mode) } else { Winner::Equal }
}

/// A cost in cycles that is linear in a number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Line {
    /// Cost at the assumed value of the number.
    pub at: f64,
    /// Increase of the cost for each unit of the number.
    pub slope: f64,
}

/// Two modes' costs as functions of one number.
#[derive(Debug, Clone, Copy)]
pub(super) struct Race {
    pub a: Line,
    pub b: Line,
    /// Cycles of the ideal run.
    pub ideal: f64,
    /// The assumed value of the number, above 0.
    pub assumed: f64,
}

impl Race {
    fn costs(&self, value: f64) -> (f64, f64) {
        let of = |l: Line| l.at + l.slope * (value - self.assumed);
        (of(self.a), of(self.b))
    }

    /// The cost of `a` against that of `b` at this value of the number.
    pub fn order(&self, value: f64) -> Ordering {
        let (a, b) = self.costs(value);
        if equal(a, b, self.ideal) { Ordering::Equal } else { a.total_cmp(&b) }
    }

    /// Whether the verdict still is `order` at this value: until the other mode is cheaper.
    fn still(&self, order: Ordering, value: f64) -> bool {
        let (a, b) = self.costs(value);
        match order {
            Ordering::Less => a <= b,
            Ordering::Greater => b <= a,
            Ordering::Equal => equal(a, b, self.ideal),
        }
    }

    /// Whether `a` wins beyond an end.
    pub fn a_wins_beyond(&self, end: f64) -> bool {
        let (a, b) = self.costs(end);
        match self.order(self.assumed) {
            Ordering::Less => false,
            Ordering::Greater => true,
            // Beyond the range in which both are equal, the one with the lower cost, however small the difference.
            Ordering::Equal => a < b,
        }
    }

    /// The nearest values below and above the assumed value beyond which the winner no longer wins. None
    /// on a side where the winner wins at every value above 0.
    pub fn ends(&self) -> (Option<f64>, Option<f64>) {
        let order = self.order(self.assumed);
        let (n, s, band) = (self.a, self.b, EQUAL_OF_IDEAL * self.ideal);
        let less = 1.0 - EQUAL_SHARE;
        // Where a + b x = 0, x from the assumed value: each border between two verdicts.
        let borders = [
            (n.at - s.at, n.slope - s.slope),
            (n.at - s.at - band, n.slope - s.slope),
            (s.at - n.at - band, s.slope - n.slope),
            (less * n.at - s.at, less * n.slope - s.slope),
            (less * s.at - n.at, less * s.slope - n.slope),
        ];
        let roots = borders.iter().filter(|(_, b)| *b != 0.0).map(|(a, b)| self.assumed - a / b);
        let mut roots: Vec<f64> = roots.filter(|r| r.is_finite() && *r > 0.0).collect();
        roots.sort_by(f64::total_cmp);
        // The verdict is constant between two borders.
        let ends_at = |i: usize, beyond: f64| (!self.still(order, beyond)).then_some(roots[i]);
        let above = (0..roots.len()).filter(|&i| roots[i] >= self.assumed).find_map(|i| {
            let next = roots.get(i + 1).copied().unwrap_or(2.0 * roots[i]);
            ends_at(i, (roots[i] + next) / 2.0)
        });
        let below = (0..roots.len()).rev().filter(|&i| roots[i] <= self.assumed).find_map(|i| {
            let next = if i == 0 { 0.0 } else { roots[i - 1] };
            ends_at(i, (roots[i] + next) / 2.0)
        });
        (below, above)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn race(a: (f64, f64), b: (f64, f64), assumed: f64) -> Race {
        let line = |(at, slope)| Line { at, slope };
        Race { a: line(a), b: line(b), ideal: 1e6, assumed }
    }

    #[test]
    fn a_winner_wins_until_the_other_is_cheaper() {
        // 50,000 + 10 per cycle of the cost against 200,000: equal cost at 15,000 cycles.
        let r = race((60_000.0, 10.0), (200_000.0, 0.0), 1000.0);
        assert_eq!(r.order(1000.0), Ordering::Less);
        assert_eq!(r.ends(), (None, Some(15_000.0)));
        let r = race((200_000.0, 0.0), (300_000.0, 100.0), 2000.0);
        assert_eq!((r.order(2000.0), r.ends()), (Ordering::Less, (Some(1000.0), None)));
    }

    #[test]
    fn what_is_equal_is_so_until_one_is_cheaper_by_what_counts() {
        // Of 100,000, 5 % are 5000, which is more than 0.1 % of a million.
        let r = race((100_000.0, 10.0), (100_000.0, 0.0), 1000.0);
        assert_eq!(r.order(1000.0), Ordering::Equal);
        let (below, above) = r.ends();
        assert!((below.unwrap() - 500.0).abs() < 1e-6);
        assert!((above.unwrap() - (1000.0 + 5000.0 / 0.95 / 10.0)).abs() < 1e-6);
        // What does not depend on the number does not end.
        assert_eq!(race((5.0, 0.0), (1e6, 0.0), 1.0).ends(), (None, None));
    }

    #[test]
    fn of_several_modes_the_cheapest_wins_if_it_beats_each() {
        use Paging::{Nested, Offset, Shadow};
        let of = |costs: [f64; 3]| winner(&[(Nested, costs[0]), (Shadow, costs[1]), (Offset, costs[2])], 1e6);
        assert_eq!(of([3e5, 2e5, 1e5]), Winner::Mode(Offset));
        assert_eq!(of([3e5, 1e5, 2e5]), Winner::Mode(Shadow));
        assert_eq!(of([3e5, 1.02e5, 1e5]), Winner::Equal);
        assert_eq!(of([1e5, 3e5, 2.98e5]), Winner::Mode(Nested), "the others are equal");
    }

    fn line() -> impl Strategy<Value = (f64, f64)> {
        (0u32..200_000, 0u32..50).prop_map(|(at, slope)| (f64::from(at), f64::from(slope)))
    }

    proptest! {
        /// The reference goes from the assumed value outward, cycle by cycle.
        #[test]
        fn ends_are_where_a_search_in_small_steps_finds_them(
            a in line(), b in line(), assumed in 1u32..2000,
        ) {
            let r = race(a, b, f64::from(assumed));
            let winner = r.order(r.assumed);
            let step = |n: i64| r.assumed + n as f64 / 4.0;
            let wins = |value: f64| r.still(winner, value);
            let above = (1..20_000).map(step).find(|v| !wins(*v));
            let below = (1..20_000).map(|n| step(-n)).take_while(|v| *v > 0.0).find(|v| !wins(*v));
            let (from, to) = r.ends();
            let near = |end: Option<f64>, found: Option<f64>, far: f64| match (end, found) {
                (Some(end), Some(found)) => (end - found).abs() <= 0.25 + 1e-6 * end,
                (Some(end), None) => (end - r.assumed).abs() >= far - 0.5,
                (None, found) => found.is_none(),
            };
            prop_assert!(near(to, above, 5000.0), "{r:?} {winner:?}: above {to:?}, found {above:?}");
            prop_assert!(near(from, below, (r.assumed - 0.25).min(5000.0)), "{r:?} {winner:?}: below {from:?}, found {below:?}");
        }
    }
}
