// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Misses that take the shorter way, against the same misses by the general one: a model that charges costs
//! knows only that.

use crate::guest::{FRAMES, Guest, Op, ops};
use crate::random::cases;
use bifold_model::{CacheMode, Config, Model, Options, Profile};
use bifold_trace::{Event, Generator};
use proptest::prelude::*;

fn two(profile: &Profile, options: &Options) -> [Model; 2] {
    let mut models = [(); 2].map(|()| Model::new(profile, options.clone()));
    models[1].charge(false);
    models
}

proptest! {
    #![proptest_config(cases(32))]

    /// Loads of many pages between the guest's changes of its tables. One configuration alone, so that all
    /// sharers of a set hold the same.
    #[test]
    fn the_shorter_way_leads_to_the_same_counts(
        name in prop_oneof![Just("geometry-g"), Just("i5-7600"), Just("sapphire-rapids"), Just("xeon-gold-6252")],
        set in prop_oneof![3 => Just("cpu.tlb_tagged=true"), 1 => Just("cpu.tlb_tagged=false"), 1 => Just("cpu.pcid=true")],
        caches in prop_oneof![Just(CacheMode::Off), Just(CacheMode::Sampled), Just(CacheMode::Exact)],
        config in 0..Config::KNOWN.len(), cpus in 1usize..3, ops in ops(400), seed in any::<u16>()
    ) {
        let profile = Profile::load(name, &[set.to_string()]).unwrap();
        let mut guest = Guest::new(cpus);
        for (i, op) in (0u16..).zip(ops) {
            guest.run(&[op]);
            let page = |n: u16| (n.wrapping_mul(193) ^ seed).wrapping_add(i);
            let loads: Vec<Op> = (0..40).map(|n| Op::Access { kind: 0, place: i % 7, page: page(n) }).collect();
            guest.run(&loads[..20]);
            if page(i) % 16 == 0 {
                Event::Cr3Read.encode(&mut guest.words);
            }
            guest.run(&loads[20..]);
        }
        let configs = vec![Config::KNOWN[config]];
        let options = Options {
            configs,
            guest_frames: FRAMES,
            vcpus: cpus,
            interval_seconds: 1e-5,
            caches,
            ..Options::default()
        };
        let [mut plain, mut general] = two(&profile, &options);
        plain.consume(&guest.words).unwrap();
        general.consume(&guest.words).unwrap();
        prop_assert_eq!(plain.finish(), general.finish());
    }
}

#[test]
fn generated_streams_have_the_same_counts_by_either_way() {
    for (stream, name) in [
        ("t:50k", "geometry-g"),
        ("t:50k", "i5-7600"),
        ("gups:25k", "xeon-x5670"),
        ("fork-storm:2", "i5-7600"),
    ] {
        let generator = Generator::parse(stream).unwrap();
        let profile = Profile::load(name, &[]).unwrap();
        for caches in [CacheMode::Off, CacheMode::Sampled] {
            let options = Options {
                configs: Config::KNOWN.to_vec(),
                guest_frames: generator.guest_frames(),
                interval_seconds: 1e-4,
                caches,
                ..Options::default()
            };
            let outcomes = two(&profile, &options).map(|mut model| {
                generator.run(&mut |words| model.consume(words)).unwrap();
                model.finish()
            });
            assert_eq!(outcomes[0], outcomes[1], "{stream} {name} {caches:?}");
        }
    }
}
