// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Words and lines of the table: sizes, siblings of cores, classes of PCI devices, folded lines.

use bifold_host::topology::{Cpu, Device, NumberSet, Topology};
use std::collections::{BTreeMap, BTreeSet};

/// Columns of a line.
const WIDTH: usize = 80;

/// A size in the largest binary unit in which it is at least 1, with up to one decimal.
pub fn size(bytes: u64) -> String {
    const UNITS: [&str; 5] = ["B", "KiB", "MiB", "GiB", "TiB"];
    let unit = (1..UNITS.len()).rev().find(|u| bytes >> (10 * u) > 0).unwrap_or(0);
    let tenths = (u128::from(bytes) * 10 + (1 << (10 * unit) >> 1)) >> (10 * unit);
    match tenths % 10 {
        0 => format!("{} {}", tenths / 10, UNITS[unit]),
        tenth => format!("{}.{tenth} {}", tenths / 10, UNITS[unit]),
    }
}

/// Parts after a label, separated by commas; further lines are indented to the first part. A part is split
/// only if it is longer than a line.
pub fn folded(indent: usize, label: &str, parts: &[String]) -> String {
    let start = indent + LABEL;
    let mut out = format!("{:indent$}{label:<LABEL$}", "");
    let mut column = start;
    for (i, part) in parts.iter().enumerate() {
        let comma = if i + 1 < parts.len() { "," } else { "" };
        for (j, word) in broken(&format!("{part}{comma}"), WIDTH - start).into_iter().enumerate() {
            let length = word.chars().count();
            if column > start && (j > 0 || column + 1 + length > WIDTH) {
                out += &format!("\n{:start$}", "");
                column = start;
            }
            if column > start {
                out.push(' ');
                column += 1;
            }
            out += &word;
            column += length;
        }
    }
    out + "\n"
}

/// Columns of a label.
const LABEL: usize = 10;

/// A text in pieces of at most `width` columns: the end of a piece is a comma or a blank, if there is one.
fn broken(text: &str, width: usize) -> Vec<String> {
    let mut pieces = Vec::new();
    let mut rest: Vec<char> = text.chars().collect();
    while rest.len() > width {
        let at = rest[..width].iter().rposition(|c| [',', ' '].contains(c)).map_or(width, |at| at + 1);
        let piece: String = rest.drain(..at).collect();
        pieces.push(piece.trim_end().to_owned());
    }
    pieces.push(rest.into_iter().collect());
    pieces
}

/// The cores of these CPUs, as lists of first, second, ... threads: `0-7 16-23` if CPU n and CPU n + 16 share
/// a core. Cores that do not fit lists in ascending order stand alone: `0,5 1,4`. No text for cores of one
/// thread.
pub fn siblings(topology: &Topology, cpus: &NumberSet) -> Vec<String> {
    let known = cpus.iter().filter_map(|n| topology.cpus.get(&n));
    let cores: BTreeSet<&NumberSet> = known.map(|c| &c.threads).filter(|t| t.len() > 1).collect();
    let mut by_length: BTreeMap<usize, Vec<Vec<u32>>> = BTreeMap::new();
    for core in cores {
        by_length.entry(core.len()).or_default().push(core.iter().collect());
    }
    by_length.into_values().flat_map(|cores| in_lists(&cores)).collect()
}

fn in_lists(cores: &[Vec<u32>]) -> Vec<String> {
    let nth = |n: usize| cores.iter().map(move |core| core[n]);
    let threads = cores.first().map_or(0, Vec::len);
    if !(0..threads).all(|n| nth(n).is_sorted()) {
        return cores.iter().map(|core| joined(core.iter())).collect();
    }
    let lists: Vec<String> = (0..threads).map(|n| NumberSet::from_iter(nth(n)).to_string()).collect();
    let order = if cores.len() > 1 { ", in this order" } else { "" };
    vec![lists.join(" with ") + order]
}

fn joined<'a>(numbers: impl Iterator<Item = &'a u32>) -> String {
    numbers.map(u32::to_string).collect::<Vec<_>>().join(",")
}

/// Packages, dies, cores and threads.
pub fn counts(topology: &Topology) -> [usize; 3] {
    let online = || topology.cpus.iter().filter(|(_, c)| c.online);
    let ids = |of: fn(&Cpu) -> (Option<i32>, Option<i32>)| {
        online().map(|(_, c)| of(c)).collect::<BTreeSet<_>>().len()
    };
    let cores: BTreeSet<&NumberSet> = online().map(|(_, c)| &c.threads).collect();
    [ids(|c| (c.package, None)), ids(|c| (c.package, c.die)), cores.len()]
}

/// A number with its noun.
pub fn counted(n: usize, one: &str, many: &str) -> String {
    format!("{n} {}", if n == 1 { one } else { many })
}

/// What a device is, by the class code's base and subclass (PCI Code and ID Assignment). `None` for bridges,
/// controllers of the board and the like, which no guest asks for.
pub fn kind(device: &Device) -> Option<&'static str> {
    match (device.class >> 16, device.class >> 8 & 0xff) {
        (0x01, 0x08) => Some("NVMe"),
        (0x01, _) => Some("storage"),
        (0x02, 0x00) => Some("Ethernet"),
        (0x02, 0x07) | (0x0c, 0x06) => Some("InfiniBand"),
        (0x02, _) => Some("network"),
        (0x03, _) => Some("display"),
        (0x0b, 0x40) => Some("coprocessor"),
        (0x12, _) => Some("accelerator"),
        _ if !device.names.is_empty() => Some("device"),
        _ => None,
    }
}
