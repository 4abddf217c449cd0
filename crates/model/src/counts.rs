// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The counts of one configuration since the start: the sample, the references of walks, the log of
//! exits, and the exits of user accesses. The log and the exits of user accesses are optional.

use crate::Sample;
use crate::exit_log::{Access, ExitLog};
use crate::memory::Refs;
use bifold_mmu::{Format, Gva};

/// The counts of one configuration.
#[derive(Debug, Default)]
pub struct Counts {
    /// The counters. Those derived from others, such as cycles, are 0 here.
    pub now: Sample,
    /// References of all walks.
    pub refs: Refs,
    /// The exits one by one, if [`Model::log_exits`](crate::Model::log_exits) asked for them.
    pub log: Option<Box<ExitLog>>,
    /// The exits of user accesses, if the stream is sampled.
    pub tally: Option<Box<Tally>>,
}

impl Counts {
    /// Logs the exits counted since the last call, if exits are logged.
    #[inline]
    pub fn log_exits(&mut self, access: impl FnOnce() -> Access) {
        if let Some(log) = &mut self.log {
            log.note(&self.now, access());
        }
    }

    /// Does the hypervisor's `work` for an access to `gva`, and adds the work's counts to the
    /// tally, if there is one.
    #[inline]
    pub fn tallied<R>(&mut self, vcpu: usize, gva: Gva, work: impl FnOnce(&mut Counts) -> R) -> R {
        let before = self.tally.as_ref().map(|_| self.now);
        let result = work(self);
        if let (Some(tally), Some(before)) = (self.tally.as_mut(), before) {
            tally.note(vcpu, gva, &self.now.since(&before));
        }
        result
    }
}

/// The exits that user accesses cause of themselves, as opposed to those of an access that a
/// page fault of the guest's own interrupted and that is repeated.
#[derive(Debug, Clone)]
pub struct Tally {
    /// The exits, and the hypervisor's work for them.
    pub user: Sample,
    /// Per vCPU: page number of its last page fault.
    faulted: Vec<u64>,
    /// Of the guest's tables.
    format: &'static Format,
}

impl Tally {
    /// An empty tally.
    pub fn new(vcpus: usize, format: &'static Format) -> Tally {
        Tally { user: Sample::default(), faulted: vec![u64::MAX; vcpus], format }
    }

    /// Counts `work` done for an access to `gva`.
    #[cold]
    pub fn note(&mut self, vcpu: usize, gva: Gva, work: &Sample) {
        if !self.format.is_kernel(gva.0) && gva.0 >> 12 != self.faulted[vcpu] {
            self.user.add(work);
        }
    }

    /// The guest's own page fault at `gva`: the repeated access is not tallied.
    pub fn guest_fault(&mut self, vcpu: usize, gva: Gva) {
        self.faulted[vcpu] = gva.0 >> 12;
    }
}
