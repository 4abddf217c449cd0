// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Counts that other simulators agree on (`docs/design/model.md#miss-counts-of-geometry-g`).

use bifold_model::{Config, Model, Options, Outcome, Profile};
use bifold_trace::{DecodeError, Generator};

pub fn run(profile: &Profile, spec: &str, configs: &[Config]) -> Outcome {
    let generator = Generator::parse(spec).unwrap();
    let options =
        Options { configs: configs.to_vec(), guest_frames: generator.guest_frames(), ..Options::default() };
    let mut model = Model::new(profile, options);
    generator.run::<DecodeError>(&mut |words| model.consume(words)).unwrap();
    model.finish()
}

fn misses(spec: &str) -> (u64, u64) {
    let profile = Profile::load("geometry-g", &[]).unwrap();
    let outcome = run(&profile, spec, &Config::ALL);
    assert_eq!(outcome.untranslated, 0);
    let of = |c: usize| (outcome.configs[c].total.l1_misses, outcome.configs[c].total.tlb_misses());
    for c in 1..Config::ALL.len() {
        assert_eq!(of(c), of(0), "{} misses as native does: all pages are 4 KB", Config::ALL[c].name());
    }
    of(0)
}

#[test]
fn trace_t_misses_as_published_at_1_million_accesses() {
    assert_eq!(misses("t:1000000"), (500_865, 498_076));
}

#[test]
fn trace_t_misses_as_published_at_20_million_accesses() {
    let profile = Profile::load("geometry-g", &[]).unwrap();
    let outcome = run(&profile, "t:20000000", &Config::ALL[..1]);
    let total = outcome.configs[0].total;
    assert_eq!((total.l1_misses, total.tlb_misses()), (10_017_085, 9_961_055));
}

#[test]
fn its_sequential_part_misses_once_a_page() {
    assert_eq!(misses("t-seq:1000000"), (1_954, 1_954));
}

#[test]
fn random_accesses_in_4_mib_miss_the_second_level_once_a_page() {
    assert_eq!(misses("t-4m:1000000"), (937_524, 1_024));
}
