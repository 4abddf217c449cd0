// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's need of memory over time, and its file: one JSON document.

use crate::grid::Curve;
use crate::{IntervalUse, MemoryUse};
use bifold_base::bounded;
use schemars::JsonSchema;
use serde::{Deserialize, Serialize};
use std::path::{Path, PathBuf};

/// Name and version of the format.
pub const SCHEMA: &str = "bifold.memory-timeline/1";
/// Most bytes of a file. One that has more is damaged.
const MOST_BYTES: u64 = 1 << 30;
/// Most intervals: a file of them has some 300 bytes each.
const MOST_INTERVALS: usize = 1 << 20;
/// Largest count: what a 64-bit float holds exactly.
const MOST_COUNT: u64 = 1 << 53;

/// What a guest needed in each interval.
///
/// ```
/// use bifold_reclaim::{About, MemoryTimeline, MemoryUse, ReferenceKind};
/// use std::num::NonZeroU64;
/// use std::path::Path;
///
/// let about = About { program: "loop".into(), guest_frames: 1000, ..About::default() };
/// let mut uses = MemoryUse::<64>::new(about.guest_frames, NonZeroU64::new(1_000_000).unwrap(), 0)?;
/// for interval in 1..3 {
///     (0..100).cycle().take(1000).for_each(|frame| uses.reference(frame, ReferenceKind::Data, frame < 30));
///     uses.ran(interval * 1_000_000);
/// }
/// uses.end();
/// let timeline = MemoryTimeline::of(about, &uses, 1e-8);
/// assert_eq!((timeline.intervals[0].first, timeline.intervals[1].first), (100, 0));
/// assert_eq!(timeline.curve(1).misses(96.0), 1000.0);
/// assert_eq!(timeline.curve(1).misses(112.0), 0.0);
/// let file = timeline.to_json();
/// assert_eq!(MemoryTimeline::from_json(file.as_bytes(), Path::new("loop.json")).unwrap(), timeline);
/// # Ok::<(), bifold_reclaim::TooManyFrames>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryTimeline {
    /// The program and its guest.
    pub about: About,
    /// The sizes of [`Interval::misses`], in frames, ascending.
    pub sizes: Vec<u64>,
    /// In order of time, without gaps.
    pub intervals: Vec<Interval>,
}

/// The program of a timeline.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct About {
    /// The command, or the generator's name.
    pub program: String,
    /// The guest, in words; empty for a generator.
    pub guest: String,
    /// Version of Bifold that made the timeline.
    pub bifold: String,
    /// XXH3-64 of the events, hexadecimal.
    pub input_hash: String,
    /// The guest's memory. Unit: frames.
    pub guest_frames: u64,
}

/// What a guest needed in one interval.
#[derive(Debug, Clone, PartialEq, Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Interval {
    /// Guest time. Unit: s.
    pub seconds: f64,
    /// Instructions of all vCPUs.
    pub instructions: u64,
    /// Distinct frames that were referenced.
    pub working_set: u64,
    /// Those of them that were written.
    pub dirty: u64,
    /// Frames in use at the end: referenced, and not given back since.
    pub in_use: u64,
    /// References to frames.
    pub references: u64,
    /// References to frames that held no memory, which miss at any size.
    pub first: u64,
    /// Misses of a memory with LRU replacement at each of `sizes`, first references included.
    pub misses: Vec<u64>,
}

/// Why a timeline cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum MemoryTimelineError {
    /// The file cannot be read.
    #[error("cannot read timeline {}", path.display())]
    Io {
        /// The file.
        path: PathBuf,
        /// Why.
        source: std::io::Error,
    },
    /// Not a timeline, or a damaged one.
    #[error("{} is no timeline of memory: {problem} (`bifold reclaim show --timeline FILE` writes one)", path.display())]
    NotATimeline {
        /// The file.
        path: PathBuf,
        /// What is wrong.
        problem: String,
    },
    /// The file has another version.
    #[error("{} is of version {found}, this Bifold reads {SCHEMA}: record it again", path.display())]
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
        /// What is wrong, with the field.
        problem: String,
    },
}

/// The error for a value that is impossible, of the file that is read.
type Impossible<'a> = dyn Fn(String) -> MemoryTimelineError + 'a;

#[derive(Deserialize)]
struct Versioned {
    schema: String,
}

/// What `bifold reclaim show --timeline FILE` writes: what a guest needed in each interval. A frame has 4 KB.
/// `bifold reclaim plan` reads this.
#[derive(Serialize, Deserialize, JsonSchema)]
#[serde(deny_unknown_fields)]
pub struct Document {
    /// Name and version of this schema.
    schema: String,
    /// The program and its guest.
    about: About,
    /// Sizes of memory, ascending: four for each doubling, and last the guest's memory. Unit: frames.
    sizes: Vec<u64>,
    /// The intervals in order of time, without gaps.
    intervals: Vec<Interval>,
}

impl MemoryTimeline {
    /// What a guest used. An instruction takes `seconds` of its time.
    pub fn of<const F: usize>(about: About, uses: &MemoryUse<F>, seconds: f64) -> MemoryTimeline {
        let interval = |i: &IntervalUse| Interval {
            seconds: i.instructions as f64 * seconds,
            instructions: i.instructions,
            working_set: i.frames,
            dirty: i.dirty,
            in_use: i.held,
            references: i.references,
            first: i.first,
            misses: i.misses.clone(),
        };
        // An interval without instructions has no time in which to decide anything.
        let intervals = uses.intervals().iter().filter(|i| i.instructions > 0).map(interval).collect();
        MemoryTimeline { about, sizes: uses.sizes().to_vec(), intervals }
    }

    /// Guest time, s.
    pub fn seconds(&self) -> f64 {
        self.intervals.iter().map(|i| i.seconds).sum()
    }

    /// The misses of an interval by size.
    pub fn curve(&self, interval: usize) -> Curve {
        let Interval { references, misses, .. } = &self.intervals[interval];
        Curve::new(&self.sizes, *references, misses)
    }

    /// The file's text.
    pub fn to_json(&self) -> String {
        let MemoryTimeline { about, sizes, intervals } = self.clone();
        let document = Document { schema: SCHEMA.into(), about, sizes, intervals };
        serde_json::to_string(&document).expect("fields have names") + "\n"
    }

    /// Parses a file's bytes; errors name `path`.
    ///
    /// # Errors
    ///
    /// It is no timeline, of another version, or has an impossible value.
    pub fn from_json(bytes: &[u8], path: &Path) -> Result<MemoryTimeline, MemoryTimelineError> {
        let no = |e: serde_json::Error| {
            let problem = if bytes.is_empty() { "it is empty".into() } else { e.to_string() };
            MemoryTimelineError::NotATimeline { path: path.into(), problem }
        };
        let version: Versioned = serde_json::from_slice(bytes).map_err(no)?;
        let family = |schema: &str| schema.rsplit_once('/').map(|(name, _)| name.to_owned());
        if family(&version.schema) != family(SCHEMA) {
            let of = match version.schema.split('/').next() {
                Some("bifold.compare" | "bifold.runs") => ", a result of `bifold compare`",
                _ => "",
            };
            let problem = format!("its schema is {}{of}", version.schema);
            return Err(MemoryTimelineError::NotATimeline { path: path.into(), problem });
        }
        if version.schema != SCHEMA {
            return Err(MemoryTimelineError::Version { path: path.into(), found: version.schema });
        }
        let Document { about, sizes, intervals, .. } = serde_json::from_slice(bytes).map_err(no)?;
        let timeline = MemoryTimeline { about, sizes, intervals };
        timeline.check(&|problem| MemoryTimelineError::Content { path: path.into(), problem })?;
        Ok(timeline)
    }

    /// Reads a file.
    ///
    /// # Errors
    ///
    /// As [`Self::from_json`], or the file cannot be read.
    pub fn read(path: &Path) -> Result<MemoryTimeline, MemoryTimelineError> {
        let bytes = bounded::read(path, MOST_BYTES)
            .map_err(|source| MemoryTimelineError::Io { path: path.into(), source })?;
        MemoryTimeline::from_json(&bytes, path)
    }

    fn check(&self, no: &Impossible) -> Result<(), MemoryTimelineError> {
        let frames = self.about.guest_frames;
        if !(1..=crate::MOST_FRAMES).contains(&frames) {
            return Err(no(format!("about.guest_frames = {frames} is not in 1..={}", crate::MOST_FRAMES)));
        }
        if self.sizes.is_empty() || !self.sizes.is_sorted_by(|a, b| a < b) || self.sizes[0] == 0 {
            return Err(no("sizes are not above 0 and ascending".into()));
        }
        if self.sizes.last() != Some(&frames) {
            return Err(no(format!("sizes do not end at about.guest_frames = {frames}")));
        }
        if !(1..=MOST_INTERVALS).contains(&self.intervals.len()) {
            return Err(no(format!(
                "intervals: {} of them, not 1 to {MOST_INTERVALS}",
                self.intervals.len()
            )));
        }
        for (i, interval) in self.intervals.iter().enumerate() {
            interval.check(frames, self.sizes.len(), &|e| no(format!("intervals[{i}].{e}")))?;
        }
        Ok(())
    }
}

impl Interval {
    /// What is wrong begins with the field.
    fn check(&self, frames: u64, sizes: usize, no: &Impossible) -> Result<(), MemoryTimelineError> {
        // A day is longer than any interval, and sums of intervals stay finite.
        if !(self.seconds > 0.0 && self.seconds <= 86_400.0) {
            return Err(no(format!("seconds = {} is not above 0 and at most 86400", self.seconds)));
        }
        let bounds = [
            ("instructions", self.instructions, MOST_COUNT),
            ("references", self.references, MOST_COUNT),
            ("first", self.first, self.references),
            ("working_set", self.working_set, frames),
            ("in_use", self.in_use, frames),
            ("dirty", self.dirty, self.working_set),
        ];
        if let Some((name, value, most)) = bounds.into_iter().find(|(_, value, most)| value > most) {
            return Err(no(format!("{name} = {value} is above {most}")));
        }
        if self.misses.len() != sizes {
            return Err(no(format!("misses: {} of them for {sizes} sizes", self.misses.len())));
        }
        let falling = [self.references].iter().chain(&self.misses).is_sorted_by(|a, b| a >= b);
        if !falling || self.misses.last() < Some(&self.first) {
            return Err(no("misses do not fall from references to first".into()));
        }
        Ok(())
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn timeline() -> MemoryTimeline {
        let misses = vec![50, 30, 20];
        let (instructions, working_set, dirty, references, first) = (7, 40, 3, 60, 10);
        let interval = Interval {
            seconds: 0.5,
            instructions,
            working_set,
            dirty,
            in_use: 50,
            references,
            first,
            misses,
        };
        MemoryTimeline {
            about: About { program: "p".into(), guest_frames: 100, ..About::default() },
            sizes: vec![64, 80, 100],
            intervals: vec![interval; 2],
        }
    }

    fn error(change: impl Fn(&mut serde_json::Value)) -> String {
        let mut value: serde_json::Value = serde_json::from_str(&timeline().to_json()).unwrap();
        change(&mut value);
        MemoryTimeline::from_json(value.to_string().as_bytes(), Path::new("a.json")).unwrap_err().to_string()
    }

    #[test]
    fn a_damaged_file_is_named_with_its_field() {
        let set = |pointer: &'static str, json: &'static str| {
            error(move |v| *v.pointer_mut(pointer).unwrap() = serde_json::from_str(json).unwrap())
        };
        assert_eq!(
            set("/schema", "\"bifold.memory-timeline/2\""),
            "a.json is of version bifold.memory-timeline/2, this Bifold reads bifold.memory-timeline/1: record it again"
        );
        for (pointer, json, problem) in [
            ("/about/guest_frames", "0", "about.guest_frames = 0 is not in 1..=536870912"),
            ("/sizes", "[80,64,100]", "sizes are not above 0 and ascending"),
            ("/sizes", "[64,80,90]", "sizes do not end at about.guest_frames = 100"),
            ("/intervals", "[]", "intervals: 0 of them, not 1 to 1048576"),
            ("/intervals/1/seconds", "0", "intervals[1].seconds = 0 is not above 0 and at most 86400"),
            ("/intervals/0/first", "61", "intervals[0].first = 61 is above 60"),
            ("/intervals/0/working_set", "101", "intervals[0].working_set = 101 is above 100"),
            ("/intervals/1/in_use", "101", "intervals[1].in_use = 101 is above 100"),
            ("/intervals/0/dirty", "41", "intervals[0].dirty = 41 is above 40"),
            ("/intervals/0/misses", "[50,30]", "intervals[0].misses: 2 of them for 3 sizes"),
            ("/intervals/0/misses", "[50,60,20]", "intervals[0].misses do not fall from references to first"),
            ("/intervals/0/misses", "[50,30,9]", "intervals[0].misses do not fall from references to first"),
        ] {
            assert_eq!(set(pointer, json), format!("timeline a.json: {problem}"));
        }
        assert!(error(|v| v["more"] = 1.into()).contains("unknown field `more`"));
        let cut = &timeline().to_json().into_bytes()[..60];
        let e = MemoryTimeline::from_json(cut, Path::new("a.json")).unwrap_err().to_string();
        assert!(e.starts_with("a.json is no timeline of memory: EOF"), "{e}");
        let e = MemoryTimeline::from_json(b"", Path::new("a.json")).unwrap_err().to_string();
        assert!(e.contains("it is empty"), "{e}");
    }
}
