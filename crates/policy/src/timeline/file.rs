// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The file format of timelines: one JSON document, compressed by zstd.
//!
//! Counters are columns over the intervals, and columns without a count are left out, so that 500 intervals
//! take about 50 KB. `zstdcat FILE | python3 -m json.tool` shows a file.

use super::{About, Runs, StaticRun, SwitchCosts, Timeline};
use crate::{Mode, PerMode};
use bifold_base::bounded;
use bifold_mmu::PageSize;
use bifold_model::ages::{BUCKETS, Reuse};
use bifold_model::{Sample, SwitchedOutcome};
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::collections::BTreeMap;
use std::io::Read as _;
use std::path::{Path, PathBuf};

/// Name and version of the format.
pub const SCHEMA: &str = "bifold.timeline/1";
/// Most bytes of a document. A file that claims more is damaged.
const MOST_BYTES: u64 = 1 << 30;
const LEVEL: i32 = 12;
/// Largest value of a counter over a whole run: four weeks of cycles at 4 GHz. Sums of a few such counters do
/// not overflow.
const MOST: u64 = 1 << 53;
/// Largest cost of a switch or exit, in cycles.
const MOST_COST: u64 = 1 << 32;

/// Why a timeline cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TimelineError {
    /// The file cannot be read.
    #[error("cannot read timeline {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not a timeline, or a damaged one.
    #[error("{} is no timeline: {problem} (`bifold compare --timeline FILE` writes one)", path.display())]
    NotATimeline {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The file has another version.
    #[error("{} is of version {found}, this Bifold reads {SCHEMA}: capture it again", path.display())]
    Version {
        /// The file.
        path: PathBuf,
        /// The file's version.
        found: String,
    },
    /// A value is impossible.
    #[error("timeline {}: {problem}", path.display())]
    Content {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
}

/// The error for a value that is impossible, of the file that is read.
type Impossible<'a> = dyn Fn(String) -> TimelineError + 'a;

#[derive(Serialize, Deserialize)]
struct Versioned {
    schema: String,
}

/// What `bifold compare --timeline FILE` writes, compressed by zstd: what a program costs in each paging
/// mode, interval by interval, for `bifold policy`.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Name and version of this schema.
    schema: String,
    /// The program and the machine.
    about: About,
    /// Costs of a switch and of what follows from one.
    costs: SwitchCosts,
    /// The runs over host pages of each size.
    pairs: Vec<PageColumns>,
    /// VMs that switched during the capture; absent if there were none.
    #[serde(default, skip_serializing_if = "Vec::is_empty")]
    switched: Vec<SwitchedColumns>,
}

/// The runs of VMs that stay in one mode, over host pages of one size. A run has the name of its mode.
#[derive(Serialize, Deserialize, JsonSchema)]
struct PageColumns {
    /// Size of the host's pages.
    host_page: PageSize,
    #[serde(flatten, with = "by_name")]
    #[schemars(with = "BTreeMap<Mode, RunColumns>")]
    modes: PerMode<RunColumns>,
}

/// Values under the names of their modes.
mod by_name {
    use super::*;
    use serde::{Deserializer, Serializer};

    pub fn serialize<S: Serializer>(modes: &PerMode<RunColumns>, to: S) -> Result<S::Ok, S::Error> {
        to.collect_map(modes.iter())
    }

    pub fn deserialize<'a, D: Deserializer<'a>>(from: D) -> Result<PerMode<RunColumns>, D::Error> {
        BTreeMap::<Mode, RunColumns>::deserialize(from).map(|modes| modes.into_iter().collect())
    }
}

/// The run of a VM that stays in one mode.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct RunColumns {
    /// What the run cost in each interval.
    counters: Columns,
    /// Table entries that an interval used and that existed before, per interval and age. The four numbers
    /// are: the bucket of the intervals since the last use, that of the intervals since the entries were
    /// made, the exits that would fill the entries again, and the shadow pages to make again.
    reuse: Vec<Vec<[u32; 4]>>,
}

/// A VM that switched during the capture.
#[derive(Serialize, Deserialize, JsonSchema)]
struct SwitchedColumns {
    #[serde(flatten)]
    switching: bifold_model::Switching,
    /// The mode of every interval.
    modes: Vec<bifold_model::Paging>,
    /// What the VM cost in each interval; a switch counts in the next interval.
    counters: Columns,
}

/// Counters over the intervals.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
struct Columns {
    /// Number of intervals.
    intervals: usize,
    /// Values of each counter, one per interval; counters that are 0 everywhere are absent.
    values: BTreeMap<String, Vec<u64>>,
}

impl Columns {
    fn of(samples: &[Sample]) -> Columns {
        let column = |i: usize| -> Vec<u64> { samples.iter().map(|s| s.values()[i]).collect() };
        let values = Sample::COUNTERS.iter().enumerate().map(|(i, c)| (c.name.to_string(), column(i)));
        let values = values.filter(|(_, v)| v.iter().any(|n| *n != 0)).collect();
        Columns { intervals: samples.len(), values }
    }

    fn samples(self, no: &Impossible) -> Result<Vec<Sample>, TimelineError> {
        // Checked before memory is reserved: a number that no column confirms is damage.
        if let Some((name, column)) = self.values.iter().find(|(_, c)| c.len() != self.intervals) {
            return Err(no(format!("{name} has {} values for {} intervals", column.len(), self.intervals)));
        }
        if self.values.is_empty() && self.intervals != 0 {
            return Err(no(format!("{} intervals without a count", self.intervals)));
        }
        let mut rows = vec![[0; Sample::COUNTERS.len()]; self.intervals];
        for (name, column) in self.values {
            let i = Sample::COUNTERS.iter().position(|c| c.name == name);
            let i = i.ok_or_else(|| no(format!("unknown counter {name}")))?;
            if let Some(v) = column.iter().find(|v| **v > MOST) {
                return Err(no(format!("{name} = {v} in an interval")));
            }
            // A policy sees sums over the intervals since its last decision.
            if column.iter().try_fold(0u64, |sum, v| sum.checked_add(*v)).is_none_or(|sum| sum > MOST) {
                return Err(no(format!("{name} is above {MOST} over all intervals")));
            }
            rows.iter_mut().zip(column).for_each(|(row, v)| row[i] = v);
        }
        Ok(rows.into_iter().map(Sample::from_values).collect())
    }
}

impl RunColumns {
    fn of(run: &StaticRun) -> RunColumns {
        let cell = |r: &Reuse| [u32::from(r.last), u32::from(r.made), r.exits, r.tables];
        RunColumns {
            counters: Columns::of(&run.samples),
            reuse: run.reuse.iter().map(|cells| cells.iter().map(cell).collect()).collect(),
        }
    }

    fn run(self, no: &Impossible) -> Result<StaticRun, TimelineError> {
        let samples = self.counters.samples(no)?;
        if self.reuse.len() != samples.len() {
            return Err(no(format!("ages of {} intervals, counts of {}", self.reuse.len(), samples.len())));
        }
        let cell = |[last, made, exits, tables]: [u32; 4]| match (u8::try_from(last), u8::try_from(made)) {
            (Ok(last), Ok(made)) if last < BUCKETS && made < BUCKETS => {
                Ok(Reuse { last, made, exits, tables })
            }
            _ => Err(no(format!("an age of bucket {last} or {made}"))),
        };
        let cells = |row: Vec<[u32; 4]>| row.into_iter().map(cell).collect::<Result<Vec<_>, _>>();
        Ok(StaticRun { samples, reuse: self.reuse.into_iter().map(cells).collect::<Result<_, _>>()? })
    }
}

impl Timeline {
    /// The file's bytes.
    pub fn to_bytes(&self) -> Vec<u8> {
        let pages = self.pages.iter().map(|p| PageColumns {
            host_page: p.host_page,
            modes: p.modes.map(|_, run| RunColumns::of(run)),
        });
        let switched = self.switched.iter().map(|s| SwitchedColumns {
            switching: s.switching.clone(),
            modes: s.modes.clone(),
            counters: Columns::of(&s.intervals),
        });
        let document = Document {
            schema: SCHEMA.into(),
            about: self.about.clone(),
            costs: self.costs,
            pairs: pages.collect(),
            switched: switched.collect(),
        };
        let json = serde_json::to_vec(&document).expect("maps have strings as keys");
        zstd::encode_all(&json[..], LEVEL).expect("memory takes what is written")
    }

    /// Parses a file's bytes; errors name `path`.
    pub fn from_bytes(bytes: &[u8], path: &Path) -> Result<Timeline, TimelineError> {
        let no = |problem: String| TimelineError::NotATimeline { path: path.into(), problem };
        let mut json = Vec::new();
        let decoder = zstd::Decoder::new(bytes).map_err(|e| no(e.to_string()))?;
        decoder.take(MOST_BYTES).read_to_end(&mut json).map_err(|_| {
            no(if bytes.is_empty() {
                "it is empty".into()
            } else {
                "it is not compressed as one is, or cut short".into()
            })
        })?;
        let version: Versioned = serde_json::from_slice(&json).map_err(|e| no(e.to_string()))?;
        if version.schema != SCHEMA {
            return Err(TimelineError::Version { path: path.into(), found: version.schema });
        }
        let document: Document = serde_json::from_slice(&json).map_err(|e| no(e.to_string()))?;
        document.timeline(&|problem| TimelineError::Content { path: path.into(), problem })
    }

    /// Reads a file.
    pub fn read(path: &Path) -> Result<Timeline, TimelineError> {
        // Compressed bytes are fewer than the document's.
        let bytes = bounded::read(path, MOST_BYTES)
            .map_err(|source| TimelineError::Io { path: path.into(), source })?;
        Timeline::from_bytes(&bytes, path)
    }
}

impl Document {
    fn timeline(self, no: &Impossible) -> Result<Timeline, TimelineError> {
        let About { frequency_hz, base_cpi, interval_cycles, time_scale, .. } = self.about;
        if frequency_hz == 0 || interval_cycles == 0 || !(base_cpi > 0.0 && base_cpi.is_finite()) {
            return Err(no("frequency, interval and CPI must be above 0".into()));
        }
        if let Some(scale) = time_scale.filter(|s| !(*s > 0.0 && s.is_finite())) {
            return Err(no(format!("time_scale = {scale} is not above 0 and finite")));
        }
        let c = self.costs;
        if let Some(v) =
            [c.switch, c.hidden_fault, c.violation, c.make_page, c.zap_page].iter().find(|v| **v > MOST_COST)
        {
            return Err(no(format!("a cost of {v} cycles")));
        }
        let runs = |p: PageColumns| -> Result<Runs, TimelineError> {
            if p.modes.get(Mode::Native).is_some() {
                return Err(no("native is no mode of a VM".into()));
            }
            let modes = p.modes.into_iter().map(|(mode, columns)| Ok((mode, columns.run(no)?)));
            Ok(Runs { host_page: p.host_page, modes: modes.collect::<Result<_, TimelineError>>()? })
        };
        let pages = self.pairs.into_iter().map(runs).collect::<Result<Vec<_>, _>>()?;
        let timeline = Timeline { about: self.about, costs: self.costs, pages, switched: Vec::new() };
        let intervals = timeline.intervals();
        if intervals == 0 || !timeline.pages.iter().all(Runs::has_both) {
            return Err(no("it has no interval with both modes: capture with nested and shadow".into()));
        }
        if timeline.pages.iter().flat_map(|p| p.modes.values()).any(|r| r.samples.len() != intervals) {
            return Err(no("its modes have different numbers of intervals".into()));
        }
        let switched = |s: SwitchedColumns| -> Result<SwitchedOutcome, TimelineError> {
            let samples = s.counters.samples(no)?;
            if samples.len() != intervals || s.modes.len() != intervals {
                return Err(no(format!("{} has not {intervals} intervals", s.switching.name)));
            }
            Ok(SwitchedOutcome { switching: s.switching, modes: s.modes, intervals: samples })
        };
        let switched = self.switched.into_iter().map(switched).collect::<Result<Vec<_>, _>>()?;
        Ok(Timeline { switched, ..timeline })
    }
}
