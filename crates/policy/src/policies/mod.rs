// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One file per policy: what was published, its parameters, the decision.

pub mod always;
pub mod bae;
pub mod dsp;
pub mod experts;
pub mod hiebel;
pub mod kuang;
mod ledger;
pub mod regret;
pub mod rpms;
pub mod svm;
pub mod toggle;
pub mod work_function;
pub mod zhang;

#[cfg(test)]
mod testing;

use crate::{Log, Mode};

/// Is this one of the intervals after a switch that are not looked at? Counts it if so.
pub(crate) fn settling(left: &mut u32, mode: Mode, log: &mut Log) -> bool {
    if *left == 0 {
        return false;
    }
    *left -= 1;
    let left = *left;
    log.say(|| format!("Stay in {}: just switched, {left} more intervals are not looked at.", mode.name()));
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

/// Refuses a value outside `low..=high`, and one that is not a number.
pub(crate) fn within(name: &str, value: f64, low: f64, high: f64) -> Result<(), String> {
    if value >= low && value <= high {
        Ok(())
    } else {
        Err(format!("{name} = {value} is not in {low}..={high}"))
    }
}

/// Refuses a value that is not above 0 or is infinite, and one that is not a number.
pub(crate) fn positive(name: &str, value: f64) -> Result<(), String> {
    if value > 0.0 && value.is_finite() {
        Ok(())
    } else {
        Err(format!("{name} = {value} is not above 0 and finite"))
    }
}

/// Refuses two values of which the first is not below the second.
pub(crate) fn below(low: (&str, f64), high: (&str, f64)) -> Result<(), String> {
    if low.1 < high.1 {
        Ok(())
    } else {
        Err(format!("{} = {} is not below {} = {}", low.0, low.1, high.0, high.1))
    }
}

#[cfg(test)]
mod tests {
    use super::testing::Seen;
    use super::*;
    use crate::{Log, Mode, Named, Other};
    use bifold_model::Sample;
    use proptest::prelude::*;

    #[test]
    fn numbers_have_three_digits_and_no_trailing_zeros() {
        let shown: Vec<_> = [0.0, 12.0, 0.5, 2.34567, 123.4, 99.96, 1e-5, 2.5e9, -0.25, f64::NAN]
            .map(num)
            .into_iter()
            .collect();
        assert_eq!(shown, ["0", "12", "0.5", "2.35", "123", "100", "1.00e-5", "2.50e9", "-0.25", "NaN"]);
    }

    /// An interval of any kind, an empty one now and then.
    fn seen() -> impl Strategy<Value = Seen> {
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
            extra_cycles: e,
            there_cycles: t,
            back_cycles: b,
        }));
        let cycles = prop_oneof![Just(0.0), 0.0..1e13];
        (sample, cycles, 0.0..=1.0, other).prop_map(|(sample, cycles, load, other)| Seen {
            sample,
            cycles,
            load,
            other,
        })
    }

    proptest! {
        #[test]
        fn every_policy_decides_anything_twice_alike_explained_or_not(
            seen in prop::collection::vec(seen(), 0..60), start in prop::sample::select(&Mode::BOTH[..]),
        ) {
            for named in Named::all() {
                let (mut a, mut b) = (named.spec.policy(start), named.spec.policy(start));
                let (mut on, mut off) = (Log::on(), Log::off());
                let mut mode = start;
                for s in &seen {
                    let next = a.decide(&s.view(mode), &mut on);
                    prop_assert_eq!(next, b.decide(&s.view(mode), &mut off));
                    let said = on.take();
                    prop_assert!(said.ends_with('.') && !said.contains("NaN"), "{}: {}", named.name, said);
                    mode = next;
                }
            }
        }
    }
}
