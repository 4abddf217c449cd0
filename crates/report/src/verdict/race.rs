// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The race of paging modes on one host page size: the values of one assumed number at which the verdict
//! changes.
//!
//! Every mode's cost is linear in every exit cost and in a factor on all exit costs, because counts do not
//! depend on costs. So the verdict changes only at roots of linear equations, one for each border between two
//! modes' verdicts.

use bifold_model::{Config, Paging};
use schemars::{JsonSchema, Schema, SchemaGenerator, json_schema};
use serde::{Serialize, Serializer};
use std::borrow::Cow;

/// Costs that differ by less than this share of the larger are called equal: neither the assumed costs nor
/// the placement of pages is exact enough to decide.
const EQUAL_SHARE: f64 = 0.05;
/// Costs that differ by less than this share of the ideal run are called equal too: no measurement of
/// time shows the difference.
const EQUAL_OF_IDEAL: f64 = 0.001;

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

impl JsonSchema for Winner {
    fn schema_name() -> Cow<'static, str> {
        "Winner".into()
    }

    fn json_schema(_: &mut SchemaGenerator) -> Schema {
        let offered = Config::KNOWN.iter().filter(|c| c.mode.is_offered());
        let mut names: Vec<&str> = offered.map(|c| c.mode.name()).chain([Winner::Equal.name()]).collect();
        names.dedup();
        json_schema!({ "type": "string", "enum": names })
    }
}

/// Whether two costs, in cycles, are too close to decide, for an ideal run of `ideal` cycles.
pub(crate) fn equal(a: f64, b: f64, ideal: f64) -> bool {
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

/// The verdict on modes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Verdict {
    /// The winner at the costs as stated.
    pub winner: Winner,
    /// The winners under all assumptions, in the order of modes.
    pub possible: Vec<Winner>,
}

/// What the verdict says in words. Verdicts that say the same are equal, whatever the figures.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(super) enum Says {
    /// This mode is cheaper.
    Cheaper(Paging),
    /// This mode is cheaper, or costs about the same at an end of the band.
    CheaperOrEqual(Paging),
    /// The modes cost about the same, or this one is cheaper at an end of the band.
    EqualOrCheaper(Paging),
    /// Which of these modes is cheaper depends on the band.
    AnyOf(Vec<Paging>),
    /// The modes cost about the same.
    Equal,
}

impl Verdict {
    pub fn says(&self) -> Says {
        let modes: Vec<Paging> = self.possible.iter().filter_map(|w| w.mode()).collect();
        match (&modes[..], self.winner) {
            ([], _) => Says::Equal,
            ([mode], _) if !self.possible.contains(&Winner::Equal) => Says::Cheaper(*mode),
            ([mode], Winner::Mode(_)) => Says::CheaperOrEqual(*mode),
            ([mode], Winner::Equal) => Says::EqualOrCheaper(*mode),
            _ => Says::AnyOf(modes),
        }
    }
}

/// Costs of modes in cycles under one assumption, and the ideal run's.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct Assumption {
    pub costs: Vec<f64>,
    pub ideal: f64,
}

/// The costs of modes as functions of one number: a line each.
#[derive(Debug, Clone)]
pub(super) struct Race {
    /// The modes, each with the increase of its cost for each unit of the number.
    pub modes: Vec<(Paging, f64)>,
    /// Costs at the assumed value of the number: as stated first, then under other assumptions.
    pub assumptions: Vec<Assumption>,
    /// The assumed value of the number, above 0.
    pub assumed: f64,
}

/// A value of the number at which the verdict changes.
#[derive(Debug, Clone, PartialEq)]
pub(super) struct End {
    /// The verdict is that of the assumed value up to here.
    pub border: f64,
    /// The verdict beyond.
    pub verdict: Verdict,
}

impl Race {
    /// The verdict at this value of the number.
    pub fn verdict(&self, value: f64) -> Verdict {
        let winner = |assumption: &Assumption| {
            let cost = |at: &f64, slope: f64| at + slope * (value - self.assumed);
            let of_modes = self.modes.iter().zip(&assumption.costs);
            let costs: Vec<_> = of_modes.map(|((mode, slope), at)| (*mode, cost(at, *slope))).collect();
            winner(&costs, assumption.ideal)
        };
        let mut possible: Vec<Winner> = self.assumptions.iter().map(winner).collect();
        let stated = possible.first().copied().unwrap_or(Winner::Equal);
        possible.sort();
        possible.dedup();
        Verdict { winner: stated, possible }
    }

    /// The nearest values below and above the assumed one beyond which the verdict is another. None on a side
    /// where every value above 0 has the same verdict.
    pub fn ends(&self) -> [Option<End>; 2] {
        let (was, borders) = (self.verdict(self.assumed).says(), self.borders());
        let end = |border: f64, beyond: f64| {
            let verdict = self.verdict(beyond);
            (verdict.says() != was).then_some(End { border, verdict })
        };
        // The verdict is constant between two borders.
        let above = borders
            .iter()
            .enumerate()
            .filter(|(_, b)| **b >= self.assumed)
            .find_map(|(i, b)| end(*b, borders.get(i + 1).map_or(2.0 * b, |next| (b + next) / 2.0)));
        let below = borders
            .iter()
            .enumerate()
            .rev()
            .filter(|(_, b)| **b <= self.assumed)
            .find_map(|(i, b)| end(*b, (b + if i == 0 { 0.0 } else { borders[i - 1] }) / 2.0));
        [below, above]
    }

    /// As [`ends`](Race::ends) for a number that is whole: the nearest values with another verdict. A stretch
    /// of values between two whole ones is no end.
    pub fn whole_ends(&self) -> [Option<End>; 2] {
        let was = self.verdict(self.assumed).says();
        // A stretch that has a whole value has one beside its border. The border may be whole, and rounded to
        // either side of that.
        let beside = |b: f64| [b.floor() - 1.0, b.floor(), b.ceil(), b.ceil() + 1.0];
        let mut near: Vec<f64> = self.borders().into_iter().flat_map(beside).collect();
        near.extend([0.0, 1.0]);
        near.sort_by(f64::total_cmp);
        let end = |value: f64| {
            let verdict = self.verdict(value);
            (verdict.says() != was).then_some(End { border: value, verdict })
        };
        let above = near.iter().filter(|v| **v > self.assumed).find_map(|v| end(*v));
        let below = near.iter().rev().filter(|v| (0.0..self.assumed).contains(*v)).find_map(|v| end(*v));
        [below, above]
    }

    /// The values above 0 at which the verdict between two modes may change under an assumption, in order.
    fn borders(&self) -> Vec<f64> {
        let less = 1.0 - EQUAL_SHARE;
        // Where a + b x = 0, x from the assumed value.
        let of_pair = |of: &Assumption, i: usize, j: usize| {
            let (band, n, s) = (EQUAL_OF_IDEAL * of.ideal, of.costs[i], of.costs[j]);
            let (n_slope, s_slope) = (self.modes[i].1, self.modes[j].1);
            [
                (n - s, n_slope - s_slope),
                (n - s - band, n_slope - s_slope),
                (s - n - band, s_slope - n_slope),
                (less * n - s, less * n_slope - s_slope),
                (less * s - n, less * s_slope - n_slope),
            ]
        };
        let pairs = || (0..self.modes.len()).flat_map(|j| (0..j).map(move |i| (i, j)));
        let lines = self.assumptions.iter().flat_map(|of| pairs().flat_map(move |(i, j)| of_pair(of, i, j)));
        let roots = lines.filter(|(_, b)| *b != 0.0).map(|(a, b)| self.assumed - a / b);
        let mut roots: Vec<f64> = roots.filter(|r| r.is_finite() && *r > 0.0).collect();
        roots.sort_by(f64::total_cmp);
        // Roots that differ by rounding alone have nothing between them.
        roots.dedup_by(|a, b| (*a - *b).abs() <= 1e-12 * *b);
        roots
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use Paging::{Nested, Offset, Shadow};
    use proptest::prelude::*;

    fn race(a: (f64, f64), b: (f64, f64), assumed: f64) -> Race {
        let stated = Assumption { costs: vec![a.0, b.0], ideal: 1e6 };
        Race { modes: vec![(Nested, a.1), (Shadow, b.1)], assumptions: vec![stated], assumed }
    }

    fn winner_at(r: &Race, value: f64) -> Winner {
        r.verdict(value).winner
    }

    fn borders(ends: [Option<End>; 2]) -> [Option<(f64, Winner)>; 2] {
        ends.map(|e| e.map(|e| (e.border.round(), e.verdict.winner)))
    }

    #[test]
    fn a_winner_wins_until_another_costs_about_the_same() {
        // 50,000 + 10 per cycle of the cost against 200,000: within 5 % from 14,000 cycles.
        let r = race((60_000.0, 10.0), (200_000.0, 0.0), 1000.0);
        assert_eq!(winner_at(&r, 1000.0), Winner::Mode(Nested));
        assert_eq!(borders(r.ends()), [None, Some((14_000.0, Winner::Equal))]);
        assert_eq!(borders(r.whole_ends()), [None, Some((14_000.0, Winner::Equal))]);
        let r = race((200_000.0, 0.0), (300_000.0, 100.0), 2000.0);
        assert_eq!(winner_at(&r, 2000.0), Winner::Mode(Nested));
        // 200,000 are 95 % of 210,526, which shadow paging costs at 1,105 cycles.
        assert_eq!(borders(r.ends()), [Some((1105.0, Winner::Equal)), None]);
        assert_eq!(borders(r.whole_ends()), [Some((1105.0, Winner::Equal)), None]);
    }

    #[test]
    fn what_is_equal_is_so_until_one_is_cheaper_by_what_counts() {
        // Of 100,000, 5 % are 5000, which is more than 0.1 % of a million.
        let r = race((100_000.0, 10.0), (100_000.0, 0.0), 1000.0);
        assert_eq!(winner_at(&r, 1000.0), Winner::Equal);
        let [below, above] = r.ends().map(Option::unwrap);
        assert!((below.border - 500.0).abs() < 1e-6 && below.verdict.winner == Winner::Mode(Nested));
        assert!((above.border - (1000.0 + 5000.0 / 0.95 / 10.0)).abs() < 1e-6);
        assert_eq!(above.verdict.winner, Winner::Mode(Shadow));
        // At the border itself, both still cost about the same.
        assert_eq!(r.whole_ends().map(|e| e.unwrap().border), [499.0, 1527.0]);
        // What does not depend on the number does not end.
        assert_eq!(race((5.0, 0.0), (1e6, 0.0), 1.0).ends(), [None, None]);
    }

    #[test]
    fn a_whole_border_that_is_rounded_down_ends_the_verdict_at_the_next_value() {
        // 5 % of nested paging's cost are the difference at 8083 cycles.
        let r = race((135_486.0, 38.0), (129_394.0, 36.0), 1260.0);
        assert_eq!((winner_at(&r, 8083.0), winner_at(&r, 8084.0)), (Winner::Equal, Winner::Mode(Shadow)));
        assert_eq!(borders(r.whole_ends()), [None, Some((8084.0, Winner::Mode(Shadow)))]);
    }

    #[test]
    fn of_several_modes_the_cheapest_wins_if_it_beats_each() {
        let of = |costs: [f64; 3]| winner(&[(Nested, costs[0]), (Shadow, costs[1]), (Offset, costs[2])], 1e6);
        assert_eq!(of([3e5, 2e5, 1e5]), Winner::Mode(Offset));
        assert_eq!(of([3e5, 1e5, 2e5]), Winner::Mode(Shadow));
        assert_eq!(of([3e5, 1.02e5, 1e5]), Winner::Equal);
        assert_eq!(of([1e5, 3e5, 2.98e5]), Winner::Mode(Nested), "the others are equal");
    }

    /// Costs as stated, costs under a second assumption, and an increase.
    fn line() -> impl Strategy<Value = (f64, f64, f64)> {
        (0u32..200_000, 0u32..200_000, 0u32..50)
            .prop_map(|(at, other, slope)| (at.into(), other.into(), slope.into()))
    }

    proptest! {
        /// The reference goes from the assumed value outward, cycle by cycle.
        #[test]
        fn ends_are_where_a_search_in_small_steps_finds_them(
            lines in prop::collection::vec(line(), 2..4), assumed in 1u32..2000,
        ) {
            let modes = [Nested, Shadow, Offset].into_iter().zip(lines.iter().map(|l| l.2)).collect();
            let stated = Assumption { costs: lines.iter().map(|l| l.0).collect(), ideal: 1e6 };
            let other = Assumption { costs: lines.iter().map(|l| l.1).collect(), ideal: 9e5 };
            let r = Race { modes, assumptions: vec![stated, other], assumed: assumed.into() };
            let was = r.verdict(r.assumed).says();
            let whole = |n: i64| (r.assumed + n as f64, r.verdict(r.assumed + n as f64));
            let above = (1..20_000).map(whole).find(|(_, v)| v.says() != was);
            let below = (1..=i64::from(assumed)).map(|n| whole(-n)).find(|(_, v)| v.says() != was);
            for (end, found) in r.whole_ends().into_iter().zip([below, above]) {
                let near = end.filter(|e| (e.border - r.assumed).abs() < 20_000.0).map(|e| (e.border, e.verdict));
                prop_assert_eq!(near, found, "{:?}", r);
            }
            // Where a value between whole ones changes the verdict first, its border is no farther.
            for (end, whole) in r.ends().into_iter().zip(r.whole_ends()) {
                let far = |e: &Option<End>| e.as_ref().map_or(f64::INFINITY, |e| (e.border - r.assumed).abs());
                prop_assert!(far(&end) <= far(&whole) + 1e-6 || whole.is_some_and(|e| e.border == 0.0), "{r:?}");
            }
        }
    }
}
