// SPDX-License-Identifier: Apache-2.0 OR MIT
//! References of one walk with nothing cached: m in one dimension, m*n + m + n in two
//! (`docs/design/model.md#walks`). Measured as what one more access to a warm page adds after a
//! CR3 load.

use crate::reference::{LARGE, Tables, WRITE};
use crate::stream::{Stream, profile};
use bifold_model::{Config, Paging};
use bifold_trace::Event;
use bifold_trace::Event::{Cr3, Cr4, Fault, Invlpg, Load, PtStore};

const VA: u64 = 0x40_4060_7008;

/// References and walks of the access, where the guest maps the address at `level`.
fn walk(config: &str, level: u8) -> (u64, u64) {
    let config = Config::from_name(config).unwrap();
    let profile = profile("geometry-g", &["walk_cache.variant=none"]);
    let mut stream = Stream::new();
    let root = stream.table(4);
    // Large pages lie apart from the tables, which KVM shadows in small pages.
    stream.map(root, VA, level, if level == 1 { 0x1_2345 << 12 } else { 1 << 30 | LARGE } | WRITE);
    let warm = stream.start(root).and(&[Load(VA), Cr3(root << 12)]);
    let before = warm.run(&profile, config);
    let after = warm.and(&[Load(VA)]).run(&profile, config);
    let refs = |c: &bifold_model::ConfigOutcome| c.refs.iter().flatten().sum::<u64>();
    assert_eq!(refs(&after), after.total.guest_refs + after.total.host_refs);
    (refs(&after) - refs(&before), after.total.walks - before.total.walks)
}

#[test]
fn a_native_walk_makes_as_many_references_as_it_has_levels() {
    assert_eq!(walk("native", 1), (4, 1));
    assert_eq!(walk("native", 2), (3, 1));
    assert_eq!(walk("native", 3), (2, 1));
}

#[test]
fn a_shadow_walk_makes_4_references_whatever_the_guest_maps_on_a_4_kb_host() {
    for level in 1..=3 {
        assert_eq!(walk("shadow-4k", level), (4, 1));
    }
    assert_eq!(walk("shadow-2m", 1), (4, 1));
}

#[test]
fn nested_4x4_walk_makes_24_references() {
    assert_eq!(walk("nested-4k", 1), (24, 1));
}

#[test]
fn nested_walk_makes_19_references_when_the_host_maps_2_mb() {
    assert_eq!(walk("nested-2m", 1), (19, 1));
}

#[test]
fn nested_walk_makes_19_references_when_the_guest_maps_2_mb_on_a_4_kb_host() {
    assert_eq!(walk("nested-4k", 2), (19, 1));
}

#[test]
fn nested_walk_makes_15_references_with_2_mb_on_both_sides() {
    assert_eq!(walk("nested-2m", 2), (15, 1));
}

#[test]
fn nested_walk_makes_14_references_when_the_host_maps_1_gb() {
    assert_eq!(walk("nested-1g", 1), (14, 1));
    assert_eq!(walk("nested-1g", 2), (11, 1));
    assert_eq!(walk("nested-1g", 3), (8, 1));
}

#[test]
fn a_shadow_walk_reads_no_more_than_the_smaller_of_guest_and_host_page_needs() {
    for (config, host) in [("shadow-4k", 1), ("shadow-2m", 2), ("shadow-1g", 3)] {
        for guest in 1..=3 {
            assert_eq!(
                walk(config, guest),
                (5 - u64::from(host.min(guest)), 1),
                "{config}, guest level {guest}"
            );
        }
    }
}

#[test]
fn an_offset_adds_no_reference_to_the_guests_own() {
    assert_eq!(walk("offset", 1), (4, 1));
    assert_eq!(walk("offset", 2), (3, 1));
    assert_eq!(walk("offset", 3), (2, 1));
}

#[test]
fn nested_walk_of_a_1_gb_guest_page_makes_14_and_11_references() {
    assert_eq!(walk("nested-4k", 3), (14, 1));
    assert_eq!(walk("nested-2m", 3), (11, 1));
}

#[test]
fn a_large_guest_page_in_pieces_keeps_its_leaf_entry() {
    let next_piece = |profile_name: &str, level: u8, overrides: &[&str]| {
        let profile = profile(profile_name, overrides);
        let mut stream = Stream::new();
        let root = stream.table(4);
        for at in [VA, VA + 4096] {
            stream.map(root, at, level, if level == 1 { 0x1_2345 << 12 } else { LARGE } | WRITE);
        }
        let first = stream.start(root).and(&[Load(VA), Load(VA + 4096), Cr3(root << 12), Load(VA)]);
        let config = Config::from_name("nested-4k").unwrap();
        let before = first.run(&profile, config).total;
        let after = first.and(&[Load(VA + 4096)]).run(&profile, config).total;
        assert_eq!(after.walks - before.walks, 1);
        after.guest_refs - before.guest_refs
    };
    // By the entry's address: nothing of the guest is read again but a leaf of 4 KB.
    for level in 2..=3 {
        assert_eq!(next_piece("zen4", level, &[]), 0);
    }
    assert_eq!(next_piece("zen4", 1, &[]), 1);
    // By virtual prefix: a leaf is never held.
    for level in 1..=3 {
        assert_eq!(next_piece("geometry-g", level, &[]), 1);
    }
}

/// An address for guests in 32-bit mode.
const VA_32: u64 = 0x4060_7008;

/// A guest with a page at [`VA_32`], of an entry of `level`, and what runs on the profile without walk
/// caches.
struct Short {
    stream: Stream,
    config: Config,
}

impl Short {
    fn new(format: Tables, config: &str, level: u8) -> Short {
        let mut stream = Stream::of(format);
        let root = stream.table(format.depth());
        stream.map(
            root,
            VA_32,
            level,
            if level == 1 { 0x1_2345 << 12 } else { 0x2_0000 << 12 | LARGE } | WRITE,
        );
        Short { stream: stream.start(root), config: Config::from_name(config).unwrap() }
    }

    /// What `events` add to all that came before: references by level of the guest, walks, and misses.
    fn add(&mut self, events: &[Event<'_>]) -> ([u64; 6], u64, u64) {
        let profile = profile("geometry-g", &["walk_cache.variant=none"]);
        let counts = |stream: &Stream| {
            let c = stream.run(&profile, self.config);
            (c.refs.map(|by_host| by_host.iter().sum::<u64>()), c.total.walks, c.total.tlb_misses())
        };
        let before = counts(&self.stream);
        self.stream = std::mem::replace(&mut self.stream, Stream::new()).and(events);
        let after = counts(&self.stream);
        (std::array::from_fn(|i| after.0[i] - before.0[i]), after.1 - before.1, after.2 - before.2)
    }
}

#[test]
fn walks_of_guests_in_32_bit_mode_read_two_levels_and_loads_of_cr3_under_pae_the_third() {
    // References of a walk of a small page and of a large one, and of a load of CR3 under PAE.
    let forms = [
        ("native", 2, 1, 1),
        ("offset", 2, 1, 1),
        ("nested-4k", 14, 9, 5),
        ("nested-2m", 11, 7, 4),
        ("shadow-4k", 2, 2, 0),
        ("shadow-2m", 2, 1, 0),
    ];
    for (config, small, large, load) in forms {
        for format in [Tables::Pae, Tables::TwoLevels] {
            for (level, references) in [(1, small), (2, large)] {
                let mut guest = Short::new(format, config, level);
                let cr3 = Cr3(guest.stream.root);
                guest.add(&[Load(VA_32), cr3]);
                let loads = if format == Tables::Pae { load } else { 0 };
                assert_eq!(guest.add(&[cr3]), ([0, 0, 0, loads, 0, 0], 0, 0), "{config} {format:?}");
                let (refs, walks, misses) = guest.add(&[Load(VA_32)]);
                assert_eq!(
                    (refs.iter().sum::<u64>(), walks, misses),
                    (references, 1, 1),
                    "{config} {format:?}"
                );
            }
        }
    }
}

#[test]
fn an_entry_of_pae_s_root_counts_from_the_next_load_of_cr3_or_change_of_cr4_on() {
    const ELSEWHERE: u64 = 0xc060_7008;
    for config in ["native", "nested-4k", "shadow-4k", "offset"] {
        let mut guest = Short::new(Tables::Pae, config, 1);
        let root = guest.stream.root;
        // The last gigabyte gets the tables of the second.
        let entry = guest.stream.entry(root + 8);
        let store = PtStore { gpa: root + 24, old: 0, new: entry };
        let fault = Fault { gva: ELSEWHERE, error: 0 };
        guest.add(&[Cr4(0), Load(VA_32), store]);
        let (refs, walks, _) = guest.add(&[fault]);
        assert_eq!((refs, walks), ([0; 6], 1), "{config}: the register has no entry");
        guest.add(&[Cr4(1 << 2)]); // TSD: loads no registers
        assert_eq!(guest.add(&[fault]).0, [0; 6], "{config}");
        guest.add(&[Cr4(1 << 2 | 1 << 7)]);
        let (refs, walks, misses) = guest.add(&[Load(ELSEWHERE), Load(ELSEWHERE + 8)]);
        assert!(refs[1] > 0 && refs[2] > 0 && refs[3] == 0, "{config}: {refs:?}");
        assert_eq!(misses, 1, "{config}");
        assert!(walks <= 2, "{config}");
        // Without a load, the register keeps the entry that the table has no more.
        guest.add(&[PtStore { gpa: root + 24, old: entry, new: 0 }, Invlpg(ELSEWHERE)]);
        assert_eq!(guest.add(&[Load(ELSEWHERE)]).2, 1, "{config}");
    }
}

#[test]
fn a_page_of_4_mb_is_two_entries_of_a_tlb_which_leave_it_together() {
    for config in ["native", "nested-4k", "nested-2m", "shadow-4k", "shadow-2m"] {
        let mut guest = Short::new(Tables::TwoLevels, config, 2);
        let other = VA_32 ^ 1 << 21;
        let both = [Load(VA_32), Load(other)];
        assert_eq!(guest.add(&both).2, 2, "{config}");
        assert_eq!(guest.add(&both).2, 0, "{config}");
        // The TLB has no page of the guest's under shadow paging, and the hypervisor flushes the address
        // alone.
        let gone = if guest.config.mode == Paging::Shadow { 1 } else { 2 };
        guest.add(&[Invlpg(other)]);
        assert_eq!(guest.add(&both).2, gone, "{config}");
        guest.add(&[Fault { gva: VA_32, error: 7 }]);
        assert_eq!(guest.add(&both).2, gone, "{config}");
    }
}
