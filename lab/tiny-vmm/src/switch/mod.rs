// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches a VM's paging mode while it runs, on a KVM that can (`kernel/`). Each case is a hand-made guest,
//! actions on it from outside, and conditions that must hold afterwards.
//!
//! Most cases also work on one CPU, because a vCPU that is preempted within the guest is in guest mode.

mod control;
mod cost;
mod drops;
mod holes;
mod host;
mod inner;
mod keys;
mod limited;
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
pub use limited::limited_vm;

use std::collections::BTreeMap;

use anyhow::Result;
use serde::Serialize;

/// When a case runs, beside by its name.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Runs {
    /// In a whole run, and in the quick test `switch-control`: permissions, refusals, vCPUs in every state.
    Control,
    /// The same for `switch-sound`: switches that cannot come about, keys, guests of guests, other VMMs.
    Sound,
    /// The same for `switch-memory`: kept tables, dirty logs, memory slots, guest tables.
    Memory,
    /// The same for `switch-host`: the host's changes of guest memory.
    Host,
    /// In a whole run alone.
    Whole,
    /// By its name alone, as it takes minutes under emulation.
    Named,
}

/// A case.
pub struct SwitchCase {
    /// When it runs.
    pub runs: Runs,
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

macro_rules! cases {
    ($($runs:ident $name:literal $run:path: $about:literal,)*) => {
        /// All cases.
        pub static ALL: &[SwitchCase] =
            &[$(SwitchCase { runs: Runs::$runs, name: $name, about: $about, run: $run }),*];
    };
}

// When a case runs, its name, its function and what it expects.
cases! {
    Control "cap" control::cap: "the capability chooses the mode of a VM before its first vCPU, and later",
    Control "words" control::words: "unknown words, other users and modes that are there already",
    Control "refuse" control::refuse: "a vCPU that is a hypervisor itself keeps its mode; all is as before",
    Control "guest-hypervisor" needs::guest_hypervisor: "a guest in shadow paging that begins to be a hypervisor brings its VM back to nested paging",
    Sound "keys" keys::keys: "protection keys hold in either mode, while the guest changes them and the VM is switched",
    Sound "keys-late" keys::keys_late: "a vCPU with keys beside one without, which was there first",
    Sound "keys-without-wp" keys::keys_without_wp: "keys without CR0.WP bring the VM back to nested paging",
    Sound "keys-beside-pae" keys::keys_beside_pae: "a vCPU under PAE paging beside one with keys has no tables of the other's",
    Sound "nested-roots" inner::roots: "a guest runs a guest of its own right after a stay in shadow paging",
    Whole "forged-smm" inner::forged: "a guest forges the state that RSM enters a guest's guest with",
    Sound "way-back" sound::way_back: "a switch back that fails: all vCPUs go on in shadow paging",
    Sound "cannot-go" sound::cannot_go: "a guest needs nested paging and its VM cannot go there: the instruction fails",
    Sound "slots-held" sound::slots_held: "slots_lock is held for long: the switch ends at its limit",
    Memory "drop-wait" drops::drop_wait: "a notifier waits at most a batch while up to 16,000 pages are dropped",
    Whole "standstill" sound::standstill: "slots, a migration that begins and split pages: a switch stops the VM for at most its limit",
    Sound "signals" vmm::signals: "signals while KVM_SET_SREGS brings the VM back",
    Sound "forgotten" vmm::forgotten: "state that could not be set brings no VM back later",
    Control "events-in-smm" vmm::events_in_smm: "events of a vCPU in SMM are written back as they were",
    Sound "hot-plugged" vmm::hot_plugged: "vCPUs that are plugged in during switches, some as hypervisors",
    Whole "noncoherent-dma" vmm::noncoherent_dma: "a device needs the guest's memory types",
    Whole "odd-segments" vmm::odd_segments: "segments that the processor takes in one mode alone",
    Whole "no-memory" vmm::no_memory: "each allocation fails in turn",
    Control "by-vmm" needs::by_vmm: "a VMM without CAP_SYS_ADMIN chooses shadow paging only where allowed",
    Control "given-back" needs::given_back: "reverse maps are made for a stay in shadow paging and go after it",
    Control "timeout" control::timeout: "a vCPU that does not come: the switch is given up, all is as before",
    Control "vcpus" control::vcpus: "vCPUs that run, are halted, wait for SIPI, never ran, or are in user space",
    Control "created" control::created: "vCPUs made while switches go on",
    Control "two-writers" control::two_writers: "two switch requests at once",
    Control "killed" control::killed: "the VM's process is killed in the middle of switches",
    Control "closed" control::closed: "the VM is closed while a switch waits for it",
    Control "real-mode" modes::real_mode: "a guest without paging, before its tables exist",
    Control "pae" modes::pae: "a 32-bit guest under PAE paging whose top table changes unsaid",
    Whole "toggles" toggles::toggles: "vCPUs change levels, PAE, paging, keys and the hypervisor's bit while two writers switch",
    Control "smm" modes::smm: "a switch while the vCPU is in system management mode",
    Memory "kept-4k" memory::kept_small: "back from a stay in shadow paging no violation comes twice",
    Memory "kept-2m" memory::kept_large: "the same on 2 MB pages",
    Memory "notifiers" memory::notifiers: "pages taken away during the stay are gone from the kept tables",
    Memory "dirty-log" memory::dirty_log: "no write is missed by the dirty log in either mode and in between",
    Memory "slots" memory::slots: "memory slots added, removed and moved in either mode",
    Whole "charged" host::charged: "reverse maps are charged to the VM's cgroup, not the switcher's",
    Whole "limited" limited::limited: "a cgroup's limit refuses a stay in shadow paging or ends it, and never the VM",
    Host "ksm" host::ksm: "the host merges and unmerges pages in either mode",
    Host "pageout" host::pageout: "the host swaps or drops pages in either mode",
    Host "thp-split" host::split: "the host splits huge pages in either mode",
    Memory "churn" memory::churn: "page tables that the guest keeps rewriting are intact after switches",
    Memory "first-walk" memory::first_walk: "tables first walked by the hardware right after a stay in shadow",
    Named "hidden-faults" cost::hidden_faults: "faults after a stay in nested paging, 512 MB of 4 KB pages",
    Named "once-a-second" cost::once_a_second: "nested, shadow, nested once a second: violations",
    Named "cost" cost::cost: "a switch by shadow pages and by memory: 256 MB, 1, 4, 16 GB, as memory allows",
    Memory "large-to-table" holes::large_to_table: "a large page becomes a table at the same frame, behind KVM's back",
    Memory "other-table" holes::other_table: "a directory entry leads to another table, behind KVM's back",
    Memory "window-over-page" holes::window_over_page: "an entry leads to a device's window, behind KVM's back",
    Memory "little-room" holes::little_room: "every fault takes shadow pages of the guest to make room",
}

/// Messages to the kernel's log around allocations that fail on purpose, of which the kernel may warn.
pub const FAILING: [&str; 2] = ["allocations fail on purpose", "allocations succeed again"];

/// Names of all cases, for the command line.
pub fn names() -> Vec<&'static str> {
    ALL.iter().map(|c| c.name).collect()
}

/// Runs cases and reports each when it ends. True if all conditions hold.
pub fn run(names: &[String], mut tell: impl FnMut(&SwitchFact) -> Result<()>) -> Result<bool> {
    machine::handle_signal()?;
    let kernel = crate::vm::host_kernel()?;
    let mut all = true;
    for case in ALL {
        let wanted =
            if names.is_empty() { case.runs != Runs::Named } else { names.iter().any(|n| n == case.name) };
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
    fn names_are_distinct() {
        let mut names = names();
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
