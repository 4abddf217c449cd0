// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A slow simulator that is obviously right: each rank executes a list of operations, messages lie in queues,
//! and time goes by nanosecond by nanosecond. Whole nanoseconds only.

use super::{Collective, LogGp};
use std::collections::HashMap;

/// What a rank does.
#[derive(Debug, Clone, Copy)]
enum Op {
    Compute(u64),
    Send(usize),
    Receive(usize),
    /// Receives a message of every other rank in the order of arrival.
    Gather,
    WaitForAll,
}

/// Whether a rank's CPU is taken away in the nanosecond from a time on.
pub type IsNoisy<'a> = &'a dyn Fn(usize, u64) -> bool;

/// Times at which the ranks are done with `steps` steps.
pub fn simulate(
    n: usize,
    grain: u64,
    collective: Collective,
    cost: LogGp,
    noisy: IsNoisy,
    steps: u32,
) -> Vec<u64> {
    let program = |rank| {
        let mut ops = vec![Op::Compute(grain)];
        if n > 1 {
            operations(collective, rank, n, &mut ops);
        }
        ops
    };
    let mut machine = Machine::new(n, cost, noisy);
    for _ in 0..steps {
        machine.run(&(0..n).map(program).collect::<Vec<_>>());
    }
    machine.now
}

/// The program of one rank, by the definitions of the operations.
fn operations(collective: Collective, rank: usize, n: usize, ops: &mut Vec<Op>) {
    let bits = usize::BITS as usize;
    match collective {
        Collective::Dissemination => {
            for distance in (0..bits).map(|k| 1 << k).take_while(|d| *d < n) {
                ops.extend([Op::Send((rank + distance) % n), Op::Receive((rank + n - distance) % n)]);
            }
        }
        Collective::RecursiveDoubling => {
            let power = (1..).map(|k| 1 << k).take_while(|p| *p <= n).last().unwrap();
            let folded = n - power;
            if rank < 2 * folded && rank % 2 == 0 {
                ops.extend([Op::Send(rank + 1), Op::Receive(rank + 1)]);
                return;
            }
            let members: Vec<usize> = (0..n).filter(|r| *r >= 2 * folded || r % 2 == 1).collect();
            let own = members.iter().position(|r| *r == rank).unwrap();
            if rank < 2 * folded {
                ops.push(Op::Receive(rank - 1));
            }
            for distance in (0..bits).map(|k| 1 << k).take_while(|d| *d < power) {
                ops.extend([Op::Send(members[own ^ distance]), Op::Receive(members[own ^ distance])]);
            }
            if rank < 2 * folded {
                ops.push(Op::Send(rank - 1));
            }
        }
        Collective::Reduce | Collective::Broadcast | Collective::Tree => {
            let parent = (0..bits).rev().map(|k| 1 << k).find(|bit| rank & bit != 0).map(|bit| rank - bit);
            // Children, the nearest first.
            let above = (0..24).map(|k| 1 << k).filter(|bit| *bit > rank);
            let children: Vec<usize> = above.map(|bit| rank + bit).filter(|r| *r < n).collect();
            if collective != Collective::Broadcast {
                ops.extend(children.iter().rev().map(|c| Op::Receive(*c)));
                ops.extend(parent.map(Op::Send));
            }
            if collective != Collective::Reduce {
                ops.extend(parent.map(Op::Receive));
                ops.extend(children.iter().map(|c| Op::Send(*c)));
            }
        }
        Collective::Ring => {
            ops.extend((rank > 0).then(|| Op::Receive(rank - 1)));
            ops.extend((rank + 1 < n).then_some(Op::Send(rank + 1)));
        }
        Collective::Linear if rank == 0 => {
            ops.push(Op::Gather);
            ops.extend((1..n).map(Op::Send));
        }
        Collective::Linear => ops.extend([Op::Send(0), Op::Receive(0)]),
        Collective::Ideal => ops.push(Op::WaitForAll),
    }
}

struct Machine<'a> {
    now: Vec<u64>,
    send_free: Vec<u64>,
    receive_free: Vec<u64>,
    /// Arrivals by receiver and sender.
    messages: HashMap<(usize, usize), Vec<u64>>,
    cost: LogGp,
    noisy: IsNoisy<'a>,
}

impl<'a> Machine<'a> {
    fn new(n: usize, cost: LogGp, noisy: IsNoisy<'a>) -> Machine<'a> {
        let zeros = || vec![0; n];
        let messages = HashMap::new();
        Machine { now: zeros(), send_free: zeros(), receive_free: zeros(), messages, cost, noisy }
    }

    /// Runs programs to their ends.
    fn run(&mut self, programs: &[Vec<Op>]) {
        let mut done = vec![0; programs.len()];
        while done.iter().zip(programs).any(|(d, p)| *d < p.len()) {
            let before = done.clone();
            for (rank, program) in programs.iter().enumerate() {
                while done[rank] < program.len() && self.execute(rank, program[done[rank]]) {
                    done[rank] += 1;
                }
            }
            // All wait for all.
            if before == done {
                let last = *self.now.iter().max().unwrap();
                self.now.fill(last);
                done.iter_mut().for_each(|d| *d += 1);
            }
        }
    }

    /// Executes an operation, unless it has to wait.
    fn execute(&mut self, rank: usize, op: Op) -> bool {
        let (o, wire) = (self.cost.overhead as u64, self.cost.wire() as u64);
        match op {
            Op::Compute(work) => self.now[rank] = self.work(rank, self.now[rank], work),
            Op::Send(to) => {
                let start = self.now[rank].max(self.send_free[rank]);
                self.send_free[rank] = start + self.cost.spacing() as u64;
                self.now[rank] = self.work(rank, start, o);
                self.messages.entry((to, rank)).or_default().push(self.now[rank] + wire);
            }
            Op::Receive(from) => match self.messages.get_mut(&(rank, from)) {
                Some(queue) if !queue.is_empty() => {
                    let arrival = queue.remove(0);
                    self.receive(rank, arrival);
                }
                _ => return false,
            },
            Op::Gather => {
                let others = (0..self.now.len()).filter(|r| *r != rank);
                let queues: Vec<_> = others.map(|r| self.messages.get(&(rank, r))).collect();
                if queues.iter().any(|q| q.is_none_or(Vec::is_empty)) {
                    return false;
                }
                let mut arrivals: Vec<u64> = queues.iter().map(|q| q.unwrap()[0]).collect();
                arrivals.sort();
                (0..self.now.len()).for_each(|r| _ = self.messages.remove(&(rank, r)));
                arrivals.into_iter().for_each(|a| self.receive(rank, a));
            }
            Op::WaitForAll => return false,
        }
        true
    }

    fn receive(&mut self, rank: usize, arrival: u64) {
        let start = self.now[rank].max(arrival).max(self.receive_free[rank]);
        self.receive_free[rank] = start + self.cost.spacing() as u64;
        self.now[rank] = self.work(rank, start, self.cost.overhead as u64);
    }

    /// One nanosecond after the other.
    fn work(&self, rank: usize, start: u64, work: u64) -> u64 {
        let mut now = start;
        for _ in 0..work {
            while (self.noisy)(rank, now) {
                now += 1;
            }
            now += 1;
        }
        now
    }
}
