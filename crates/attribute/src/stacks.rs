// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The functions of user code that have called each other, task by task.
//!
//! A frame is known by the place of its return address on the stack, which grows downwards. A call and a
//! return remove the frames at their place and below: those of functions that an exception, longjmp(3) or a
//! task's end left without a return.

use crate::Code;
use crate::perf::Record;
use bifold_mmu::Gva;
use rustc_hash::FxHashMap;
use std::collections::HashMap;

/// Depth up to which callers are distinguished. Costs of deeper frames, of a recursion, count for the frame
/// at this depth.
const DEEPEST: usize = 100;
/// Frames that are kept of a task.
const MOST_FRAMES: usize = 1 << 16;
/// Frames farther apart are of two stacks: the program has switched to another.
const APART: u64 = 8 << 20;

/// A list of callers, by its number; 0 is the empty one.
pub(crate) type List = u32;

#[derive(Debug, Clone, Copy)]
struct Frame {
    slot: u64,
    caller: Gva,
    /// The callers up to this one; 0 if nothing has asked yet.
    list: List,
}

/// The callers of all tasks.
#[derive(Debug, Default)]
pub(crate) struct Stacks {
    /// Per vCPU: the task that runs, and its frames.
    running: Vec<(u32, Vec<Frame>)>,
    /// Frames of tasks that do not run.
    parked: HashMap<u32, Vec<Frame>>,
    lists: Lists,
}

#[derive(Debug, Default)]
struct Lists {
    /// Each list's last caller and the list before it, from list 1 on.
    all: Vec<(List, Code)>,
    numbers: FxHashMap<(List, Code), List>,
}

impl Stacks {
    fn on(&mut self, vcpu: usize) -> &mut (u32, Vec<Frame>) {
        while self.running.len() <= vcpu {
            self.running.push((u32::from(self.running.is_empty()), Vec::new()));
        }
        &mut self.running[vcpu]
    }

    /// A call by the code at `caller`, which stores the return address at `slot`; or a return from there.
    pub fn follow_code(&mut self, vcpu: usize, slot: Gva, caller: Option<Gva>) {
        let frames = &mut self.on(vcpu).1;
        while frames.last().is_some_and(|f| f.slot <= slot.0) {
            frames.pop();
        }
        if frames.last().is_some_and(|f| f.slot - slot.0 > APART) {
            frames.clear();
        }
        if let Some(caller) = caller.filter(|_| frames.len() < MOST_FRAMES) {
            frames.push(Frame { slot: slot.0, caller, list: 0 });
        }
    }

    /// Applies a record of this vCPU's stream.
    pub fn follow(&mut self, vcpu: usize, record: Record<'_>) {
        match record {
            Record::Switch { tid } if self.on(vcpu).0 != tid => {
                let new = (tid, self.parked.remove(&tid).unwrap_or_default());
                let (old, frames) = std::mem::replace(self.on(vcpu), new);
                if old != 0 && !frames.is_empty() {
                    self.parked.insert(old, frames);
                }
            }
            // A new process has a copy of the stack, a new thread a stack of its own.
            Record::Fork { pid, parent_pid, tid, .. } => {
                let copy = if pid == parent_pid { Vec::new() } else { self.on(vcpu).1.clone() };
                self.parked.insert(tid, copy);
            }
            Record::Comm { exec: true, .. } => self.on(vcpu).1.clear(),
            Record::Exit { tid } => drop(self.parked.remove(&tid)),
            _ => {}
        }
    }

    /// The callers of the code that runs on this vCPU. `code` names the code at an address.
    pub fn list(&mut self, vcpu: usize, code: impl Fn(Gva) -> Code) -> List {
        self.on(vcpu);
        let Stacks { running, lists, .. } = self;
        let frames = &mut running[vcpu].1;
        let known = frames.iter().rposition(|f| f.list != 0).map_or(0, |i| i + 1);
        for i in known..frames.len() {
            let before = if i == 0 { 0 } else { frames[i - 1].list };
            frames[i].list = if i >= DEEPEST { before } else { lists.with(before, code(frames[i].caller)) };
        }
        frames.last().map_or(0, |f| f.list)
    }

    /// Whether there was any call.
    pub fn called(&self) -> bool {
        !self.lists.all.is_empty() || self.running.iter().any(|(_, frames)| !frames.is_empty())
    }

    /// This list and one more caller.
    pub fn with(&mut self, list: List, caller: Code) -> List {
        self.lists.with(list, caller)
    }

    /// The callers of a list, the outermost first.
    pub fn callers(&self, mut list: List) -> Vec<Code> {
        let mut all = Vec::new();
        while list != 0 {
            let (before, caller) = self.lists.all[list as usize - 1];
            all.push(caller);
            list = before;
        }
        all.reverse();
        all
    }

    /// Every caller of every list.
    pub fn all(&self) -> impl Iterator<Item = Code> + '_ {
        self.lists.all.iter().map(|(_, caller)| *caller)
    }
}

impl Lists {
    fn with(&mut self, before: List, caller: Code) -> List {
        *self.numbers.entry((before, caller)).or_insert_with(|| {
            self.all.push((before, caller));
            self.all.len() as List
        })
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use proptest::prelude::*;

    fn code(at: Gva) -> Code {
        Code::File(0, at.0)
    }

    fn callers(s: &mut Stacks, vcpu: usize) -> Vec<u64> {
        let list = s.list(vcpu, code);
        let at = |c: Code| match c {
            Code::File(_, at) => at,
            _ => unreachable!(),
        };
        s.callers(list).into_iter().map(at).collect()
    }

    #[test]
    fn frames_that_an_exception_left_go_with_the_next_call_or_return_above() {
        let mut s = Stacks::default();
        for (slot, caller) in [(0x1000, 1), (0xf00, 2), (0xe00, 3)] {
            s.follow_code(0, Gva(slot), Some(Gva(caller)));
        }
        assert_eq!(callers(&mut s, 0), [1, 2, 3]);
        s.follow_code(0, Gva(0xe00), None);
        assert_eq!(callers(&mut s, 0), [1, 2]);
        s.follow_code(0, Gva(0xe00), Some(Gva(4)));
        s.follow_code(0, Gva(0xd00), Some(Gva(5)));
        // Back in the first function, which calls another.
        s.follow_code(0, Gva(0xf80), Some(Gva(6)));
        assert_eq!(callers(&mut s, 0), [1, 6]);
        s.follow_code(0, Gva(0x1000), None);
        assert_eq!(callers(&mut s, 0), [0; 0]);
    }

    #[test]
    fn tasks_have_stacks_of_their_own_and_a_fork_copies_one() {
        let mut s = Stacks::default();
        s.follow_code(0, Gva(0x1000), Some(Gva(1)));
        s.follow(0, Record::Fork { pid: 50, parent_pid: 1, tid: 50, parent_tid: 1 });
        s.follow(0, Record::Fork { pid: 1, parent_pid: 1, tid: 51, parent_tid: 1 });
        s.follow(1, Record::Switch { tid: 50 });
        assert_eq!((callers(&mut s, 0), callers(&mut s, 1)), (vec![1], vec![1]));
        s.follow(1, Record::Comm { pid: 50, tid: 50, exec: true, name: b"x" });
        s.follow(0, Record::Switch { tid: 51 });
        assert_eq!((callers(&mut s, 0), callers(&mut s, 1)), (vec![], vec![]));
        s.follow_code(0, Gva(0x800), Some(Gva(2)));
        s.follow(0, Record::Switch { tid: 1 });
        assert_eq!(callers(&mut s, 0), [1]);
    }

    #[test]
    fn another_stack_far_away_has_callers_of_its_own_and_a_recursion_ends_somewhere() {
        let mut s = Stacks::default();
        s.follow_code(0, Gva(1 << 40), Some(Gva(1)));
        s.follow_code(0, Gva(1 << 30), Some(Gva(2)));
        assert_eq!(callers(&mut s, 0), [2]);
        for i in 1..MOST_FRAMES as u64 + 10 {
            s.follow_code(0, Gva((1 << 30) - 8 * i), Some(Gva(3)));
        }
        assert_eq!(callers(&mut s, 0).len(), DEEPEST);
        assert_eq!(s.on(0).1.len(), MOST_FRAMES);
    }

    proptest! {
        /// Whoever asks when, the callers are those of the calls that have not returned.
        #[test]
        fn callers_are_the_calls_that_have_not_returned(ops in proptest::collection::vec((0u64..20, any::<bool>(), any::<bool>()), 1..300)) {
            let (mut s, mut reference) = (Stacks::default(), Vec::new());
            for (n, (slot, call, ask)) in ops.into_iter().enumerate() {
                s.follow_code(0, Gva(slot), call.then_some(Gva(n as u64)));
                reference.retain(|(at, _)| *at > slot);
                if call {
                    reference.push((slot, n as u64));
                }
                if ask {
                    prop_assert_eq!(callers(&mut s, 0), reference.iter().map(|(_, n)| *n).collect::<Vec<_>>());
                }
            }
        }
    }
}
