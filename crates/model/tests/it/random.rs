// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random guests: the fast model, with its filter, its shared TLBs and its look-up
//! caches, counts what the slow reference counts.

use crate::guest::{FRAMES, Guest, Op, ops};
use crate::reference::{Counts, Reference, Tables};
use bifold_mmu::Format;
use bifold_mmu::format::{PAE, X86_32, X86_64_4_LEVEL, X86_64_5_LEVEL};
use bifold_model::{Config, Model, Options, Outcome, Paging, Profile, VmState};
use proptest::prelude::*;

/// Built-in profiles.
pub const PROFILES: usize = 19;

#[test]
fn every_built_in_profile_is_drawn() {
    assert_eq!(Profile::builtin_names().count(), PROFILES);
}

pub fn model(profile: &Profile, configs: &[Config], cpus: usize, words: &[u64]) -> Outcome {
    model_of(Tables::Long(4), profile, configs, cpus, words)
}

pub fn model_of(
    tables: Tables,
    profile: &Profile,
    configs: &[Config],
    cpus: usize,
    words: &[u64],
) -> Outcome {
    model_in(VmState::Started, tables, profile, configs, cpus, words)
}

/// The model of a VM that begins in this state.
pub fn model_in(
    vm: VmState,
    tables: Tables,
    profile: &Profile,
    configs: &[Config],
    cpus: usize,
    words: &[u64],
) -> Outcome {
    let options = Options {
        vm,
        configs: configs.to_vec(),
        guest_frames: FRAMES,
        vcpus: cpus,
        interval_seconds: 1e-6,
        guest_format: format(tables),
        ..Options::default()
    };
    let mut model = Model::new(profile, options);
    model.consume(words).unwrap();
    model.finish()
}

fn equal_to_reference(
    profile: &Profile,
    cpus: usize,
    ops: &[Op],
    together: bool,
) -> Result<(), TestCaseError> {
    let mut guest = Guest::new(cpus);
    guest.run(ops);
    let all = model(profile, &Config::ALL, cpus, &guest.words);
    prop_assert_eq!(all.untranslated, 0);
    for (config, in_company) in Config::ALL.into_iter().zip(&all.configs) {
        if config.mode == Paging::Shadow {
            continue;
        }
        let mut slow = Reference::new(profile, config, FRAMES, cpus, all.seed);
        slow.consume(&guest.words);
        let alone = model(profile, &[config], cpus, &guest.words);
        let got = Counts::of(if together { in_company } else { &alone.configs[0] });
        prop_assert_eq!(got, slow.counts, "{} {}", &profile.name, config.name());
    }
    Ok(())
}

/// A profile as it is, with other walk caches, or with TLBs so small that entries leave them all the time.
pub fn profile(which: usize, variant: usize) -> Profile {
    let name = Profile::builtin_names().nth(which).unwrap();
    let caches: &[&str] = match variant % 6 {
        0..=2 => &[],
        3 => &["walk_cache.variant=1d"],
        4 => &["walk_cache.variant=2d", "walk_cache.tag=physical"],
        _ => &["walk_cache.variant=none"],
    };
    let small: &[&str] = match name {
        _ if variant < 6 => &[],
        "geometry-g" => &["tlb.l1d-4k.entries=8", "tlb.l2.entries=24"],
        "i5-7600" => &[
            "tlb.l1d-4k.entries=8",
            "tlb.l1d-2m.entries=4",
            "tlb.l1i-4k.entries=16",
            "tlb.l2.entries=24",
            "tlb.l2-1g.entries=4",
        ],
        "phenom2-x3-720" => {
            &["tlb.l1d.entries=8", "tlb.l1i-4k.entries=4", "tlb.l2d-4k.entries=16", "tlb.l2i-4k.entries=8"]
        }
        "sapphire-rapids" => {
            &["tlb.l1d-4k.entries=12", "tlb.l1d-1g.entries=2", "tlb.l1i-4k.entries=8", "tlb.l2.entries=32"]
        }
        _ => &[],
    };
    let overrides: Vec<String> = caches.iter().chain(small).map(|s| s.to_string()).collect();
    Profile::load(name, &overrides).unwrap()
}

pub fn format(tables: Tables) -> &'static Format {
    match tables {
        Tables::Long(5) => &X86_64_5_LEVEL,
        Tables::Long(_) => &X86_64_4_LEVEL,
        Tables::Pae => &PAE,
        Tables::TwoLevels => &X86_32,
    }
}

/// The configurations that are known and run such guests.
pub fn known(format: &Format) -> Vec<Config> {
    Config::KNOWN.into_iter().filter(|c| c.mode.serves(format)).collect()
}

/// Has the slow reference this mode for the comparisons here? Shadow and agile paging are compared in
/// `shadow_random.rs`, guests within guests in `inside.rs`.
pub fn has_reference(mode: Paging) -> bool {
    matches!(mode, Paging::Native | Paging::Nested | Paging::Offset | Paging::Direct)
}

pub fn formats() -> impl Strategy<Value = Tables> {
    (0..Tables::ALL.len()).prop_map(|i| Tables::ALL[i])
}

/// The states of a VM with host pages of this configuration. All memory of a long-lived VM is in the
/// reference's maps, so it is drawn seldom.
pub fn vm_state(draw: usize, config: Config) -> VmState {
    match draw % 16 {
        0 => VmState::LongLived,
        1 if VmState::Restored.has_pages(config.host_page) => VmState::Restored,
        1 | 2 => VmState::RestoredUffd,
        _ => VmState::Started,
    }
}

/// So many cases, or as PROPTEST_CASES says.
pub fn cases(cases: u32) -> ProptestConfig {
    let cases = std::env::var("PROPTEST_CASES").ok().and_then(|n| n.parse().ok()).unwrap_or(cases);
    ProptestConfig { cases, max_shrink_iters: 4000, failure_persistence: None, ..ProptestConfig::default() }
}

proptest! {
    #![proptest_config(cases(96))]

    #[test]
    fn a_configuration_alone_counts_what_the_reference_counts(
        which in 0..PROFILES, variant in 0usize..12, ops in ops(1500)
    ) {
        equal_to_reference(&profile(which, variant), 1, &ops, false)?;
    }

    #[test]
    fn tables_of_every_format_on_either_side_count_what_the_reference_counts(
        which in 0..PROFILES, variant in 0usize..12, guest_format in formats(), host_depth in 4u8..6, ops in ops(800)
    ) {
        let profile = profile(which, variant);
        let mut guest = Guest::of(guest_format, 2);
        guest.run(&ops);
        let options = Options {
            configs: known(format(guest_format)),
            guest_frames: FRAMES,
            vcpus: 2,
            interval_seconds: 1e-6,
            guest_format: format(guest_format),
            nested_format: format(Tables::Long(host_depth)),
            ..Options::default()
        };
        let mut model = Model::new(&profile, options);
        model.consume(&guest.words).unwrap();
        let all = model.finish();
        prop_assert_eq!(all.untranslated, 0);
        for c in all.configs.iter().filter(|c| has_reference(c.config.mode)) {
            let mut slow = Reference::new(&profile, c.config, FRAMES, 2, all.seed).of(guest_format);
            slow.host.iter_mut().for_each(|h| h.depth = host_depth);
            slow.consume(&guest.words);
            prop_assert_eq!(Counts::of(c), slow.counts, "{} {}", &profile.name, c.config.name());
        }
    }

    #[test]
    fn two_cpus_count_what_the_reference_counts(which in 0..PROFILES, variant in 0usize..12, ops in ops(1500)) {
        equal_to_reference(&profile(which, variant), 2, &ops, false)?;
    }

    #[test]
    fn all_configurations_together_count_what_the_reference_counts(
        which in 0..PROFILES, variant in 0usize..12, ops in ops(1500)
    ) {
        equal_to_reference(&profile(which, variant), 2, &ops, true)?;
    }

    #[test]
    fn a_configuration_counts_the_same_alone_and_in_company(
        which in 0..PROFILES, variant in 0usize..12, cpus in 1usize..3, format in formats(), ops in ops(1500)
    ) {
        let profile = profile(which, variant);
        let mut guest = Guest::of(format, cpus);
        guest.run(&ops);
        let all = model_of(format, &profile, &Config::ALL, cpus, &guest.words);
        for (config, in_company) in Config::ALL.into_iter().zip(&all.configs) {
            let alone = model_of(format, &profile, &[config], cpus, &guest.words);
            prop_assert_eq!(&alone.configs[0], in_company, "{} {}", &profile.name, config.name());
        }
    }
}

// All memory of a long-lived VM is in the reference's maps: few cases.
proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn a_vm_in_every_state_counts_what_the_reference_counts(
        which in 0..PROFILES, variant in 0usize..12, (state, size) in (0usize..3, 0usize..3), cpus in 1usize..3,
        ops in ops(800)
    ) {
        let profile = profile(which, variant);
        let mut guest = Guest::new(cpus);
        guest.run(&ops);
        let config = Config::from_name(["nested-4k", "nested-2m", "nested-1g"][size]).unwrap();
        let vm = vm_state(state, config);
        let all = model_in(vm, Tables::Long(4), &profile, &[config], cpus, &guest.words);
        let mut slow = Reference::new(&profile, config, FRAMES, cpus, all.seed).in_state(vm);
        slow.consume(&guest.words);
        let got = Counts::of(&all.configs[0]);
        prop_assert_eq!(got, slow.counts, "{} {} {:?}", &profile.name, config.name(), vm);
    }
}
