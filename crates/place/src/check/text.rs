// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A check for people: each finding with its figures and the command that mends it, and a line for each sound guest.

use super::case::Finding;
use super::seen::{GuestSeen, Seen};
use bifold_host::printable;

/// The report. Names come from guests' owners: control characters are escaped.
pub fn report(seen: &Seen, pids: &[u32], findings: &[Finding]) -> String {
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
        if !findings.iter().any(|f| f.pid == Some(guest.pid)) {
            out += &sound(guest);
        }
    }
    out
}

fn sound(guest: &GuestSeen) -> String {
    let pages: u64 = guest.blocks.iter().map(|b| b.pages.looked).sum();
    let of: u64 = guest.blocks.iter().map(|b| b.pages.all).sum();
    let pages = match pages {
        0 => "no pages".to_string(),
        n if n < of => format!("{n} of {of} pages"),
        n => format!("{n} pages"),
    };
    let word = if guest.unknown.is_empty() { "sound" } else { "sound as far as it can be seen" };
    format!(
        "{word}: {} ({}): {} vCPUs, {pages} looked at\n",
        printable(&guest.name),
        guest.pid,
        guest.vcpus().len()
    )
}
