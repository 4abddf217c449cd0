// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Less memory until a guest waits for it, and more when it does (Weiner and others, "TMO: Transparent memory
//! offloading in datacenters", ASPLOS 2022), by the rule of github.com/facebookincubator/senpai.
//!
//! The rule aims at 10 ms of waits in 6 s. Below, a guest's size falls by up to 1 % in 6 s, above, it rises
//! by up to all of itself; how much grows with the square of how far the waits are off. Each guest is judged
//! alone. What guests want beyond the host's memory the host pages, and what the host has beyond that stays
//! free.

use super::bounds;
use crate::partition::equally;
use crate::replay::{Now, Policy, View};

/// Of the program's defaults.
const PERIOD_S: f64 = 6.0;
const PRESSURE: f64 = 0.010 / PERIOD_S;
const MOST_PROBE: f64 = 0.01;
const PROBE: f64 = 10.0;
const MOST_BACKOFF: f64 = 1.0;
const BACKOFF: f64 = 20.0;
/// The smallest part of time in waits that is counted: a microsecond of the period.
const LEAST: f64 = 1e-6 / PERIOD_S;

pub(crate) struct Feedback;

/// What a size changes by in 6 s in which the part `pressure` was waits.
fn change(pressure: f64) -> f64 {
    if pressure > PRESSURE {
        1.0 + MOST_BACKOFF * (pressure / PRESSURE / BACKOFF).powi(2).min(1.0)
    } else {
        1.0 - MOST_PROBE * (PRESSURE / pressure.max(LEAST) / PROBE).powi(2).min(1.0)
    }
}

impl Policy for Feedback {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        if now.seconds == 0.0 {
            return equally(now.host, &bounds(guests));
        }
        let periods = now.seconds / PERIOD_S;
        let next =
            |guest: &View| (guest.size as f64 * change(guest.pressure).powf(periods)).min(guest.most as f64);
        guests.iter().map(|guest| next(guest).round() as u64).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn sizes_follow_the_square_of_how_far_the_waits_are_off() {
        assert_eq!(change(0.0), 0.99);
        assert_eq!(change(PRESSURE / 10.0), 0.99);
        assert!((change(PRESSURE / 5.0) - 0.9975).abs() < 1e-12);
        assert!((change(PRESSURE) - 0.9999).abs() < 1e-12);
        assert!((change(PRESSURE * 10.0) - 1.25).abs() < 1e-12);
        assert_eq!(change(PRESSURE * 20.0), 2.0);
        assert_eq!(change(0.9), 2.0);
    }

    #[test]
    fn a_guest_that_waits_grows_and_one_that_does_not_shrinks() {
        let view = |size, pressure| View {
            least: 10,
            most: 1000,
            size,
            held: 0.0,
            in_use: 0.0,
            pressure,
            touched: None,
            past: None,
        };
        let views = [view(500, 0.0), view(500, PRESSURE * 10.0), view(600, 0.5)];
        assert_eq!(Feedback.decide(Now { host: 2000, seconds: 0.0 }, &views), [667, 667, 666]);
        assert_eq!(Feedback.decide(Now { host: 2000, seconds: 6.0 }, &views), [495, 625, 1000]);
        assert_eq!(Feedback.decide(Now { host: 2000, seconds: 12.0 }, &views), [490, 781, 1000]);
    }
}
