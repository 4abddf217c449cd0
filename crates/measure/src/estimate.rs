// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A measured value with its spread: the median of rounds, and the 95 % interval of that median.

use schemars::JsonSchema;
use serde::Serialize;
use statrs::distribution::{Binomial, DiscreteCDF};

/// A median and the interval that holds the true median 19 times in 20, by order statistics: no shape of the
/// distribution is assumed. Of fewer than 6 values the interval is all of them.
#[derive(Debug, Clone, Copy, PartialEq, Serialize, JsonSchema)]
pub struct Estimate {
    /// The median; null if infinite.
    #[schemars(with = "Option<f64>")]
    pub median: f64,
    /// Lower end of the interval; null if infinite.
    #[schemars(with = "Option<f64>")]
    pub low: f64,
    /// Upper end of the interval; null if infinite.
    #[schemars(with = "Option<f64>")]
    pub high: f64,
    /// Number of rounds.
    pub rounds: usize,
}

impl Estimate {
    /// The estimate from the values of rounds. Values that are no numbers are left out; without any value
    /// there is no estimate.
    pub fn of(values: &[f64]) -> Option<Estimate> {
        let mut v: Vec<f64> = values.iter().copied().filter(|x| x.is_finite()).collect();
        v.sort_by(f64::total_cmp);
        let n = v.len();
        if n == 0 {
            return None;
        }
        let median = if n % 2 == 1 { v[n / 2] } else { (v[n / 2 - 1] + v[n / 2]) / 2.0 };
        let out = outside(n);
        Some(Estimate { median, low: v[out], high: v[n - 1 - out], rounds: n })
    }

    /// A value found in a curve, between two of its points.
    pub fn between(value: f64, low: f64, high: f64, rounds: usize) -> Estimate {
        Estimate { median: value, low, high, rounds }
    }

    /// The same in another unit.
    pub fn times(self, factor: f64) -> Estimate {
        let Estimate { median, low, high, rounds } = self;
        Estimate { median: median * factor, low: low * factor, high: high * factor, rounds }
    }

    /// Why the value cannot stand as measured, if it cannot: its interval must lie above zero, and its ends
    /// must not differ by more than a factor of two.
    pub fn refusal(&self) -> Option<Refusal> {
        match self.high / self.low {
            _ if self.high.is_infinite() => Some(Refusal::Unbounded),
            _ if self.low <= 0.0 && self.high >= 0.0 => Some(Refusal::SpansZero),
            _ if self.low < 0.0 => Some(Refusal::Negative),
            factor if factor <= MOST_APART * WHOLE_POINTS => None,
            factor => Some(Refusal::Apart(factor)),
        }
    }

    /// Whether more rounds are of no use: the ends differ by at most half.
    pub fn is_narrow(&self) -> bool {
        self.low > 0.0 && self.high <= 1.5 * self.low
    }

    /// Width of the interval as a part of the median.
    pub fn relative_width(&self) -> f64 {
        (self.high - self.low) / self.median.abs().max(1e-9)
    }
}

/// The largest ratio of an interval's ends.
const MOST_APART: f64 = 2.0;
/// Points of a curve are whole numbers of pages: an octave of them is a factor of 2 within 1 %.
const WHOLE_POINTS: f64 = 1.01;

/// Why a value is refused.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Refusal {
    /// The interval has zero in it.
    SpansZero,
    /// The interval lies below zero.
    Negative,
    /// The interval has no upper end: the value is a ratio whose divisor spans zero.
    Unbounded,
    /// The ends of the interval differ by this factor.
    Apart(f64),
}

impl Refusal {
    /// The reason as a clause about a value, given with its interval.
    pub fn of(self, value: &str) -> String {
        match self {
            Refusal::SpansZero => format!("the interval of {value} spans zero"),
            Refusal::Negative => format!("the interval of {value} lies below zero"),
            Refusal::Unbounded => {
                format!("the interval of {value} has no upper end: its divisor spans zero")
            }
            Refusal::Apart(factor) => format!("the ends of {value} differ by a factor of {factor:.1}"),
        }
    }
}

/// How many of `n` sorted values lie outside the interval at each end: one less than the largest rank k for
/// which k-1 or fewer heads, or tails, of `n` throws have at most 5 % together.
fn outside(n: usize) -> usize {
    let Ok(b) = Binomial::new(0.5, n as u64) else { return 0 };
    (1..=n.div_ceil(2)).take_while(|k| 2.0 * b.cdf(*k as u64 - 1) <= 0.05).last().map_or(0, |k| k - 1)
}

#[cfg(test)]
mod tests {
    use super::*;

    /// Ranks from the table of Conover, Practical Nonparametric Statistics, for the median at 95 %.
    #[test]
    fn intervals_have_the_ranks_of_the_sign_test() {
        for (n, out) in [(1, 0), (5, 0), (6, 0), (9, 1), (11, 1), (12, 2), (15, 3), (17, 4), (20, 5), (25, 7)]
        {
            assert_eq!(outside(n), out, "{n}");
        }
    }

    #[test]
    fn the_median_stands_between_its_ends() {
        let e = Estimate::of(&[9.0, 1.0, 2.0, f64::NAN, 4.0, 3.0, 8.0, 5.0, 7.0, 6.0]).unwrap();
        assert_eq!((e.median, e.low, e.high, e.rounds), (5.0, 2.0, 8.0, 9));
        assert_eq!(Estimate::of(&[1.0, 2.0]).unwrap().median, 1.5);
        assert_eq!(Estimate::of(&[f64::NAN]), None);
        assert_eq!(e.times(2.0).high, 16.0);
    }

    #[test]
    fn intervals_that_span_zero_or_more_than_a_factor_of_two_are_refused() {
        let of = |low, high| Estimate { median: 1009.0, low, high, rounds: 15 }.refusal();
        assert_eq!(of(-1976.0, 3981.0), Some(Refusal::SpansZero));
        assert_eq!(of(0.0, 3981.0), Some(Refusal::SpansZero));
        assert_eq!(of(57.0, f64::INFINITY), Some(Refusal::Unbounded));
        assert_eq!(of(-5.0, -3.0), Some(Refusal::Negative));
        assert_eq!(of(700.0, 1470.0), Some(Refusal::Apart(2.1)));
        assert_eq!((of(700.0, 1400.0), of(1009.0, 1009.0)), (None, None));
        assert_eq!(of(2896.0, 5793.0), None, "an octave of pages");
        assert_eq!(
            Refusal::Apart(2.1).of("9 (7 to 15)"),
            "the ends of 9 (7 to 15) differ by a factor of 2.1"
        );
    }
}
