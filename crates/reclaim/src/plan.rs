// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Several guests' timelines under each policy: refaults, stalls, the guest that is worst off, and why.

use crate::policies::PolicyName;
use crate::replay::{Guest, Host, Tick};
use crate::steps::{longest_interval, steps};
use crate::timeline::MemoryTimeline;
use schemars::JsonSchema;
use serde::Serialize;

/// Most steps of a plan.
const MOST_STEPS: f64 = 100_000.0;
/// Steps of an interval, if none are asked for. Guests that lack memory wait most of the time, so that in one
/// interval of the ideal run they run for seconds, and a policy decides more than once.
const STEPS_PER_INTERVAL: f64 = 16.0;
/// Most steps with shorter ones than intervals, if none are asked for.
const DEFAULT_STEPS: f64 = 4000.0;

/// The host and the clock of a plan.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct Setting {
    /// The host's memory for guests, in frames of 4 KB.
    pub host_frames: u64,
    /// The least that each guest has, in frames: never below the smallest size of its timeline, and never
    /// above its memory.
    pub floor_frames: u64,
    /// What a refault costs, s.
    pub refault_s: f64,
    /// Time between decisions, in s of the guests. `None`: a sixteenth of the longest of the timelines' mean
    /// intervals, and up to one interval where that would be more than 4,000 steps.
    pub step_s: Option<f64>,
    /// Seconds of a policy in a second of the guests.
    pub time_scale: f64,
}

impl Setting {
    /// A random read of 4 KB from an NVMe disk for data centres, in s: 85 us by the data sheet of Intel's
    /// P4500 with 1 TB (as in Lenovo's product guide of it). The host's own work for the fault comes on top,
    /// and is left out.
    pub const NVME_S: f64 = 85e-6;
}

/// All policies over the same guests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Plan {
    /// The host's memory for guests. Unit: frames of 4 KB.
    pub host_frames: u64,
    /// Sum over guests of the mean working set of intervals in which the guest ran. Unit: frames of 4 KB.
    pub working_set_frames: u64,
    /// Time between decisions. Unit: s of the guests.
    pub step_seconds: f64,
    /// Number of decisions.
    pub steps: u64,
    /// Time that a guest waits for a refault. Unit: s.
    pub refault_seconds: f64,
    /// Seconds of a policy in a second of the guests.
    pub time_scale: f64,
    /// The policies, in the order asked for.
    pub policies: Vec<PolicyPlan>,
}

/// What one policy makes of the guests.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct PolicyPlan {
    /// The policy.
    pub name: &'static str,
    /// What the policy must know of guests, in words.
    pub needs: &'static str,
    /// Misses of all guests beyond first references.
    pub refaults: u64,
    /// The part of the refaults that new memory, being empty, cost.
    pub refaults_while_growing: u64,
    /// Time that guests waited for refaults. Unit: s.
    pub stall_seconds: f64,
    /// Dirty memory that was taken from guests. Unit: frames of 4 KB.
    pub written_frames: u64,
    /// The guest that lost most beside the equal split; null if no guest refaulted in either.
    pub worst: Option<Worst>,
    /// The guest and the step with the most refaults; null if there were no refaults.
    pub costliest: Option<Costliest>,
    /// The guests, in the order given.
    pub guests: Vec<GuestPlan>,
}

/// A guest beside itself under the equal split.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Worst {
    /// The guest's name.
    pub guest: String,
    /// Stalls of the guest over those under the equal split; null if there were none under that.
    pub ratio: Option<f64>,
}

/// One step of one guest.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct Costliest {
    /// The guest's name.
    pub guest: String,
    /// Start of the step. Unit: s of the guest.
    pub seconds: f64,
    /// Refaults in the step.
    pub refaults: u64,
    /// The part of the refaults that new memory, being empty, cost.
    pub while_growing: u64,
    /// The guest's size. Unit: frames of 4 KB.
    pub size_frames: u64,
    /// The guest's working set. Unit: frames of 4 KB.
    pub working_set_frames: u64,
    /// Why the guest refaulted so much, in a sentence without its subject.
    pub reason: String,
}

/// One guest under a policy.
#[derive(Debug, Clone, PartialEq, Serialize, JsonSchema)]
pub struct GuestPlan {
    /// The guest's name.
    pub name: String,
    /// Misses of the guest beyond first references.
    pub refaults: u64,
    /// Time that the guest waited for refaults. Unit: s.
    pub stall_seconds: f64,
    /// Dirty memory that was taken from the guest. Unit: frames of 4 KB.
    pub written_frames: u64,
    /// The guest's mean size. Unit: frames of 4 KB.
    pub mean_frames: u64,
    /// The guest's smallest size. Unit: frames of 4 KB.
    pub least_frames: u64,
}

/// Why there is no plan.
#[derive(Debug, Clone, PartialEq, thiserror::Error)]
#[non_exhaustive]
pub enum PlanError {
    /// There is no guest.
    #[error("no timeline is given")]
    NoGuest,
    /// The host has less than the guests' least.
    #[error(
        "a host of {host_frames} frames of 4 KB has less than the floors of its guests, {floors} frames: give it more, or guests less"
    )]
    HostTooSmall {
        /// The host's frames.
        host_frames: u64,
        /// The sum of the floors.
        floors: u64,
    },
    /// Too many decisions.
    #[error("{seconds} s in steps of {step_s} s are more than 100000 steps: use longer ones")]
    TooManySteps {
        /// The longest timeline.
        seconds: f64,
        /// Length of a step.
        step_s: f64,
    },
}

/// Replays policies over guests, each a name and a timeline.
///
/// ```
/// use bifold_reclaim::{About, MemoryTimeline, MemoryUse, PolicyName, ReferenceKind, Setting, plan};
/// use std::num::NonZeroU64;
///
/// // Two guests in loops: over 100 frames, and over 300.
/// let record = |frames: u64| {
///     let about = About { guest_frames: 512, ..About::default() };
///     let mut uses = MemoryUse::<64>::new(512, NonZeroU64::new(3000).unwrap(), 0)?;
///     for interval in 1..11 {
///         for frame in (0..frames).cycle().take(3000) {
///             uses.reference(frame, ReferenceKind::Data, false);
///         }
///         uses.ran(3000 * interval);
///     }
///     Ok::<_, bifold_reclaim::TooManyFrames>(MemoryTimeline::of(about, &uses, 0.1 / 3000.0))
/// };
/// let guests = [("small".to_string(), record(100)?), ("large".to_string(), record(300)?)];
/// let setting = Setting {
///     host_frames: 448,
///     floor_frames: 64,
///     refault_s: Setting::NVME_S,
///     step_s: None,
///     time_scale: 1.0,
/// };
/// let plan = plan(&guests, &[PolicyName::Equal, PolicyName::Oracle], &setting)?;
/// // Half of the host is too little for the larger loop, though both fit.
/// assert!(plan.policies[0].refaults > 9 * 3000);
/// assert_eq!(plan.policies[1].refaults, 0);
/// # Ok::<(), Box<dyn std::error::Error>>(())
/// ```
///
/// # Errors
///
/// No guest, a host below the guests' floors, or too many steps.
pub fn plan(
    guests: &[(String, MemoryTimeline)],
    names: &[PolicyName],
    setting: &Setting,
) -> Result<Plan, PlanError> {
    let timelines: Vec<&MemoryTimeline> = guests.iter().map(|(_, timeline)| timeline).collect();
    let seconds = timelines.iter().map(|t| t.seconds()).fold(0.0, f64::max);
    let step_s = setting.step_s.unwrap_or_else(|| {
        let interval = longest_interval(&timelines);
        (interval / STEPS_PER_INTERVAL).max((seconds / DEFAULT_STEPS).min(interval))
    });
    if guests.is_empty() {
        return Err(PlanError::NoGuest);
    }
    // Lengths that come from sums of intervals are off by their rounding.
    let count = (seconds / step_s - 1e-6).ceil().max(1.0);
    if count > MOST_STEPS {
        return Err(PlanError::TooManySteps { seconds, step_s });
    }
    let guest = |(name, timeline): &(String, MemoryTimeline)| {
        let most = timeline.about.guest_frames;
        let least = setting.floor_frames.max(timeline.sizes[0]).min(most);
        Guest { name: name.clone(), least, most, steps: steps(timeline, step_s, count as usize) }
    };
    let guests: Vec<Guest> = guests.iter().map(guest).collect();
    let floors = guests.iter().map(|guest| guest.least).sum();
    if setting.host_frames < floors {
        return Err(PlanError::HostTooSmall { host_frames: setting.host_frames, floors });
    }
    let host = Host {
        frames: setting.host_frames,
        step_s,
        refault_s: setting.refault_s,
        time_scale: setting.time_scale,
    };
    let equal = PolicyName::Equal.replay(&guests, host);
    Ok(Plan {
        host_frames: host.frames,
        working_set_frames: timelines.iter().map(|t| mean_working_set(t)).sum::<f64>().round() as u64,
        step_seconds: step_s,
        steps: count as u64,
        refault_seconds: host.refault_s,
        time_scale: host.time_scale,
        policies: names
            .iter()
            .map(|&name| summary(name, &guests, host, &name.replay(&guests, host), &equal))
            .collect(),
    })
}

/// Over the time in which the guest used memory.
fn mean_working_set(timeline: &MemoryTimeline) -> f64 {
    let used = || timeline.intervals.iter().filter(|interval| interval.working_set > 0);
    let frames: f64 = used().map(|i| i.working_set as f64 * i.seconds).sum();
    frames / used().map(|i| i.seconds).sum::<f64>().max(f64::MIN_POSITIVE)
}

fn refaults(ticks: &[Tick]) -> f64 {
    ticks.iter().map(|tick| tick.refaults).sum()
}

fn summary(
    name: PolicyName,
    guests: &[Guest],
    host: Host,
    ticks: &[Vec<Tick>],
    equal: &[Vec<Tick>],
) -> PolicyPlan {
    let rows: Vec<GuestPlan> =
        guests.iter().zip(ticks).map(|(guest, ticks)| row(guest, host, ticks)).collect();
    let growing: f64 = ticks.iter().flatten().map(|tick| tick.while_growing).sum();
    let refaults = rows.iter().map(|row| row.refaults).sum();
    PolicyPlan {
        name: name.name(),
        needs: name.needs(),
        refaults,
        refaults_while_growing: growing.round() as u64,
        stall_seconds: seconds(refaults, host),
        written_frames: rows.iter().map(|row| row.written_frames).sum(),
        worst: worst(guests, ticks, equal),
        costliest: costliest(guests, host, ticks),
        guests: rows,
    }
}

fn seconds(refaults: u64, host: Host) -> f64 {
    refaults as f64 * host.refault_s
}

fn row(guest: &Guest, host: Host, ticks: &[Tick]) -> GuestPlan {
    let refaults = refaults(ticks).round() as u64;
    let mean = ticks.iter().map(|tick| tick.size as f64).sum::<f64>() / ticks.len() as f64;
    GuestPlan {
        name: guest.name.clone(),
        refaults,
        stall_seconds: seconds(refaults, host),
        written_frames: ticks.iter().map(|tick| tick.written).sum::<f64>().round() as u64,
        mean_frames: mean.round() as u64,
        least_frames: ticks.iter().map(|tick| tick.size).min().unwrap_or(0),
    }
}

fn worst(guests: &[Guest], ticks: &[Vec<Tick>], equal: &[Vec<Tick>]) -> Option<Worst> {
    // Refaults are counted to the next whole one.
    let count = |ticks: &[Tick]| refaults(ticks).round();
    let ratio = |i: &usize| {
        let (here, there) = (count(&ticks[*i]), count(&equal[*i]));
        if there == 0.0 && here == 0.0 { 0.0 } else { here / there }
    };
    let some = (0..guests.len()).filter(|&i| count(&ticks[i]) + count(&equal[i]) > 0.0);
    // Of several that had no stalls, the one that has most now.
    let key = |i: &usize| (ratio(i), count(&ticks[*i]));
    let i = some.max_by(|a, b| key(a).partial_cmp(&key(b)).expect("no NaN"))?;
    Some(Worst { guest: guests[i].name.clone(), ratio: Some(ratio(&i)).filter(|r| r.is_finite()) })
}

fn costliest(guests: &[Guest], host: Host, ticks: &[Vec<Tick>]) -> Option<Costliest> {
    let all = ticks.iter().enumerate().flat_map(|(i, ticks)| (0..ticks.len()).map(move |n| (i, n)));
    let (i, n) = all.max_by(|&(i, n), &(j, m)| ticks[i][n].refaults.total_cmp(&ticks[j][m].refaults))?;
    let (guest, tick) = (&guests[i], &ticks[i][n]);
    let refaults = tick.refaults.round() as u64;
    let while_growing = tick.while_growing.round() as u64;
    let working_set = guest.steps[n].working_set.round() as u64;
    let before = n.checked_sub(1).map_or(tick.size, |n| ticks[i][n].size);
    let reason = match tick.size {
        _ if refaults == 0 => return None,
        size if while_growing * 2 > refaults => {
            format!("had {size} frames after {before}, and new memory is empty")
        }
        size if size < working_set && size < before => {
            format!("had {size} frames after {before}, and used {working_set}")
        }
        size if size < working_set => format!("had {size} frames and used {working_set}"),
        size => format!("had {size} frames, used {working_set}, and came back to frames used longer ago"),
    };
    Some(Costliest {
        guest: guest.name.clone(),
        seconds: n as f64 * host.step_s,
        refaults,
        while_growing,
        size_frames: tick.size,
        working_set_frames: working_set,
        reason,
    })
}
