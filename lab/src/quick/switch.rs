// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests the tiny VMM's switch cases with the modules of `kernel/build`.

use anyhow::Result;

use super::{Shared, Skipped};
use crate::switch::{Machine, judge, run};

const MEMORY: [&str; 8] =
    ["kept-4k", "kept-2m", "notifiers", "drop-wait", "dirty-log", "slots", "churn", "first-walk"];
const HOST: [&str; 3] = ["ksm", "pageout", "thp-split"];
const CONTROL: [&str; 16] = [
    "cap",
    "words",
    "refuse",
    "guest-hypervisor",
    "by-vmm",
    "given-back",
    "timeout",
    "vcpus",
    "created",
    "two-writers",
    "killed",
    "closed",
    "real-mode",
    "pae",
    "smm",
    "events-in-smm",
];
const SOUND: [&str; 10] = [
    "keys",
    "keys-without-wp",
    "keys-beside-pae",
    "nested-roots",
    "way-back",
    "cannot-go",
    "slots-held",
    "signals",
    "forgotten",
    "hot-plugged",
];

fn check(shared: &Shared, cases: &[&str]) -> Result<()> {
    let release = &shared.lab.kernel().version;
    let Some(modules) = shared.lab.built_modules() else {
        return Err(Skipped(format!("no modules for {release}: make kernel builds them")).into());
    };
    let lab = shared.lab.clone().with_modules(modules);
    let cases: Vec<String> = cases.iter().map(|c| c.to_string()).collect();
    judge(&run(&lab, &cases, Machine { memory_mib: 1536, seconds: 400, exact: true })?)
}

/// Permissions, refusals, and vCPUs in every state.
pub fn control(shared: &Shared) -> Result<()> {
    check(shared, &CONTROL)
}

/// Switches that cannot come about, protection keys, guests of guests, and VMMs that set state during a
/// switch.
pub fn sound(shared: &Shared) -> Result<()> {
    check(shared, &SOUND)
}

/// Kept tables, dirty logs, memory slots, guest tables.
pub fn memory(shared: &Shared) -> Result<()> {
    check(shared, &MEMORY)
}

/// The host's changes of guest memory during switches.
pub fn host(shared: &Shared) -> Result<()> {
    check(shared, &HOST)
}
