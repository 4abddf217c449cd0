// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws values of the fuzzed guest's registers.

use super::gen_ops::Gen;
use super::layout::*;

/// The MSRs that guests and VMMs write: PAT, EFER, STAR, LSTAR, SFMASK, FS and GS base, KERNEL_GS_BASE,
/// SYSENTER_CS, an MSR that does not exist.
pub const MSRS: [u32; 10] = [
    0x277,
    0xc000_0080,
    0xc000_0081,
    0xc000_0082,
    0xc000_0084,
    0xc000_0100,
    0xc000_0101,
    0xc000_0102,
    0x174,
    0xdead_0000,
];
pub const MSR_EFER: u32 = 0xc000_0080;

impl Gen {
    /// A value of CR0 with some bits changed.
    pub fn cr0(&mut self, width: Width) -> u64 {
        let mut v = if width.paged() { CR0 } else { CR0 & !CR0_PG };
        for _ in 0..self.below(3) {
            v ^= 1 << self.pick(&[16, 16, 16, 1, 3, 5, 18]);
        }
        match self.below(40) {
            0 => v ^ 1 << 29,
            1 => v ^ 1 << 30,
            2 => v ^ CR0_PG,
            3 => v ^ 1 << 40,
            _ => v,
        }
    }

    /// A value of CR4 with some bits changed.
    pub fn cr4(&mut self, width: Width) -> u64 {
        let mut v = CR4 | if matches!(width, Width::Long | Width::Pae) { CR4_PAE } else { 0 };
        if self.offered.keys && width == Width::Long && self.chance(30) {
            v |= CR4_PKE;
        }
        for _ in 0..self.below(4) {
            v ^= 1 << self.pick(&[20, 20, 21, 21, 22, 7, 4, 11, 16, 18, 2, 3, 8]);
        }
        match self.below(60) {
            0 => v ^ CR4_PAE,
            1 => v ^ 1 << 12,
            2 => v ^ 1 << 28,
            3 => v ^ 1 << 17,
            4 if !self.offered.amd || !self.careful => v ^ CR4_VMXE,
            _ => v,
        }
    }

    /// A value for CR3: mostly one of the roots.
    pub fn cr3(&mut self, width: Width) -> u64 {
        let root = self.pick(&width.roots());
        match self.below(30) {
            0 => root | 0x18,
            // QEMU's TCG takes reserved bits from MOV to CR3, and refuses the next entry with them.
            1 if !self.offered.amd => root | 1 << 51,
            2 if width == Width::Long && !self.offered.amd => root | 1 << 63,
            _ => root,
        }
    }

    /// A value of EFER. SVME changes with `hypervisor` percent.
    pub fn efer(&mut self, width: Width, hypervisor: u64) -> u64 {
        let mut v = if width == Width::Long { EFER } else { 0x800 };
        if self.chance(25) {
            v ^= 0x800;
        }
        if self.chance(hypervisor) {
            v |= EFER_SVME;
        }
        match self.below(30) {
            0 => v ^ 0x100,
            1 => v ^ 1 << 13,
            2 => v ^ 1 << 14,
            3 => v ^ 1 << 20,
            4 => v ^ 1,
            _ => v,
        }
    }

    /// An MSR and a value for it.
    pub fn msr(&mut self, width: Width, hypervisor: u64) -> (u32, u64) {
        let msr = self.pick(&MSRS);
        let value = match msr {
            MSR_EFER => self.efer(width, hypervisor),
            0x277 => {
                self.pick(&[0x0007_0406_0007_0406, 0x0606_0606_0606_0606, 0x0007_0405_0007_0401, 0x0202_0000])
            }
            // QEMU's TCG takes bases that are not canonical from WRMSR, and makes them canonical at a later
            // entry.
            0xc000_0100..=0xc000_0102 if self.offered.amd => self.below(1 << 47),
            _ if self.chance(10) => self.rng.next(),
            _ => self.below(1 << 40),
        };
        (msr, value)
    }

    /// Registers at the start of code.
    pub fn registers(&mut self, width: Width) -> [u64; 14] {
        let mut out = [0; 14];
        for r in &mut out {
            *r = match self.below(4) {
                0..2 => self.victim(width),
                2 => self.below(64),
                _ => self.rng.next(),
            };
        }
        out
    }
}
