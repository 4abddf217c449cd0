// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds a hand-made guest: its tables, its code and the code's events.
//!
//! Each operation appends machine code to the current vCPU's code and the matching events to the stream for
//! the model, so the two cannot differ. A phase is a part of the code that ends with a marker (an OUT), at
//! which the VMM reads the counts.
//!
//! Every guest has one root. Its upper half, which all roots share, has the code and (if a test stores to
//! tables) aliases of tables. Every entry there is alone in its aligned block of 8, has its A and D bits set,
//! and maps memory that the VMM has written. The model does not know the last fact; it would matter only for
//! a page that is first read and later written, which no guest does there.

mod steps;

use crate::asm::{Asm, Code, FAULT_HANDLER, JMP_RBX, PORT_MARKER, STOSQ_JMP_RBX, STRIDE};
use crate::tables::{DATA, LARGE, Tables, index};
use bifold_trace::Event;

/// Address of vCPU 0's code. The code of each further vCPU is 2 MB higher.
pub const CODE: u64 = 0xffff_8000_0000_0000;
/// Address of the aliases of exposed tables.
const ALIAS: u64 = 0xffff_8000_4000_0000;
/// Address of GDT, IDT, stack and fault handler.
const SYSTEM: u64 = 0xffff_8000_8000_0000;
/// Number of code pages per vCPU.
pub const CODE_PAGES: usize = 24;
/// First frame of tables and code.
const FIRST_FRAME: u64 = 0x100;
/// First address of the data.
pub const DATA_GPA: u64 = 32 << 20;
/// PAE, PGE.
pub const CR4: u64 = 0xa0;
pub const CR4_PGE: u64 = 0x80;

/// GDT: null, code and data of 64-bit mode, with the accessed bits set so that the CPU does not write.
const GDT: [u64; 3] = [0, 0x00af_9b00_0000_ffff, 0x00cf_9300_0000_ffff];
const VECTOR_PF: usize = 14;

/// A part of a vCPU's code between two markers.
#[derive(Debug, Clone)]
pub struct Phase {
    pub name: String,
    pub vcpu: usize,
    /// The phase's words in the event stream.
    pub words: std::ops::Range<usize>,
    /// Values that the guest sends through [`PORT_VALUE`](crate::asm::PORT_VALUE).
    pub values: Vec<u32>,
    /// Exits for paging under Linux 6.1 by reasoning, see [`Guest::closed`].
    pub closed: Option<[u64; 4]>,
}

#[derive(Debug, Clone)]
struct Vcpu {
    code: Code,
    code_gpas: Vec<u64>,
    root: u64,
}

/// Addresses of the CPU's descriptor tables.
#[derive(Debug, Clone, Copy)]
pub struct System {
    pub gdt: u64,
    pub idt: u64,
    pub stack: u64,
    handler: u64,
}

/// A guest, complete or under construction.
#[derive(Debug, Clone)]
pub struct Guest {
    pub name: &'static str,
    /// Bytes.
    pub memory: u64,
    /// The present tables.
    pub tables: Tables,
    pub root: u64,
    pub system: Option<System>,
    pub phases: Vec<Phase>,
    image: Option<Tables>,
    vcpus: Vec<Vcpu>,
    current: usize,
    words: Vec<u64>,
    blobs: Vec<(u64, Vec<u8>)>,
    aliases: u64,
    data: u64,
}

impl Guest {
    /// A guest of `memory` bytes that has only its code's pages.
    pub fn new(name: &'static str, memory: u64, vcpus: usize) -> Guest {
        let mut tables = Tables::new(FIRST_FRAME);
        let root = tables.table(4);
        let vcpus = (0..vcpus as u64)
            .map(|n| {
                let va = CODE + n * (2 << 20);
                let gpas = (0..CODE_PAGES as u64)
                    .map(|page| {
                        let gpa = tables.take() << 12;
                        tables.map(root, va + page * STRIDE, 1, gpa | DATA);
                        gpa
                    })
                    .collect();
                Vcpu { code: Code::new(va, CODE_PAGES), code_gpas: gpas, root }
            })
            .collect();
        Guest {
            name,
            memory,
            tables,
            root,
            system: None,
            phases: Vec::new(),
            image: None,
            vcpus,
            current: 0,
            words: Vec::new(),
            blobs: Vec::new(),
            aliases: 0,
            data: DATA_GPA.min(memory / 2),
        }
    }

    // --- before the first phase ---

    /// Makes another root with the same upper half.
    pub fn new_root(&mut self) -> u64 {
        let root = self.tables.table(4);
        let i = index(CODE, 4);
        self.tables.set(root, i, self.tables.entry(self.root, i));
        root
    }

    /// Takes `pages` new frames for data, from a multiple of `align` pages on.
    pub fn data(&mut self, pages: u64, align: u64) -> u64 {
        let gpa = self.data.next_multiple_of(align << 12);
        self.data = gpa + (pages << 12);
        assert!(self.data <= self.memory, "a guest's data fits its memory");
        gpa
    }

    /// Maps `pages` 4 KB pages of fresh data at `va`. Returns the leaf table of the first.
    pub fn map(&mut self, root: u64, va: u64, pages: u64, flags: u64) -> u64 {
        let gpa = self.data(pages, 1);
        self.map_at(root, va, gpa, pages, flags)
    }

    /// Maps `pages` 4 KB pages at `gpa`.
    pub fn map_at(&mut self, root: u64, va: u64, gpa: u64, pages: u64, flags: u64) -> u64 {
        for n in (0..pages).rev() {
            self.tables.map(root, va + (n << 12), 1, (gpa + (n << 12)) | flags);
        }
        self.tables.find(root, va, 1).expect("just mapped")
    }

    /// Maps a 2 MB page at `gpa`. Returns the table that holds its entry.
    pub fn map_large(&mut self, root: u64, va: u64, gpa: u64, flags: u64) -> u64 {
        self.tables.map(root, va, 2, gpa | flags | LARGE)
    }

    /// Lets the guest store to a frame that is a table or will be one. Returns the frame's alias.
    pub fn expose(&mut self, gfn: u64) -> u64 {
        let va = ALIAS + self.aliases * STRIDE;
        self.aliases += 1;
        self.tables.map(self.root, va, 1, gfn << 12 | DATA);
        va
    }

    /// Makes a page of data that can be executed.
    pub fn returning_page(&mut self, gpa: u64) {
        self.blobs.push((gpa, JMP_RBX.to_vec()));
    }

    /// Makes a page of code at `va`: STOSQ and a return.
    pub fn storing_page(&mut self, va: u64) {
        let gpa = self.tables.take() << 12;
        self.tables.map(self.root, va, 1, gpa | DATA);
        self.blobs.push((gpa, STOSQ_JMP_RBX.to_vec()));
    }

    /// Makes GDT, IDT, a stack and a #PF handler that continues at the address in RBX.
    pub fn handle_faults(&mut self) {
        let mut at = [0; 4];
        for (n, va) in at.iter_mut().enumerate() {
            *va = SYSTEM + n as u64 * STRIDE;
            let gpa = self.tables.take() << 12;
            self.tables.map(self.root, *va, 1, gpa | DATA);
            self.blobs.push((gpa, Vec::new()));
        }
        let [gdt, idt, stack, handler] = at;
        let blobs = self.blobs.len() - 4;
        self.blobs[blobs].1 = GDT.iter().flat_map(|d| d.to_le_bytes()).collect();
        let mut table = vec![0; 16 * (VECTOR_PF + 1)];
        let gate = &mut table[16 * VECTOR_PF..];
        gate[0..2].copy_from_slice(&(handler as u16).to_le_bytes());
        gate[2..4].copy_from_slice(&8u16.to_le_bytes());
        gate[5] = 0x8e; // present, interrupt gate
        gate[6..8].copy_from_slice(&((handler >> 16) as u16).to_le_bytes());
        gate[8..12].copy_from_slice(&((handler >> 32) as u32).to_le_bytes());
        self.blobs[blobs + 1].1 = table;
        self.blobs[blobs + 3].1 = FAULT_HANDLER.to_vec();
        self.system = Some(System { gdt, idt, stack: stack + 0x800, handler });
    }

    // --- phases ---

    /// Selects the vCPU of the following phases.
    pub fn on(&mut self, vcpu: usize) {
        self.end_phase();
        self.current = vcpu;
    }

    /// Begins a phase.
    pub fn phase(&mut self, name: impl Into<String>) {
        self.end_phase();
        if self.image.is_none() {
            self.image = Some(self.tables.clone());
            self.tables.describe(&mut self.words);
            for n in 0..self.vcpus.len() {
                self.event(Event::Vcpu(n as u64));
                self.event(Event::Cr4(CR4));
                self.event(Event::Cr3(self.vcpus[n].root << 12));
            }
        }
        self.event(Event::Vcpu(self.current as u64));
        let at = self.words.len();
        let name = name.into();
        self.phases.push(Phase { name, vcpu: self.current, words: at..0, values: Vec::new(), closed: None });
    }

    /// Sets the exits for paging (faults, CR3, CR4, INVLPG) that the phase must have under Linux 6.1 by
    /// reasoning: nested on 4 KB and 2 MB, shadow on 4 KB and 2 MB. (Private 2 MB pages of hugetlbfs have one
    /// more if a page is read before it is written.)
    pub fn closed(&mut self, exits: [u64; 4]) {
        self.phases.last_mut().expect("within a phase").closed = Some(exits);
    }

    fn end_phase(&mut self) {
        if self.phases.last().is_some_and(|p| p.words.end == 0) {
            self.op(Asm::default().out(PORT_MARKER));
            let end = self.words.len();
            self.phases.last_mut().expect("just seen").words.end = end;
        }
    }

    /// Ends the last phase.
    pub fn finish(mut self) -> Guest {
        self.end_phase();
        self
    }

    fn event(&mut self, event: Event<'_>) {
        event.encode(&mut self.words);
    }

    fn op(&mut self, asm: Asm) {
        assert!(self.phases.last().is_some_and(|p| p.words.end == 0), "an operation is part of a phase");
        let va = self.vcpus[self.current].code.push(&asm);
        self.event(Event::Fetch(va));
    }

    // --- finished ---

    /// All events.
    pub fn words(&self) -> &[u64] {
        &self.words
    }

    /// Number of vCPUs.
    pub fn vcpus(&self) -> usize {
        self.vcpus.len()
    }

    /// CR3 at the guest's start, not that of the last phase.
    pub fn first_cr3(&self, vcpu: usize) -> u64 {
        let mut at = 0;
        let mut current = 0;
        while let Ok((event, n)) = bifold_trace::decode(&self.words[at..], at) {
            match event {
                Event::Vcpu(v) => current = v as usize,
                Event::Cr3(v) if current == vcpu => return v,
                _ => {}
            }
            at += n;
        }
        self.root << 12
    }

    /// Address at which vCPU `n` begins.
    pub fn entry(&self, n: usize) -> u64 {
        CODE + n as u64 * (2 << 20)
    }

    /// Addresses and bytes that the VMM writes to memory before the start.
    pub fn image(&self) -> Vec<(u64, Vec<u8>)> {
        let tables = self.image.as_ref().unwrap_or(&self.tables);
        let mut out: Vec<(u64, Vec<u8>)> = tables
            .iter()
            .map(|(gfn, e)| (gfn << 12, e.iter().flat_map(|e| e.to_le_bytes()).collect()))
            .collect();
        for v in &self.vcpus {
            out.extend(v.code.pages().iter().zip(&v.code_gpas).map(|(p, &gpa)| (gpa, p.to_vec())));
        }
        out.extend(self.blobs.iter().cloned());
        out
    }
}

/// An absent entry.
pub const ABSENT: u64 = 0;
