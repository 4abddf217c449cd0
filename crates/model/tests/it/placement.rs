// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Local and remote references against the slow reference, to the last one; and a guest whose references are
//! counted by hand.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::{cases, profile};
use crate::reference::data_caches::DataCaches;
use crate::reference::placed::{Counts, FIRST_NODE, Placed};
use crate::reference::{Counts as AllCounts, Reference, WRITE};
use crate::stream::Stream;
use bifold_model::{
    CacheMode, Config, Model, Options, Outcome, Paging, PlacedCycles, Placement, PlacementOptions, Profile,
    Split,
};
use bifold_trace::Event::{Cr3, Load, Vcpu};
use bifold_trace::{Frames, GuestNode};
use proptest::prelude::*;

fn run(profile: &Profile, caches: CacheMode, placed: &Placed, words: &[u64]) -> Outcome {
    let node = |node: u64| GuestNode {
        frames: vec![match node {
            0 => Frames { first: 0, count: FIRST_NODE },
            _ => Frames { first: FIRST_NODE, count: FRAMES - FIRST_NODE },
        }],
        vcpus: (0..placed.cpus).filter(|c| placed.guest_node_of_cpu(*c) == node).map(|c| c as u32).collect(),
    };
    let guest_nodes = if placed.guest_nodes > 1 { (0..2).map(node).collect() } else { Vec::new() };
    let host_nodes = placed.host_nodes as u8;
    let options = Options {
        configs: Config::KNOWN.to_vec(),
        guest_frames: FRAMES,
        vcpus: placed.cpus,
        interval_seconds: 1e-6,
        caches,
        placed: Some(PlacementOptions { placements: Placement::ALL.into(), host_nodes, guest_nodes }),
        ..Options::default()
    };
    let mut model = Model::new(profile, options);
    model.consume(words).unwrap();
    model.finish()
}

/// Native and nested paging count what the reference counts.
fn equal(
    profile: &Profile,
    caches: CacheMode,
    (cpus, guest_nodes, host_nodes): (usize, u64, u64),
    words: &[u64],
) -> Result<(), TestCaseError> {
    let all = run(profile, caches, &Placed::new(cpus, guest_nodes, host_nodes, None), words);
    for c in all.configs.iter().filter(|c| matches!(c.config.mode, Paging::Native | Paging::Nested)) {
        let name = c.config.name();
        let host_page = (c.config.mode == Paging::Nested).then(|| c.config.host_page.shift());
        let mut slow = Reference::new(profile, c.config, FRAMES, cpus, all.seed);
        slow.placed = Some(Placed::new(cpus, guest_nodes, host_nodes, host_page));
        slow.data = (caches == CacheMode::Exact).then(|| DataCaches::new(profile, cpus)).flatten();
        slow.consume(words);
        prop_assert_eq!(AllCounts::of(c), slow.counts, "{}", &name);
        if c.config.mode == Paging::Native && guest_nodes == 1 && cpus > 1 {
            prop_assert!(c.placed.is_empty());
            continue;
        }
        let slow = slow.placed.unwrap().counts;
        prop_assert_eq!(c.placed.len(), slow.len(), "{}", &name);
        for (fast, (placement, slow)) in c.placed.iter().zip(slow) {
            let cycles = fast.cycles.unwrap_or_default();
            let from_memory = [cycles.walk, cycles.data];
            let got = Counts {
                guest_tables: fast.guest_tables,
                host_tables: fast.host_tables,
                data: fast.data,
                from_memory: if slow.from_memory == [0; 2] && fast.cycles.is_none() {
                    [0; 2]
                } else {
                    from_memory
                },
            };
            prop_assert_eq!(got, slow, "{} {} {}", &profile.name, &name, placement.name());
        }
    }
    Ok(())
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn local_and_remote_references_are_those_of_the_reference(
        which in 0..crate::random::PROFILES, variant in 0usize..12, cpus in 1usize..5, guest_nodes in 1u64..3, host_nodes in 1u64..4,
        ops in ops(1200)
    ) {
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        equal(&profile(which, variant), CacheMode::Off, (cpus, guest_nodes, host_nodes), &guest.words)?;
    }

    /// With an overlap of 1 and a remote latency of one cycle more, the cycles are the remote references that
    /// memory answers.
    #[test]
    fn remote_memory_costs_where_no_cache_answers(cpus in 1usize..5, guest_nodes in 1u64..3, ops in ops(800)) {
        let cycles = Profile::load("geometry-g", &[]).unwrap().memory.unwrap().cycles;
        let set = [
            "memory.data_overlap=1.0".to_string(),
            "memory.walk_overlap=1.0".to_string(),
            format!("memory.remote_cycles={}", cycles + 1),
        ];
        let profile = Profile::load("geometry-g", &set).unwrap();
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        equal(&profile, CacheMode::Exact, (cpus, guest_nodes, 2), &guest.words)?;
    }

    #[test]
    fn offset_paging_walks_as_the_machine_does_and_placements_change_no_count(
        which in 0..crate::random::PROFILES, variant in 0usize..12, cpus in 1usize..5, ops in ops(800)
    ) {
        let profile = profile(which, variant);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let all = run(&profile, CacheMode::Off, &Placed::new(cpus, 2, 2, None), &guest.words);
        let of = |name: &str| all.configs.iter().find(|c| c.config.name() == name).unwrap();
        prop_assert_eq!(AllCounts::of(of("offset")), AllCounts::of(of("native")));
        let options = Options {
            configs: Config::KNOWN.to_vec(),
            guest_frames: FRAMES,
            vcpus: cpus,
            interval_seconds: 1e-6,
            ..Options::default()
        };
        let mut plain = Model::new(&profile, options);
        plain.consume(&guest.words).unwrap();
        for (plain, placed) in plain.finish().configs.iter().zip(&all.configs) {
            prop_assert_eq!(AllCounts::of(plain), AllCounts::of(placed));
            prop_assert_eq!(plain.total, placed.total);
        }
    }
}

const VA: u64 = 0x40_4060_7008;
const NESTED: Config = Config::ALL[1];

fn remote(c: &bifold_model::ConfigOutcome, placement: Placement) -> [Split; 3] {
    let p = c.placed.iter().find(|p| p.placement == placement).unwrap();
    [p.guest_tables, p.host_tables, p.data]
}

/// Two loads of one page, the first by vCPU 0 and the second by vCPU 1 on the other node, without caches:
/// each walk makes 4 references to guest tables and 20 to nested ones. The first one's attempts end in
/// violations.
#[test]
fn tables_are_remote_for_the_vcpu_that_did_not_touch_them() {
    let profile = crate::stream::profile("geometry-g", &["walk_cache.variant=none"]);
    let mut stream = Stream::new();
    let root = stream.table(4);
    stream.map(root, VA, 1, 0x1_2345 << 12 | WRITE);
    let warm = stream.start(root).and(&[Load(VA), Vcpu(1)]).and(&[Cr3(root << 12)]);
    let placed = Placed::new(2, 1, 2, None);
    let before = run(&profile, CacheMode::Off, &placed, &warm.words);
    let after = run(&profile, CacheMode::Off, &placed, &warm.and(&[Load(VA)]).words);
    let at =
        |o: &Outcome, p| remote(o.configs.iter().find(|c| c.config == NESTED).unwrap(), p).map(|s| s.remote);
    let more = |p| std::array::from_fn::<u64, 3, _>(|i| at(&after, p)[i] - at(&before, p)[i]);
    assert_eq!(at(&before, Placement::Smp), [0, 0, 0]);
    assert_eq!(more(Placement::Smp), [4, 20, 1]);
    assert_eq!(more(Placement::OneNode), [4, 20, 1]);
    assert_eq!(more(Placement::RemoteHostTables), [0, 20, 0]);
    assert_eq!(more(Placement::RemoteGuestTables), [4, 0, 0]);
    assert!(after.configs.iter().flat_map(|c| &c.placed).all(|p| p.cycles.is_none()));
}

#[test]
fn a_profile_without_a_remote_latency_gives_counts_alone() {
    let mut guest = Guest::new(2);
    guest.run(&[crate::guest::Op::Access { kind: 0, place: 0, page: 0 }]);
    let cycles = |set: &[&str]| -> Option<PlacedCycles> {
        let profile = crate::stream::profile("geometry-g", set);
        let o = run(&profile, CacheMode::Exact, &Placed::new(2, 2, 2, None), &guest.words);
        o.configs[1].placed[0].cycles
    };
    assert!(cycles(&[]).is_none());
    assert!(cycles(&["memory.remote_cycles=1000"]).is_some());
}
