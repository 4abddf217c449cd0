// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Shadow and agile paging count what the slow reference counts on random guests: walks, references, TLB
//! misses, flushes, exits by reason and shadow pages. Agile paging with every policy and both options of the
//! hardware, shadow paging of both versions of KVM.

use crate::guest::{FRAMES, Guest, Op, ops};
use crate::random::{PROFILES, cases, format, formats, profile, vm_state};
use crate::reference::{Counts, Reference, Tables};
use bifold_model::{AgileStart, Config, KvmVersion, Model, Options, Profile, Sample};
use proptest::prelude::*;

/// Exits by reason, and what was done in them, by name. Violations are among the other counts.
fn exits(s: &Sample) -> Vec<(&'static str, u64)> {
    let work = [
        ("root misses", s.root_misses),
        ("syncs", s.syncs),
        ("pages made", s.shadow_pages_made),
        ("pages zapped", s.shadow_pages_zapped),
    ];
    s.exits().filter(|(reason, _)| *reason != "violation").chain(work).filter(|(_, n)| *n > 0).collect()
}

/// A machine and its guest: the guest's tables, levels of the nested ones, vCPUs, seconds of an interval, and
/// a draw of the VM's state.
#[derive(Debug, Clone, Copy)]
struct Machine {
    tables: Tables,
    nested_depth: u8,
    cpus: usize,
    interval_seconds: f64,
    state: usize,
}

fn machines() -> impl Strategy<Value = Machine> {
    (formats(), 4u8..6, 1usize..3, 0i32..4, 0usize..16).prop_map(
        |(tables, nested_depth, cpus, interval, state)| Machine {
            tables,
            nested_depth,
            cpus,
            interval_seconds: 1e-6 * 10f64.powi(interval),
            state,
        },
    )
}

/// `rules`: the profile by which the reference goes. Returns what both have counted.
fn equal(
    profile: &Profile,
    rules: &Profile,
    config: &str,
    machine: Machine,
    ops: &[Op],
) -> Result<Sample, TestCaseError> {
    let Machine { tables, nested_depth, cpus, interval_seconds, state } = machine;
    let config = Config::from_name(config).unwrap();
    let vm = vm_state(state, config);
    let mut guest = Guest::of(tables, cpus);
    guest.run(ops);
    let options = Options {
        configs: vec![config],
        guest_frames: FRAMES,
        vcpus: cpus,
        interval_seconds,
        guest_format: format(tables),
        nested_format: format(Tables::Long(nested_depth)),
        vm,
        ..Options::default()
    };
    let mut model = Model::new(profile, options);
    model.consume(&guest.words).unwrap();
    let all = model.finish();
    prop_assert_eq!(all.untranslated, 0);
    let mut slow = Reference::new(rules, config, FRAMES, cpus, all.seed).of(tables);
    slow.host.iter_mut().for_each(|h| h.depth = nested_depth);
    let mut slow = slow.in_state(vm).agile(rules, interval_seconds);
    slow.consume(&guest.words);
    let got = &all.configs[0];
    let exited = slow.agile_counts();
    prop_assert_eq!(exits(&got.total), exits(&exited), "{} {}", &profile.name, config.name());
    prop_assert_eq!(got.total.all_exits(), exited.all_exits() + slow.counts.violations);
    prop_assert_eq!(Counts::of(got), slow.counts, "{} {}", &profile.name, config.name());
    Ok(got.total)
}

proptest! {
    #![proptest_config(cases(128))]

    #[test]
    fn agile_paging_counts_what_the_reference_counts(
        (which, variant, machine, large, tagged) in (0..PROFILES, 0usize..12, machines(), any::<bool>(), any::<bool>()),
        (writes, shadow, sets_both, cr3_cache) in (1u32..6, any::<bool>(), any::<bool>(), 0u8..3),
        ops in ops(1500)
    ) {
        let tables = Tables::Long(machine.tables.depth().max(4));
        let machine = Machine { tables, ..machine };
        let mut profile = profile(which, variant);
        profile.cpu.tlb_tagged = tagged;
        let agile = &mut profile.agile;
        (agile.writes, agile.sets_both, agile.cr3_cache) = (writes, sets_both, cr3_cache);
        agile.start = if shadow { AgileStart::Shadow } else { AgileStart::Nested };
        equal(&profile, &profile, if large { "agile-2m" } else { "agile-4k" }, machine, &ops)?;
    }

    #[test]
    fn shadow_paging_counts_what_the_reference_counts(
        (which, variant, machine, size) in (0..PROFILES, 0usize..12, machines(), 0usize..3),
        (newer, tagged) in (any::<bool>(), any::<bool>()),
        ops in ops(1500)
    ) {
        let mut profile = profile(which, variant);
        profile.cpu.tlb_tagged = tagged;
        profile.kvm = if newer { KvmVersion::Linux6_12 } else { KvmVersion::Linux6_1 };
        // No table ever moves to nested mode.
        let mut rules = profile.clone();
        (rules.agile.writes, rules.agile.start) = (0, AgileStart::Shadow);
        equal(&profile, &rules, ["shadow-4k", "shadow-2m", "shadow-1g"][size], machine, &ops)?;
    }
}

/// The policy of agile paging goes by what the violations of a protection fault have made as by all others:
/// whatever number of walks comes before the interval's end, both decide alike.
#[test]
fn violations_of_a_protection_fault_count_for_the_policy() {
    let mut profile = profile(0, 5);
    profile.agile.cr3_cache = 1;
    let machine =
        Machine { tables: Tables::Long(5), nested_depth: 4, cpus: 1, interval_seconds: 1e-6, state: 3 };
    // Text, whose tables nothing has used before.
    let (place, page) = (13, 0);
    let mut shadowed = 0;
    for walks in 0..64 {
        let mut ops = vec![Op::Fault { place, page }];
        for _ in 0..walks {
            ops.extend([Op::Access { kind: 0, place, page }, Op::Invlpg { place, page }]);
        }
        ops.extend([Op::Insns(u16::MAX), Op::Access { kind: 0, place, page }]);
        let total = equal(&profile, &profile, "agile-4k", machine, &ops).unwrap();
        shadowed += u32::from(total.shadow_pages_made > 0);
    }
    assert!((1..64).contains(&shadowed), "the limit lies among these numbers of walks: {shadowed}");
}
