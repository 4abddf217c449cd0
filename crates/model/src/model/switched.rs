// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A VM whose paging mode changes while it runs: one more regime beside the static ones. After every
//! interval a policy decides the mode of the next interval.
//!
//! A switch does what KVM with a mode per VM does. Every vCPU stops; TLBs and walk caches are
//! flushed. The shadow tables are dropped, because nothing tracks the guest's stores while the
//! hardware walks the guest's tables. The nested tables are kept, or dropped as in the 2020 work on
//! KVM 4.19. Memory that the host has given stays.

use super::groups::{Group, Kind};
use super::setup;
use super::{Model, Options};
use crate::access::Flush;
use crate::regime::Regime;
use crate::timeline::{Cut, Shared, counts};
use crate::{Paging, Sample};
use bifold_mmu::PageSize;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};

/// How such a VM runs.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize, JsonSchema)]
pub struct Switching {
    /// Name of what decides.
    pub name: String,
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// The mode at the start; not native.
    pub start: Paging,
    /// Whether the nested tables are kept while the VM is in shadow mode.
    pub keep_nested: bool,
}

/// Decides after every interval. Arguments: the interval's number, its sample, its mode. Returns
/// the mode of the next interval.
pub type Decide = Box<dyn FnMut(usize, &Sample, Paging) -> Paging + Send>;

/// What became of it.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize)]
pub struct SwitchedOutcome {
    /// How it ran.
    #[serde(flatten)]
    pub switching: Switching,
    /// The mode of every interval.
    pub modes: Vec<Paging>,
    /// The cost of every interval; that of a switch is in the interval after it.
    pub intervals: Vec<Sample>,
}

pub(super) struct Switched {
    /// Index of the VM's regime among the model's.
    regime: usize,
    switching: Switching,
    decide: Decide,
    last: Sample,
    modes: Vec<Paging>,
    intervals: Vec<Sample>,
    /// The mode of the next region, which was decided at the end of the last one.
    awaited: Option<Paging>,
}

impl Switched {
    /// The interval ends: its sample, and the mode from now on.
    fn cut(&mut self, regime: &mut Regime, shared: Shared<'_>, why: Cut) -> Paging {
        let now = counts(self.regime, regime, shared);
        let sample = now.since(&self.last);
        self.last = now;
        let mode = regime.config.mode;
        let number = self.intervals.len();
        self.modes.push(mode);
        self.intervals.push(sample);
        match why {
            Cut::Due => {
                regime.begin_interval();
                (self.decide)(number, &sample, mode)
            }
            Cut::Region => {
                self.awaited = Some((self.decide)(number, &sample, mode));
                mode
            }
            Cut::Run => mode,
        }
    }

    /// The first region begins.
    pub(super) fn restart(&mut self) {
        self.last = Sample::default();
        self.modes.clear();
        self.intervals.clear();
    }

    /// Another region begins.
    pub(super) fn resume(&mut self) {
        self.last = Sample::default();
    }

    pub(super) fn outcome(self) -> SwitchedOutcome {
        SwitchedOutcome { switching: self.switching, modes: self.modes, intervals: self.intervals }
    }
}

impl Model {
    /// Adds a VM that switches, before the first event.
    pub fn add_switching(&mut self, switching: Switching, decide: Decide) {
        let regime = self.regimes.len();
        let config = crate::Config::new(switching.start, switching.host_page);
        let Options { guest_frames, seed, .. } = self.options;
        let setup = setup(&self.guest, &self.profile, &self.options, false);
        self.regimes.push(Regime::new(config, &self.profile, &setup, guest_frames, seed));
        let kind = Kind { arrays: self.profile.tlb_specs(), vcpus: self.vcpus.len(), pcid: self.pcid };
        Group::add(&mut self.groups, regime, &kind);
        if let Some(caches) = &mut self.observers.caches {
            caches.add_config(config);
        }
        self.switched.push(Switched {
            regime,
            switching,
            decide,
            last: Sample::default(),
            modes: Vec::new(),
            intervals: Vec::new(),
            awaited: None,
        });
    }

    /// Switching VMs that begin in shadow mode have the nested tables of a time in nested mode, if they keep
    /// them.
    pub(super) fn keep_mapped(&mut self) {
        let setup = setup(&self.guest, &self.profile, &self.options, false);
        for s in self.switched.iter().filter(|s| s.switching.keep_nested) {
            self.regimes[s.regime].keep_mapped(&setup);
        }
    }

    /// The interval of every switching VM ends, and those that are to switch do.
    pub(super) fn cut_switched(&mut self, why: Cut) {
        self.switch(|s, regime, shared| s.cut(regime, shared, why));
    }

    /// A region begins: what was decided at the end of the last one is done, so that its cost is this
    /// region's.
    pub(super) fn switch_awaited(&mut self) {
        self.switch(|s, regime, _| s.awaited.take().unwrap_or(regime.config.mode));
    }

    /// Brings every switching VM into its mode of `to`.
    fn switch(&mut self, to: impl Fn(&mut Switched, &mut Regime, Shared<'_>) -> Paging) {
        let setup = setup(&self.guest, &self.profile, &self.options, false);
        let caches = self.observers.caches.as_deref();
        let shared = Shared { common: &self.common, profile: &self.profile, caches };
        let mut flushes = Vec::new();
        for s in &mut self.switched {
            let regime = &mut self.regimes[s.regime];
            let to = to(s, regime, shared);
            if to != regime.config.mode && regime.switch(to, s.switching.keep_nested, &setup) {
                flushes.resize(self.regimes.len(), Flush::None);
                flushes[s.regime] = Flush::All;
            }
        }
        self.carry_out(flushes);
    }
}
