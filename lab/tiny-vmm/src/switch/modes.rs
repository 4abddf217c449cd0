// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of vCPUs in other modes: without paging, with PAE, in system management mode.

use super::Notes;
use super::control::EBUSY;
use super::machine::{Args, COUNT, DATA, DATA_GPA, Machine, MachineSpec, STOP, pae_mode, real_mode as real};
use super::routines::{Routine, code};
use anyhow::{Context, Result, bail, ensure};
use std::time::{Duration, Instant};

pub fn real_mode(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { vcpus: 2, ..MachineSpec::default() })?;
    m.with(0, |v| real(v))?;
    m.memory.write(STOP, &[0; 8])?;
    m.memory.write(COUNT, &[0; 16])?;
    m.go(0, Routine::Real, Args::default())?;
    if !crate::vm::vendor()?.switches_without_paging {
        return real_mode_refused(n, &m);
    }
    let mut counts = Vec::new();
    for round in 0..20 {
        m.switch(if round % 2 == 0 { "shadow" } else { "nested" })?;
        m.fill(1, DATA, 4096, 30, round)?;
        n.same("pages wrong", m.wrong(1, DATA, 4096, 30, round)?, 0);
        std::thread::sleep(Duration::from_millis(5));
        counts.push(m.memory.read(COUNT)? & 0xffff);
    }
    m.memory.write(STOP, &1u64.to_le_bytes())?;
    m.end(0)?;
    let (one, three) = (m.memory.read(COUNT)? & 0xffff, m.memory.read(COUNT + 8)? & 0xffff);
    n.same("three times the count", three, (one * 3) & 0xffff);
    counts.dedup();
    n.expect(counts.len() > 10, || format!("it stood still: {counts:?}"));
    // It went through the modes as one does: with a root that is direct in both.
    n.same("mode", m.mode()?.as_str(), "nested");
    Ok(())
}

/// The VM is as before after each refusal, and can be switched when the vCPU has paging again.
fn real_mode_refused(n: &mut Notes, m: &Machine) -> Result<()> {
    let until = Instant::now() + Duration::from_secs(20);
    while m.memory.read(COUNT)? == 0 {
        ensure!(Instant::now() < until, "the vCPU in real mode does not run");
        std::thread::sleep(Duration::from_millis(1));
    }
    let mut counts = Vec::new();
    for round in 0..20 {
        n.same("in real mode", m.try_switch("shadow")?, Err(EBUSY));
        n.same("mode", m.mode()?.as_str(), "nested");
        m.fill(1, DATA, 4096, 30, round)?;
        n.same("pages wrong", m.wrong(1, DATA, 4096, 30, round)?, 0);
        std::thread::sleep(Duration::from_millis(5));
        counts.push(m.memory.read(COUNT)? & 0xffff);
    }
    m.memory.write(STOP, &1u64.to_le_bytes())?;
    m.end(0)?;
    counts.dedup();
    n.expect(counts.len() > 10, || format!("it stood still: {counts:?}"));
    Ok(())
}

/// A page-directory-pointer table that changes without a load of CR3. The processor, and KVM under shadow
/// paging, keeps the entries that it read at the last load. If KVM read the table again during a fault and
/// freed the root, the host would crash.
pub fn pae(n: &mut Notes) -> Result<()> {
    const PDPT: u64 = 24 << 20;
    const P: u64 = 1;
    const TABLE: u64 = 0x23;
    const PAGE: u64 = 0x63;
    const LARGE: u64 = 0xe3;
    let m = Machine::new(MachineSpec { nested: Some(false), ..MachineSpec::default() })?;
    let table = |n: u64| PDPT + n * 4096;
    let set = |at: u64, i: u64, entry: u64| m.memory.write(at + 8 * i, &entry.to_le_bytes());
    set(PDPT, 0, table(1) | P)?;
    set(PDPT, 1, table(2) | P)?;
    set(table(1), 0, LARGE)?;
    set(table(1), PDPT >> 21, PDPT | LARGE)?;
    for (directory, leaf, page) in [(2, 4, 0u64), (3, 5, 1)] {
        set(table(directory), 0, table(leaf) | TABLE)?;
        set(table(leaf), 0, (DATA_GPA + (page << 12)) | PAGE)?;
        m.memory.write(DATA_GPA + (page << 12), &(page + 1).to_le_bytes())?;
        for i in 2..258 {
            let gpa = DATA_GPA + (i << 12);
            set(table(leaf), i, gpa | PAGE)?;
            m.memory.write(gpa, &3u64.to_le_bytes())?;
        }
    }
    m.with(0, |v| pae_mode(v, PDPT))?;
    m.memory.write(STOP, &[0; 8])?;
    let (rax, rdx) = (table(2) | P, table(3) | P);
    m.go(0, Routine::Pae, Args { rax, rdx, rsi: PDPT + 8, rdi: STOP, ..Args::default() })?;
    // Only one direction: TCG's own walks set an A bit in entries of the PDPT, where processors have none,
    // and KVM then refuses the next load of CR3, as a processor would.
    std::thread::sleep(Duration::from_millis(if crate::vm::has_checks()? { 1000 } else { 100 }));
    m.switch("nested")?;
    std::thread::sleep(Duration::from_millis(20));
    let left = m.stop(0)?;
    n.same("reads of a wrong page", left.rbx, 0);
    n.expect(left.rbp > 256, || format!("only {} rounds", left.rbp));
    n.number("rounds", left.rbp);
    Ok(())
}

/// A handler of system management interrupts, which has an address space and roots of its own.
pub(super) struct SmmHandler;

const ENTRIES: u64 = 0x3200;
const INSIDE: u64 = 0x3208;
const HOLD: u64 = 0x3210;

pub(super) fn smm_handler(m: &Machine) -> Result<SmmHandler> {
    const SPACE: u32 = 1 << 16;
    const HANDLER: u64 = 0x38000;
    m.slot(SPACE, 0, m.memory.len(), m.memory.host_address(), 0)?;
    m.memory.write(HANDLER, &code()[Routine::Smi.offset() as usize..])?;
    Ok(SmmHandler)
}

impl SmmHandler {
    fn comes(m: &Machine, at: u64, value: u64) -> Result<bool> {
        let until = Instant::now() + Duration::from_secs(20);
        while m.memory.read(at)? & 0xffff_ffff != value {
            if Instant::now() > until {
                return Ok(false);
            }
            std::thread::sleep(Duration::from_millis(1));
        }
        Ok(true)
    }

    /// Starts vCPU 0, which writes `round` to 64 pages of data when it is out of the handler; now it is
    /// within.
    pub(super) fn enter(&self, m: &Machine, round: u64) -> Result<()> {
        m.memory.write(HOLD, &1u64.to_le_bytes())?;
        m.memory.write(STOP, &0u64.to_le_bytes())?;
        m.with(0, |v| v.smi().context("KVM_SMI"))?;
        let data = Args { rax: round, rdi: DATA, rsi: 64, rdx: 4096, r8: STOP, ..Args::default() };
        m.go(0, Routine::Sweep, data)?;
        if !SmmHandler::comes(m, INSIDE, 1)? {
            bail!("round {round}: the handler was not entered, and the vCPU: {:?}", m.stop(0));
        }
        Ok(())
    }

    /// Lets the handler end.
    pub(super) fn leave(&self, m: &Machine) -> Result<()> {
        m.memory.write(HOLD, &0u64.to_le_bytes())?;
        ensure!(SmmHandler::comes(m, INSIDE, 0)?, "the handler did not end");
        Ok(())
    }
}

/// Each round enters the handler in one mode, switches within, and leaves it in the other mode.
pub fn smm(n: &mut Notes) -> Result<()> {
    let inside = crate::vm::vendor()?.switches_without_paging;
    let m = Machine::new(MachineSpec { keys: true, ..MachineSpec::default() })?;
    let handler = smm_handler(&m)?;
    let rounds = 20;
    for round in 1..=rounds {
        handler.enter(&m, round)?;
        let mode = if round % 2 == 1 { "shadow" } else { "nested" };
        if inside {
            m.switch(mode)?;
        } else {
            // In shadow paging every other time.
            let other = if m.mode()? == "nested" { "shadow" } else { "nested" };
            n.same("in SMM", m.try_switch(other)?, Err(EBUSY));
        }
        n.same("inside after the switch", m.memory.read(INSIDE)? & 0xffff_ffff, 1);
        handler.leave(&m)?;
        n.same("entries", m.memory.read(ENTRIES)? & 0xffff_ffff, round);
        m.stop(0)?;
        if !inside {
            m.switch(mode)?;
        }
        n.same("pages wrong", m.wrong(0, DATA, 4096, 64, round)?, 0);
    }
    n.number("switches_inside", if inside { rounds } else { 0 });
    Ok(())
}
