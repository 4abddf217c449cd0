// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The state of the screen: the VMs with their last intervals, and what the user selected.
//!
//! [`App::update`] takes what a tick saw; `keys.rs` has what keys change. The selected VM is always one that
//! the list shows; nothing is selected only if the list is empty.

use super::column::COLUMNS;
use crate::full::vms;
use bifold_host::{Backing, State, Statistics, VmId};
use bifold_live::advice::best;
use bifold_live::{Figures, Interval, IntervalRow, Tick, Watch, Watched};
use bifold_policy::Mode;
use ratatui::widgets::TableState;
use std::cmp::Ordering;
use std::collections::{BTreeMap, VecDeque};
use std::time::Duration;

/// Intervals of a VM that its page shows.
pub const HISTORY: usize = 120;
/// The shortest interval. People do not read faster.
pub const SHORTEST: Duration = Duration::from_millis(100);

/// A VM, as shown.
#[derive(Debug, Default)]
pub struct Vm {
    /// Its name, without control characters.
    pub name: String,
    pub pid: u32,
    /// Its mode, or the switch that is under way.
    pub state: Option<State>,
    /// Number of its vCPUs whose threads are known.
    pub vcpus: usize,
    pub backing: Option<Backing>,
    /// The last interval.
    pub figures: Figures,
    pub seconds: f64,
    pub switches: Option<u64>,
    pub statistics: Statistics,
    pub each_vcpu: Vec<Vcpu>,
    /// What would help the VM most, in words; behind a change that KVM would refuse, the next best.
    pub advice: Vec<String>,
    /// The last intervals, the newest last.
    pub history: VecDeque<Moment>,
}

/// A vCPU in the last interval.
#[derive(Debug)]
pub struct Vcpu {
    pub number: u32,
    pub thread: u32,
    pub figures: Figures,
}

/// An interval of the past.
#[derive(Debug)]
pub struct Moment {
    pub figures: Figures,
    /// The mode during the whole interval.
    pub mode: Option<Mode>,
    pub switches: Option<u64>,
}

impl Vm {
    fn see(&mut self, vm: &Watched) {
        self.name = vms::name(vm);
        self.pid = vm.pid;
        self.state = vm.state();
        self.vcpus = vm.vcpus();
        self.backing.clone_from(&vm.backing);
    }

    fn add(&mut self, vm: &Watched, interval: &Interval) {
        let row = IntervalRow::of_vm(0.0, vm, interval);
        self.figures = Figures::of(&row);
        self.advice = best(&row).iter().map(ToString::to_string).collect();
        self.seconds = interval.seconds;
        self.switches = interval.switches;
        self.statistics = interval.statistics;
        let vcpus = interval.vcpus.iter().zip(IntervalRow::of_vcpus(0.0, vm, interval));
        self.each_vcpu = vcpus
            .map(|(v, row)| Vcpu { number: v.number, thread: v.thread, figures: Figures::of(&row) })
            .collect();
        if self.history.len() == HISTORY {
            self.history.pop_front();
        }
        let (mode, switches) = (interval.mode, interval.switches);
        self.history.push_back(Moment { figures: self.figures, mode, switches });
    }
}

/// What the screen shows.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Page {
    List,
    Vm(VmId),
}

/// The state.
pub struct App {
    pub vms: BTreeMap<VmId, Vm>,
    pub page: Page,
    /// Whether help covers the page.
    pub help: bool,
    pub selected: Option<VmId>,
    /// Whether the user chose the selected VM; until then, the selected VM is the first one.
    pub chosen: bool,
    /// Place of the column by which the list is sorted.
    pub sort: usize,
    pub reversed: bool,
    /// The list has VMs whose name contains this.
    pub filter: String,
    /// Whether keys go into the filter.
    pub typing: bool,
    pub paused: bool,
    pub interval: Duration,
    /// The user has ended the program.
    pub done: bool,
    /// What is not known here.
    pub notes: Vec<String>,
    /// First line of the list that is visible.
    pub table: TableState,
    /// First line of a VM's page, or of the help, that is visible.
    pub scroll: usize,
}

impl App {
    pub fn new(interval: Duration) -> App {
        App {
            vms: BTreeMap::new(),
            page: Page::List,
            help: false,
            selected: None,
            chosen: false,
            sort: COLUMNS.iter().position(|c| c.name == "ran").unwrap_or(0),
            reversed: false,
            filter: String::new(),
            typing: false,
            paused: false,
            interval,
            done: false,
            notes: Vec::new(),
            table: TableState::default(),
            scroll: 0,
        }
    }

    /// Takes what a tick saw of the VMs that the words choose.
    pub fn update(&mut self, watch: &Watch, tick: &Tick, words: &[String]) {
        let place = self.place();
        let chosen = |vm: &&Watched| vms::is_chosen(vm, words);
        self.vms.retain(|id, _| watch.vm(*id).filter(chosen).is_some());
        watch.vms().filter(chosen).for_each(|vm| self.vms.entry(vm.id).or_default().see(vm));
        for (id, interval) in &tick.intervals {
            if let (Some(mine), Some(vm)) = (self.vms.get_mut(id), watch.vm(*id)) {
                mine.add(vm, interval);
            }
        }
        if let Page::Vm(id) = self.page {
            if !self.vms.contains_key(&id) {
                self.page = Page::List;
            }
        }
        self.settle(place);
    }

    /// The VMs of the list, in its order.
    pub fn visible(&self) -> Vec<VmId> {
        let wanted = self.filter.to_lowercase();
        let named = self.vms.iter().filter(|(_, vm)| vm.name.to_lowercase().contains(&wanted));
        let mut all: Vec<_> = named.collect();
        all.sort_by(|(_, a), (_, b)| self.order(a, b));
        all.into_iter().map(|(id, _)| *id).collect()
    }

    /// The most come first, or names in the order of the alphabet. What is unknown is last in either
    /// direction.
    fn order(&self, a: &Vm, b: &Vm) -> Ordering {
        let number = COLUMNS[self.sort].number;
        let turned = |order: Ordering| if self.reversed { order.reverse() } else { order };
        match (number(a), number(b)) {
            (Some(a), Some(b)) => turned(b.total_cmp(&a)),
            (Some(_), None) => Ordering::Less,
            (None, Some(_)) => Ordering::Greater,
            // No name is a number.
            (None, None) if self.sort == 0 => turned(a.name.cmp(&b.name)),
            (None, None) => Ordering::Equal,
        }
        .then_with(|| a.name.cmp(&b.name))
    }

    /// The selected VM's place in the list.
    pub fn place(&self) -> usize {
        self.visible().iter().position(|id| Some(*id) == self.selected).unwrap_or(0)
    }

    /// Selects the VM at a place of the list, or at its end.
    pub fn select(&mut self, place: usize) {
        let all = self.visible();
        self.selected = all.get(place).or(all.last()).copied();
    }

    /// Keeps the selected VM if the list still has it; else takes the one at its former place.
    pub fn settle(&mut self, place: usize) {
        if !self.chosen {
            self.select(0);
        } else if !self.selected.is_some_and(|id| self.visible().contains(&id)) {
            self.select(place);
        }
    }
}
