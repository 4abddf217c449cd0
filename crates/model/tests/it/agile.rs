// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Agile paging: references by the level at which a walk leaves the shadow tables, and the ends of its policy. With
//! everything in nested mode it is nested paging, with everything in shadow mode it is shadow paging.

use crate::guest::{FRAMES, Guest, ops};
use crate::reference::{LARGE, Tables, WRITE};
use crate::stream::{Stream, profile};
use bifold_model::{Config, ConfigOutcome, Model, Options, Profile};
use bifold_trace::Event::{Cr3, Load, Store};
use proptest::prelude::*;

const VA: u64 = 0x40_4060_7008;
/// Where a guest maps its tables.
const TABLES: u64 = 0x80_0000_0000;
const NO_CACHES: &str = "walk_cache.variant=none";
const SHADOW_FIRST: &str = "agile.start=shadow";

/// References of a walk where the table of level `nested` on the way was written twice, or none was, and the guest maps the address
/// by an entry of level `leaf`.
fn walk(config: &str, depth: u8, nested: Option<u8>, leaf: u8, set: &[&str]) -> u64 {
    let config = Config::from_name(config).unwrap();
    let profile = profile("geometry-g", &[&[NO_CACHES], set].concat());
    let mut stream = Stream::of(Tables::Long(depth));
    let root = stream.table(depth);
    let mut tables = vec![root];
    stream.map(root, VA, leaf, if leaf == 1 { 0x1_2345 << 12 } else { 0x2_0000 << 12 | LARGE } | WRITE);
    // Tables were made from the root down.
    tables.extend((leaf..depth).map(|i| root + u64::from(i - leaf) + 1));
    for (i, table) in tables.iter().enumerate() {
        stream.map(root, TABLES + ((i as u64) << 12), 1, table << 12 | WRITE);
    }
    let mut stream = stream.start(root).and(&[Load(VA)]);
    if let Some(level) = nested {
        let at = TABLES + (u64::from(depth - level) << 12) + 0xff8;
        stream = stream.and(&[Store(at), Store(at)]);
    }
    let warm = stream.and(&[Load(VA), Cr3(root << 12)]);
    let refs = |c: &ConfigOutcome| c.refs.iter().flatten().sum::<u64>();
    let (before, after) = (warm.run(&profile, config), warm.clone().and(&[Load(VA)]).run(&profile, config));
    assert_eq!(after.total.walks - before.total.walks, 1);
    assert_eq!(after.total.all_exits(), before.total.all_exits(), "the page is warm");
    refs(&after) - refs(&before)
}

#[test]
fn a_walk_makes_4_references_in_shadow_and_4_more_for_each_level_in_nested_mode() {
    let of = |nested| walk("agile-4k", 4, nested, 1, &[SHADOW_FIRST]);
    assert_eq!(of(None), 4);
    assert_eq!([1, 2, 3, 4].map(|level| of(Some(level))), [8, 12, 16, 20]);
    assert_eq!(walk("agile-4k", 4, None, 1, &[]), 24, "the hypervisor has not seen the address space");
}

#[test]
fn so_it_is_with_5_levels_and_with_pages_of_2_mb_on_either_side() {
    let five = |nested| walk("agile-4k", 5, nested, 1, &[SHADOW_FIRST]);
    assert_eq!(five(None), 5);
    assert_eq!([1, 2, 3, 4, 5].map(|level| five(Some(level))), [9, 13, 17, 21, 25]);
    // Nested walks of 3 references.
    let host = |nested| walk("agile-2m", 4, nested, 1, &[SHADOW_FIRST]);
    assert_eq!(host(None), 4);
    assert_eq!([1, 2, 3, 4].map(|level| host(Some(level))), [7, 10, 13, 16]);
    assert_eq!(walk("agile-2m", 4, None, 1, &[]), 19);
    // The guest's walk is a step shorter.
    let guest = |nested| walk("agile-4k", 4, nested, 2, &[SHADOW_FIRST]);
    assert_eq!([2, 3, 4].map(|level| guest(Some(level))), [7, 11, 15]);
    assert_eq!(walk("agile-4k", 4, None, 2, &[]), 19);
    let both = |nested| walk("agile-2m", 4, nested, 2, &[SHADOW_FIRST]);
    assert_eq!((both(None), both(Some(2)), walk("agile-2m", 4, None, 2, &[])), (3, 6, 15));
}

/// The outcome of a configuration over a random guest, with intervals of so many seconds.
fn outcome(
    profile: &Profile,
    config: &str,
    cpus: usize,
    words: &[u64],
    interval_seconds: f64,
) -> ConfigOutcome {
    let configs = vec![Config::from_name(config).unwrap()];
    let options =
        Options { configs, guest_frames: FRAMES, vcpus: cpus, interval_seconds, ..Options::default() };
    let mut model = Model::new(profile, options);
    model.consume(words).unwrap();
    model.finish().configs.remove(0)
}

proptest! {
    #![proptest_config(crate::random::cases(64))]

    #[test]
    fn with_everything_in_nested_mode_it_is_nested_paging(
        which in 0usize..4, variant in 0usize..12, cpus in 1usize..3, large in any::<bool>(), ops in ops(1500)
    ) {
        let profile = crate::random::profile(which, variant);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let size = if large { "2m" } else { "4k" };
        let of = |mode| outcome(&profile, &format!("{mode}-{size}"), cpus, &guest.words, 1e3);
        let (agile, nested) = (of("agile"), of("nested"));
        prop_assert_eq!(agile.total, nested.total);
        prop_assert_eq!(agile.refs, nested.refs);
    }

    #[test]
    fn with_everything_in_shadow_mode_it_is_shadow_paging(
        which in 0usize..4, variant in 0usize..12, cpus in 1usize..3, large in any::<bool>(), ops in ops(1500)
    ) {
        let profile = crate::random::profile(which, variant);
        let mut all = profile.clone();
        (all.agile.writes, all.agile.start) = (0, bifold_model::AgileStart::Shadow);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let size = if large { "2m" } else { "4k" };
        let agile = outcome(&all, &format!("agile-{size}"), cpus, &guest.words, 1e-6);
        let shadow = outcome(&profile, &format!("shadow-{size}"), cpus, &guest.words, 1e-6);
        prop_assert_eq!(agile.total, shadow.total);
        prop_assert_eq!(agile.refs, shadow.refs);
        prop_assert_eq!(agile.intervals, shadow.intervals);
    }
}
