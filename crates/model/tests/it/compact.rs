// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A compact stream against the whole one: every count, interval and charge is the same, whatever the TLBs,
//! as long as no data caches are modelled.

use crate::guest::{FRAMES, Guest, ops};
use crate::random::{PROFILES, cases, format, formats, known, profile};
use bifold_model::{CacheMode, Charge, Config, Model, Options, Outcome, Profile};
use bifold_trace::{Generator, compact};
use proptest::prelude::*;
use std::fmt::Write as _;

/// Arrays of random geometry: both levels, for data and code apart or for both, of 4 KB pages or of several
/// sizes.
fn arrays() -> impl Strategy<Value = String> {
    let array = (1usize..=4, 1usize..=4, any::<bool>());
    let level = (any::<bool>(), proptest::collection::vec(array, 3));
    (level.clone(), level, any::<bool>()).prop_map(|(first, second, has_second)| {
        let mut text = String::new();
        for (level, (unified, arrays)) in [(1, first), (2, second)].into_iter().take(1 + usize::from(has_second)) {
            let sides: &[&str] = if unified { &["\"data\", \"code\""] } else { &["\"data\"", "\"code\""] };
            for (i, sides) in sides.iter().enumerate() {
                let (sets, ways, full) = arrays[i];
                let entries = sets * ways;
                let ways = if full { 0 } else { ways };
                write!(
                    text,
                    "[[tlb]]\nname = \"l{level}-{i}\"\nlevel = {level}\nsides = [{sides}]\nsizes = [\"4K\", \"2M\", \"1G\"]\n\
                     entries = {entries}\nways = {ways}\nprior = \"drawn\"\n\n"
                )
                .unwrap();
            }
        }
        text
    })
}

/// A built-in profile with these arrays in place of its own.
fn with_arrays(name: &str, arrays: &str) -> Profile {
    let text = Profile::builtin_text(name).unwrap();
    let (before, after) = (text.find("[[tlb]]").unwrap(), text.find("[walk_cache]").unwrap());
    Profile::parse(&[&text[..before], arrays, &text[after..]].concat(), name, &[]).unwrap()
}

fn run(profile: &Profile, options: &Options, words: &[u64]) -> Outcome {
    let mut model = Model::new(profile, options.clone());
    model.consume(words).unwrap();
    Outcome { input_hash: String::new(), ..model.finish() }
}

/// All that is charged, with the page in place of the data's address.
fn charges(profile: &Profile, options: &Options, words: &[u64]) -> Vec<String> {
    let (mut model, mut all) = (Model::new(profile, options.clone()), Vec::new());
    model.charge(true);
    model.consume(words).unwrap();
    model.take_charges(&mut |charge| {
        all.push(match charge {
            Charge::Cost(mut place, costs) => {
                place.data = place.data.map(|gva| bifold_mmu::Gva(gva.0 & !0xfff));
                format!("{place:?} {costs:?}")
            }
            other => format!("{other:?}"),
        });
    });
    all
}

proptest! {
    #![proptest_config(cases(16))]

    #[test]
    fn a_compact_stream_counts_as_the_whole_one_under_any_tlbs(
        which in 0..PROFILES, variant in 0usize..12, arrays in proptest::option::of(arrays()),
        tables in formats(), cpus in 1usize..4, ops in ops(800)
    ) {
        let mut profile = profile(which, variant);
        if let Some(arrays) = arrays {
            profile = with_arrays(&profile.name, &arrays);
        }
        let mut guest = Guest::of(tables, cpus);
        guest.run(&ops);
        let options = Options {
            configs: known(format(tables)),
            guest_frames: FRAMES,
            vcpus: cpus,
            interval_seconds: 1e-6,
            guest_format: format(tables),
            ..Options::default()
        };
        let mut words = Vec::new();
        compact(&guest.words, false, &mut words).unwrap();
        prop_assert_eq!(run(&profile, &options, &words), run(&profile, &options, &guest.words));
        let mut words = Vec::new();
        compact(&guest.words, true, &mut words).unwrap();
        prop_assert_eq!(charges(&profile, &options, &words), charges(&profile, &options, &guest.words));
    }
}

#[test]
fn generated_streams_count_the_same_when_compact_and_differ_with_data_caches() {
    for (name, stream) in
        [("i5-7600", "fork-storm:2"), ("zen4", "pointer-chase:20k"), ("skylake-sp", "gups-2m:20k")]
    {
        let generator = Generator::parse(stream).unwrap();
        let mut whole = Vec::new();
        generator
            .run::<std::convert::Infallible>(&mut |words| {
                whole.extend_from_slice(words);
                Ok(())
            })
            .unwrap();
        let mut words = Vec::new();
        compact(&whole, false, &mut words).unwrap();
        let profile = Profile::load(name, &[]).unwrap();
        let options = Options {
            configs: Config::KNOWN.to_vec(),
            guest_frames: generator.guest_frames(),
            interval_seconds: 1e-4,
            ..Options::default()
        };
        assert_eq!(run(&profile, &options, &words), run(&profile, &options, &whole), "{stream}");
        let caches = Options { caches: CacheMode::Exact, ..options };
        assert_ne!(run(&profile, &caches, &words), run(&profile, &caches, &whole), "{stream}");
    }
}
