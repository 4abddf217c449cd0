// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies, one file each: what was published, the parameters, the decision.

mod curves;
mod equal;
mod feedback;
mod idle_tax;
mod mom;
mod on_line;
mod oracle;
mod paging;
mod proxmox;

pub use on_line::{GuestObservation, OnLine};

use crate::replay::{Guest, Host, Policy, Tick, View, replay};

/// A policy by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum PolicyName {
    /// The same for all guests.
    Equal,
    /// All memory for all guests: the host pages.
    Paging,
    /// Shares with a tax on idle memory.
    IdleTax,
    /// The memory overcommitment manager's balloon rule.
    Mom,
    /// Proxmox VE's automatic ballooning.
    Proxmox,
    /// Less until the guest waits, and more when it does.
    Feedback,
    /// The least misses by the last curves.
    Curves,
    /// The same where no guest pays for the others.
    FairCurves,
    /// The least misses by the next curves.
    Oracle,
}

impl PolicyName {
    /// All policies, in the order of tables.
    pub const ALL: [PolicyName; 9] = [
        PolicyName::Equal,
        PolicyName::Paging,
        PolicyName::IdleTax,
        PolicyName::Mom,
        PolicyName::Proxmox,
        PolicyName::Feedback,
        PolicyName::Curves,
        PolicyName::FairCurves,
        PolicyName::Oracle,
    ];

    /// The name in options, tables and JSON.
    ///
    /// ```
    /// use bifold_reclaim::PolicyName;
    ///
    /// assert_eq!(PolicyName::IdleTax.name(), "idle-tax");
    /// ```
    pub const fn name(self) -> &'static str {
        match self {
            PolicyName::Equal => "equal",
            PolicyName::Paging => "paging",
            PolicyName::IdleTax => "idle-tax",
            PolicyName::Mom => "mom",
            PolicyName::Proxmox => "proxmox",
            PolicyName::Feedback => "feedback",
            PolicyName::Curves => "curves",
            PolicyName::FairCurves => "fair-curves",
            PolicyName::Oracle => "oracle",
        }
    }

    /// What the policy must know of guests.
    pub const fn needs(self) -> &'static str {
        match self {
            PolicyName::Equal | PolicyName::Paging => "nothing",
            PolicyName::IdleTax => "samples of pages that are accessed",
            PolicyName::Mom | PolicyName::Proxmox => "the guest's free memory, by its balloon",
            PolicyName::Feedback => "time lost by waits for memory",
            PolicyName::Curves | PolicyName::FairCurves => "the last step's miss curve",
            PolicyName::Oracle => "the future",
        }
    }

    /// The steps of each guest under the policy.
    pub(crate) fn replay(self, guests: &[Guest], host: Host) -> Vec<Vec<Tick>> {
        match self.policy(guests.len()) {
            Some(mut policy) => replay(guests, host, &mut *policy),
            None => oracle::best(guests, host),
        }
    }

    /// The policy for so many guests; `None` for the oracle, which is made with their timelines.
    fn policy(self, guests: usize) -> Option<Box<dyn Policy + Send>> {
        Some(match self {
            PolicyName::Equal => Box::new(equal::Equal),
            PolicyName::Paging => Box::new(paging::Paging),
            PolicyName::IdleTax => Box::new(idle_tax::IdleTax::new(guests)),
            PolicyName::Mom => Box::new(mom::Mom::default()),
            PolicyName::Proxmox => Box::new(proxmox::Proxmox::default()),
            PolicyName::Feedback => Box::new(feedback::Feedback),
            PolicyName::Curves => Box::new(curves::Curves { fair: false }),
            PolicyName::FairCurves => Box::new(curves::Curves { fair: true }),
            PolicyName::Oracle => return None,
        })
    }
}

/// What each guest's balloon leaves, for rules that change every 10 s what they gave last.
#[derive(Default)]
pub(crate) struct Balloons {
    /// Frames. They can be more than the host has: the host pages then.
    sizes: Vec<f64>,
    /// Since the last change.
    seconds: f64,
}

impl Balloons {
    /// Of guests that have been given these sizes.
    fn from(sizes: &[u64]) -> Balloons {
        Balloons { sizes: sizes.iter().map(|&size| size as f64).collect(), seconds: 0.0 }
    }

    /// The sizes after this step, in which `change` is made as often as it is due.
    fn step(&mut self, seconds: f64, guests: &[View], mut change: impl FnMut(&mut [f64])) -> Vec<u64> {
        const PERIOD_S: f64 = 10.0;
        if self.sizes.is_empty() {
            self.sizes = guests.iter().map(|guest| guest.most as f64).collect();
        }
        self.seconds += seconds;
        while self.seconds >= PERIOD_S {
            self.seconds -= PERIOD_S;
            change(&mut self.sizes);
        }
        self.sizes.iter().map(|&size| size as u64).collect()
    }
}

/// The sizes that each guest may have.
fn bounds(guests: &[View]) -> Vec<(u64, u64)> {
    guests.iter().map(|guest| (guest.least, guest.most)).collect()
}
