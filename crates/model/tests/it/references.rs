// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The references of walks, one by one: the model's walks read the addresses that the slow
//! reference's walks read, in their order, and every reference is counted once.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::{cases, formats, profile};
use crate::reference::{ACCESSED, ADDRESS, DIRTY, PRESENT, Reference};
use bifold_mmu::format::X86_64_4_LEVEL;
use bifold_mmu::{Gpa, Gva, Hpa, PageSize};
use bifold_model::access::{AccessKind, Miss};
use bifold_model::guest::GuestTables;
use bifold_model::memory::Memory;
use bifold_model::page::Page;
use bifold_model::paging::Setup;
use bifold_model::regime::Regime;
use bifold_model::{Config, Paging, VmState};
use bifold_trace::{Event, decode};
use proptest::prelude::*;

const CR4_PGE: u64 = 1 << 7;

/// Keeps what walks refer to: guest level, host level, host-physical address.
#[derive(Default)]
struct Observer(Vec<(u8, u8, u64)>);

impl Memory for Observer {
    fn touch(&mut self, guest: u8, host: u8, at: impl FnOnce() -> Hpa, _: impl FnOnce() -> Page) -> usize {
        self.0.push((guest, host, at().0));
        0
    }
}

/// One CPU without a TLB, so that every access walks.
struct Walks {
    regime: Regime,
    guest: GuestTables,
    root: Gpa,
    seen: Observer,
    cr4: bool,
}

impl Walks {
    fn access(&mut self, va: u64, kind: AccessKind) {
        let Ok(mut leaf) = self.guest.lookup(self.root, Gva(va)) else { return };
        self.guest.touch(&leaf, kind.writes());
        leaf.step.entry |= ACCESSED | if kind.writes() { DIRTY } else { 0 };
        let miss = Miss { vcpu: 0, gva: Gva(va), kind, leaf, root: self.root };
        self.regime.walk(&miss, &mut self.guest, &mut self.seen);
    }

    fn read_registers(&mut self) {
        if self.guest.format().registers {
            self.regime.load_registers(0, self.root, &self.guest, &mut self.seen);
        }
    }

    fn event(&mut self, event: Event<'_>, first: bool) {
        match event {
            Event::Load(va) | Event::LoadDependent(va) | Event::LoadBeforeChain(va) => {
                self.access(va, AccessKind::Read)
            }
            Event::Store(va) => self.access(va, AccessKind::Write),
            Event::StoreOther(va) => self.access(va, AccessKind::WriteOther),
            Event::Fetch(va) => self.access(va, AccessKind::Fetch),
            Event::Table { gfn, level, entries } => self.guest.add(gfn, level, entries),
            Event::Retire { gfn } => self.guest.retire(gfn),
            Event::PtStore { gpa, old, new } => self.guest.store_word(Gpa(gpa), old, new),
            Event::Cr3(value) => {
                self.root = self.guest.root(0, value);
                self.guest.load_registers(0, self.root);
                self.regime.load_cr3(0, value, first, &self.guest);
                if !first {
                    self.read_registers();
                }
                self.regime.flush_caches(0, &self.guest);
            }
            Event::Cr4(_) => {
                if std::mem::replace(&mut self.cr4, true) {
                    self.guest.load_registers(0, self.root);
                    self.read_registers();
                }
                self.regime.flush_caches(0, &self.guest);
            }
            Event::Invlpg(_) => self.regime.flush_caches(0, &self.guest),
            Event::Fault { gva, error } => {
                let root = self.root;
                self.regime.guest_fault(0, (Gva(gva), error), root, &self.guest, &mut self.seen);
            }
            _ => {}
        }
    }
}

/// Hands an event to the slow reference, whose accesses walk without its TLB.
fn slowly(slow: &mut Reference, root: &mut u64, cr4: &mut u64, event: Event<'_>) {
    match event {
        Event::Load(va)
        | Event::LoadDependent(va)
        | Event::LoadBeforeChain(va)
        | Event::Fetch(va)
        | Event::Store(va)
        | Event::StoreOther(va) => {
            if slow.look_up(va).2 & PRESENT != 0 {
                slow.walk(va, matches!(event, Event::Store(_) | Event::StoreOther(_)));
            }
        }
        Event::Cr4(_) => {
            // Every load flushes here, as it would if it toggled PGE.
            *cr4 ^= CR4_PGE;
            slow.event(Event::Cr4(*cr4));
        }
        Event::Cr3(value) => {
            *root = value & ADDRESS;
            slow.event(event);
        }
        _ => slow.event(event),
    }
}

proptest! {
    #![proptest_config(cases(48))]

    #[test]
    fn walks_read_the_addresses_that_the_reference_reads(
        which in 0..crate::random::PROFILES, variant in 0usize..6, format in formats(), ops in ops(600)
    ) {
        let profile = profile(which, variant);
        let mut writer = Guest::of(format, 1);
        writer.run(&ops);
        for config in Config::ALL.into_iter().filter(|c| c.mode != Paging::Shadow) {
            let seed = 7;
            let mut slow = Reference::new(&profile, config, FRAMES, 1, seed).of(format);
            let guest = GuestTables::new(crate::random::format(format));
            let setup = Setup { guest: &guest, nested: &X86_64_4_LEVEL, vcpus: 1, kvm: profile.kvm, virtualization: profile.cpu.virtualization, frames: Default::default(), profile: &profile, placed: false, vm: VmState::Started, outer_page: PageSize::Size4K };
            let regime = Regime::new(config, &profile, &setup, FRAMES, seed);
            let mut fast = Walks { regime, guest, root: Gpa(0), seen: Observer::default(), cr4: false };
            let (mut words, mut root, mut cr4) = (&writer.words[..], 0, 0);
            while !words.is_empty() {
                let (event, n) = decode(words, 0).unwrap();
                words = &words[n..];
                fast.event(event, root == 0);
                slowly(&mut slow, &mut root, &mut cr4, event);
            }
            // A list of one operation, a store to the direct map, walks nowhere.
            prop_assume!(!slow.touched.is_empty());
            prop_assert_eq!(&fast.seen.0, &slow.touched, "{} {}", &profile.name, config.name());
            prop_assert_eq!(fast.regime.counts.refs.by_step(), slow.counts.refs);
        }
    }
}
