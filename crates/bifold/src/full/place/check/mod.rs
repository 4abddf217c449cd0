// SPDX-License-Identifier: Apache-2.0 OR MIT
//! `bifold place check`: guests that run beside their plan, or beside what any placed guest should have.
//!
//! [`bifold_place::check`] reads the facts and has the rules.

mod args;

pub use args::CheckArgs;

use super::plans;
use crate::console::{Progress, note, print};
use crate::status::Status;
use crate::usage::UsageError;
use bifold_host::Host;
use bifold_host::LiveGuest;
use bifold_host::topology::Topology;
use bifold_place::apply::Kept;
use bifold_place::check::{
    CheckError, Finding, Options, PlacementFacts, check, check_absent, chosen, document, look, report,
};
use bifold_place::plan::Plan;
use bifold_report::Format;
use std::cell::RefCell;

/// Carries out the verb on this machine.
pub fn run(args: &CheckArgs) -> anyhow::Result<Status> {
    let host = Host::live();
    let topology = host.topology()?;
    topology.notes.iter().for_each(|text| note(!args.quiet, text));
    let plan = plan(&host, args)?;
    let guests = host.live_guests();
    let pids = who(&guests, args, plan.as_ref())?;
    let seen = seen(&host, &guests, &pids, args, plan.as_ref())?;
    let findings = findings(&topology, plan.as_ref(), &seen, &pids, args);
    print(&match args.format {
        Format::Json => serde_json::to_string_pretty(&document(&seen, &pids, &findings))? + "\n",
        _ => report(&seen, &pids, &findings),
    })?;
    Ok(end(&seen, &pids, &findings, args))
}

/// The plan of `--plan`, else the one that is applied.
fn plan(host: &Host, args: &CheckArgs) -> anyhow::Result<Option<Plan>> {
    let kept = Kept::within(&args.state);
    let applied = || kept.applied(host).map_err(anyhow::Error::from);
    if let Some(path) = &args.plan {
        let plan = plans::read(path)?;
        // Of the plan that is applied, the wishes that the kernel refused are no findings.
        let is_kept = plans::read(&kept.plan).is_ok_and(|kept| kept == plan);
        let without_refused = if is_kept { applied().ok().flatten() } else { None };
        return Ok(Some(without_refused.unwrap_or(plan)));
    }
    Ok(applied().unwrap_or_else(|e| {
        note(!args.quiet, format_args!("the plan that is applied is not used: {e:#}"));
        None
    }))
}

/// The guests to check; none if the word names a guest of the plan that does not run.
fn who(guests: &[LiveGuest], args: &CheckArgs, plan: Option<&Plan>) -> anyhow::Result<Vec<u32>> {
    let pids = match (chosen(guests, args.vm.as_deref()), &args.vm) {
        (Err(CheckError::NoGuest { .. }), Some(vm)) if planned(plan, vm) => Vec::new(),
        (pids, _) => pids.map_err(|e| UsageError::value("VM", e).failing())?,
    };
    if args.qmp.is_some() && pids.len() != 1 {
        let problem = format!("is one guest's monitor, and {} guests are checked: give a VM", pids.len());
        return Err(UsageError::conflict("--qmp", problem).into());
    }
    Ok(pids)
}

fn planned(plan: Option<&Plan>, vm: &str) -> bool {
    plan.is_some_and(|p| p.guests.iter().any(|g| g.name == vm))
}

fn seen(
    host: &Host,
    guests: &[LiveGuest],
    pids: &[u32],
    args: &CheckArgs,
    plan: Option<&Plan>,
) -> Result<PlacementFacts, CheckError> {
    let line = RefCell::new(Progress::start(!args.quiet, "looking at pages"));
    let progress = |done: u64, all: u64| {
        line.borrow_mut().say_again(|| format!("{} % of the guest's pages", done * 100 / all.max(1)));
    };
    let seen = look(host, guests, pids, &Options { plan, qmp: args.qmp.as_deref(), progress: &progress });
    line.borrow().end();
    seen
}

fn findings(
    topology: &Topology,
    plan: Option<&Plan>,
    seen: &PlacementFacts,
    pids: &[u32],
    args: &CheckArgs,
) -> Vec<Finding> {
    let mut findings = check(topology, plan, seen, pids);
    // Guests of the plan that is applied may be started later; whoever names plan or guest wants to know.
    let wanted = |f: &Finding| match &args.vm {
        Some(vm) => f.vm.is_none() || f.vm.as_deref() == Some(vm),
        None => args.plan.is_some(),
    };
    if let Some(plan) = plan.filter(|_| args.vm.is_none() || pids.is_empty()) {
        findings.extend(check_absent(topology, plan, seen).into_iter().filter(wanted));
    }
    findings
}

/// The exit status.
fn end(seen: &PlacementFacts, pids: &[u32], findings: &[Finding], args: &CheckArgs) -> Status {
    let checked = || seen.guests.iter().filter(|g| pids.contains(&g.pid));
    if pids.is_empty() && findings.is_empty() {
        note(!args.quiet, "no guest runs here");
    }
    if !findings.is_empty() {
        Status::CheckFailed
    } else if checked().any(|g| g.vcpus().is_empty() || g.unknown.iter().any(|u| u.privilege)) {
        Status::Unavailable
    } else {
        Status::Done
    }
}
