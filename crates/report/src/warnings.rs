// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Warnings: each line is one reason to doubt the figures. Every output has the warnings in its head.

use crate::text::grouped;
use crate::verdict::checks;
use crate::{Comparison, clock};

/// The warnings, the most severe first; none for a whole run whose checks passed.
pub(crate) fn warnings(c: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    out.extend(failed_checks(c));
    out.extend(failed_replays(c));
    out.extend(c.meta.partial.map(|p| format!("PARTIAL: {}", p.describe())));
    out.extend(clock::warnings(c));
    out
}

/// Self-checks of the capture and the model that failed.
fn failed_checks(c: &Comparison) -> Option<String> {
    let (_, failed) = c.checks();
    if failed == 0 {
        return None;
    }
    let mut parts: Vec<String> = checks(c)
        .into_iter()
        .filter(|(.., bad)| *bad > 0)
        .map(|(what, made, bad)| format!("{} of {} {what} DISAGREE", grouped(bad), grouped(made)))
        .collect();
    if c.outcome.untranslated > 0 {
        parts.push(format!("{} accesses had NO TRANSLATION", grouped(c.outcome.untranslated)));
    }
    Some(format!("self-checks FAILED, do not trust these figures: {}", parts.join(", ")))
}

/// Replays of policies that differ from the VMs that really switched.
fn failed_replays(c: &Comparison) -> Option<String> {
    let off: Vec<&str> = c
        .policies
        .iter()
        .flat_map(|p| &p.checks)
        .filter(|check| !check.passed())
        .map(|check| check.name.as_str())
        .collect();
    (!off.is_empty())
        .then(|| format!("replay checks FAILED: {} OFF from the VM that really switched", off.join(", ")))
}
