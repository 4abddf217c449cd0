// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon remembers of a guest's memory: its rule, what its policy wants, and how often memory was
//! taken.

pub mod control;
mod done;
mod status;

use super::{Hold, ProcessId};
use crate::config::VmMemory;
use crate::log::{Log, RecentEvents};
use crate::status::GuestTotals;
use bifold_host::{LiveGuest, printable};
use bifold_live::order::{SizeObservation, mib};
use bifold_live::reporter::MemoryView;
use bifold_reclaim::{GuestObservation, PolicyName};
use control::{Control, LastLook};
use done::Done;
use std::collections::{BTreeSet, VecDeque};
use std::sync::Arc;
use std::thread::JoinHandle;
use std::time::Duration;

pub const FRAME: u64 = 4096;
pub const MIB: u64 = 1 << 20;
const HOUR: Duration = Duration::from_secs(3600);
/// Looks and reports that are older say nothing of now.
const OLD: Duration = Duration::from_secs(60);
/// The smallest part of its memory that is taken of a guest, and the largest such amount.
const STEP_PART: u64 = 128;
const STEP_MOST: u64 = 16 * MIB;
/// The pause after an order that was refused or has ended early, which doubles as long as that goes on, and
/// its longest.
const PAUSE: Duration = Duration::from_secs(30);
const LONGEST: Duration = Duration::from_secs(1800);

/// What the policy wants of a guest.
#[derive(Debug, Clone, PartialEq)]
pub struct WantedSize {
    /// The size in bytes.
    pub size: u64,
    /// Why, in words.
    pub why: String,
}

/// What is known of a guest's free memory.
#[derive(Debug, Clone, Copy, PartialEq)]
struct Inside {
    free: Option<u64>,
    available: Option<u64>,
    from: &'static str,
}

/// A guest with a rule about its memory.
pub struct MemoryHalf {
    pub live: LiveGuest,
    pub pattern: String,
    pub rule: VmMemory,
    pub control: Arc<Control>,
    pub thread: Option<JoinHandle<()>>,
    pub hold: Option<Hold>,
    /// Whether a user had everything given back: nothing is done until the release.
    pub undone: bool,
    /// Why no order is made any more: another program orders sizes.
    another: Option<String>,
    /// When memory was taken, in the last hour.
    takes: VecDeque<Duration>,
    /// The length of the next pause, and until when this one lasts and why.
    pause: Duration,
    paused: Option<(Duration, String)>,
    /// The last report from inside, and when it came; the one that a decision had last, or began with.
    reported: Option<(Duration, MemoryView)>,
    decided: Option<(Duration, MemoryView)>,
    wish: Option<WantedSize>,
    done: Option<Done>,
    /// Why the policy leaves the guest out.
    missing: Option<String>,
    logged: Option<Done>,
    /// The findings that the log has.
    found: BTreeSet<&'static str>,
    pub recent: RecentEvents,
    totals: GuestTotals,
    /// Whether its memory could not be given back.
    pub lost: bool,
}

impl MemoryHalf {
    pub fn new(live: LiveGuest, pattern: String, rule: VmMemory) -> MemoryHalf {
        MemoryHalf {
            live,
            pattern,
            rule,
            control: Arc::default(),
            thread: None,
            hold: None,
            undone: false,
            another: None,
            takes: VecDeque::new(),
            pause: PAUSE,
            paused: None,
            reported: None,
            decided: None,
            wish: None,
            done: None,
            missing: None,
            logged: None,
            found: BTreeSet::new(),
            recent: RecentEvents::default(),
            totals: GuestTotals::default(),
            lost: false,
        }
    }

    /// Takes over what was known of the same process before its rule went, or its thread ended.
    pub fn inherit(&mut self, before: &MemoryHalf) {
        (self.hold, self.undone, self.another) = (before.hold, before.undone, before.another.clone());
        (self.takes, self.totals) = (before.takes.clone(), before.totals);
        (self.pause, self.paused) = (before.pause, before.paused.clone());
        (self.recent, self.found) = (before.recent.clone(), before.found.clone());
    }

    /// The guest's process.
    pub fn process(&self) -> ProcessId {
        (self.live.pid, self.live.started)
    }

    /// The guest in words, with control characters escaped.
    pub fn who(&self) -> String {
        format!("VM {} (process {})", printable(&self.live.name), self.live.pid)
    }

    /// Notes something that happened to the guest, in the log and in its own history. Returns the log's line.
    pub fn tell(&mut self, log: &mut Log, text: String) -> String {
        let line = format!("{} {text}", self.who());
        log.say(self.live.vm, line.clone());
        self.recent.add(log.time, text);
        line
    }

    /// Whether the guest's thread has ended, or never was.
    pub fn is_over(&self) -> bool {
        self.thread.as_ref().is_none_or(JoinHandle::is_finished)
    }

    /// Lets the guest's thread know what the rule allows.
    pub fn allow(&self, every: Duration) {
        self.control.set(self.rule.act && !self.undone, every);
    }

    /// Takes a rule that differs. What the guest has learnt stays.
    pub fn take_rule(&mut self, pattern: &str, rule: &VmMemory) {
        (self.pattern, self.rule) = (pattern.into(), rule.clone());
        self.forget();
    }

    /// Leaves the guest the size that it has: an order that has taken less than it was to take stops there,
    /// and one that has taken nothing ends.
    pub fn hold(&mut self, hold: Hold) {
        // What a user had given back stays so until the release.
        self.hold = Some(if self.undone { Hold { until: None } } else { hold });
        let (wishes, Some(wanted)) = self.control.wish() else { return };
        let under = self.control.under().filter(|under| under.size.saturating_add(MIB) < under.found);
        let size = under.map(|under| under.size.max(wanted));
        if size != Some(wanted) {
            // If the order has ended meanwhile, nothing is wanted.
            self.control.want_if(wishes, size);
        }
    }

    /// Lets the policy decide again, with the next decision. Returns whether the guest was held.
    pub fn release(&mut self) -> bool {
        self.forget();
        self.undone = false;
        self.hold.take().is_some()
    }

    /// Gives everything back and holds the guest so: others may order sizes. Returns what that means.
    pub fn undo(&mut self) -> &'static str {
        self.hold = Some(Hold { until: None });
        let had = self.control.wanted().is_some() || self.control.under().is_some();
        self.undone = true;
        self.control.rest();
        if had { "gets its memory back and is held" } else { "has all of its memory and is held" }
    }

    /// Lets a guest that no order was possible for be tried again, as the configuration was read again.
    pub fn forget(&mut self) {
        (self.another, self.paused, self.pause, self.logged) = (None, None, PAUSE, None);
        self.control.forget();
    }

    /// The memory that the guest has without the daemon's orders.
    fn all(&self, sight: &LastLook) -> u64 {
        self.control.under().map_or(sight.size.size, |under| under.found.max(sight.size.size))
    }

    /// What is known of the guest's free memory: by its balloon if its statistics are of the last seconds,
    /// else by its reporter, if that is newer.
    fn inside(&self, sight: &LastLook, up: Duration, every: Duration) -> Option<Inside> {
        let age = sight.at.elapsed().saturating_add(Duration::from_secs(sight.age_s));
        let SizeObservation { free, available, .. } = sight.size;
        let balloon =
            (free.is_some() && age <= OLD).then_some((age, Inside { free, available, from: "balloon" }));
        let reporter = self.reported.as_ref().and_then(|(at, view)| {
            let age = up.saturating_sub(*at);
            let inside = Inside { free: view.free, available: view.available, from: "reporter" };
            (age <= OLD && view.free.is_some()).then_some((age, inside))
        });
        match (balloon, reporter) {
            (Some((age, _)), Some((newer, inside))) if age > every * 2 && newer < age => Some(inside),
            (Some((_, inside)), _) | (None, Some((_, inside))) => Some(inside),
            (None, None) => None,
        }
    }

    /// Takes a report from inside the guest.
    pub fn report(&mut self, up: Duration, view: MemoryView) {
        self.reported = Some((up, view));
    }

    /// The part of the time that the guest waited for memory between two reports; `None` without a report
    /// since the last decision, which is not to take a silent reporter for a guest that does not wait.
    fn waited(&mut self) -> Option<f64> {
        let (at, now) = self.reported?;
        let before = self.decided.filter(|(before, _)| *before < at);
        if self.decided.is_none_or(|(before, _)| before < at) {
            self.decided = self.reported;
        }
        let (since, before) = before.filter(|(before, _)| at - *before <= OLD)?;
        let us = now.waited_us?.checked_sub(before.waited_us?)?;
        Some((us as f64 / 1e6 / (at - since).as_secs_f64()).min(1.0))
    }

    /// What the policy is to see of the guest, and the reason that fits it, in words; a guest whose state is
    /// not known keeps its size. `None` if the guest was never seen.
    pub fn seen(
        &mut self,
        policy: PolicyName,
        up: Duration,
        every: Duration,
        total: u64,
    ) -> Option<(GuestObservation, String)> {
        let (sight, silent) = self.control.sight();
        let sight = sight?;
        let old = sight.at.elapsed() > OLD;
        // What QEMU says is its owner's word: more than the host has is no claim on what others have.
        let (all, size) = (self.all(&sight).min(total), sight.size.size.min(total));
        let most = self.rule.most.unwrap_or(u64::MAX).min(all);
        let least = self.rule.least.unwrap_or(all / 4).min(most);
        let inside = self.inside(&sight, up, every);
        let free = inside.and_then(|i| i.free);
        let waited = self.waited();
        self.missing = match policy {
            _ if old || silent.is_some() => Some(silent.unwrap_or_else(|| "it was not seen for a minute".into())),
            PolicyName::Mom | PolicyName::Proxmox if free.is_none() => Some(format!(
                "policy {} needs the free memory in it: its balloon sends no statistics, and no reporter tells",
                policy.name()
            )),
            PolicyName::Feedback if waited.is_none() => Some(
                "policy feedback needs its waits for memory since the last decision: bifold-reporter has to run in it, on a kernel with PSI".into(),
            ),
            _ => None,
        };
        let in_frames = |bytes: u64| bytes / FRAME;
        // A guest that is not known keeps what it has been given.
        let fixed = self.control.wanted().unwrap_or(all).min(all);
        let (least, most) = if self.missing.is_some() { (fixed, fixed) } else { (least, most) };
        let seen = GuestObservation {
            least: in_frames(least),
            most: in_frames(most),
            size: in_frames(size),
            held: sight.size.resident.unwrap_or(size).min(all) as f64 / FRAME as f64,
            in_use: in_frames(size.saturating_sub(free.unwrap_or(0))) as f64,
            pressure: waited.unwrap_or(0.0),
            touched: None,
        };
        let why = match policy {
            PolicyName::Feedback => {
                format!("it waited for memory {:.2} % of the time", 100.0 * seen.pressure)
            }
            PolicyName::Equal => "its part of the limit".into(),
            _ => format!("{} MiB free in it", free.map_or(0, mib)),
        };
        Some((seen, why))
    }

    /// Carries a wish of the policy out, as far as the rule and its limits allow. Returns the log's line if
    /// it is news, and the size, the wish and what was done for the recording.
    pub fn decide(&mut self, wish: WantedSize, up: Duration) -> (Option<String>, u64, Done) {
        let Some(sight) = self.control.sight().0 else { return (None, 0, Done::Stayed) };
        let all = self.all(&sight);
        let (wishes, wanted) = self.control.wish();
        let now = wanted.unwrap_or(all).min(all);
        let size = wish.size.min(all);
        let step = (all / STEP_PART).clamp(MIB, STEP_MOST);
        let (done, by) = if self.missing.is_some() {
            (Done::Stayed, 0)
        } else if size > now.saturating_add(MIB) {
            let give = if self.hold.is_some_and(|hold| hold.lasts(up)) { Done::Held } else { Done::Gives };
            (give, size - now)
        } else if size.saturating_add(step) <= now {
            (self.may_take(&sight, up).map_or(Done::Takes, |why_not| why_not), now - size)
        } else {
            (Done::Stayed, 0)
        };
        let done = match done {
            // An order that is to have all of the memory has to end.
            Done::Gives if self.control.want_if(wishes, (size.saturating_add(MIB) < all).then_some(size)) => {
                self.totals.gives += 1;
                done
            }
            Done::Takes if self.control.want_if(wishes, Some(size)) => {
                self.takes.push_back(up);
                self.totals.takes += 1;
                done
            }
            Done::Gives | Done::Takes => Done::NotTaken("its order has just ended".into()),
            done => done,
        };
        let verb = match &done {
            Done::Stayed => "stays".to_owned(),
            Done::Takes => format!("gives {} MiB, to {} MiB", mib(by), mib(size)),
            Done::Gives => format!("gets {} MiB back, to {} MiB", mib(by), mib(size)),
            Done::WouldTake => format!("would give {} MiB, to {} MiB", mib(by), mib(size)),
            other => format!("is to have {} MiB instead of {} MiB, {other}", mib(size), mib(now)),
        };
        let text = format!("{verb} ({})", wish.why);
        let news = done != Done::Stayed && self.logged.as_ref().is_none_or(|before| !done.is_like(before));
        self.logged = Some(done.clone());
        (self.wish, self.done) = (Some(wish), Some(done.clone()));
        (news.then_some(text), now, done)
    }

    /// Why no memory may be taken of the guest now.
    fn may_take(&mut self, sight: &LastLook, up: Duration) -> Option<Done> {
        self.hold = self.hold.filter(|hold| hold.lasts(up));
        if self.paused.as_ref().is_some_and(|(until, _)| *until <= up) {
            self.paused = None;
        }
        while self.takes.front().is_some_and(|at| up.saturating_sub(*at) > HOUR) {
            self.takes.pop_front();
        }
        let stay = Duration::from_secs_f64(self.rule.limits.min_stay_s);
        let stayed = self.takes.back().map_or(Duration::MAX, |at| up.saturating_sub(*at));
        match (&self.another, &self.paused) {
            _ if !self.rule.act => Some(match &sight.refused {
                Some(why) => Done::NotTaken(why.clone()),
                None => Done::WouldTake,
            }),
            _ if self.hold.is_some() => Some(Done::Held),
            (Some(why), _) => Some(Done::NotTaken(why.clone())),
            // An order that is under way was accepted.
            _ if sight.refused.is_some() && self.control.under().is_none() => {
                Some(Done::NotTaken(sight.refused.clone().unwrap_or_default()))
            }
            (_, Some((_, why))) => Some(Done::NotTaken(why.clone())),
            _ if stayed < stay => Some(Done::TooEarly(stay - stayed)),
            _ if self.takes.len() as u64 >= self.rule.limits.most_orders_per_hour => {
                Some(Done::TooMany(self.takes.len()))
            }
            _ => None,
        }
    }
}
