// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The outputs of `bifold reclaim show`: table, JSON and CSV.

use super::needs::{KINDS, Needs, Row};
use super::{FRAME, LEAST};
use bifold_reclaim::{MemoryUse, ReferenceKind};
use bifold_report::{Comparison, grouped, seconds, terminal, text_table, wrapped};
use serde::Serialize;
use std::fmt::Write as _;

/// Name and version of the JSON document.
const SCHEMA: &str = "bifold.memory-use/1";
/// The most columns of the line over time.
const COLUMNS: usize = 60;

/// A size with three digits, for people.
fn size(bytes: u64) -> String {
    let mib = bytes as f64 / (1u64 << 20) as f64;
    match mib {
        m if m >= 10_240.0 => format!("{:.1} GiB", m / 1024.0),
        m if m >= 99.5 => format!("{m:.0} MiB"),
        m if m >= 9.95 => format!("{m:.1} MiB"),
        m => format!("{m:.2} MiB"),
    }
}

fn line(label: &str, text: &str) -> String {
    wrapped(&format!("{label:<8} {text}"), 9)
}

/// The table: the run, a row for each size, and the working set over time.
pub fn table(comparison: &Comparison, needs: &Needs) -> String {
    [comparison.render_head() + &line("uses", &uses(needs)), sizes(needs), over_time(needs)]
        .into_iter()
        .filter(|part| !part.is_empty())
        .collect::<Vec<_>>()
        .join("\n")
}

fn uses(needs: &Needs) -> String {
    let all: u64 = needs.references.iter().sum();
    let share = |kind: ReferenceKind| 100.0 * needs.references[kind as usize] as f64 / all.max(1) as f64;
    let kinds: Vec<String> = ReferenceKind::ALL
        .into_iter()
        .filter(|&kind| needs.references[kind as usize] > 0)
        .map(|kind| format!("{} {:.2} %", kind.name(), share(kind)))
        .collect();
    let first: u64 = needs.first.iter().sum();
    let mut text = format!(
        "{} of pages: {}; {} were first uses; {} of {} are in use at the end",
        grouped(all),
        kinds.join(", "),
        grouped(first),
        size(needs.held * FRAME),
        size(needs.guest)
    );
    if needs.outside > 0 {
        let _ = write!(text, "; {} outside of memory are left out", grouped(needs.outside));
    }
    text
}

fn sizes(needs: &Needs) -> String {
    let shown: Vec<&Row> = needs.rows.iter().filter(|row| row.shown).collect();
    let kinds: Vec<ReferenceKind> =
        ReferenceKind::ALL.into_iter().filter(|&kind| needs.references[kind as usize] > 0).collect();
    let head = ["\nmemory", "refaults\nLRU", "of use\n%", "waits\ns"].map(String::from).into_iter();
    let head = head.chain(kinds.iter().map(|kind| format!("{}\n%", kind.name())));
    let head = head.chain(["fewest\npossible".to_string()]).collect();
    let of_use = 100.0 / needs.references.iter().sum::<u64>().max(1) as f64;
    let row = |row: &&Row| {
        let all = row.all();
        let mut cells = vec![
            size(row.bytes()),
            grouped(all),
            format!("{:.4}", all as f64 * of_use),
            format!("{:.2}", all as f64 * needs.refault_s),
        ];
        let share = |kind: &ReferenceKind| 100.0 * row.refaults[*kind as usize] as f64 / all.max(1) as f64;
        cells.extend(
            kinds.iter().map(|kind| if all > 0 { format!("{:.0}", share(kind)) } else { "-".into() }),
        );
        cells.push(row.fewest.map_or("-".into(), grouped));
        cells
    };
    text_table(head, shown.iter().map(row).collect())
}

/// The working set of each interval, or of several together where there are more than columns.
fn over_time(needs: &Needs) -> String {
    let sets: Vec<(f64, u64)> = needs
        .intervals
        .iter()
        .map(|i| (i.instructions as f64 * needs.seconds_per_instruction, i.frames * FRAME))
        .collect();
    let Some(&(_, most)) = sets.iter().max_by_key(|set| set.1) else { return String::new() };
    let longest = sets.iter().map(|set| set.0).fold(0.0, f64::max);
    let mean =
        sets.iter().map(|set| set.0 * set.1 as f64).sum::<f64>() / needs.seconds().max(f64::MIN_POSITIVE);
    let dirty = needs.intervals.iter().map(|i| i.dirty * FRAME).max().unwrap_or(0);
    let mut text = line(
        "in use",
        &format!(
            "within {}: {} on average, {} at most; {} written at most",
            seconds(longest),
            size(mean as u64),
            size(most),
            size(dirty)
        ),
    );
    if sets.len() > 1 && most > 0 && !terminal::ascii() {
        let each = sets.len().div_ceil(COLUMNS);
        let bar = |sets: &[(f64, u64)]| {
            let top = sets.iter().map(|set| set.1).max().unwrap_or(0);
            let eighths = (top * 8).div_ceil(most).clamp(1, 8);
            char::from_u32(0x2580 + eighths as u32).expect("a block of eighths")
        };
        let bars: String = sets.chunks(each).map(bar).collect();
        text += &line("", &format!("{bars} {} over {}", size(most), seconds(needs.seconds())));
    }
    text
}

#[derive(Serialize)]
struct Document<'a> {
    schema: &'static str,
    bifold: &'a str,
    program: String,
    input: &'a bifold_report::Input,
    guest: &'a Option<bifold_report::Guest>,
    partial: Option<bifold_report::Partial>,
    profile: String,
    input_hash: &'a str,
    guest_bytes: u64,
    in_use_bytes: u64,
    /// The smallest memory without refaults.
    enough_bytes: u64,
    seconds: f64,
    refault_seconds: f64,
    outside: u64,
    references: ByKind,
    first: ByKind,
    sizes: Vec<Size>,
    intervals: Vec<Interval>,
}

#[derive(Serialize)]
struct ByKind {
    data: u64,
    code: u64,
    walk: u64,
    device: u64,
}

impl From<[u64; KINDS]> for ByKind {
    fn from([data, code, walk, device]: [u64; KINDS]) -> ByKind {
        ByKind { data, code, walk, device }
    }
}

#[derive(Serialize)]
struct Size {
    bytes: u64,
    refaults: u64,
    refaults_by_kind: ByKind,
    fewest_refaults: Option<u64>,
}

#[derive(Serialize)]
struct Interval {
    seconds: f64,
    instructions: u64,
    working_set_bytes: u64,
    written_bytes: u64,
    references: u64,
    first: u64,
}

/// One document.
pub fn json(comparison: &Comparison, needs: &Needs) -> anyhow::Result<String> {
    let size = |row: &Row| Size {
        bytes: row.bytes(),
        refaults: row.all(),
        refaults_by_kind: row.refaults.into(),
        fewest_refaults: row.fewest,
    };
    let interval = |i: &bifold_reclaim::IntervalUse| Interval {
        seconds: i.instructions as f64 * needs.seconds_per_instruction,
        instructions: i.instructions,
        working_set_bytes: i.frames * FRAME,
        written_bytes: i.dirty * FRAME,
        references: i.references,
        first: i.first,
    };
    let meta = &comparison.meta;
    let document = Document {
        schema: SCHEMA,
        bifold: &meta.bifold,
        program: meta.what(),
        input: &meta.input,
        guest: &meta.guest,
        partial: meta.partial,
        profile: meta.profile_words(),
        input_hash: &comparison.outcome.input_hash,
        guest_bytes: needs.guest,
        in_use_bytes: needs.held * FRAME,
        enough_bytes: needs.enough * FRAME,
        seconds: needs.seconds(),
        refault_seconds: needs.refault_s,
        outside: needs.outside,
        references: needs.references.into(),
        first: needs.first.into(),
        sizes: needs.rows.iter().map(size).collect(),
        intervals: needs.intervals.iter().map(interval).collect(),
    };
    Ok(serde_json::to_string_pretty(&document)? + "\n")
}

/// Misses at every size up to the one that is enough, first uses included.
pub fn csv(uses: &MemoryUse) -> String {
    let curves = ReferenceKind::ALL.map(|kind| uses.curve_of(kind));
    let mut text = String::from("frames");
    ReferenceKind::ALL.iter().for_each(|kind| text += &format!(",{}_misses", kind.name()));
    text.push('\n');
    for frames in LEAST..=uses.curve().enough() {
        let _ = write!(text, "{frames}");
        curves.iter().for_each(|curve| _ = write!(text, ",{}", curve.misses(frames)));
        text.push('\n');
    }
    text
}
