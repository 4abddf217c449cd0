// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Values that several verbs take: output formats, sizes, durations, paging modes. Each has one syntax.

use bifold_host::Mode;
use bifold_model::VmState;
use bifold_report::Format;
use bifold_trace::TableFormat;
use clap::builder::{PossibleValuesParser, TypedValueParser};
use std::ops::RangeInclusive;

/// Bytes in a MiB.
pub const MIB: u64 = 1 << 20;

/// The output formats that a verb has.
///
/// A verb matches on the formats that it names here; its last arm takes the table.
pub fn formats(of: &'static [Format]) -> impl TypedValueParser<Value = Format> {
    PossibleValuesParser::new(of.iter().map(|f| f.name())).map(|name| {
        Format::ALL.into_iter().find(|f| f.name() == name).expect("the parser takes names of formats only")
    })
}

/// The states that a VM may begin in.
pub fn vm_state(name: &str) -> Result<VmState, String> {
    let names = || VmState::ALL.map(VmState::name).join(", ");
    VmState::from_name(name).ok_or_else(|| format!("there is no such state: use {}", names()))
}

/// Formats of most verbs.
pub const TABLE_OR_JSON: &[Format] = &[Format::Table, Format::Json];

/// Bytes, from a number with a binary suffix: `512M`, `2GiB`, `4kB`. A number without a suffix counts
/// `bare` bytes.
pub fn size(text: &str, bare: u64) -> Result<u64, String> {
    bifold_host::keys::size(text, bare).map_err(|e| e.to_string())
}

/// A size within bounds, which the error names.
pub fn size_within(text: &str, bare: u64, bounds: RangeInclusive<u64>, names: &str) -> Result<u64, String> {
    let bytes = size(text, bare)?;
    if bounds.contains(&bytes) { Ok(bytes) } else { Err(format!("not {names}")) }
}

/// MiB of memory. A number without a suffix counts MiB, as in QEMU's `-m`.
pub fn memory_mib(text: &str) -> Result<u64, String> {
    let bounds = 64 * MIB..=(1 << 20) * MIB;
    size_within(text, MIB, bounds, "from 64 MiB to 1 TiB").map(|bytes| bytes / MIB)
}

/// Instructions with a decimal suffix.
pub fn instructions(text: &str) -> Option<u64> {
    let (digits, factor) = match text.as_bytes().last()? {
        b'k' | b'K' => (&text[..text.len() - 1], 1e3),
        b'M' | b'm' => (&text[..text.len() - 1], 1e6),
        b'G' | b'g' => (&text[..text.len() - 1], 1e9),
        _ => (text, 1.0),
    };
    if !digits.bytes().all(|b| b.is_ascii_digit() || b == b'.') {
        return None;
    }
    let n = (digits.parse::<f64>().ok()? * factor).round();
    (1.0..=1e15).contains(&n).then_some(n as u64)
}

/// Seconds above 0, with or without the suffix `s`.
pub fn seconds(text: &str) -> Result<f64, String> {
    match text.strip_suffix('s').unwrap_or(text).parse::<f64>() {
        // A year is more than any run, and within what a `Duration` and a cycle count hold.
        Ok(s) if s > 0.0 && s <= 3.2e7 => Ok(s),
        _ => Err("not a number of seconds above 0 and up to 32000000".into()),
    }
}

/// Seconds, written as `90s`, `10m` or `1h`.
pub fn duration(text: &str) -> Result<f64, String> {
    let units = [('h', 3600.0), ('m', 60.0)];
    let unit = units.into_iter().find_map(|(suffix, by)| Some((text.strip_suffix(suffix)?, by)));
    let (number, by) = unit.unwrap_or((text, 1.0));
    seconds(number).map(|s| s * by).map_err(|_| "not a time such as 90s, 10m or 1h".into())
}

/// Seconds of an interval of the model's timeline, which has a row for each in memory.
pub fn timeline_interval(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        s if s < SHORTEST_OF_TIMELINE => Err(format!("less than {SHORTEST_OF_TIMELINE} seconds")),
        s => Ok(s),
    }
}

/// Some thousand cycles.
const SHORTEST_OF_TIMELINE: f64 = 0.000_001;

/// Seconds between two looks at a host: looking takes milliseconds.
pub fn interval(text: &str) -> Result<f64, String> {
    match seconds(text)? {
        s if s < SHORTEST_INTERVAL => Err(format!("less than {SHORTEST_INTERVAL} seconds")),
        s => Ok(s),
    }
}

const SHORTEST_INTERVAL: f64 = 0.01;

/// Microseconds above 0, up to a second.
pub fn microseconds(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(us) if us > 0.0 && us <= 1e6 => Ok(us),
        _ => Err("not a number of microseconds above 0 and up to 1000000".into()),
    }
}

/// Seconds of a policy for one second of a run.
pub fn time_scale(text: &str) -> Result<f64, String> {
    match text.parse::<f64>() {
        Ok(n) if (1e-3..=1e6).contains(&n) => Ok(n),
        _ => Err("not a number from 0.001 to 1000000".into()),
    }
}

/// The format of a guest's page tables.
pub fn tables() -> impl TypedValueParser<Value = TableFormat> {
    PossibleValuesParser::new(TableFormat::ALL.map(TableFormat::name))
        .map(|name| TableFormat::from_name(&name).expect("the parser takes names of formats only"))
}

/// A paging mode that KVM can switch a VM to.
pub fn mode() -> impl TypedValueParser<Value = Mode> {
    PossibleValuesParser::new(Mode::BOTH.map(Mode::name))
        .map(|name| Mode::from_name(&name).expect("the parser takes names of modes only"))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn intervals_of_a_timeline_are_as_long_as_they_are_told_to_be() {
        assert_eq!(timeline_interval("0.01"), Ok(0.01));
        assert_eq!(timeline_interval("1e-6s"), Ok(1e-6));
        assert_eq!(timeline_interval("1e-12"), Err("less than 0.000001 seconds".into()));
    }

    #[test]
    fn sizes_have_binary_suffixes_and_a_unit_without_one() {
        for (text, bytes) in [
            ("2048", 2048 * MIB),
            ("7B", 7),
            ("4k", 4096),
            ("4KiB", 4096),
            ("512M", 512 * MIB),
            ("2G", 2048 * MIB),
            ("2GiB", 2048 * MIB),
            ("1TB", MIB << 20),
        ] {
            assert_eq!(size(text, MIB), Ok(bytes), "{text}");
        }
        assert_eq!(size("2048", 1), Ok(2048));
        for bad in ["", "M", "-1M", "1.5G", "2 G", "2GiBB", "2X", "99999999999999999999G", "99999999999G"] {
            assert!(size(bad, 1).is_err(), "{bad}");
        }
        assert!(size_within("16M", 1, 64 * MIB..=MIB << 20, "from 64 MiB to 1 TiB").is_err());
        assert!(size_within("2T", 1, 64 * MIB..=MIB << 20, "from 64 MiB to 1 TiB").is_err());
    }

    #[test]
    fn seconds_and_scales_are_finite_and_positive() {
        assert_eq!(seconds("0.5"), Ok(0.5));
        assert_eq!(seconds("0.5s"), Ok(0.5));
        assert_eq!(["90", "90s", "1.5m", "2h"].map(duration), [Ok(90.0), Ok(90.0), Ok(90.0), Ok(7200.0)]);
        assert!(["", "m", "-1m", "5d", "nanh"].iter().all(|bad| duration(bad).is_err()));
        for bad in ["0", "-1", "nan", "inf", "1e300", "1m", "1ss", "s", ""] {
            assert!(seconds(bad).unwrap_err().ends_with("up to 32000000"), "{bad}");
        }
        for bad in ["-0.1", "nan", "NaN", "inf", "-inf", "1e300", "2%", ""] {
            assert!(time_scale(bad).is_err(), "{bad}");
        }
    }
}
