// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts what guests within guests cost the outer hypervisor, from its trace and the inner hypervisor's.
//!
//! An exit of the inner hypervisor's guest is followed by the event kvm_nested_vmexit, and by kvm_nested_vmexit_inject
//! if it is passed on. What the guest marks by CPUID, which is passed on, only the inner hypervisor's trace can read: the guest's
//! CPUIDs have the same order in both traces.

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
struct Open {
    exit: u64,
    cause: Option<ExitCause>,
    error: u64,
    whose: Whose,
}

impl Open {
    fn reason(&self, vendor: &Vendor) -> Option<&'static str> {
        let [fills, stores, flushes] = REASONS;
        match (self.whose, self.cause) {
            (Whose::Guest, Some(ExitCause::NestedFault)) => Some(fills),
            (Whose::Inner, Some(ExitCause::NestedFault)) if self.error & PRESENT_WRITE == PRESENT_WRITE => {
                Some(stores)
            }
            (Whose::Inner, _) if vendor.nested_flushes.contains(&self.exit) => Some(flushes),
            _ => None,
        }
    }
}

/// The exits to the outer hypervisor in each window of the guest's, by reason. Those that are passed on are not among
/// them, nor the inner hypervisor's entries.
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
    let (mut open, mut cpuids) = (None::<Open>, 0);
    let mut close = |open: Option<Open>| {
        let Some(open) = open else { return };
        if open.whose == Whose::PassedOn && open.exit == vendor.cpuid_exit {
            cpuids += 1;
            let Some(marker) = markers.get(&cpuids) else { return };
            match marker >> 8 {
                1 => window = Some((marker & 0xff, BTreeMap::new())),
                2 => all.extend(window.take()),
                _ => {}
            }
        } else if let (Some(reason), Some((_, counts))) = (open.reason(vendor), &mut window) {
            *counts.entry(reason.to_owned()).or_default() += 1;
        }
    };
    read(outer.raw, outer.formats, |r: Record| match r.format.name.as_str() {
        "kvm_exit" => {
            let raw = raw_exit(&r);
            let paging = (vendor.decode)(&raw);
            let (cause, error) = (paging.map(|p| p.cause), paging.map_or(0, |p| p.error));
            close(open.replace(Open { exit: raw.exit_reason, cause, error, whose: Whose::Inner }));
        }
        "kvm_nested_vmexit" => open.iter_mut().for_each(|o| o.whose = Whose::Guest),
        "kvm_nested_vmexit_inject" => open.iter_mut().for_each(|o| o.whose = Whose::PassedOn),
        _ => {}
    })?;
    close(open.take());
    Ok(all)
}
