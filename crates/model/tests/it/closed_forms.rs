// SPDX-License-Identifier: Apache-2.0 OR MIT
//! References of one walk with nothing cached: m in one dimension, m*n + m + n in two
//! (`docs/design/model.md#walks`). Measured as what one more access to a warm page adds after a
//! CR3 load.

use crate::reference::{LARGE, WRITE};
use crate::stream::{Stream, profile};
use bifold_model::Config;
use bifold_trace::Event::{Cr3, Load};

const VA: u64 = 0x40_4060_7008;

/// References and walks of the access, where the guest maps the address at `level`.
fn walk(config: &str, level: u8) -> (u64, u64) {
    let config = Config::from_name(config).unwrap();
    let profile = profile("geometry-g", &["walk_cache.variant=none"]);
    let mut stream = Stream::new();
    let root = stream.table(4);
    stream.map(root, VA, level, if level == 1 { 0x1_2345 << 12 } else { LARGE } | WRITE);
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
