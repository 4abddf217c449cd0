// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Warnings: each line is one reason to doubt the figures. Every output has the warnings in its head.

use crate::text::grouped;
use crate::verdict::{checks, prior_keys};
use crate::{Comparison, Input, clock};
use bifold_model::{Profile, Unmeasured};

const COLD: &str = "the region began in a cold VM: this recording has nothing of what the command did before, so memory that \
                    the command had touched counts as never backed; record it again with this version";

/// The warnings, the most severe first; none for a whole run whose checks passed.
pub(crate) fn warnings(c: &Comparison) -> Vec<String> {
    let mut out = Vec::new();
    out.extend(failed_checks(c));
    out.extend(failed_replays(c));
    out.extend(c.meta.partial.map(|p| format!("PARTIAL: {}", p.describe())));
    out.extend(c.began_cold().then(|| COLD.into()));
    out.extend(made_up(c));
    out.extend(clock::warnings(c));
    out.extend(unmeasured(&c.meta.hardware));
    out
}

/// What of an imported trace is not the program's.
fn made_up(c: &Comparison) -> Option<String> {
    let Input::Recording { imported: Some(tool), .. } = &c.meta.input else { return None };
    Some(format!(
        "page faults, page tables and frames are made up: a trace of {tool} has the accesses of the program alone, and a simple \
         operating system does the rest (docs/guide/import.md)"
    ))
}

/// Values of a measured profile that its machine did not give: each refused one by its key; values that were
/// not reached are counted. The model does not use those of `[system]`.
fn unmeasured(profile: &Profile) -> Option<String> {
    let of = |why: Unmeasured| {
        let keys: Vec<String> =
            profile.unmeasured(why).into_iter().filter(|k| !k.starts_with("system.")).collect();
        let names = if why == Unmeasured::Refused { keys.join(", ") } else { prior_keys(&keys) };
        (!keys.is_empty()).then(|| format!("{names} ({})", why.word()))
    };
    let all: Vec<String> = [Unmeasured::Refused, Unmeasured::NotReached].into_iter().filter_map(of).collect();
    (!all.is_empty()).then(|| {
        format!("values of the profile that its machine did not give when measured: {}", all.join(", "))
    })
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

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_profile_whose_measurement_was_refused_says_so_in_one_line() {
        let zen4 = Profile::load("zen4", &[]).unwrap();
        assert_eq!(unmeasured(&zen4), None);
        let mut mine = zen4;
        mine.memory.as_mut().unwrap().prior =
            Some("cycles: refused, because the interval of 9 (-1 to 20) spans zero: as zen4's".into());
        mine.tlb[0].prior = Some("entries: not reached: as zen4's; ways: not reached: as zen4's".into());
        let expected = "values of the profile that its machine did not give when measured: \
                        memory.cycles (refused), 2 of tlb (not reached)";
        assert_eq!(unmeasured(&mine).as_deref(), Some(expected));
    }
}
