// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Steers one order: from looks at the guest, what to do next. It does no input or output, so that tests can
//! carry out thousands of orders on simulated guests.
//!
//! An order goes in steps. Before the first step, the guest's faults are counted for a while. After each step
//! the size must settle and the guest must send new statistics; only then the next step is made, from these.
//! Every look is checked first, also while a reached size is held: what was taken is given back as soon as
//! the guest may miss it.

mod why;

use super::Goal;
use std::time::Duration;
pub use why::{Why, mib};

const MIB: u64 = 1 << 20;
/// Part of a guest's used memory that stays free besides, and least bytes of it. A guest of Linux reclaims in
/// the background below its high watermark, some percent of its memory, and kills processes soon after; its
/// use grows between two looks.
const MARGIN_PART: u64 = 10;
const MARGIN_LEAST: u64 = 64 * MIB;
/// Without deflate-on-oom, a guest that runs short has no way to take pages out of its balloon: twice the
/// margin.
const WITHOUT_DEFLATE: u64 = 2;
/// Longest step as a part of the size, and as a part of what may still be taken: steps become shorter near
/// the floor.
const STEP_PART: u64 = 8;
const STEP_ROOM: u64 = 4;
const STEP_LEAST: u64 = 16 * MIB;
/// Most bytes of one write to `memory.reclaim`, during which the order looks at nothing.
const RECLAIM_MOST: u64 = 256 * MIB;
/// Faults per second beyond twice those before the order. A fault that reads from flash takes 0.1 to 1 ms, so
/// 100 take 1 to 10 % of a processor's time.
const FAULTS: f64 = 100.0;
/// A size that has not come nearer to its target for so long is stuck. Linux's driver tries again every 0.2
/// s.
const STUCK: Duration = Duration::from_secs(10);
/// Intervals of the statistics that may be missed, and least time.
const STALE_INTERVALS: u32 = 3;
const STALE_LEAST: Duration = Duration::from_secs(10);
/// Updates of the statistics that are awaited before the first step, for the rate of faults without an order.
const BASELINE_UPDATES: u32 = 3;
/// How far the process's resident memory may grow while its guest's shrinks: a part of what was taken, and
/// some bytes for QEMU itself.
const RISE_PART: u64 = 4;
const RISE_LEAST: u64 = 16 * MIB;

/// What was seen of a guest at one time.
#[derive(Debug, Clone, Copy, Default, PartialEq, Eq)]
pub struct SizeObservation {
    /// When, since the order began.
    pub at: Duration,
    /// Whether its vCPUs run.
    pub running: bool,
    /// Whether it is on its way to another host.
    pub migrating: bool,
    /// Its size in bytes, as the way of the order counts it.
    pub size: u64,
    /// Unused bytes.
    pub free: Option<u64>,
    /// Bytes that its programs can take without swapping.
    pub available: Option<u64>,
    /// Bytes that it cannot do without: all that it has, without what is available; `None` if that cannot be
    /// true.
    pub used: Option<u64>,
    /// Changes with each update of the statistics.
    pub updated: Option<u64>,
    /// Faults since boot that read from a disk.
    pub faults: Option<u64>,
    /// Processes that it killed for lack of memory.
    pub oom_kills: Option<u64>,
    /// Resident bytes of its process.
    pub resident: Option<u64>,
}

/// What to do next.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Act {
    /// Look again.
    Wait,
    /// Order this size, then look again.
    Order(u64),
    /// The order's size is reached, or as much of it as the floor allows: hold it, and look again.
    Hold {
        /// Whether it is the order's size.
        whole: bool,
    },
    /// Give everything back, and end.
    GiveBack(Why),
    /// Another controller has the guest's size: leave it, and end.
    Leave(Why),
}

/// Where an order is.
#[derive(Debug, Clone, Copy, PartialEq)]
enum Phase {
    /// Counts faults before the first step.
    Before,
    /// A size is ordered. The nearest that it came, and when.
    Moving { nearest: u64, since: Duration },
    /// A part is given back. The nearest that the size came to the target, and when.
    Growing { nearest: u64, since: Duration },
    /// It has settled; statistics from after that are awaited.
    Settled { updated: Option<u64> },
    /// The end of the steps.
    Holding,
}

/// The state of an order.
#[derive(Debug, Clone)]
pub struct Steer {
    goal: Goal,
    first: SizeObservation,
    phase: Phase,
    /// The last target.
    target: u64,
    /// The least size that may be ours: the last target, or one before it that the guest may still be on its
    /// way to.
    least: u64,
    /// The last look with new statistics, and when they were new.
    counted: SizeObservation,
    updates: u32,
    /// Faults per second without an order, or before it.
    baseline: f64,
}

impl Steer {
    /// An order on a guest, from the first look at it.
    pub fn new(goal: Goal, first: SizeObservation) -> Steer {
        let target = first.size;
        Steer {
            goal,
            first,
            phase: Phase::Before,
            target,
            least: target,
            counted: first,
            updates: 0,
            baseline: 0.0,
        }
    }

    /// Changes the size that the order is to reach. A larger one than the last target gives a part back with
    /// the next look; a smaller one continues the steps. The host's memory may grow from here on: a guest
    /// that lives with an order grows in what it was left. Orders by another way than the balloon keep their
    /// size.
    pub fn aim(&mut self, size: u64) {
        let size = size.min(self.first.size);
        if !self.goal.way.inflates() {
            return;
        }
        // The guest may grow in what it is left.
        self.first.resident = None;
        if size == self.goal.size {
            return;
        }
        self.goal.size = size;
        if self.phase == Phase::Holding {
            self.phase = Phase::Settled { updated: None };
        }
    }

    /// The least size that the order may go to, by this look; `None` if it cannot be known.
    pub fn floor(&self, look: &SizeObservation) -> Option<u64> {
        if let Some(floor) = self.goal.floor {
            // The user's floor may be below what the guest uses, and still no step is to run it dry.
            let available = look.available.filter(|_| self.goal.statistics && !self.goal.way.pages_out());
            let dry = available
                .map_or(0, |a| look.size.saturating_add(self.scaled(MARGIN_LEAST)).saturating_sub(a));
            return Some(floor.max(dry));
        }
        let (used, margin) = (look.used?, self.margin(look)?);
        if self.goal.way.pages_out() {
            // What the host pages out is still the guest's, so its available memory stays.
            return Some(used.saturating_add(margin));
        }
        // What is available may go, whatever else the guest has besides this size.
        Some(look.size.saturating_add(margin).saturating_sub(look.available?))
    }

    fn margin(&self, look: &SizeObservation) -> Option<u64> {
        Some(self.scaled((look.used? / MARGIN_PART).max(MARGIN_LEAST)))
    }

    fn scaled(&self, margin: u64) -> u64 {
        if self.goal.deflates { margin } else { margin.saturating_mul(WITHOUT_DEFLATE) }
    }

    /// Whether anything was ordered.
    pub fn has_begun(&self) -> bool {
        self.target != self.first.size
    }

    /// What to do after this look.
    pub fn next(&mut self, look: &SizeObservation) -> Act {
        if let Some(act) = self.guard(look) {
            return act;
        }
        if self.has_begun() && self.goal.size > self.target {
            // The guest may have gone on towards the smaller size since this look.
            self.least = self.least.min(self.target);
            self.target = self.goal.size;
            // The guest may not have followed the last step yet.
            let above = look.size > self.target.saturating_add(self.goal.slack);
            let (nearest, since) = (look.size, look.at);
            self.phase =
                if above { Phase::Moving { nearest, since } } else { Phase::Growing { nearest, since } };
            return Act::Order(self.target);
        }
        match self.phase {
            Phase::Before if self.goal.statistics && self.updates < BASELINE_UPDATES => Act::Wait,
            Phase::Before => self.step(look),
            Phase::Moving { nearest, since } => self.moving(look, nearest, since),
            Phase::Growing { nearest, since } => self.growing(look, nearest, since),
            Phase::Settled { updated } if self.goal.statistics && look.updated == updated => Act::Wait,
            Phase::Settled { .. } => self.step(look),
            Phase::Holding => Act::Hold { whole: self.target <= self.goal.size },
        }
    }

    /// The next step from a settled size.
    fn step(&mut self, look: &SizeObservation) -> Act {
        // What the guest lacks to its target is not there to take.
        let from = look.size.min(self.target);
        let floor = self.floor(look).unwrap_or(u64::MAX);
        let room = from.saturating_sub(floor);
        let step =
            self.goal.step.unwrap_or_else(|| (from / STEP_PART).min((room / STEP_ROOM).max(STEP_LEAST)));
        let step = if self.goal.way.pages_out() { step.min(RECLAIM_MOST) } else { step };
        let by = step.min(room).min(from.saturating_sub(self.goal.size));
        // A step is a block of virtio-mem at least, where there is room for one.
        let unit = self.goal.unit;
        let by = if by < unit && unit <= room.min(from.saturating_sub(self.goal.size)) { unit } else { by };
        let target = from - by / unit * unit;
        if target == from {
            self.phase = Phase::Holding;
            return Act::Hold { whole: self.target <= self.goal.size };
        }
        (self.target, self.least) = (target, target);
        self.phase = Phase::Moving { nearest: look.size, since: look.at };
        Act::Order(target)
    }

    fn moving(&mut self, look: &SizeObservation, nearest: u64, since: Duration) -> Act {
        if look.size <= self.target.saturating_add(self.goal.slack) {
            self.phase = Phase::Settled { updated: look.updated };
            return Act::Wait;
        }
        if self.goal.way.pages_out() {
            // The kernel has taken what it found.
            self.target = look.size;
            self.phase = Phase::Holding;
            return Act::Hold { whole: false };
        }
        // Some pages now and then are no progress.
        if look.size.saturating_add(self.goal.slack) <= nearest {
            self.phase = Phase::Moving { nearest: look.size, since: look.at };
        } else if look.at.saturating_sub(since) > STUCK {
            return Act::GiveBack(Why::Stuck { size: look.size, target: self.target });
        }
        Act::Wait
    }

    fn growing(&mut self, look: &SizeObservation, nearest: u64, since: Duration) -> Act {
        if look.size.saturating_add(self.goal.slack) >= self.target {
            self.least = self.target;
            self.phase = Phase::Settled { updated: look.updated };
        } else if look.size >= nearest.saturating_add(self.goal.slack) {
            self.phase = Phase::Growing { nearest: look.size, since: look.at };
        } else if look.at.saturating_sub(since) > STUCK {
            return Act::GiveBack(Why::Stuck { size: look.size, target: self.target });
        }
        Act::Wait
    }

    /// What ends the order.
    fn guard(&mut self, look: &SizeObservation) -> Option<Act> {
        let back = |why| Some(Act::GiveBack(why));
        if !look.running {
            return back(Why::Stopped);
        }
        if look.migrating {
            return back(Why::Migrating);
        }
        if let Some(act) = self.guard_size(look) {
            return Some(act);
        }
        if look.oom_kills > self.first.oom_kills && self.first.oom_kills.is_some() {
            return back(Why::Killed);
        }
        if !self.goal.statistics {
            return None;
        }
        if look.updated == self.counted.updated {
            let old = look.at.saturating_sub(self.counted.at);
            let patience =
                Duration::from_secs(self.goal.polling_s).saturating_mul(STALE_INTERVALS).max(STALE_LEAST);
            return (old > patience).then_some(Act::GiveBack(Why::Stale { seconds: old.as_secs() }));
        }
        let (seconds, faults) =
            ((look.at.saturating_sub(self.counted.at)).as_secs_f64(), self.counted.faults);
        let more = look.faults.zip(faults).map_or(0, |(now, before)| now.saturating_sub(before));
        self.counted = *look;
        self.updates = self.updates.saturating_add(1);
        // The first update only begins an interval. The intervals of a guest's timer vary by some tenths of a
        // second.
        let rate = if self.updates > 1 { more as f64 / seconds.max(0.5) } else { 0.0 };
        if self.phase == Phase::Before {
            self.baseline = self.baseline.max(rate);
        }
        let limit = 2.0 * self.baseline + FAULTS;
        if rate > limit {
            return back(Why::Faults { rate, limit });
        }
        if self.goal.way.pages_out() {
            return None;
        }
        match look.available {
            Some(_) if look.used.is_none() => back(Why::Untrue),
            Some(available) => {
                let own = self.scaled(MARGIN_LEAST) / 2;
                let least =
                    if self.goal.floor.is_some() { own } else { self.margin(look).unwrap_or(own) / 2 };
                (available < least && self.has_begun())
                    .then_some(Act::GiveBack(Why::Short { available, least }))
            }
            // The floor is the user's, and the guest tells of its faults alone.
            None => None,
        }
    }

    /// What ends the order by the guest's size. A cgroup's is the kernel's to choose.
    fn guard_size(&self, look: &SizeObservation) -> Option<Act> {
        if self.goal.way.pages_out() {
            return None;
        }
        let back = |why| Some(Act::GiveBack(why));
        let Goal { slack, .. } = self.goal;
        let from = match self.phase {
            Phase::Growing { nearest, .. } => nearest.min(self.target),
            _ => self.target,
        }
        .min(self.least);
        let (least, most) = (from.saturating_sub(slack), self.first.size.saturating_add(slack));
        if !(least..=most).contains(&look.size) {
            return Some(Act::Leave(Why::Another { size: look.size }));
        }
        let above = match self.phase {
            Phase::Before => most,
            Phase::Moving { nearest, .. } => nearest.saturating_add(slack),
            Phase::Growing { .. } | Phase::Settled { .. } | Phase::Holding => {
                self.target.saturating_add(2 * slack)
            }
        };
        if look.size > above {
            return back(Why::Rises { size: look.size, target: self.target });
        }
        let (taken, before) = (self.first.size.saturating_sub(look.size), self.first.resident);
        let by = look.resident.zip(before).map_or(0, |(now, before)| now.saturating_sub(before));
        if self.phase != Phase::Holding && self.has_begun() && by > taken / RISE_PART + RISE_LEAST {
            return back(Why::HostRises { by, taken });
        }
        None
    }
}
