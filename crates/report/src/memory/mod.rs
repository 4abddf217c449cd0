// SPDX-License-Identifier: Apache-2.0 OR MIT
//! How much memory a guest needs: refaults at each size, and the working set over time.

mod chart;
mod json;
mod looks;
mod text;

use bifold_model::{Looked, Outcome};
use bifold_reclaim::{FRONT, IntervalUse, MemoryUse, MissCurve, ReferenceKind, sizes};
pub(crate) use chart::MemoryChart;
pub(crate) use json::{Document, Memory, SCHEMA};
pub use looks::MemoryLooks;

/// Bytes of a frame.
const FRAME: u64 = 4096;
/// The smallest size of memory that counts are exact for, frames.
const LEAST: u64 = FRONT as u64;
const KINDS: usize = ReferenceKind::ALL.len();

/// How much memory a guest needs.
///
/// ```
/// use bifold_model::{Model, Options, Profile, UseOptions};
/// use bifold_report::MemoryNeeds;
/// use bifold_trace::Generator;
/// use std::num::NonZeroU64;
///
/// let generator = Generator::parse("t:20000").unwrap();
/// let profile = Profile::load("i5-7600", &[]).unwrap();
/// let options = Options { guest_frames: generator.guest_frames(), ..Options::default() };
/// let mut model = Model::new(&profile, options);
/// model.watch_uses(UseOptions { interval: NonZeroU64::new(1000).unwrap(), optimum: 1 << 20 })?;
/// generator.run(&mut |words| model.consume(words)).unwrap();
/// let uses = model.take_uses().unwrap();
/// // Sizes in frames of 4 KB; 85 us for a refault.
/// let needs = MemoryNeeds::of(&model.finish(), &uses, &[1024, 2048], 85e-6);
/// assert!(needs.table().contains("4.00 MiB"));
/// # Ok::<(), bifold_model::UseError>(())
/// ```
#[derive(Debug, Clone, PartialEq)]
pub struct MemoryNeeds {
    /// The guest's memory, frames.
    guest: u64,
    /// Frames in use at the end.
    held: u64,
    /// References by kind.
    references: [u64; KINDS],
    /// References to pages that held no memory, by kind.
    first: [u64; KINDS],
    /// References outside of the guest's memory.
    outside: u64,
    /// The smallest memory without refaults, frames.
    enough: u64,
    /// Sizes, ascending.
    rows: Vec<SizeRefaults>,
    intervals: Vec<IntervalUse>,
    /// Of the ideal run.
    seconds_per_instruction: f64,
    /// Seconds that the guest waits for a refault.
    refault_s: f64,
    /// What the guest's kernel used its memory for, if the stream has looks.
    looks: Option<MemoryLooks>,
}

/// One size of memory.
#[derive(Debug, Clone, PartialEq)]
struct SizeRefaults {
    frames: u64,
    /// Refaults by kind, with LRU replacement.
    refaults: [u64; KINDS],
    /// The fewest refaults, if they are known.
    fewest: Option<u64>,
    /// Whether the table has this size.
    shown: bool,
}

impl SizeRefaults {
    fn all(&self) -> u64 {
        self.refaults.iter().sum()
    }
}

impl MemoryNeeds {
    /// What a run needs. `wanted`: sizes for the table, in frames; chosen here if there are none. The guest
    /// waits `refault_s` seconds for a refault.
    pub fn of(outcome: &Outcome, uses: &MemoryUse, wanted: &[u64], refault_s: f64) -> MemoryNeeds {
        let curves = ReferenceKind::ALL.map(|kind| uses.curve_of(kind));
        let all = uses.curve();
        let first = curves.each_ref().map(MissCurve::first);
        let frames = outcome.guest_frames;
        let row = |(frames, shown): (u64, bool)| SizeRefaults {
            frames,
            refaults: std::array::from_fn(|i| curves[i].misses(frames) - first[i]),
            fewest: None,
            shown,
        };
        let mut rows: Vec<SizeRefaults> = choose(wanted, all.enough(), frames).into_iter().map(row).collect();
        // A pass over the references for each size: only those that people see, and where LRU leaves
        // something to gain.
        let (mut wanted, none): (Vec<&mut SizeRefaults>, Vec<&mut SizeRefaults>) =
            rows.iter_mut().filter(|row| row.shown).partition(|row| row.all() > 0);
        let fewest = uses.optima(&wanted.iter().map(|row| row.frames).collect::<Vec<_>>());
        for (row, misses) in wanted.iter_mut().zip(fewest) {
            row.fewest = misses.map(|misses| misses - all.first());
        }
        none.into_iter().for_each(|row| row.fewest = Some(0));
        MemoryNeeds {
            guest: frames,
            held: uses.held(),
            references: curves.each_ref().map(MissCurve::references),
            first,
            outside: uses.outside(),
            enough: all.enough(),
            rows,
            intervals: uses.intervals().to_vec(),
            seconds_per_instruction: outcome.base_cpi / outcome.frequency_hz as f64,
            refault_s,
            looks: None,
        }
    }

    /// With what the guest's kernel used its memory for.
    pub fn with_looks(self, looked: &[Looked]) -> MemoryNeeds {
        MemoryNeeds { looks: MemoryLooks::of(looked, self.seconds_per_instruction), ..self }
    }

    /// What the guest's kernel used its memory for, if the stream says that.
    pub fn looks(&self) -> Option<&MemoryLooks> {
        self.looks.as_ref()
    }

    /// Seconds of the ideal run in each interval, and the bytes in use there.
    fn sets(&self) -> Vec<(f64, u64)> {
        let seconds = |i: &IntervalUse| i.instructions as f64 * self.seconds_per_instruction;
        self.intervals.iter().map(|i| (seconds(i), i.frames * FRAME)).collect()
    }
}

/// Sizes in frames, and whether the table has them: those wanted, or else four for each doubling up to the
/// memory that is enough, every other one of them in the table.
fn choose(wanted: &[u64], enough: u64, frames: u64) -> Vec<(u64, bool)> {
    if !wanted.is_empty() {
        let mut wanted = wanted.to_vec();
        wanted.sort_unstable();
        wanted.dedup();
        return wanted.into_iter().map(|size| (size, true)).collect();
    }
    let last = enough.max(LEAST);
    let below = sizes(LEAST, frames.max(LEAST)).into_iter().filter(|&size| size < last);
    let mut chosen: Vec<(u64, bool)> = below.enumerate().map(|(i, size)| (size, i % 2 == 0)).collect();
    chosen.push((last, true));
    chosen
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_table_has_two_sizes_for_each_doubling_and_ends_with_enough() {
        let shown = |enough| {
            let chosen = choose(&[], enough, 1 << 18);
            chosen.into_iter().filter(|c| c.1).map(|c| c.0).collect::<Vec<_>>()
        };
        assert_eq!(shown(1000), [256, 384, 512, 768, 1000]);
        assert_eq!(shown(300), [256, 300]);
        assert_eq!(shown(256), [256]);
        assert_eq!(choose(&[700, 300, 700], 1000, 1 << 18), [(300, true), (700, true)]);
    }
}
