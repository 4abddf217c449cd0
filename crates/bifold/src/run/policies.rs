// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies over the run's own timeline: what the run would have cost with switches of the mode.

use super::{Carried, Plan};
use bifold_policy::{Estimator, Named, Scale, Timeline, VmKind, evaluate, replay_check};
use bifold_report::{NoPolicies, RunPolicies};

/// The fewest intervals on which a policy can be judged.
pub const FEWEST_INTERVALS: usize = 5;

/// The error for a timeline of too few intervals.
pub fn too_short(intervals: usize) -> NoPolicies {
    NoPolicies::TooShort(intervals, FEWEST_INTERVALS)
}

/// Replays every built-in policy over a run's own timeline, in a VM that keeps its nested tables.
pub fn over(carried: &Carried, timeline: Timeline, plan: &Plan) -> RunPolicies {
    let checks = replay_check::checks(&timeline);
    let n = timeline.intervals();
    if let Some(why) = carried.no_timeline() {
        return RunPolicies { evaluation: Err(NoPolicies::NoTimeline(why)), checks };
    }
    let evaluation = match timeline.pages.first() {
        None => Err(NoPolicies::NoPair),
        Some(_) if n < FEWEST_INTERVALS => Err(too_short(n)),
        Some(pair) => {
            let vm = VmKind { host_page: pair.host_page, ..VmKind::default() };
            let scale = Scale::both(plan.time_scale);
            let options = evaluate::Options { vm, scale, estimator: Some(Estimator::fitted()) };
            let input = evaluate::Input { name: "this run".into(), timeline };
            evaluate::evaluate(&[input], &Named::policies(), &options)
                .map_err(|e| NoPolicies::Refused(e.to_string()))
        }
    };
    RunPolicies { evaluation, checks }
}
