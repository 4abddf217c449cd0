// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest's monitor while a case runs: looks at the guest, and has orders about its size carried out as
//! `bifold reclaim set` does.
//!
//! An order begins when the policy first wants less than the guest has, and aims at other sizes as the policy
//! decides. When the order gives everything back, a new one begins after a pause. All waits for the guest are
//! in a thread of its own.

use super::outcome::Orders;
use bifold_host::Host;
use bifold_host::LiveGuest;
use bifold_host::guest_memory::{Balloon, Machine, MonitorPlace};
use bifold_host::held::Guardian;
use bifold_live::order::{Event, Order, OrderError, OrderRequest, Way};
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Mutex, MutexGuard, PoisonError};
use std::thread::sleep;
use std::time::{Duration, Instant};

const MIB: u64 = 1 << 20;
/// Time between two looks.
const LOOK: Duration = Duration::from_secs(1);
const SOON: Duration = Duration::from_millis(50);
/// Time limit of a look.
const LIMIT: Duration = Duration::from_secs(10);
/// Pause after an order that was refused or has ended: the guest has to be judged once more.
const PAUSE: Duration = Duration::from_secs(5);
/// An order below the guest's least size is refused; so much above it is the next one.
const ABOVE_LEAST: u64 = 8 * MIB;
/// How long a guest's memory is awaited at the end.
const BACK: Duration = Duration::from_secs(30);

/// What the thread of a guest and the run have in common.
#[derive(Debug, Default)]
pub struct Control {
    shared: Mutex<Shared>,
    stop: AtomicBool,
}

#[derive(Debug, Default)]
struct Shared {
    want: Option<u64>,
    /// Grows with each decision.
    decisions: u64,
    balloon: Option<Balloon>,
    orders: Orders,
    notes: Vec<String>,
}

/// What the thread of a guest needs.
#[derive(Debug, Clone, Copy)]
pub struct Place<'a> {
    /// The host.
    pub host: &'a Host,
    /// The folder of orders' journals.
    pub folder: &'a Path,
    /// Gives memory back if this process is killed.
    pub guardian: &'a Guardian,
}

impl Control {
    fn shared(&self) -> MutexGuard<'_, Shared> {
        // Plain figures are whole at any time.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Decides the guest's size, in bytes.
    pub fn want(&self, bytes: u64) {
        let mut shared = self.shared();
        shared.want = Some(bytes);
        shared.decisions += 1;
    }

    /// The balloon at the last look.
    pub fn balloon(&self) -> Option<Balloon> {
        self.shared().balloon.clone()
    }

    /// The size that was decided last, in bytes.
    pub fn wanted(&self) -> Option<u64> {
        self.shared().want
    }

    /// What became of orders.
    pub fn orders(&self) -> Orders {
        self.shared().orders
    }

    /// Notes since the last call.
    pub fn new_notes(&self) -> Vec<String> {
        std::mem::take(&mut self.shared().notes)
    }

    /// Has the thread give everything back and end.
    pub fn end(&self) {
        self.stop.store(true, Ordering::Relaxed);
    }

    fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    fn note(&self, guest: &LiveGuest, text: impl std::fmt::Display) {
        self.shared().notes.push(format!("{}: {text}", guest.name));
    }

    /// The thread of a guest with this process, until [`end`](Control::end) or the guest's end.
    pub fn follow(&self, place: Place, guest: &LiveGuest) {
        let Some(monitor) = place.host.monitor_place(guest.pid) else {
            return self.note(guest, "its monitor is not found");
        };
        let look = || -> std::io::Result<Option<Balloon>> {
            let mut monitor = monitor.open_within(place.host, guest.pid, LIMIT)?;
            Ok(Machine::ask(&mut monitor)?.balloon)
        };
        if let Err(e) = poll(place.host, &monitor, guest.pid) {
            self.note(guest, format_args!("its statistics cannot be requested: {e}"));
        }
        let mut hand = GuestOrder {
            control: self,
            place,
            guest,
            order: None,
            moved: false,
            seen: 0,
            pause: None,
            least: 0,
        };
        while !self.stopped() && matches!(place.host.lives(guest.pid, guest.started), Ok(true)) {
            // A silent monitor is asked again; an order judges the guest on its own.
            match look() {
                Ok(Some(balloon)) => {
                    let size = balloon.actual;
                    self.shared().balloon = Some(balloon);
                    hand.go_on(size);
                }
                // The guardian has to hear of the order.
                _ if hand.order.is_some() => hand.go_on(None),
                _ => {}
            }
            let begun = Instant::now();
            while begun.elapsed() < LOOK && !self.stopped() {
                sleep(SOON);
            }
        }
        let all = hand.order.as_ref().map(|order| order.first().size);
        hand.give_back();
        let begun = Instant::now();
        while let Some(all) = all.filter(|_| matches!(place.host.lives(guest.pid, guest.started), Ok(true))) {
            if look().ok().flatten().and_then(|b| b.actual).is_some_and(|size| size + MIB > all) {
                break;
            }
            if begun.elapsed() > BACK {
                self.note(guest, "its memory was not all back at the end");
                break;
            }
            sleep(SOON);
        }
    }
}

/// Has QEMU ask the guest for statistics each second.
fn poll(host: &Host, monitor: &MonitorPlace, pid: u32) -> std::io::Result<()> {
    let mut monitor = monitor.open_within(host, pid, LIMIT)?;
    match Machine::ask(&mut monitor)?.balloon {
        Some(balloon) => Balloon::poll(&mut monitor, &balloon.path, 1),
        None => Err(std::io::Error::other("it has no balloon")),
    }
}

/// A guest's order, if there is one.
struct GuestOrder<'a> {
    control: &'a Control,
    place: Place<'a>,
    guest: &'a LiveGuest,
    order: Option<Order>,
    /// Whether a step was ordered since a size was held.
    moved: bool,
    /// The decisions that the order knows.
    seen: u64,
    /// No order begins before.
    pause: Option<Instant>,
    /// The least size at which an order may be accepted.
    least: u64,
}

impl GuestOrder<'_> {
    fn counted(&self, count: impl FnOnce(&mut Orders)) {
        count(&mut self.control.shared().orders);
    }

    /// Does what is due about a guest of this size.
    fn go_on(&mut self, size: Option<u64>) {
        let (want, decisions) = {
            let shared = self.control.shared();
            (shared.want, shared.decisions)
        };
        let Some(want) = want else { return };
        let Some(order) = &mut self.order else {
            if self.pause.is_none_or(|until| Instant::now() >= until) {
                self.begin(want.max(self.least), size.unwrap_or(0));
                self.seen = decisions;
            }
            return;
        };
        if decisions != self.seen {
            order.aim(want);
            self.seen = decisions;
        }
        match order.tick(false) {
            Ok(Event::Ordered { .. }) => {
                self.moved = true;
                self.counted(|o| o.steps += 1);
            }
            Ok(Event::Holding { whole, .. }) if self.moved => {
                self.moved = false;
                self.counted(|o| {
                    o.held += 1;
                    o.short += u64::from(!whole);
                });
            }
            Ok(Event::Ends { why, .. }) => self.end(why.to_string()),
            Ok(_) => {}
            // Giving back notes that the guest has ended.
            Err(OrderError::Gone { .. }) => self.give_back(),
            Err(e) => self.end(e.to_string()),
        }
    }

    fn begin(&mut self, want: u64, size: u64) {
        if want.saturating_add(MIB) >= size {
            self.least = 0;
            return;
        }
        let Place { host, folder, guardian } = self.place;
        let wish = OrderRequest { way: Way::Balloon, size: want, floor: None, step: None };
        match Order::begin(host, folder, guardian, self.guest, &wish, &self.control.stop) {
            Ok(mut order) => {
                // The size is decided again with each sample.
                order.aim(want);
                self.order = Some(order);
                self.least = 0;
                return;
            }
            Err(OrderError::Interrupted) => return,
            Err(e) => {
                self.counted(|o| o.refused += 1);
                match e.least() {
                    // What the policy wants is below what is safe. The next order is for that, if the guest
                    // has more.
                    Some(least) => self.least = least + ABOVE_LEAST,
                    None => self.control.note(self.guest, e),
                }
            }
        }
        self.pause = Some(Instant::now() + PAUSE);
    }

    /// The order has to end now.
    fn end(&mut self, why: String) {
        self.counted(|o| o.given_back += 1);
        self.control.note(self.guest, format_args!("the order ends: {why}"));
        self.give_back();
        (self.pause, self.moved) = (Some(Instant::now() + PAUSE), false);
    }

    fn give_back(&mut self) {
        let Some(order) = self.order.take() else { return };
        if let Err(e) = order.give_back() {
            self.control.note(self.guest, e);
        }
    }
}
