// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypercalls of direct paging, from the rules alone: every operation in a list, which is cut afterwards.

use super::tables::entry_in;
use super::{PRESENT, Reference};
use bifold_trace::Event;
use std::collections::HashMap;

/// What a guest under direct paging does.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Operation {
    /// Stores an entry of a table of this level in this frame.
    Store { table: u64, level: u8 },
    /// Pins or unpins a table.
    Pin,
    /// Reads the leaf entry of a walk from the table in this frame.
    Walk(u64),
    /// Anything that ends every batch.
    End,
}

#[derive(Debug, Default)]
pub struct Hypercalls {
    pub calls: u64,
    pub entries: u64,
    pub faults: u64,
    pub roots: u64,
    pub invalidations: u64,
    /// Levels of the guest's tables.
    pub levels: HashMap<u64, u8>,
    /// Per vCPU: the operations of the call that is open, oldest first.
    open: Vec<Vec<Operation>>,
}

impl Hypercalls {
    pub fn note(&mut self, cpu: usize, operation: Operation) {
        self.open.resize_with(self.open.len().max(cpu + 1), Vec::new);
        let open = &mut self.open[cpu];
        let joins = !matches!(operation, Operation::Store { level: 2.., .. });
        match operation {
            Operation::Walk(table) => {
                if open.contains(&Operation::Store { table, level: 1 }) {
                    open.clear();
                }
            }
            Operation::End => open.clear(),
            Operation::Store { .. } | Operation::Pin => {
                if open.len() == 32 || !joins || open.last() != Some(&operation) {
                    open.clear();
                    self.calls += 1;
                }
                open.push(operation);
            }
        }
    }
}

impl Reference {
    /// What direct paging does for the event, but for walks.
    pub(super) fn note_hypercalls(&mut self, event: &Event<'_>) {
        if let Event::Table { gfn, level, .. } = event {
            self.hypercalls.levels.insert(*gfn, *level);
        }
        if !self.cpus[self.current].started {
            return;
        }
        let (format, calls) = (self.format, &mut self.hypercalls);
        let operation = match event {
            Event::PtStore { gpa, .. } => {
                let Some(&level) = calls.levels.get(&(gpa >> 12)) else { return };
                calls.entries += 1;
                Operation::Store { table: gpa >> 12, level }
            }
            Event::Table { entries, .. } => {
                let bytes = format.entry_bytes();
                let all =
                    (0..4096).step_by(bytes as usize).map(|at| entry_in(entries[at as usize / 8], at, bytes));
                calls.entries += all.filter(|entry| entry & PRESENT != 0).count() as u64;
                Operation::Pin
            }
            Event::Retire { gfn } => {
                calls.levels.remove(gfn);
                Operation::Pin
            }
            Event::Fault { .. } | Event::Cr3(_) | Event::Invlpg(_) => {
                calls.faults += u64::from(matches!(event, Event::Fault { .. }));
                calls.roots += u64::from(matches!(event, Event::Cr3(_)));
                calls.invalidations += u64::from(matches!(event, Event::Invlpg(_)));
                Operation::End
            }
            Event::Cr4(_) if self.cpus[self.current].cr4.is_some() => Operation::End,
            _ => return,
        };
        calls.note(self.current, operation);
    }
}
