// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Operations of the fuzzed guest, and their machine code in each processor mode.

use super::layout::{CR4_PGE, Width};

/// How an entry of a page table is changed.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum How {
    /// MOV: an instruction that KVM takes for one that writes page tables.
    Mov,
    /// XCHG.
    Xchg,
    /// STOSQ or STOSD.
    Stos,
    /// LOCK OR with the value.
    Or,
    /// LOCK AND with the value.
    And,
}

/// What drops the old translation.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Flush {
    /// Nothing: the translation was absent, or the order of events does not matter.
    None,
    /// INVLPG of every victim with this page index, as several tables above may lead to the entry.
    Page(u64),
    /// CR4.PGE changes there and back.
    All,
}

/// An operation. Each uses the registers AX, CX, DX, SI and DI.
#[derive(Debug, Clone, PartialEq, Eq)]
#[allow(missing_docs)]
pub enum GuestOp {
    Load {
        at: u64,
        bytes: u8,
    },
    Store {
        at: u64,
        value: u64,
    },
    Xadd {
        at: u64,
        value: u64,
    },
    CmpXchg {
        at: u64,
        value: u64,
    },
    Movs {
        from: u64,
        to: u64,
        count: u64,
    },
    Stos {
        to: u64,
        count: u64,
    },
    Push {
        at: u64,
    },
    Sse {
        at: u64,
    },
    Fxsave {
        at: u64,
    },
    /// Goes on at this address for good.
    Jump {
        at: u64,
    },
    Entry {
        at: u64,
        value: u64,
        how: How,
        flush: Flush,
    },
    /// Reads an entry without A and D.
    ReadEntry {
        at: u64,
    },
    Invlpg {
        at: u64,
    },
    Cr3 {
        value: u64,
        flush: bool,
    },
    Cr0 {
        value: u64,
    },
    Cr4 {
        value: u64,
    },
    Cr8 {
        value: u64,
    },
    ReadCr {
        n: u8,
    },
    Dr {
        n: u8,
        value: u64,
    },
    Rdmsr {
        msr: u32,
    },
    Wrmsr {
        msr: u32,
        value: u64,
        flush: bool,
    },
    Cpuid {
        leaf: u32,
        index: u32,
    },
    Wrpkru {
        value: u32,
    },
    Rdpkru,
    Xsetbv {
        value: u64,
    },
    Out {
        port: u16,
        value: u32,
    },
    In {
        port: u16,
    },
    Outs {
        from: u64,
        count: u64,
    },
    Ins {
        to: u64,
        count: u64,
    },
    Int {
        vector: u8,
    },
    /// Bytes of an instruction without operands, or random ones.
    Raw {
        bytes: Vec<u8>,
    },
}

/// Machine code that grows.
#[derive(Debug, Clone)]
pub struct Code {
    pub bytes: Vec<u8>,
    width: Width,
}

const AX: u8 = 0;
const CX: u8 = 1;
const DX: u8 = 2;
const SI: u8 = 6;
const DI: u8 = 7;

impl Code {
    pub fn new(width: Width) -> Code {
        Code { bytes: Vec::new(), width }
    }

    fn raw(&mut self, bytes: &[u8]) -> &mut Code {
        self.bytes.extend_from_slice(bytes);
        self
    }

    fn long(&self) -> bool {
        self.width == Width::Long
    }

    /// MOV reg, value.
    fn set(&mut self, reg: u8, value: u64) -> &mut Code {
        match self.width {
            Width::Long => self.raw(&[0x48, 0xb8 + reg]).raw(&value.to_le_bytes()),
            Width::Real => self.raw(&[0x66, 0xb8 + reg]).raw(&(value as u32).to_le_bytes()),
            _ => self.raw(&[0xb8 + reg]).raw(&(value as u32).to_le_bytes()),
        }
    }

    /// An instruction with the operand `[reg]`, of 8 bytes in 64-bit mode, else 4.
    fn wide(&mut self, bytes: &[u8]) -> &mut Code {
        match self.width {
            Width::Long => self.raw(&[0x48]),
            Width::Real => self.raw(&[0x67, 0x66]),
            _ => self,
        }
        .raw(bytes)
    }

    /// An instruction with the operand `[reg]` of its own size.
    fn plain(&mut self, bytes: &[u8]) -> &mut Code {
        if self.width == Width::Real {
            self.raw(&[0x67]);
        }
        self.raw(bytes)
    }

    /// A string instruction with a 32-bit or 64-bit counter.
    fn string(&mut self, bytes: &[u8]) -> &mut Code {
        self.plain(bytes)
    }

    /// Drops all translations.
    pub fn flush(&mut self) -> &mut Code {
        if self.width == Width::Real {
            return self;
        }
        // MOV rax, cr4; MOV rcx, rax; XOR eax, PGE; MOV cr4, rax; MOV cr4, rcx.
        self.raw(&[0x0f, 0x20, 0xe0]);
        if self.long() {
            self.raw(&[0x48]);
        }
        self.raw(&[0x89, 0xc1, 0x35]).raw(&(CR4_PGE as u32).to_le_bytes());
        self.raw(&[0x0f, 0x22, 0xe0, 0x0f, 0x22, 0xe1])
    }

    /// OUT port, AL.
    pub fn out(&mut self, port: u16) -> &mut Code {
        self.raw(&[0xe6, port as u8])
    }

    /// INT.
    pub fn int(&mut self, vector: u8) -> &mut Code {
        self.raw(&[0xcd, vector])
    }

    /// Flags that do not depend on A and D bits: TEST esp, esp.
    fn settle(&mut self) -> &mut Code {
        self.set(AX, 0).raw(&[0x85, 0xe4])
    }

    fn entry(&mut self, at: u64, value: u64, how: How) {
        let halves = self.width != Width::Long && self.width != Width::Legacy;
        self.set(DI, at).set(AX, value);
        match how {
            How::Mov => self.wide(&[0x89, 0x07]),
            How::Xchg => self.wide(&[0x87, 0x07]),
            How::Stos if self.long() => self.raw(&[0x48, 0xab]),
            How::Stos => self.raw(&[0xab]),
            How::Or if self.long() => self.raw(&[0xf0, 0x48, 0x09, 0x07]),
            How::Or => self.raw(&[0xf0, 0x09, 0x07]),
            How::And if self.long() => self.raw(&[0xf0, 0x48, 0x21, 0x07]),
            How::And => self.raw(&[0xf0, 0x21, 0x07]),
        };
        if halves && matches!(how, How::Mov | How::Xchg) {
            self.set(DI, at + 4).set(AX, value >> 32).wide(&[0x89, 0x07]);
        }
        self.settle();
    }

    /// Appends an operation.
    pub fn push(&mut self, op: &GuestOp) {
        match *op {
            GuestOp::Load { at, bytes: 1 } => self.set(AX, at).plain(&[0x8a, 0x08]),
            GuestOp::Load { at, .. } => self.set(AX, at).wide(&[0x8b, 0x08]),
            GuestOp::Store { at, value } => self.set(AX, at).set(CX, value).wide(&[0x89, 0x08]),
            GuestOp::Xadd { at, value } => {
                self.set(AX, at).set(CX, value).raw(&[0xf0]).wide(&[0x0f, 0xc1, 0x08])
            }
            GuestOp::CmpXchg { at, value } => {
                self.set(DI, at).set(CX, value).set(AX, 0).raw(&[0xf0]).wide(&[0x0f, 0xb1, 0x0f])
            }
            GuestOp::Movs { from, to, count } => {
                self.set(SI, from).set(DI, to).set(CX, count).raw(&[0xf3]).string(&[0xa4])
            }
            GuestOp::Stos { to, count } => {
                self.set(DI, to).set(CX, count).set(AX, 0x5a).raw(&[0xf3]).string(&[0xaa])
            }
            GuestOp::Push { at } => self.set(AX, at).plain(&[0xff, 0x30]).raw(&[0x59]),
            GuestOp::Sse { at } => {
                self.set(AX, at).plain(&[0x0f, 0x10, 0x00]).plain(&[0x0f, 0x11, 0x40, 0x10])
            }
            GuestOp::Fxsave { at } => self.set(AX, at & !0xf).plain(&[0x0f, 0xae, 0x00]),
            GuestOp::Jump { at } => self.set(AX, at).raw(&[0xff, 0xe0]),
            GuestOp::Entry { at, value, how, flush } => {
                self.entry(at, value, how);
                match flush {
                    Flush::None => self,
                    Flush::Page(k) => {
                        let tables = if self.width == Width::Legacy { 1 } else { 2 };
                        for (i, j) in (0..tables).flat_map(|i| (0..4).map(move |j| (i, j))) {
                            self.set(AX, self.width.victim(i, j, k)).plain(&[0x0f, 0x01, 0x38]);
                        }
                        self
                    }
                    Flush::All => self.flush(),
                }
            }
            GuestOp::ReadEntry { at } => {
                // AND eax, ~(A | D).
                self.set(DI, at).wide(&[0x8b, 0x07]);
                if self.long() {
                    self.raw(&[0x48]);
                }
                self.raw(&[0x83, 0xe0, 0x9f])
            }
            GuestOp::Invlpg { at } => self.set(AX, at).plain(&[0x0f, 0x01, 0x38]),
            GuestOp::Cr3 { value, flush } => {
                self.set(AX, value).raw(&[0x0f, 0x22, 0xd8]);
                if flush { self.flush() } else { self }
            }
            GuestOp::Cr0 { value } => self.set(AX, value).raw(&[0x0f, 0x22, 0xc0]),
            GuestOp::Cr4 { value } => {
                // By the value with the other PGE, so that nothing remembers the old rules.
                self.set(AX, value ^ CR4_PGE).set(CX, value).raw(&[0x0f, 0x22, 0xe0, 0x0f, 0x22, 0xe1])
            }
            GuestOp::Cr8 { value } => self.set(AX, value).raw(&[0x44, 0x0f, 0x22, 0xc0]),
            GuestOp::ReadCr { n } => self.raw(&[0x0f, 0x20, 0xc0 | n << 3]),
            GuestOp::Dr { n, value } => self.set(AX, value).raw(&[0x0f, 0x23, 0xc0 | n << 3]),
            GuestOp::Rdmsr { msr } => self.set(CX, msr.into()).raw(&[0x0f, 0x32]),
            GuestOp::Wrmsr { msr, value, flush } => {
                self.set(CX, msr.into()).set(AX, value & 0xffff_ffff).set(DX, value >> 32).raw(&[0x0f, 0x30]);
                if flush { self.flush() } else { self }
            }
            GuestOp::Cpuid { leaf, index } => {
                // BX is not kept: it comes from the registers at the start.
                self.set(AX, leaf.into()).set(CX, index.into()).raw(&[0x0f, 0xa2])
            }
            GuestOp::Wrpkru { value } => {
                self.set(AX, value.into()).set(CX, 0).set(DX, 0).raw(&[0x0f, 0x01, 0xef])
            }
            GuestOp::Rdpkru => self.set(CX, 0).raw(&[0x0f, 0x01, 0xee]),
            GuestOp::Xsetbv { value } => self.set(AX, value).set(CX, 0).set(DX, 0).raw(&[0x0f, 0x01, 0xd1]),
            GuestOp::Out { port, value } => self.set(AX, value.into()).set(DX, port.into()).raw(&[0xef]),
            GuestOp::In { port } => self.set(DX, port.into()).raw(&[0xed]),
            GuestOp::Outs { from, count } => {
                self.set(SI, from).set(CX, count).set(DX, 0x80).raw(&[0xf3]).string(&[0x6e])
            }
            GuestOp::Ins { to, count } => {
                self.set(DI, to).set(CX, count).set(DX, 0x80).raw(&[0xf3]).string(&[0x6c])
            }
            GuestOp::Int { vector } => self.int(vector),
            GuestOp::Raw { ref bytes } => self.raw(bytes),
        };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    fn bytes(width: Width, op: GuestOp) -> Vec<u8> {
        let mut code = Code::new(width);
        code.push(&op);
        code.bytes
    }

    #[test]
    fn an_operation_has_the_prefixes_of_its_mode() {
        let store = |w| bytes(w, GuestOp::Store { at: 0x1000, value: 2 });
        assert_eq!(store(Width::Long)[20..], [0x48, 0x89, 0x08]);
        assert_eq!(store(Width::Legacy)[10..], [0x89, 0x08]);
        assert_eq!(store(Width::Real)[12..], [0x67, 0x66, 0x89, 0x08]);
    }

    #[test]
    fn a_long_entry_under_pae_is_written_in_halves() {
        let op = GuestOp::Entry {
            at: 0x10_a000,
            value: 0x8000_0000_0000_0007,
            how: How::Mov,
            flush: Flush::Page(3),
        };
        let code = bytes(Width::Pae, op);
        assert_eq!(code.windows(2).filter(|w| *w == [0x89, 0x07]).count(), 2);
        assert!(code.ends_with(&[0x0f, 0x01, 0x38]));
    }
}
