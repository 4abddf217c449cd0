// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of a guest: looks at the guest, and carries orders about its size out, as `bifold reclaim set` does.
//!
//! All waits for the guest and its monitor are here, so that neither holds the daemon up. The daemon says which size is wanted, or that
//! none is: then everything is given back. An order that was refused or has ended early leaves no wish behind: the daemon decides when
//! the next one may begin. If the daemon is killed, the order's guardian gives the memory back.

use bifold_host::guest_memory::GuestStatistics;
use bifold_host::held::{Guardian, Journal};
use bifold_host::placement::LiveGuest;
use bifold_host::{Host, printable};
use bifold_live::memory::rules::{Finding, advise};
use bifold_live::memory::see_one;
use bifold_live::order::{
    Back, Event, Order, OrderError, Polling, Record, Refusal, WHAT, Way, Why, Wish, places, refusal,
};
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Time between two looks of an order.
const TICK: Duration = Duration::from_secs(1);
/// Time between two tries to turn statistics on.
const AGAIN: Duration = Duration::from_secs(60);
/// An order below the guest's least size is refused; so much above it is the next one.
const ABOVE_LEAST: u64 = 8 * MIB;

/// What orders need.
#[derive(Debug, Clone)]
pub struct Place {
    /// The folder of orders' journals.
    pub folder: PathBuf,
    /// Gives memory back if the daemon is killed.
    pub guardian: Guardian,
}

/// What was seen of a guest at one time.
#[derive(Debug, Clone)]
pub struct Sight {
    /// When.
    pub at: Instant,
    /// Bytes outside of its balloon.
    pub size: u64,
    /// Seconds between two requests for statistics; 0 if QEMU asks for none.
    pub polling_s: u64,
    /// Its statistics, if they are not old.
    pub statistics: GuestStatistics,
    /// Age of the statistics in seconds.
    pub age_s: u64,
    /// Resident bytes of its process.
    pub resident: Option<u64>,
    /// Why no order could begin.
    pub refused: Option<String>,
}

/// An order under way.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Under {
    /// The size that was found.
    pub found: u64,
    /// The size at the last look.
    pub size: u64,
    /// Whether it holds what it has reached, and whether that is the whole order.
    pub holds: Option<bool>,
}

/// What has become of an order.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct News {
    /// In words, of which the guest is the subject; of a refusal, its reason.
    pub text: String,
    /// What follows from it.
    pub kind: Kind,
}

/// What follows from news.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Kind {
    /// Nothing.
    Note,
    /// The order's size, or what the floor leaves of it, is reached.
    Holds,
    /// The order could not begin: the next one comes later.
    Refused,
    /// The order has ended early and everything is given back: the next one comes later.
    Ended,
    /// Another program orders sizes: there is no next one.
    Another,
    /// The guest's memory could not be given back: its order's guardian tries on.
    Lost,
}

impl Kind {
    /// Whether no size is wanted any more.
    fn ends(self) -> bool {
        !matches!(self, Kind::Note | Kind::Holds)
    }
}

/// What the daemon and the thread of a guest have in common.
#[derive(Debug, Default)]
pub struct Control {
    shared: Mutex<Shared>,
    stop: AtomicBool,
    /// Wakes the thread at the end.
    ends: Condvar,
}

#[derive(Debug, Default)]
struct Shared {
    acts: bool,
    every: Duration,
    want: Option<u64>,
    /// Grows with each wish.
    wishes: u64,
    /// What the order under way is for, where that is not what is wanted.
    least: Option<u64>,
    /// Whether the next order need not wait for the memory of the last one.
    forget: bool,
    sight: Option<Sight>,
    silent: Option<String>,
    findings: Vec<Finding>,
    under: Option<Under>,
    news: Vec<News>,
}

impl Control {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Plain figures are whole at any time.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether orders are allowed, and the time between two looks. If none is allowed, everything is given back.
    pub fn set(&self, acts: bool, every: Duration) {
        let mut shared = self.shared();
        (shared.acts, shared.every) = (acts, every);
    }

    /// Has everything given back, and allows no order until the next [`set`](Control::set).
    pub fn rest(&self) {
        self.shared().acts = false;
        self.want(None);
    }

    /// The size that the guest is to have; `None` for all of its memory.
    pub fn want(&self, bytes: Option<u64>) {
        let mut shared = self.shared();
        shared.want = bytes;
        shared.wishes += 1;
    }

    /// The size that the guest is to have, unless an order has ended since.
    pub fn wanted(&self) -> Option<u64> {
        self.shared().want
    }

    /// The same, with the number of wishes so far, for [`want_if`](Control::want_if).
    pub fn wish(&self) -> (u64, Option<u64>) {
        let shared = self.shared();
        (shared.wishes, shared.want)
    }

    /// As [`want`](Control::want), if there was no other wish since, and no order has ended of which the news were not heard yet: what
    /// follows from that has to be known first. Returns whether the size is wanted now.
    pub fn want_if(&self, wishes: u64, bytes: Option<u64>) -> bool {
        let mut shared = self.shared();
        if shared.wishes != wishes || shared.news.iter().any(|news| news.kind.ends()) {
            return false;
        }
        (shared.want, shared.wishes) = (bytes, wishes + 1);
        true
    }

    /// The size that is ordered: what is wanted, or the least that is safe.
    pub fn ordered(&self) -> Option<u64> {
        let shared = self.shared();
        shared.want.map(|want| shared.least.map_or(want, |least| least.max(want)))
    }

    /// Lets the next order begin from the size that the guest has, if it still lacks after a minute what an order before is to have given
    /// back.
    pub fn forget(&self) {
        self.shared().forget = true;
    }

    /// The last look, and why the last one found nothing if it did.
    pub fn sight(&self) -> (Option<Sight>, Option<String>) {
        let shared = self.shared();
        (shared.sight.clone(), shared.silent.clone())
    }

    /// What `bifold reclaim advise` says.
    pub fn findings(&self) -> Vec<Finding> {
        self.shared().findings.clone()
    }

    /// The order under way.
    pub fn under(&self) -> Option<Under> {
        self.shared().under
    }

    /// News since the last call.
    pub fn news(&self) -> Vec<News> {
        std::mem::take(&mut self.shared().news)
    }

    /// Has the thread give everything back and end.
    pub fn end(&self) {
        // Under the lock, so that a thread that is about to wait hears of it.
        let shared = self.shared();
        self.stop.store(true, Ordering::Relaxed);
        drop(shared);
        self.ends.notify_all();
    }

    /// Waits for this time, or until the end.
    fn wait(&self, most: Duration) {
        let waited = self.ends.wait_timeout_while(self.shared(), most, |_| !self.stopped());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn pretend(&self, sight: Sight, under: Option<Under>) {
        let mut shared = self.shared();
        (shared.sight, shared.under, shared.silent) = (Some(sight), under, None);
    }

    #[cfg(test)]
    pub fn tell(&self, kind: Kind, text: &str) {
        self.say(kind, text);
    }

    /// Notes what has become of an order. After one that has ended or was refused, no size is wanted any more.
    fn say(&self, kind: Kind, text: impl Into<String>) {
        let mut shared = self.shared();
        if kind.ends() {
            (shared.want, shared.least) = (None, None);
            shared.wishes += 1;
        }
        // Paths and names in it may be the guest's owner's.
        shared.news.push(News { text: printable(&text.into()), kind });
    }
}

/// The work of the thread of a guest.
pub struct Hand {
    control: Arc<Control>,
    place: Place,
    host: Host,
    guest: LiveGuest,
    order: Option<Order>,
    polling: Option<Polling>,
    /// Not before this time are statistics turned on.
    polls: Option<Instant>,
    /// The wishes that the order knows.
    known: u64,
    looked: Option<Instant>,
    /// Whether it was noted that the order holds its size.
    held: bool,
    /// What the guest has to have again before the next order: one that began before would take a part for all.
    awaited: Option<Awaited>,
}

/// What a guest is to have again.
struct Awaited {
    all: u64,
    since: Instant,
    /// Whether a user has asked for another try: the size may be another program's by now.
    forget: bool,
}

impl Awaited {
    fn new(all: u64) -> Awaited {
        Awaited { all, since: Instant::now(), forget: false }
    }

    /// Whether a guest of this size may still be on its way.
    fn lacks(&self, size: u64) -> bool {
        size.saturating_add(MIB) < self.all && !(self.forget && self.since.elapsed() >= AGAIN)
    }
}

impl Hand {
    /// For a guest.
    pub fn new(control: Arc<Control>, place: Place, host: Host, guest: LiveGuest) -> Hand {
        let mut hand = Hand {
            control,
            place,
            host,
            guest,
            order: None,
            polling: None,
            polls: None,
            known: 0,
            looked: None,
            held: false,
            awaited: None,
        };
        // What an order has left, or has not given back yet.
        hand.awaited = hand.owed().map(Awaited::new);
        hand
    }

    #[cfg(test)]
    pub fn awaits(&self) -> Option<u64> {
        self.awaited.as_ref().map(|awaited| awaited.all)
    }

    /// Works until the end, or the guest's end.
    pub fn run(mut self) {
        // A host that cannot be read for a moment tells nothing.
        while !self.control.stopped()
            && !matches!(self.host.lives(self.guest.pid, self.guest.started), Ok(false))
        {
            let every = self.control.shared().every;
            if self.looked.is_none_or(|at| at.elapsed() >= every) {
                self.look();
            }
            self.act();
            self.control.wait(TICK);
        }
        self.give_back();
        self.end_polling();
    }

    fn look(&mut self) {
        self.looked = Some(Instant::now());
        let seen = see_one(&self.host, &self.guest);
        let findings = seen.as_ref().map(advise);
        let found = seen.ok_or_else(|| "its process has ended".to_owned()).and_then(|seen| {
            let guest = seen.guests.first().ok_or("its process has ended")?;
            let machine = guest.facts.machine.as_ref().map_err(Clone::clone)?;
            let balloon = machine.balloon.as_ref().ok_or_else(|| Refusal::NoBalloon.to_string())?;
            let size = balloon.actual.ok_or_else(|| Refusal::NoSize.to_string())?;
            let statistics = guest.statistics(seen.time_s);
            Ok(Sight {
                at: Instant::now(),
                size,
                polling_s: balloon.polling_s,
                age_s: statistics.updated_s.map_or(0, |at| seen.time_s.saturating_sub(at)),
                statistics,
                resident: guest.facts.memory.resident,
                refused: refusal(&guest.facts, Way::Balloon, size, None, None)
                    .err()
                    .map(|r| printable(&r.to_string())),
            })
        });
        let mut shared = self.control.shared();
        shared.findings = findings.unwrap_or_default();
        match found {
            Ok(sight) => (shared.sight, shared.silent) = (Some(sight), None),
            Err(why) => shared.silent = Some(printable(&why)),
        }
    }

    /// Does what is due.
    fn act(&mut self) {
        let (acts, want, wishes) = {
            let mut shared = self.control.shared();
            if let (true, Some(awaited)) = (std::mem::take(&mut shared.forget), &mut self.awaited) {
                awaited.forget = true;
            }
            (shared.acts, shared.want.filter(|_| shared.acts), shared.wishes)
        };
        let Some(want) = want else {
            self.give_back();
            if acts {
                self.poll()
            } else {
                self.end_polling()
            }
            return;
        };
        let Some(order) = &mut self.order else {
            self.known = wishes;
            return self.begin(want);
        };
        if wishes != self.known {
            order.aim(want);
            self.control.shared().least = None;
            self.known = wishes;
            self.held = false;
        }
        match order.tick() {
            Ok(event) => self.after(event),
            // Giving back notes that the guest has ended.
            Err(OrderError::Gone { .. }) => self.give_back(),
            Err(e) => self.end(Kind::Ended, &words(&e)),
        }
    }

    fn after(&mut self, event: Event) {
        let found = self.order.as_ref().map_or(0, |order| order.first().size);
        let under = |size, holds| Some(Under { found, size, holds });
        match event {
            Event::Silent => {}
            Event::Looked(look) | Event::Ordered { look, .. } => {
                self.control.shared().under = under(look.size, None);
            }
            Event::Holding { look, whole } => {
                self.control.shared().under = under(look.size, Some(whole));
                if !std::mem::replace(&mut self.held, true) {
                    let least = if whole { "" } else { ", its least size" };
                    self.control.say(Kind::Holds, format!("holds {} MiB{least}", mib(look.size)));
                }
            }
            Event::Ends { why, .. } => {
                let kind = if matches!(why, Why::Another { .. }) { Kind::Another } else { Kind::Ended };
                self.end(kind, &why.to_string());
            }
        }
    }

    /// What the guest is to have again, by the journal of an order that has taken a part of it.
    fn owed(&self) -> Option<u64> {
        self.left().filter(|r| r.way == Way::Balloon && !r.kept && r.takes()).map(|r| r.found)
    }

    /// The journal about this guest.
    fn left(&self) -> Option<Record> {
        let places = places(&self.place.folder, (self.guest.pid, self.guest.started));
        let journal = Journal::read(&places.journal, WHAT).ok()??;
        Record::at(&places.journal, &journal).ok()
    }

    /// Has QEMU ask the guest for statistics, if it does not.
    fn poll(&mut self) {
        let off = self.control.shared().sight.as_ref().is_some_and(|s| s.polling_s == 0);
        let due = self.polls.is_none_or(|at| at <= Instant::now());
        if self.polling.is_some() || !off || !due || self.left().is_some() {
            return;
        }
        self.polls = Some(Instant::now() + AGAIN);
        match Polling::begin(&self.host, &self.place.folder, &self.place.guardian, &self.guest) {
            Ok(polling) => {
                self.polling = polling;
                // What was seen is of a time without statistics.
                self.looked = None;
            }
            Err(e) => self.control.say(Kind::Note, format!("has its statistics off: {}", words(&e))),
        }
    }

    fn end_polling(&mut self) {
        if let Some(Err(e)) = self.polling.take().map(Polling::end) {
            self.control.say(Kind::Note, format!("has its statistics on still: {}", words(&e)));
        }
    }

    fn begin(&mut self, want: u64) {
        self.look();
        let size = match self.control.sight() {
            (Some(sight), None) => sight.size,
            (_, why) => {
                return self.control.say(Kind::Refused, why.unwrap_or_else(|| "it was not seen".into()));
            }
        };
        if self.left().is_some_and(|record| record.kept) {
            let pid = self.guest.pid;
            let text =
                format!("`bifold reclaim set --keep` has its size: run `bifold reclaim restore {pid}` first");
            return self.control.say(Kind::Refused, text);
        }
        if let Some(all) = self.awaited.as_ref().filter(|a| a.lacks(size)).map(|a| a.all) {
            let text = format!("it has {} of {} MiB again after the last order", mib(size), mib(all));
            return self.control.say(Kind::Refused, text);
        }
        self.awaited = None;
        // An order has statistics of its own, and only one holds the guest's lock.
        self.end_polling();
        let first = self.order(want);
        let (order, size) = match least(&first) {
            // What the policy wants is below what is safe. The order is for that, if the guest has more.
            Some(least) if least + ABOVE_LEAST + ABOVE_LEAST <= size => {
                (self.order(least + ABOVE_LEAST), least + ABOVE_LEAST)
            }
            _ => (first, want),
        };
        match order {
            Ok(mut order) => {
                // The guest goes on living with the order, and its process may grow meanwhile.
                order.aim(size);
                let found = order.first().size;
                let mut shared = self.control.shared();
                shared.under = Some(Under { found, size: found, holds: None });
                shared.least = Some(size);
                drop(shared);
                (self.order, self.held) = (Some(order), false);
            }
            Err(OrderError::Interrupted) => {}
            Err(e @ OrderError::Changed { .. }) => self.control.say(Kind::Another, words(&e)),
            Err(OrderError::Refused { refusal, .. }) => self.control.say(Kind::Refused, refusal.to_string()),
            Err(e) => self.control.say(Kind::Refused, words(&e)),
        }
    }

    fn order(&self, size: u64) -> Result<Order, OrderError> {
        let wish = Wish { way: Way::Balloon, size, floor: None, step: None };
        let Place { folder, guardian } = &self.place;
        Order::begin(&self.host, folder, guardian, &self.guest, &wish, &self.control.stop)
    }

    /// The order has to end now.
    fn end(&mut self, kind: Kind, why: &str) {
        self.control.say(kind, format!("is to get everything back: {why}"));
        self.give_back();
    }

    fn give_back(&mut self) {
        let Some(order) = self.order.take() else { return };
        let found = order.first().size;
        let owed = self.owed().map(Awaited::new);
        match order.give_back() {
            Ok(Some(Back::Given)) => {
                self.awaited = owed;
                self.control.say(Kind::Note, format!("gets everything back, {} MiB", mib(found)));
            }
            Ok(Some(Back::Another { size })) => {
                let text = format!("keeps {} MiB, which another program has set", mib(size));
                self.control.say(Kind::Another, text);
            }
            Ok(Some(Back::Gone) | None) => {}
            Err(e) => {
                let text =
                    format!("has not got its memory back, and its order's guardian tries on: {}", words(&e));
                self.awaited = owed;
                self.control.say(Kind::Lost, text);
            }
        }
        self.control.shared().under = None;
    }
}

/// The least size that an order was refused for, in bytes.
fn least(order: &Result<Order, OrderError>) -> Option<u64> {
    match order {
        Err(OrderError::Refused { refusal, .. }) => match &**refusal {
            Refusal::BelowLeast { least, .. } => Some(least << 20),
            _ => None,
        },
        _ => None,
    }
}

pub fn words(e: &OrderError) -> String {
    printable(&crate::error::with_causes(e))
}

/// Bytes in MiB, rounded.
pub fn mib(bytes: u64) -> u64 {
    bytes.saturating_add(MIB / 2) / MIB
}
