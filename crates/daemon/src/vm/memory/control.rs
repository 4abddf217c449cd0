// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the daemon and the thread of a guest have in common: the size that is wanted, what was seen, and what
//! has become of orders.

use bifold_host::printable;
use bifold_live::memory::rules::Finding;
use bifold_live::order::SizeObservation;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Condvar, Mutex, MutexGuard, PoisonError};
use std::time::{Duration, Instant};

/// The last look at a guest that found its size.
#[derive(Debug, Clone)]
pub struct LastLook {
    /// When.
    pub at: Instant,
    /// What was seen, as an order by the balloon sees a guest.
    pub size: SizeObservation,
    /// Age of the guest's statistics then, in seconds.
    pub age_s: u64,
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
    pub stop: AtomicBool,
    /// Wakes the thread at the end.
    ends: Condvar,
}

#[derive(Debug, Default)]
pub struct Shared {
    pub acts: bool,
    pub every: Duration,
    pub want: Option<u64>,
    /// Grows with each wish.
    pub wishes: u64,
    /// What the order under way is for, where that is not what is wanted.
    pub least: Option<u64>,
    /// Whether the next order need not wait for the memory of the last one.
    pub forget: bool,
    pub sight: Option<LastLook>,
    pub silent: Option<String>,
    pub findings: Vec<Finding>,
    pub under: Option<Under>,
    pub news: Vec<News>,
}

impl Control {
    pub fn shared(&self) -> MutexGuard<'_, Shared> {
        // Plain figures are whole at any time.
        self.shared.lock().unwrap_or_else(PoisonError::into_inner)
    }

    /// Whether orders are allowed, and the time between two looks. If none is allowed, everything is given
    /// back.
    pub fn set(&self, acts: bool, every: Duration) {
        let mut shared = self.shared();
        (shared.acts, shared.every) = (acts, every);
        drop(shared);
        if !acts {
            self.want(None);
        }
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

    /// As [`want`](Control::want), if there was no other wish since, and no order has ended of which the news
    /// were not heard yet: what follows from that has to be known first. Returns whether the size is wanted
    /// now.
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

    /// Lets the next order begin from the size that the guest has, if it still lacks after a minute what an
    /// order before is to have given back.
    pub fn forget(&self) {
        self.shared().forget = true;
    }

    /// The last look, and why the last one found nothing if it did.
    pub fn sight(&self) -> (Option<LastLook>, Option<String>) {
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
    pub fn wait(&self, most: Duration) {
        let waited = self.ends.wait_timeout_while(self.shared(), most, |_| !self.stopped());
        drop(waited.unwrap_or_else(PoisonError::into_inner));
    }

    pub fn stopped(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }

    #[cfg(test)]
    pub fn pretend(&self, sight: LastLook, under: Option<Under>) {
        let mut shared = self.shared();
        (shared.sight, shared.under, shared.silent) = (Some(sight), under, None);
    }

    /// Notes what has become of an order. After one that has ended or was refused, no size is wanted any
    /// more.
    pub fn say(&self, kind: Kind, text: impl Into<String>) {
        let mut shared = self.shared();
        if kind.ends() {
            (shared.want, shared.least) = (None, None);
            shared.wishes += 1;
        }
        // Paths and names in it may be the guest's owner's.
        shared.news.push(News { text: printable(&text.into()), kind });
    }
}
