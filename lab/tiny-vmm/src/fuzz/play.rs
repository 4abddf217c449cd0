// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays a step on a VM, and tells what the VMM sees.

mod run;

use anyhow::{Result, anyhow};
use kvm_bindings::*;

use super::kvm::{self, Entries, Kvm, errno_name};
use super::layout::*;
use super::registers::{MSR_EFER, MSRS};
use super::side::Side;
use super::state::{self, NamedNumbers};
use super::steps::{Control, Step};
use super::tally::{Tally, count};
use super::watch::Watchdog;

/// Name of an exit for counts.
pub fn exit_name(reason: u32) -> String {
    match reason {
        KVM_EXIT_IO => "io".into(),
        KVM_EXIT_MMIO => "mmio".into(),
        KVM_EXIT_HLT => "hlt".into(),
        KVM_EXIT_SHUTDOWN => "shutdown".into(),
        KVM_EXIT_FAIL_ENTRY => "fail-entry".into(),
        KVM_EXIT_INTERNAL_ERROR => "internal-error".into(),
        KVM_EXIT_DEBUG => "debug".into(),
        KVM_EXIT_INTR => "intr".into(),
        KVM_EXIT_SET_TPR => "set-tpr".into(),
        KVM_EXIT_IRQ_WINDOW_OPEN => "irq-window".into(),
        other => format!("exit {other}"),
    }
}

/// How code ended.
pub mod end {
    #![allow(missing_docs)]
    pub const SLOT: u64 = 0;
    pub const FAULT: u64 = 1;
    pub const EXIT: u64 = 2;
    pub const ERROR: u64 = 3;
    pub const MANY: u64 = 4;
}

/// Plays steps on one VM.
pub struct Player<'a> {
    pub side: &'a mut Side,
    pub kvm: &'a Kvm,
    pub tally: &'a mut Tally,
    pub watch: &'a Watchdog,
}

impl Player<'_> {
    pub fn play(&mut self, step: &Step) -> Result<NamedNumbers> {
        let mut s = NamedNumbers::default();
        match *step {
            Step::Boot { vcpu, width, root } => self.boot(vcpu, width, root, &mut s)?,
            Step::Run(ref run) => self.run(run, &mut s)?,
            Step::Control { vcpu, which, value, second } => self.control(vcpu, which, value, second, &mut s),
            Step::Msr { vcpu, msr, value } => self.msr(vcpu, msr, value, &mut s)?,
            Step::Exception { vcpu, vector, error, pending } => {
                self.exception(vcpu, vector, error, pending, &mut s)
            }
            Step::Smm { vcpu, on } => {
                let mut e = kvm_vcpu_events { flags: 8, ..Default::default() };
                e.smi.smm = on.into();
                s.result("KVM_SET_VCPU_EVENTS", self.on(vcpu, kvm::SET_VCPU_EVENTS, &mut e));
            }
            Step::Smi { vcpu } => self.request(vcpu, kvm::SMI, &mut s)?,
            Step::Nmi { vcpu } => self.request(vcpu, kvm::NMI, &mut s)?,
            Step::Interrupt { vcpu, vector } => {
                s.result("KVM_INTERRUPT", self.on(vcpu, kvm::INTERRUPT, &mut u32::from(vector)));
            }
            Step::Cpuid { vcpu } => {
                let mut cpuid = self.kvm.cpuid.clone();
                let end = self.side.vcpus[vcpu].entries(kvm::SET_CPUID2, &mut cpuid);
                s.result("KVM_SET_CPUID2", self.tally.call(kvm::SET_CPUID2, end));
            }
            Step::Translate { vcpu, at } => {
                let mut t = kvm_translation { linear_address: at, ..Default::default() };
                s.result("KVM_TRANSLATE", self.on(vcpu, kvm::TRANSLATE, &mut t));
                // AMD's processors read PDPTRs from memory. KVM translates with those of KVM_SET_SREGS2 until
                // the vCPU runs, or its mode changes.
                if self.side.amd && self.side.user_pdptrs >> vcpu & 1 != 0 {
                    count(&mut self.tally.tolerated, "a translation with PDPTRs of user space");
                    return Ok(s);
                }
                s.add("valid", t.valid.into());
                s.add("gpa", t.physical_address);
            }
            Step::Extra { at, flags } => {
                let end = self.side.set_extra(at, flags);
                s.result("the changing slot", self.tally.call(kvm::SET_USER_MEMORY_REGION, end));
            }
            Step::Log { slot, on } => {
                let end = self.side.log(slot as usize, on);
                s.result("a log", self.tally.call(kvm::SET_USER_MEMORY_REGION, end));
            }
            Step::ReadLog { slot } => {
                s.result("KVM_GET_DIRTY_LOG", self.side.read_log(slot as usize, self.tally))
            }
            Step::AddVcpu => self.add_vcpu(&mut s)?,
            Step::HostWrite { page, value } => {
                self.side.poke(SYSTEM + (page << 12) + 0x800, &value.to_le_bytes())?;
            }
            Step::HostDrop { page } => self.side.drop_page(page)?,
            Step::Fpu { vcpu } => {
                s = state::fpu(&self.side.vcpus[vcpu], self.tally)
                    .map_err(|e| anyhow!("FPU: {}", errno_name(e)))?;
            }
            Step::CompareMemory => {}
        }
        Ok(s)
    }

    fn on<T>(&mut self, vcpu: usize, op: kvm::Op, argument: &mut T) -> Result<i32, kvm::Errno> {
        self.watch.watch(true);
        let end = self.side.vcpus[vcpu].call(op, argument);
        self.watch.watch(false);
        self.tally.call(op, end)
    }

    fn plain(&mut self, vcpu: usize, op: kvm::Op) -> Result<i32, kvm::Errno> {
        self.tally.call(op, self.side.vcpus[vcpu].number(op, 0))
    }

    /// A call that requests an event. A look at the vCPU's events makes the request a pending event in KVM,
    /// and only the VM that is switched is looked at in between.
    fn request(&mut self, vcpu: usize, op: kvm::Op, s: &mut NamedNumbers) -> Result<()> {
        s.result(op.name, self.plain(vcpu, op));
        self.get::<kvm_vcpu_events>(vcpu, kvm::GET_VCPU_EVENTS).map(drop)
    }

    fn get<T: Default>(&mut self, vcpu: usize, op: kvm::Op) -> Result<T> {
        let end = self.side.vcpus[vcpu].get(op);
        self.tally.call(op, end).map_err(|e| anyhow!("{}: {}", op.name, errno_name(e)))
    }

    pub fn add_vcpu(&mut self, s: &mut NamedNumbers) -> Result<()> {
        let id = self.side.vcpus.len() as u64;
        if id >= 2 {
            return Ok(());
        }
        match self.side.vm.create_vcpu(id)? {
            Ok(v) => {
                s.result("KVM_CREATE_VCPU", self.tally.call(kvm::CREATE_VCPU, Ok(0)));
                self.side.vcpus.push(v);
            }
            Err(e) => s.result("KVM_CREATE_VCPU", self.tally.call(kvm::CREATE_VCPU, Err(e))),
        }
        let mut cpuid = self.kvm.cpuid.clone();
        let end = self.side.vcpus[id as usize].entries(kvm::SET_CPUID2, &mut cpuid);
        s.result("KVM_SET_CPUID2", self.tally.call(kvm::SET_CPUID2, end));
        self.boot(id as usize, Width::Long, 0, s)
    }

    fn boot(&mut self, vcpu: usize, width: Width, root: usize, s: &mut NamedNumbers) -> Result<()> {
        // SMM, NMIs and the shadow of interrupts end.
        let mut e = kvm_vcpu_events { flags: 1 | 2 | 4 | 8, ..Default::default() };
        s.result("KVM_SET_VCPU_EVENTS", self.on(vcpu, kvm::SET_VCPU_EVENTS, &mut e));
        s.result(
            "KVM_SET_DEBUGREGS",
            self.on(
                vcpu,
                kvm::SET_DEBUGREGS,
                &mut kvm_debugregs { dr6: 0xffff_0ff0, dr7: 0x400, ..Default::default() },
            ),
        );
        // What a reset would change, which only one of the two VMs may have had.
        let mut msrs: Vec<(u32, u64)> = MSRS.iter().filter(|m| **m < 0xd000_0000).map(|m| (*m, 0)).collect();
        msrs.retain(|(m, _)| *m != MSR_EFER);
        msrs[0].1 = 0x0007_0406_0007_0406;
        let end = self.side.vcpus[vcpu].entries(kvm::SET_MSRS, &mut Entries::msrs(&msrs));
        s.result("KVM_SET_MSRS", self.tally.call(kvm::SET_MSRS, end));
        let mut r: kvm_sregs = self.get(vcpu, kvm::GET_SREGS)?;
        control(&mut r, width, root);
        segments(&mut r, width, false);
        (r.cr2, r.cr8, r.interrupt_bitmap) = (0, 0, [0; 4]);
        s.result("KVM_SET_SREGS", self.on(vcpu, kvm::SET_SREGS, &mut r));
        s.result(
            "KVM_SET_REGS",
            self.on(vcpu, kvm::SET_REGS, &mut kvm_regs { rflags: 2, ..Default::default() }),
        );
        Ok(())
    }

    fn control(&mut self, vcpu: usize, which: Control, value: u64, second: bool, s: &mut NamedNumbers) {
        macro_rules! set {
            ($r:ident, $get:expr, $set:expr) => {{
                let end = self.side.vcpus[vcpu].call($get, &mut $r);
                s.result($get.name, self.tally.call($get, end));
                *match which {
                    Control::Cr0 => &mut $r.cr0,
                    Control::Cr2 => &mut $r.cr2,
                    Control::Cr3 => &mut $r.cr3,
                    Control::Cr4 => &mut $r.cr4,
                    Control::Cr8 => &mut $r.cr8,
                    Control::Efer => &mut $r.efer,
                } = value;
                s.result($set.name, self.on(vcpu, $set, &mut $r));
            }};
        }
        if second {
            let mut r = kvm_sregs2::default();
            set!(r, kvm::GET_SREGS2, kvm::SET_SREGS2);
            self.side.user_pdptrs |=
                u8::from(r.flags & u64::from(KVM_SREGS2_FLAGS_PDPTRS_VALID) != 0) << vcpu;
        } else {
            let mut r = kvm_sregs::default();
            set!(r, kvm::GET_SREGS, kvm::SET_SREGS);
        }
    }

    fn msr(&mut self, vcpu: usize, msr: u32, value: u64, s: &mut NamedNumbers) -> Result<()> {
        let set = |p: &mut Self| {
            let end = p.side.vcpus[vcpu].entries(kvm::SET_MSRS, &mut Entries::msrs(&[(msr, value)]));
            p.tally.call(kvm::SET_MSRS, end)
        };
        let mut end = set(self);
        // KVM_SET_MSRS cannot set SVME of a vCPU in shadow paging (docs/reference/kernel-interface.md): its
        // VM has to be switched first.
        let hypervisor = msr == MSR_EFER && value & EFER_SVME != 0;
        if end == Ok(0) && hypervisor && self.side.switcher.is_some() && self.side.in_shadow() {
            count(&mut self.tally.tolerated, "KVM_SET_MSRS of EFER.SVME in shadow paging");
            self.side.switch(true, false, self.tally)?;
            end = set(self);
        }
        s.result("KVM_SET_MSRS", end);
        Ok(())
    }

    fn exception(
        &mut self,
        vcpu: usize,
        vector: u8,
        error: Option<u32>,
        pending: bool,
        s: &mut NamedNumbers,
    ) {
        let mut e = kvm_vcpu_events::default();
        e.exception.nr = vector;
        e.exception.has_error_code = error.is_some().into();
        e.exception.error_code = error.unwrap_or(0);
        // Without the capability for payloads, pending means injected.
        (e.exception.injected, e.exception.pending) = (u8::from(!pending), pending.into());
        s.result("KVM_SET_VCPU_EVENTS", self.on(vcpu, kvm::SET_VCPU_EVENTS, &mut e));
    }

    fn state(&mut self, vcpu: usize, s: &mut NamedNumbers) -> Result<()> {
        match state::all(&self.side.vcpus[vcpu], self.tally) {
            Ok(state) => s.0.extend(state.0),
            Err(e) => s.result("reading the state", Err(e)),
        }
        Ok(())
    }
}
