// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of a decision.

use std::fmt;
use std::time::Duration;

/// What the daemon does after a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// The guest has what the policy wants, or nearly.
    Stayed,
    /// Memory is ordered.
    Takes,
    /// A part of what was taken is given back.
    Gives,
    /// The rule only observes.
    WouldTake,
    /// A user holds the guest.
    Held,
    /// The last order that took memory is too near.
    TooEarly(Duration),
    /// There were so many orders in the last hour.
    TooMany(usize),
    /// Any other reason.
    NotTaken(String),
}

impl Done {
    /// The word in recordings.
    pub fn word(&self) -> &'static str {
        match self {
            Done::Stayed => "stayed",
            Done::Takes => "takes",
            Done::Gives => "gives",
            Done::WouldTake => "would-take",
            Done::Held => "held",
            Done::TooEarly(_) => "too-early",
            Done::TooMany(_) => "too-many",
            Done::NotTaken(_) => "not-taken",
        }
    }

    /// Whether the log has this outcome already if it has the one before. Orders are new each time.
    pub fn is_like(&self, before: &Done) -> bool {
        match (self, before) {
            (Done::Takes | Done::Gives, _) => false,
            (Done::NotTaken(a), Done::NotTaken(b)) => a == b,
            _ => self.word() == before.word(),
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Done::TooEarly(left) => write!(f, "not yet, for {:.0} s", left.as_secs_f64().ceil()),
            Done::TooMany(orders) => write!(f, "not yet, after {orders} orders in the last hour"),
            Done::NotTaken(why) => write!(f, "not taken: {why}"),
            other => f.write_str(other.word()),
        }
    }
}
