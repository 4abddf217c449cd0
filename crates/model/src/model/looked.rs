// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Looks at the guest's memory in the stream, and hosts to which guests report free blocks. A guest with free
//! page reporting names blocks of 2 MB and more that its allocator has had free for some seconds, and the
//! host drops what is behind them (Linux `page_reporting_process()`, QEMU's virtio-balloon). Here the host
//! drops all that are free at a look, at once: the most that reporting can give at these points.

use super::Model;
use crate::host::Taking;
use bifold_mmu::Gpa;
use bifold_trace::{Event, MemoryLook};
use std::ops::Range;

/// What a look saw.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Looked {
    /// Instructions of the recording before the look.
    pub instructions: u64,
    /// What the guest's kernel uses its memory for.
    pub look: MemoryLook,
    /// By configuration: the frames that the host holds for the guest, without the zero page. 0 where there
    /// is no hypervisor. With reporting, these are what is left after the look's report.
    pub held: Vec<u64>,
}

#[derive(Debug, Default)]
pub(super) struct Looks {
    /// The free blocks of the look that comes next.
    free: Vec<Range<u64>>,
    seen: Vec<Looked>,
    reporting: bool,
    /// By configuration, frames that the host has dropped.
    dropped: Vec<u64>,
}

/// Frames of the pages.
fn frames(pages: &[Range<u64>]) -> u64 {
    pages.iter().map(|page| page.end - page.start).sum()
}

impl Model {
    /// From now on the guest reports its free blocks at each look of the stream, and each host drops them.
    /// Native and offset paging have no host that drops anything.
    pub fn report_free(&mut self) {
        self.looks.reporting = true;
    }

    /// What the stream's looks have seen, in their order.
    pub fn looked(&self) -> &[Looked] {
        &self.looks.seen
    }

    /// Frames that host number `host` has dropped since the guest reports them.
    pub fn dropped(&self, host: usize) -> u64 {
        self.looks.dropped.get(host).copied().unwrap_or(0)
    }

    /// A device's transfer, a free block or a look.
    pub(super) fn of_memory(&mut self, event: Event<'_>) {
        match event {
            Event::Transfer { gpa, bytes, write } => {
                let Some(last) = u64::from(bytes).checked_sub(1) else { return };
                let end = gpa.saturating_add(last);
                if let Some(uses) = &mut self.observers.uses {
                    uses.transfer(gpa >> 12..(end >> 12) + 1, write);
                }
                self.transfer(gpa, end, write);
            }
            Event::Free { gfn, frames } if gfn < self.frames => {
                self.looks.free.push(gfn..gfn.saturating_add(frames).min(self.frames));
            }
            Event::Look(look) => self.look_at(look),
            _ => {}
        }
    }

    /// The host's processes touch what is in swap and what they move, from byte `gpa` to byte `end`.
    fn transfer(&mut self, gpa: u64, end: u64, write: bool) {
        let Model { observers, regimes, frames, .. } = self;
        let Some(swaps) = &mut observers.swaps else { return };
        for frame in gpa >> 12..((end >> 12) + 1).min(*frames) {
            let bytes = |at: u64| at.clamp(frame << 12, (frame << 12) + 4096) - (frame << 12);
            let back = regimes.iter_mut().enumerate().filter_map(|(host, regime)| {
                let at = Gpa::from_frame(frame);
                regime.transfer(at, write).then_some(host)
            });
            let back: Vec<usize> = back.collect();
            swaps.transfer(frame, bytes(gpa)..bytes(end.saturating_add(1)), write, &back);
        }
    }

    fn look_at(&mut self, look: MemoryLook) {
        let free = std::mem::take(&mut self.looks.free);
        let hosts = self.regimes.len();
        self.looks.dropped.resize(hosts, 0);
        let mut held = Vec::with_capacity(hosts);
        for host in 0..hosts {
            let mut now = frames(&self.oldest(host, usize::MAX));
            if self.looks.reporting {
                for gfns in &free {
                    self.take_back(host, gfns.clone(), Taking::Discard);
                }
                let before = std::mem::replace(&mut now, frames(&self.oldest(host, usize::MAX)));
                self.looks.dropped[host] += before - now;
            }
            held.push(now);
        }
        self.looks.seen.push(Looked { instructions: self.common.instructions, look, held });
    }
}
