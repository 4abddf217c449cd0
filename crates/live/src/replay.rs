// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays a policy over a recording: what it would have decided after every interval, given the mode in which the VM
//! was.

use crate::recording::{RecordedInterval, RecordedVm};
use bifold_policy::{
    Counters, Decision, Driver, Estimator, Interval, Log, Scale, Source, Spec, UnknownCounter,
};

/// A decision over a recorded VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// The interval after which the policy decided.
    pub interval: usize,
    /// The mode that the policy wants next, and why.
    pub decision: Decision,
}

/// What policies could know of a VM all the time: the counters that every interval has in which the VM was in one mode,
/// and the usual length of an interval.
pub fn source(vm: &RecordedVm) -> Source {
    let whole = vm.intervals.iter().filter(|i| i.mode.is_some());
    let known = whole.fold(Counters::ALL, |known, i| known.less(Counters::ALL.less(i.measured.known)));
    let mut lengths: Vec<f64> = vm.intervals.iter().map(|i| i.seconds).filter(|s| *s > 0.0).collect();
    lengths.sort_by(f64::total_cmp);
    Source { interval_s: lengths.get(lengths.len() / 2).copied().unwrap_or(1.0), known }
}

/// Replays a policy. An interval without a mode (the VM was switched in it) is left out, as a live policy does not see it
/// either.
///
/// # Errors
/// If the policy, or the estimator, needs a counter that the recording lacks.
pub fn replay(
    vm: &RecordedVm,
    spec: &Spec,
    estimator: Option<&Estimator>,
) -> Result<Vec<Decided>, UnknownCounter> {
    let seen = |(n, i): (usize, &RecordedInterval)| Some((n, *i, i.mode?));
    let mut intervals = vm.intervals.iter().enumerate().filter_map(seen).peekable();
    let Some((_, _, start)) = intervals.peek().copied() else { return Ok(Vec::new()) };
    let mut driver = Driver::new(spec, start, source(vm), Scale::both(1.0), estimator)?;
    driver.log = Log::on();
    let mut decided = Vec::new();
    for (interval, i, mode) in intervals {
        let now = Interval {
            mode,
            sample: &i.measured.sample,
            cycles: i.measured.cycles.unwrap_or(0.0),
            load: i.measured.load.unwrap_or(1.0),
            seconds: i.seconds,
        };
        if let Some(mode) = driver.interval(now, None) {
            decided.push(Decided { interval, decision: Decision { mode, why: driver.log.take() } });
        }
    }
    Ok(decided)
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::Measured;
    use bifold_model::Sample;
    use bifold_policy::{Mode, Named};

    /// Five seconds of many TLB misses in nested paging, then five of many page faults in shadow paging.
    fn vm(known: Counters) -> RecordedVm {
        let interval = |n: u64| {
            let (mode, sample) = match n {
                0..5 => (
                    Mode::Nested,
                    Sample { instructions: 1 << 30, tlb_misses_4k: 50 << 20, ..Sample::default() },
                ),
                _ => (
                    Mode::Shadow,
                    Sample { instructions: 1 << 30, guest_page_faults: 9 << 20, ..Sample::default() },
                ),
            };
            let measured = Measured { sample, known, cycles: Some(3e9), load: Some(1.0) };
            RecordedInterval { time: n as f64, seconds: 1.0, mode: Some(mode), measured }
        };
        RecordedVm { vm: "9-7".into(), name: "web".into(), intervals: (0..10).map(interval).collect() }
    }

    #[test]
    fn a_policy_follows_the_phases_and_explains() {
        let dsp = Named::load("dsp").unwrap().spec;
        let decided = replay(&vm(Counters::ALL), &dsp, None).unwrap();
        let wants = |range: std::ops::Range<usize>| {
            let of = decided.iter().filter(|d| range.contains(&d.interval));
            of.map(|d| d.decision.mode).collect::<Vec<_>>()
        };
        assert!(wants(0..5).iter().all(|m| *m == Mode::Shadow), "{decided:?}");
        assert!(wants(5..10).iter().all(|m| *m == Mode::Nested), "{decided:?}");
        assert!(!decided.is_empty() && decided.iter().all(|d| !d.decision.why.is_empty()));
    }

    #[test]
    fn a_counter_that_one_interval_lacks_is_unknown_to_the_policy() {
        let dsp = Named::load("dsp").unwrap().spec;
        let mut vm = vm(Counters::ALL);
        vm.intervals[3].measured.known = Counters::ALL.less(Counters::PAGE_FAULTS);
        assert_eq!(replay(&vm, &dsp, None).unwrap_err().counter, "guest_page_faults");
        // In an interval that is left out, nothing needs to be known.
        vm.intervals[3].mode = None;
        let decided = replay(&vm, &dsp, None).unwrap();
        assert!(decided.iter().all(|d| d.interval != 3));
        vm.intervals.iter_mut().for_each(|i| i.mode = None);
        assert_eq!(replay(&vm, &dsp, None).unwrap(), []);
    }
}
