// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shares with a tax on idle memory (Waldspurger, "Memory resource management in VMware ESX Server", OSDI
//! 2002).
//!
//! A guest with S shares and P frames, of which a part f is active, pays S / (P (f + k (1 - f))) for each
//! frame, with k = 1 / (1 - tax): an idle frame costs k times as much as an active one. Memory goes from the
//! guest that pays least to those that pay more, until all pay alike. Here all guests have equal shares, and
//! the sizes at which all pay alike are computed at once.
//!
//! The host learns f from 100 pages of the guest chosen at random each 30 s: an exponential average that
//! follows fast, one that follows slowly, and the fast one with the samples of the period that has not ended.
//! The largest of the three counts, so that a guest which wakes is believed at once and one that rests is
//! not. The averages' gains were not published; those here are ours.

use super::bounds;
use crate::partition::by_level;
use crate::replay::{Now, Policy, View};
use rand::{Rng as _, SeedableRng as _};
use rand_pcg::Pcg64;

/// Of the paper.
const TAX: f64 = 0.75;
const SAMPLES: f64 = 100.0;
const PERIOD_S: f64 = 30.0;
/// Ours.
const FAST: f64 = 0.5;
const SLOW: f64 = 0.1;

pub(crate) struct IdleTax {
    active: Vec<Active>,
    random: Pcg64,
}

/// The active part of a guest's memory, as samples show it.
#[derive(Debug, Clone)]
struct Active {
    fast: f64,
    slow: f64,
    /// Samples of this period, and those of accessed pages.
    sampled: f64,
    accessed: f64,
    /// Since the period's start.
    seconds: f64,
}

impl Active {
    /// Nothing is known: all is taken as active.
    const UNKNOWN: Active = Active { fast: 1.0, slow: 1.0, sampled: 0.0, accessed: 0.0, seconds: 0.0 };

    /// Time passes in which a sampled page is accessed with probability `p`.
    fn pass(&mut self, seconds: f64, p: f64, random: &mut Pcg64) {
        let mut left = seconds;
        while left > 0.0 {
            let part = left.min(PERIOD_S - self.seconds);
            self.seconds += part;
            left -= part;
            // So many samples of the period are due by now.
            let due = (self.seconds / PERIOD_S * SAMPLES).round() - self.sampled;
            self.accessed += (0..due as u64).filter(|_| random.random::<f64>() < p).count() as f64;
            self.sampled += due;
            if self.seconds >= PERIOD_S {
                let seen = self.accessed / self.sampled;
                self.fast += FAST * (seen - self.fast);
                self.slow += SLOW * (seen - self.slow);
                (self.seconds, self.sampled, self.accessed) = (0.0, 0.0, 0.0);
            }
        }
    }

    fn part(&self) -> f64 {
        let now = if self.sampled > 0.0 { self.accessed / self.sampled } else { self.fast };
        // The samples of a part of a period count as that part of them.
        let gain = FAST * self.sampled / SAMPLES;
        self.fast.max(self.slow).max(self.fast + gain * (now - self.fast))
    }
}

impl IdleTax {
    pub fn new(guests: usize) -> IdleTax {
        IdleTax { active: vec![Active::UNKNOWN; guests], random: Pcg64::seed_from_u64(1) }
    }
}

/// The sizes at which guests with equal shares and so many active frames pay alike.
fn targets(host: u64, bounds: &[(u64, u64)], active: &[f64], tax: f64) -> Vec<u64> {
    let k = 1.0 / (1.0 - tax);
    // P (f + k (1 - f)) is the same for all, the level; f P is known, and at most P.
    by_level(
        host,
        bounds,
        |i, level| {
            if level <= active[i] { level } else { (level + (k - 1.0) * active[i]) / k }
        },
    )
}

impl Policy for IdleTax {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        let mut active = Vec::new();
        for (guest, seen) in guests.iter().zip(&mut self.active) {
            let size = guest.size as f64;
            if let Some(touched) = guest.touched {
                seen.pass(now.seconds, (touched / size).min(1.0), &mut self.random);
            }
            active.push(seen.part() * size);
        }
        targets(now.host, &bounds(guests), &active, TAX)
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    #[test]
    fn an_idle_guest_gives_an_active_one_all_that_it_can_use() {
        // The paper's experiment: two guests of 256 MB with equal shares, one idle. Without a tax each has
        // half of the host.
        let (mb, all) = (256, [(0, 65_536); 2]);
        let host = 360 * mb;
        assert_eq!(targets(host, &all, &[0.0, 65_536.0], 0.0), [180 * mb, 180 * mb]);
        assert_eq!(targets(host, &all, &[0.0, 65_536.0], TAX), [104 * mb, 256 * mb]);
        // With room left on both sides, an idle frame costs four times as much: a fifth and four fifths.
        assert_eq!(targets(100 * mb, &all, &[0.0, 65_536.0], TAX), [20 * mb, 80 * mb]);
    }

    proptest! {
        #[test]
        fn all_guests_pay_alike(
            parts in prop::collection::vec(0.0f64..1.0, 2..6), host in 1_000_000u64..100_000_000, tax in 0.0f64..0.99,
        ) {
            let active: Vec<f64> = parts.iter().map(|part| part * host as f64 / parts.len() as f64).collect();
            let bounds = vec![(0, u64::MAX >> 20); parts.len()];
            let sizes = targets(host, &bounds, &active, tax);
            prop_assert_eq!(sizes.iter().sum::<u64>(), host);
            let k = 1.0 / (1.0 - tax);
            let price = |(size, active): (&u64, &f64)| {
                let p = *size as f64;
                let f = (active / p).min(1.0);
                1.0 / (p * (f + k * (1.0 - f)))
            };
            let prices: Vec<f64> = sizes.iter().zip(&active).map(price).collect();
            for other in &prices {
                prop_assert!((other / prices[0] - 1.0).abs() < 1e-2, "{:?}", prices);
            }
        }
    }

    #[test]
    fn samples_find_the_active_part_and_believe_a_guest_that_wakes() {
        let mut random = Pcg64::seed_from_u64(2);
        let mut active = Active::UNKNOWN;
        active.pass(100.0 * PERIOD_S, 0.2, &mut random);
        assert!((0.15..0.3).contains(&active.part()), "{}", active.part());
        active.pass(0.9 * PERIOD_S, 1.0, &mut random);
        let woken = active.part();
        assert!(woken > 0.5, "{woken}");
        active.pass(0.1 * PERIOD_S, 1.0, &mut random);
        active.pass(0.9 * PERIOD_S, 0.0, &mut random);
        assert!(active.part() > 0.4, "a pause is not believed at once: {}", active.part());
    }
}
