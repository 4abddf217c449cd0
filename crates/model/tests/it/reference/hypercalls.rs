// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The hypercalls of direct paging, from the rules alone: every operation in a list, which is cut afterwards.

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
