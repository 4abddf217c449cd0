// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Pairs: what the same work of a VM cost in both modes, found in a recording around tries of the other mode.
//!
//! A VM runs in one mode at a time, so no interval has both modes' costs. A probe of the daemon does nearly:
//! the VM goes to the other mode and comes back. Costs are divided by the steps that the guest's reporter
//! tells, so that a faster mode does not look costlier because it did more. The mode's cost at home is that
//! of the time before and after the try together; a steady drift of the guest thereby cancels out.
//!
//! A switch at which the guest also changed its work would teach nonsense. Two tests look for that:
//!
//! - **Home before and after the try must agree** in cycles per step ([`AGREE`]). A phase that began or ended
//!   during the try shows here.
//! - **The try must have done the work of home**: instructions per step agree as well, and page faults of the
//!   guest per step are at most [`FAULTS`] times apart. The guest executes the same instructions and takes
//!   the same page faults in both modes. This finds phases that came and went with the switches, as they do
//!   if a policy follows them.
//!
//! Intervals in which the VM was switched, and those that begin in the first [`BLACKOUT_S`] seconds after a
//! switch, are in no pair, because tables and TLBs are cold in them. Any switch there and back within
//! [`MOST_AWAY_S`] counts as a try, whoever made it.

use crate::recording::{RecordedInterval, RecordedVm};
use bifold_model::Sample;
use bifold_policy::{Counters, PerMode};
use std::fmt;
use std::ops::Range;

/// Largest ratio between costs, or instructions, per step that count as equal. A report is up to a quarter of
/// an interval early and a step may be half done, so that few windows agree to better than some percent.
pub const AGREE: f64 = 1.1;
/// Largest ratio between page faults per step. It is wide because KVM counts them in shadow paging and the
/// guest in nested paging, and the guest also counts pages that its kernel touches.
pub const FAULTS: f64 = 2.0;
/// Page faults of a window below which chance decides about their ratio.
const FEW_FAULTS: f64 = 100.0;
/// Seconds after a switch that are left out; the daemon's default for its policies.
pub const BLACKOUT_S: f64 = 1.0;
/// Seconds before and after a try that are compared with it.
pub const WINDOW_S: f64 = 20.0;
/// Most seconds of a try. A longer time in a mode is a stay: guests change in it.
pub const MOST_AWAY_S: f64 = 60.0;
/// Fewest seconds and steps of each of the three windows.
pub const LEAST_S: f64 = 2.0;
/// Fewest steps of each window: with fewer, the last step alone is more than 5 %.
pub const LEAST_STEPS: f64 = 20.0;
/// Longest gap between two intervals that follow each other, seconds. The interval of a switch is such a gap.
const GAP_S: f64 = 10.0;
/// Largest count of a pair: an hour of cycles.
const MOST: f64 = (1u64 << 44) as f64;

/// What the same work cost in both modes: at home, and in the mode of the try. The work is that of one second
/// at home.
#[derive(Debug, Clone, PartialEq)]
pub struct Pair {
    /// End of the try, in seconds since 1970.
    pub time: f64,
    /// Counts by mode. Unknown counters are 0.
    pub samples: PerMode<Sample>,
    /// The known counters of each.
    pub known: PerMode<Counters>,
    /// All cycles by mode, above 0.
    pub cycles: PerMode<f64>,
}

/// Why a try is no pair.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Why {
    /// No interval has progress.
    NoProgress,
    /// No interval has cycles and instructions.
    NoCycles,
    /// A window is too short, or has too few steps.
    Short,
    /// Home differs before and after.
    Drift,
    /// The try did other work than home.
    OtherWork,
    /// A count is beyond belief.
    Beyond,
}

/// All reasons, in words.
const REASONS: [(Why, &str); 6] = [
    (Why::NoProgress, "lack the guest's progress"),
    (Why::NoCycles, "lack cycles or instructions"),
    (Why::Short, "have less than 2 s or 20 steps before, in or after the other mode"),
    (Why::Drift, "cost more than 10 % more or less per step after than before"),
    (Why::OtherWork, "did other work in the other mode, by instructions or page faults per step"),
    (Why::Beyond, "have counts beyond belief"),
];

/// Numbers of tries that are no pairs, by reason.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct LeftOut([u64; REASONS.len()]);

impl LeftOut {
    /// Number of tries left out for this reason.
    pub fn of(&self, why: Why) -> u64 {
        self.0[why as usize]
    }

    /// Number of all tries left out.
    pub fn all(&self) -> u64 {
        self.0.iter().sum()
    }

    /// Adds another VM's.
    pub fn add(&mut self, other: &LeftOut) {
        self.0.iter_mut().zip(other.0).for_each(|(n, more)| *n += more);
    }
}

impl fmt::Display for LeftOut {
    fn fmt(&self, f: &mut fmt::Formatter<'_>) -> fmt::Result {
        let some = REASONS.iter().filter(|(why, _)| self.of(*why) > 0);
        let words: Vec<String> = some.map(|(why, words)| format!("{} {words}", self.of(*why))).collect();
        f.write_str(if words.is_empty() { "none" } else { "" })?;
        f.write_str(&words.join("; "))
    }
}

/// The pairs of a VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Pairs {
    /// The pairs, in order.
    pub pairs: Vec<Pair>,
    /// The tries that are no pairs.
    pub left_out: LeftOut,
}

/// Finds the pairs of a VM. Its first and last time in a mode are no tries: what was before or after is not
/// known.
pub fn pairs(vm: &RecordedVm) -> Pairs {
    let mut found = Pairs { pairs: Vec::new(), left_out: LeftOut::default() };
    let stretches = stretches(&vm.intervals);
    for three in stretches.windows(3) {
        let [before, away, after] = three else { unreachable!("windows of 3") };
        let of = |stretch: &Range<usize>| &vm.intervals[stretch.clone()];
        let (before, away, after) = (of(before), of(away), of(after));
        let short = away.iter().map(|i| i.seen.seconds).sum::<f64>() <= MOST_AWAY_S;
        let returns = before[0].seen.mode == after[0].seen.mode;
        if short && returns && follows(before, away) && follows(away, after) {
            match pair(before, away, after) {
                Ok(pair) => found.pairs.push(pair),
                Err(why) => found.left_out.0[why as usize] += 1,
            }
        }
    }
    found
}

/// The longest runs of intervals in one mode, without gaps.
fn stretches(intervals: &[RecordedInterval]) -> Vec<Range<usize>> {
    let mut stretches: Vec<Range<usize>> = Vec::new();
    for (n, interval) in intervals.iter().enumerate() {
        if interval.seen.mode.is_none() {
            continue;
        }
        match stretches.last_mut() {
            Some(last)
                if last.end == n
                    && intervals[n - 1].seen.mode == interval.seen.mode
                    && near(&intervals[n - 1], interval) =>
            {
                last.end = n + 1;
            }
            _ => stretches.push(n..n + 1),
        }
    }
    stretches
}

/// Whether an interval begins soon after another one's end.
fn near(a: &RecordedInterval, b: &RecordedInterval) -> bool {
    // Clocks are set back, too.
    (b.time - b.seen.seconds - a.time).abs() <= GAP_S
}

/// Whether a stretch is in the other mode than the one before it, and begins soon after that one's end.
fn follows(a: &[RecordedInterval], b: &[RecordedInterval]) -> bool {
    let (Some(a), Some(b)) = (a.last(), b.first()) else { return false };
    a.seen.mode != b.seen.mode && near(a, b)
}

/// Sums over intervals in one mode.
#[derive(Debug, Clone)]
struct Window {
    seconds: f64,
    steps: f64,
    cycles: f64,
    counts: Vec<f64>,
    known: Counters,
}

const INSTRUCTIONS: usize = place(b"instructions");
const PAGE_FAULTS: usize = place(b"guest_page_faults");

/// The index of a counter among [`Sample::COUNTERS`].
const fn place(name: &[u8]) -> usize {
    let mut at = 0;
    loop {
        let other = Sample::COUNTERS[at].name.as_bytes();
        let mut same = 0;
        while same < name.len() && same < other.len() && name[same] == other[same] {
            same += 1;
        }
        if same == name.len() && same == other.len() {
            return at;
        }
        at += 1;
    }
}

impl Window {
    /// Sums the intervals that have progress, cycles and instructions.
    fn of<'a>(intervals: impl Iterator<Item = &'a RecordedInterval>) -> Result<Window, Why> {
        let mut window = Window {
            seconds: 0.0,
            steps: 0.0,
            cycles: 0.0,
            counts: vec![0.0; Sample::COUNTERS.len()],
            known: Counters::ALL,
        };
        let (mut any, mut progress, mut counted) = (false, false, false);
        for seen in intervals.map(|i| &i.seen) {
            any = true;
            let Some(steps) = seen.progress else { continue };
            progress = true;
            let Some(cycles) = seen.measured.cycles.filter(|_| seen.measured.known.contains(INSTRUCTIONS))
            else {
                continue;
            };
            counted = true;
            window.seconds += seen.seconds;
            window.steps += steps as f64;
            window.cycles += cycles;
            window.known = window.known.less(Counters::ALL.less(seen.measured.known));
            let values = seen.measured.sample.values();
            window.counts.iter_mut().zip(values).for_each(|(sum, value)| *sum += value as f64);
        }
        match (any, progress, counted) {
            (false, ..) => Err(Why::Short),
            (_, false, _) => Err(Why::NoProgress),
            (.., false) => Err(Why::NoCycles),
            _ if !(window.seconds >= LEAST_S && window.steps >= LEAST_STEPS) => Err(Why::Short),
            _ if window.cycles <= 0.0 => Err(Why::NoCycles),
            _ => Ok(window),
        }
    }

    fn and(&self, other: &Window) -> Window {
        Window {
            seconds: self.seconds + other.seconds,
            steps: self.steps + other.steps,
            cycles: self.cycles + other.cycles,
            counts: self.counts.iter().zip(&other.counts).map(|(a, b)| a + b).collect(),
            known: self.known.less(Counters::ALL.less(other.known)),
        }
    }

    /// Counts and cycles of `steps` steps; `None` if one of them is beyond belief.
    fn of_steps(&self, steps: f64) -> Option<(Sample, f64)> {
        let scale = steps / self.steps;
        let mut values = Sample::default().values();
        for (place, value) in values.iter_mut().enumerate().filter(|(place, _)| self.known.contains(*place)) {
            let count = self.counts[place] * scale;
            *value = (count <= MOST).then_some(count.round() as u64)?;
        }
        let cycles = self.cycles * scale;
        (1.0..=MOST).contains(&cycles).then(|| (Sample::from_values(values), cycles))
    }
}

/// The intervals after the blackout.
fn warm(stretch: &[RecordedInterval]) -> impl Iterator<Item = &RecordedInterval> {
    let mut begins = 0.0;
    stretch.iter().filter(move |i| {
        let at = begins;
        begins += i.seen.seconds;
        at >= BLACKOUT_S
    })
}

/// The first of these intervals, until they are a window long.
fn window<'a>(
    intervals: impl Iterator<Item = &'a RecordedInterval>,
) -> impl Iterator<Item = &'a RecordedInterval> {
    let mut sum = 0.0;
    intervals.take_while(move |i| {
        let before = sum;
        sum += i.seen.seconds;
        before < WINDOW_S
    })
}

/// Whether two figures per step are at most `most` times apart.
fn agree(a: f64, b: f64, most: f64) -> bool {
    a <= b * most && b <= a * most
}

/// The pair of a try, with what was before and after.
fn pair(
    before: &[RecordedInterval],
    away: &[RecordedInterval],
    after: &[RecordedInterval],
) -> Result<Pair, Why> {
    let (Some(home), Some(there)) = (before[0].seen.mode, away[0].seen.mode) else { return Err(Why::Short) };
    let Some(end) = away.last() else { return Err(Why::Short) };
    // The beginning of `before` may be cold from an earlier switch.
    let warm_before: Vec<&RecordedInterval> = warm(before).collect();
    let before = Window::of(window(warm_before.into_iter().rev()))?;
    let tried = Window::of(warm(away))?;
    let after = Window::of(window(warm(after)))?;
    if !agree(before.cycles / before.steps, after.cycles / after.steps, AGREE) {
        return Err(Why::Drift);
    }
    // Each with each: a mixture of two phases looks like the mean of both.
    if ![(&before, &tried), (&tried, &after), (&before, &after)].iter().all(|(a, b)| same_work(a, b)) {
        return Err(Why::OtherWork);
    }
    let at_home = before.and(&after);
    let steps = at_home.steps / at_home.seconds;
    let (home_sample, home_cycles) = at_home.of_steps(steps).ok_or(Why::Beyond)?;
    let (tried_sample, tried_cycles) = tried.of_steps(steps).ok_or(Why::Beyond)?;
    Ok(Pair {
        time: end.time,
        samples: [(home, home_sample), (there, tried_sample)].into(),
        known: [(home, at_home.known), (there, tried.known)].into(),
        cycles: [(home, home_cycles), (there, tried_cycles)].into(),
    })
}

/// Whether two windows did the same work.
fn same_work(a: &Window, b: &Window) -> bool {
    let per_step = |w: &Window, place: usize| w.counts[place] / w.steps;
    if !agree(per_step(a, INSTRUCTIONS), per_step(b, INSTRUCTIONS), AGREE) {
        return false;
    }
    let faults = |w: &Window| w.known.contains(PAGE_FAULTS).then_some(w.counts[PAGE_FAULTS]);
    match (faults(a), faults(b)) {
        (Some(x), Some(y)) if x.max(y) >= FEW_FAULTS => {
            agree(per_step(a, PAGE_FAULTS), per_step(b, PAGE_FAULTS), FAULTS)
        }
        _ => true,
    }
}

#[cfg(test)]
mod tests;
