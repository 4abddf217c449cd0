// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The thread of a guest: looks at the guest, and carries orders about its size out, as `bifold reclaim set`
//! does.
//!
//! All waits for the guest and its monitor are here, so that neither holds the daemon up. The daemon says
//! which size is wanted, or that none is: then everything is given back. An order that was refused or has
//! ended early leaves no wish behind: the daemon decides when the next one may begin. If the daemon is
//! killed, the order's guardian gives the memory back.

use crate::vm::memory::MIB;
use crate::vm::memory::control::{Control, Kind, LastLook, Under};
use bifold_host::LiveGuest;
use bifold_host::held::{Guardian, Journal};
use bifold_host::{Host, printable};
use bifold_live::memory::rules::advise;
use bifold_live::memory::see_one;
use bifold_live::order::{
    Back, Event, Facts, Order, OrderError, OrderRequest, Polling, Record, Refusal, SizeObservation, WHAT,
    Way, Why, mib, places, refusal,
};
use std::path::PathBuf;
use std::sync::Arc;
use std::time::{Duration, Instant};

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

/// The work of the thread of a guest.
pub struct GuestThread {
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
    /// Whether QEMU asked for no statistics at the last look.
    unasked: bool,
    /// Whether it was noted that the order holds its size.
    held: bool,
    /// What the guest has to have again before the next order: one that began before would take a part for
    /// all.
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

impl GuestThread {
    /// For a guest.
    pub fn new(control: Arc<Control>, place: Place, host: Host, guest: LiveGuest) -> GuestThread {
        let mut thread = GuestThread {
            control,
            place,
            host,
            guest,
            order: None,
            polling: None,
            polls: None,
            known: 0,
            looked: None,
            unasked: false,
            held: false,
            awaited: None,
        };
        // What an order has left, or has not given back yet.
        thread.awaited = thread.owed().map(Awaited::new);
        thread
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
            // An order looks itself.
            if self.order.is_none() && self.is_due() {
                self.look(None);
            }
            self.act();
            self.control.wait(TICK);
        }
        self.give_back();
        self.end_polling();
    }

    /// Whether it is time for a look.
    fn is_due(&self) -> bool {
        let every = self.control.shared().every;
        self.looked.is_none_or(|at| at.elapsed() >= every)
    }

    /// Looks, unless the order has, and lets the daemon know.
    fn look(&mut self, by_order: Option<(Instant, Facts)>) {
        self.looked = Some(Instant::now());
        let (by_order_at, facts) = by_order.unzip();
        let seen = see_one(&self.host, self.guest.clone(), facts);
        let at = by_order_at.unwrap_or_else(Instant::now);
        let findings = seen.as_ref().map(advise);
        let guest = seen.as_ref().and_then(|seen| Some((seen.time_s, &seen.guests.first()?.facts)));
        let found = guest.map(|(time_s, facts)| {
            let machine = facts.machine.as_ref().map_err(|e| Refusal::from(e.clone()))?;
            let balloon = machine.balloon.as_ref().ok_or(Refusal::NoBalloon)?;
            let size = SizeObservation::of(facts, Way::Balloon).ok_or(Refusal::NoSize)?;
            let refused = refusal(facts, &by_balloon(size.size)).err();
            self.unasked = balloon.polling_s == 0;
            Ok::<_, Refusal>(LastLook {
                at,
                // By the time of the look, as `at` is: a monitor may have held the order up since.
                age_s: size
                    .updated
                    .map_or(0, |s| time_s.saturating_sub(s).saturating_sub(at.elapsed().as_secs())),
                refused: refused.map(|r| printable(&r.to_string())),
                size,
            })
        });
        let mut shared = self.control.shared();
        shared.findings = findings.unwrap_or_default();
        match found {
            Some(Ok(sight)) => (shared.sight, shared.silent) = (Some(sight), None),
            Some(Err(why)) => shared.silent = Some(printable(&why.to_string())),
            None => shared.silent = Some("its process has ended".into()),
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
        let due = self.is_due();
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
        // Findings and policies get what the order has seen, as often as without an order.
        let event = order.tick(due);
        if let Some(seen) = order.take_seen() {
            self.look(Some(seen));
        }
        match event {
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
        let due = self.polls.is_none_or(|at| at <= Instant::now());
        if self.polling.is_some() || !self.unasked || !due || self.left().is_some() {
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
        // What was seen before this second may be no longer true.
        if self.looked.is_none_or(|at| at.elapsed() >= TICK) {
            self.look(None);
        }
        let size = match self.control.sight() {
            (Some(sight), None) => sight.size.size,
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
        let (order, size) = match first.as_ref().err().and_then(OrderError::least) {
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
        let Place { folder, guardian } = &self.place;
        Order::begin(&self.host, folder, guardian, &self.guest, &by_balloon(size), &self.control.stop)
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

fn by_balloon(size: u64) -> OrderRequest {
    OrderRequest { way: Way::Balloon, size, floor: None, step: None }
}

pub fn words(e: &OrderError) -> String {
    printable(&bifold_base::with_causes(e))
}
