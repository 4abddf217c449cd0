// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of public holes of KVM's shadow MMU, which every guest in shadow paging reaches. `kernel/holes` has
//! the fixes. `kernel/tests/holes` builds modules without one of them, on which the case must fail.
//!
//! In most cases the guest's tables change behind KVM's back. The VMM writes an entry, as a device with DMA
//! would, because KVM notices the guest's own writes. KVM learns of the new entry at the next fault below it.
//! From then on the guest must not reach what the entry led to before.

use std::os::fd::AsRawFd;

use anyhow::{Result, ensure};

use super::Notes;
use super::machine::{Args, DATA_GPA, Machine, MachineSpec, SPARSE, STOP};
use super::routines::Routine;
use crate::tables::{ACCESSED, DATA as PAGE, LARGE, PRESENT, TABLE, WRITE, index};

/// The address that the changed tables translate: the first entry of each.
const AT: u64 = 0x100_0000_0000;
/// Pages of data: tables from 0, and the two sets of frames that the guest sees one after the other.
const PDPT: u64 = DATA_GPA;
const DIRECTORIES: [u64; 2] = [DATA_GPA + 0x1000, DATA_GPA + 0x2000];
const LEAVES: [u64; 2] = [DATA_GPA + 0x3000, DATA_GPA + 0x4000];
const FRAMES: [u64; 2] = [DATA_GPA + (512 << 12), DATA_GPA + (1024 << 12)];
/// The pages that the guest reads before and after the change.
const READ: u64 = 256;
/// A page that it reads for the first time after the change. KVM maps no more than 8 pages at a fault.
const FRESH: u64 = 300;

/// A machine in shadow paging whose frames hold what [`Machine::wrong`] looks for: tag 1 in the first set, 2
/// in the second. Its tables do not lead to them yet.
fn machine() -> Result<Machine> {
    let m = Machine::new(MachineSpec { pages: 1024 + 512, ..MachineSpec::default() })?;
    for (tag, frames) in (1..).zip(FRAMES) {
        for page in 0..512 {
            set(&m, frames + (page << 12), AT + (page << 12) + tag)?;
        }
    }
    set(&m, m.root + 8 * index(AT, 4) as u64, PDPT | TABLE)?;
    set(&m, PDPT, DIRECTORIES[0] | TABLE)?;
    m.switch("shadow")?;
    Ok(m)
}

fn set(m: &Machine, gpa: u64, word: u64) -> Result<()> {
    m.memory.write(gpa, &word.to_le_bytes())
}

/// Pages that do not hold the tag, of `count` from `first` on.
fn wrong(m: &Machine, first: u64, count: u64, tag: u64) -> Result<u64> {
    m.wrong(0, AT + (first << 12), 4096, count, tag)
}

/// An entry for 2 MB, which the host maps in 4 KB pages, becomes a table that lies in the first of them. The
/// shadow pages of the large entry and of the table have the same frame, and are of two kinds
/// (CVE-2026-53359).
pub fn large_to_table(n: &mut Notes) -> Result<()> {
    let m = machine()?;
    let [large, other] = FRAMES;
    set(&m, DIRECTORIES[0], large | PAGE | LARGE)?;
    n.same("pages wrong in the large page", wrong(&m, 0, READ, 1)?, 0);
    // Pages that the guest has not read keep their frames. KVM without the fix removes reverse maps by the
    // large page's frames: an entry for another frame would stop the host's kernel before this case has its
    // result.
    for page in 0..512 {
        let frames = if page < READ { other } else { large };
        set(&m, large + 8 * page, (frames + (page << 12)) | PAGE)?;
    }
    set(&m, DIRECTORIES[0], large | TABLE)?;
    n.same("a fresh page of the table wrong", wrong(&m, FRESH, 1, 1)?, 0);
    n.same("pages wrong in the table", wrong(&m, 0, READ, 2)?, 0);
    Ok(())
}

/// An entry leads to another table of the same kind (CVE-2026-46113).
pub fn other_table(n: &mut Notes) -> Result<()> {
    for level in [2, 3] {
        let m = machine()?;
        for ((directory, leaf), frames) in DIRECTORIES.into_iter().zip(LEAVES).zip(FRAMES) {
            set(&m, directory, leaf | TABLE)?;
            for page in 0..512 {
                set(&m, leaf + 8 * page, (frames + (page << 12)) | PAGE)?;
            }
        }
        let what = |when: &str| format!("level {level}: pages wrong {when}");
        n.same(&what("at first"), wrong(&m, 0, READ, 1)?, 0);
        if level == 2 {
            set(&m, DIRECTORIES[0], LEAVES[1] | TABLE)?;
        } else {
            set(&m, PDPT, DIRECTORIES[1] | TABLE)?;
        }
        n.same(&what("that are fresh"), wrong(&m, FRESH, 1, 2)?, 0);
        n.same(&what("in the other table"), wrong(&m, 0, READ, 2)?, 0);
    }
    Ok(())
}

/// An entry that led to memory leads where no slot is, as to a device's window. The memory's page is mapped
/// no more then, by KVM's own count: without the fix its reverse map stays, for an entry that is something
/// else (CVE-2026-23401).
pub fn window_over_page(n: &mut Notes) -> Result<()> {
    const PAGE_NUMBER: u64 = 5;
    let m = machine()?;
    let window = m.memory.len() + (1 << 20);
    let (leaf, at) = (LEAVES[0] + 8 * PAGE_NUMBER, AT + (PAGE_NUMBER << 12));
    set(&m, DIRECTORIES[0], LEAVES[0] | TABLE)?;
    // Not dirty: KVM maps the page read-only, so that a write faults on an entry that is there.
    set(&m, leaf, (FRAMES[0] + (PAGE_NUMBER << 12)) | PRESENT | WRITE | ACCESSED)?;
    let before = m.kvm_stat("pages_4k")?;
    n.same("the page wrong", wrong(&m, PAGE_NUMBER, 1, 1)?, 0);
    let (mapped, windows) = (m.kvm_stat("pages_4k")?, m.kvm_stat("pf_mmio_spte_created")?);
    n.expect(mapped > before, || format!("{mapped} pages mapped after {before}"));
    set(&m, leaf, window | PAGE)?;
    let left = m.run(0, Routine::Fill, Args { rdi: at, rsi: 1, rdx: 4096, ..Args::default() })?;
    n.same("the write went to", left.mmio, Some(window));
    n.same("entries for windows", m.kvm_stat("pf_mmio_spte_created")? - windows, 1);
    n.same("pages mapped", m.kvm_stat("pages_4k")?, mapped - 1);
    m.resume(0)?;
    m.end(0)?;
    n.same("the memory written", m.memory.read(FRAMES[0] + (PAGE_NUMBER << 12))?, at + 1);
    Ok(())
}

/// KVM has room for few shadow pages, and takes some of the guest's at every fault. CVE-2026-64561 is about
/// the root that the fault needs. No way was found by which KVM takes the root of an ordinary guest, so this
/// case also passes without that fix.
pub fn little_room(n: &mut Notes) -> Result<()> {
    /// The least that KVM takes: KVM_MIN_ALLOC_MMU_PAGES.
    const ROOM: u64 = 64;
    const TABLES: u64 = 1000;
    /// Tables of a third vCPU, which has a root of its own and faults all the time.
    const ITS_TABLES: u64 = 100;
    const SWEEPER: usize = 2;
    const ITS_ROOT: u64 = DATA_GPA + (2000 << 12);
    let sparse = TABLES + ITS_TABLES;
    let m = Machine::new(MachineSpec { pages: 2048, sparse, vcpus: 3, ..MachineSpec::default() })?;
    for entry in (0..4096).step_by(8) {
        set(&m, ITS_ROOT + entry, m.memory.read(m.root + entry)?)?;
    }
    m.with(SWEEPER, |v| {
        let mut s = v.get_sregs()?;
        s.cr3 = ITS_ROOT;
        Ok(v.set_sregs(&s)?)
    })?;
    m.switch("shadow")?;
    // SAFETY: no memory is passed. _IO(KVMIO, 0x44)
    let end = unsafe { libc::ioctl(m.fd.as_raw_fd(), 0xae44, ROOM) };
    ensure!(end == 0, "KVM_SET_NR_MMU_PAGES: {}", std::io::Error::last_os_error());
    let stop = STOP + 8 * SWEEPER as u64;
    let its = SPARSE + (TABLES << 21);
    m.memory.write(stop, &[0; 8])?;
    let args = Args { rax: 7, rdi: its, rsi: ITS_TABLES, rdx: 2 << 20, r8: stop, ..Args::default() };
    m.go(SWEEPER, Routine::Sweep, args)?;
    for round in 0..3 {
        m.fill(round % 2, SPARSE, 2 << 20, TABLES, round as u64)?;
        let left = m.wrong(1 - round % 2, SPARSE, 2 << 20, TABLES, round as u64)?;
        n.same("pages wrong", left, 0);
    }
    m.stop(SWEEPER)?;
    n.same("pages of the third vCPU wrong", m.wrong(0, its, 2 << 20, ITS_TABLES, 7)?, 0);
    let pages = m.stats()?["shadow_pages"];
    n.number("shadow_pages", pages);
    n.expect(pages <= ROOM, || format!("{pages} shadow pages"));
    let taken = m.kvm_stat("mmu_recycled")?;
    n.number("taken", taken);
    n.expect(taken > TABLES, || format!("KVM took {taken} shadow pages"));
    n.same("words of tables overwritten", m.overwritten(&[])?, 0);
    Ok(())
}
