// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Bodies for `bifold-policy`: timelines, parameters of policies, coefficients of the estimate.

use bifold_mmu::PageSize;
use bifold_model::Sample;
use bifold_policy::{Estimator, Log, Mode, Named, Other, Scale, Setup, Timeline, Track, View, VmKind};

/// A timeline: an error, or a timeline over which policies replay.
pub fn timeline(data: &[u8]) {
    timeline_file(data);
    // Random bytes hardly ever form a zstd frame.
    timeline_file(&zstd::encode_all(data, 1).expect("memory takes what is written"));
}

fn timeline_file(bytes: &[u8]) {
    let Ok(timeline) = Timeline::from_bytes(bytes, std::path::Path::new("fuzz")) else { return };
    // The oracle takes the square of the intervals.
    if timeline.intervals() > 64 {
        return;
    }
    let policies = ["regret", "rpms-dynamic"].map(|n| Named::load(n).expect("it is built in"));
    for host_page in [PageSize::Size4K, PageSize::Size2M, PageSize::Size1G] {
        for keep_nested in [false, true] {
            let vm = VmKind { host_page, keep_nested };
            let Some(track) = Track::new(&timeline, vm) else { continue };
            for start in track.modes() {
                let best = bifold_policy::oracle(&track, start, 100.0);
                assert_eq!(best.modes.len(), timeline.intervals());
                for (named, estimator) in policies.iter().zip([None, Some(Estimator::fitted())]) {
                    let setup = Setup { start, scale: Scale::both(100.0), estimator };
                    let run = bifold_policy::replay(&track, &named.spec, &setup, true);
                    assert_eq!(run.modes.len(), timeline.intervals());
                }
            }
        }
    }
    let _ = bifold_policy::replay_check::checks(&timeline);
}

/// Parameters of a policy: an error, or a policy that decides and explains on every sample.
pub fn policy(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(named) = Named::parse("fuzz", text) else { return };
    let sample = |n: u64, walk_cycles, vmm_cycles| Sample {
        instructions: n,
        tlb_misses_4k: n / 100,
        guest_page_faults: n / 1000,
        exits_hidden_fault: n / 500,
        walk_cycles,
        vmm_cycles,
        ..Sample::default()
    };
    let most = 1 << 53;
    let samples = [
        sample(1_000_000, 300_000, 0),
        sample(1_000_000, 0, 300_000),
        sample(0, 0, 20_000),
        sample(most, most, 1),
    ];
    let other = |mode, extra_cycles, there_cycles, back_cycles| Other {
        mode,
        extra_cycles,
        there_cycles,
        back_cycles,
    };
    const MODES: [Mode; 3] = [Mode::Shadow, Mode::Nested, Mode::Offset];
    for start in MODES {
        let mut policy = named.spec.policy(start);
        let (mut mode, mut log) = (start, Log::on());
        for i in 0..24 {
            let sample = &samples[i / 2 % samples.len()];
            let cycles = (sample.instructions + sample.extra_cycles()) as f64 * ((i + 1) % 8) as f64;
            let others = MODES.map(|other_mode| match i % 3 {
                1 => other(other_mode, 0.0, 0.0, 0.0),
                _ => other(other_mode, 600_000.0, 20_000.0, f64::INFINITY),
            });
            // Nothing is known, or the costs of one or of two other modes are.
            let others: Vec<Other> = others.into_iter().filter(|o| o.mode != mode).take(i % 3).collect();
            mode = policy.decide(&View { mode, sample, cycles, load: 1.0, others: &others }, &mut log);
            assert!(!log.take().is_empty(), "every decision is explained");
        }
    }
}

/// Coefficients of the estimate: an error, or estimates of at least 0.
pub fn estimator(data: &[u8]) {
    let Ok(text) = std::str::from_utf8(data) else { return };
    let Ok(estimator) = Estimator::parse(text) else { return };
    for counts in [0, 1, 1 << 53] {
        let sample = Sample::from_values([counts; Sample::COUNTERS.len()]);
        for mode in [Mode::Shadow, Mode::Nested] {
            let o = estimator.other(mode, &sample, 100.0).expect("it is fitted to both");
            assert!(o.extra_cycles >= 0.0 && o.there_cycles >= 0.0 && o.back_cycles >= 0.0, "{o:?}");
        }
    }
}

#[cfg(test)]
mod tests {
    use super::super::inputs::{bytes, changed_lines, leaves, number, toml_value};
    use super::*;
    use bifold_model::ages::Reuse;
    use bifold_model::{SwitchedOutcome, Switching};
    use bifold_policy::timeline::{About, Runs, StaticRun, SwitchCosts};
    use proptest::prelude::*;
    use serde_json::Value;

    const ESTIMATOR: &str = include_str!("../../crates/policy/params/estimator.toml");

    /// A short timeline with every optional part.
    fn small_timeline() -> Vec<u8> {
        let sample = |i: u64| Sample {
            instructions: 1_000_000,
            tlb_misses_4k: 10_000 * (i % 3),
            guest_page_faults: 100 * (i % 2),
            walk_cycles: 300_000 * (i % 3),
            vmm_cycles: 200_000 * (i % 2),
            shadow_pages_made: 8,
            shadow_pages_zapped: 4,
            exits_violation: 9,
            ..Sample::default()
        };
        let run = || StaticRun {
            samples: (0..12).map(sample).collect(),
            reuse: (0..12).map(|i| vec![Reuse { last: i, made: i + 1, exits: 40, tables: 2 }; 2]).collect(),
        };
        let switching = Switching {
            name: "toggle".into(),
            host_page: PageSize::Size4K,
            start: bifold_model::Paging::Nested,
            keep_nested: true,
        };
        let timeline = Timeline {
            about: About {
                program: "small".into(),
                guest: String::new(),
                bifold: "0".into(),
                profile: "none".into(),
                config_hash: "0".into(),
                input_hash: "0".into(),
                frequency_hz: 100_000_000,
                base_cpi: 1.0,
                vcpus: 1,
                guest_frames: 5120,
                vm: bifold_model::VmState::LongLived,
                interval_cycles: 1_000_000,
                time_scale: Some(100.0),
            },
            costs: SwitchCosts {
                switch: 9000,
                hidden_fault: 2000,
                violation: 3000,
                make_page: 500,
                zap_page: 90,
            },
            pages: [PageSize::Size4K, PageSize::Size2M]
                .map(|host_page| Runs {
                    host_page,
                    modes: [(Mode::Shadow, run()), (Mode::Nested, run())].into(),
                })
                .into(),
            switched: vec![SwitchedOutcome {
                switching,
                modes: vec![bifold_model::Paging::Shadow; 12],
                intervals: (0..12).map(sample).collect(),
            }],
        };
        let bytes = timeline.to_bytes();
        assert_eq!(Timeline::from_bytes(&bytes, "small".as_ref()).unwrap(), timeline);
        zstd::decode_all(&bytes[..]).unwrap()
    }

    proptest! {
        #[test]
        fn any_bytes_are_a_timeline_or_refused(data in bytes(), text in "\\PC{0,200}") {
            timeline(&data);
            timeline(text.as_bytes());
        }

        #[test]
        fn a_timeline_with_values_changed_is_replayed_or_refused(
            changes in prop::collection::vec((any::<prop::sample::Index>(), number()), 1..4),
            part in prop::sample::select(vec!["", "cycles", "exits", "instructions", "pages"]),
            every in number(), cost in number(),
            at in any::<prop::sample::Index>(), byte in any::<u8>(),
        ) {
            let good = small_timeline();
            let mut document: Value = serde_json::from_slice(&good).unwrap();
            for (at, new) in changes {
                let mut all = leaves(&mut document);
                let i = at.index(all.len());
                *all[i] = new;
            }
            timeline(&serde_json::to_vec(&document).unwrap());
            let mut document: Value = serde_json::from_slice(&good).unwrap();
            // All values of a kind, because sums overflow before single numbers do.
            for (key, value) in document["pairs"][0]["shadow"]["counters"]["values"].as_object_mut().unwrap() {
                if key.contains(part) {
                    leaves(value).into_iter().for_each(|v| *v = every.clone());
                }
            }
            leaves(&mut document["costs"]).into_iter().for_each(|v| *v = cost.clone());
            timeline(&serde_json::to_vec(&document).unwrap());
            let mut bytes = good;
            let i = at.index(bytes.len());
            bytes[i] = byte;
            timeline(&bytes);
            timeline(&bytes[..i]);
        }

        #[test]
        fn any_text_is_a_policy_or_refused(text in "\\PC{0,200}", value in toml_value(), line in 0usize..400) {
            policy(text.as_bytes());
            for (_, good) in bifold_policy::spec::BUILT_IN {
                policy(good.as_bytes());
                changed_lines(good, line, &value, policy);
            }
        }

        #[test]
        fn any_text_is_an_estimator_or_refused(text in "\\PC{0,200}", value in toml_value(), line in 0usize..400) {
            estimator(text.as_bytes());
            estimator(ESTIMATOR.as_bytes());
            changed_lines(ESTIMATOR, line, &value, estimator);
        }
    }
}
