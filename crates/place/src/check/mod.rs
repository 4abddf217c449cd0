// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Compares guests that run with their plan, or with what any placed guest should have.
//!
//! [`look()`] reads the facts of a host and its guests into [`PlacementFacts`], and [`check()`] applies the
//! rules to them. A [`Finding`] has a kind (one of the list in [`Kind`]), figures, and the command that mends
//! it.

mod blocks;
mod case;
mod json;
mod kinds;
mod look;
mod pages;
mod qmp;
mod rules;
mod seen;
mod text;
mod unseen;
mod verdict;

pub use case::Finding;
pub use json::{Document, SCHEMA, document};
pub use kinds::{Kind, Severity, page};
pub(crate) use look::threads_of;
pub use look::{CheckError, Options, chosen, look};
pub use pages::MOST_PAGES;
pub use seen::{Block, GuestFacts, HostFacts, Pages, PlacementFacts, Unknown};
pub use text::report;
pub use verdict::Verdict;

use crate::plan::Plan;
use bifold_host::topology::Topology;
use case::CheckedGuest;

/// Findings about these guests (by process id), in the order of [`Kind::ALL`] for each.
pub fn check(topology: &Topology, plan: Option<&Plan>, seen: &PlacementFacts, pids: &[u32]) -> Vec<Finding> {
    let mut findings = Vec::new();
    let whole = plan.filter(|plan| rules::fits(topology, plan, &mut findings));
    for guest in seen.guests.iter().filter(|g| pids.contains(&g.pid)) {
        let plan = whole.and_then(|p| p.guests.iter().find(|g| g.name == guest.name));
        let mut case = CheckedGuest { topology, seen, guest, whole, plan, findings: Vec::new() };
        rules::all(&mut case);
        case.findings.sort_by_key(|f| f.kind);
        findings.append(&mut case.findings);
    }
    findings
}

/// The finding that a plan is of another host, if it is.
pub fn misfit(topology: &Topology, plan: &Plan) -> Option<Finding> {
    let mut findings = Vec::new();
    rules::fits(topology, plan, &mut findings);
    findings.pop()
}

/// Findings about the guests of a plan that do not run here.
pub fn check_absent(topology: &Topology, plan: &Plan, seen: &PlacementFacts) -> Vec<Finding> {
    let mut findings = Vec::new();
    if misfit(topology, plan).is_none() {
        rules::absent_guests(topology, plan, seen, &mut findings);
    }
    findings
}

#[cfg(test)]
mod tests;
