// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The balloon rule of the memory overcommitment manager (MOM; `doc/balloon.rules` and `doc/mom-balloon.conf`
//! of github.com/oVirt/mom).
//!
//! Every 10 s: while less than a fifth of the host is free, each guest is shrunk by 5 % at most, but not
//! below what it uses and some free memory in it, which is less the less the host has. Otherwise each guest
//! grows by 5 %, or up to a fifth of free memory in it. The rule believes a guest's own count of free memory.
//! A guest that has filled its memory with files has none, and stays. Averages over the last samples are left
//! out: free memory is that of the last step.

use super::Balloons;
use crate::replay::{Now, Policy, View};

/// Of the rule's file.
const PRESSURE: f64 = 0.20;
const CRITICAL: f64 = 0.05;
const FREE_IN_GUEST: f64 = 0.20;
const MOST_CHANGE: f64 = 0.05;
const LEAST_CHANGE: f64 = 0.0025;

#[derive(Default)]
pub(crate) struct Mom(pub Balloons);

impl Policy for Mom {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        let held: f64 = guests.iter().map(|guest| guest.held).sum();
        let free = 1.0 - held / now.host as f64;
        self.0.step(now.seconds, guests, |sizes| {
            for (size, guest) in sizes.iter_mut().zip(guests) {
                *size = next(*size, guest, free);
            }
        })
    }
}

/// The size after one evaluation, on a host of which the part `free` is free.
fn next(size: f64, guest: &View, free: f64) -> f64 {
    let used = guest.in_use.min(size);
    let least = |part: f64| (used + part * size).max(guest.least as f64);
    let wanted = if free < PRESSURE {
        let in_guest = if free <= CRITICAL { free - 0.05 } else { FREE_IN_GUEST * free / PRESSURE };
        let wanted = (size * (1.0 - MOST_CHANGE)).max(least(in_guest));
        if wanted > size { size } else { wanted }
    } else {
        (size * (1.0 + MOST_CHANGE)).max(least(FREE_IN_GUEST)).min(guest.most as f64)
    };
    if (wanted - size).abs() > LEAST_CHANGE * size { wanted } else { size }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(size: u64, held: f64) -> View<'static> {
        View { least: 10, most: 1000, size, held, in_use: held, pressure: 0.0, touched: None, past: None }
    }

    #[test]
    fn the_rule_is_that_of_the_file() {
        // No pressure: 5 % more, or a fifth free in the guest, up to the maximum.
        assert_eq!(next(500.0, &view(500, 100.0), 0.5), 525.0);
        assert_eq!(next(500.0, &view(500, 480.0), 0.5), 580.0);
        assert_eq!(next(990.0, &view(990, 100.0), 0.5), 1000.0);
        // Pressure: 5 % less, but not below used and a tenth, as half of the free memory is left.
        assert_eq!(next(500.0, &view(500, 100.0), 0.1), 475.0);
        assert_eq!(next(500.0, &view(500, 440.0), 0.1), 490.0);
        assert_eq!(next(500.0, &view(500, 460.0), 0.1), 500.0);
        // Critical: below what the guest uses.
        assert_eq!(next(500.0, &view(500, 500.0), 0.01), 480.0);
        // Too little to do.
        assert_eq!(next(999.0, &view(999, 100.0), 0.5), 999.0);
    }

    #[test]
    fn decisions_come_every_10_seconds() {
        let mut mom = Mom::default();
        let mut decide =
            |seconds| mom.decide(Now { host: 2000, seconds }, &[view(1000, 900.0), view(1000, 900.0)])[0];
        assert_eq!([decide(0.0), decide(9.0), decide(1.0), decide(20.0)], [1000, 1000, 1000, 1000]);
        let mut decide =
            |seconds| mom.decide(Now { host: 900, seconds }, &[view(1000, 440.0), view(1000, 440.0)])[0];
        assert_eq!([decide(9.0), decide(1.0), decide(20.0)], [1000, 950, 857]);
    }
}
