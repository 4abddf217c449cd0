// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The policies, one file each: what was published, the parameters, the decision.

pub mod always;
pub mod bae;
pub mod dsp;
pub mod experts;
pub mod hiebel;
pub mod kuang;
mod ledger;
mod pair;
pub mod regret;
pub mod rpms;
pub mod svm;
pub mod toggle;
pub mod work_function;
pub mod zhang;

#[cfg(test)]
mod testing;

use crate::{Log, ParameterError};
use bifold_mmu::Mode;

/// Whether this is one of the intervals after a switch that a policy ignores; counts it down.
pub(crate) fn settling(left: &mut u32, mode: Mode, log: &mut Log) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    let left = *left;
    log.say(|| format!("Stay in {}: just switched, {left} more intervals are ignored.", mode.name()));
    true
}

/// A value as an explanation prints it: three digits, no trailing zeros.
pub(crate) fn num(x: f64) -> String {
    let size = x.abs();
    if size == 0.0 || (100.0..1e6).contains(&size) {
        format!("{x:.0}")
    } else if (1e-3..100.0).contains(&size) {
        let decimals = (2 - size.log10().floor() as i32).max(0) as usize;
        let text = format!("{x:.decimals$}");
        if text.contains('.') { text.trim_end_matches('0').trim_end_matches('.').into() } else { text }
    } else {
        format!("{x:.2e}")
    }
}

/// Refuses NaN and values outside `low..=high`.
pub(crate) fn within(name: &str, value: f64, low: f64, high: f64) -> Result<(), ParameterError> {
    if value >= low && value <= high {
        Ok(())
    } else {
        Err(ParameterError::Outside(name.into(), value, low, high))
    }
}

/// Refuses NaN, infinity, 0 and negative values.
pub(crate) fn positive(name: &str, value: f64) -> Result<(), ParameterError> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(ParameterError::NotPositive(name.into(), value))
    }
}

/// Refuses two values unless the first is below the second.
pub(crate) fn below(low: (&str, f64), high: (&str, f64)) -> Result<(), ParameterError> {
    if low.1 < high.1 {
        Ok(())
    } else {
        Err(ParameterError::NotBelow(low.0.into(), low.1, high.0.into(), high.1))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::TestInterval;
    use super::*;
    use crate::{Counters, Driver, Estimator, Interval, Log, Named, Other, Scale, Source};
    use bifold_model::Sample;
    use proptest::prelude::*;
    use rand::SeedableRng as _;
    use rand_pcg::Pcg64;

    #[test]
    fn numbers_have_three_digits_and_no_trailing_zeros() {
        let shown: Vec<_> = [0.0, 12.0, 0.5, 2.34567, 123.4, 99.96, 1e-5, 2.5e9, -0.25, f64::NAN]
            .map(num)
            .into_iter()
            .collect();
        assert_eq!(shown, ["0", "12", "0.5", "2.35", "123", "100", "1.00e-5", "2.50e9", "-0.25", "NaN"]);
    }

    /// An interval of any kind, an empty one now and then.
    fn seen() -> impl Strategy<Value = TestInterval> {
        let count = || prop_oneof![Just(0u64), 0u64..1000, 0u64..1 << 40];
        let cost = || prop_oneof![Just(0.0), 0.0..1e12, Just(f64::NAN), Just(f64::INFINITY)];
        let sample = (count(), count(), count(), count(), count(), count()).prop_map(|c| Sample {
            instructions: c.0,
            tlb_misses_4k: c.1,
            guest_page_faults: c.2,
            exits_hidden_fault: c.3,
            walk_cycles: c.4,
            vmm_cycles: c.5,
            ..Sample::default()
        });
        let other = prop::option::of((cost(), cost(), cost()).prop_map(|(e, t, b)| Other {
            mode: crate::Mode::Nested,
            extra_cycles: e,
            there_cycles: t,
            back_cycles: b,
        }));
        let cycles = prop_oneof![Just(0.0), 0.0..1e13];
        (sample, cycles, 0.0..=1.0, other).prop_map(|(sample, cycles, load, other)| TestInterval {
            sample,
            cycles,
            load,
            other,
        })
    }

    /// Modes and words of a policy, with the fitted estimator, over these samples.
    fn told(named: &Named, start: Mode, samples: &[Sample], source: Source) -> Vec<(crate::Mode, String)> {
        let start = start.into();
        let scale = Scale::both(1.0);
        let mut driver = Driver::new(&named.spec, start, source, scale, Some(Estimator::fitted())).unwrap();
        driver.log = Log::on();
        let mut mode = start;
        let mut told = Vec::new();
        for sample in samples {
            let now = Interval { mode, sample, cycles: 1e9, load: 1.0, seconds: source.interval_s };
            mode = driver.interval(now, &[]).unwrap_or(mode);
            told.push((mode, driver.log.take()));
        }
        told
    }

    fn needs(named: &Named) -> Counters {
        let estimator = if named.spec.needs_other() { Estimator::fitted().needs() } else { Counters::NONE };
        named.spec.needs().and(estimator)
    }

    /// Samples of a guest that makes a billion instructions in an interval and misses and faults now and
    /// then, with every counter at random.
    fn random_samples(seed: u64) -> Vec<Sample> {
        let mut rng = Pcg64::seed_from_u64(seed);
        let mut sample = || {
            let mut values = [0; Sample::COUNTERS.len()];
            values.fill_with(|| rng.random_range(0..1 << 20) >> rng.random_range(0..16));
            Sample {
                instructions: 1_000_000_000 + rng.random_range(0..1 << 28),
                walk_cycles: rng.random_range(0..300_000_000),
                vmm_cycles: rng.random_range(0..300_000_000),
                ..Sample::from_values(values)
            }
        };
        (0..30).map(|_| sample()).collect()
    }

    #[test]
    fn counters_that_a_policy_does_not_need_change_nothing() {
        for named in Named::all() {
            let source = Source { interval_s: named.spec.interval_s(), known: needs(&named) };
            for (seed, start) in (0..20).flat_map(|seed| Mode::BOTH.map(|start| (seed, start))) {
                let samples = random_samples(seed);
                let hidden = samples.iter().zip(random_samples(1000 + seed)).map(|(seen, other)| {
                    let (mut values, other) = (seen.values(), other.values());
                    for (place, value) in values.iter_mut().enumerate() {
                        if !source.known.contains(place) {
                            *value = other[place];
                        }
                    }
                    Sample::from_values(values)
                });
                let hidden: Vec<_> = hidden.collect();
                assert_eq!(
                    told(&named, start, &samples, source),
                    told(&named, start, &hidden, source),
                    "{} reads a counter that it does not say it needs",
                    named.name
                );
            }
        }
    }

    #[test]
    fn every_counter_that_a_policy_needs_changes_what_it_says() {
        // Every other interval is changed: some policies compare an interval with the one before.
        let changed = |samples: &[Sample], place: usize, odd: usize| -> Vec<Sample> {
            let more = samples.iter().enumerate().map(|(n, sample)| {
                let mut values = sample.values();
                if n % 2 == odd {
                    values[place] = values[place] * 3 + (1 << 30);
                }
                Sample::from_values(values)
            });
            more.collect()
        };
        for named in Named::all() {
            let source = Source::simulated(named.spec.interval_s());
            for place in (0..Sample::COUNTERS.len()).filter(|place| needs(&named).contains(*place)) {
                let read = (0..20).any(|seed| {
                    let samples = random_samples(seed);
                    Mode::BOTH.into_iter().any(|start| {
                        let before = told(&named, start, &samples, source);
                        [0, 1]
                            .iter()
                            .any(|odd| told(&named, start, &changed(&samples, place, *odd), source) != before)
                    })
                });
                assert!(read, "{} does not read {}", named.name, Sample::COUNTERS[place].name);
            }
        }
    }

    proptest! {
        #[test]
        fn every_policy_decides_anything_twice_alike_explained_or_not(
            seen in prop::collection::vec(seen(), 0..60), start in prop::sample::select(&Mode::BOTH[..]),
        ) {
            for named in Named::all() {
                let (mut a, mut b) = (named.spec.policy(start.into()), named.spec.policy(start.into()));
                let (mut on, mut off) = (Log::on(), Log::off());
                let mut mode = start;
                for mut s in seen.iter().copied() {
                    let next = a.decide(&s.view(mode), &mut on);
                    prop_assert_eq!(next, b.decide(&s.view(mode), &mut off));
                    let said = on.take();
                    prop_assert!(said.ends_with('.') && !said.contains("NaN"), "{}: {}", named.name, said);
                    mode = next.switchable().unwrap();
                }
            }
        }
    }
}
