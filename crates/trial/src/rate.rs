// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Parses ratios such as `1/32`: write rates, and the scale of a run.

use serde::{Deserialize, Deserializer};

/// A ratio of two whole numbers, written `1/32`, `0` or `1`.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Rate {
    /// Numerator.
    pub of: u32,
    /// Denominator, not 0.
    pub parts: u32,
}

impl Rate {
    /// Parses `1/32`, `2` or `0.25`.
    pub fn parse(text: &str) -> Option<Rate> {
        let text = text.trim();
        if let Some((whole, decimals)) = text.split_once('.') {
            let parts = 10u32.checked_pow(u32::try_from(decimals.len()).ok()?)?;
            let digits = decimals.bytes().all(|b| b.is_ascii_digit()) && !decimals.is_empty();
            let of = whole.parse::<u32>().ok()?.checked_mul(parts)?.checked_add(decimals.parse().ok()?)?;
            return digits.then_some(Rate { of, parts });
        }
        let (of, parts) = text.split_once('/').unwrap_or((text, "1"));
        let rate = Rate { of: of.trim().parse().ok()?, parts: parts.trim().parse().ok()? };
        (rate.parts > 0).then_some(rate)
    }

    /// The ratio as a number.
    pub fn value(self) -> f64 {
        f64::from(self.of) / f64::from(self.parts)
    }
}

impl std::fmt::Display for Rate {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        match self.parts {
            1 => write!(f, "{}", self.of),
            parts => write!(f, "{}/{parts}", self.of),
        }
    }
}

impl<'de> Deserialize<'de> for Rate {
    fn deserialize<D: Deserializer<'de>>(d: D) -> Result<Rate, D::Error> {
        let text = String::deserialize(d)?;
        Rate::parse(&text).ok_or_else(|| {
            serde::de::Error::custom(format!("`{}` is no ratio such as \"1/32\"", text.escape_debug()))
        })
    }
}

/// The factor by which a run's memory and times are smaller than in the file.
pub type Scale = Rate;
