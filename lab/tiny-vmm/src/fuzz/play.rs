// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Plays a step on a VM, and tells what the VMM sees.

use anyhow::{Result, anyhow};
use kvm_bindings::*;

use super::gen_ops::{MSR_EFER, MSRS};
use super::kvm::{self, Entries, Kvm, Vcpu, errno_name};
use super::layout::*;
use super::side::Side;
use super::state::{self, NamedNumbers};
use super::steps::{Control, Run, Step};
use super::tally::{Tally, count};
use super::watch::Watchdog;

/// Exits of one run, at most.
const EXITS: usize = 80;
/// KVM's exit reasons.
const IO: u32 = KVM_EXIT_IO;
/// RFLAGS.RF.
const RF: u64 = 1 << 16;
/// Vectors whose frames have an error code.
const WITH_ERROR: u32 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 21;

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

/// What comes after an access or a port's data is complete.
enum After {
    More,
    End,
    Fault,
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

    /// Puts a vCPU's registers to the start of the code.
    fn start(&mut self, run: &Run, s: &mut NamedNumbers) -> Result<()> {
        self.side.poke(run.at(), &run.code())?;
        if run.jumps {
            for page in 0..DATA_PAGES {
                self.side.poke(SYSTEM + (page << 12), &[0xe6, PORT_END as u8])?;
            }
        }
        let mut r: kvm_sregs = self.get(run.vcpu, kvm::GET_SREGS)?;
        let old = r;
        segments(&mut r, run.width, run.user);
        // In real mode the type of CS differs and is not compared (state.rs).
        if r != old || run.width == Width::Real {
            s.result("KVM_SET_SREGS", self.on(run.vcpu, kvm::SET_SREGS, &mut r));
        }
        let g = run.registers;
        let mut regs = kvm_regs {
            rax: g[0],
            rbx: g[1],
            rcx: g[2],
            rdx: g[3],
            rsi: g[4],
            rdi: g[5],
            rbp: g[6],
            r8: g[7],
            r9: g[8],
            r10: g[9],
            r11: g[10],
            r12: g[11],
            r13: g[12],
            r14: g[13],
            r15: g[0],
            rsp: STACK_TOP,
            rip: if run.width == Width::Real { run.at() - CODE } else { run.at() },
            rflags: 2 | if run.single { 0x100 } else { 0 },
        };
        s.result("KVM_SET_REGS", self.on(run.vcpu, kvm::SET_REGS, &mut regs));
        Ok(())
    }

    fn run(&mut self, run: &Run, s: &mut NamedNumbers) -> Result<()> {
        self.start(run, s)?;
        self.watch.vm(&self.side.vm.debugfs);
        self.side.user_pdptrs &= !(1 << run.vcpu);
        let mut completing = None;
        for _ in 0..EXITS {
            // The VM may change its mode with an access or a port's data on its way.
            self.side.maybe_switch(self.tally)?;
            let v = &self.side.vcpus[run.vcpu];
            v.set_immediate_exit(completing.is_some());
            self.watch.watch(true);
            let end = v.number(kvm::RUN, 0);
            self.watch.watch(false);
            v.set_immediate_exit(false);
            match (self.tally.call(kvm::RUN, end), completing.take()) {
                (Err(libc::EINTR), Some(After::End)) => return self.ended(run, false, s),
                (Err(libc::EINTR), Some(After::Fault)) => return self.ended(run, true, s),
                (Err(libc::EINTR), Some(After::More)) => continue,
                (Err(e), _) => {
                    s.add("end", end::ERROR);
                    s.result("KVM_RUN", Err(e));
                    return self.state(run.vcpu, s);
                }
                (Ok(_), _) => {}
            }
            let v = &self.side.vcpus[run.vcpu];
            let reason = v.exit_reason();
            count(&mut self.tally.exits, exit_name(reason));
            s.add("exit", reason.into());
            match reason {
                IO => completing = Some(self.port(run.vcpu, s)),
                KVM_EXIT_MMIO => {
                    s.add("gpa", v.detail(0));
                    s.add("bytes", v.detail::<u32>(16).into());
                    let write = v.detail::<u8>(20);
                    s.add("write", write.into());
                    if write != 0 {
                        s.add("data", v.detail(8));
                    } else {
                        v.put(Vcpu::DETAILS + 8, &(0x1234_5678_9abc_def0 ^ v.detail::<u64>(0)).to_le_bytes());
                    }
                    completing = Some(After::More);
                }
                _ => {
                    if reason == KVM_EXIT_INTERNAL_ERROR {
                        s.add("suberror", v.detail::<u32>(0).into());
                    }
                    s.add("end", end::EXIT);
                    // QEMU's TCG writes the host's RAX and RSP into the VMCB of a guest that it does not
                    // enter, which processors leave alone.
                    if reason == KVM_EXIT_FAIL_ENTRY {
                        count(&mut self.tally.tolerated, "registers after a failed entry");
                        return Ok(());
                    }
                    // KVM resets a vCPU whose triple fault the processor met, and not one whose fault KVM was
                    // about to inject, as it is under shadow paging.
                    if reason == KVM_EXIT_SHUTDOWN {
                        count(&mut self.tally.notes, "registers after a shutdown, not compared");
                        return Ok(());
                    }
                    return self.state(run.vcpu, s);
                }
            }
        }
        s.add("end", end::MANY);
        self.state(run.vcpu, s)
    }

    fn port(&mut self, vcpu: usize, s: &mut NamedNumbers) -> After {
        let v = &self.side.vcpus[vcpu];
        let (out, size, port) = (v.detail::<u8>(0), v.detail::<u8>(1), v.detail::<u16>(2));
        let (n, at) = (v.detail::<u32>(4), v.detail::<u64>(8) as usize);
        let bytes = usize::from(size) * n as usize;
        s.add("io", u64::from(out) | u64::from(size) << 8 | u64::from(n) << 16);
        if out == 0 {
            let data: Vec<u8> = (0..bytes).map(|i| (i as u8).wrapping_mul(37) ^ port as u8).collect();
            v.put(at, &data);
        } else if ![PORT_FAULT, PORT_END].contains(&port) {
            let hash = (0..bytes)
                .fold(0u64, |h, i| h.wrapping_mul(31) ^ u64::from(v.detail::<u8>(at - Vcpu::DETAILS + i)));
            s.add("data", hash);
        }
        // An OUT of one byte to one of the ends is one; everything else goes on.
        s.add("port", port.into());
        match port {
            PORT_END if (out, size, n) == (1, 1, 1) => After::End,
            PORT_FAULT if (out, size, n) == (1, 1, 1) => After::Fault,
            _ => After::More,
        }
    }

    /// The code has come to its end or to a handler.
    fn ended(&mut self, run: &Run, fault: bool, s: &mut NamedNumbers) -> Result<()> {
        s.add("end", if fault { end::FAULT } else { end::SLOT });
        if !fault {
            count(&mut self.tally.guest, "ends");
            return self.state(run.vcpu, s);
        }
        let r: kvm_regs = self.get(run.vcpu, kvm::GET_REGS)?;
        let vector = r.rip.wrapping_sub(STUBS + 2) / 4;
        count(&mut self.tally.guest, format!("vector {vector}"));
        s.add("vector", vector);
        let size = match run.width {
            Width::Long => 8,
            Width::Real => 2,
            _ => 4,
        };
        let error = run.width != Width::Real && vector < 32 && WITH_ERROR >> vector & 1 != 0;
        let names: [&str; 6] = ["error code", "at", "old cs", "old rflags", "old rsp", "old ss"];
        let outer = run.width == Width::Long || run.user;
        let names = &names[usize::from(!error)..if outer { 6 } else { 4 }];
        if r.rsp >= STACK && r.rsp + 48 <= STACK + 0x1000 {
            let bytes = self.side.bytes(r.rsp, 48);
            for (name, word) in names.iter().zip(bytes.chunks_exact(size)) {
                let mut eight = [0; 8];
                eight[..size].copy_from_slice(word);
                s.add(name, self.frame_word(name, vector, run.width, u64::from_le_bytes(eight)));
            }
            // The frame was compared.
            self.side.poke(STACK, &[0; 0x1000])?;
        }
        self.state(run.vcpu, s)
    }

    /// A word of a frame as a processor has it.
    fn frame_word(&mut self, name: &str, vector: u64, width: Width, code: u64) -> u64 {
        // Bochs keeps RF of an entry into the guest beyond the first instruction, so that it depends on the
        // exits. The frame of an INT with the number of an exception that has an error code is a word
        // shorter: its flags are "old cs".
        if matches!(name, "old rflags" | "old cs") && code & RF != 0 && !self.side.amd {
            count(&mut self.tally.tolerated, "the emulator's RF in a frame");
            return code & !RF;
        }
        if name != "error code" || vector != 14 {
            return code;
        }
        // QEMU's TCG raises a fault of a reserved bit without P, processors and KVM with it.
        if code & 9 == 8 {
            count(&mut self.tally.tolerated, "the emulator's error code of a reserved bit lacks P");
            return code | 1;
        }
        // KVM tells of a fetch where EFER.NXE is set, also under two-level tables, where NXE has no effect.
        if code & 0x10 != 0 && width == Width::Legacy {
            count(&mut self.tally.tolerated, "KVM's error code of a fetch under two-level tables");
            return code & !0x10;
        }
        code
    }

    fn state(&mut self, vcpu: usize, s: &mut NamedNumbers) -> Result<()> {
        match state::all(&self.side.vcpus[vcpu], self.tally) {
            Ok(state) => s.0.extend(state.0),
            Err(e) => s.result("reading the state", Err(e)),
        }
        Ok(())
    }
}
