// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check for people: each finding with its figures and the command that mends it, a line for each guest
//! without findings, and what was not seen.

use super::case::Finding;
use super::seen::{GuestFacts, PlacementFacts};
use super::verdict::Verdict;
use bifold_host::printable;

/// The report. Names come from guests' owners: control characters are escaped.
pub fn report(seen: &PlacementFacts, pids: &[u32], findings: &[Finding]) -> String {
    let mut out = String::new();
    for finding in findings {
        let about = match (&finding.vm, finding.pid) {
            (Some(vm), Some(pid)) => format!("{} ({pid})", printable(vm)),
            (Some(vm), None) => printable(vm),
            (None, _) => "the host".into(),
        };
        out += &format!("{} {}: {about}\n", finding.kind.severity().word(), finding.kind.name());
        out += &format!("    {}\n", printable(&finding.evidence));
        if !finding.mend.is_empty() {
            out += &format!("    mend: {}\n", printable(&finding.mend));
        }
    }
    for guest in seen.guests.iter().filter(|g| pids.contains(&g.pid)) {
        out += &summary(guest, Verdict::of(guest, findings));
    }
    out
}

/// The verdict on a guest, how much of it was looked at, and what was not seen.
fn summary(guest: &GuestFacts, verdict: Verdict) -> String {
    let word = match verdict {
        Verdict::Findings if guest.unknown.is_empty() => return String::new(),
        Verdict::Findings => "seen in part",
        Verdict::Sound => "sound",
        Verdict::SoundAsSeen => "sound as far as it can be seen",
        Verdict::NotChecked => "not checked",
    };
    let pages: u64 = guest.blocks.iter().map(|b| b.pages.looked).sum();
    let of: u64 = guest.blocks.iter().map(|b| b.pages.all).sum();
    let pages = match pages {
        0 => "no pages".to_string(),
        n if n < of => format!("{n} of {of} pages"),
        n => format!("{n} pages"),
    };
    let vcpus = match guest.vcpus().len() {
        0 => "no vCPU".to_string(),
        n => format!("{n} vCPUs"),
    };
    let mut out = format!("{word}: {} ({}): {vcpus}, {pages} looked at\n", printable(&guest.name), guest.pid);
    for unknown in &guest.unknown {
        out += &format!("    not seen: {}\n", printable(&unknown.what));
    }
    out
}
