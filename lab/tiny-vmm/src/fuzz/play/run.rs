// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs code of the guest on a vCPU, up to its end or to a handler.

use super::{Player, end, exit_name};
use crate::fuzz::kvm::{self, Vcpu};
use crate::fuzz::layout::*;
use crate::fuzz::state::NamedNumbers;
use crate::fuzz::steps::Run;
use crate::fuzz::tally::count;
use anyhow::Result;
use kvm_bindings::*;

/// Exits of one run, at most.
const EXITS: usize = 80;
/// KVM's exit reasons.
const IO: u32 = KVM_EXIT_IO;
/// RFLAGS.RF.
const RF: u64 = 1 << 16;
/// Vectors whose frames have an error code.
const WITH_ERROR: u32 = 1 << 8 | 1 << 10 | 1 << 11 | 1 << 12 | 1 << 13 | 1 << 14 | 1 << 17 | 1 << 21;

/// What comes after an access or a port's data is complete.
enum After {
    More,
    End,
    Fault,
}

impl Player<'_> {
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

    pub(super) fn run(&mut self, run: &Run, s: &mut NamedNumbers) -> Result<()> {
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
}
