// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Guests within guests: the walks' closed forms, the published numbers of exits and world switches for a
//! first touch, and random guests against the slow reference and against one hypervisor.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::{cases, formats, model_in, model_of, profile as any_profile, vm_state};
use crate::reference::inside::Inside;
use crate::reference::{Counts, LARGE, Reference, Tables, WRITE};
use crate::stream::{Stream, profile};
use bifold_model::{Config, ConfigOutcome, Profile, Sample, TagKind};
use bifold_trace::Event;
use bifold_trace::Event::{Cr3, Fault, Load, PtStore, Store};
use proptest::prelude::*;

const VA: u64 = 0x40_4060_7008;

fn config(name: &str) -> Config {
    Config::from_name(name).unwrap()
}

/// References of one more walk to a warm page, which the guest maps at `level`.
fn walk(name: &str, format: Tables, level: u8) -> u64 {
    let profile = profile("geometry-g", &["walk_cache.variant=none"]);
    let mut stream = Stream::of(format);
    let root = stream.table(format.depth());
    // Large pages whose part at the address holds no table.
    let page = [0x1_2345 << 12, 0x2_0000 << 12 | LARGE, LARGE][usize::from(level) - 1];
    stream.map(root, VA, level, page | WRITE);
    let warm = stream.start(root).and(&[Load(VA), Cr3(root << 12)]);
    let refs = |c: ConfigOutcome| (c.total.guest_refs + c.total.host_refs, c.total.walks);
    let before = refs(warm.run(&profile, config(name)));
    let after = refs(warm.and(&[Load(VA)]).run(&profile, config(name)));
    assert_eq!(after.1 - before.1, 1, "{name}");
    after.0 - before.0
}

#[test]
fn a_walk_over_an_outer_hypervisors_tables_makes_as_many_references_as_a_nested_one() {
    // Shadow tables of 4 levels, and the composed tables under the guest's, over 4 levels or those of 2 MB
    // pages.
    for (name, references) in [
        ("shadow-on-nested-4k", [24, 24, 24]),
        ("pvm-4k", [24, 24, 24]),
        ("nested-on-nested-4k", [24, 19, 14]),
        ("shadow-on-nested-2m", [19, 15, 15]),
        ("pvm-2m", [19, 15, 15]),
        ("nested-on-nested-2m", [19, 15, 11]),
    ] {
        for level in 1..=3 {
            let expected = references[usize::from(level) - 1];
            assert_eq!(walk(name, Tables::Long(4), level), expected, "{name}, guest level {level}");
        }
    }
    // 5·4 + 5 + 4.
    assert_eq!(walk("shadow-on-nested-4k", Tables::Long(5), 1), 29);
    assert_eq!(walk("nested-on-nested-4k", Tables::Long(5), 1), 29);
}

#[test]
fn a_walk_of_shadow_tables_in_a_virtual_machine_translates_the_address_of_the_page_itself() {
    const PAGES: u64 = 256;
    let profile = profile("geometry-g", &["tlb.l1d-4k.entries=8", "tlb.l2.entries=24"]);
    let mut stream = Stream::new();
    let root = stream.table(4);
    let page = |n: u64| VA + (n << 12);
    for n in 0..PAGES {
        stream.map(root, page(n), 1, (0x1_2000 + n) << 12 | WRITE);
    }
    let loads: Vec<Event> = (0..PAGES).map(|n| Load(page(n))).collect();
    let warm = stream.start(root).and(&loads);
    // Neither the TLB nor the nested TLB, of 64 entries, holds a page until it comes again.
    for name in ["pvm-4k", "shadow-on-nested-4k"] {
        let own = |stream: &Stream| stream.run(&profile, config(name)).refs[0].iter().sum::<u64>();
        let (before, after) = (own(&warm), own(&warm.clone().and(&loads)));
        assert!(after - before >= PAGES, "{name}: {before}, then {after}");
    }
}

/// Where the kernel maps the tables that it writes.
const KERNEL: u64 = 0xffff_8880_0000_0000;

/// What the first touch of a page costs for which `n` levels are missing in the guest's tables: the guest's
/// page fault, its stores from above that link tables and fill the last one, and the access.
fn first_touch(name: &str, n: u8) -> Sample {
    let profile = profile("geometry-g", &["cpu.virtualization=vmx"]);
    let mut stream = Stream::new();
    let root = stream.table(4);
    // A page beside, on whose way the entry of level `n` is the first that differs: the tables above are in
    // use, and shadowed.
    let beside = VA ^ 1 << (12 + 9 * (u32::from(n) - 1));
    stream.map(root, beside, 1, 0x1_2345 << 12 | WRITE);
    let index = |level: u8| 8 * (VA >> (12 + 9 * (u32::from(level) - 1)) & 511);
    let new = |level: u8| 0x900 + u64::from(level);
    // The tables on the way from the root to the missing entry lie from the root's frame on, and new ones
    // elsewhere.
    let table = |level: u8| if level == n { root + u64::from(4 - n) } else { new(level) };
    for level in 1..=n {
        stream.map(root, KERNEL + (table(level) << 12), 1, table(level) << 12 | WRITE);
    }
    let kernel: Vec<Event> = (1..=n).map(|level| Store(KERNEL + (table(level) << 12) + 0xff8)).collect();
    let warm = stream.start(root).and(&kernel).and(&[Store(beside)]);
    // A load of CR3 has the tables that the kernel wrote meanwhile synced.
    let warm = warm.and(&[Cr3(root << 12), Load(KERNEL + (table(1) << 12)), Store(beside)]);
    let before = warm.run(&profile, config(name)).total;
    let empty = [0u64; 512];
    let mut events = vec![Fault { gva: VA, error: 6 }];
    for level in (1..=n).rev() {
        let at = (table(level) << 12) + index(level);
        let below = if level == 1 { 0x1_5678 } else { new(level - 1) };
        if level > 1 {
            events.push(Event::Table { gfn: below, level: level - 1, entries: &empty });
        }
        events.push(Store(KERNEL + at));
        events.push(PtStore { gpa: at, old: 0, new: below << 12 | WRITE | 0x65 });
    }
    events.push(Store(VA));
    warm.and(&events).run(&profile, config(name)).total.since(&before)
}

/// World switches: two for each exit, to the outer hypervisor where there are such exits, and to the inner
/// one.
fn world_switches(s: &Sample, outer: bool) -> u64 {
    2 * if outer { s.outer_exits } else { s.all_exits() }
}

#[test]
fn a_first_touch_exits_no_more_often_than_published() {
    // Huang et al., SOSP 2023, for n levels of tables to fill. The published numbers are upper bounds: a
    // store to a table that no hypervisor shadows yet does not exit.
    for n in 1..=3u8 {
        let levels = u64::from(n);
        let s = first_touch("shadow-on-nested-4k", n);
        let first_phase = Sample { exits_hidden_fault: 0, ..s };
        let passed = 2 * first_phase.all_exits();
        assert!(
            passed <= 2 * levels + 2,
            "{n} levels: {passed} exits to the outer hypervisor in the first phase"
        );
        assert!(2 * passed <= 4 * levels + 4);
        assert_eq!(s.outer_exits, 2 * s.all_exits(), "each exit and each entry");
        let s = first_touch("pvm-4k", n);
        assert!(world_switches(&s, false) <= 2 * levels + 4, "{n} levels: {s:?}");
        assert_eq!(s.outer_exits, 0);
    }
    // With one level to fill, the numbers are exact.
    let s = first_touch("shadow-on-nested-4k", 1);
    assert_eq!((s.exits_guest_fault, s.exits_unsync, s.exits_hidden_fault), (1, 1, 1));
    assert_eq!(world_switches(&first_touch("pvm-4k", 1), false), 2 + 4);
}

#[test]
fn nested_on_nested_paging_fills_one_level_by_4_exits_and_8_world_switches() {
    // n + 3 and 2n + 6 for n = 1: the exit that is passed on, the inner hypervisor's store, its entry, and
    // the fill.
    let profile = profile("geometry-g", &["cpu.virtualization=vmx"]);
    let mut stream = Stream::new();
    let root = stream.table(4);
    for at in [VA, VA + (64 << 12)] {
        stream.map(root, at, 1, (0x1_2000 + (at >> 12 & 511)) << 12 | WRITE);
    }
    let warm = stream.start(root).and(&[Store(VA)]);
    let before = warm.run(&profile, config("nested-on-nested-4k")).total;
    let after = warm.and(&[Store(VA + (64 << 12))]).run(&profile, config("nested-on-nested-4k")).total;
    let s = after.since(&before);
    assert_eq!((s.exits_violation, s.outer_stores, s.outer_fills, s.outer_flushes), (1, 1, 1, 0));
    assert_eq!((s.outer_exits, world_switches(&s, true)), (1 + 3, 2 + 6));
}

/// One of the profiles, whose walk caches do not go by the addresses of tables.
fn profile_of(which: usize, vmx: bool) -> Profile {
    let plain = any_profile(which, 0);
    let name = plain.name.clone();
    let vendor = format!("cpu.virtualization={}", if vmx { "vmx" } else { "svm" });
    let mut set = vec![vendor, "cpu.tlb_tagged=true".into()];
    if plain.walk_cache.tag == TagKind::Physical {
        set.push("walk_cache.variant=none".into());
    }
    Profile::load(&name, &set).unwrap()
}

proptest! {
    #![proptest_config(cases(64))]

    #[test]
    fn nested_on_nested_paging_counts_what_the_reference_counts(
        which in 0..crate::random::PROFILES, cpus in 1usize..3, vmx: bool, (page, state) in (0usize..4, 0usize..16),
        guest_depth in 4u8..6, ops in ops(800)
    ) {
        let profile = profile_of(which, vmx);
        let config = config(&format!("nested-on-nested-{}", ["4k", "2m", "4k-2m", "2m-4k"][page]));
        let vm = vm_state(state, config);
        let tables = Tables::Long(guest_depth);
        let mut guest = Guest::of(tables, cpus);
        guest.run(&ops);
        let all = model_in(vm, tables, &profile, &[config], cpus, &guest.words);
        prop_assert_eq!(all.untranslated, 0);
        let mut slow = Reference::new(&profile, config, FRAMES, cpus, all.seed).of(tables).in_state(vm);
        slow.consume(&guest.words);
        // Flushes that the outer hypervisor asks for count for each request.
        let got = Counts { flushes: slow.counts.flushes, ..Counts::of(&all.configs[0]) };
        prop_assert_eq!(got, slow.counts, "{} {}", &profile.name, config.name());
        let Inside { fills, stores, flushes, .. } = slow.inside.unwrap();
        let t = &all.configs[0].total;
        prop_assert_eq!([t.outer_fills, t.outer_stores, t.outer_flushes], [fills, stores, flushes]);
        prop_assert_eq!(t.outer_exits, 2 * t.all_exits() + fills + stores + flushes);
    }

    #[test]
    fn shadow_paging_in_a_virtual_machine_exits_as_on_the_machine_and_walks_in_two_dimensions(
        which in 0..crate::random::PROFILES, cpus in 1usize..3, (huge, outer_huge) in any::<(bool, bool)>(), tables in formats(), ops in ops(800)
    ) {
        let profile = Profile::load(&any_profile(which, 0).name, &[
            "walk_cache.variant=none".into(), "cpu.virtualization=vmx".into(), "cpu.tlb_tagged=true".into(),
        ]).unwrap();
        let size = |huge| if huge { "2m" } else { "4k" };
        let inside = match huge == outer_huge {
            true => size(huge).to_string(),
            false => format!("{}-{}", size(huge), size(outer_huge)),
        };
        let names = [size(huge), &inside, &inside].into_iter().zip(["shadow", "pvm", "shadow-on-nested"]);
        let names: Vec<Config> = names.map(|(size, mode)| config(&format!("{mode}-{size}"))).collect();
        let mut guest = Guest::of(tables, cpus);
        guest.run(&ops);
        let all = model_of(tables, &profile, &names, cpus, &guest.words);
        let [plain, pvm, inside] = [0, 1, 2].map(|i| &all.configs[i]);
        // The outer hypervisor's exits, and what the second dimension costs.
        let one_hypervisor = |c: &ConfigOutcome| Sample {
            outer_exits: 0, outer_flushes: 0, host_refs: 0, walk_cycles: 0, vmm_cycles: 0, first_touch_cycles: 0,
            outer_frames_backed: 0, outer_huge_frames_backed: 0, ..c.total
        };
        if huge && !outer_huge {
            // TLBs have pieces of the inner hypervisor's pages, and so more misses.
            let exits = |c: &ConfigOutcome| c.total.exits().collect::<Vec<_>>();
            prop_assert_eq!(exits(pvm), exits(plain));
            prop_assert!(pvm.total.tlb_misses() >= plain.total.tlb_misses());
        } else {
            prop_assert_eq!(one_hypervisor(pvm), one_hypervisor(plain));
        }
        prop_assert_eq!(one_hypervisor(inside), one_hypervisor(pvm));
        prop_assert_eq!(&pvm.refs, &inside.refs);
        // Levels of the outer tables, which a walk reads for each entry and for the page, if it comes so far.
        let (levels, t) = (if outer_huge { 3 } else { 4 }, &pvm.total);
        prop_assert_eq!((t.host_refs - levels * t.guest_refs) % levels, 0);
        prop_assert!(t.host_refs <= levels * (t.guest_refs + t.walks));
        prop_assert!(t.host_refs >= levels * t.guest_refs);
        prop_assert_eq!(pvm.total.outer_exits, 0);
        // The outer host backs what the inner hypervisor takes for the guest, and at least a page for each
        // table that is in use.
        let (frames, tables) = (t.frames_backed + 512 * t.huge_frames_backed, t.shadow_pages_made);
        let backed = [t.outer_frames_backed, t.outer_huge_frames_backed];
        // The tables that a vCPU begins with are not counted, up to four of PAE, but lie in the first outer
        // page.
        let first = 4 * cpus as u64;
        let (least, most) = match (outer_huge, huge) {
            (false, _) => ((frames + tables).saturating_sub(t.shadow_pages_zapped + first), frames + tables),
            (true, true) => (t.huge_frames_backed, t.huge_frames_backed + tables.div_ceil(512)),
            (true, false) => (frames.saturating_sub(512).div_ceil(512), (frames + tables).div_ceil(512)),
        };
        prop_assert!((least..=most).contains(&backed[usize::from(outer_huge)]), "{backed:?}, not {least} to {most}");
        prop_assert_eq!(backed[usize::from(!outer_huge)], 0);
        let i = &inside.total;
        prop_assert_eq!(i.outer_exits, 2 * i.all_exits() + i.outer_flushes);
        prop_assert!(i.outer_flushes >= i.exits_invlpg && i.outer_flushes <= i.exits_invlpg + i.exits_guest_fault);
    }
}
