// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Assembles the guests' machine code: the few 64-bit instructions that they need, and their pages.
//!
//! Guests have no loops and no stack. Every address is an immediate, so a guest's accesses and their order
//! are as written. Code pages are [`STRIDE`] apart in the address space and are joined by jumps. The entry of
//! each page is therefore alone in its aligned block of 8, where KVM's prefetch (`FNAME(pte_prefetch)`) finds
//! nothing.

/// Distance of two code pages (and of two exposed tables): one block of 8 entries.
pub const STRIDE: u64 = 8 << 12;
const PAGE: usize = 4096;
const JMP: usize = 5;

/// Port that ends a phase.
pub const PORT_MARKER: u8 = 0x10;
/// Port that tells the VMM a value (EAX).
pub const PORT_VALUE: u8 = 0x11;

/// Registers that take an immediate.
#[derive(Debug, Clone, Copy)]
pub enum Reg {
    Rax = 0,
    Rcx = 1,
    Rbx = 3,
    Rsi = 6,
    Rdi = 7,
}

/// One operation's instructions.
#[derive(Debug, Default, Clone)]
pub struct Asm(pub Vec<u8>);

impl Asm {
    fn raw(mut self, bytes: &[u8]) -> Asm {
        self.0.extend_from_slice(bytes);
        self
    }

    /// MOV reg, imm64.
    pub fn set(self, reg: Reg, value: u64) -> Asm {
        self.raw(&[0x48, 0xb8 + reg as u8]).raw(&value.to_le_bytes())
    }

    /// `MOV rcx, [rax]`.
    pub fn load(self) -> Asm {
        self.raw(&[0x48, 0x8b, 0x08])
    }

    /// `MOV [rax], rcx`: an instruction that KVM classes as one that writes page tables.
    pub fn store(self) -> Asm {
        self.raw(&[0x48, 0x89, 0x08])
    }

    /// STOSQ: an instruction that KVM does not class so (`x86_page_table_writing_insn`).
    pub fn stosq(self) -> Asm {
        self.raw(&[0x48, 0xab])
    }

    /// REP STOSQ.
    pub fn rep_stosq(self) -> Asm {
        self.raw(&[0xf3, 0x48, 0xab])
    }

    /// MOVSQ.
    pub fn movsq(self) -> Asm {
        self.raw(&[0x48, 0xa5])
    }

    /// `INVLPG [rax]`.
    pub fn invlpg(self) -> Asm {
        self.raw(&[0x0f, 0x01, 0x38])
    }

    /// MOV cr3, rax.
    pub fn load_cr3(self) -> Asm {
        self.raw(&[0x0f, 0x22, 0xd8])
    }

    /// MOV rax, cr3.
    pub fn read_cr3(self) -> Asm {
        self.raw(&[0x0f, 0x20, 0xd8])
    }

    /// MOV cr4, rax.
    pub fn load_cr4(self) -> Asm {
        self.raw(&[0x0f, 0x22, 0xe0])
    }

    /// OUT port, eax.
    pub fn out(self, port: u8) -> Asm {
        self.raw(&[0xe7, port])
    }

    /// JMP rcx.
    pub fn jmp_rcx(self) -> Asm {
        self.raw(&[0xff, 0xe1])
    }

    /// JMP rax.
    pub fn jmp_rax(self) -> Asm {
        self.raw(&[0xff, 0xe0])
    }
}

/// JMP rbx: the code of a page that is only fetched from, which returns at once.
pub const JMP_RBX: [u8; 2] = [0xff, 0xe3];

/// A STOSQ that returns.
pub const STOSQ_JMP_RBX: [u8; 4] = [0x48, 0xab, 0xff, 0xe3];

/// The handler of #PF: drops the error code, puts RBX (where to go on) in the place of the
/// faulting instruction's address, returns.
pub const FAULT_HANDLER: [u8; 10] = [
    0x48, 0x83, 0xc4, 0x08, // add rsp, 8
    0x48, 0x89, 0x1c, 0x24, // mov [rsp], rbx
    0x48, 0xcf, // iretq
];

/// A vCPU's code: pages in order, filled from the front.
#[derive(Debug, Clone)]
pub struct Code {
    va: u64,
    pages: Vec<[u8; PAGE]>,
    limit: usize,
    at: usize,
}

impl Code {
    /// No code yet, in at most `limit` pages from `va`.
    pub fn new(va: u64, limit: usize) -> Code {
        Code { va, pages: vec![[0xf4; PAGE]], limit, at: 0 } // HLT: the VMM takes it for a mistake
    }

    fn page_va(&self, page: usize) -> u64 {
        self.va + page as u64 * STRIDE
    }

    /// The address of the next byte, if `len` bytes fit in its page.
    pub fn place(&mut self, len: usize) -> u64 {
        let page = self.pages.len() - 1;
        if self.at + len + JMP > PAGE {
            assert!(page + 1 < self.limit, "a guest's code fits its pages");
            let from = self.page_va(page) + (self.at + JMP) as u64;
            let distance = (self.page_va(page + 1) - from) as u32;
            self.pages[page][self.at] = 0xe9; // JMP rel32
            self.pages[page][self.at + 1..self.at + JMP].copy_from_slice(&distance.to_le_bytes());
            self.pages.push([0xf4; PAGE]);
            self.at = 0;
        }
        self.page_va(self.pages.len() - 1) + self.at as u64
    }

    /// Appends an operation, all in one page. Returns its address.
    pub fn push(&mut self, asm: &Asm) -> u64 {
        let va = self.place(asm.0.len());
        let page = self.pages.last_mut().expect("there is always a page");
        page[self.at..self.at + asm.0.len()].copy_from_slice(&asm.0);
        self.at += asm.0.len();
        va
    }

    /// The pages filled so far.
    pub fn pages(&self) -> &[[u8; PAGE]] {
        &self.pages
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn an_operation_never_crosses_a_page_and_a_jump_leads_to_the_next() {
        let mut code = Code::new(0x10_0000, 3);
        let op = Asm::default().set(Reg::Rax, 1).set(Reg::Rcx, 2).store();
        let first = code.push(&op);
        assert_eq!(first, 0x10_0000);
        let mut last = first;
        while code.pages().len() == 1 {
            last = code.push(&op);
        }
        assert_eq!(last, 0x10_0000 + STRIDE);
        let end = (PAGE - JMP) / op.0.len() * op.0.len();
        let page = &code.pages()[0];
        assert_eq!(page[end], 0xe9);
        let distance = u32::from_le_bytes(page[end + 1..end + 5].try_into().unwrap());
        assert_eq!(0x10_0000 + end as u64 + 5 + u64::from(distance), last);
    }
}
