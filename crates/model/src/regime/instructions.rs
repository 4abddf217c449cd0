// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's privileged instructions and page faults: what each does to a configuration's tables.

use super::Regime;
use crate::Paging;
use crate::exit_log::Access;
use crate::guest::GuestTables;
use crate::memory::Memory;
use crate::paging::{Cr4Write, PagingMode, Stored, Vm, Walker, each_mode};
use bifold_mmu::{Gpa, Gva};

impl Regime {
    /// MOV to CR3; `first` where the recording only tells which root is loaded.
    pub fn load_cr3(&mut self, vcpu: usize, value: u64, first: bool, guest: &GuestTables) {
        let Regime { tables, host, counts, loaded, .. } = self;
        loaded[vcpu] = Some(value);
        if first {
            // The tables that a vCPU begins with are from before the stream.
            let before = each_mode!(&*tables, t => t.most_tables());
            each_mode!(tables, t => t.initial_cr3(vcpu, value, guest));
            self.before.tables += each_mode!(&*tables, t => t.most_tables()) - before;
        } else {
            each_mode!(tables, t => t.load_cr3(&mut Vm { host, counts }, vcpu, value, guest));
        }
        self.log_instruction(Gva(0));
    }

    /// The guest's entries that a load of CR3 or CR4 puts into registers are read: see
    /// [`PagingMode::load_registers`].
    pub fn load_registers<M: Memory>(&mut self, vcpu: usize, root: Gpa, guest: &GuestTables, memory: &mut M) {
        let Regime { tables, host, caches, counts, tagged, .. } = self;
        let vm = Vm { host, counts };
        let mut cpu = Walker { caches: &mut caches[vcpu], tagged: *tagged, memory, vm };
        each_mode!(tables, t => t.load_registers(&mut cpu, vcpu, root, guest));
        self.tell_kept();
    }

    /// Logs the exit that an instruction took, if it took one and exits are logged.
    fn log_instruction(&mut self, gva: Gva) {
        self.counts.log_exits(|| Access { gva, gpa: None, write: false, fetch: false, present: false });
    }

    /// MOV from CR3.
    pub fn read_cr3(&mut self, vcpu: usize) {
        let Regime { tables, host, counts, .. } = self;
        each_mode!(tables, t => t.read_cr3(&mut Vm { host, counts }, vcpu));
        self.log_instruction(Gva(0));
    }

    /// MOV to CR4.
    pub fn write_cr4(&mut self, vcpu: usize, write: Cr4Write, guest: &GuestTables) {
        let Regime { tables, host, counts, .. } = self;
        each_mode!(tables, t => t.write_cr4(&mut Vm { host, counts }, vcpu, write, guest));
        self.log_instruction(Gva(0));
    }

    /// The vCPU sends an inter-processor interrupt: every hypervisor here emulates the interrupt controller's
    /// command register (no AVIC, no IPI virtualization).
    pub fn send_ipi(&mut self) {
        self.counts.now.exits_ipi += u64::from(self.config.mode != Paging::Native);
        self.log_instruction(Gva(0));
    }

    /// INVLPG.
    pub fn invlpg(&mut self, vcpu: usize, gva: Gva, guest: &GuestTables) {
        let Regime { tables, host, counts, .. } = self;
        each_mode!(tables, t => t.invlpg(&mut Vm { host, counts }, vcpu, gva, guest));
        self.log_instruction(gva);
    }

    /// True if [`Regime::stored`] has an effect.
    pub fn hears_stores(&self) -> bool {
        each_mode!(&self.tables, t => t.hears_stores())
    }

    /// The guest is about to change what is in a table's page.
    pub fn stored(&mut self, vcpu: usize, store: Stored<'_>, guest: &GuestTables) {
        let Regime { tables, host, counts, .. } = self;
        each_mode!(tables, t => t.stored(&mut Vm { host, counts }, vcpu, store, guest));
        self.log_instruction(Gva(0));
    }

    /// A page fault of the guest's own, with its error code: the walk that found it, and the
    /// exit that it may take.
    pub fn guest_fault<M: Memory>(
        &mut self,
        vcpu: usize,
        (gva, error): (Gva, u64),
        root: Gpa,
        guest: &GuestTables,
        memory: &mut M,
    ) {
        const PRESENT: u64 = 1;
        const WRITE: u64 = 1 << 1;
        const FETCH: u64 = 1 << 4;
        let Regime { tables, host, caches, counts, tagged, .. } = self;
        if error & PRESENT == 0 {
            let vm = Vm { host, counts };
            let mut cpu = Walker { caches: &mut caches[vcpu], tagged: *tagged, memory, vm };
            each_mode!(tables, t => t.walk_to_fault(&mut cpu, vcpu, gva, root, guest));
        } else {
            each_mode!(tables, t => t.permission_fault(&mut Vm { host, counts }, vcpu, gva, root, guest));
        }
        let exit = each_mode!(tables, t => t.guest_fault(&mut Vm { host, counts }, vcpu, gva, error, guest));
        if let Some(present) = exit {
            let (write, fetch) = (error & WRITE != 0, error & FETCH != 0);
            counts.log_exits(|| Access { gva, gpa: None, write, fetch, present });
        }
        self.tell_kept();
    }
}
