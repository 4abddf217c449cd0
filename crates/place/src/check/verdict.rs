// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What a check says about a guest as a whole.

use super::case::Finding;
use super::seen::GuestFacts;
use schemars::JsonSchema;
use serde::Serialize;

/// The whole of what was found.
#[derive(Debug, Clone, Copy, PartialEq, Eq, Serialize, JsonSchema)]
#[serde(rename_all = "snake_case")]
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
}
