// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The operations of a phase: instructions, each with the events that it means.

use super::{Guest, VECTOR_PF};
use crate::asm::{Asm, PORT_VALUE, Reg};
use bifold_trace::Event;

impl Guest {
    /// Reads 8 bytes.
    pub fn load(&mut self, va: u64) {
        self.op(Asm::default().set(Reg::Rax, va).load());
        self.event(Event::Load(va));
    }

    /// Writes 8 bytes of data.
    pub fn store(&mut self, va: u64) {
        self.op(Asm::default().set(Reg::Rax, va).set(Reg::Rcx, va).store());
        self.event(Event::Store(va));
    }

    /// Executes a page made by [`Guest::returning_page`].
    pub fn fetch(&mut self, va: u64) {
        let asm = Asm::default().set(Reg::Rax, va).set(Reg::Rbx, 0).jmp_rax();
        let next = self.vcpus[self.current].code.place(asm.0.len()) + asm.0.len() as u64;
        self.op(Asm::default().set(Reg::Rax, va).set(Reg::Rbx, next).jmp_rax());
        self.event(Event::Fetch(va));
    }

    fn pt_store(&mut self, gfn: u64, i: usize, new: u64) {
        if self.tables.is_table(gfn) {
            let old = self.tables.entry(gfn, i);
            self.tables.set(gfn, i, new);
            self.event(Event::PtStore { gpa: gfn << 12 | (i as u64) << 3, old, new });
        }
    }

    /// Writes entry `i` of the table in frame `gfn` through its alias.
    pub fn set(&mut self, alias: u64, gfn: u64, i: usize, new: u64) {
        let va = alias + (i as u64) * 8;
        self.op(Asm::default().set(Reg::Rax, va).set(Reg::Rcx, new).store());
        self.event(Event::Store(va));
        self.pt_store(gfn, i, new);
    }

    /// Writes `count` entries from `i` on with REP STOSQ (one: STOSQ).
    pub fn set_by_stos(&mut self, alias: u64, gfn: u64, i: usize, count: usize, new: u64) {
        let va = alias + (i as u64) * 8;
        let asm = Asm::default().set(Reg::Rdi, va).set(Reg::Rax, new);
        self.op(if count == 1 { asm.stosq() } else { asm.set(Reg::Rcx, count as u64).rep_stosq() });
        for n in 0..count {
            self.event(Event::StoreOther(va + 8 * n as u64));
            self.pt_store(gfn, i + n, new);
        }
    }

    /// Writes entry `i` with the STOSQ in a page made by [`Guest::storing_page`], which is always the same
    /// instruction.
    pub fn set_by_stos_at(&mut self, code: u64, alias: u64, gfn: u64, i: usize, new: u64) {
        let va = alias + (i as u64) * 8;
        let asm = |next| {
            let asm = Asm::default().set(Reg::Rdi, va).set(Reg::Rcx, code);
            asm.set(Reg::Rbx, next).set(Reg::Rax, new).jmp_rcx()
        };
        let len = asm(0).0.len();
        let next = self.vcpus[self.current].code.place(len) + len as u64;
        self.op(asm(next));
        self.event(Event::Fetch(code));
        self.event(Event::StoreOther(va));
        self.pt_store(gfn, i, new);
    }

    /// Copies entry `from` of the table over entry `i` with MOVSQ.
    pub fn copy_by_movs(&mut self, alias: u64, gfn: u64, from: usize, i: usize) {
        let (source, va) = (alias + (from as u64) * 8, alias + (i as u64) * 8);
        self.op(Asm::default().set(Reg::Rsi, source).set(Reg::Rdi, va).movsq());
        self.event(Event::Load(source));
        self.event(Event::StoreOther(va));
        let new = self.tables.entry(gfn, from);
        self.pt_store(gfn, i, new);
    }

    /// INVLPG.
    pub fn invlpg(&mut self, va: u64) {
        self.op(Asm::default().set(Reg::Rax, va).invlpg());
        self.event(Event::Invlpg(va));
    }

    /// MOV to CR3.
    pub fn load_cr3(&mut self, root: u64) {
        self.op(Asm::default().set(Reg::Rax, root << 12).load_cr3());
        self.event(Event::Cr3(root << 12));
        self.vcpus[self.current].root = root;
    }

    /// MOV from CR3; the VMM compares the value.
    pub fn read_cr3(&mut self) {
        self.op(Asm::default().read_cr3().out(PORT_VALUE));
        self.event(Event::Cr3Read);
        let value = (self.vcpus[self.current].root << 12) as u32;
        self.phases.last_mut().expect("within a phase").values.push(value);
    }

    /// MOV to CR4.
    pub fn load_cr4(&mut self, value: u64) {
        self.op(Asm::default().set(Reg::Rax, value).load_cr4());
        self.event(Event::Cr4(value));
    }

    /// A load or store that causes a guest page fault with error code `error`.
    pub fn fault(&mut self, va: u64, write: bool, error: u64) {
        let s = self.system.expect("a guest that faults has a handler");
        let asm = |next| {
            let asm = Asm::default().set(Reg::Rax, va).set(Reg::Rcx, va).set(Reg::Rbx, next);
            if write { asm.store() } else { asm.load() }
        };
        let len = asm(0).0.len();
        let next = self.vcpus[self.current].code.place(len) + len as u64;
        self.op(asm(next));
        self.event(Event::Fault { gva: va, error });
        self.event(Event::Load(s.idt + 16 * VECTOR_PF as u64));
        self.event(Event::Load(s.gdt + 8));
        self.event(Event::StoreOther(s.stack - 48));
        self.event(Event::Fetch(s.handler));
        self.event(Event::Store(s.stack - 40));
        self.event(Event::Load(s.gdt + 16));
    }

    /// Touches all memory that the delivery of a fault touches, so that it is mapped.
    pub fn warm_system(&mut self) {
        let s = self.system.expect("a guest that faults has a handler");
        for va in [s.gdt, s.idt] {
            self.load(va);
        }
        self.store(s.stack - 8);
        self.load(s.handler);
    }
}
