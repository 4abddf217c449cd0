// SPDX-License-Identifier: Apache-2.0 OR MIT
//! One of the two VMs of a deterministic round: its memory, slots and dirty logs, and its switches if it has
//! any.

use std::fs;

use anyhow::{Context, Result};
use kvm_bindings::{kvm_dirty_log, kvm_segment, kvm_sregs, kvm_vcpu_events};
use rustix::mm::{Advice, madvise};

use super::kvm::{self, Errno, Kvm, Vcpu, Vm};
use super::layout::*;
use super::steps::{LOG, READ_ONLY};
use super::tally::{Tally, count};
use crate::guests::Rng;
use crate::memory::{HostPages, Memory};
use crate::vm::TSS;

/// Slots of system, data and the changing slot; the first also exists for system management mode.
const SMM_SPACE: u32 = 1 << 16;
const SLOT_PAGES: [u64; 3] = [SYSTEM >> 12, DATA_SIZE >> 12, EXTRA_PAGES];

/// Who switches the VM.
pub struct Switcher {
    pub rng: Rng,
    /// How often it switches where it can, in percent.
    pub percent: u64,
    /// AMD's rules of what can be switched.
    pub amd: bool,
    /// The mode that the last successful switch named.
    pub nested: bool,
}

/// A VM.
pub struct Side {
    // Dropped in this order.
    pub vcpus: Vec<Vcpu>,
    pub vm: Vm,
    memory: Memory,
    /// Contents of the pages of each slot at the last look at its log, while there is one.
    logs: [Option<Vec<u8>>; 3],
    /// Place and flags of the changing slot.
    extra: (Option<u64>, u32),
    pub switcher: Option<Switcher>,
    pub amd: bool,
    /// vCPUs, a bit each, whose PDPTRs are those of user space until they run.
    pub user_pdptrs: u8,
    /// What is wrong beside differences of the two VMs: writes that a log lacks, switches against the rules.
    pub wrong: Vec<String>,
}

/// Pages of a slot whose contents are compared with its log: their number in the slot, and where the host has
/// them.
fn watched(slot: usize) -> Vec<(u64, u64)> {
    let pages = |first: u64, n: u64, at: u64| {
        (first..first + n).map(move |p| (p, at + (p << 12))).collect::<Vec<_>>()
    };
    match slot {
        0 => [pages(7, 8, 0), pages(TABLES.start >> 12, (TABLES.end - TABLES.start) >> 12, 0)].concat(),
        1 => pages(0, DATA_PAGES, SYSTEM),
        _ => pages(0, EXTRA_PAGES, HOST_EXTRA),
    }
}

impl Side {
    /// A VM with its slots and one vCPU.
    pub fn new(kvm: &Kvm, backing: HostPages, switcher: Option<Switcher>, tally: &mut Tally) -> Result<Side> {
        let vm = kvm.create_vm()?;
        let memory = memory(backing)?;
        let mut side = Side {
            vcpus: Vec::new(),
            vm,
            memory,
            logs: [None, None, None],
            extra: (Some(EXTRA), 0),
            switcher,
            amd: crate::vm::vendor()?.option == "amd",
            user_pdptrs: 0,
            wrong: Vec::new(),
        };
        let error = |what: &'static str| move |e| anyhow::anyhow!("{what}: {}", kvm::errno_name(e));
        tally.call(kvm::SET_TSS_ADDR, side.vm.number(kvm::SET_TSS_ADDR, TSS as u64)).map_err(error("TSS"))?;
        // Born in either mode.
        if let Some(s) = &mut side.switcher {
            s.nested &= s.rng.below(2) == 0;
            let nested = s.nested;
            tally.call(kvm::ENABLE_CAP, side.vm.enable_mode(nested)).map_err(error("KVM_ENABLE_CAP"))?;
        }
        for slot in 0..3 {
            tally.call(kvm::SET_USER_MEMORY_REGION, side.set_slot(slot, 0)).map_err(error("a slot"))?;
        }
        tally.call(kvm::SET_USER_MEMORY_REGION, side.set_smm_slot(0)).map_err(error("a slot of SMM"))?;
        Ok(side)
    }

    pub fn memory(&self) -> &Memory {
        &self.memory
    }

    fn set_slot(&self, slot: usize, flags: u32) -> Result<i32, Errno> {
        let (gpa, at) = match slot {
            0 => (0, 0),
            1 => (DATA, SYSTEM),
            _ => (self.extra.0.unwrap_or(EXTRA), HOST_EXTRA),
        };
        let bytes = if slot == 2 && self.extra.0.is_none() { 0 } else { SLOT_PAGES[slot] << 12 };
        self.vm.slot(slot as u32, gpa, bytes, self.memory.host_address() + at, flags)
    }

    /// The first slot as system management mode has it, which is logged with the first slot: what is written
    /// in that mode is in the log of that slot only.
    fn set_smm_slot(&self, flags: u32) -> Result<i32, Errno> {
        self.vm.slot(SMM_SPACE, 0, SYSTEM, self.memory.host_address(), flags)
    }

    /// Turns a log on or off.
    pub fn log(&mut self, slot: usize, on: bool) -> Result<i32, Errno> {
        let flags = if on { LOG } else { 0 };
        if slot == 0 {
            self.set_smm_slot(flags)?;
        }
        let end = self.set_slot(slot, flags);
        if end.is_ok() && on != self.logs[slot].is_some() {
            self.logs[slot] = on.then(|| self.contents(slot));
        }
        end
    }

    /// Sets place and flags of the changing slot.
    pub fn set_extra(&mut self, at: Option<u64>, flags: u32) -> Result<i32, Errno> {
        let old = self.extra;
        self.extra = (at, flags);
        let end = self.set_slot(2, flags);
        if end.is_err() {
            self.extra = old;
            return end;
        }
        let log = flags & LOG != 0 && at.is_some();
        // A slot that moves has a new log.
        if !log || self.logs[2].is_none() || old.0 != at || flags & READ_ONLY != old.1 & READ_ONLY {
            self.logs[2] = log.then(|| self.contents(2));
        }
        end
    }

    /// Bytes of guest memory, by their place in the host's.
    pub fn bytes(&self, at: u64, len: u64) -> Vec<u8> {
        assert!(at + len <= self.memory.len());
        let mut out = vec![0; len as usize];
        let from = (self.memory.host_address() + at) as *const u8;
        // SAFETY: within the mapping; the guest is stopped.
        unsafe { std::ptr::copy_nonoverlapping(from, out.as_mut_ptr(), len as usize) };
        out
    }

    fn contents(&self, slot: usize) -> Vec<u8> {
        watched(slot).into_iter().flat_map(|(_, at)| self.bytes(at, 4096)).collect()
    }

    /// The VMM writes guest memory, which no log tells.
    pub fn poke(&mut self, at: u64, bytes: &[u8]) -> Result<()> {
        self.memory.write(at, bytes)?;
        for (slot, log) in self.logs.iter_mut().enumerate() {
            let Some(log) = log else { continue };
            for (n, (_, page)) in watched(slot).into_iter().enumerate() {
                let (from, to) = (at.max(page), (at + bytes.len() as u64).min(page + 4096));
                if from < to {
                    let new = &bytes[(from - at) as usize..(to - at) as usize];
                    log[n * 4096 + (from - page) as usize..][..new.len()].copy_from_slice(new);
                }
            }
        }
        Ok(())
    }

    /// The host drops a page of data.
    pub fn drop_page(&mut self, page: u64) -> Result<()> {
        let at = SYSTEM + (page << 12);
        // SAFETY: a page of the machine's memory, to which this program holds no reference.
        unsafe { madvise((self.memory.host_address() + at) as *mut _, 4096, Advice::LinuxDontNeed)? };
        let now = self.bytes(at, 4096);
        if let Some(log) = &mut self.logs[1] {
            log[(page << 12) as usize..][..4096].copy_from_slice(&now);
        }
        Ok(())
    }

    fn dirty_log(&self, slot: u32, bits: &mut [u64; 8], tally: &mut Tally) -> Result<i32, Errno> {
        let mut log = kvm_dirty_log { slot, ..Default::default() };
        log.__bindgen_anon_1.dirty_bitmap = bits.as_mut_ptr().cast();
        tally.call(kvm::GET_DIRTY_LOG, self.vm.call(kvm::GET_DIRTY_LOG, &mut log))
    }

    /// Reads a slot's log and checks that every page that changed is in it.
    pub fn read_log(&mut self, slot: usize, tally: &mut Tally) -> Result<i32, Errno> {
        let mut bits = [0u64; 8];
        let end = self.dirty_log(slot as u32, &mut bits, tally);
        if end.is_err() || self.logs[slot].is_none() {
            return end;
        }
        if slot == 0 {
            let mut more = [0u64; 8];
            self.dirty_log(SMM_SPACE, &mut more, tally)?;
            bits.iter_mut().zip(more).for_each(|(bits, more)| *bits |= more);
        }
        let now = self.contents(slot);
        let old = self.logs[slot].replace(now.clone()).unwrap_or_default();
        for (n, (page, at)) in watched(slot).into_iter().enumerate() {
            let (before, after) = (&old[n * 4096..][..4096], &now[n * 4096..][..4096]);
            let changed = before != after;
            let told = bits[page as usize / 64] >> (page % 64) & 1 != 0;
            count(
                &mut tally.notes,
                match (changed, told) {
                    (true, true) => "pages written and logged",
                    (false, true) => "pages logged without a change",
                    (true, false) => "pages missing in a log",
                    (false, false) => "pages unchanged",
                },
            );
            if changed && !told {
                let differs = |i: &usize| before[*i] != after[*i];
                let first = (0..4096).find(differs).unwrap_or(0);
                self.wrong.push(format!(
                    "slot {slot}: page {page} (host offset {at:#x}) changed in {} bytes, the first at {first:#x} from \
                     {:#x} to {:#x}, and is not in the log",
                    (0..4096).filter(differs).count(),
                    before[first],
                    after[first],
                ));
            }
        }
        end
    }

    /// The mode that debugfs names.
    fn mode(&self) -> Result<String> {
        let path = self.vm.debugfs.join("paging_mode");
        let text = fs::read_to_string(&path).with_context(|| path.display().to_string())?;
        Ok(text.trim().to_owned())
    }

    /// Whether the VM is in shadow paging now.
    pub fn in_shadow(&self) -> bool {
        self.mode().is_ok_and(|m| m == "shadow")
    }

    /// Switches at random, if this VM is one that is switched.
    pub fn maybe_switch(&mut self, tally: &mut Tally) -> Result<()> {
        let Some(s) = &mut self.switcher else { return Ok(()) };
        if s.rng.below(100) >= s.percent {
            return Ok(());
        }
        let (nested, by_cap) = (s.rng.below(2) == 0, s.rng.below(3) == 0);
        self.switch(nested, by_cap, tally)
    }

    /// Switches, and checks the answer against the rules.
    pub fn switch(&mut self, nested: bool, by_cap: bool, tally: &mut Tally) -> Result<()> {
        let word = if nested { "nested" } else { "shadow" };
        let before = self.mode()?;
        let end = if by_cap {
            tally.call(kvm::ENABLE_CAP, self.vm.enable_mode(nested)).map(|_| ())
        } else {
            fs::write(self.vm.debugfs.join("paging_mode"), word).map_err(|e| e.raw_os_error().unwrap_or(0))
        };
        tally.switch(word, end);
        let after = self.mode()?;
        let reasons = self.reasons(nested)?;
        let why = format!("{before} to {word}: {end:?}, now {after}; reasons to refuse: {reasons:?}");
        let right = match end {
            Ok(()) => after == word && (before == word || !reasons.iter().any(|r| r.1)),
            Err(libc::EBUSY) => after == before && !reasons.is_empty(),
            Err(_) => false,
        };
        if !right {
            self.wrong.push(format!("a switch against the rules: {why}"));
        }
        if let (Ok(()), Some(s)) = (end, &mut self.switcher) {
            s.nested = nested;
        }
        Ok(())
    }

    /// Why a switch may be refused, and whether it has to be (docs/reference/kernel-interface.md).
    fn reasons(&self, nested: bool) -> Result<Vec<(&'static str, bool)>> {
        let amd = self.switcher.as_ref().is_some_and(|s| s.amd);
        let mut out = Vec::new();
        for v in &self.vcpus {
            let error = |e| anyhow::anyhow!("reading a vCPU: {}", kvm::errno_name(e));
            let s: kvm_sregs = v.get(kvm::GET_SREGS).map_err(error)?;
            let e: kvm_vcpu_events = v.get(kvm::GET_VCPU_EVENTS).map_err(error)?;
            let paging = s.cr0 & CR0_PG != 0;
            for (is, what, must) in [
                (amd && s.efer & EFER_SVME != 0, "EFER.SVME", true),
                (!amd && !nested && s.cr4 & CR4_VMXE != 0, "CR4.VMXE", true),
                (
                    !nested
                        && s.cr4 & CR4_PKE != 0
                        && s.efer & EFER_LMA != 0
                        && paging
                        && s.cr0 & CR0_WP == 0,
                    "CR4.PKE without CR0.WP",
                    true,
                ),
                // On AMD only if user space has put it there.
                (e.smi.smm != 0, "SMM", !amd),
                // From reset on it may.
                (!amd && !paging, "no paging", false),
                (!amd && !nested && odd_segments(&s), "segments that only EPT takes", false),
            ] {
                if is {
                    out.push((what, must));
                }
            }
        }
        Ok(out)
    }
}

/// Whether shadow paging would emulate a vCPU with these segments (__vmx_guest_state_valid() in the kernel's
/// vmx.c).
fn odd_segments(s: &kvm_sregs) -> bool {
    const CONFORMING: u8 = 8 | 4;
    let rpl = |g: &kvm_segment| g.selector as u8 & 3;
    let of_table = |g: &kvm_segment| g.selector & 4 == 0 && g.present != 0;
    let data = |g: &kvm_segment| {
        g.unusable != 0
            || g.s != 0 && g.present != 0 && (g.type_ & CONFORMING == CONFORMING || g.dpl >= rpl(g))
    };
    let code = s.cs.unusable == 0 && s.cs.type_ & 9 == 9 && s.cs.s != 0 && s.cs.present != 0;
    let stack = s.ss.unusable != 0
        || matches!(s.ss.type_, 3 | 7) && s.ss.s != 0 && s.ss.dpl == rpl(&s.ss) && s.ss.present != 0;
    let task = s.tr.unusable == 0 && matches!(s.tr.type_, 3 | 11) && of_table(&s.tr);
    let local = s.ldt.unusable != 0 || s.ldt.type_ == 2 && of_table(&s.ldt);
    let levels = rpl(&s.cs) == rpl(&s.ss)
        && if s.cs.type_ & 4 != 0 { s.cs.dpl <= rpl(&s.cs) } else { s.cs.dpl == rpl(&s.cs) };
    !(levels && code && stack && task && local && [&s.ds, &s.es, &s.fs, &s.gs].into_iter().all(data))
}
