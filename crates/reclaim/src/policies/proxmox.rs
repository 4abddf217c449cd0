// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Automatic ballooning of Proxmox VE (`PVE/AutoBalloon.pm` and `PVE/Service/pvestatd.pm` of its
//! `pve-manager`).
//!
//! Every 10 s the host aims at 80 % of its memory in use. If it is more than 10 MiB off, the difference goes
//! to guests by shares: what guests have above their least, with the difference, is divided by shares, and
//! each guest moves at most 100 MiB towards its part. To grow, guests come first of whose memory little is
//! free (a quarter of their least, at most); to shrink, the others do; all do if that changes nothing. All
//! guests have equal shares here.

use super::Balloons;
use crate::replay::{Now, Policy, View};

/// Frames of 4 KB in a MiB.
const MIB: f64 = 256.0;
const TARGET: f64 = 0.80;
const LEAST_CHANGE: f64 = 10.0 * MIB;
const MOST_CHANGE: f64 = 100.0 * MIB;
const FREE_IN_GUEST: f64 = 0.25;
/// Bound on rounds of one division, which end much earlier.
const MOST_ROUNDS: usize = 100;

#[derive(Default)]
pub(crate) struct Proxmox(pub Balloons);

impl Policy for Proxmox {
    fn decide(&mut self, now: Now, guests: &[View]) -> Vec<u64> {
        // What guests hold follows in the next step: all decisions of a step after the first see the changes
        // that were ordered.
        let mut used: f64 = guests.iter().map(|guest| guest.held).sum();
        self.0.step(now.seconds, guests, |sizes| {
            let before: f64 = sizes.iter().sum();
            round(sizes, TARGET * now.host as f64 - used, guests);
            used += sizes.iter().sum::<f64>() - before;
        })
    }
}

/// Changes sizes by `goal` frames in all.
fn round(sizes: &mut [f64], goal: f64, guests: &[View]) {
    let free = |i: usize| (sizes[i] - guests[i].in_use).max(0.0);
    let rests = |i: &usize| free(*i) > FREE_IN_GUEST * guests[*i].least as f64;
    let (resting, pressed): (Vec<usize>, Vec<usize>) = (0..guests.len()).partition(rests);
    let first = match goal {
        goal if goal > LEAST_CHANGE => pressed,
        goal if goal < -LEAST_CHANGE => resting,
        _ => return,
    };
    if !divide(sizes, goal, &first, guests) {
        divide(sizes, goal, &(0..guests.len()).collect::<Vec<_>>(), guests);
    }
}

/// Divides the change among some guests. False if no size changed.
fn divide(sizes: &mut [f64], goal: f64, some: &[usize], guests: &[View]) -> bool {
    let start = sizes.to_vec();
    let (mut rest, mut left) = (goal, some.to_vec());
    // What a bound or the most change keeps from one guest, or gives beyond the goal, others share, until no
    // size changes.
    for _ in 0..MOST_ROUNDS {
        let above: f64 = left.iter().map(|&i| sizes[i] - guests[i].least as f64).sum();
        let part = (above + rest) / left.len() as f64;
        let mut changed = 0.0;
        left.retain(|&i| {
            let wanted = (guests[i].least as f64 + part).clamp(guests[i].least as f64, guests[i].most as f64);
            let next = match wanted {
                wanted if goal > 0.0 && wanted > start[i] => wanted.min(start[i] + MOST_CHANGE),
                wanted if wanted < start[i] => wanted.max(start[i] - MOST_CHANGE),
                _ => return false,
            };
            changed += next - sizes[i];
            sizes[i] = next;
            true
        });
        rest -= changed;
        if changed.abs() < 1.0 || rest.abs() < 1.0 {
            break;
        }
    }
    *sizes != start
}

#[cfg(test)]
mod tests {
    use super::*;

    fn view(held_mib: f64) -> View<'static> {
        let (least, most) = (256 * 512, 256 * 2048);
        View {
            least,
            most,
            size: most,
            held: held_mib * MIB,
            in_use: held_mib * MIB,
            pressure: 0.0,
            touched: None,
            past: None,
        }
    }

    fn round(sizes_mib: [f64; 2], held_mib: [f64; 2], goal_mib: f64) -> [f64; 2] {
        let mut sizes = sizes_mib.map(|s| s * MIB);
        super::round(&mut sizes, goal_mib * MIB, &held_mib.map(view));
        sizes.map(|size| (size / MIB).round())
    }

    #[test]
    fn the_difference_is_divided_in_steps_of_100_mib() {
        // Both alike: half each, up to 100 MiB.
        assert_eq!(round([1024.0; 2], [1024.0; 2], 60.0), [1054.0, 1054.0]);
        assert_eq!(round([1024.0; 2], [1024.0; 2], 600.0), [1124.0, 1124.0]);
        // Too little to do.
        assert_eq!(round([1024.0; 2], [1024.0; 2], 9.0), [1024.0, 1024.0]);
        // To grow, the guest without free memory comes first; to shrink, the other.
        assert_eq!(round([1024.0; 2], [1024.0, 500.0], 60.0), [1084.0, 1024.0]);
        assert_eq!(round([1024.0; 2], [1024.0, 500.0], -60.0), [1024.0, 964.0]);
        assert_eq!(round([1024.0; 2], [1024.0, 500.0], -600.0), [1024.0, 924.0]);
        // No guest has free memory: all shrink.
        assert_eq!(round([1024.0; 2], [1024.0; 2], -60.0), [994.0, 994.0]);
        // Bounds.
        assert_eq!(round([2048.0, 512.0], [2048.0, 512.0], -60.0), [1988.0, 512.0]);
    }
}
