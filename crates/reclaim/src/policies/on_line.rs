// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies that divide the memory of a host whose guests run.

use super::mom::Mom;
use super::proxmox::Proxmox;
use super::{Balloons, PolicyName};
use crate::replay::{Now, Policy, View};
use std::fmt;

/// What a host sees of a guest that runs, in frames.
#[derive(Debug, Clone, Copy, PartialEq, Default)]
pub struct GuestObservation {
    /// Least that it may have.
    pub least: u64,
    /// Most that it may have: all of its memory.
    pub most: u64,
    /// What it has.
    pub size: u64,
    /// What it has in the host's memory.
    pub held: f64,
    /// What is not free in it.
    pub in_use: f64,
    /// The part of the time since the last decision in which it waited for memory.
    pub pressure: f64,
    /// What it used since the last decision, if that is known.
    pub touched: Option<f64>,
}

/// A policy at work. It knows the last decisions only by what has become of them.
///
/// ```
/// use bifold_reclaim::{GuestObservation, PolicyName};
///
/// let guest = GuestObservation {
///     least: 100, most: 1000, size: 1000, held: 900.0, in_use: 900.0,
///     ..GuestObservation::default()
/// };
/// let mut equal = PolicyName::Equal.on_line(2).unwrap();
/// assert_eq!(equal.decide(1200, 0.0, &[guest, guest]), [600, 600]);
/// assert!(PolicyName::Oracle.on_line(2).is_none());
/// ```
pub struct OnLine {
    name: PolicyName,
    policy: Box<dyn Policy + Send>,
}

impl fmt::Debug for OnLine {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        f.debug_tuple("OnLine").field(&self.name).finish()
    }
}

impl PolicyName {
    /// The policies that decide by what a host sees of guests that run. Miss curves and the future are not
    /// seen.
    pub const ON_LINE: [PolicyName; 5] =
        [PolicyName::Equal, PolicyName::IdleTax, PolicyName::Mom, PolicyName::Proxmox, PolicyName::Feedback];

    /// The policy for so many guests that run; `None` if it is not one of [`ON_LINE`](PolicyName::ON_LINE).
    pub fn on_line(self, guests: usize) -> Option<OnLine> {
        let policy = self.policy(guests).filter(|_| PolicyName::ON_LINE.contains(&self))?;
        Some(OnLine { name: self, policy })
    }

    /// As [`on_line`](PolicyName::on_line), for guests that have been given these sizes already, in frames:
    /// the rules of MOM and Proxmox change what they gave last.
    ///
    /// ```
    /// use bifold_reclaim::{GuestObservation, PolicyName};
    ///
    /// let guest = GuestObservation {
    ///     least: 100, most: 1000, size: 500, held: 400.0, in_use: 400.0,
    ///     ..GuestObservation::default()
    /// };
    /// let mut mom = PolicyName::Mom.on_line_from(&[500]).unwrap();
    /// assert_eq!(mom.decide(1000, 0.0, &[guest]), [500]);
    /// ```
    pub fn on_line_from(self, sizes: &[u64]) -> Option<OnLine> {
        let mut on_line = self.on_line(sizes.len())?;
        on_line.policy = match self {
            PolicyName::Mom => Box::new(Mom(Balloons::from(sizes))),
            PolicyName::Proxmox => Box::new(Proxmox(Balloons::from(sizes))),
            _ => on_line.policy,
        };
        Some(on_line)
    }
}

impl OnLine {
    /// The size of each guest, within its bounds. `seconds` have passed since the last decision; 0 at the
    /// first. Sizes can be more than the host's frames.
    pub fn decide(&mut self, host: u64, seconds: f64, guests: &[GuestObservation]) -> Vec<u64> {
        let view = |seen: &GuestObservation| View {
            least: seen.least,
            most: seen.most,
            size: seen.size,
            held: seen.held,
            in_use: seen.in_use,
            pressure: seen.pressure,
            touched: seen.touched,
            past: None,
        };
        let views: Vec<View> = guests.iter().map(view).collect();
        let sizes = self.policy.decide(Now { host, seconds }, &views);
        sizes.into_iter().zip(guests).map(|(size, seen)| size.clamp(seen.least, seen.most)).collect()
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_guest_that_rests_gives_under_a_tax_and_keeps_under_the_equal_split() {
        let guest = |touched| GuestObservation {
            least: 1000,
            most: 10_000,
            size: 8000,
            held: 8000.0,
            in_use: 8000.0,
            pressure: 0.0,
            touched: Some(touched),
        };
        let guests = [guest(8000.0), guest(0.0)];
        let after = |name: PolicyName| {
            let mut policy = name.on_line(2).unwrap();
            (0..600).fold(Vec::new(), |_, n| policy.decide(12_000, if n == 0 { 0.0 } else { 5.0 }, &guests))
        };
        assert_eq!(after(PolicyName::Equal), [6000, 6000]);
        let taxed = after(PolicyName::IdleTax);
        assert!(taxed[0] > 8000 && taxed[1] < 4000, "{taxed:?}");
        for name in PolicyName::ON_LINE {
            assert!(after(name).iter().all(|size| (1000..=10_000).contains(size)), "{name:?}");
        }
    }
}
