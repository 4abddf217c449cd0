// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Deterministic rounds: one sequence of steps is played on a VM that stays in nested paging and on one that
//! is switched at random between the steps and within. Both have to behave alike.

use std::collections::VecDeque;
use std::fmt::Write;

use anyhow::Result;
use kvm_bindings::{
    KVM_EXIT_FAIL_ENTRY, KVM_EXIT_INTERNAL_ERROR, KVM_EXIT_MMIO, KVM_EXIT_SHUTDOWN, kvm_sregs,
};
use serde::Serialize;

use super::gen_ops::{Gen, Offered};
use super::kvm::{self, Kvm};
use super::layout::*;
use super::messages::Messages;
use super::ops::GuestOp;
use super::play::{Player, end};
use super::side::{Side, Switcher};
use super::state::{self, NamedNumbers};
use super::steps::{self, Run, Step};
use super::tally::{Tally, count};
use super::watch::Watchdog;
use crate::guests::Rng;
use crate::memory::HostPages;

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

/// An entry for a device says nothing of the guest's rights (`handle_mmio_page_fault` in the kernel's mmu.c),
/// so the emulator takes an instruction that reads and writes the device, reads, and only then finds that the
/// guest may not write.
fn reads_before_fault(a: &NamedNumbers, b: &NamedNumbers) -> bool {
    const WRITE: u64 = 2;
    let Some(at) = a.0.iter().zip(&b.0).position(|(a, b)| a != b) else { return false };
    let read = matches!(b.0[at..], [("exit", exit), ("gpa", _), ("bytes", _), ("write", 0), ..] if exit == u64::from(KVM_EXIT_MMIO));
    let store = a.get("vector") == Some(14) && a.get("error code").is_some_and(|c| c & WRITE != 0);
    read && store && a.0[at..] == b.0[at + 4..]
}

/// A known reason why the two VMs may differ, and end their round.
fn known_reason(
    step: &Step,
    a: &NamedNumbers,
    b: &NamedNumbers,
    shadow: bool,
    amd: bool,
) -> Option<&'static str> {
    let internal = u64::from(KVM_EXIT_INTERNAL_ERROR);
    // Under shadow paging KVM emulates an instruction that writes to a page table or reads through tables
    // that it could not shadow, and its emulator does not know every instruction.
    let emulation = |s: &NamedNumbers| s.get("exit") == Some(internal) && s.get("suberror") == Some(1);
    if matches!(step, Step::Run(_)) && shadow && emulation(b) && !emulation(a) {
        return Some("KVM's emulator does not know an instruction that it met in shadow paging");
    }
    // kvm-amd takes PKE from the processor's CR4 under shadow paging while the guest has no paging, so that
    // the two instructions of protection keys do not exist. The VM may be in nested paging again when the run
    // ends.
    let keys = |run: &Run| run.ops.iter().any(|op| matches!(op, GuestOp::Rdpkru | GuestOp::Wrpkru { .. }));
    let unknown = b.get("vector") == Some(6) && a.get("vector") != Some(6);
    if matches!(step, Step::Run(run) if !run.width.paged() && keys(run)) && unknown {
        return Some("an instruction of protection keys without paging, in shadow paging");
    }
    // Shadow paging has two tables for the pieces of a large page that the kernel reads and, without CR0.WP,
    // writes against the page's rights. An instruction that reads one piece and writes another of the same
    // page never has both (validate_direct_spte in the kernel's mmu.c).
    let copies = |run: &Run| run.ops.iter().any(|op| matches!(op, GuestOp::Movs { .. }));
    let no_wp = b.get("cr0").is_some_and(|c| c & (CR0_WP | CR0_PG) == CR0_PG);
    if matches!(step, Step::Run(run) if copies(run)) && shadow && no_wp && unbounded(b) {
        return Some("a copy within a large page without CR0.WP, in shadow paging");
    }
    // Shadow paging needs NX for itself, so its tables serve guests with and without EFER.NXE
    // (kvm_init_shadow_mmu): an entry made while the guest had NXE is used after the guest took NXE away,
    // when its NX bit is a reserved one.
    const RESERVED: u64 = 8;
    let reserved = a.get("vector") == Some(14) && a.get("error code").is_some_and(|c| c & RESERVED != 0);
    if shadow && reserved && a.get("efer").is_some_and(|e| e & EFER_NXE == 0) {
        return Some("an NX bit that is reserved without EFER.NXE, in shadow paging");
    }
    if shadow && reads_before_fault(a, b) {
        return Some(
            "a read of a device before the fault of a store to it, by the emulator in shadow paging",
        );
    }
    // What follows is Intel's. With AMD real mode runs by itself in either mode.
    if amd {
        return None;
    }
    // An entry fails in nested paging with what user space set: an event that may not come now, or a CR3 that
    // no instruction could load. In shadow paging KVM emulates real mode on Intel, the delivery of events
    // included, and CR3 is KVM's own.
    if a.get("exit") == Some(KVM_EXIT_FAIL_ENTRY.into())
        && shadow
        && b.get("exit").is_some_and(|exit| exit != u64::from(KVM_EXIT_FAIL_ENTRY))
    {
        return Some("an entry that fails with what user space set, in nested paging");
    }
    // kvm-intel gives both errors (EMULATION and DELIVERY_EV against SIMUL_EX) for an exit while an event is
    // delivered that it cannot deliver again. Which one depends on the exit, that is on the mode.
    let delivery =
        |s: &NamedNumbers| s.get("exit") == Some(internal) && matches!(s.get("suberror"), Some(2 | 3));
    if shadow && delivery(a) && delivery(b) {
        return Some("an event that cannot be delivered, with another error in shadow paging");
    }
    // A hypervisor's VMX operation comes after SMM when user space sets both, so that SMM needs nested paging
    // on Intel, to which no vCPU goes that runs without paging.
    let smm = a.get("KVM_SET_VCPU_EVENTS") == Some(0)
        && b.get("KVM_SET_VCPU_EVENTS") == Some(-i64::from(libc::EBUSY) as u64);
    if matches!(step, Step::Smm { on: true, .. }) && shadow && smm {
        return Some("system management mode by user space without paging, in shadow paging");
    }
    // Neither single steps nor rare instructions are as a processor's in the emulator of real mode: DR6 has
    // no BS, and an instruction may be an undefined one.
    const DR6_BS: u64 = 1 << 14;
    let real =
        |single: bool| matches!(step, Step::Run(run) if run.width == Width::Real && run.single >= single);
    let stepped = a.get("dr6").zip(b.get("dr6")).is_some_and(|(a, b)| a == b | DR6_BS && a != b);
    if shadow && real(true) && stepped || shadow && real(false) && unknown {
        return Some(
            "a single step, or an instruction that the emulator does not know, in emulated real mode",
        );
    }
    // The emulator masks no NMIs while the handler of one runs (vmx_inject_nmi in the kernel's vmx.c).
    let masked = |s: &NamedNumbers| s.get("nmi").is_some_and(|n| n & 1 != 0);
    if matches!(step, Step::Run(run) if run.width == Width::Real) && shadow && masked(a) && !masked(b) {
        return Some("an NMI that masks no other, in emulated real mode");
    }
    let first = |s: &NamedNumbers| {
        s.get("vector").filter(|_| matches!(step, Step::Run(run) if run.width == Width::Real))
    };
    if shadow && first(a).is_some_and(|v| v < 32) && first(b).is_some_and(|v| v >= 32) {
        return Some("an interrupt behind an exception, both injected by user space, in emulated real mode");
    }
    None
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

fn unbounded(seen: &NamedNumbers) -> bool {
    seen.get("end") == Some(end::ERROR) && seen.get("KVM_RUN") == Some(-i64::from(libc::EINTR) as u64)
}

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

    #[test]
    fn only_the_emulator_of_a_vm_in_shadow_paging_may_not_know_an_instruction() {
        let run = Step::Run(steps::draw_run(
            &mut Gen::new(1, Offered { amd: true, keys: false }, true),
            0,
            Width::Long,
            0,
            true,
        ));
        let (mut a, mut b) = (NamedNumbers::default(), NamedNumbers::default());
        a.add("exit", 2);
        b.add("exit", KVM_EXIT_INTERNAL_ERROR.into());
        b.add("suberror", 1);
        assert!(known_reason(&run, &a, &b, true, true).is_some());
        assert!(known_reason(&run, &a, &b, false, true).is_none());
        assert!(known_reason(&run, &b, &a, true, true).is_none());
        assert!(known_reason(&Step::AddVcpu, &a, &b, true, true).is_none());
        // An entry that fails in nested paging alone has a reason on Intel alone.
        let mut failed = NamedNumbers::default();
        failed.add("exit", KVM_EXIT_FAIL_ENTRY.into());
        let mut shut = NamedNumbers::default();
        shut.add("exit", KVM_EXIT_SHUTDOWN.into());
        assert!(known_reason(&run, &failed, &shut, true, false).is_some());
        assert!(known_reason(&run, &failed, &shut, true, true).is_none());
    }

    #[test]
    fn the_emulator_may_read_a_device_once_before_the_fault_of_a_store() {
        let seen = |read: bool, error: u64| {
            let mut s = NamedNumbers::default();
            if read {
                s.0.extend([("exit", KVM_EXIT_MMIO.into()), ("gpa", 0x1000), ("bytes", 8), ("write", 0)]);
            }
            s.0.extend([("exit", 2), ("vector", 14), ("error code", error), ("rax", 7)]);
            s
        };
        assert!(reads_before_fault(&seen(false, 3), &seen(true, 3)));
        assert!(!reads_before_fault(&seen(true, 3), &seen(false, 3)));
        assert!(!reads_before_fault(&seen(false, 1), &seen(true, 1)));
        assert!(!reads_before_fault(&seen(false, 3), &seen(true, 7)));
    }
}
