// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How many rounds a measurement gets: more while its intervals are wide, fewer once its share of the time is
//! used. Nothing here measures.

use schemars::JsonSchema;
use serde::Serialize;

/// Why a survey ended before its last value.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
pub enum End {
    /// The time limit.
    Limit,
    /// The user, by a signal.
    Stopped,
}

/// Fewest rounds of a value: nine are the fewest whose interval leaves out extremes.
pub const FEWEST: usize = 9;
/// How many times the usual rounds a value gets at most.
const MOST_TIMES: usize = 4;

/// The rounds of one measurement.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Plan {
    /// Rounds if the intervals are narrow.
    pub usual: usize,
    /// Points of a round.
    pub points: usize,
}

/// What a measurement asks about the time.
pub struct Clock<'a> {
    /// Why the survey has to end now, if it has to.
    pub ended: &'a dyn Fn() -> Option<End>,
    /// Whether the measurement's share of the time is used.
    pub late: &'a dyn Fn() -> bool,
}

/// Gathers rounds over all points in turn: the usual number, then more while the values so far are not
/// `enough`. A measurement that has used its share of the time stops after [`FEWEST`] rounds.
///
/// # Errors
/// If the survey has to end before [`FEWEST`] rounds are whole. With more, the whole rounds are the result.
pub fn gather(
    plan: Plan,
    clock: &Clock,
    mut one: impl FnMut(usize) -> f64,
    enough: impl Fn(&[Vec<f64>]) -> bool,
) -> Result<Vec<Vec<f64>>, End> {
    let mut found = vec![Vec::with_capacity(plan.usual); plan.points];
    for round in 0..plan.usual * MOST_TIMES {
        if round >= FEWEST && (clock.late)() || round >= plan.usual && enough(&found) {
            break;
        }
        for point in 0..plan.points {
            if let Some(end) = (clock.ended)() {
                if round < FEWEST {
                    return Err(end);
                }
                found.iter_mut().for_each(|values| values.truncate(round));
                return Ok(found);
            }
            found[point].push(one(point));
        }
    }
    Ok(found)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::estimate::Estimate;
    use std::cell::Cell;

    const PLAN: Plan = Plan { usual: 15, points: 3 };

    /// Rounds of each point if the survey ends after so many values and is late from another number on.
    /// `noise` is the spread of the samples.
    fn rounds(ends: usize, late: usize, noise: f64) -> Result<Vec<usize>, End> {
        let n = Cell::new(0);
        let clock = Clock { ended: &|| (n.get() >= ends).then_some(End::Limit), late: &|| n.get() >= late };
        let sample = |_| {
            n.set(n.get() + 1);
            100.0 + noise * (n.get() * 37 % 101) as f64
        };
        let enough = |found: &[Vec<f64>]| found.iter().all(|v| Estimate::of(v).unwrap().is_narrow());
        Ok(gather(PLAN, &clock, sample, enough)?.iter().map(Vec::len).collect())
    }

    #[test]
    fn narrow_intervals_take_the_usual_rounds_and_wide_ones_more() {
        assert_eq!(rounds(usize::MAX, usize::MAX, 0.1), Ok(vec![15; 3]));
        let wide = rounds(usize::MAX, usize::MAX, 2.0).unwrap();
        assert!(wide[0] > 15 && wide[0] < 60, "{wide:?}");
        assert_eq!(rounds(usize::MAX, usize::MAX, 1e3), Ok(vec![60; 3]));
    }

    #[test]
    fn a_measurement_that_used_its_share_has_the_fewest_rounds() {
        assert_eq!(rounds(usize::MAX, 0, 1e3), Ok(vec![9; 3]));
        assert_eq!(rounds(usize::MAX, 40, 1e3), Ok(vec![14; 3]));
    }

    #[test]
    fn a_limit_midway_keeps_whole_rounds_or_none() {
        assert_eq!(rounds(9 * 3 - 1, usize::MAX, 0.1), Err(End::Limit));
        assert_eq!(rounds(9 * 3, usize::MAX, 0.1), Ok(vec![9; 3]));
        assert_eq!(rounds(11 * 3 + 2, usize::MAX, 0.1), Ok(vec![11; 3]));
    }
}
