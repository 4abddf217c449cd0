// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One VM of a timeline, prepared for replays: each mode's samples and costs per interval, and the cold
//! entries that a switch leaves in later intervals.

use crate::timeline::{StaticRun, SwitchCosts, Timeline};
use crate::{Mode, PerMode};
use bifold_mmu::PageSize;
use bifold_model::ages::{Reuse, bounds};
use bifold_model::{Sample, VmState};

/// The kind of VM that a timeline is replayed for. The VM's state at the start is the timeline's.
#[derive(Debug, Clone, Copy, PartialEq)]
pub struct VmKind {
    /// Size of the host's pages.
    pub host_page: PageSize,
    /// Whether the nested tables are kept while the VM is in shadow mode.
    pub keep_nested: bool,
}

impl Default for VmKind {
    fn default() -> Self {
        VmKind { host_page: PageSize::Size4K, keep_nested: true }
    }
}

/// The exits and tables in an interval that a switch causes.
#[derive(Debug, Clone, Copy, Default, PartialEq)]
pub struct Cold {
    /// Number of exits that fill entries.
    pub exits: f64,
    /// Number of tables made: shadow pages.
    pub tables: f64,
    /// Cycles of exits and pages.
    pub cycles: f64,
}

/// One VM's costs, ready for replays.
#[derive(Debug, Clone)]
pub struct Track {
    /// Length of an interval in seconds of the timeline.
    pub interval_s: f64,
    /// The VM's kind.
    pub vm: VmKind,
    /// What the host held of the VM's memory at the start.
    pub state: VmState,
    /// Costs of switching.
    pub costs: SwitchCosts,
    /// Whether policies see [`Counters::WAITS`](crate::Counters::WAITS), as they do in the model. No hardware
    /// counts these, so a policy for a live host is trained without them; costs have them in any case.
    pub waits: bool,
    /// Cycles of the guest's own work per interval.
    pub ideal: Vec<f64>,
    /// Samples per interval, by mode. These are the modes that the VM can be in.
    pub samples: PerMode<Vec<Sample>>,
    reuse: PerMode<Vec<Vec<Reuse>>>,
    /// Shadow pages, or another mode's tables in their place, in use at the end of each interval of the
    /// mode's run.
    shadow_pages: PerMode<Vec<f64>>,
    /// Number of nested tables that a drop would free.
    nested_tables: f64,
}

impl Track {
    /// The track of a VM; `None` if the timeline lacks its host pages.
    pub fn new(timeline: &Timeline, vm: VmKind) -> Option<Track> {
        let runs = timeline.runs(vm.host_page)?;
        runs.get(Mode::Nested)?;
        let ideal = runs.get(Mode::Shadow)?.samples.iter().map(|s| s.ideal_cycles(timeline.about.base_cpi));
        let shadow_pages = |_, run: &StaticRun| {
            let mut in_use = 0.0f64;
            let after = run.samples.iter().map(|s| {
                in_use = (in_use + s.shadow_pages_made as f64 - s.shadow_pages_zapped as f64).max(0.0);
                in_use
            });
            after.collect()
        };
        Some(Track {
            interval_s: timeline.interval_s(),
            vm,
            state: timeline.about.vm,
            costs: timeline.costs,
            waits: true,
            ideal: ideal.collect(),
            shadow_pages: runs.map(shadow_pages),
            // One leaf table per 512 host pages.
            nested_tables: (timeline.about.guest_frames as f64
                / f64::from(1u32 << (vm.host_page.shift() - 12))
                / 512.0)
                .ceil(),
            samples: runs.map(|_, run| run.samples.clone()),
            reuse: runs.map(|_, run| run.reuse.clone()),
        })
    }

    /// Number of intervals.
    pub fn len(&self) -> usize {
        self.ideal.len()
    }

    /// Whether there is no interval. A timeline that was read has intervals.
    pub fn is_empty(&self) -> bool {
        self.ideal.is_empty()
    }

    /// The modes that the VM can be in: those whose costs were recorded.
    pub fn modes(&self) -> impl DoubleEndedIterator<Item = Mode> + '_ {
        self.samples.modes()
    }

    /// Cycles of interval `j` beyond the ideal run's in a VM that never switches.
    #[inline]
    pub fn extra(&self, mode: Mode, j: usize) -> f64 {
        self.samples[mode][j].extra_cycles() as f64
    }

    /// Cycles of the whole run in a VM that never switches.
    pub fn static_cycles(&self, mode: Mode) -> f64 {
        (0..self.len()).map(|j| self.ideal[j] + self.extra(mode, j)).sum()
    }

    /// Shadow pages in use at the end of interval `j` in this mode: the pages before the interval and
    /// `tables` that it made again, or those of a VM that was always in this mode.
    pub(crate) fn pages_after(&self, mode: Mode, j: usize, stay: Option<f64>, tables: f64) -> f64 {
        let most = self.shadow_pages[mode][j];
        let Some(before) = stay else { return most };
        let s = &self.samples[mode][j];
        let change = s.shadow_pages_made as f64 - s.shadow_pages_zapped as f64 + tables;
        (before + change).clamp(0.0, most)
    }

    /// Shadow pages in use at the end of interval `j` if the mode was entered long ago.
    pub(crate) fn shadow_pages(&self, mode: Mode, j: usize) -> f64 {
        self.shadow_pages[mode][j]
    }

    /// The exits and tables in interval `j` that a switch to `mode` at the beginning of interval `entered`
    /// causes; `left` is the interval at which that mode was left before, or 0.
    #[inline]
    pub fn cold(&self, mode: Mode, j: usize, entered: usize, left: usize) -> Cold {
        let stay = (j - entered) as u32;
        match mode {
            Mode::Shadow => self.sum(mode, j, stay, u32::MAX, self.costs.hidden_fault),
            // All entries are there from the start.
            Mode::Nested if self.vm.keep_nested && self.state == VmState::LongLived => Cold::default(),
            Mode::Nested if self.vm.keep_nested => {
                self.sum(Mode::Nested, j, stay, (j - left) as u32, self.costs.violation)
            }
            _ => self.sum(mode, j, stay, u32::MAX, self.costs.violation),
        }
    }

    /// Entries last used more than `stay` intervals ago, and made at most `made` ago.
    fn sum(&self, mode: Mode, j: usize, stay: u32, made: u32, each: u64) -> Cold {
        let (mut exits, mut tables) = (0.0, 0.0);
        for r in &self.reuse[mode][j] {
            let share = older(r.last, stay) * if made == u32::MAX { 1.0 } else { 1.0 - older(r.made, made) };
            exits += share * f64::from(r.exits);
            tables += share * f64::from(r.tables);
        }
        let cycles = exits * each as f64 + tables * self.costs.make_page as f64;
        Cold { exits, tables, cycles }
    }

    /// Cycles of the switch itself out of `mode`, with this many shadow pages in use.
    pub fn switch_cycles(&self, from: Mode, shadow_pages: f64) -> f64 {
        self.costs.switch as f64 + self.dropped(from, shadow_pages) * self.costs.zap_page as f64
    }

    /// Number of tables that a switch out of `from` drops.
    pub(crate) fn dropped(&self, from: Mode, shadow_pages: f64) -> f64 {
        match from {
            Mode::Nested if self.vm.keep_nested => 0.0,
            Mode::Nested => self.nested_tables,
            _ => shadow_pages,
        }
    }
}

/// Share of a bucket's ages that are above `stay`.
#[inline]
fn older(bucket: u8, stay: u32) -> f64 {
    let (from, to) = bounds(bucket);
    if from > stay {
        1.0
    } else if to <= stay + 1 {
        0.0
    } else {
        f64::from(to - stay - 1) / f64::from(to - from)
    }
}
