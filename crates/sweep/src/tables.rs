// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Results and timelines as rows: a column for each fact, counter and figure.
//!
//! The rows of several files can stand in one table, because each has the program, the profile and the seed.

mod columns;

use bifold_mmu::PageSize;
use bifold_model::{Config, Costs, Sample};
use bifold_policy::{Timeline, TimelineError};
use bifold_report::Guest;
use bifold_report::diff::{Counters, Made, ReadError, Side};
use bifold_table::Value;
use serde::Deserialize;
use std::path::Path;

/// A table.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Table {
    /// A row for each configuration of each run: counters of the whole run, and figures.
    Results,
    /// A row for each interval and configuration: counters.
    Intervals,
    /// A row for each place and configuration of a run with `--where`: costs.
    Places,
}

/// A file that has rows.
#[derive(Debug)]
pub enum Source {
    /// A result of `compare --format json`: as read, and its document.
    Result(Box<Side>, Vec<u8>),
    /// A timeline.
    Timeline(Box<Timeline>),
}

/// Why a file has no rows.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TableError {
    /// The file is no result.
    #[error(transparent)]
    Result(#[from] ReadError),
    /// The file is no timeline.
    #[error(transparent)]
    Timeline(#[from] TimelineError),
    /// The file has no rows for this table.
    #[error("{path} has no rows of the table {table}: {why}")]
    None {
        /// The file.
        path: String,
        /// The table's name.
        table: &'static str,
        /// Why, and what to do.
        why: &'static str,
    },
    /// The file has impossible values.
    #[error("{path}: {problem}")]
    Content {
        /// The file.
        path: String,
        /// What is wrong.
        problem: String,
    },
}

/// A row.
pub type TableRow = Vec<Value<'static>>;

impl Table {
    /// All tables.
    pub const ALL: [Table; 3] = [Table::Results, Table::Intervals, Table::Places];

    /// The table's name.
    pub fn name(self) -> &'static str {
        match self {
            Table::Results => "results",
            Table::Intervals => "intervals",
            Table::Places => "places",
        }
    }

    /// Name and version of the table's schema.
    pub fn schema(self) -> String {
        format!("bifold.{}/{}", self.name(), self.version())
    }

    /// Version of the table's schema.
    pub fn version(self) -> u32 {
        // A figure of results went away in the second version.
        if self == Table::Results { 2 } else { 1 }
    }

    /// The rows of a file.
    ///
    /// # Errors
    /// If the file has none, or has impossible values.
    pub fn rows(self, path: &str, source: &Source) -> Result<Vec<TableRow>, TableError> {
        let none = |why| Err(TableError::None { path: path.into(), table: self.name(), why });
        let rows = match (self, source) {
            (Table::Results, Source::Result(side, _)) => results(side),
            (Table::Intervals, Source::Result(side, bytes)) => intervals(path, side, bytes)?,
            (Table::Intervals, Source::Timeline(timeline)) => of_timeline(timeline),
            (Table::Places, Source::Result(side, bytes)) => places(path, side, bytes)?,
            (_, Source::Timeline(_)) => return none("a timeline has intervals alone: use --table intervals"),
        };
        match rows.is_empty() {
            true if self == Table::Places => none("the run was made without --where"),
            true => none("a baseline has none: use a result of `compare --format json`"),
            false => Ok(rows),
        }
    }
}

/// A text, or unknown.
fn text(text: Option<impl Into<String>>) -> Value<'static> {
    text.map_or(Value::Unknown, |t| Value::Text(t.into().into()))
}

fn size(page: PageSize) -> &'static str {
    match page {
        PageSize::Size4K => "4K",
        PageSize::Size2M => "2M",
        PageSize::Size1G => "1G",
    }
}

fn first(made: &Made, seed: bool, run: usize, config: Config) -> TableRow {
    vec![
        text(Some(&made.program)),
        text(Some(&made.profile)),
        seed.then_some(made.seed).into(),
        Value::Count(run as u64 + 1),
        text(Some(config.name())),
        text(Some(config.mode.name())),
        text(config.mode.has_sizes().then(|| size(config.host_page))),
        Value::Count(made.frequency_hz),
    ]
}

fn made(side: &Side) -> TableRow {
    let made = side.made();
    let guest = made.guest.as_ref();
    let of = |get: fn(&Guest) -> Option<&String>| text(guest.and_then(get));
    let kpti = guest.and_then(|g| g.kpti);
    vec![
        text(Some(&made.bifold)),
        text(Some(made.overrides.join(" "))),
        text(made.kvm.as_ref()),
        text(Some(&made.config_hash)),
        text(Some(&made.input_hash)),
        Value::Number(made.base_cpi),
        of(|g| g.timing.as_ref()),
        guest.map(|g| u64::from(g.vcpus)).into(),
        guest.and_then(|g| g.nodes).map(u64::from).into(),
        text(guest.map(|g| g.tables.name())),
        text(kpti.map(|on| if on { "on" } else { "off" })),
        of(|g| g.thp.as_ref()),
        guest.and_then(|g| g.hugetlb_mib).into(),
        guest.and_then(|g| g.memory_mib).into(),
        of(|g| g.root.as_ref()),
        of(|g| g.kernel.as_ref()),
        of(|g| g.qemu.as_ref()),
        of(|g| g.region.as_ref()),
        text(side.partial().map(|p| p.describe())),
        Value::Count(side.failed_checks()),
        text(Some(made.vm.name())),
    ]
}

fn results(side: &Side) -> Vec<TableRow> {
    let how = made(side);
    let known = |name| !side.unknown().contains(&name);
    let mut rows = Vec::new();
    for (run, totals) in side.totals().enumerate() {
        for (config, sample, figures) in totals {
            let mut row = first(side.made(), true, run, config);
            row.extend(how.iter().cloned());
            let counters = Sample::COUNTERS.iter().zip(sample.values());
            row.extend(counters.map(|(c, n)| Value::from(known(c.name).then_some(n))));
            row.extend(figures.values().map(|v| Value::from(Some(v))));
            rows.push(row);
        }
    }
    rows
}

/// The parts of a document that [`Side`] leaves out. One run, or the runs of several.
#[derive(Deserialize)]
struct Document {
    outcome: Option<Outcome>,
    #[serde(rename = "where")]
    places: Option<Where>,
    #[serde(default)]
    runs: Vec<Document>,
}

#[derive(Deserialize)]
struct Outcome {
    interval_starts: Vec<u64>,
    configs: Vec<OfConfig>,
}

#[derive(Deserialize)]
struct OfConfig {
    #[serde(default)]
    intervals: Vec<Counters>,
}

#[derive(Deserialize)]
struct Where {
    configs: Vec<String>,
    rows: Vec<Place>,
    cause_rows: Vec<Place>,
}

#[derive(Deserialize)]
struct Place {
    process: String,
    binary: String,
    function: String,
    mapping: String,
    costs: Vec<Costs>,
}

/// A row for each interval and configuration of a run, in the order of time.
fn intervals(path: &str, side: &Side, bytes: &[u8]) -> Result<Vec<TableRow>, TableError> {
    let document = document(path, bytes)?;
    let bodies = match document.outcome {
        Some(outcome) => vec![outcome],
        None => document.runs.into_iter().filter_map(|r| r.outcome).collect(),
    };
    let mut rows = Vec::new();
    for (run, (totals, body)) in side.totals().zip(bodies).enumerate() {
        let configs: Vec<Config> = totals.map(|(config, ..)| config).collect();
        let whole = |c: &OfConfig| c.intervals.len() == body.interval_starts.len();
        if configs.len() != body.configs.len() || !body.configs.iter().all(whole) {
            let problem = format!("the intervals of run {} do not fit its configurations", run + 1);
            return Err(TableError::Content { path: path.into(), problem });
        }
        for (i, start) in body.interval_starts.iter().enumerate() {
            for (config, counted) in configs.iter().zip(&body.configs) {
                let mut row = first(side.made(), true, run, *config);
                row.extend([Value::Count(i as u64), Value::Count(*start)]);
                row.extend(counted.intervals[i].0.iter().map(|n| Value::from(*n)));
                rows.push(row);
            }
        }
    }
    Ok(rows)
}

fn of_timeline(timeline: &Timeline) -> Vec<TableRow> {
    let about = &timeline.about;
    let made = Made {
        program: about.program.clone(),
        profile: about.profile.clone(),
        frequency_hz: about.frequency_hz,
        ..Made::default()
    };
    let mut rows = Vec::new();
    for pages in &timeline.pages {
        for (mode, run) in pages.modes.iter() {
            let config = Config::new(mode, pages.host_page);
            for (i, sample) in run.samples.iter().enumerate() {
                let mut row = first(&made, false, 0, config);
                let start = (i as u64).saturating_mul(about.interval_cycles);
                row.extend([Value::Count(i as u64), Value::Count(start)]);
                row.extend(sample.values().map(Value::Count));
                rows.push(row);
            }
        }
    }
    rows
}

/// A row for each view, place and configuration.
fn places(path: &str, side: &Side, bytes: &[u8]) -> Result<Vec<TableRow>, TableError> {
    let Some(places) = document(path, bytes)?.places else { return Ok(Vec::new()) };
    let configs: Vec<Config> =
        side.totals().next().into_iter().flatten().map(|(config, ..)| config).collect();
    let bad = || TableError::Content {
        path: path.into(),
        problem: "the costs under `where` are not those of its configurations".into(),
    };
    let named: Option<Vec<Config>> =
        places.configs.iter().map(|name| configs.iter().find(|c| c.name() == *name).copied()).collect();
    let named = named.ok_or_else(bad)?;
    let mut rows = Vec::new();
    let views = [("code", &places.rows), ("cause", &places.cause_rows)];
    for (view, place) in views.into_iter().flat_map(|(view, all)| all.iter().map(move |p| (view, p))) {
        if place.costs.len() != named.len() {
            return Err(bad());
        }
        for (config, c) in named.iter().zip(&place.costs) {
            let mut row = first(side.made(), true, 0, *config);
            let names = [view, &place.process, &place.binary, &place.function, &place.mapping];
            row.extend(names.map(|name| text(Some(name))));
            let counts = [c.tlb_misses, c.walk_cycles, c.walk_hidden_cycles, c.exits, c.vmm_cycles];
            row.extend(counts.map(Value::Count));
            row.push(Value::Number(c.data_wait_cycles as f64));
            rows.push(row);
        }
    }
    Ok(rows)
}

fn document(path: &str, bytes: &[u8]) -> Result<Document, TableError> {
    let bad = |e: serde_json::Error| TableError::Content { path: path.into(), problem: e.to_string() };
    serde_json::from_slice(bytes).map_err(bad)
}

impl Source {
    /// A result's or timeline's bytes; `path` is for messages.
    ///
    /// # Errors
    /// If the bytes are neither.
    pub fn of(path: &str, bytes: Vec<u8>) -> Result<Source, TableError> {
        // The magic number of zstd, by which timelines are compressed.
        if bytes.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
            return Ok(Source::Timeline(Timeline::from_bytes(&bytes, Path::new(path))?.into()));
        }
        Ok(Source::Result(Side::from_json(path, &bytes)?.into(), bytes))
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::collections::BTreeSet;

    #[test]
    fn a_table_has_each_column_once_with_its_meaning() {
        for table in Table::ALL {
            let columns = table.columns();
            let names: BTreeSet<_> = columns.iter().map(|c| &c.name).collect();
            assert_eq!(names.len(), columns.len(), "{}", table.name());
            assert!(columns.iter().all(|c| !c.doc.is_empty()), "{}", table.name());
        }
    }

    #[test]
    fn a_timeline_has_a_row_for_each_interval_and_mode() {
        let path = concat!(env!("CARGO_MANIFEST_DIR"), "/../../evidence/timelines/bzip2.timeline");
        let source = Source::of(path, std::fs::read(path).unwrap()).unwrap();
        let Source::Timeline(timeline) = &source else { panic!("a timeline is one") };
        let rows = Table::Intervals.rows(path, &source).unwrap();
        let expected: usize =
            timeline.pages.iter().flat_map(|p| p.modes.iter()).map(|(_, r)| r.samples.len()).sum();
        assert_eq!(rows.len(), expected);
        let columns = Table::Intervals.columns();
        assert!(rows.iter().all(|r| r.len() == columns.len()));
        let at = columns.iter().position(|c| c.name == "walk_cycles").unwrap();
        let sum: u64 = rows.iter().map(|r| if let Value::Count(n) = r[at] { n } else { 0 }).sum();
        let runs = timeline.pages.iter().flat_map(|p| p.modes.iter());
        assert_eq!(sum, runs.flat_map(|(_, r)| &r.samples).map(|s| s.walk_cycles).sum::<u64>());
        let e = Table::Results.rows(path, &source).unwrap_err().to_string();
        assert!(e.contains("use --table intervals"), "{e}");
    }
}
