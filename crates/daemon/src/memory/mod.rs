// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Divides the memory of a host among guests, by a policy that sees what the host sees of them.
//!
//! What holds at every moment:
//!
//! - a guest that no rule with the table `memory` fits is not looked at, and its monitor is left alone,
//!   except to give back what an order left that was killed ([`left`]);
//! - memory is taken only of guests whose rule says `act`, which no user holds, and as often as the limits
//!   allow; giving back is always allowed;
//! - sizes are ordered by [`bifold_live::order::Order`] alone: with its floor, its reasons to give everything
//!   back, its journal and its guardian, which gives the memory back if the daemon is killed;
//! - what a guest's monitor does holds up the guest's own thread ([`thread`]) and nothing else.

mod control;
mod divide;
mod guest;
mod left;
#[cfg(test)]
mod tests;
mod thread;

pub use thread::Place;

use crate::config::{Config, VmMemory};
use crate::engine::{Event, Hold};
use crate::record::MemoryLine;
use crate::status::{GuestStatus, MemoryStatus};
use bifold_host::LiveGuest;
use bifold_host::{Host, VmId, word_rank};
use bifold_live::order::places;
use bifold_live::reporter::MemoryView;
use bifold_reclaim::OnLine;
use guest::Guest;
use left::Left;
use std::collections::BTreeMap;
use std::thread::{JoinHandle, sleep};
use std::time::{Duration, Instant};
use thread::GuestThread;

const FRAME: u64 = 4096;
/// How long the daemon's end waits for the memory of all guests. An order tries a silent monitor for a
/// minute, and its guardian after that.
const END: Duration = Duration::from_secs(90);

/// A process, and when it started.
type Id = (u32, u64);

/// The memory of a host's guests.
#[derive(Default)]
pub struct Memory {
    /// What orders need.
    place: Option<Place>,
    /// Whether there is no such place, so that no guest is looked at.
    refuses: bool,
    /// Gives back what orders left that were killed, from the first tick on.
    left: Option<Left>,
    guests: BTreeMap<Id, Guest>,
    /// Guests without a rule, whose threads give everything back and end.
    ending: Vec<Guest>,
    /// The same whose threads have ended. Their holds and limits count again if a rule fits them again.
    past: BTreeMap<Id, Guest>,
    /// Guests whose memory could not be given back.
    lost: BTreeMap<Id, String>,
    policy: Option<(OnLine, Vec<Id>)>,
    /// The time of the last decision, and of the next.
    last: Option<Duration>,
    next: Duration,
    limit: Option<u64>,
    trouble: Option<String>,
    /// Why a guest has no thread.
    no_thread: Option<String>,
}

/// Something to log about a guest.
pub struct LogLine {
    /// KVM's identifier, if it has one.
    pub vm: Option<String>,
    /// What happened, in a sentence that begins with the guest.
    pub text: String,
}

impl Memory {
    /// Has orders made at this place.
    pub fn order_at(&mut self, place: Place) {
        self.place = Some(place);
    }

    /// Has no guest looked at, as orders have no place for their journals.
    pub fn refuse(&mut self) {
        self.refuses = true;
    }

    /// Takes another configuration with the next tick.
    pub fn reload(&mut self, before: &Config, now: &Config) {
        if before.memory.as_ref().map(|m| m.policy) != now.memory.as_ref().map(|m| m.policy) {
            self.policy = None;
        }
        self.guests.values_mut().chain(self.past.values_mut()).for_each(Guest::forget);
        self.next = Duration::ZERO;
        if now.memory.is_none() {
            (self.trouble, self.no_thread, self.limit) = (None, None, None);
        }
    }

    /// Looks for guests, and lets the policy decide if it is time to. Returns what is to be logged and
    /// recorded.
    pub fn tick(
        &mut self,
        host: &Host,
        config: &Config,
        up: Duration,
        time: f64,
    ) -> (Vec<LogLine>, Vec<MemoryLine>) {
        let (mut said, mut lines) = (Vec::new(), Vec::new());
        said.extend(self.left.iter_mut().flat_map(Left::news).map(|text| LogLine { vm: None, text }));
        if config.memory.is_none() {
            self.give_back_left(host);
        }
        if config.memory.is_none() && self.guests.is_empty() && self.ending.is_empty() {
            return (said, lines);
        }
        let over: Vec<bool> = self.ending.iter().map(is_over).collect();
        for guest in self.guests.values_mut().chain(&mut self.ending) {
            for text in guest.news(up) {
                tell(guest, time, text, &mut said);
            }
            if guest.lost {
                self.lost.insert((guest.live.pid, guest.live.started), guest.who());
            }
        }
        // Those that were over before their news were heard.
        let mut over = over.into_iter();
        let ending = std::mem::take(&mut self.ending);
        let (over, ending): (Vec<_>, _) = ending.into_iter().partition(|_| over.next().unwrap_or(true));
        self.ending = ending;
        self.past.extend(over.into_iter().map(|guest| ((guest.live.pid, guest.live.started), guest)));
        if up >= self.next {
            self.next = up + every(config);
            self.find(host, config, time, &mut said);
            // Behind the threads of guests, which look first what is left of theirs.
            self.give_back_left(host);
            self.decide(host, config, (up, time), &mut said, &mut lines);
        }
        (said, lines)
    }

    /// Begins to give back what orders left that were killed with their guardians, whatever the rules say
    /// now.
    fn give_back_left(&mut self, host: &Host) {
        if let (None, Some(place)) = (&self.left, &self.place) {
            match Left::begin(place.folder.clone(), host.clone()) {
                Ok(left) => self.left = Some(left),
                Err(e) => {
                    self.no_thread = Some(format!("no thread can be started for what orders have left: {e}"))
                }
            }
        }
    }

    /// Finds guests that have come, have ended, or whose rule is another.
    fn find(&mut self, host: &Host, config: &Config, time: f64, said: &mut Vec<LogLine>) {
        self.no_thread = None;
        let present: BTreeMap<Id, LiveGuest> =
            host.live_guests().into_iter().map(|g| ((g.pid, g.started), g)).collect();
        let gone: Vec<Id> = self.guests.keys().filter(|id| !present.contains_key(id)).copied().collect();
        // A host that cannot be read for a moment tells nothing.
        for id in gone.into_iter().filter(|id| matches!(host.lives(id.0, id.1), Ok(false))) {
            self.drop(id, "has ended", time, said);
        }
        let lives = |id: &Id| present.contains_key(id) || !matches!(host.lives(id.0, id.1), Ok(false));
        self.past.retain(|id, _| lives(id));
        self.lost.retain(|id, _| lives(id));
        // A thread that has ended before its guest leaves its work to another.
        let over = |guest: &Guest| guest.thread.is_some() && is_over(guest);
        let ended: Vec<Id> = self.guests.iter().filter(|(_, guest)| over(guest)).map(|(id, _)| *id).collect();
        self.ending.extend(ended.into_iter().filter_map(|id| self.guests.remove(&id)));
        for (id, mut live) in present {
            let ids = self.identify(host, &mut live);
            let rule = config.memory.as_ref().and_then(|_| {
                let rule = config.rule_of(&ids, Some(&live.name))?;
                Some((rule.vms.text().to_owned(), rule.memory.clone()?))
            });
            match (rule, self.guests.get_mut(&id)) {
                (None, None) => {}
                (None, Some(_)) => self.drop(id, "no rule about its memory fits any more", time, said),
                (Some((pattern, rule)), Some(guest)) => {
                    guest.live = live;
                    if (&guest.pattern, &guest.rule) != (&pattern, &rule) {
                        guest.take_rule(&pattern, &rule);
                        tell(guest, time, of_rule(&rule), said);
                    }
                    set(guest, every(config));
                }
                (Some((pattern, rule)), None) => self.came(host, config, live, (pattern, rule), time, said),
            }
        }
    }

    /// The VMs of a guest's process. Debugfs may be closed, or not be readable for a moment: its open files
    /// tell then, and what was known before.
    fn identify(&self, host: &Host, live: &mut LiveGuest) -> Vec<VmId> {
        let of = |fd| VmId { thread: live.pid, fd };
        let open: Vec<VmId> =
            host.kvm_process(live.pid).into_iter().flat_map(|p| p.vms.into_iter().map(of)).collect();
        let before = self.guests.get(&(live.pid, live.started)).and_then(|guest| guest.live.vm);
        live.vm = live.vm.or(before).or(open.first().copied());
        live.vm.into_iter().chain(open).collect()
    }

    fn came(
        &mut self,
        host: &Host,
        config: &Config,
        live: LiveGuest,
        (pattern, rule): (String, VmMemory),
        time: f64,
        said: &mut Vec<LogLine>,
    ) {
        let mut guest = Guest::new(live, pattern, rule);
        let id = (guest.live.pid, guest.live.started);
        let ending = self.ending.iter().rev().find(|g| (g.live.pid, g.live.started) == id);
        if let Some(before) = ending.or(self.past.get(&id)) {
            guest.inherit(before);
        }
        set(&guest, every(config));
        if let Some(place) = &self.place {
            let live = guest.live.clone();
            let thread = GuestThread::new(guest.control.clone(), place.clone(), host.clone(), live);
            let name = format!("memory-{}", guest.live.pid);
            match std::thread::Builder::new().name(name).spawn(move || thread.run()) {
                Ok(thread) => guest.thread = Some(thread),
                // Tried again with the next decision.
                Err(e) => {
                    self.no_thread = Some(format!("no thread can be started for the memory of a VM: {e}"));
                    return;
                }
            }
        }
        let text = of_rule(&guest.rule);
        tell(&mut guest, time, text, said);
        self.past.remove(&id);
        self.guests.insert(id, guest);
    }

    fn drop(&mut self, id: Id, why: &str, time: f64, said: &mut Vec<LogLine>) {
        let Some(mut guest) = self.guests.remove(&id) else { return };
        guest.control.end();
        tell(&mut guest, time, why.into(), said);
        self.ending.push(guest);
    }

    /// Takes a report from inside the guest of a process.
    pub fn report(&mut self, pid: u32, up: Duration, view: &MemoryView) {
        let guest = self.guests.values_mut().find(|g| g.live.pid == pid);
        guest.into_iter().for_each(|guest| guest.report(up, *view));
    }

    /// The guests that a word may mean, and how exactly: see [`word_rank`].
    pub fn ranks(&self, word: &str) -> Vec<(u8, Id)> {
        let rank = |g: &Guest| word_rank(word, g.live.vm, g.live.pid, Some(&g.live.name));
        self.guests.iter().filter_map(|(id, guest)| Some((rank(guest)?, *id))).collect()
    }

    /// Leaves a guest's size as it is, except where its order gives everything back.
    pub fn hold(&mut self, id: Id, hold: Hold) {
        self.guests.entry(id).and_modify(|guest| guest.hold(hold));
    }

    /// Lets the policy decide again, with the next decision.
    pub fn release(&mut self, id: Id) -> bool {
        self.guests.get_mut(&id).is_some_and(|guest| {
            guest.forget();
            guest.undone = false;
            guest.hold.take().is_some()
        })
    }

    /// Gives everything back and holds the guest so: others may order sizes. Returns what that means.
    pub fn undo(&mut self, id: Id) -> Option<&'static str> {
        let guest = self.guests.get_mut(&id)?;
        guest.hold = Some(Hold { until: None });
        let had = guest.control.wanted().is_some() || guest.control.under().is_some();
        guest.undone = true;
        guest.control.rest();
        Some(if had { "gets its memory back and is held" } else { "has all of its memory and is held" })
    }

    /// All guests that are known.
    pub fn all(&self) -> Vec<Id> {
        self.guests.keys().copied().collect()
    }

    /// Notes something that a user asked for. Returns the log's line.
    pub fn note(&mut self, id: Id, time: f64, text: &str) -> Option<LogLine> {
        let mut said = Vec::new();
        tell(self.guests.get_mut(&id)?, time, text.into(), &mut said);
        said.pop()
    }

    /// What is known of a guest, and its last events.
    pub fn explain(&self, id: Id, config: &Config, up: Duration) -> Option<(GuestStatus, Vec<Event>)> {
        let guest = self.guests.get(&id)?;
        Some((guest.status(up, every(config)), guest.lately.iter().cloned().collect()))
    }

    /// What is known of all guests; `None` without a configuration of memory.
    pub fn status(&self, config: &Config, up: Duration) -> Option<MemoryStatus> {
        let share = config.memory.as_ref()?;
        let guests: Vec<GuestStatus> = self.guests.values().map(|g| g.status(up, every(config))).collect();
        Some(MemoryStatus {
            policy: share.policy.name().into(),
            limit_bytes: self.limit,
            size_bytes: sum(guests.iter().filter_map(|g| g.size_bytes)),
            guests,
        })
    }

    /// What is wrong.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.clone().or_else(|| self.no_thread.clone())
    }

    /// Has the threads of all guests give everything back, without a wait.
    pub fn begin_end(&self) {
        self.guests.values().chain(&self.ending).for_each(|guest| guest.control.end());
    }

    /// Gives everything back, and waits for that. Returns what is to be logged, and the guests whose memory
    /// is not back: their orders' guardians go on, and their journals stay until they succeed.
    pub fn end(&mut self, time: f64) -> (Vec<LogLine>, Vec<String>) {
        self.begin_end();
        let (mut said, mut left) = (Vec::new(), Vec::new());
        said.extend(self.left.take().into_iter().flat_map(Left::end).map(|text| LogLine { vm: None, text }));
        let mut guests: Vec<Guest> = std::mem::take(&mut self.guests).into_values().collect();
        guests.append(&mut self.ending);
        let begun = Instant::now();
        while !guests.iter().all(is_over) && begun.elapsed() < END {
            sleep(Duration::from_millis(20));
        }
        for guest in &mut guests {
            let mut failed = !is_over(guest);
            for news in guest.control.news() {
                failed |= news.kind == control::Kind::Lost;
                tell(guest, time, news.text, &mut said);
            }
            if failed {
                self.lost.insert((guest.live.pid, guest.live.started), guest.who());
            }
        }
        // Guardians have given some of it back meanwhile.
        let still = |id: &Id| self.place.as_ref().is_none_or(|at| places(&at.folder, *id).journal.exists());
        let lost = self.lost.iter().filter(|(id, _)| still(id));
        left.extend(lost.map(|(_, who)| format!("{who} has not got its memory back")));
        (said, left)
    }
}

fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Whether the guest's thread has ended, or never was.
fn is_over(guest: &Guest) -> bool {
    guest.thread.as_ref().is_none_or(JoinHandle::is_finished)
}

fn every(config: &Config) -> Duration {
    Duration::from_secs_f64(config.memory.as_ref().map_or(10.0, |m| m.interval_s))
}

/// Lets a guest's thread know what the rule allows.
fn set(guest: &Guest, every: Duration) {
    let acts = guest.rule.act && !guest.undone;
    guest.control.set(acts, every);
    if !acts {
        guest.control.rest();
    }
}

fn of_rule(rule: &VmMemory) -> String {
    if rule.act { "has a rule that takes its memory" } else { "has a rule that observes its memory" }.into()
}

fn tell(guest: &mut Guest, time: f64, text: String, said: &mut Vec<LogLine>) {
    let vm = guest.live.vm.map(|id| id.to_string());
    said.push(LogLine { vm, text: format!("{} {text}", guest.who()) });
    guest.remember(time, text);
}
