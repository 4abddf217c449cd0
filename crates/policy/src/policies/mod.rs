// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One file per policy: what was published, its parameters, the decision.

pub mod always;
pub mod bae;
pub mod dsp;
pub mod hiebel;
pub mod kuang;
pub mod rpms;
pub mod svm;
pub mod toggle;
pub mod work_function;
pub mod zhang;

#[cfg(test)]
mod testing;

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
    use super::*;

    #[test]
    fn numbers_have_three_digits_and_no_trailing_zeros() {
        let shown: Vec<_> = [0.0, 12.0, 0.5, 2.34567, 123.4, 99.96, 1e-5, 2.5e9, -0.25, f64::NAN]
            .map(num)
            .into_iter()
            .collect();
        assert_eq!(shown, ["0", "12", "0.5", "2.35", "123", "100", "1.00e-5", "2.50e9", "-0.25", "NaN"]);
    }
}
