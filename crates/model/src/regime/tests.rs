// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Tests of what the host takes back, and of kept tables.

use super::*;
use crate::access::AccessKind;
use crate::memory::Uncached;
use bifold_mmu::format::X86_64_4_LEVEL;

const GVA: Gva = Gva(0x5000);
const ROOT: Gpa = Gpa(0x1000);
/// Present, writable, user, accessed and dirty.
const ENTRY: u64 = 0x67;

/// A guest that maps [`GVA`] to frame 5, by tables in frames 1 to 4.
fn guest() -> GuestTables {
    let mut guest = GuestTables::new(&X86_64_4_LEVEL);
    for level in 1..=4u8 {
        let mut entries = [0; 512];
        let frame = 6 - u64::from(level);
        entries[if level == 1 { 5 } else { 0 }] = frame << 12 | ENTRY;
        guest.add(frame - 1, level, &entries);
    }
    guest
}

fn setup<'a>(guest: &'a GuestTables, profile: &'a Profile) -> Setup<'a> {
    Setup {
        guest,
        nested: &X86_64_4_LEVEL,
        vcpus: 1,
        kvm: profile.kvm,
        virtualization: profile.cpu.virtualization,
        frames: Default::default(),
        profile,
        placed: false,
        vm: VmState::Started,
        outer_page: PageSize::Size4K,
    }
}

fn read(regime: &mut Regime, guest: &mut GuestTables) -> Sample {
    let before = regime.counts.now;
    let leaf = guest.lookup(ROOT, GVA).unwrap();
    let miss = Miss { vcpu: 0, gva: GVA, kind: AccessKind::Read, leaf, root: ROOT };
    regime.walk(&miss, guest, &mut Uncached).unwrap();
    regime.counts.now.since(&before)
}

#[test]
fn a_page_that_the_host_took_back_exits_and_is_backed_once_more_and_no_other_is() {
    let profile = Profile::load("i5-7600", &[]).unwrap();
    for name in ["native", "nested-4k", "nested-2m", "shadow-4k", "shadow-2m"] {
        let mut guest = guest();
        let setup = setup(&guest, &profile);
        let mut regime = Regime::new(Config::from_name(name).unwrap(), &profile, &setup, 4096, 1);
        regime.load_cr3(0, ROOT.0, true, &guest);
        let hypervised = name != "native";
        assert_eq!(read(&mut regime, &mut guest).all_exits() > 0, hypervised, "{name}: first");
        assert_eq!(read(&mut regime, &mut guest).all_exits(), 0, "{name}: mapped");
        assert!(!regime.take_back(2048..4096, Taking::Discard), "{name}: frames never mapped");
        assert_eq!(read(&mut regime, &mut guest).all_exits(), 0, "{name}: still mapped");
        assert_eq!(regime.take_back(5..6, Taking::Discard), hypervised, "{name}");
        let again = read(&mut regime, &mut guest);
        // The split of a 2 MB page unmaps the guest's four tables as well.
        let exits = if name == "nested-2m" { 5 } else { u64::from(hypervised) };
        assert_eq!(again.all_exits(), exits, "{name}: unmapped");
        let backed = again.frames_backed + again.huge_frames_backed;
        assert_eq!(backed, u64::from(hypervised), "{name}: taken back");
        assert_eq!(read(&mut regime, &mut guest).all_exits(), 0, "{name}: mapped again");
    }
}

#[test]
fn kept_tables_lose_what_the_host_took_back() {
    let profile = Profile::load("i5-7600", &[]).unwrap();
    for taken in [false, true] {
        let mut guest = guest();
        let mut regime = {
            let setup = setup(&guest, &profile);
            Regime::new(Config::from_name("nested-4k").unwrap(), &profile, &setup, 4096, 1)
        };
        regime.load_cr3(0, ROOT.0, true, &guest);
        read(&mut regime, &mut guest);
        // The caller flushes the walk caches at a switch.
        let switch = |regime: &mut Regime, to, guest: &GuestTables| {
            regime.switch(to, true, &setup(guest, &profile));
            regime.caches.iter_mut().for_each(WalkCache::flush_all);
        };
        switch(&mut regime, Paging::Shadow, &guest);
        read(&mut regime, &mut guest);
        assert_eq!(taken && regime.take_back(5..6, Taking::Discard), taken);
        switch(&mut regime, Paging::Nested, &guest);
        let again = read(&mut regime, &mut guest);
        assert_eq!((again.exits_violation, again.frames_backed), (taken.into(), taken.into()));
    }
}
