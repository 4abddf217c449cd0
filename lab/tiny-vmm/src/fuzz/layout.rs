// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The fuzzed guest's memory: what lies where, its descriptor tables, its page tables, and the registers with
//! which its code starts in each processor mode.
//!
//! Code, stack, descriptors and page tables lie in the first 2 MB, which is mapped one to one in every mode.
//! Random page tables map the *victims*: addresses behind which pages of data, of a second slot, or no memory
//! lie. Tables of each level have frames of their own, so that A and D bits appear in known frames only.

use anyhow::Result;
use kvm_bindings::{kvm_dtable, kvm_segment, kvm_sregs};

use crate::memory::{HostPages, Memory};

/// Descriptors, the two IDTs, and the handlers: `OUT` [`PORT_FAULT`] for each vector, 4 bytes apart.
const GDT: u64 = 0x1000;
const IDT64: u64 = 0x2000;
const IDT32: u64 = 0x3000;
pub const STUBS: u64 = 0x4000;
const TSS64: u64 = 0x5000;
const TSS32: u64 = 0x5800;
pub const STACK: u64 = 0x7000;
pub const STACK_TOP: u64 = 0x7f00;
/// Memory for code without paging.
pub const SCRATCH: u64 = 0x9000;
/// Slots of code of the kernel and of the user, [`SLOT`] bytes each.
pub const CODE: u64 = 0x1_0000;
pub const USER_CODE: u64 = 0x2_0000;
pub const SLOT: u64 = 512;
pub const SLOTS: u64 = 128;
/// The handler of system management interrupts, above the usual SMBASE.
const SMI: u64 = 0x3_8000;

/// A fault, the end of a slot, a port of the SMI handler. KVM itself has no device there.
pub const PORT_FAULT: u16 = 0xe0;
pub const PORT_END: u16 = 0xe1;
pub const PORT_SMI: u16 = 0xe2;
/// The vector by which user code ends.
pub const END_VECTOR: u8 = 0x80;

/// Frames of tables.
pub const ROOTS: [u64; 2] = [0x10_0000, 0x10_1000];
const FIXED_PDPT: u64 = 0x10_2000;
const FIXED_PD: u64 = 0x10_3000;
const FIXED_PT: u64 = 0x10_4000;
pub const PDPTS: [u64; 2] = [0x10_5000, 0x10_6000];
pub const PDS: [u64; 3] = [0x10_7000, 0x10_8000, 0x10_9000];
pub const PTS: [u64; 6] = [0x10_a000, 0x10_b000, 0x10_c000, 0x10_d000, 0x10_e000, 0x10_f000];
/// Two PDP tables of PAE paging.
pub const PAE_ROOTS: [u64; 2] = [0x11_0000, 0x11_0020];
pub const LEGACY_ROOTS: [u64; 2] = [0x11_1000, 0x11_2000];
const LEGACY_FIXED: u64 = 0x11_3000;
pub const LEGACY_PTS: [u64; 3] = [0x11_4000, 0x11_5000, 0x11_6000];
/// All tables, and those with entries of 4 bytes.
pub const TABLES: std::ops::Range<u64> = 0x10_0000..0x11_7000;
pub const LEGACY_TABLES: std::ops::Range<u64> = 0x11_1000..0x11_7000;

/// Slots by guest-physical address and size; system, data, and a slot that changes.
pub const SYSTEM: u64 = 2 << 20;
pub const DATA: u64 = 4 << 20;
pub const DATA_SIZE: u64 = 2 << 20;
/// Pages of the data that small pages map.
pub const DATA_PAGES: u64 = 64;
pub const EXTRA: u64 = 8 << 20;
pub const EXTRA_PAGES: u64 = 32;
/// An address without a slot.
pub const MMIO: u64 = 0x1000_0000;
const HOST_DATA: u64 = SYSTEM;
pub const HOST_EXTRA: u64 = SYSTEM + DATA_SIZE;
pub const HOST_SIZE: u64 = HOST_EXTRA + (2 << 20);

const P: u64 = 1;
const W: u64 = 2;
const U: u64 = 4;
const AD: u64 = 0x60;

/// CR0 with paging: PG, WP, NE, ET, MP, PE.
pub const CR0: u64 = 0x8001_0033;
/// CR4: OSXMMEXCPT, OSFXSR, PGE, and PAE where the mode has it.
pub const CR4: u64 = 0x680;
pub const CR4_PAE: u64 = 0x20;
pub const CR4_PGE: u64 = 0x80;
pub const CR4_VMXE: u64 = 0x2000;
pub const CR4_PKE: u64 = 1 << 22;
pub const CR0_PG: u64 = 1 << 31;
pub const CR0_WP: u64 = 1 << 16;
/// EFER: NXE, LMA, LME.
pub const EFER: u64 = 0xd00;
pub const EFER_LMA: u64 = 0x400;
pub const EFER_NXE: u64 = 0x800;
pub const EFER_SVME: u64 = 0x1000;

/// A processor mode.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Width {
    /// Real mode.
    Real,
    /// 32 bits without paging.
    Flat,
    /// 32 bits, two levels of tables.
    Legacy,
    /// 32 bits, PAE paging.
    Pae,
    /// 64 bits.
    Long,
}

impl Width {
    /// The mode that the registers have.
    pub fn of(s: &kvm_sregs) -> Width {
        match s.cr0 {
            c if c & 1 == 0 => Width::Real,
            c if c & CR0_PG == 0 => Width::Flat,
            _ if s.efer & EFER_LMA != 0 => Width::Long,
            _ if s.cr4 & CR4_PAE != 0 => Width::Pae,
            _ => Width::Legacy,
        }
    }

    pub fn paged(self) -> bool {
        !matches!(self, Width::Real | Width::Flat)
    }

    /// The two roots.
    pub fn roots(self) -> [u64; 2] {
        match self {
            Width::Long => ROOTS,
            Width::Pae => PAE_ROOTS,
            _ => LEGACY_ROOTS,
        }
    }

    /// Address of a victim page. The indices are those of the PDPT, the PD and the PT.
    pub fn victim(self, i: u64, j: u64, k: u64) -> u64 {
        match self {
            Width::Long => 0x80_0000_0000 | i << 30 | j << 21 | k << 12,
            Width::Pae => (0x4000_0000 + (i << 30)) | (j << 21) | (k << 12),
            Width::Legacy => (4 + j) << 22 | k << 12,
            Width::Flat => DATA + (k << 12),
            Width::Real => SCRATCH,
        }
    }
}

/// Where in the host's memory a guest-physical address lies.
pub fn host(gpa: u64) -> Option<u64> {
    match gpa {
        g if g < SYSTEM => Some(g),
        g if (DATA..DATA + DATA_SIZE).contains(&g) => Some(g - DATA + HOST_DATA),
        g if (EXTRA..EXTRA + (EXTRA_PAGES << 12)).contains(&g) => Some(g - EXTRA + HOST_EXTRA),
        _ => None,
    }
}

/// Memory with everything in it but random tables.
pub fn memory(backing: HostPages) -> Result<Memory> {
    let m = Memory::new(HOST_SIZE, backing)?;
    fill(&m)?;
    Ok(m)
}

/// Writes everything but random tables.
pub fn fill(m: &Memory) -> Result<()> {
    let word = |at: u64, value: u64| m.write(at, &value.to_le_bytes());
    let half = |at: u64, value: u32| m.write(at, &value.to_le_bytes());
    // Code and data of the kernel and of the user: 64 bits, 32 bits; task segments.
    let tss = |at: u64| [0x67 | (at & 0xff_ffff) << 16 | 0x89 << 40, 0];
    for (i, d) in [
        0,
        0x00af_9b00_0000_ffff,
        0x00cf_9300_0000_ffff,
        0x00af_fb00_0000_ffff,
        0x00cf_f300_0000_ffff,
        0x00cf_9b00_0000_ffff,
        0,
        tss(TSS64)[0],
        tss(TSS64)[1],
        tss(TSS32)[0],
        0x00cf_fb00_0000_ffff,
    ]
    .into_iter()
    .enumerate()
    {
        word(GDT + 8 * i as u64, d)?;
    }
    for v in 0..256 {
        let to = STUBS + 4 * v;
        let dpl = if v == u64::from(END_VECTOR) { 0x6000 } else { 0 };
        word(IDT64 + 16 * v, to | 8 << 16 | (0x8e00 | dpl) << 32)?;
        word(IDT32 + 8 * v, to | 0x28 << 16 | (0x8e00 | dpl) << 32)?;
        half(4 * v, to as u32)?;
        m.write(to, &[0xe6, PORT_FAULT as u8, 0xeb, 0xfe])?;
    }
    word(TSS64 + 4, STACK_TOP)?;
    half(TSS32 + 4, STACK_TOP as u32)?;
    half(TSS32 + 8, 0x10)?;
    // OUT, RSM.
    m.write(SMI, &[0xe6, PORT_SMI as u8, 0x0f, 0xaa])?;
    fixed_tables(m)
}

fn fixed_tables(m: &Memory) -> Result<()> {
    let word = |at: u64, value: u64| m.write(at, &value.to_le_bytes());
    let half = |at: u64, value: u32| m.write(at, &value.to_le_bytes());
    let all = P | W | U | AD;
    for page in 0..SYSTEM >> 12 {
        let at = page << 12;
        let user = if (USER_CODE..USER_CODE + SLOT * SLOTS).contains(&at) { U } else { 0 };
        word(FIXED_PT + 8 * page, at | P | W | AD | user)?;
        half(LEGACY_FIXED + 4 * page, (at | P | W | AD | user) as u32)?;
    }
    word(FIXED_PD, FIXED_PT | all)?;
    word(FIXED_PDPT, FIXED_PD | all)?;
    for n in 0..2 {
        word(ROOTS[n], FIXED_PDPT | all)?;
        word(ROOTS[n] + 8, PDPTS[n] | all)?;
        word(PAE_ROOTS[n], FIXED_PD | P)?;
        word(PAE_ROOTS[n] + 8, PDS[n] | P)?;
        word(PAE_ROOTS[n] + 16, PDS[n + 1] | P)?;
        half(LEGACY_ROOTS[n], (LEGACY_FIXED | all) as u32)?;
    }
    Ok(())
}

fn segment(selector: u16, kind: u8, dpl: u8, long: bool) -> kvm_segment {
    kvm_segment {
        base: 0,
        limit: 0xffff_ffff,
        selector,
        type_: kind,
        present: 1,
        dpl,
        db: u8::from(!long),
        s: 1,
        l: u8::from(long),
        g: 1,
        ..Default::default()
    }
}

/// Sets what code of the mode needs: segments, task, descriptor tables. Control registers stay.
pub fn segments(s: &mut kvm_sregs, width: Width, user: bool) {
    let none = kvm_dtable::default();
    s.gdt = kvm_dtable { base: GDT, limit: 0x7f, ..none };
    let dpl = if user { 3 } else { 0 };
    let task = kvm_segment { limit: 0x67, type_: 0xb, present: 1, ..Default::default() };
    if width == Width::Real {
        let data = kvm_segment { limit: 0xffff, type_: 3, present: 1, s: 1, ..Default::default() };
        s.cs = kvm_segment { base: CODE, selector: (CODE >> 4) as u16, type_: 0xb, ..data };
        (s.ds, s.es, s.ss, s.fs, s.gs) = (data, data, data, data, data);
        s.idt = kvm_dtable { base: 0, limit: 0x3ff, ..none };
        s.tr = task;
        return;
    }
    let long = width == Width::Long;
    let code = match (long, user) {
        (true, false) => 0x08,
        (true, true) => 0x1b,
        (false, false) => 0x28,
        (false, true) => 0x53,
    };
    s.cs = segment(code, 0xb, dpl, long);
    let data = segment(if user { 0x23 } else { 0x10 }, 3, dpl, false);
    (s.ds, s.es, s.ss, s.fs, s.gs) = (data, data, data, data, data);
    (s.idt, s.tr) = if long {
        let idt = kvm_dtable { base: IDT64, limit: 0xfff, ..none };
        (idt, kvm_segment { base: TSS64, selector: 0x38, ..task })
    } else {
        let idt = kvm_dtable { base: IDT32, limit: 0x7ff, ..none };
        (idt, kvm_segment { base: TSS32, selector: 0x48, ..task })
    };
}

/// Control registers with which a vCPU begins in a mode.
pub fn control(s: &mut kvm_sregs, width: Width, root: usize) {
    s.cr3 = width.roots()[root];
    (s.cr0, s.cr4, s.efer) = match width {
        Width::Long => (CR0, CR4 | CR4_PAE, EFER),
        // NXE where tables have the bit.
        Width::Pae => (CR0, CR4 | CR4_PAE, 0x800),
        Width::Legacy => (CR0, CR4, 0),
        Width::Flat => (CR0 & !CR0_PG, CR4, 0),
        Width::Real => (0x10, 0, 0),
    };
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_mode_is_known_by_its_registers() {
        for width in [Width::Real, Width::Flat, Width::Legacy, Width::Pae, Width::Long] {
            let mut s = kvm_sregs::default();
            control(&mut s, width, 0);
            segments(&mut s, width, false);
            assert_eq!(Width::of(&s), width);
            assert_eq!(s.cs.l == 1, width == Width::Long);
        }
    }

    #[test]
    fn the_first_megabytes_are_mapped_one_to_one_and_only_victims_are_not() {
        let m = memory(HostPages::Small).unwrap();
        assert_eq!(m.read(FIXED_PT + 8 * 16).unwrap() & !0xfff, 0x1_0000);
        assert_eq!(m.read(FIXED_PT + 8 * 0x20).unwrap() & U, U);
        assert_eq!(m.read(ROOTS[1] + 8).unwrap() & !0xfff, PDPTS[1]);
        assert_eq!((host(0x5000), host(DATA), host(MMIO)), (Some(0x5000), Some(HOST_DATA), None));
        assert!(host(EXTRA).is_some_and(|at| at < m.len()));
    }
}
