// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of protection keys: a guest's keys hold in both modes, whatever the guest changes and however often
//! the VM is switched. The guest executes a list of steps and notes the error code of each page fault; the
//! expectation is computed here, from Intel SDM vol. 3, 4.6 and 4.7.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::Duration;

use anyhow::{Context, Result};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment};

use super::Notes;
use super::machine::{Args, CODE_GPA, DATA, DATA_GPA, Machine, MachineSpec, keys as keys_of};
use super::routines::{Routine, steps_fault};
use super::windows::between_switches;
use crate::guest::CR4;
use crate::guests::Rng;
use crate::tables::{ACCESSED, DIRTY, LARGE, PRESENT, WRITE};
use crate::vm::CR0;

/// U/S of an entry: keys apply to user pages only.
const USER: u64 = 4;
/// CR4.PKE.
const PKE: u64 = 1 << 22;
/// CR0.WP.
const WP: u64 = 1 << 16;
/// Error code of a page fault: the entry was present, the access a write, the key forbade it.
const ERROR: (u64, u64, u64) = (1, 2, 1 << 5);
/// No fault, in the found error code.
const NONE: u64 = u64::MAX;

/// Where the small and the large user pages are mapped.
const SMALL: u64 = 0x100_0000_0000;
const BIG: u64 = SMALL + (1 << 30);
const SMALL_PAGES: u64 = 64;
const BIG_PAGES: u64 = 2;
/// Pages of data that hold the tables: the pages from 0, the small pages from 512, the large ones from 1024.
const PDPT: u64 = DATA_GPA;
const SMALL_PD: u64 = DATA_GPA + 0x1000;
const SMALL_PT: u64 = DATA_GPA + 0x2000;
const BIG_PD: u64 = DATA_GPA + 0x3000;
const SMALL_GPA: u64 = DATA_GPA + (512 << 12);
const BIG_GPA: u64 = DATA_GPA + (1024 << 12);
/// The guest's GDT, IDT, stack and steps, in the first MB.
const GDT: u64 = 0x5000;
const IDT: u64 = 0x6000;
const STACK: u64 = 0x7ff0;
const STEPS: u64 = 0x10000;
const MOST: usize = 2048;

/// What the guest does next, and the state that it changes.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
enum Step {
    Load(u64),
    Store(u64),
    /// MOV to memory: an entry of a table, by the entry's guest-physical address.
    Entry(u64, u64),
    Invlpg(u64),
    Pkru(u64),
    Cr4(u64),
}

impl Step {
    /// Bytes for the routine: address, value, kind, and room for the error code.
    fn bytes(self) -> [u8; 32] {
        let (address, value, kind) = match self {
            Step::Load(at) => (at, 0, 0),
            Step::Store(at) => (at, 1, 1),
            Step::Entry(gpa, value) => (gpa - DATA_GPA + DATA, value, 1),
            Step::Invlpg(at) => (at, 0, 2),
            Step::Pkru(value) => (0, value, 3),
            Step::Cr4(value) => (0, value, 4),
        };
        let mut out = [0; 32];
        for (i, word) in [address, value, kind, NONE].into_iter().enumerate() {
            out[8 * i..8 * i + 8].copy_from_slice(&u64::to_le_bytes(word));
        }
        out
    }
}

/// A page of the guest as its tables have it.
#[derive(Debug, Clone, Copy)]
struct Page {
    key: u64,
    present: bool,
    writable: bool,
}

impl Page {
    fn entry(self, gpa: u64, more: u64) -> u64 {
        let bit = |on: bool, b: u64| if on { b } else { 0 };
        gpa | bit(self.present, PRESENT) | bit(self.writable, WRITE) | USER | more | self.key << 59
    }
}

/// The guest's tables and registers, as they are when a step has been executed.
struct World {
    small: [Page; SMALL_PAGES as usize],
    big: [Page; BIG_PAGES as usize],
    pkru: u64,
    keys_on: bool,
    protects: bool,
}

impl World {
    fn new() -> World {
        let page = |key| Page { key, present: true, writable: true };
        World {
            small: std::array::from_fn(|i| page(i as u64 % 16)),
            big: std::array::from_fn(|i| page(i as u64 + 3)),
            pkru: 0,
            keys_on: true,
            protects: true,
        }
    }

    /// The error code of an access, or [`NONE`].
    fn error(&self, page: Page, write: bool, writable: bool) -> u64 {
        if !page.present {
            return if write { ERROR.1 } else { 0 };
        }
        let rights = self.pkru >> (2 * page.key);
        let forbidden = rights & 1 != 0 || (write && rights & 2 != 0 && self.protects);
        let by_key = self.keys_on && forbidden;
        let by_right = write && !writable && self.protects;
        if !(by_key || by_right) {
            return NONE;
        }
        ERROR.0 | if write { ERROR.1 } else { 0 } | if by_key { ERROR.2 } else { 0 }
    }

    /// Some steps, and the error code expected of each.
    fn steps(&mut self, random: &mut Rng, count: usize) -> Vec<(Step, u64)> {
        let mut out = Vec::new();
        while out.len() + 3 < count {
            let i = random.below(SMALL_PAGES) as usize;
            let b = random.below(BIG_PAGES) as usize;
            let write = random.below(2) == 0;
            let access = |at| if write { Step::Store(at) } else { Step::Load(at) };
            match random.below(16) {
                // The second mapping of the small pages is read-only, by the entry above.
                0..=1 => {
                    let at = SMALL + (2 << 20) + ((i as u64) << 12);
                    out.push((access(at), self.error(self.small[i], write, false)));
                }
                2..=6 => {
                    let at = SMALL + ((i as u64) << 12);
                    out.push((access(at), self.error(self.small[i], write, self.small[i].writable)));
                }
                7..=9 => {
                    let at = BIG + ((b as u64) << 21) + (random.below(512) << 12);
                    out.push((access(at), self.error(self.big[b], write, self.big[b].writable)));
                }
                10..=12 => {
                    let p = &mut self.small[i];
                    *p = Page {
                        key: random.below(16),
                        present: random.below(8) != 0,
                        writable: random.below(4) != 0,
                    };
                    let more = [0, ACCESSED, ACCESSED | DIRTY][random.below(3) as usize];
                    let entry = p.entry(SMALL_GPA + ((i as u64) << 12), more);
                    out.push((Step::Entry(SMALL_PT + 8 * i as u64, entry), NONE));
                    for mapping in [0, 2 << 20] {
                        out.push((Step::Invlpg(SMALL + mapping + ((i as u64) << 12)), NONE));
                    }
                }
                13 => {
                    let p = &mut self.big[b];
                    *p = Page { key: random.below(16), present: true, writable: random.below(4) != 0 };
                    let entry = p.entry(BIG_GPA + ((b as u64) << 21), LARGE | ACCESSED | DIRTY);
                    out.push((Step::Entry(BIG_PD + 8 * b as u64, entry), NONE));
                    out.push((Step::Invlpg(BIG + ((b as u64) << 21)), NONE));
                }
                14 if self.keys_on => {
                    self.pkru = random.next() & 0xffff_ffff;
                    out.push((Step::Pkru(self.pkru), NONE));
                }
                _ => {
                    self.keys_on = !self.keys_on || random.below(4) != 0;
                    out.push((Step::Cr4(CR4 | if self.keys_on { PKE } else { 0 }), NONE));
                }
            }
        }
        out
    }
}

/// Writes tables, GDT and IDT for a guest that executes steps.
fn prepare(m: &Machine, world: &World) -> Result<()> {
    const TABLE: u64 = PRESENT | WRITE | USER | ACCESSED;
    let set = |at: u64, entry: u64| m.memory.write(at, &entry.to_le_bytes());
    set(m.root + 8 * crate::tables::index(SMALL, 4) as u64, PDPT | TABLE)?;
    set(PDPT, SMALL_PD | TABLE)?;
    set(PDPT + 8, BIG_PD | TABLE)?;
    set(SMALL_PD, SMALL_PT | TABLE)?;
    set(SMALL_PD + 8, SMALL_PT | (TABLE & !WRITE))?;
    for (i, page) in (0..).zip(world.small) {
        set(SMALL_PT + 8 * i, page.entry(SMALL_GPA + (i << 12), ACCESSED | DIRTY))?;
    }
    for (i, page) in (0..).zip(world.big) {
        set(BIG_PD + 8 * i, page.entry(BIG_GPA + (i << 21), LARGE | ACCESSED | DIRTY))?;
    }
    // The fault handler's code segment, and an interrupt gate to it.
    set(GDT + 8, 0x00af_9b00_0000_ffff)?;
    set(GDT + 16, 0x00cf_9300_0000_ffff)?;
    let handler = CODE_GPA + steps_fault();
    set(IDT + 14 * 16, (handler & 0xffff) | 8 << 16 | 0x8e00 << 32 | (handler >> 16) << 48)?;
    set(IDT + 14 * 16 + 8, 0)
}

fn registers(m: &Machine, vcpu: usize, cr0: u64) -> Result<()> {
    registers_with(m, vcpu, cr0, CR4 | PKE)
}

fn registers_with(m: &Machine, vcpu: usize, cr0: u64, cr4: u64) -> Result<()> {
    m.with(vcpu, move |v| {
        let mut s = v.get_sregs()?;
        (s.gdt.base, s.gdt.limit, s.idt.base, s.idt.limit) = (GDT, 23, IDT, 0xfff);
        s.cs = kvm_segment { selector: 8, ..s.cs };
        (s.cr0, s.cr4) = (cr0, cr4);
        Ok(v.set_sregs(&s)?)
    })
}

/// Executes the steps, and notes those with another error code than expected.
fn play(n: &mut Notes, m: &Machine, vcpu: usize, steps: &[(Step, u64)], when: &str) -> Result<()> {
    for (i, (step, _)) in (0..).zip(steps) {
        m.memory.write(STEPS + 32 * i, &step.bytes())?;
    }
    m.run(vcpu, Routine::Steps, Args { rdi: STEPS, rsi: steps.len() as u64, rdx: STACK, ..Args::default() })?;
    for (i, (step, want)) in (0..).zip(steps) {
        let found = m.memory.read(STEPS + 32 * i + 24)?;
        n.expect(found == *want, || {
            format!("{when}, step {i} {step:x?}: error code {found:#x}, not {want:#x}")
        });
    }
    Ok(())
}

/// Whether KVM offers keys here; notes why the case does not run.
fn offered(n: &mut Notes) -> Result<bool> {
    let kvm = kvm_ioctls::Kvm::new()?;
    let mut cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    if keys_of(&mut cpuid).is_some() {
        return Ok(true);
    }
    let cpu = std::fs::read_to_string("/proc/cpuinfo")?;
    if cpu.split_ascii_whitespace().any(|flag| flag == "pku") {
        n.expect(false, || "KVM does not offer the processor's protection keys".into());
    } else {
        n.skip("the processor has no protection keys");
    }
    Ok(false)
}

fn machine(nested: bool) -> Result<Machine> {
    Machine::new(MachineSpec {
        pages: 1024 + 512 * BIG_PAGES,
        vcpus: 2,
        nested: Some(nested),
        keys: true,
        ..MachineSpec::default()
    })
}

/// Random steps in either mode, with switches between the lists of steps and in their midst.
pub fn keys(n: &mut Notes) -> Result<()> {
    if !offered(n)? {
        return Ok(());
    }
    let mut switches = 0;
    for (seed, nested) in [(1, true), (2, false), (3, false)] {
        let m = machine(nested)?;
        let (mut world, mut random) = (World::new(), Rng(seed));
        prepare(&m, &world)?;
        registers(&m, 0, CR0)?;
        let steps = world.steps(&mut random, MOST);
        play(n, &m, 0, &steps, "in the first mode")?;
        for round in 0..6 {
            m.switch(if (round % 2 == 0) == nested { "shadow" } else { "nested" })?;
            let steps = world.steps(&mut random, MOST / 4);
            play(n, &m, 0, &steps, &m.mode()?)?;
        }
        let end = Arc::new(AtomicBool::new(false));
        let stay = between_switches(Duration::from_micros(500));
        let switcher = std::thread::spawn({
            let (end, path) = (Arc::clone(&end), m.mode_file());
            move || -> Result<u64> {
                let mut switches = 0;
                while !end.load(Ordering::Relaxed) {
                    std::fs::write(&path, if switches % 2 == 0 { "shadow" } else { "nested" })?;
                    switches += 1;
                    std::thread::sleep(stay);
                }
                Ok(switches)
            }
        });
        let played = (0..10).try_for_each(|_| {
            let steps = world.steps(&mut random, MOST);
            play(n, &m, 0, &steps, "while the VM is switched")
        });
        end.store(true, Ordering::Relaxed);
        switches += switcher.join().map_err(|_| anyhow::anyhow!("the switcher died"))?.context("a switch")?;
        played?;
        n.same("switches for the guest", m.stats()?["switches_by_guest"], 0);
    }
    n.number("switches", switches);
    Ok(())
}

/// A vCPU without keys in its CPUID runs first, and one with keys is made then. What the first has mapped has
/// no keys, and is not for the second.
pub fn keys_late(n: &mut Notes) -> Result<()> {
    if !offered(n)? {
        return Ok(());
    }
    for nested in [true, false] {
        let mut m = Machine::new(MachineSpec {
            pages: 1024 + 512 * BIG_PAGES,
            nested: Some(nested),
            ..MachineSpec::default()
        })?;
        let (mut world, mut random) = (World::new(), Rng(11));
        prepare(&m, &world)?;
        registers_with(&m, 0, CR0, CR4)?;
        let small = (0..SMALL_PAGES).map(|i| SMALL + (i << 12));
        let all: Vec<_> =
            small.chain((0..BIG_PAGES).map(|b| BIG + (b << 21))).map(|at| (Step::Load(at), NONE)).collect();
        play(n, &m, 0, &all, "without keys")?;
        m.give_keys();
        let late = m.add_vcpu()?;
        registers(&m, late, CR0)?;
        for round in 0..4 {
            // The first step forbids all that the vCPU without keys has read.
            let mut steps = vec![(Step::Cr4(CR4 | PKE), NONE), (Step::Pkru(0x5555_5555), NONE)];
            (world.pkru, world.keys_on) = (0x5555_5555, true);
            steps.extend(world.steps(&mut random, MOST / 4));
            play(n, &m, late, &steps, "with keys, beside a vCPU without")?;
            let first = (Step::Load(BIG), NONE);
            play(n, &m, 0, &[first], "without keys, beside a vCPU with keys")?;
            m.switch(if (round % 2 == 0) == nested { "shadow" } else { "nested" })?;
        }
    }
    Ok(())
}

/// Keys without CR0.WP need nested paging: a guest's kernel may write where a key forbids it then, and shadow
/// paging cannot tell.
pub fn keys_without_wp(n: &mut Notes) -> Result<()> {
    const EBUSY: i32 = 16;
    if !offered(n)? {
        return Ok(());
    }
    for nested in [true, false] {
        let m = machine(nested)?;
        let (mut world, mut random) = (World::new(), Rng(7));
        prepare(&m, &world)?;
        if nested {
            registers(&m, 0, CR0)?;
            let steps = world.steps(&mut random, MOST / 4);
            play(n, &m, 0, &steps, "with CR0.WP")?;
        }
        registers(&m, 0, CR0 & !WP)?;
        (world.protects, world.keys_on) = (false, true);
        let steps = world.steps(&mut random, MOST / 4);
        play(n, &m, 0, &steps, "without CR0.WP")?;
        n.same("mode without CR0.WP", m.mode()?.as_str(), "nested");
        let expected = u64::from(!nested);
        n.same("switches for the guest", m.switches_by_guest(expected)?, expected);
        registers(&m, 0, CR0 & !WP)?;
        n.same("to shadow paging without CR0.WP", m.try_switch("shadow")?, Err(EBUSY));
        n.same("refused for it", m.counter("refused_keys")?, 1);
        registers(&m, 0, CR0)?;
        n.same("with it", m.try_switch("shadow")?, Ok(()));
    }
    Ok(())
}

/// A vCPU in long mode and one under PAE paging walk one table, in which an entry has a key: for PAE paging
/// the entry has reserved bits, and is the guest's own fault.
pub fn keys_beside_pae(n: &mut Notes) -> Result<()> {
    const PAE_PDPT: u64 = DATA_GPA + 0x4000;
    const PAE_PD: u64 = DATA_GPA + 0x5000;
    /// NXE, as in long mode: else KVM has tables of its own for it anyway.
    const NXE: u64 = 0x800;
    const GB: u64 = 1 << 30;
    if !offered(n)? {
        return Ok(());
    }
    let m = machine(false)?;
    let world = World::new();
    prepare(&m, &world)?;
    registers(&m, 0, CR0)?;
    let set = |at: u64, entry: u64| m.memory.write(at, &entry.to_le_bytes());
    // The code at 0, and from 1 GB the tables of long mode.
    set(PAE_PDPT, PAE_PD | PRESENT)?;
    set(PAE_PDPT + 8, SMALL_PD | PRESENT)?;
    set(PAE_PD, PRESENT | WRITE | ACCESSED | DIRTY | LARGE)?;
    m.with(1, |v| {
        super::machine::pae_mode(v, PAE_PDPT)?;
        let mut s = v.get_sregs()?;
        s.efer = NXE;
        Ok(v.set_sregs(&s)?)
    })?;
    let read = |page: u64| m.run(1, Routine::Read32, Args { rdi: GB + (page << 12), ..Args::default() });
    for round in 0..3 {
        let steps = [0, 1, 2, 16].map(|page| (Step::Load(SMALL + (page << 12)), NONE));
        play(n, &m, 0, &steps, "in long mode")?;
        read(0)?;
        read(16)?;
        play(n, &m, 0, &steps, "in long mode again")?;
        n.expect(m.stats()?["shadow_pages"] > 0, || format!("round {round}: no shadow pages"));
        m.switch("nested")?;
        m.switch("shadow")?;
    }
    let steps = [(Step::Load(SMALL + 0x1000), NONE)];
    play(n, &m, 0, &steps, "in long mode")?;
    read(0)?;
    // Without a handler the guest shuts down. A host that took the entry for its own error would say EINVAL.
    let end = read(1).map_or_else(|e| format!("{e:#}"), |left| format!("it read the page: {left:?}"));
    n.expect(end.contains("Shutdown"), || format!("an entry with a key under PAE paging: {end}"));
    play(n, &m, 0, &steps, "in long mode, beside a vCPU that has shut down")?;
    Ok(())
}
