// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What became of a decision.

use bifold_host::Obstacle;
use std::fmt;
use std::time::Duration;

/// What the daemon did after a decision.
#[derive(Debug, Clone, PartialEq)]
pub enum Done {
    /// The VM is in the mode that the policy wants.
    Stayed,
    /// The VM was switched, in this time.
    Switched(Duration),
    /// The VM was in the mode already when KVM was asked.
    WasThere,
    /// The rule only observes.
    WouldSwitch,
    /// The rule only observes, and KVM would refuse.
    WouldBeRefused(Obstacle),
    /// A user holds the VM in its mode.
    Held,
    /// KVM would refuse, and was not asked.
    Blocked(Obstacle),
    /// Any other reason.
    NotSwitched(NotSwitched),
}

/// Why a VM was not switched, other than an obstacle that KVM tells.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum NotSwitched {
    /// KVM does not have the mode, in words.
    #[error("KVM has no {0}")]
    NoMode(&'static str),
    /// Seconds until the least stay is over.
    #[error("its least stay lasts {0:.0} s more")]
    TooEarly(f64),
    /// Switches in the last hour, as many as the rule allows.
    #[error("{0} switches in the last hour")]
    TooMany(u64),
    /// Seconds until the next stay in shadow paging may begin.
    #[error("its last stay in shadow paging ended early, and the next may begin in {0:.0} s")]
    EndedEarly(f64),
    /// It is too early to ask KVM again.
    #[error("KVM refused a moment ago")]
    Refused,
    /// The VM is gone.
    #[error("it has ended")]
    Ended,
    /// Another VM has its identifier.
    #[error("its identifier is another VM's by now")]
    Replaced,
    /// Another rule may be for the new name.
    #[error("it was renamed")]
    Renamed,
    /// A switch that the daemon did not ask for is under way.
    #[error("somebody else switches it")]
    Switching,
    /// KVM does not tell the mode.
    #[error("its mode cannot be read")]
    Unreadable,
    /// No journal would know how to give the VM back.
    #[error("its mode cannot be written down")]
    Unwritten,
    /// KVM's answer, or why no VM of this host can be switched.
    #[error("{0}")]
    Answer(String),
}

impl Done {
    /// Whether the log has this outcome already if it has the one before. Every switch is new; of the reasons
    /// not to switch, only obstacles count as different.
    pub fn is_like(&self, before: &Done) -> bool {
        match (self, before) {
            (Done::Switched(_), _) => false,
            (Done::NotSwitched(_), Done::NotSwitched(_)) => true,
            (Done::Blocked(a), Done::Blocked(b)) | (Done::WouldBeRefused(a), Done::WouldBeRefused(b)) => {
                a.is_like(b)
            }
            (a, b) => a == b,
        }
    }
}

impl fmt::Display for Done {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        match self {
            Done::Stayed => f.write_str("stayed"),
            Done::Switched(wall) => write!(f, "switched in {:.1} ms", wall.as_secs_f64() * 1e3),
            Done::WasThere => f.write_str("switched: it was there already"),
            Done::WouldSwitch => f.write_str("would-switch"),
            Done::WouldBeRefused(o) => write!(f, "would-be-refused, {}: {o}", o.reason.word()),
            Done::Held => f.write_str("held"),
            Done::Blocked(o) => write!(f, "not-switched, {}: {o}", o.reason.word()),
            Done::NotSwitched(why) => write!(f, "not-switched: {why}"),
        }
    }
}
