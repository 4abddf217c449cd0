// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of memory: nested tables that are kept during a stay in shadow paging, memory slots, dirty logs.

use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::{Advice, madvise};

use super::Notes;
use super::machine::{Args, DATA, DATA_GPA, Machine, MachineSpec, SPARSE, STOP};
use super::routines::Routine;
use crate::memory::{HostPages, Memory};

/// KVM_MEM_LOG_DIRTY_PAGES.
const LOG: u32 = 1;

fn kept(n: &mut Notes, backing: HostPages, pages: u64) -> Result<()> {
    let m = Machine::new(MachineSpec { pages, backing, ..MachineSpec::default() })?;
    let first = m.faults()?;
    m.fill(0, DATA, 4096, pages, 1)?;
    let touched = m.faults()? - first;
    n.number("violations_at_first", touched);
    let mapped = if backing.size() == bifold_mmu::PageSize::Size4K { pages } else { pages / 512 };
    n.expect(touched >= mapped, || format!("{touched} violations for {mapped} pages"));
    let tables = m.stats()?["tables_kept"];
    for stay in 0..5 {
        m.switch("shadow")?;
        let before = m.faults()?;
        m.fill(0, DATA, 4096, pages, stay)?;
        n.number("faults_in_shadow", m.faults()? - before);
        n.same("pages wrong in shadow", m.wrong(0, DATA, 4096, pages, stay)?, 0);
        n.same("tables in shadow", m.stats()?["tables_kept"], tables);
        m.switch("nested")?;
        let before = m.faults()?;
        n.same("pages wrong back in nested", m.wrong(0, DATA, 4096, pages, stay)?, 0);
        m.fill(0, DATA, 4096, pages, stay + 1)?;
        n.same("violations back in nested", m.faults()? - before, 0);
        n.same("shadow pages left", m.stats()?["shadow_pages"], 0);
    }
    n.number("tables_kept", tables);
    n.same("table words overwritten", m.overwritten(&[])?, 0);
    Ok(())
}

pub fn kept_small(n: &mut Notes) -> Result<()> {
    kept(n, HostPages::Small, 4096)
}

pub fn kept_large(n: &mut Notes) -> Result<()> {
    kept(n, HostPages::LargeShared, 8192)
}

fn advise(m: &Machine, page: u64, pages: u64, advice: Advice) -> Result<()> {
    let at = m.memory.host_address() + DATA_GPA + (page << 12);
    // SAFETY: a part of the machine's memory, which nothing in this program refers to.
    unsafe { madvise(at as *mut _, (pages as usize) << 12, advice) }.context("madvise")
}

/// The first 8 bytes of a page of data in the host's memory.
fn host_word(m: &Machine, page: u64) -> Result<u64> {
    m.memory.read(DATA_GPA + (page << 12))
}

pub fn notifiers(n: &mut Notes) -> Result<()> {
    let pages = 1024;
    let m = Machine::new(MachineSpec { pages, ..MachineSpec::default() })?;
    for round in 0..4 {
        m.fill(0, DATA, 4096, pages, round)?;
        m.switch("shadow")?;
        n.same("pages wrong in shadow", m.wrong(0, DATA, 4096, pages, round)?, 0);
        // Every other page goes; the host writes something else to a third of them.
        for page in (0..pages).step_by(2) {
            advise(&m, page, 1, Advice::LinuxDontNeed)?;
            if page % 3 == 0 {
                m.memory.write(DATA_GPA + (page << 12), &(page + 1).to_le_bytes())?;
            }
        }
        if round % 2 == 0 {
            n.same("pages wrong in shadow", m.wrong(0, DATA, 4096, pages, round)?, pages / 2);
        }
        m.switch("nested")?;
        n.same("pages wrong back in nested", m.wrong(0, DATA, 4096, pages, round)?, pages / 2);
        // The host must read what the guest writes now.
        m.fill(0, DATA, 4096, pages, round + 100)?;
        for page in 0..pages {
            let (got, want) = (host_word(&m, page)?, DATA + (page << 12) + round + 100);
            ensure!(got == want, "page {page}: the host reads {got:#x}, the guest wrote {want:#x}");
        }
    }
    Ok(())
}

/// Whether each page of data is in the dirty log.
fn logged(m: &Machine) -> Result<Vec<bool>> {
    let log = m.fd.get_dirty_log(0, m.memory.len() as usize).context("KVM_GET_DIRTY_LOG")?;
    let first = DATA_GPA >> 12;
    let pages = (m.memory.len() >> 12) - first;
    Ok((0..pages).map(|p| log[((first + p) / 64) as usize] >> ((first + p) % 64) & 1 == 1).collect())
}

pub fn dirty_log(n: &mut Notes) -> Result<()> {
    for backing in [HostPages::Small, HostPages::LargeShared] {
        let pages = 2048;
        let m = Machine::new(MachineSpec { pages, backing, ..MachineSpec::default() })?;
        m.fill(0, DATA, 4096, pages, 0)?;
        m.switch("shadow")?;
        m.fill(0, DATA, 4096, pages, 0)?;
        m.switch("nested")?;
        // All of it is mapped writable in the kept tables; the log begins in shadow paging, where they rest.
        for begin in ["shadow", "nested"] {
            m.switch(begin)?;
            m.slot(0, 0, m.memory.len(), m.memory.host_address(), LOG)?;
            logged(&m)?;
            let mut mode = begin;
            for round in 0..8u64 {
                // A stretch in one mode, another in the other, then the log: with switches in between and
                // after.
                let (from, len) = (round * 97 % 1500, 60);
                m.fill(0, DATA + (from << 12), 4096, len, round)?;
                mode = if mode == "shadow" { "nested" } else { "shadow" };
                m.switch(mode)?;
                m.fill(0, DATA + ((from + 300) << 12), 4096, len, round)?;
                if round % 2 == 0 {
                    mode = if mode == "shadow" { "nested" } else { "shadow" };
                    m.switch(mode)?;
                }
                let log = logged(&m)?;
                for p in 0..pages {
                    let written =
                        (from..from + len).contains(&p) || (from + 300..from + 300 + len).contains(&p);
                    n.expect(log[p as usize] || !written, || {
                        format!("{backing:?}, begun in {begin}, round {round}: page {p} was written and is not logged")
                    });
                    // The guest's own tables are elsewhere, so nothing else of the data is dirty.
                    n.expect(written || !log[p as usize], || {
                        format!("{backing:?}, begun in {begin}, round {round}: page {p} was not written and is logged")
                    });
                }
            }
            m.slot(0, 0, m.memory.len(), m.memory.host_address(), 0)?;
        }
    }
    Ok(())
}

pub fn slots(n: &mut Notes) -> Result<()> {
    // A second slot right behind the first, at an address that the tables map and no slot has.
    let mut m = Machine::new(MachineSpec { pages: 512, ..MachineSpec::default() })?;
    let other = [Memory::new(2 << 20, HostPages::Small)?, Memory::new(2 << 20, HostPages::Small)?];
    let gpa = m.memory.len();
    let va = DATA + (512 << 12);
    for p in 0..512u64 {
        let table = m.tables.map(m.root >> 12, va + (p << 12), 1, (gpa + (p << 12)) | crate::tables::DATA);
        ensure!(table << 12 < DATA_GPA, "the tables do not fit");
    }
    let tables: Vec<(u64, Vec<u8>)> =
        m.tables.iter().map(|(g, e)| (g << 12, e.iter().flat_map(|e| e.to_le_bytes()).collect())).collect();
    for (at, bytes) in tables {
        m.memory.write(at, &bytes)?;
    }
    let modes = ["nested", "shadow"];
    let size = other[0].len();
    for round in 0..16usize {
        let (first, second, third) = (modes[round & 1], modes[round >> 1 & 1], modes[round >> 2 & 1]);
        let place = format!("added in {first}, used in {second}, removed in {third}");
        m.switch(first)?;
        m.fill(0, DATA, 4096, 512, round as u64)?;
        m.slot(1, gpa, size, other[0].host_address(), 0)?;
        m.switch(second)?;
        m.fill(0, va, 4096, 512, 1000 + round as u64)?;
        n.same(&place, m.wrong(0, va, 4096, 512, 1000 + round as u64)?, 0);
        // What the guest wrote is in this memory.
        n.same(&place, other[0].read(5 << 12)?, va + (5 << 12) + 1000 + round as u64);
        m.switch(third)?;
        m.slot(1, gpa, 0, 0, 0)?;
        // Another behind the same address: nothing of the first may be reached.
        m.slot(1, gpa, size, other[1].host_address(), 0)?;
        other[1].write(7 << 12, &0u64.to_le_bytes())?;
        m.switch(second)?;
        m.fill(0, va, 4096, 512, 2000)?;
        n.same(&place, other[1].read(7 << 12)?, va + (7 << 12) + 2000);
        n.same(&place, other[0].read(7 << 12)?, va + (7 << 12) + 1000 + round as u64);
        m.slot(1, gpa, 0, 0, 0)?;
        // Without a slot it is a device's.
        m.switch(first)?;
        let args = Args { rdi: va, rsi: 1, rdx: 4096, ..Args::default() };
        n.same(&place, m.run(0, Routine::Fill, args)?.mmio, Some(gpa));
        // The access ends in the other mode.
        m.switch(if first == "shadow" { "nested" } else { "shadow" })?;
        m.resume(0)?;
        m.end(0)?;
        n.same(&place, m.wrong(0, DATA, 4096, 512, round as u64)?, 0);
    }
    Ok(())
}

pub fn churn(n: &mut Notes) -> Result<()> {
    let changers = 3;
    let m = Machine::new(MachineSpec { pages: 8192, vcpus: changers, ..MachineSpec::default() })?;
    let mut changing = Vec::new();
    for v in 0..changers as u64 {
        // Two pages in a leaf table that only this vCPU changes, and so its directory entry.
        let page = 4096 + v * 1024 + 17;
        let va = DATA + (page << 12);
        for (i, number) in [(0, 1u64), (1, 2)] {
            m.memory.write(DATA_GPA + ((page + i) << 12), &number.to_le_bytes())?;
        }
        let leaf = m.entry_at(va, 1)?;
        let directory = m.entry_at(va, 2)?;
        changing.extend([leaf, leaf + 8, directory]);
        let pte = |i: u64| (DATA_GPA + ((page + i) << 12)) | 3;
        let args = Args {
            rdi: STOP + 8 * v,
            rsi: va,
            r8: leaf,
            r9: directory,
            r10: pte(0),
            r11: pte(1),
            r12: m.memory.read(directory)? & !0x60,
            ..Args::default()
        };
        m.memory.write(STOP + 8 * v, &[0; 8])?;
        m.go(v as usize, Routine::Churn, args)?;
    }
    let until = Instant::now() + Duration::from_millis(1500);
    let mut trips = 0;
    while Instant::now() < until {
        m.switch("shadow")?;
        std::thread::sleep(Duration::from_micros(500 + trips * 131 % 4000));
        m.switch("nested")?;
        trips += 1;
        std::thread::sleep(Duration::from_micros(500 + trips * 1310 % 4000));
    }
    let mut rounds = u64::MAX;
    for v in 0..changers {
        let left = m.stop(v)?;
        n.same("reads of a wrong page", left.rbx, 0);
        rounds = rounds.min(left.rbp);
    }
    n.expect(rounds > trips, || format!("{rounds} rounds at {trips} round trips"));
    n.same("words of tables overwritten", m.overwritten(&changing)?, 0);
    n.number("round_trips", trips);
    n.number("rounds", rounds);
    Ok(())
}

/// The cause of failure in the published work on KVM of 2020, where vCPUs ran in nested mode while shadow
/// pages still write-protected guest tables. The hardware's first walk of a table that was made, or first
/// used, in shadow paging faults on a write to a protected frame. KVM then emulates the current instruction
/// with that address, and the guest's store goes into its page table. `kernel/tests/mutant` builds that
/// kernel, on which this case fails.
pub fn first_walk(n: &mut Notes) -> Result<()> {
    let (sweepers, sparse, tables) = (2, 3000, 300);
    let m = Machine::new(MachineSpec { pages: 8192, vcpus: sweepers + 1, sparse, ..MachineSpec::default() })?;
    for trip in 0..sparse / tables {
        m.switch("shadow")?;
        let at = SPARSE + ((trip * tables) << 21);
        for v in 0..sweepers {
            let stop = STOP + 8 * v as u64;
            m.memory.write(stop, &[0; 8])?;
            let args = Args { rax: trip, rdi: at, rsi: tables, rdx: 2 << 20, r8: stop, ..Args::default() };
            m.go(v, Routine::Sweep, args)?;
        }
        // Shadow pages for all of them, then both sweep on in the other mode.
        m.fill(sweepers, at, 2 << 20, tables, trip)?;
        m.switch("nested")?;
        std::thread::sleep(Duration::from_millis(2));
        for v in 0..sweepers {
            m.stop(v)?;
        }
        n.same("pages wrong", m.wrong(sweepers, at, 2 << 20, tables, trip)?, 0);
    }
    n.same("words of tables overwritten", m.overwritten(&[])?, 0);
    Ok(())
}
