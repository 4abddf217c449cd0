// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Draws the operations of the fuzzed guest: random addresses, entries of page tables, instructions.
//!
//! In a *careful* guest the outcome does not depend on when the processor forgets a translation or sets an A
//! or D bit: a change that takes rights away is followed by a flush, entries are read without A and D, and
//! instructions that read clocks are left out.

use super::layout::*;
use super::ops::{Flush, GuestOp, How};
use super::registers::{MSR_EFER, MSRS};
use crate::guests::Rng;

/// What the vCPUs are offered.
#[derive(Debug, Clone, Copy)]
pub struct Offered {
    /// VMs run on AMD, whose hypervisor bit is EFER.SVME.
    pub amd: bool,
    pub keys: bool,
}

/// The generator.
pub struct Gen {
    pub rng: Rng,
    pub offered: Offered,
    /// See the module's text. The guests of concurrent rounds are careless.
    pub careful: bool,
}

const NX: u64 = 1 << 63;
const PS: u64 = 0x80;
const G: u64 = 0x100;
impl Gen {
    pub fn new(seed: u64, offered: Offered, careful: bool) -> Gen {
        Gen { rng: Rng(seed), offered, careful }
    }

    pub fn below(&mut self, n: u64) -> u64 {
        self.rng.below(n)
    }

    /// True in `percent` of cases.
    pub fn chance(&mut self, percent: u64) -> bool {
        self.below(100) < percent
    }

    pub fn pick<T: Copy>(&mut self, from: &[T]) -> T {
        from[self.below(from.len() as u64) as usize]
    }

    /// A victim's address, mostly one that some tables may map.
    pub fn victim(&mut self, width: Width) -> u64 {
        let (i, j, k) = (self.below(2), self.below(4), self.below(8));
        let offset = match self.below(8) {
            0 => 0xff8 + self.below(8),
            1 => 0xff9,
            _ => 0x40 + 8 * self.below(0x1e0),
        };
        match (width, self.below(40)) {
            // Not canonical, or without tables.
            (Width::Long, 0) => 0x8000_0000_0000_0000 | self.rng.next(),
            (Width::Long, 1) => 0x90_0000_0000 + offset,
            (Width::Flat, 0..4) => MMIO + offset,
            (Width::Flat, 4..8) => EXTRA + (self.below(EXTRA_PAGES) << 12) + offset,
            (Width::Flat, _) => DATA + (self.below(DATA_PAGES) << 12) + offset,
            (Width::Real, 0) => 0x1_0000 + offset,
            (Width::Real, _) => SCRATCH + (self.below(6) << 12) + offset,
            // Above the small pages, within a large one.
            (_, 2..4) => width.victim(i, j, 8 + self.below(DATA_PAGES - 8)) + offset,
            _ => width.victim(i, j, k) + offset,
        }
    }

    fn rights(&mut self, present: u64, write: u64, user: u64) -> u64 {
        u64::from(self.chance(present))
            | u64::from(self.chance(write)) << 1
            | u64::from(self.chance(user)) << 2
    }

    /// Bits that only entries of 8 bytes have.
    fn upper_bits(&mut self, leaf: bool) -> u64 {
        let mut bits = 0;
        if self.chance(if leaf { 15 } else { 4 }) {
            bits |= NX;
        }
        if leaf && self.chance(30) {
            bits |= self.below(16) << 59;
        }
        if self.chance(2) {
            bits |= 1 << (45 + self.below(7));
        }
        if self.chance(5) {
            bits |= self.below(8) << 52;
        }
        bits
    }

    /// An entry of a leaf table.
    pub fn leaf(&mut self, width: Width) -> u64 {
        let frame = match self.below(20) {
            0..2 => EXTRA + (self.below(EXTRA_PAGES) << 12),
            2 => MMIO + (self.below(4) << 12),
            _ => DATA + (self.below(DATA_PAGES) << 12),
        };
        let mut e = frame | self.rights(92, 75, 50) | self.below(8) << 9;
        e |= self.pick(&[0, 0x20, 0x60, 0x60]);
        e |= if self.chance(20) { G } else { 0 } | if self.chance(5) { 0x18 } else { 0 };
        e |= if self.chance(3) { PS } else { 0 };
        if width == Width::Legacy { e } else { e | self.upper_bits(true) }
    }

    fn directory_entry(&mut self, width: Width) -> u64 {
        let rights = self.rights(95, 90, 75) | self.pick(&[0, 0x20]);
        if width == Width::Legacy {
            // A large page has 4 MB there, of which 2 MB have memory.
            let large = DATA | PS | rights | if self.chance(3) { 1 << 21 } else { 0 };
            return if self.chance(15) { large } else { self.pick(&LEGACY_PTS) | rights };
        }
        let upper = self.upper_bits(false);
        if self.chance(20) {
            let odd = if self.chance(4) { 1 << (13 + self.below(8)) } else { 0 };
            let dirty = self.pick(&[0, 0x40]);
            return DATA
                | PS
                | rights
                | dirty
                | odd
                | self.upper_bits(true)
                | if self.chance(20) { G } else { 0 };
        }
        self.pick(&PTS) | rights | upper
    }

    fn pdpt_entry(&mut self) -> u64 {
        let e = self.pick(&PDS) | self.rights(96, 94, 85) | 0x20;
        e | self.upper_bits(false)
    }

    /// A place in a random table, an entry for it, and the page index if it is a leaf's.
    pub fn table_entry(&mut self, width: Width) -> (u64, u64, Option<u64>) {
        let size = if width == Width::Legacy { 4 } else { 8 };
        match (width, self.below(20)) {
            (Width::Legacy, 0..4) => {
                let at = self.pick(&LEGACY_ROOTS) + 4 * (4 + self.below(4));
                (at, self.directory_entry(width), None)
            }
            (Width::Long, 0) => {
                let e = self.pick(&PDPTS) | self.rights(97, 95, 95) | 0x20;
                (self.pick(&ROOTS) + 8, e | if self.chance(1) { PS } else { 0 }, None)
            }
            (Width::Long, 1..3) => (self.pick(&PDPTS) + 8 * self.below(2), self.pdpt_entry(), None),
            (Width::Long | Width::Pae, 0..6) => {
                (self.pick(&PDS) + 8 * self.below(4), self.directory_entry(width), None)
            }
            _ => {
                let table = if width == Width::Legacy { self.pick(&LEGACY_PTS) } else { self.pick(&PTS) };
                let k = if self.chance(80) { self.below(8) } else { self.below(DATA_PAGES) };
                (table + size * k, self.leaf(width), Some(k))
            }
        }
    }

    fn change_entry(&mut self, width: Width) -> GuestOp {
        let (at, value, leaf) = self.table_entry(width);
        // Adding P or W, or taking NX, needs no flush: the processor walks again before it faults.
        if self.chance(15) {
            let value = self.pick(&[1, 2, 3]);
            return GuestOp::Entry { at, value, how: How::Or, flush: Flush::None };
        }
        let how = match self.below(10) {
            0 => How::Xchg,
            1 => How::Stos,
            2 => How::And,
            3 => How::Or,
            _ => How::Mov,
        };
        let (value, how) = match how {
            // Halves of an entry under PAE would be in the wrong places.
            How::Stos if width == Width::Pae => (value, How::Mov),
            How::And => (!(self.pick(&[1, 2, 4, 0x20, 0x40, 0x60])), how),
            How::Or => (self.pick(&[4, 0x20, 0x40, 0x100]), how),
            _ => (value, how),
        };
        // Or must not make a page a global or a large one where the entry is a table's.
        let value = if how == How::Or && leaf.is_none() { value & !0x180 } else { value };
        let flush = match leaf {
            _ if !self.careful && self.chance(50) => Flush::None,
            Some(k) if self.chance(50) => Flush::Page(k),
            _ => Flush::All,
        };
        GuestOp::Entry { at, value, how, flush }
    }

    /// Random bytes that are an instruction or none.
    fn bytes(&mut self) -> Vec<u8> {
        loop {
            let n = 1 + self.below(12) as usize;
            let mut bytes: Vec<u8> = (0..n).map(|_| self.rng.next() as u8).collect();
            match self.below(4) {
                // Two-byte opcodes, locked ones, with prefixes.
                0 => bytes.insert(0, 0x0f),
                1 => {
                    let prefix = self.pick(&[0x66, 0x67, 0xf0, 0xf2, 0xf3, 0x2e, 0x64]);
                    bytes.insert(0, prefix);
                }
                2 => {
                    let rex = 0x40 | self.below(16) as u8;
                    bytes.insert(0, rex);
                }
                _ => {}
            }
            if !self.careful || steady(&bytes) {
                return bytes;
            }
        }
    }

    fn privileged(&mut self, width: Width) -> GuestOp {
        let hypervisor = if self.offered.amd { 15 } else { 0 };
        match self.below(28) {
            0..4 => GuestOp::Cr3 { value: self.cr3(width), flush: self.careful || self.chance(50) },
            4..7 => GuestOp::Cr0 { value: self.cr0(width) },
            7..11 => GuestOp::Cr4 { value: self.cr4(width) },
            11..13 => GuestOp::ReadCr { n: self.pick(&[0, 2, 3, 4]) },
            13 => GuestOp::Dr { n: self.pick(&[0, 1, 2, 3]), value: self.below(1 << 40) },
            14..16 => GuestOp::Rdmsr { msr: self.pick(&MSRS) },
            16..19 => {
                let (msr, value) = self.msr(width, hypervisor);
                GuestOp::Wrmsr { msr, value, flush: msr == MSR_EFER }
            }
            19 => GuestOp::Xsetbv { value: self.pick(&[1, 3, 7, 0x207, 2]) },
            20 => GuestOp::Invlpg { at: self.victim(width) },
            21 if width == Width::Long => GuestOp::Cr8 { value: self.below(20) },
            21 | 22 => GuestOp::Raw { bytes: self.pick(&[[0x0f, 0x01, 0xcb], [0x0f, 0x01, 0xca]]).to_vec() },
            23 => GuestOp::Raw {
                bytes: self.pick(&[[0x0f, 0x06], [0x0f, 0x09], [0x0f, 0x0b], [0xf3, 0x90]]).to_vec(),
            },
            24 => GuestOp::Raw { bytes: self.pick(&[[0xfa, 0x90], [0xfb, 0x90], [0xf8, 0x99]]).to_vec() },
            25 => GuestOp::Raw { bytes: vec![0xf4] },
            26 => GuestOp::Raw {
                bytes: self.pick(&[[0x0f, 0x01, 0xf8], [0x0f, 0x01, 0xd0], [0x0f, 0x01, 0xd9]]).to_vec(),
            },
            _ => GuestOp::Int { vector: self.pick(&[3, 4, 0x30, 0x80, 0xff]) },
        }
    }

    fn access(&mut self, width: Width) -> GuestOp {
        let at = self.victim(width);
        let value = self.rng.next();
        match self.below(16) {
            0..5 => GuestOp::Load { at, bytes: self.pick(&[1, 8]) },
            5..10 => GuestOp::Store { at, value },
            // QEMU's TCG reads with a locked instruction across pages before it sees whether it may write.
            10 => GuestOp::Xadd { at: if self.offered.amd { at & !7 } else { at }, value },
            11 => GuestOp::CmpXchg { at: if self.offered.amd { at & !7 } else { at }, value },
            12 => GuestOp::Movs { from: at, to: self.victim(width), count: 1 + self.below(24) },
            13 => GuestOp::Stos { to: at, count: 1 + self.below(24) },
            14 => GuestOp::Push { at },
            _ if self.chance(70) => GuestOp::Sse { at },
            _ => GuestOp::Fxsave { at },
        }
    }

    /// An operation of the kernel.
    pub fn op(&mut self, width: Width) -> GuestOp {
        match self.below(24) {
            0..9 => self.access(width),
            9..15 if width.paged() => self.change_entry(width),
            15 if width.paged() => GuestOp::ReadEntry { at: self.table_entry(width).0 },
            16..20 => self.privileged(width),
            20 if self.offered.keys => match self.below(3) {
                0 => GuestOp::Rdpkru,
                _ => GuestOp::Wrpkru { value: self.rng.next() as u32 & self.rng.next() as u32 },
            },
            21 => GuestOp::Cpuid { leaf: self.pick(&[0, 1, 7, 0xd, 0x8000_0001, 0x8000_0008]), index: 0 },
            22 => match self.below(4) {
                0 => GuestOp::In { port: 0x80 },
                1 => GuestOp::Out { port: 0x80, value: self.rng.next() as u32 },
                2 => GuestOp::Outs { from: self.victim(width), count: 1 + self.below(12) },
                _ => GuestOp::Ins { to: self.victim(width), count: 1 + self.below(12) },
            },
            _ => self.access(width),
        }
    }

    /// An operation of the user.
    pub fn user_op(&mut self, width: Width) -> GuestOp {
        match self.below(20) {
            0 => GuestOp::Rdpkru,
            1 | 2 if self.offered.keys => GuestOp::Wrpkru { value: self.rng.next() as u32 },
            3 => GuestOp::Int { vector: self.user_vector() },
            4 => match self.privileged(width) {
                GuestOp::Int { .. } => GuestOp::Int { vector: self.user_vector() },
                op => op,
            },
            _ => self.access(width),
        }
    }

    /// A vector for INT by the user. QEMU's TCG names the next instruction as the one that faults at times,
    /// if the gate is not for the user.
    fn user_vector(&mut self) -> u8 {
        if self.offered.amd { END_VECTOR } else { self.pick(&[3, 0x30, END_VECTOR]) }
    }

    /// A random instruction.
    pub fn random_op(&mut self) -> GuestOp {
        GuestOp::Raw { bytes: self.bytes() }
    }
}

/// Whether bytes are without what reads clocks or random numbers, changes control registers, or lets TF go.
fn steady(bytes: &[u8]) -> bool {
    let two = |second: &[u8]| bytes.windows(2).any(|w| w[0] == 0x0f && second.contains(&w[1]));
    // FNSTENV and FNSAVE store x87 pointers, which differ from run to run in a VM that is never switched as
    // well.
    let pointers = |w: &[u8]| [0xd9, 0xdd].contains(&w[0]) && w[1] < 0xc0 && w[1] >> 3 & 7 == 6;
    // POPF, IRET; RDTSC, RDPMC, SYSCALL and relatives, MOV to control and debug registers; group 7, RDRAND's
    // group, FXSAVE's group; SYSENTER, RSM.
    !bytes.iter().any(|b| [0x9d, 0xcf].contains(b))
        && !bytes.windows(2).any(pointers)
        && !two(&[
            0x31, 0x33, 0x05, 0x07, 0x34, 0x35, 0x20, 0x21, 0x22, 0x23, 0x01, 0xc7, 0xae, 0xaa, 0x30, 0x32,
        ])
}

#[cfg(test)]
mod tests {
    use super::*;

    const OFFERED: Offered = Offered { amd: true, keys: true };

    #[test]
    fn a_seed_is_a_guest() {
        let draw = |seed| {
            let mut g = Gen::new(seed, OFFERED, true);
            (0..500).map(|_| g.op(Width::Long)).collect::<Vec<_>>()
        };
        assert_eq!(draw(7), draw(7));
        assert_ne!(draw(7), draw(8));
    }

    #[test]
    fn a_careful_guest_flushes_what_it_takes_away() {
        let mut g = Gen::new(3, OFFERED, true);
        for _ in 0..5000 {
            if let GuestOp::Entry { value, how, flush: Flush::None, .. } = g.change_entry(Width::Long) {
                assert!(how == How::Or && value & !3 == 0);
            }
        }
    }

    #[test]
    fn leaf_tables_lead_to_data_and_upper_tables_to_tables_of_the_next_level() {
        let mut g = Gen::new(5, OFFERED, true);
        for _ in 0..5000 {
            let (at, value, leaf) = g.table_entry(Width::Long);
            assert!(TABLES.contains(&at));
            let frame = value & 0x1f_ffff_f000;
            assert!(leaf.is_none() || !TABLES.contains(&frame));
            assert!(leaf.is_some() || value & PS != 0 || TABLES.contains(&frame));
        }
    }

    #[test]
    fn steady_bytes_have_no_clock() {
        assert!(!steady(&[0x0f, 0x31]) && !steady(&[0xf3, 0x0f, 0xc7, 0xf0]) && !steady(&[0x9d]));
        assert!(steady(&[0x48, 0x89, 0x08]));
        // FNSTENV, and FPATAN.
        assert!(!steady(&[0x64, 0xd9, 0xb3]) && steady(&[0xd9, 0xf3]));
    }
}
