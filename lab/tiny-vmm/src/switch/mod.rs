// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches a VM's paging mode while it runs, on a KVM that can (`kernel/`). Each case is a hand-made guest,
//! actions on it from outside, and conditions that must hold afterwards.
//!
//! Most cases also work on one CPU, because a vCPU that is preempted within the guest is in guest mode.

mod control;
mod cost;
mod host;
mod inner;
mod keys;
mod machine;
mod memory;
mod modes;
mod needs;
mod routines;
mod sound;
mod toggles;
mod vmm;
mod windows;

pub use control::{as_other_user, victim};

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

/// A case.
pub struct SwitchCase {
    /// The case's name.
    pub name: &'static str,
    /// What the case expects.
    pub about: &'static str,
    run: fn(&mut Notes) -> Result<()>,
}

impl std::fmt::Debug for SwitchCase {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str(self.name)
    }
}

/// The findings of a case.
#[derive(Debug, Default)]
pub struct Notes {
    wrong: Vec<String>,
    skipped: Option<String>,
    numbers: BTreeMap<String, u64>,
}

impl Notes {
    /// Checks a condition.
    pub fn expect(&mut self, so: bool, what: impl FnOnce() -> String) {
        if !so {
            self.wrong.push(what());
        }
    }

    /// Checks that two values are equal.
    pub fn same<T: PartialEq + std::fmt::Debug>(&mut self, what: &str, got: T, want: T) {
        self.expect(got == want, || format!("{what}: {got:?}, not {want:?}"));
    }

    /// The case cannot run here, and why.
    pub fn skip(&mut self, why: impl Into<String>) {
        self.skipped = Some(why.into());
    }

    /// Adds a figure to the output.
    pub fn number(&mut self, name: impl Into<String>, value: u64) {
        self.numbers.insert(name.into(), value);
    }
}

/// A line of output.
#[derive(Debug, Serialize)]
pub struct SwitchFact {
    fact: &'static str,
    case: &'static str,
    kernel: String,
    agree: bool,
    /// Why the case did not run.
    #[serde(skip_serializing_if = "Option::is_none")]
    skipped: Option<String>,
    /// Conditions that do not hold.
    extra: Vec<String>,
    numbers: BTreeMap<String, u64>,
}

const fn case(name: &'static str, about: &'static str, run: fn(&mut Notes) -> Result<()>) -> SwitchCase {
    SwitchCase { name, about, run }
}

/// All cases. Cases that take minutes under emulation run only by name.
pub static ALL: [SwitchCase; 47] = [
    case("cap", "the capability chooses the mode of a VM before its first vCPU, and later", control::cap),
    case("words", "unknown words, other users and modes that are there already", control::words),
    case("refuse", "a vCPU that is a hypervisor itself keeps its mode; all is as before", control::refuse),
    case(
        "guest-hypervisor",
        "a guest in shadow paging that begins to be a hypervisor brings its VM back to nested paging",
        needs::guest_hypervisor,
    ),
    case(
        "keys",
        "protection keys hold in either mode, while the guest changes them and the VM is switched",
        keys::keys,
    ),
    case("keys-without-wp", "keys without CR0.WP bring the VM back to nested paging", keys::keys_without_wp),
    case(
        "keys-beside-pae",
        "a vCPU under PAE paging beside one with keys has no tables of the other's",
        keys::keys_beside_pae,
    ),
    case("nested-roots", "a guest runs a guest of its own right after a stay in shadow paging", inner::roots),
    case("forged-smm", "a guest forges the state that RSM enters a guest's guest with", inner::forged),
    case("way-back", "a switch back that fails: all vCPUs go on in shadow paging", sound::way_back),
    case(
        "cannot-go",
        "a guest needs nested paging and its VM cannot go there: the instruction fails",
        sound::cannot_go,
    ),
    case("slots-held", "slots_lock is held for long: the switch ends at its limit", sound::slots_held),
    case(
        "drop-wait",
        "a notifier waits at most a batch while up to 16,000 pages are dropped",
        sound::drop_wait,
    ),
    case(
        "standstill",
        "slots, a migration that begins and split pages: a switch stops the VM for at most its limit",
        sound::standstill,
    ),
    case("signals", "signals while KVM_SET_SREGS brings the VM back", vmm::signals),
    case("forgotten", "state that could not be set brings no VM back later", vmm::forgotten),
    case("events-in-smm", "events of a vCPU in SMM are written back as they were", vmm::events_in_smm),
    case("hot-plugged", "vCPUs that are plugged in during switches, some as hypervisors", vmm::hot_plugged),
    case("noncoherent-dma", "a device needs the guest's memory types", vmm::noncoherent_dma),
    case("odd-segments", "segments that the processor takes in one mode alone", vmm::odd_segments),
    case("no-memory", "each allocation fails in turn", vmm::no_memory),
    case("by-vmm", "a VMM without CAP_SYS_ADMIN chooses shadow paging only where allowed", needs::by_vmm),
    case(
        "given-back",
        "reverse maps are made for a stay in shadow paging and go after it",
        needs::given_back,
    ),
    case("timeout", "a vCPU that does not come: the switch is given up, all is as before", control::timeout),
    case(
        "vcpus",
        "vCPUs that run, are halted, wait for SIPI, never ran, or are in user space",
        control::vcpus,
    ),
    case("created", "vCPUs made while switches go on", control::created),
    case("two-writers", "two switch requests at once", control::two_writers),
    case("killed", "the VM's process is killed in the middle of switches", control::killed),
    case("closed", "the VM is closed while a switch waits for it", control::closed),
    case("real-mode", "a guest without paging, before its tables exist", modes::real_mode),
    case("pae", "a 32-bit guest under PAE paging whose top table changes unsaid", modes::pae),
    case(
        "toggles",
        "vCPUs change levels, PAE, paging, keys and the hypervisor's bit while two writers switch",
        toggles::toggles,
    ),
    case("smm", "a switch while the vCPU is in system management mode", modes::smm),
    case("kept-4k", "back from a stay in shadow paging no violation comes twice", memory::kept_small),
    case("kept-2m", "the same on 2 MB pages", memory::kept_large),
    case("notifiers", "pages taken away during the stay are gone from the kept tables", memory::notifiers),
    case("dirty-log", "no write is missed by the dirty log in either mode and in between", memory::dirty_log),
    case("slots", "memory slots added, removed and moved in either mode", memory::slots),
    case("charged", "reverse maps are charged to the VM's cgroup, not the switcher's", host::charged),
    case("ksm", "the host merges and unmerges pages in either mode", host::ksm),
    case("pageout", "the host swaps or drops pages in either mode", host::pageout),
    case("thp-split", "the host splits huge pages in either mode", host::split),
    case("churn", "page tables that the guest keeps rewriting are intact after switches", memory::churn),
    case(
        "first-walk",
        "tables first walked by the hardware right after a stay in shadow",
        memory::first_walk,
    ),
    case("hidden-faults", "faults after a stay in nested paging, 512 MB of 4 KB pages", cost::hidden_faults),
    case("once-a-second", "nested, shadow, nested once a second: violations", cost::once_a_second),
    case("cost", "a switch by shadow pages and by memory: 256 MB, 1, 4, 16 GB, as memory allows", cost::cost),
];

/// Cases that run only by name.
pub const LONG: [&str; 3] = ["hidden-faults", "once-a-second", "cost"];

/// Names of all cases, for the command line.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|c| c.name).collect()
}

/// Runs cases and reports each when it ends. True if all conditions hold.
pub fn run(names: &[String], mut tell: impl FnMut(&SwitchFact) -> Result<()>) -> Result<bool> {
    machine::handle_signal()?;
    let kernel = crate::vm::host_kernel()?;
    let mut all = true;
    for case in &ALL {
        let wanted =
            if names.is_empty() { !LONG.contains(&case.name) } else { names.iter().any(|n| n == case.name) };
        if !wanted {
            continue;
        }
        let mut notes = Notes::default();
        let end = (case.run)(&mut notes);
        if let Err(e) = end {
            if e.downcast_ref::<crate::vm::Unavailable>().is_some() {
                return Err(e);
            }
            notes.wrong.push(format!("{e:#}"));
        }
        all &= notes.wrong.is_empty();
        tell(&SwitchFact {
            fact: "switch",
            case: case.name,
            kernel: kernel.clone(),
            agree: notes.wrong.is_empty() && notes.skipped.is_none(),
            skipped: notes.skipped,
            extra: notes.wrong,
            numbers: notes.numbers,
        })?;
    }
    Ok(all)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn names_are_distinct_and_the_long_ones_exist() {
        let mut names = names();
        assert!(LONG.iter().all(|l| names.contains(l)));
        names.sort_unstable();
        names.dedup();
        assert_eq!(names.len(), ALL.len());
    }

    #[test]
    fn a_note_that_is_not_so_is_kept() {
        let mut n = Notes::default();
        n.same("a", 1, 1);
        n.same("b", 1, 2);
        assert_eq!(n.wrong, ["b: 1, not 2"]);
    }
}
