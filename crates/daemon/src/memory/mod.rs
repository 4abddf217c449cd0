// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Divides the memory of a host among guests, by a policy that sees what the host sees of them.
//!
//! What holds at every moment:
//!
//! - a guest that no rule with the table `memory` fits is not looked at, and its monitor is left alone,
//!   except to give back what an order left that was killed ([`left`]);
//! - memory is taken only of guests whose rule says `act`, which no user holds, and as often as the limits
//!   allow; giving back is always allowed;
//! - sizes are ordered by [`bifold_live::order::Order`] alone: with its floor, its reasons to give everything
//!   back, its journal and its guardian, which gives the memory back if the daemon is killed;
//! - what a guest's monitor does holds up the guest's own thread ([`thread`]) and nothing else.

mod divide;
mod left;
#[cfg(test)]
mod tests;
mod thread;

pub use thread::Place;

use crate::config::{Config, VmMemory};
use crate::log::Log;
use crate::record::MemoryLine;
use crate::status::{GuestStatus, MemoryStatus};
use crate::vm::memory::MemoryHalf;
use crate::vm::memory::control::Kind;
use crate::vm::{ProcessId, Vms};
use bifold_host::{Host, LiveGuest, VmId};
use bifold_live::order::places;
use bifold_reclaim::OnLine;
use left::Left;
use std::collections::BTreeMap;
use std::thread::sleep;
use std::time::{Duration, Instant};
use thread::GuestThread;

/// How long the daemon's end waits for the memory of all guests. An order tries a silent monitor for a
/// minute, and its guardian after that.
const END: Duration = Duration::from_secs(90);

/// Divides the memory of a host among the guests that have a half about memory.
#[derive(Default)]
pub struct Memory {
    /// What orders need.
    place: Option<Place>,
    /// Whether there is no such place, so that no guest is looked at.
    refuses: bool,
    /// Gives back what orders left that were killed, from the first tick on.
    left: Option<Left>,
    /// Guests without a rule, whose threads give everything back and end.
    ending: Vec<MemoryHalf>,
    /// The same whose threads have ended. Their holds and limits count again if a rule fits them again.
    past: BTreeMap<ProcessId, MemoryHalf>,
    /// Guests whose memory could not be given back.
    lost: BTreeMap<ProcessId, String>,
    policy: Option<(OnLine, Vec<ProcessId>)>,
    /// The time of the last decision, and of the next.
    last: Option<Duration>,
    next: Duration,
    limit: Option<u64>,
    trouble: Option<String>,
    /// Why a guest has no thread.
    no_thread: Option<String>,
}

impl Memory {
    /// Has orders made at this place. Without one for their journals, no guest is looked at.
    pub fn order_at(&mut self, place: Option<Place>) {
        (self.refuses, self.place) = (place.is_none(), place);
    }

    /// Takes another configuration with the next tick.
    pub fn reload(&mut self, vms: &mut Vms, before: &Config, now: &Config) {
        if before.memory.as_ref().map(|m| m.policy) != now.memory.as_ref().map(|m| m.policy) {
            self.policy = None;
        }
        vms.memories_mut().chain(self.past.values_mut()).for_each(MemoryHalf::forget);
        self.next = Duration::ZERO;
        if now.memory.is_none() {
            (self.trouble, self.no_thread, self.limit) = (None, None, None);
        }
    }

    /// Looks for guests, and lets the policy decide if it is time to. Returns what is to be recorded.
    pub fn tick(&mut self, vms: &mut Vms, host: &Host, config: &Config, log: &mut Log) -> Vec<MemoryLine> {
        self.left.iter_mut().flat_map(Left::news).for_each(|text| log.say(None, text));
        if config.memory.is_none() {
            self.give_back_left(host);
        }
        if config.memory.is_none() && vms.memories().next().is_none() && self.ending.is_empty() {
            return Vec::new();
        }
        // Before their news are heard: a thread that ends meanwhile may have more.
        let mut over = self.ending.iter().map(MemoryHalf::is_over).collect::<Vec<_>>().into_iter();
        for vm in vms.memories_mut().chain(&mut self.ending) {
            for text in vm.news(log.up) {
                vm.tell(log, text);
            }
            if vm.lost {
                self.lost.insert(vm.process(), vm.who());
            }
        }
        let ending = std::mem::take(&mut self.ending).into_iter();
        let (ended, ending): (Vec<_>, _) = ending.partition(|_| over.next().unwrap_or(true));
        self.ending = ending;
        self.past.extend(ended.into_iter().map(|vm| (vm.process(), vm)));
        if log.up < self.next {
            return Vec::new();
        }
        self.next = log.up + every(config);
        self.find(vms, host, config, log);
        // Behind the threads of guests, which look first what is left of theirs.
        self.give_back_left(host);
        self.decide(vms, host, config, log)
    }

    /// Begins to give back what orders left that were killed with their guardians, whatever the rules say
    /// now.
    fn give_back_left(&mut self, host: &Host) {
        if let (None, Some(place)) = (&self.left, &self.place) {
            match Left::begin(place.folder.clone(), host.clone()) {
                Ok(left) => self.left = Some(left),
                Err(e) => {
                    self.no_thread = Some(format!("no thread can be started for what orders have left: {e}"))
                }
            }
        }
    }

    /// Finds guests that have come, have ended, or whose rule is another.
    fn find(&mut self, vms: &mut Vms, host: &Host, config: &Config, log: &mut Log) {
        self.no_thread = None;
        let present: BTreeMap<ProcessId, LiveGuest> =
            host.live_guests().into_iter().map(|g| ((g.pid, g.started), g)).collect();
        let known = vms.memories().map(MemoryHalf::process);
        let gone: Vec<ProcessId> = known.filter(|id| !present.contains_key(id)).collect();
        // A host that cannot be read for a moment tells nothing.
        for id in gone.into_iter().filter(|id| matches!(host.lives(id.0, id.1), Ok(false))) {
            self.drop(vms, id, "has ended", log);
        }
        let lives = |id: &ProcessId| present.contains_key(id) || !matches!(host.lives(id.0, id.1), Ok(false));
        self.past.retain(|id, _| lives(id));
        self.lost.retain(|id, _| lives(id));
        // A thread that has ended before its guest leaves its work to another.
        let ended = vms.memories().filter(|vm| vm.thread.is_some() && vm.is_over());
        let ended: Vec<ProcessId> = ended.map(MemoryHalf::process).collect();
        self.ending.extend(ended.into_iter().filter_map(|id| vms.take_memory(id)));
        for (id, mut live) in present {
            let ids = identify(host, &mut live, vms.memory(id).and_then(|vm| vm.live.vm));
            let rule = config.memory.as_ref().and_then(|_| {
                let rule = config.rule_of(&ids, Some(&live.name))?;
                Some((rule.vms.text().to_owned(), rule.memory.clone()?))
            });
            match (rule, vms.memory(id)) {
                (None, None) => {}
                (None, Some(_)) => self.drop(vms, id, "no rule about its memory fits any more", log),
                (Some((pattern, rule)), Some(vm)) => {
                    vm.live = live;
                    if (&vm.pattern, &vm.rule) != (&pattern, &rule) {
                        vm.take_rule(&pattern, &rule);
                        vm.tell(log, of_rule(&rule));
                    }
                    vm.allow(every(config));
                }
                (Some((pattern, rule)), None) => {
                    let came = self.came(host, MemoryHalf::new(live, pattern, rule), every(config), log);
                    came.into_iter().for_each(|vm| vms.put_memory(vm));
                }
            }
        }
    }

    /// Starts the thread of a guest; `None` if that is not possible now.
    fn came(
        &mut self,
        host: &Host,
        mut vm: MemoryHalf,
        every: Duration,
        log: &mut Log,
    ) -> Option<MemoryHalf> {
        let id = vm.process();
        let ending = self.ending.iter().rev().find(|before| before.process() == id);
        if let Some(before) = ending.or(self.past.get(&id)) {
            vm.inherit(before);
        }
        vm.allow(every);
        if let Some(place) = &self.place {
            let thread = GuestThread::new(vm.control.clone(), place.clone(), host.clone(), vm.live.clone());
            let name = format!("memory-{}", id.0);
            match std::thread::Builder::new().name(name).spawn(move || thread.run()) {
                Ok(thread) => vm.thread = Some(thread),
                // Tried again with the next decision.
                Err(e) => {
                    self.no_thread = Some(format!("no thread can be started for the memory of a VM: {e}"));
                    return None;
                }
            }
        }
        let text = of_rule(&vm.rule);
        vm.tell(log, text);
        self.past.remove(&id);
        Some(vm)
    }

    fn drop(&mut self, vms: &mut Vms, id: ProcessId, why: &str, log: &mut Log) {
        let Some(mut vm) = vms.take_memory(id) else { return };
        vm.control.end();
        vm.tell(log, why.into());
        self.ending.push(vm);
    }

    /// What is known of all guests; `None` without a configuration of memory.
    pub fn status(&self, vms: &Vms, config: &Config, up: Duration) -> Option<MemoryStatus> {
        let share = config.memory.as_ref()?;
        let guests: Vec<GuestStatus> = vms.memories().map(|vm| vm.status(up, every(config))).collect();
        Some(MemoryStatus {
            policy: share.policy.name().into(),
            limit_bytes: self.limit,
            size_bytes: sum(guests.iter().filter_map(|g| g.size_bytes)),
            guests,
        })
    }

    /// What is wrong.
    pub fn trouble(&self) -> Option<String> {
        self.trouble.clone().or_else(|| self.no_thread.clone())
    }

    /// Has the threads of all guests give everything back, without a wait.
    pub fn begin_end(&self, vms: &Vms) {
        vms.memories().chain(&self.ending).for_each(|vm| vm.control.end());
    }

    /// Gives everything back, and waits for that. Returns the guests whose memory is not back: their orders'
    /// guardians go on, and their journals stay until they succeed.
    pub fn end(&mut self, vms: &mut Vms, log: &mut Log) -> Vec<String> {
        self.begin_end(vms);
        self.left.take().into_iter().flat_map(Left::end).for_each(|text| log.say(None, text));
        let begun = Instant::now();
        while !vms.memories().chain(&self.ending).all(MemoryHalf::is_over) && begun.elapsed() < END {
            sleep(Duration::from_millis(20));
        }
        for vm in vms.memories_mut().chain(&mut self.ending) {
            let mut failed = !vm.is_over();
            for news in vm.control.news() {
                failed |= news.kind == Kind::Lost;
                vm.tell(log, news.text);
            }
            if failed {
                self.lost.insert(vm.process(), vm.who());
            }
        }
        // Guardians have given some of it back meanwhile.
        let still =
            |id: &ProcessId| self.place.as_ref().is_none_or(|at| places(&at.folder, *id).journal.exists());
        let lost = self.lost.iter().filter(|(id, _)| still(id));
        lost.map(|(_, who)| format!("{who} has not got its memory back")).collect()
    }
}

/// The VMs of a guest's process. Debugfs may be closed, or not be readable for a moment: its open files tell
/// then, and what was known before.
fn identify(host: &Host, live: &mut LiveGuest, before: Option<VmId>) -> Vec<VmId> {
    let of = |fd| VmId { thread: live.pid, fd };
    let open: Vec<VmId> =
        host.kvm_process(live.pid).into_iter().flat_map(|p| p.vms.into_iter().map(of)).collect();
    live.vm = live.vm.or(before).or(open.first().copied());
    live.vm.into_iter().chain(open).collect()
}

fn sum(sizes: impl Iterator<Item = u64>) -> u64 {
    sizes.fold(0, u64::saturating_add)
}

/// Time between two decisions, and between two looks at a guest.
pub fn every(config: &Config) -> Duration {
    Duration::from_secs_f64(config.memory.as_ref().map_or(10.0, |m| m.interval_s))
}

fn of_rule(rule: &VmMemory) -> String {
    if rule.act { "has a rule that takes its memory" } else { "has a rule that observes its memory" }.into()
}
