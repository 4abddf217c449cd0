// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The user code for which the kernel works, task by task. A task that is switched away in the kernel
//! goes on later, perhaps on another vCPU, for the user code that it came from. A new task starts with the
//! user code that created it.

use crate::perf::Record;
use crate::{Code, Target};
use std::collections::HashMap;

/// User code that entered the kernel. Its names are those at the entry: an exec changes both.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) struct Caller {
    /// Index of the process's name.
    pub process: u32,
    /// The code.
    pub code: Code,
    /// The mapping that the code faulted on, or the kernel's entry point.
    pub target: Target,
}

/// The callers of all tasks.
#[derive(Debug, Default)]
pub(crate) struct Callers {
    /// Per vCPU: the task that runs, and its caller. Kernel threads and idle tasks have none.
    running: Vec<(u32, Option<Caller>)>,
    /// Callers of tasks that do not run. A dead task's stays until its number is used again.
    parked: HashMap<u32, Caller>,
}

impl Callers {
    /// Before the first switch the first vCPU runs init and the others are idle.
    fn slot(&mut self, vcpu: usize) -> &mut (u32, Option<Caller>) {
        while self.running.len() <= vcpu {
            self.running.push((u32::from(self.running.is_empty()), None));
        }
        &mut self.running[vcpu]
    }

    /// The task on this vCPU entered the kernel.
    pub fn enter(&mut self, vcpu: usize, caller: Caller) {
        self.slot(vcpu).1 = Some(caller);
    }

    /// The caller of the task on this vCPU.
    pub fn on(&self, vcpu: usize) -> Option<Caller> {
        self.running.get(vcpu)?.1
    }

    /// Applies a record of this vCPU's stream.
    pub fn follow(&mut self, vcpu: usize, record: Record<'_>) {
        match record {
            Record::Switch { tid } if self.slot(vcpu).0 != tid => {
                let new = (tid, self.parked.remove(&tid));
                if let (old, Some(caller)) = std::mem::replace(self.slot(vcpu), new) {
                    self.parked.insert(old, caller);
                }
            }
            Record::Fork { tid, .. } => match self.slot(vcpu).1 {
                Some(caller) => drop(self.parked.insert(tid, caller)),
                None => drop(self.parked.remove(&tid)),
            },
            _ => {}
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn caller(at: u64) -> Caller {
        Caller { process: 0, code: Code::File(0, at), target: Target::Unknown }
    }

    #[test]
    fn a_task_keeps_its_caller_over_switches_and_takes_it_to_another_vcpu() {
        let mut c = Callers::default();
        c.enter(0, caller(1));
        c.follow(0, Record::Switch { tid: 70 });
        assert_eq!(c.on(0), None, "a kernel thread");
        c.follow(0, Record::Switch { tid: 0 });
        c.follow(1, Record::Switch { tid: 1 });
        assert_eq!((c.on(0), c.on(1)), (None, Some(caller(1))));
        // The switch is reported by both tasks.
        c.follow(1, Record::Switch { tid: 1 });
        assert_eq!(c.on(1), Some(caller(1)));
    }

    #[test]
    fn a_new_task_has_the_caller_that_created_it() {
        let mut c = Callers::default();
        c.enter(0, caller(1));
        c.follow(0, Record::Fork { pid: 50, parent_pid: 1, tid: 50, parent_tid: 1 });
        c.enter(0, caller(2));
        c.follow(1, Record::Switch { tid: 50 });
        assert_eq!((c.on(0), c.on(1)), (Some(caller(2)), Some(caller(1))));
        // The number is used again by a kernel thread's child.
        c.follow(1, Record::Switch { tid: 2 });
        c.follow(1, Record::Fork { pid: 50, parent_pid: 2, tid: 50, parent_tid: 2 });
        c.follow(1, Record::Switch { tid: 50 });
        assert_eq!(c.on(1), None);
    }
}
