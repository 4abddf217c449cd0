// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Policies over the run's own timeline: what the run would have cost with switches of the mode.

use super::{Carried, Plan};
use bifold_policy::{Estimator, Named, Scale, Timeline, VmKind, evaluate, replay_check};
use bifold_report::RunPolicies;

/// The fewest intervals on which a policy can be judged.
pub const FEWEST_INTERVALS: usize = 5;

/// The error for a timeline of too few intervals.
pub fn too_short(intervals: usize) -> anyhow::Error {
    let s = if intervals == 1 { "" } else { "s" };
    anyhow::anyhow!(
        "too short: {intervals} interval{s}, where no policy can be judged on fewer than \
         {FEWEST_INTERVALS} (capture it with a shorter --interval)"
    )
}

/// Replays every built-in policy over a run's own timeline, in a VM that keeps its nested tables.
pub fn over(carried: &Carried, timeline: Timeline, plan: &Plan) -> RunPolicies {
    let checks = replay_check::checks(&timeline);
    let n = timeline.intervals();
    if let Some(why) = carried.no_timeline() {
        return RunPolicies { evaluation: Err(format!("they need a timeline, and {why}")), checks };
    }
    let evaluation = match timeline.pages.first() {
        None => Err("they need shadow and nested of one page size among --configs".to_string()),
        Some(_) if n < FEWEST_INTERVALS => Err(too_short(n).to_string()),
        Some(pair) => {
            let vm = VmKind { host_page: pair.host_page, ..VmKind::default() };
            let scale = Scale::both(plan.time_scale);
            let options = evaluate::Options { vm, scale, estimator: Some(Estimator::fitted()) };
            let input = evaluate::Input { name: "this run".into(), timeline };
            evaluate::evaluate(&[input], &Named::policies(), &options).map_err(|e| e.to_string())
        }
    };
    RunPolicies { evaluation, checks }
}
