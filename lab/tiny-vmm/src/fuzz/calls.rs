// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Random calls of a concurrent round.

use kvm_bindings::*;
use rustix::mm::{Advice, madvise};

use super::chaos::Shared;
use super::gen_ops::Gen;
use super::kvm::{self, Entries, Errno, Op, Vcpu};
use super::layout::*;
use super::steps::{LOG, READ_ONLY, draw_width};
use super::tally::{Tally, count};

/// Brings a vCPU to the start of a mode. The first error, if there is one.
pub fn boot(v: &Vcpu, width: Width, root: usize, t: &mut Tally) -> Result<(), Errno> {
    let mut r: kvm_sregs = t.call(kvm::GET_SREGS, v.get(kvm::GET_SREGS))?;
    control(&mut r, width, root);
    segments(&mut r, width, false);
    (r.cr2, r.cr8, r.interrupt_bitmap) = (0, 0, [0; 4]);
    t.call(kvm::SET_SREGS, v.call(kvm::SET_SREGS, &mut r))?;
    let mut regs = kvm_regs { rflags: 2, rsp: STACK_TOP, ..Default::default() };
    t.call(kvm::SET_REGS, v.call(kvm::SET_REGS, &mut regs)).map(drop)
}

/// Ends what only a few vCPUs are in: SMM, events, a nested guest, halts, debugging.
pub fn settle(v: &Vcpu, t: &mut Tally) -> Result<(), Errno> {
    // Requests become pending events, which the next call ends.
    let _: kvm_vcpu_events = t.call(kvm::GET_VCPU_EVENTS, v.get(kvm::GET_VCPU_EVENTS))?;
    let mut e = kvm_vcpu_events { flags: 1 | 2 | 4 | 8, ..Default::default() };
    t.call(kvm::SET_VCPU_EVENTS, v.call(kvm::SET_VCPU_EVENTS, &mut e))?;
    let _ = t.call(kvm::SET_GUEST_DEBUG, v.call(kvm::SET_GUEST_DEBUG, &mut kvm_guest_debug::default()));
    let _ = t.call(kvm::SET_MP_STATE, v.call(kvm::SET_MP_STATE, &mut 0u32));
    let mut d = kvm_debugregs { dr6: 0xffff_0ff0, dr7: 0x400, ..Default::default() };
    t.call(kvm::SET_DEBUGREGS, v.call(kvm::SET_DEBUGREGS, &mut d)).map(drop)
}

/// Leaves VMX operation, which control registers alone do not end.
pub fn leave_vmx(v: &Vcpu, t: &mut Tally) {
    // No flags, VMX's format, its size; no VMXON region and no current VMCS.
    let mut state = [0u64; 16];
    state[0] = 128 << 32;
    (state[1], state[2]) = (u64::MAX, u64::MAX);
    let _ = t.call(kvm::SET_NESTED_STATE, v.call(kvm::SET_NESTED_STATE, &mut state));
}

fn sregs(v: &Vcpu, g: &mut Gen, t: &mut Tally) -> Option<()> {
    let mut r: kvm_sregs = t.call(kvm::GET_SREGS, v.get(kvm::GET_SREGS)).ok()?;
    let width = Width::of(&r);
    match g.below(8) {
        0 | 1 => r.cr0 = g.cr0(width),
        2 => r.cr3 = g.cr3(width),
        3 | 4 => r.cr4 = g.cr4(width),
        5 => r.efer = g.efer(width, 30),
        6 => {
            let width = draw_width(g);
            control(&mut r, width, 1);
            segments(&mut r, width, false);
        }
        _ => r.cs.selector = g.rng.next() as u16,
    }
    t.call(kvm::SET_SREGS, v.call(kvm::SET_SREGS, &mut r)).ok().map(drop)
}

fn sregs2(v: &Vcpu, g: &mut Gen, t: &mut Tally) -> Option<()> {
    let mut r: kvm_sregs2 = t.call(kvm::GET_SREGS2, v.get(kvm::GET_SREGS2)).ok()?;
    match g.below(5) {
        0 => r.cr0 ^= 1 << g.pick(&[1, 2, 3, 5, 16, 16, 18, 29, 30]),
        1 => r.cr3 = g.pick(&PAE_ROOTS),
        2 => r.cr4 ^= 1 << g.below(24),
        3 => r.efer ^= 1 << g.pick(&[0, 8, 11, 12, 13, 10]),
        _ => (r.flags, r.pdptrs) = (g.below(3), [1 | PDS[0], 1 | PDS[1], 0, g.below(1 << 20)]),
    }
    t.call(kvm::SET_SREGS2, v.call(kvm::SET_SREGS2, &mut r)).ok().map(drop)
}

fn events(s: &Shared, v: &Vcpu, g: &mut Gen, t: &mut Tally) {
    // The bit 8 is for SMM.
    let flags = g.below(16) as u32 & if s.smm { 15 } else { 7 };
    let mut e = kvm_vcpu_events { flags, ..Default::default() };
    e.exception.nr = g.below(33) as u8;
    (e.exception.injected, e.exception.has_error_code) = (g.chance(30).into(), g.chance(50).into());
    (e.nmi.pending, e.nmi.masked, e.interrupt.shadow) =
        (g.chance(20).into(), g.chance(20).into(), g.below(4) as u8);
    (e.smi.smm, e.smi.pending) = (g.chance(50).into(), g.chance(30).into());
    let _ = t.call(kvm::SET_VCPU_EVENTS, v.call(kvm::SET_VCPU_EVENTS, &mut e));
}

/// A random call of a vCPU.
pub fn vcpu(s: &Shared, v: &Vcpu, g: &mut Gen, t: &mut Tally) {
    fn read<T: Default>(v: &Vcpu, op: Op, t: &mut Tally) {
        let _ = t.call(op, v.get::<T>(op));
    }
    match g.below(34) {
        0 => read::<kvm_regs>(v, kvm::GET_REGS, t),
        1 => {
            let mut r = kvm_regs {
                rip: CODE + g.below(SLOTS) * SLOT,
                rflags: 2,
                rsp: STACK_TOP,
                ..Default::default()
            };
            (r.rax, r.rdi) = (g.rng.next(), g.victim(Width::Long));
            let _ = t.call(kvm::SET_REGS, v.call(kvm::SET_REGS, &mut r));
        }
        2..8 => drop(sregs(v, g, t)),
        8..10 => drop(sregs2(v, g, t)),
        10..13 => {
            let (msr, value) = g.msr(Width::Long, 30);
            let _ = t.call(kvm::SET_MSRS, v.entries(kvm::SET_MSRS, &mut Entries::msrs(&[(msr, value)])));
        }
        13 => {
            let mut msrs = Entries::msrs(&[(0x277, 0), (0x1b, 0)]);
            let _ = t.call(kvm::GET_MSRS, v.entries(kvm::GET_MSRS, &mut msrs));
        }
        14..17 => events(s, v, g, t),
        17 => read::<kvm_vcpu_events>(v, kvm::GET_VCPU_EVENTS, t),
        18 => {
            let _ = t.call(kvm::SET_CPUID2, v.entries(kvm::SET_CPUID2, &mut s.kvm.cpuid.clone()));
        }
        19 => read::<u32>(v, kvm::GET_MP_STATE, t),
        20 => {
            let state = g.pick(&[0u32, 0, 1, 2, 3, 4, 9]);
            let _ = t.call(kvm::SET_MP_STATE, v.call(kvm::SET_MP_STATE, &mut { state }));
        }
        21..24 if s.smm => drop(t.call(kvm::SMI, v.number(kvm::SMI, 0))),
        24 => drop(t.call(kvm::NMI, v.number(kvm::NMI, 0))),
        25 => drop(t.call(kvm::INTERRUPT, v.call(kvm::INTERRUPT, &mut (0x30 + g.below(8) as u32)))),
        26..28 => {
            let mut a = kvm_translation { linear_address: g.victim(Width::Long), ..Default::default() };
            let _ = t.call(kvm::TRANSLATE, v.call(kvm::TRANSLATE, &mut a));
        }
        28 => {
            let mut d = kvm_guest_debug { control: g.pick(&[0, 1, 3, 0x30001]), ..Default::default() };
            let _ = t.call(kvm::SET_GUEST_DEBUG, v.call(kvm::SET_GUEST_DEBUG, &mut d));
        }
        29 => {
            // Its size is asked for.
            let mut state = [0u64; 16];
            state[0] = 128 << 32;
            let _ = t.call(kvm::GET_NESTED_STATE, v.call(kvm::GET_NESTED_STATE, &mut state));
        }
        30 => {
            let mut state = [0u64; 16];
            state[0] = g.below(8) | g.below(2) << 16 | 128 << 32;
            (state[1], state[2]) = (g.pick(&[u64::MAX, 0x4_0000, 0x1001]), g.pick(&[u64::MAX, 0x4_1000]));
            let _ = t.call(kvm::SET_NESTED_STATE, v.call(kvm::SET_NESTED_STATE, &mut state));
        }
        31 => read::<kvm_fpu>(v, kvm::GET_FPU, t),
        32 => {
            v.set_immediate_exit(true);
            let _ = t.call(kvm::RUN, v.number(kvm::RUN, 0));
            v.set_immediate_exit(false);
        }
        _ => read::<kvm_debugregs>(v, kvm::GET_DEBUGREGS, t),
    }
}

/// A random call of the VM, or the host's of its memory. True to make a vCPU.
pub fn vm(s: &Shared, g: &mut Gen, t: &mut Tally) -> bool {
    let host = s.memory.host_address();
    match g.below(24) {
        0..6 => {
            let at = g.pick(&[Some(EXTRA), Some(EXTRA), Some(EXTRA + 0x4000), Some(MMIO), None]);
            let (gpa, bytes) = at.map_or((EXTRA, 0), |at| (at, EXTRA_PAGES << 12));
            let end = s.vm.slot(2, gpa, bytes, host + HOST_EXTRA, g.pick(&[0, LOG, READ_ONLY]));
            let _ = t.call(kvm::SET_USER_MEMORY_REGION, end);
        }
        6..10 => {
            let flags = if g.chance(60) { LOG } else { 0 };
            let end = match g.below(2) {
                0 => s.vm.slot(0, 0, SYSTEM, host, flags),
                _ => s.vm.slot(1, DATA, DATA_SIZE, host + SYSTEM, flags),
            };
            let _ = t.call(kvm::SET_USER_MEMORY_REGION, end);
        }
        10..14 => {
            let mut bits = [0u64; 8];
            let mut log = kvm_dirty_log { slot: g.below(3) as u32, ..Default::default() };
            log.__bindgen_anon_1.dirty_bitmap = bits.as_mut_ptr().cast();
            let _ = t.call(kvm::GET_DIRTY_LOG, s.vm.call(kvm::GET_DIRTY_LOG, &mut log));
        }
        14 => {
            let mut bits = [u64::MAX; 8];
            let mut log =
                kvm_clear_dirty_log { slot: 1, num_pages: 512, first_page: 0, ..Default::default() };
            log.__bindgen_anon_1.dirty_bitmap = bits.as_mut_ptr().cast();
            let _ = t.call(kvm::CLEAR_DIRTY_LOG, s.vm.call(kvm::CLEAR_DIRTY_LOG, &mut log));
        }
        15..17 => {
            let nested = g.chance(50);
            let end = t.call(kvm::ENABLE_CAP, s.vm.enable_mode(nested)).map(drop);
            t.switch(if nested { "nested" } else { "shadow" }, end);
        }
        17..21 => {
            let (page, n) = (g.below(512), 1 + g.below(64));
            let advice = g.pick(&[Advice::LinuxDontNeed, Advice::LinuxPageOut, Advice::LinuxCold]);
            let at = host + SYSTEM + (page << 12);
            // SAFETY: a part of the guest's memory, to which this program holds no reference.
            let end = unsafe { madvise(at as *mut _, (n.min(512 - page) << 12) as usize, advice) };
            count(&mut t.notes, if end.is_ok() { "madvise" } else { "madvise failed" });
        }
        21 => drop(t.call(kvm::SET_NR_MMU_PAGES, s.vm.number(kvm::SET_NR_MMU_PAGES, 20 + g.below(200)))),
        22 => drop(t.call(kvm::CREATE_IRQCHIP, s.vm.number(kvm::CREATE_IRQCHIP, 0))),
        _ => return true,
    }
    false
}
