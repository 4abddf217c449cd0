// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The steps of a deterministic round, and how they are drawn.

use super::gen_ops::Gen;
use super::layout::*;
use super::ops::{Code, GuestOp};

/// One call, or a few calls that belong together.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Step {
    /// Sets all of a vCPU's state.
    Boot {
        vcpu: usize,
        width: Width,
        root: usize,
    },
    /// Runs a slot of code.
    Run(Run),
    /// KVM_SET_SREGS or KVM_SET_SREGS2 with these control registers.
    Control {
        vcpu: usize,
        which: Control,
        value: u64,
        second: bool,
    },
    Msr {
        vcpu: usize,
        msr: u32,
        value: u64,
    },
    /// KVM_SET_VCPU_EVENTS.
    Exception {
        vcpu: usize,
        vector: u8,
        error: Option<u32>,
        pending: bool,
    },
    Smm {
        vcpu: usize,
        on: bool,
    },
    Smi {
        vcpu: usize,
    },
    Nmi {
        vcpu: usize,
    },
    Interrupt {
        vcpu: usize,
        vector: u8,
    },
    Cpuid {
        vcpu: usize,
    },
    Translate {
        vcpu: usize,
        at: u64,
    },
    /// Sets the changing slot: its place (`None` removes it) and its flags.
    Extra {
        at: Option<u64>,
        flags: u32,
    },
    /// Turns the log of a slot on or off.
    Log {
        slot: u32,
        on: bool,
    },
    ReadLog {
        slot: u32,
    },
    AddVcpu,
    /// The VMM writes a page of data.
    HostWrite {
        page: u64,
        value: u64,
    },
    /// The host drops a page of data, which is 0 then.
    HostDrop {
        page: u64,
    },
    Fpu {
        vcpu: usize,
    },
    CompareMemory,
}

/// A control register.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum Control {
    Cr0,
    Cr2,
    Cr3,
    Cr4,
    Cr8,
    Efer,
}

/// A run of code.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Run {
    pub vcpu: usize,
    /// The slot for the code.
    pub slot: u64,
    pub width: Width,
    pub user: bool,
    /// Whether the trap flag is set: one instruction runs.
    pub single: bool,
    pub registers: [u64; 14],
    pub ops: Vec<GuestOp>,
    /// Whether all data pages begin with an `OUT` to the end's port, for code that jumps there.
    pub jumps: bool,
    /// Whether the code begins with a flush, as the vCPU's translations are old.
    pub flush: bool,
}

impl Run {
    /// The machine code.
    pub fn code(&self) -> Vec<u8> {
        let mut code = Code::new(self.width);
        if self.flush {
            code.flush();
        }
        for op in &self.ops {
            code.push(op);
        }
        if self.user {
            code.int(END_VECTOR)
        } else {
            code.out(PORT_END)
        };
        code.bytes
    }

    /// Where the code lies in guest memory.
    pub fn at(&self) -> u64 {
        (if self.user { USER_CODE } else { CODE }) + self.slot % SLOTS * SLOT
    }
}

/// KVM_MEM_LOG_DIRTY_PAGES and KVM_MEM_READONLY.
pub const LOG: u32 = 1;
pub const READ_ONLY: u32 = 2;

/// Draws the code of a run that fits its slot.
pub fn draw_run(g: &mut Gen, vcpu: usize, width: Width, slot: u64, flush: bool) -> Run {
    // Only code of the kernel that runs to its end flushes for sure.
    let user = !flush && width.paged() && g.chance(25);
    let single = !flush && g.chance(25);
    let mut run = Run {
        vcpu,
        slot,
        width,
        user,
        single,
        registers: g.registers(width),
        ops: Vec::new(),
        jumps: false,
        flush,
    };
    if single {
        run.ops.push(g.random_op());
        return run;
    }
    for _ in 0..1 + g.below(6) {
        let op = if user { g.user_op(width) } else { g.op(width) };
        run.ops.push(op);
        if run.code().len() > SLOT as usize - 8 {
            run.ops.pop();
            break;
        }
    }
    if g.chance(8) && width != Width::Real && run.code().len() < SLOT as usize - 24 {
        run.ops.push(GuestOp::Jump { at: g.victim(width) & !0xfff });
        run.jumps = true;
    }
    run
}

/// Draws a step that is no run.
pub fn draw_other(g: &mut Gen, vcpu: usize, width: Width) -> Step {
    let hypervisor = if g.offered.amd { 10 } else { 0 };
    match g.below(40) {
        0..9 => {
            let (which, value) = match g.below(9) {
                0..2 => (Control::Cr0, g.cr0(width)),
                2..4 => (Control::Cr3, g.cr3(width)),
                4..6 => (Control::Cr4, g.cr4(width)),
                6 => (Control::Cr2, g.victim(width)),
                7 => (Control::Cr8, g.below(18)),
                _ => (Control::Efer, g.efer(width, hypervisor)),
            };
            Step::Control { vcpu, which, value, second: g.chance(30) }
        }
        9..13 => {
            let (msr, value) = g.msr(width, hypervisor);
            Step::Msr { vcpu, msr, value }
        }
        13..16 => {
            // None of INT3 and INTO: kvm-amd injects those with the next RIP of the last exit, whatever that
            // was.
            let (vector, error) =
                g.pick(&[(14, Some(0)), (14, Some(6)), (13, Some(0)), (6, None), (0, None)]);
            Step::Exception { vcpu, vector, error, pending: g.chance(40) }
        }
        16 => Step::Smm { vcpu, on: g.chance(50) },
        17..19 => Step::Smi { vcpu },
        19 => Step::Nmi { vcpu },
        20 => Step::Interrupt { vcpu, vector: 0x30 + g.below(8) as u8 },
        21 => Step::Cpuid { vcpu },
        22..25 => Step::Translate { vcpu, at: g.victim(width) },
        25..29 => {
            let at = g.pick(&[Some(EXTRA), Some(EXTRA), Some(EXTRA), Some(EXTRA + 0x4000), Some(MMIO), None]);
            Step::Extra { at, flags: g.pick(&[0, 0, LOG, READ_ONLY]) }
        }
        29..31 => Step::Log { slot: g.below(2) as u32, on: g.chance(65) },
        31..34 => Step::ReadLog { slot: g.below(3) as u32 },
        34 => Step::AddVcpu,
        35 => Step::HostWrite { page: g.below(DATA_PAGES), value: g.rng.next() },
        36 => Step::HostDrop { page: g.below(DATA_PAGES) },
        37 => Step::Fpu { vcpu },
        38 => Step::Boot { vcpu, width: draw_width(g), root: g.below(2) as usize },
        _ => Step::CompareMemory,
    }
}

/// A mode for a vCPU to begin in.
pub fn draw_width(g: &mut Gen) -> Width {
    match g.below(20) {
        0 => Width::Real,
        1 | 2 => Width::Flat,
        3..6 => Width::Legacy,
        6..9 => Width::Pae,
        _ => Width::Long,
    }
}

#[cfg(test)]
mod tests {
    use super::*;
    use crate::fuzz::gen_ops::Offered;

    #[test]
    fn runs_fit_their_slots_and_repeat() {
        let offered = Offered { amd: false, keys: true };
        let mut seen = Vec::new();
        for _ in 0..2 {
            let mut g = Gen::new(11, offered, true);
            let mut all = Vec::new();
            for slot in 0..400 {
                let width = draw_width(&mut g);
                let run = draw_run(&mut g, 0, width, slot, slot % 2 == 0);
                assert!(run.code().len() <= SLOT as usize, "{run:?}");
                all.push(format!("{run:?} {:?}", draw_other(&mut g, 0, width)));
            }
            seen.push(all);
        }
        assert_eq!(seen[0], seen[1]);
        assert!(seen[0].iter().any(|s| s.contains("Entry") && s.contains("how: ")));
    }
}
