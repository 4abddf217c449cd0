// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts what guests within guests cost the outer hypervisor, from its trace and the inner hypervisor's.
//!
//! An exit of the inner hypervisor's guest is followed by the event kvm_nested_vmexit, and by
//! kvm_nested_vmexit_inject if it is passed on. What the guest marks by CPUID, which is passed on, only the
//! inner hypervisor's trace can read: the guest's CPUIDs have the same order in both traces.

use std::collections::BTreeMap;

use super::ftrace::{Formats, Record, TraceError, read};
use super::{LEAF, raw_exit};
use crate::vendor::{ExitCause, Vendor};

/// The trace events of the outer hypervisor.
pub const EVENTS: [&str; 3] = ["kvm:kvm_exit", "kvm:kvm_nested_vmexit", "kvm:kvm_nested_vmexit_inject"];

/// What is counted: the model's counters.
pub const REASONS: [&str; 3] = ["outer_fills", "outer_stores", "outer_flushes"];

const PRESENT_WRITE: u64 = 1 | 1 << 1;

/// A hypervisor's trace.
#[derive(Debug, Clone, Copy)]
pub struct Trace<'a> {
    /// The pages of the buffer.
    pub raw: &'a [u8],
    /// The events' layouts.
    pub formats: &'a Formats,
}

/// The markers of the guest in the inner hypervisor's trace: the number of the guest's CPUID, and the marker.
fn markers(inner: Trace, vendor: &Vendor) -> Result<BTreeMap<u64, u64>, TraceError> {
    let (mut cpuids, mut markers) = (0, BTreeMap::new());
    read(inner.raw, inner.formats, |r| match r.format.name.as_str() {
        "kvm_exit" => cpuids += u64::from(r.get("exit_reason") == vendor.cpuid_exit),
        "kvm_cpuid" if r.get("function") == LEAF => _ = markers.insert(cpuids, r.get("index")),
        _ => {}
    })?;
    Ok(markers)
}

/// Whose exit it is, and what became of it.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Whose {
    /// The inner hypervisor's own.
    Inner,
    /// That of its guest, which the outer hypervisor handled.
    Guest,
    /// That of its guest, passed on.
    PassedOn,
}

#[derive(Debug)]
struct Exit {
    reason: u64,
    cause: Option<ExitCause>,
    error: u64,
    whose: Whose,
}

impl Exit {
    fn counter(&self, vendor: &Vendor) -> Option<&'static str> {
        let [fills, stores, flushes] = REASONS;
        match (self.whose, self.cause) {
            (Whose::Guest, Some(ExitCause::NestedFault)) => Some(fills),
            (Whose::Inner, Some(ExitCause::NestedFault)) if self.error & PRESENT_WRITE == PRESENT_WRITE => {
                Some(stores)
            }
            (Whose::Inner, _) if vendor.nested_flushes.contains(&self.reason) => Some(flushes),
            _ => None,
        }
    }
}

/// Reads a trace of the outer hypervisor and hands on each exit when all that concerns it was read.
fn exits(outer: Trace, vendor: &Vendor, mut one: impl FnMut(Exit)) -> Result<(), TraceError> {
    let mut open = None::<Exit>;
    read(outer.raw, outer.formats, |r: Record| match r.format.name.as_str() {
        "kvm_exit" => {
            let raw = raw_exit(&r);
            let paging = (vendor.decode)(&raw);
            let (cause, error) = (paging.map(|p| p.cause), paging.map_or(0, |p| p.error));
            let exit = Exit { reason: raw.exit_reason, cause, error, whose: Whose::Inner };
            open.replace(exit).into_iter().for_each(&mut one);
        }
        "kvm_nested_vmexit" => open.iter_mut().for_each(|o| o.whose = Whose::Guest),
        "kvm_nested_vmexit_inject" => open.iter_mut().for_each(|o| o.whose = Whose::PassedOn),
        _ => {}
    })?;
    open.into_iter().for_each(one);
    Ok(())
}

/// The exits to the outer hypervisor in each window of the guest's, by reason. Those that are passed on are
/// not among them, nor the inner hypervisor's entries.
///
/// # Errors
/// If a trace is damaged.
pub fn windows(
    outer: Trace,
    inner: Trace,
    vendor: &Vendor,
) -> Result<BTreeMap<u64, BTreeMap<String, u64>>, TraceError> {
    let markers = markers(inner, vendor)?;
    let mut all = BTreeMap::new();
    let mut window: Option<(u64, BTreeMap<String, u64>)> = None;
    let mut cpuids = 0;
    exits(outer, vendor, |exit| {
        if exit.whose == Whose::PassedOn && exit.reason == vendor.cpuid_exit {
            cpuids += 1;
            let Some(marker) = markers.get(&cpuids) else { return };
            match marker >> 8 {
                1 => window = Some((marker & 0xff, BTreeMap::new())),
                2 => all.extend(window.take()),
                _ => {}
            }
        } else if let (Some(counter), Some((_, counts))) = (exit.counter(vendor), &mut window) {
            *counts.entry(counter.to_owned()).or_default() += 1;
        }
    })?;
    Ok(all)
}

/// How often the inner hypervisor exits to enter its guest again after an exit that was passed on: entries by
/// that number.
///
/// # Errors
/// If the trace is damaged.
pub fn entries(outer: Trace, vendor: &Vendor) -> Result<BTreeMap<u64, u64>, TraceError> {
    let (mut entries, mut own) = (BTreeMap::new(), None);
    exits(outer, vendor, |exit| {
        if exit.whose == Whose::Inner {
            own.iter_mut().for_each(|n| *n += u64::from(vendor.nested_entries.contains(&exit.reason)));
            return;
        }
        own.take().into_iter().for_each(|n| *entries.entry(n).or_default() += 1);
        own = (exit.whose == Whose::PassedOn).then_some(0);
    })?;
    Ok(entries)
}

#[cfg(test)]
mod tests {
    use super::super::tests::{formats, page};
    use super::*;
    use crate::vendor::AMD;

    type Event = (&'static str, &'static [u64]);

    const GUESTS: Event = ("kvm_nested_vmexit", &[]);
    const PASSED_ON: Event = ("kvm_nested_vmexit_inject", &[]);
    const CPUID: Event = ("kvm_exit", &[0x72, 0, 0, 0]);
    const VMRUN: Event = ("kvm_exit", &[0x80, 0, 0, 0]);
    const VMLOAD: Event = ("kvm_exit", &[0x82, 0, 0, 0]);
    const FLUSH: Event = ("kvm_exit", &[0x7a, 0, 0, 0]);
    const INTERRUPT: Event = ("kvm_exit", &[0x60, 0, 0, 0]);
    /// A nested page fault for an absent page, and one for a write to a present page.
    const ABSENT: Event = ("kvm_exit", &[0x400, 0, 6, 0x1000]);
    const WRITE: Event = ("kvm_exit", &[0x400, 0, 7, 0x1000]);

    fn windows_of(outer: &[Event], inner: &[Event]) -> BTreeMap<u64, BTreeMap<String, u64>> {
        let (outer, inner, formats) = (page(outer), page(inner), formats());
        let trace = |raw| Trace { raw, formats: &formats };
        windows(trace(&outer), trace(&inner), &AMD).unwrap()
    }

    #[test]
    fn a_window_has_the_exits_that_the_outer_hypervisor_keeps() {
        let inner =
            [CPUID, CPUID, ("kvm_cpuid", &[LEAF, 0x107][..]), CPUID, ("kvm_cpuid", &[LEAF, 0x207][..])];
        let cpuid = [CPUID, GUESTS, PASSED_ON];
        let before = [&cpuid[..], &[ABSENT, GUESTS], &cpuid].concat();
        let within = [
            &[ABSENT, GUESTS][..],
            &[ABSENT, GUESTS, PASSED_ON, WRITE, ABSENT, FLUSH, VMRUN],
            &[WRITE, GUESTS],
            // The inner hypervisor's own CPUID is no marker.
            &[CPUID, FLUSH],
        ]
        .concat();
        let after = [&cpuid[..], &[ABSENT, GUESTS]].concat();
        let windows = windows_of(&[before, within, after].concat(), &inner);
        let counts = [("outer_fills", 2), ("outer_flushes", 2), ("outer_stores", 1)];
        let counts = counts.map(|(name, n)| (name.to_owned(), n));
        assert_eq!(windows, BTreeMap::from([(7, BTreeMap::from(counts))]));
    }

    #[test]
    fn entries_count_from_an_exit_that_is_passed_on_to_the_next_of_the_guest() {
        let events = [
            &[VMLOAD, VMRUN, ABSENT, GUESTS, PASSED_ON][..],
            &[VMLOAD, INTERRUPT, WRITE, VMRUN, ABSENT, GUESTS],
            &[VMRUN, CPUID, GUESTS, PASSED_ON],
            &[VMLOAD, VMLOAD, VMRUN, CPUID, GUESTS, PASSED_ON, VMRUN],
        ]
        .concat();
        let (raw, formats) = (page(&events), formats());
        let entries = entries(Trace { raw: &raw, formats: &formats }, &AMD).unwrap();
        assert_eq!(entries, BTreeMap::from([(2, 1), (3, 1)]));
    }
}
