// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values of the verbs' arguments: times, numbers of ranks, operations, generated noise.

use bifold_noise::sim::{Collective, MOST_RANKS, Noise};

/// Nanoseconds, from a number with a unit; a number without one counts nanoseconds.
pub fn time(text: &str) -> Result<f64, String> {
    let at = text.find(|c: char| c.is_ascii_alphabetic()).unwrap_or(text.len());
    let unit = match &text[at..] {
        "" | "ns" => 1.0,
        "us" => 1e3,
        "ms" => 1e6,
        "s" => 1e9,
        _ => return Err(NOT_A_TIME.into()),
    };
    match text[..at].parse::<f64>() {
        Ok(number) if (0.0..=1e12).contains(&(number * unit)) => Ok(number * unit),
        _ => Err(NOT_A_TIME.into()),
    }
}

const NOT_A_TIME: &str = "not a time from 0 to 1000 s such as 1500, 100us or 2.5ms";

/// A period: a time above 0, or a rate such as `10Hz` or `10kHz`.
fn period(text: &str) -> Result<f64, String> {
    let bad = || {
        format!(
            "`{}` is no period above 0 and up to 1000 s, such as 10ms, 10Hz or 10kHz",
            text.escape_debug()
        )
    };
    let ns = match (text.strip_suffix("kHz"), text.strip_suffix("Hz")) {
        (Some(number), _) => 1e6 / number.parse::<f64>().map_err(|_| bad())?,
        (None, Some(number)) => 1e9 / number.parse::<f64>().map_err(|_| bad())?,
        (None, None) => time(text).map_err(|_| bad())?,
    };
    if ns > 0.0 && ns <= 1e12 { Ok(ns) } else { Err(bad()) }
}

/// Interruptions in a second.
pub fn rate(text: &str) -> Result<f64, String> {
    match text.strip_suffix("Hz").unwrap_or(text).parse::<f64>() {
        // Once in 1000 s, which is the longest time, and more often than any device interrupts.
        Ok(hertz) if (1e-3..=1e7).contains(&hertz) => Ok(hertz),
        _ => Err("not a number of interrupts a second from 0.001 to 10000000".into()),
    }
}

/// Numbers of ranks: one, `2^12`, or every power of two from `2^4..2^20`.
pub fn ranks(text: &str) -> Result<Vec<usize>, String> {
    let list = match text.split_once("..") {
        None => vec![rank_number(text)?],
        Some((from, to)) => {
            let (from, to) = (rank_number(from)?, rank_number(to)?);
            let powers = (0..=MOST_RANKS.ilog2()).map(|k| 1_usize << k);
            powers.filter(|n| (from..=to).contains(n)).collect()
        }
    };
    if list.is_empty() { Err(not_ranks()) } else { Ok(list) }
}

fn rank_number(text: &str) -> Result<usize, String> {
    let n = match text.strip_prefix("2^") {
        Some(power) => power.parse().ok().and_then(|p| 1_usize.checked_shl(p)),
        None => text.parse().ok(),
    };
    n.filter(|n| (1..=MOST_RANKS).contains(n)).ok_or_else(not_ranks)
}

fn not_ranks() -> String {
    format!("not a number of ranks from 1 to {MOST_RANKS} such as 4096, 2^12 or 2^4..2^20")
}

/// An operation by its name.
pub fn collective(text: &str) -> Result<Collective, String> {
    Collective::ALL.into_iter().find(|c| c.name() == text).ok_or_else(|| {
        let names: Vec<&str> = Collective::ALL.map(Collective::name).into();
        format!("not one of {}", names.join(", "))
    })
}

/// Generated noise: `periodic:PERIOD:LENGTH` and so on.
pub fn noise(text: &str) -> Result<Noise, String> {
    let number = |t: &str| t.parse::<f64>().map_err(|_| format!("`{}` is no number", t.escape_debug()));
    let noise = match text.split(':').collect::<Vec<_>>()[..] {
        ["none"] => Noise::Silent,
        ["periodic", every, length] => Noise::Periodic { period: period(every)?, length: time(length)? },
        ["poisson", every, length] => Noise::Poisson { period: period(every)?, length: time(length)? },
        ["bernoulli", chance, length] => Noise::Bernoulli { chance: number(chance)?, length: time(length)? },
        ["exponential", mean] => Noise::Exponential { mean: time(mean)? },
        _ => {
            return Err(
                "not none, periodic:PERIOD:LENGTH, poisson:PERIOD:LENGTH, bernoulli:CHANCE:LENGTH or \
                        exponential:MEAN"
                    .into(),
            );
        }
    };
    noise.check().map(|()| noise).map_err(|e| e.to_string())
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn times_have_units() {
        for (text, ns) in
            [("1500", 1500.0), ("0", 0.0), ("100us", 1e5), ("2.5ms", 2.5e6), ("1s", 1e9), ("7ns", 7.0)]
        {
            assert_eq!(time(text), Ok(ns), "{text}");
        }
        for bad in ["", "-1", "nan", "inf", "1h", "1 ms", "2000s", "us", "1e3us", "\u{e9}"] {
            assert!(time(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn ranks_are_numbers_powers_and_ranges_of_powers() {
        assert_eq!(ranks("100"), Ok(vec![100]));
        assert_eq!(ranks("2^20"), Ok(vec![1 << 20]));
        assert_eq!(ranks("2^2..2^4"), Ok(vec![4, 8, 16]));
        assert_eq!(ranks("3..9"), Ok(vec![4, 8]));
        for bad in ["0", "-1", "2^21", "2^64", "2^99999999999", "1048577", "8..4", "5..7", "x", "2^..2^3", ""]
        {
            assert!(ranks(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn noise_is_checked_when_it_is_read() {
        let Ok(Noise::Periodic { period, length }) = noise("periodic:10kHz:2.5us") else { panic!() };
        assert_eq!((period, length), (1e5, 2500.0));
        let Ok(Noise::Poisson { period, .. }) = noise("poisson:10Hz:2.5ms") else { panic!() };
        assert_eq!(period, 1e8);
        for good in ["none", "bernoulli:0.001:1ms", "exponential:10us", "periodic:1ms:0"] {
            assert!(noise(good).is_ok(), "{good}");
        }
        for bad in [
            "",
            "periodic",
            "periodic:0:1",
            "periodic:0Hz:1",
            "periodic:-1Hz:1",
            "periodic:nanHz:1",
            "periodic:1ms:1ms",
            "bernoulli:2:1",
            "bernoulli:nan:1",
            "exponential:-1",
            "poisson:1Hz:1:1",
            "none:1",
        ] {
            assert!(noise(bad).is_err(), "{bad}");
        }
    }

    #[test]
    fn limits_of_rates_and_periods_are_named() {
        assert_eq!((rate("0.001"), rate("11000Hz")), (Ok(0.001), Ok(11_000.0)));
        for bad in ["1e-300", "0", "-1", "nan", "inf", "1e8"] {
            assert!(rate(bad).unwrap_err().contains("from 0.001 to 10000000"), "{bad}");
        }
        for bad in ["1e-300Hz", "1e-4Hz", "0", "2000s"] {
            let why = noise(&format!("periodic:{bad}:1us")).map(drop).unwrap_err();
            assert!(why.contains("above 0 and up to 1000 s"), "{why}");
        }
    }

    #[test]
    fn every_operation_has_a_name() {
        for one in Collective::ALL {
            assert_eq!(collective(one.name()), Ok(one));
        }
        assert!(collective("barrier").unwrap_err().contains("recursive-doubling"));
    }
}
