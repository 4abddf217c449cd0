// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Predicts a guest's exits with the model, event by event.
//!
//! The whole model (TLBs, filter, groups) runs over the guest's events with one configuration. TLB entries do
//! not survive exits, because the emulated CPU flushes at every VMRUN. The timeline is cut after each event,
//! so the model's samples give the exits of each event and thus the kind of access of each fault.

use crate::guest::Guest;
use crate::refs::Access;
use anyhow::{Context, Result, ensure};
use bifold_model::{Config, Model, Options, Paging, PlacementOptions, Profile, Sample};
use bifold_trace::event::KIND_SHIFT;
use bifold_trace::event::kind;
use bifold_trace::{Event, decode};
use serde::Serialize;

/// Instructions between two cuts; the interval is shorter.
const CUT: u64 = 100;

/// Counts of a phase that both the model and KVM have. Counts that do not exist in a mode are 0.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq, Serialize)]
pub struct Counts {
    /// #NPF; #PF.
    pub faults: u64,
    /// Faults by loads, stores and fetches. Faults of the nested walk itself, on the guest's tables, are
    /// [`Counts::table`] instead, if that is known.
    pub read: u64,
    pub write: u64,
    pub fetch: u64,
    /// Nested faults on guest tables, in counts of KVM only. The three counts above are then meaningless.
    pub table: u64,
    /// #PF reflected into the guest.
    pub guest: u64,
    /// Leaf tables that became unsync. The model counts them only if that was the exit's only reason.
    pub unsync: u64,
    /// Stores to tables that KVM emulated (`kvm_mmu_pte_write`).
    pub emulated: u64,
    /// Faults on present entries (bit 0 of the error code). The model has a lower bound: exits for clean
    /// pages and synced tables.
    pub present: u64,
    pub cr3_write: u64,
    pub cr3_read: u64,
    pub cr4_write: u64,
    pub invlpg: u64,
    /// Roots that were not among the vCPU's cached roots and were found in the hash or made.
    pub root_misses: u64,
    /// Shadow pages made and zapped.
    pub pages_made: u64,
    pub pages_zapped: u64,
    /// Exits to an outer hypervisor beside those that pass it: see the model's counters.
    #[serde(skip_serializing_if = "is_0")]
    pub outer_fills: u64,
    #[serde(skip_serializing_if = "is_0")]
    pub outer_stores: u64,
    #[serde(skip_serializing_if = "is_0")]
    pub outer_flushes: u64,
}

/// Only guests within guests have such counts.
fn is_0(n: &u64) -> bool {
    *n == 0
}

impl Counts {
    /// All exits for paging.
    pub fn exits(&self) -> u64 {
        self.faults + self.cr3_write + self.cr3_read + self.cr4_write + self.invlpg
    }
}

/// Adds the counts of one event. `words` are the event's words.
fn add(to: &mut Counts, words: &[u64], s: &Sample) {
    let faults = s.exits_violation
        + s.exits_guest_fault
        + s.exits_hidden_fault
        + s.exits_permission
        + s.exits_unsync
        + s.exits_emulated_write
        + s.exits_unprotect;
    to.faults += faults;
    match words[0] >> KIND_SHIFT {
        kind::FAULT if words[1] & 2 != 0 => to.write += faults,
        kind::STORE | kind::STORE_OTHER => to.write += faults,
        kind::FETCH => to.fetch += faults,
        _ => to.read += faults,
    }
    to.guest += s.exits_guest_fault;
    to.unsync += s.exits_unsync;
    to.emulated += s.exits_emulated_write;
    to.present += s.exits_permission + s.exits_unsync;
    to.cr3_write += s.exits_cr3_write;
    to.cr3_read += s.exits_cr3_read;
    to.cr4_write += s.exits_cr4_write;
    to.invlpg += s.exits_invlpg;
    to.root_misses += s.root_misses;
    to.pages_made += s.shadow_pages_made;
    to.pages_zapped += s.shadow_pages_zapped;
    to.outer_fills += s.outer_fills;
    to.outer_stores += s.outer_stores;
    to.outer_flushes += s.outer_flushes;
}

/// The emulated processor.
fn profile(settings: &[String]) -> Result<Profile> {
    let mut set = vec!["cpu.tlb_tagged=false".to_owned(), "cpu.virtualization=svm".to_owned()];
    set.extend_from_slice(settings);
    Ok(Profile::load("i5-7600", &set)?)
}

/// A model that has seen `words` of the guest, and counts for these placements.
pub fn placed(guest: &Guest, words: &[u64], config: Config, placed: PlacementOptions) -> Result<Model> {
    let options = Options {
        configs: vec![config],
        guest_frames: guest.memory >> 12,
        vcpus: guest.vcpus(),
        placed: Some(placed),
        ..Options::default()
    };
    let mut model = Model::new(&profile(&["walk_cache.variant=none".into()])?, options);
    model.consume(words)?;
    Ok(model)
}

/// Runs the model. Returns each event's place in the stream and its counts.
fn samples(guest: &Guest, config: Config, settings: &[String]) -> Result<Vec<(usize, Sample)>> {
    let profile = profile(settings)?;
    let options = Options {
        interval_seconds: 1e-9,
        configs: vec![config],
        guest_frames: guest.memory >> 12,
        vcpus: guest.vcpus(),
        ..Options::default()
    };
    let words = guest.words();
    let mut model = Model::new(&profile, options);
    let mut places = Vec::new();
    let mut at = 0;
    let mut one = Vec::new();
    while at < words.len() {
        let (_, n) = decode(&words[at..], at)?;
        one.clear();
        one.extend_from_slice(&words[at..at + n]);
        Event::Insns(CUT).encode(&mut one);
        model.consume(&one)?;
        places.push(at);
        at += n;
    }
    let outcome = model.finish();
    ensure!(outcome.untranslated == 0, "{} accesses have no translation", outcome.untranslated);
    let config = outcome.configs.into_iter().next().context("one configuration")?;
    Ok(places.into_iter().zip(config.intervals).collect())
}

/// The model's counts of each phase of `guest` in `config`.
pub fn predict(guest: &Guest, config: Config, settings: &[String]) -> Result<Vec<Counts>> {
    let mut out = vec![Counts::default(); guest.phases.len()];
    for (at, sample) in samples(guest, config, settings)? {
        if let Some(n) = guest.phases.iter().position(|p| p.words.contains(&at)) {
            add(&mut out[n], &guest.words()[at..], &sample);
        }
    }
    if matches!(config.mode, Paging::Nested | Paging::NestedOnNested) {
        // Under nested paging a guest's own faults are no exits.
        out.iter_mut().for_each(|c| c.guest = 0);
    } else {
        // The model does not count the work for roots that exist from the start.
        let mut roots = Vec::new();
        for vcpu in 0..guest.vcpus() {
            let root = guest.first_cr3(vcpu);
            let first = guest.phases.iter().position(|p| p.vcpu == vcpu);
            let Some(n) = first else { continue };
            out[n].root_misses += 1;
            if !roots.contains(&root) {
                out[n].pages_made += 1;
                roots.push(root);
            }
        }
    }
    Ok(out)
}

/// An access of a guest and, if it was walked, the references of its walk without walk caches.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Walked {
    pub access: Access,
    /// References to guest tables (under shadow paging, to shadow tables) and to host tables. `None`: a TLB
    /// hit.
    pub refs: Option<(u64, u64)>,
}

/// The accesses of each phase with the model's references. An access with an exit is walked several times and
/// is left out.
pub fn walks(guest: &Guest, config: Config) -> Result<Vec<Vec<Walked>>> {
    let mut out = vec![Vec::new(); guest.phases.len()];
    for (at, s) in samples(guest, config, &["walk_cache.variant=none".into()])? {
        let Some(n) = guest.phases.iter().position(|p| p.words.contains(&at)) else { continue };
        let (va, write) = match decode(&guest.words()[at..], at)?.0 {
            Event::Fetch(va) | Event::Load(va) | Event::LoadDependent(va) | Event::LoadBeforeChain(va) => {
                (va, false)
            }
            Event::Store(va) | Event::StoreOther(va) => (va, true),
            _ => continue,
        };
        let refs = (s.walks == 1).then_some((s.guest_refs, s.host_refs));
        out[n].push(Walked { access: Access { va, write }, refs });
    }
    Ok(out)
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_model_knows_the_closed_forms() {
        let mut wrong = Vec::new();
        for guest in crate::guests::named(&[]) {
            for (n, config) in Config::ALL.into_iter().skip(1).enumerate() {
                for (phase, counts) in guest.phases.iter().zip(predict(&guest, config, &[]).unwrap()) {
                    let Some(closed) = phase.closed.map(|c| c[n]) else { continue };
                    if closed != counts.exits() && crate::known::cause(guest.name, &phase.name).is_none() {
                        let place = format!("{}, {}, {}", config.name(), guest.name, phase.name);
                        wrong.push(format!("{place}: {}, not {closed}", counts.exits()));
                    }
                }
            }
        }
        assert!(wrong.is_empty(), "{wrong:#?}");
    }
}
