// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a check says about a guest as a whole.

use super::case::Finding;
use super::seen::GuestFacts;

/// The whole of what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Verdict {
    /// Something is wrong.
    Findings,
    /// Everything was seen, and nothing is wrong.
    Sound,
    /// Nothing is wrong, and something was not seen.
    SoundAsSeen,
    /// No vCPU was seen: where the guest runs is not known.
    NotChecked,
}

impl Verdict {
    /// The verdict on a guest.
    pub fn of(guest: &GuestFacts, findings: &[Finding]) -> Verdict {
        if findings.iter().any(|f| f.pid == Some(guest.pid)) {
            Verdict::Findings
        } else if guest.vcpus().is_empty() {
            Verdict::NotChecked
        } else if guest.unknown.is_empty() {
            Verdict::Sound
        } else {
            Verdict::SoundAsSeen
        }
    }

    /// The word in JSON.
    pub fn word(self) -> &'static str {
        match self {
            Verdict::Findings => "findings",
            Verdict::Sound => "sound",
            Verdict::SoundAsSeen => "sound_as_seen",
            Verdict::NotChecked => "not_checked",
        }
    }
}
