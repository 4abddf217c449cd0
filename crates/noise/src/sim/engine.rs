// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of all ranks: flat arrays, which a round of messages updates as a whole.
//!
//! Most work of most ranks is not interrupted. The arrays are therefore updated in blocks: the undisturbed
//! end of every rank's work, and whether one of them lies behind the rank's next interruption. Only then the
//! ranks of the block are looked at one by one. All times are doubles; whole nanoseconds stay exact in them
//! for 100 days.

use super::cost::LogGp;
use super::noise::{Noise, Schedule};

/// From which rank a rank receives in a round of exchanges.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Sender {
    /// From the rank so much below, modulo the number of ranks.
    Below(usize),
    /// From the rank with this bit flipped. The number of ranks is a power of two.
    Flipped(usize),
}

impl Sender {
    /// The rank from which rank `r` of `n` receives.
    fn of(self, r: usize, n: usize) -> usize {
        match self {
            Sender::Below(distance) if r < distance => r + n - distance,
            Sender::Below(distance) => r - distance,
            Sender::Flipped(bit) => r ^ bit,
        }
    }
}

/// Ranks that are updated together.
const BLOCK: usize = 256;

/// The ranks, their clocks, and their interruptions.
#[derive(Debug)]
pub struct Ranks {
    /// When each rank is done with what it has done so far.
    pub time: Vec<f64>,
    /// When each rank's last send was done: what a round reads.
    sent: Vec<f64>,
    /// The same in the order of the receivers; empty unless bits are flipped.
    swapped: Vec<f64>,
    /// When each rank may start to send again, and to receive; empty if the gap never binds.
    send_free: Vec<f64>,
    receive_free: Vec<f64>,
    schedule: Schedule,
    cost: LogGp,
}

impl Ranks {
    /// Ranks at time 0. The noise is that of [`Noise`]s in time; extensions of steps are the caller's.
    pub fn new(ranks: usize, cost: LogGp, noise: &Noise, coscheduled: bool, seed: u64) -> Ranks {
        // Between two sends of a rank in a round of exchanges lie a send and a receive. Where a rank sends
        // again and again, only one overhead lies between.
        let gaps = if cost.spacing() > cost.overhead { ranks } else { 0 };
        Ranks {
            time: vec![0.0; ranks],
            sent: vec![0.0; ranks],
            swapped: Vec::new(),
            send_free: vec![0.0; gaps],
            receive_free: vec![0.0; gaps],
            schedule: Schedule::new(noise, ranks, coscheduled, seed),
            cost,
        }
    }

    /// Number of ranks.
    pub fn len(&self) -> usize {
        self.time.len()
    }

    /// Whether there is no rank.
    pub fn is_empty(&self) -> bool {
        self.time.is_empty()
    }

    /// The last rank's time.
    pub fn last(&self) -> f64 {
        // Several at a time: each comparison of a single chain would wait for the one before.
        let mut last = [0.0; 16];
        let lanes = self.time.chunks_exact(last.len());
        let rest = lanes.remainder();
        lanes
            .for_each(|some| last.iter_mut().zip(some).for_each(|(last, time)| *last = larger(*last, *time)));
        last.iter().chain(rest).fold(0.0, |a, b| larger(a, *b))
    }

    /// All ranks compute.
    pub fn compute(&mut self, work: f64) {
        if self.schedule.starts.is_empty() {
            self.time.iter_mut().for_each(|t| *t += work);
            return;
        }
        let mut begin = [0.0; BLOCK];
        for (i, time) in self.time.chunks_mut(BLOCK).enumerate() {
            let begin = &mut begin[..time.len()];
            begin.copy_from_slice(time);
            busy(&mut self.schedule, i * BLOCK, begin, work, time);
        }
    }

    /// All ranks wait for the last one.
    pub fn wait_for_all(&mut self) {
        let last = self.last();
        self.time.fill(last);
    }

    /// Every rank sends to another one, and then receives.
    pub fn exchange(&mut self, sender: Sender) {
        if !self.send_free.is_empty() && self.cost.spacing() > 2.0 * self.cost.overhead {
            return self.exchange_with_gaps(sender);
        }
        let (overhead, wire) = (self.cost.overhead, self.cost.wire());
        let Ranks { time, sent, swapped, schedule, .. } = self;
        if schedule.starts.is_empty() {
            for (sent, time) in sent.iter_mut().zip(&*time) {
                *sent = time + overhead;
            }
        } else {
            for (i, (begin, sent)) in time.chunks(BLOCK).zip(sent.chunks_mut(BLOCK)).enumerate() {
                busy(schedule, i * BLOCK, begin, overhead, sent);
            }
        }
        match sender {
            Sender::Below(distance) => {
                let (first, others) = time.split_at_mut(distance);
                let (below, wrapped) = sent.split_at(sent.len() - distance);
                receive_all(schedule, 0, (&sent[..distance], wrapped), wire, overhead, first);
                receive_all(schedule, distance, (&sent[distance..], below), wire, overhead, others);
            }
            Sender::Flipped(bit) => {
                swapped.resize(sent.len(), 0.0);
                for (to, from) in swapped.chunks_mut(2 * bit).zip(sent.chunks(2 * bit)) {
                    to[..bit].copy_from_slice(&from[bit..]);
                    to[bit..].copy_from_slice(&from[..bit]);
                }
                receive_all(schedule, 0, (sent, swapped), wire, overhead, time);
            }
        }
    }

    /// The same where the gap can bind.
    fn exchange_with_gaps(&mut self, sender: Sender) {
        let (n, wire) = (self.len(), self.cost.wire());
        for r in 0..n {
            self.sent[r] = self.send(r);
        }
        for r in 0..n {
            self.receive(r, self.sent[sender.of(r, n)] + wire);
        }
    }

    /// Rank `r` sends. Returns when its CPU is done.
    pub fn send(&mut self, r: usize) -> f64 {
        let mut start = self.time[r];
        if let Some(free) = self.send_free.get_mut(r) {
            start = start.max(*free);
            *free = start + self.cost.spacing();
        }
        self.time[r] = self.finish(r, start, self.cost.overhead);
        self.time[r]
    }

    /// Rank `r` receives the message whose last byte arrives then.
    pub fn receive(&mut self, r: usize, arrival: f64) {
        let mut start = self.time[r].max(arrival);
        if let Some(free) = self.receive_free.get_mut(r) {
            start = start.max(*free);
            *free = start + self.cost.spacing();
        }
        self.time[r] = self.finish(r, start, self.cost.overhead);
    }

    /// Rank `from` sends to rank `to`, which waits for the message.
    pub fn message(&mut self, from: usize, to: usize) {
        let arrival = self.send(from) + self.cost.wire();
        self.receive(to, arrival);
    }

    /// From the end of a send to the arrival.
    pub fn wire(&self) -> f64 {
        self.cost.wire()
    }

    /// How many recorded interruptions of a source were simulated on all ranks together.
    pub fn simulated(&self, source: &str) -> u64 {
        self.schedule.simulated(source)
    }

    /// The interruption that each rank waits for, or is in.
    #[cfg(test)]
    pub fn schedule(&mut self) -> &mut Schedule {
        &mut self.schedule
    }

    fn finish(&mut self, r: usize, start: f64, work: f64) -> f64 {
        match self.schedule.starts.get(r) {
            Some(&next) if start + work > next => self.schedule.finish(r, start, work),
            _ => start + work,
        }
    }
}

/// The larger one. `f64::max` also looks for NaN, which no time here is.
#[inline(always)]
fn larger(a: f64, b: f64) -> f64 {
    if a > b { a } else { b }
}

/// The ranks from `at` on receive, each after its own send and a sender's.
fn receive_all(
    schedule: &mut Schedule,
    at: usize,
    (own, senders): (&[f64], &[f64]),
    wire: f64,
    overhead: f64,
    times: &mut [f64],
) {
    if schedule.starts.is_empty() {
        for ((time, own), sender) in times.iter_mut().zip(own).zip(senders) {
            *time = larger(*own, sender + wire) + overhead;
        }
        return;
    }
    let mut begin = [0.0; BLOCK];
    let blocks = times.chunks_mut(BLOCK).zip(own.chunks(BLOCK)).zip(senders.chunks(BLOCK));
    for (i, ((times, own), senders)) in blocks.enumerate() {
        let begin = &mut begin[..times.len()];
        for ((begin, own), sender) in begin.iter_mut().zip(own).zip(senders) {
            *begin = larger(*own, sender + wire);
        }
        busy(schedule, at + i * BLOCK, begin, overhead, times);
    }
}

/// The ranks from `at` on are busy for `work`, each from its beginning on.
fn busy(schedule: &mut Schedule, at: usize, begin: &[f64], work: f64, end: &mut [f64]) {
    let mut interrupted = false;
    for ((end, begin), next) in end.iter_mut().zip(begin).zip(&schedule.starts[at..at + begin.len()]) {
        *end = begin + work;
        interrupted |= *end > *next;
    }
    if interrupted {
        for (i, (end, begin)) in end.iter_mut().zip(begin).enumerate() {
            if *end > schedule.starts[at + i] {
                *end = schedule.finish(at + i, *begin, work);
            }
        }
    }
}
