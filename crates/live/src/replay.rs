// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Replays a policy over a recording: what it would have decided after every interval, given the mode in
//! which the VM was.

use crate::follow::{Followed, Follower};
use crate::recording::RecordedVm;
use bifold_policy::{Decision, Estimator, Spec, UnknownCounter};

/// A decision over a recorded VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Decided {
    /// The interval after which the policy decided.
    pub interval: usize,
    /// The mode that the policy wants next, and why.
    pub decision: Decision,
}

/// What a policy decided over a recorded VM.
#[derive(Debug, Clone, PartialEq)]
pub struct Replay {
    /// The decisions, in order.
    pub decided: Vec<Decided>,
    /// Number of intervals that the policy did not see: without a mode, because the VM was switched in them,
    /// or without a counter that the policy needs.
    pub left_out: usize,
}

/// The usual length of a VM's intervals, in seconds.
fn usual_length(vm: &RecordedVm) -> f64 {
    let mut lengths: Vec<f64> = vm.intervals.iter().map(|i| i.seen.seconds).filter(|s| *s > 0.0).collect();
    lengths.sort_by(f64::total_cmp);
    lengths.get(lengths.len() / 2).copied().unwrap_or(1.0)
}

/// Replays a policy over the intervals that have all that it needs.
///
/// # Errors
/// If no interval has a counter that the policy, or its estimator, needs.
pub fn replay(vm: &RecordedVm, spec: &Spec, estimator: Option<&Estimator>) -> Result<Replay, UnknownCounter> {
    let mut follower = Follower::new(spec, estimator, usual_length(vm));
    let mut replay = Replay { decided: Vec::new(), left_out: 0 };
    for (interval, i) in vm.intervals.iter().enumerate() {
        match follower.interval(&i.seen) {
            Followed::LeftOut => replay.left_out += 1,
            Followed::NotDue => {}
            Followed::Decided(decision) => replay.decided.push(Decided { interval, decision }),
        }
    }
    match follower.missing() {
        Some(unknown) => Err(unknown),
        None => Ok(replay),
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::recording::RecordedInterval;
    use crate::{Measured, Observation};
    use bifold_model::Sample;
    use bifold_policy::{Counters, Mode, Named};

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
            let seen = Observation { seconds: 1.0, mode: Some(mode), measured, progress: None };
            RecordedInterval { time: n as f64, seen }
        };
        RecordedVm {
            vm: "9-7".into(),
            name: "web".into(),
            intervals: (0..10).map(interval).collect(),
            starts: Vec::new(),
        }
    }

    #[test]
    fn a_policy_follows_the_phases_and_explains() {
        let dsp = Named::load("dsp").unwrap().spec;
        let decided = replay(&vm(Counters::ALL), &dsp, None).unwrap().decided;
        let wants = |range: std::ops::Range<usize>| {
            let of = decided.iter().filter(|d| range.contains(&d.interval));
            of.map(|d| d.decision.mode).collect::<Vec<_>>()
        };
        assert!(wants(0..5).iter().all(|m| *m == Mode::Shadow), "{decided:?}");
        assert!(wants(5..10).iter().all(|m| *m == Mode::Nested), "{decided:?}");
        assert!(!decided.is_empty() && decided.iter().all(|d| !d.decision.why.is_empty()));
    }

    #[test]
    fn an_interval_that_lacks_a_counter_is_left_out_and_a_counter_that_all_lack_is_told() {
        let dsp = Named::load("dsp").unwrap().spec;
        let without = Counters::ALL.less(Counters::PAGE_FAULTS);
        assert_eq!(replay(&vm(without), &dsp, None).unwrap_err().counter, "guest_page_faults");
        let mut vm = vm(Counters::ALL);
        vm.intervals[3].seen.measured.known = without;
        vm.intervals[5].seen.mode = None;
        let replayed = replay(&vm, &dsp, None).unwrap();
        assert_eq!(replayed.left_out, 2);
        assert!(replayed.decided.iter().all(|d| d.interval != 3 && d.interval != 5));
        vm.intervals.iter_mut().for_each(|i| i.seen.mode = None);
        assert!(replay(&vm, &dsp, None).is_err());
        let always = Named::load("always-shadow").unwrap().spec;
        assert_eq!(replay(&vm, &always, None).unwrap(), Replay { decided: vec![], left_out: 10 });
    }
}
