// SPDX-License-Identifier: Apache-2.0 OR MIT
//! An order under way on a live host, from its lock to its end.

mod hold;
mod preview;

use super::facts::POLLING;
use super::record::{WHAT, alone};
use super::{
    Act, Back, Facts, Goal, OrderDriver, OrderError, Record, Refusal, SizeObservation, Steer, Way, Why,
    facts, places, refusal,
};
use bifold_host::LiveGuest;
use bifold_host::guest_memory::{Balloon, MonitorPlace};
use bifold_host::held::{Guardian, Held, Places, lock, remove_unused_lock};
use bifold_host::{Host, printable};
pub(super) use hold::{found, make};
use hold::{hold, sweep};
pub use preview::preview;
use std::fs::File;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::thread::sleep;
use std::time::{Duration, Instant};

/// How long the first statistics are awaited, after they were requested.
const FIRST: Duration = Duration::from_secs(10);
/// How long the monitor may be silent during an order: another program may have the connection.
const SILENT: Duration = Duration::from_secs(5);
/// The time in which a size without an order must not move.
const STILL: Duration = Duration::from_secs(1);
const AGAIN: Duration = Duration::from_millis(100);

/// What a user wants of a guest.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct OrderRequest {
    /// How its memory is taken.
    pub way: Way,
    /// Its size, in bytes.
    pub size: u64,
    /// Least size.
    pub floor: Option<u64>,
    /// Bytes of a step.
    pub step: Option<u64>,
}

/// What has happened since the last tick.
#[derive(Debug, Clone, Copy, PartialEq)]
pub enum Event {
    /// The guest was looked at.
    Looked(SizeObservation),
    /// The monitor did not answer; it is tried again.
    Silent,
    /// A step was ordered.
    Ordered {
        /// The look before.
        look: SizeObservation,
        /// The size that is ordered.
        target: u64,
    },
    /// The order has reached what it can.
    Holding {
        /// The look.
        look: SizeObservation,
        /// Whether that is the whole order.
        whole: bool,
    },
    /// The order has to end now.
    Ends {
        /// The look.
        look: SizeObservation,
        /// Why.
        why: Why,
    },
}

/// An order under way. If it is dropped without an end, its guardian gives everything back.
#[derive(Debug)]
pub struct Order {
    host: Host,
    driver: OrderDriver,
    steer: Steer,
    first: SizeObservation,
    silent: Option<Instant>,
    /// Whether the last order was not answered, and may be carried out yet.
    unanswered: bool,
    holding: Holding,
    places: Places,
}

/// What keeps others away, and what has to be given back.
#[derive(Debug)]
enum Holding {
    /// Nothing has to be given back: there is only the lock.
    Lock(#[allow(dead_code)] File),
    Journal(Box<(Held, Record)>),
}

fn goal(
    host: &Host,
    guest: &LiveGuest,
    place: Option<&MonitorPlace>,
    wish: &OrderRequest,
) -> Result<(Facts, Goal), OrderError> {
    let facts = facts(host, guest.pid, place);
    let goal = refusal(&facts, wish).map_err(|r| refused(guest, r))?;
    Ok((facts, goal))
}

fn refused(guest: &LiveGuest, refusal: Refusal) -> OrderError {
    OrderError::Refused { name: printable(&guest.name), refusal: Box::new(refusal) }
}

impl Order {
    /// Begins an order: takes the guest's lock, writes down what is found, and looks at the guest until it is
    /// known what the guest uses. Its size does not change yet. `stop` ends the wait.
    ///
    /// # Errors
    /// If the order is refused, or another order has the guest. Everything is as it was found then.
    pub fn begin(
        host: &Host,
        folder: &Path,
        guardian: &Guardian,
        guest: &LiveGuest,
        wish: &OrderRequest,
        stop: &AtomicBool,
    ) -> Result<Order, OrderError> {
        let id = (guest.pid, guest.started);
        alone(host, folder, id)?;
        make(folder)?;
        sweep(folder);
        let places = places(folder, id);
        let order = Order::begin_at(host, &places, guardian, guest, wish)
            .inspect_err(|_| remove_unused_lock(&places));
        let (order, goal, size) = order?;
        order.prepare(guest, goal, size, stop)
    }

    fn begin_at(
        host: &Host,
        places: &Places,
        guardian: &Guardian,
        guest: &LiveGuest,
        wish: &OrderRequest,
    ) -> Result<(Order, Goal, Option<u64>), OrderError> {
        let id = (guest.pid, guest.started);
        let place = host.monitor_place(guest.pid);
        let (holding, goal, size) = if wish.way.pages_out() {
            let lock = lock(WHAT, places)?;
            let (facts, goal) = goal(host, guest, place.as_ref(), wish)?;
            (Holding::Lock(lock), goal, wish.way.size(&facts))
        } else {
            let (held, record, goal, size) = hold(host, places, guardian, guest, place.as_ref(), wish)?;
            (Holding::Journal(Box::new((held, record))), goal, Some(size))
        };
        let driver = OrderDriver::new(host.clone(), id, place, &goal);
        let steer = Steer::new(goal, SizeObservation::default());
        let order = Order {
            host: host.clone(),
            driver,
            steer,
            first: SizeObservation::default(),
            silent: None,
            unanswered: false,
            holding,
            places: places.clone(),
        };
        Ok((order, goal, size))
    }

    /// Requests statistics and makes sure that the order may take its first step. Gives everything back
    /// otherwise.
    fn prepare(
        mut self,
        guest: &LiveGuest,
        goal: Goal,
        size: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<Order, OrderError> {
        match self.first_look(guest, goal, size, stop) {
            Ok((goal, look)) => {
                self.steer = Steer::new(goal, look);
                self.first = look;
                Ok(self)
            }
            Err(e) => {
                self.give_back()?;
                Err(e)
            }
        }
    }

    fn first_look(
        &mut self,
        guest: &LiveGuest,
        mut goal: Goal,
        size: Option<u64>,
        stop: &AtomicBool,
    ) -> Result<(Goal, SizeObservation), OrderError> {
        if let Holding::Journal(held) = &self.holding {
            if let (Some((_, path)), pid) = (&held.1.polling, guest.pid) {
                let place = &held.1.monitor;
                let asked =
                    place.open(&self.host, pid).and_then(|mut m| Balloon::poll(&mut m, path, POLLING));
                asked.map_err(|source| OrderError::Monitor { pid, place: place.to_string(), source })?;
            }
        }
        let begun = Instant::now();
        let first = self.patiently(stop)?;
        let mut look = first;
        // The statistics' time changes with each update; those of before may be old.
        let fresh = |look: &SizeObservation| look.used.is_some() && look.updated != first.updated;
        let wanted = !goal.way.pages_out() || goal.floor.is_none();
        let patience = FIRST.max(Duration::from_secs(goal.polling_s).saturating_mul(2));
        while begun.elapsed() < STILL || (wanted && !fresh(&look) && begun.elapsed() < patience) {
            sleep(AGAIN);
            look = self.patiently(stop)?;
        }
        // The size that was written down may be one that the guest passed on its way to another.
        let from = size.filter(|_| !goal.way.pages_out()).unwrap_or(first.size);
        if look.size.abs_diff(from) > goal.slack || look.size.abs_diff(first.size) > goal.slack {
            let (from, to) = (from >> 20, look.size >> 20);
            return Err(refused(guest, Refusal::Unsettled { from, to }));
        }
        if wanted && !fresh(&look) {
            goal.statistics = false;
            (look.available, look.used) = (None, None);
            if goal.floor.is_none() || !goal.deflates {
                return Err(refused(
                    guest,
                    Refusal::NoFloor(
                        "the guest sends no statistics: load virtio_balloon in the guest; --floor in place of them is for --by balloon with deflate-on-oom=on, and for --by cgroup",
                    ),
                ));
            }
        }
        let floor = Steer::new(goal, look).floor(&look);
        match floor {
            Some(floor) if goal.size < floor => Err(refused(guest, Refusal::below(&goal, &look, floor))),
            _ => Ok((goal, look)),
        }
    }

    /// Looks, while the monitor may be busy.
    fn patiently(&mut self, stop: &AtomicBool) -> Result<SizeObservation, OrderError> {
        let end = Instant::now() + SILENT;
        loop {
            if stop.load(Ordering::Relaxed) {
                return Err(OrderError::Interrupted);
            }
            match self.driver.look(false) {
                Err(OrderError::Monitor { .. }) if Instant::now() < end => sleep(AGAIN),
                other => return other,
            }
        }
    }

    /// The look before the first step.
    pub fn first(&self) -> &SizeObservation {
        &self.first
    }

    /// What the last tick has found, if it was to read all, and when.
    pub fn take_seen(&mut self) -> Option<(Instant, Facts)> {
        self.driver.seen.take()
    }

    /// The least size that the order may go to, by a look.
    pub fn floor(&self, look: &SizeObservation) -> Option<u64> {
        self.steer.floor(look)
    }

    /// Changes the size that the order is to reach, at most that of the first look. The next ticks give a
    /// part back, or take more.
    pub fn aim(&mut self, size: u64) {
        self.steer.aim(size);
    }

    /// Looks at the guest once, and orders the next step if it is time for one. `all`: the look reads what
    /// findings need too ([`Order::take_seen`]).
    ///
    /// # Errors
    /// If the guest or the guardian has ended, the monitor is silent for too long, or a step cannot be
    /// written down or ordered. The order should be given back then.
    pub fn tick(&mut self, all: bool) -> Result<Event, OrderError> {
        if let Holding::Journal(held) = &mut self.holding {
            held.0.beat()?;
        }
        let look = match self.driver.look(all) {
            Ok(look) => look,
            Err(e @ OrderError::Monitor { .. }) => {
                let since = *self.silent.get_or_insert_with(Instant::now);
                return if since.elapsed() > SILENT { Err(e) } else { Ok(Event::Silent) };
            }
            Err(e) => return Err(e),
        };
        self.silent = None;
        Ok(match self.steer.next(&look) {
            Act::Wait => Event::Looked(look),
            Act::Hold { whole } => Event::Holding { look, whole },
            Act::GiveBack(why) | Act::Leave(why) => Event::Ends { look, why },
            Act::Order(target) => {
                if let Holding::Journal(held) = &mut self.holding {
                    let (held, record) = &mut **held;
                    // The device alone, as what is found.
                    let least = record.least.min(target.saturating_sub(record.besides));
                    let next = Record { kept: false, least, ..record.clone() };
                    held.note(WHAT, next.values())?;
                    *record = next;
                    held.beat()?;
                }
                self.unanswered = true;
                self.driver.order(&look, target)?;
                self.unanswered = false;
                // This process may have stood still just before, and its guardian have given everything back.
                if let Holding::Journal(held) = &mut self.holding {
                    held.0.beat()?;
                }
                Event::Ordered { look, target }
            }
        })
    }

    /// Gives everything back and ends. The guest follows on its own. `None` if this order has taken nothing
    /// yet, and its size stays as an earlier order with `--keep` has left it.
    ///
    /// # Errors
    /// If the monitor does not answer for a minute: the guardian tries on, and the journal stays until it
    /// succeeds.
    pub fn give_back(self) -> Result<Option<Back>, OrderError> {
        if matches!(&self.holding, Holding::Journal(held) if held.1.kept) {
            return self.keep().map(|()| None);
        }
        let Order { host, unanswered, holding, places, .. } = self;
        let mut back = Back::Given;
        let Holding::Journal(held) = holding else {
            drop(holding);
            remove_unused_lock(&places);
            return Ok(Some(back));
        };
        let (mut held, record) = *held;
        held.end_or_leave(|beat| {
            if unanswered {
                beat();
                record.wait_for_last_order();
            }
            back = record.give_back(&host, false, beat)?;
            Ok::<_, OrderError>(())
        })?;
        drop(held);
        remove_unused_lock(&places);
        Ok(Some(back))
    }

    /// Ends and leaves the size as it is. The journal stays, so that everything can be given back later.
    ///
    /// # Errors
    /// If that cannot be written down: everything is given back then.
    pub fn keep(self) -> Result<(), OrderError> {
        let Order { host, holding: Holding::Journal(held), .. } = self else {
            return self.give_back().map(drop);
        };
        let (mut held, record) = *held;
        let mut keep = || {
            record.end_polling(&host, &mut |since, _| since < SILENT && held.beat().is_ok())?;
            // A guardian that gives the memory back already has nothing kept.
            held.beat()?;
            held.note(WHAT, Record { polling: None, kept: true, ..record.clone() }.values())?;
            Ok(held.keep()?)
        };
        keep().or_else(|e| {
            held.end_or_leave(|beat| record.give_back(&host, false, beat).map(drop))?;
            Err(e)
        })
    }
}
