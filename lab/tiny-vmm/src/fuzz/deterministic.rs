// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deterministic rounds: one sequence of steps is played on a VM that stays in nested paging and on one that
//! is switched at random between the steps and within. Both have to behave alike.

mod known;

use std::collections::VecDeque;
use std::fmt::Write;

use anyhow::Result;
use kvm_bindings::{KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_SHUTDOWN, kvm_sregs};
use serde::Serialize;

use super::gen_ops::{Gen, Offered};
use super::kvm::{self, Kvm};
use super::layout::*;
use super::messages::Messages;
use super::ops::GuestOp;
use super::play::{Player, end};
use super::side::{Side, Switcher};
use super::state::{self, NamedNumbers};
use super::steps::{self, Step};
use super::tally::{Tally, count};
use super::watch::Watchdog;
use crate::guests::Rng;
use crate::memory::HostPages;
use known::{known_reason, unbounded};

/// The two VMs behaved differently, or one was switched against the rules.
#[derive(Debug, Clone, Serialize)]
pub struct Difference {
    /// Seed of the round.
    pub seed: u64,
    /// The step's number, from 0.
    pub step: usize,
    /// What differs.
    pub what: Vec<String>,
    /// The last steps; the last one differs.
    pub steps: Vec<String>,
    /// Machine code of the last step.
    pub code: String,
    /// The kernel's messages during the round.
    pub log: Vec<String>,
}

const A_AND_D: u8 = 0x60;

/// A and D bits of page tables are masked: the processor's walk and KVM's may set them at other times.
fn masked(at: u64, mut page: Vec<u8>) -> Vec<u8> {
    if TABLES.contains(&at) {
        let size = if LEGACY_TABLES.contains(&at) { 4 } else { 8 };
        page.iter_mut().step_by(size).for_each(|b| *b &= !A_AND_D);
    }
    page
}

/// Pages that differ, with the first byte that does.
fn memory_differences(a: &Side, b: &Side, all: bool) -> Vec<String> {
    let mut out = Vec::new();
    let data = if all { DATA_SIZE } else { DATA_PAGES << 12 };
    for (at, len) in [(0, SYSTEM), (SYSTEM, data), (HOST_EXTRA, EXTRA_PAGES << 12)] {
        let (x, y) = (a.bytes(at, len), b.bytes(at, len));
        for (n, (x, y)) in
            x.chunks_exact(4096).zip(y.chunks_exact(4096)).enumerate().filter(|(_, (x, y))| x != y)
        {
            let at = at + ((n as u64) << 12);
            let (x, y) = (masked(at, x.to_vec()), masked(at, y.to_vec()));
            if let Some(i) = x.iter().zip(&y).position(|(x, y)| x != y) {
                let i = i & !7;
                let word =
                    |p: &[u8]| p[i..i + 8].iter().rev().fold(String::new(), |s, b| s + &format!("{b:02x}"));
                out.push(format!("memory at {:#x}: {}, switched {}", at + i as u64, word(&x), word(&y)));
            }
        }
    }
    out
}

/// Number of steps that a finding shows, unless its round is repeated.
pub const KEPT: usize = 8;

/// What a round needs.
pub struct Bench {
    pub kvm: Kvm,
    pub offered: Offered,
    pub watchdog: Watchdog,
    /// Number of steps that a finding shows.
    pub kept: usize,
    /// The second VM is born in shadow paging and stays there.
    pub still: bool,
}

struct Round<'a> {
    bench: &'a Bench,
    g: Gen,
    a: Side,
    b: Side,
    last: VecDeque<String>,
    number: usize,
}

impl Round<'_> {
    /// Plays a step on both. The first number is how the code ended, if it was a run.
    fn step(&mut self, step: &Step, tally: &mut Tally) -> Result<(NamedNumbers, Vec<String>)> {
        if self.last.len() == self.bench.kept {
            self.last.pop_front();
        }
        let text = format!("{step:x?}");
        if self.bench.kept > KEPT {
            // The last one on the console, if the machine dies.
            Messages::mark(self.number as u64, &text);
        }
        self.last.push_back(text);
        let (kvm, watch) = (&self.bench.kvm, &self.bench.watchdog);
        let seen = Player { side: &mut self.a, kvm, tally, watch }.play(step)?;
        if unbounded(&seen) {
            return Ok((seen, Vec::new()));
        }
        self.b.maybe_switch(tally)?;
        let other = Player { side: &mut self.b, kvm, tally, watch }.play(step)?;
        if self.bench.kept > KEPT {
            let mode = if self.b.in_shadow() { " (shadow)" } else { " (nested)" };
            self.last.back_mut().into_iter().for_each(|text| text.push_str(mode));
        }
        let mut what = state::differences(&seen, &other);
        let compare = *step == Step::CompareMemory || self.bench.kept > KEPT;
        let dead = [&seen, &other].iter().all(|s| s.get("exit") == Some(KVM_EXIT_SHUTDOWN.into()));
        if dead || compare && !self.bench.offered.amd {
            self.settle_frames(tally)?;
        }
        // A round that is repeated tells after which step memory differs.
        if compare {
            what.extend(memory_differences(&self.a, &self.b, self.bench.kept > KEPT));
        }
        if !what.is_empty() {
            if let Some(reason) =
                known_reason(step, &seen, &other, self.b.in_shadow(), self.bench.offered.amd)
            {
                self.bench.watchdog.seen();
                count(&mut tally.tolerated, reason);
                let mut end = NamedNumbers::default();
                end.add("end", OVER);
                return Ok((end, Vec::new()));
            }
        }
        if !what.is_empty() {
            what.push(format!(
                "the switched VM is in {} paging",
                if self.b.in_shadow() { "shadow" } else { "nested" }
            ));
        }
        what.extend(self.a.wrong.drain(..).map(|w| format!("never switched: {w}")));
        what.append(&mut self.b.wrong);
        Ok((seen, what))
    }

    /// KVM sets RF in the registers with a page fault that it injects. If the fault's delivery faults under
    /// shadow paging, the frame of the double fault that follows has RF, which the processor alone leaves
    /// clear. The frame may lie anywhere, so a single difference in a flag of that kind is taken for it, and
    /// taken away. Under Bochs RF depends on the exits (`Player::frame_word`), in either VM.
    fn settle_frames(&mut self, tally: &mut Tally) -> Result<()> {
        const RF: u8 = 1;
        let (a, b) = (self.a.bytes(0, HOST_SIZE), self.b.bytes(0, HOST_SIZE));
        let pages = a.chunks_exact(4096).zip(b.chunks_exact(4096)).enumerate().filter(|(_, (a, b))| a != b);
        let mut differ = pages.flat_map(|(n, (a, b))| {
            let at = (n as u64) << 12;
            let bytes = masked(at, a.to_vec()).into_iter().zip(masked(at, b.to_vec()));
            (at..).zip(bytes).filter(|(_, (a, b))| a != b)
        });
        if let (Some((at, (a, b))), None) = (differ.next(), differ.next()) {
            if b == a | RF || !self.bench.offered.amd && b == a ^ RF {
                self.b.poke(at, &[a])?;
                count(&mut tally.tolerated, "RF in a frame in memory");
            }
        }
        Ok(())
    }

    /// Entries of the page tables that lead to the victims of a run's code, in 64-bit mode.
    fn entries(&self, step: &Step) -> Vec<String> {
        let Step::Run(run) = step else { return Vec::new() };
        let s: Result<kvm_sregs, _> = self.b.vcpus[run.vcpu].get(kvm::GET_SREGS);
        let (Ok(s), Width::Long) = (s, run.width) else { return Vec::new() };
        let addresses = run.ops.iter().flat_map(|op| match *op {
            GuestOp::Load { at, .. }
            | GuestOp::Store { at, .. }
            | GuestOp::Push { at }
            | GuestOp::Sse { at } => vec![at],
            GuestOp::Xadd { at, .. } | GuestOp::CmpXchg { at, .. } | GuestOp::Jump { at } => vec![at],
            GuestOp::Movs { from, to, .. } => vec![from, to],
            GuestOp::Stos { to, .. } | GuestOp::Ins { to, .. } => vec![to],
            _ => Vec::new(),
        });
        let mut out = vec![format!("cr0 {:x} cr3 {:x} cr4 {:x} efer {:x}", s.cr0, s.cr3, s.cr4, s.efer)];
        for va in addresses {
            let (mut text, mut table) = (format!("{va:x}:"), s.cr3 & !0xfff);
            for level in (0..4).rev() {
                let at = table + (va >> (12 + 9 * level) & 0x1ff) * 8;
                let Some(entry) = host(at).and_then(|at| self.b.memory().read(at).ok()) else { break };
                let _ = write!(text, " {at:x}={entry:x}");
                if entry & 1 == 0 || level > 0 && entry & 0x80 != 0 {
                    break;
                }
                table = entry & 0xf_ffff_f000;
            }
            out.push(text);
        }
        out
    }

    fn width(&self, vcpu: usize) -> Width {
        let s: Result<kvm_sregs, _> = self.a.vcpus[vcpu].get(kvm::GET_SREGS);
        s.map_or(Width::Long, |s| Width::of(&s))
    }

    /// Random page tables in both VMs' memories.
    fn tables(&mut self) -> Result<()> {
        for n in 0..500 {
            let width = if n % 4 == 0 { Width::Legacy } else { Width::Long };
            let (at, value, _) = self.g.table_entry(width);
            let bytes = value.to_le_bytes();
            let bytes = if width == Width::Legacy { &bytes[..4] } else { &bytes[..] };
            for side in [&mut self.a, &mut self.b] {
                side.poke(at, bytes)?;
            }
        }
        Ok(())
    }

    fn difference(&self, seed: u64, step: &Step, what: Vec<String>) -> Difference {
        let code = match step {
            Step::Run(run) => run.code().iter().fold(String::new(), |mut s, b| {
                let _ = write!(s, "{b:02x}");
                s
            }),
            _ => String::new(),
        };
        let what =
            what.into_iter().take(40).chain(self.entries(step)).chain(self.bench.watchdog.seen()).collect();
        Difference {
            seed,
            step: self.number,
            what,
            steps: self.last.iter().cloned().collect(),
            code,
            log: Vec::new(),
        }
    }
}

/// The round is over, for a reason that is no difference.
const OVER: u64 = 99;

/// Plays the round of a seed.
pub fn round(bench: &Bench, seed: u64, tally: &mut Tally) -> Result<Option<Difference>> {
    let mut g = Gen::new(seed, bench.offered, true);
    let backing = g.pick(&[HostPages::Small, HostPages::Small, HostPages::SmallShared]);
    let drawn = g.pick(&[5, 15, 40, 80]);
    let percent = if bench.still { 0 } else { drawn };
    let steps = 30 + g.below(90) as usize;
    let rng = Rng(seed ^ 0x5117_c4ed);
    let switcher = Switcher { rng, percent, amd: bench.offered.amd, nested: !bench.still };
    let a = Side::new(&bench.kvm, backing, None, tally)?;
    let b = Side::new(&bench.kvm, backing, Some(switcher), tally)?;
    let mut r = Round { bench, g, a, b, last: VecDeque::new(), number: 0 };
    count(&mut tally.rounds, "deterministic");
    r.tables()?;
    let width = steps::draw_width(&mut r.g);
    let mut queue = VecDeque::from([Step::AddVcpu, Step::Boot { vcpu: 0, width, root: 0 }]);
    // The vCPU that ran last, while its translations are as the tables say.
    let mut current = None;
    let mut slot = 0;
    while r.number < steps {
        let step = match queue.pop_front() {
            Some(step) => step,
            None => {
                let vcpus = r.a.vcpus.len() as u64;
                let vcpu = r.g.below(vcpus) as usize;
                let width = r.width(vcpu);
                if r.g.chance(70) {
                    slot += 1;
                    Step::Run(steps::draw_run(&mut r.g, vcpu, width, slot, current != Some(vcpu)))
                } else {
                    steps::draw_other(&mut r.g, vcpu, width)
                }
            }
        };
        let (seen, what) = r.step(&step, tally)?;
        if !what.is_empty() {
            return Ok(Some(r.difference(seed, &step, what)));
        }
        current = match &step {
            Step::Run(run) if !run.flush || seen.get("end") == Some(end::SLOT) => Some(run.vcpu),
            _ => None,
        };
        match seen.get("end") {
            _ if unbounded(&seen) => {
                bench.watchdog.seen();
                count(&mut tally.notes, "guests that did not end");
                return Ok(None);
            }
            Some(OVER) => return Ok(None),
            Some(end::EXIT | end::ERROR) => {
                let exit = seen.get("exit").unwrap_or_default();
                let broken = seen.get("end") == Some(end::ERROR)
                    || exit == u64::from(KVM_EXIT_SHUTDOWN)
                    || exit == u64::from(KVM_EXIT_INTERNAL_ERROR)
                    || exit == u64::from(kvm_bindings::KVM_EXIT_FAIL_ENTRY);
                if let (true, Step::Run(run)) = (broken, &step) {
                    let width = steps::draw_width(&mut r.g);
                    queue.push_back(Step::Boot { vcpu: run.vcpu, width, root: 1 });
                }
            }
            _ => {}
        }
        r.number += 1;
    }
    count(&mut tally.notes, "deterministic rounds with all their steps");
    if !bench.offered.amd {
        r.settle_frames(tally)?;
    }
    let what = memory_differences(&r.a, &r.b, true);
    Ok((!what.is_empty()).then(|| r.difference(seed, &Step::CompareMemory, what)))
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_and_d_bits_are_masked_in_tables_alone() {
        let page = vec![0xff; 4096];
        assert_eq!(masked(PTS[0], page.clone())[..9], [0x9f, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0xff, 0x9f]);
        assert_eq!(masked(LEGACY_PTS[0], page.clone())[..5], [0x9f, 0xff, 0xff, 0xff, 0x9f]);
        assert_eq!(masked(SYSTEM, page.clone()), page);
    }
}
