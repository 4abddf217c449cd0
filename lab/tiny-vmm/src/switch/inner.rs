// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest that is a hypervisor and has a guest of its own, under nested paging (AMD APM vol. 2, 15.25): KVM
//! shadows the guest's nested tables. The first such table is made right after a stay in shadow paging, when
//! KVM is about to give back what that stay needed.

use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::mm::{Advice, madvise};

use super::Notes;
use super::machine::{Args, CODE_GPA, DATA_GPA, Machine, MachineSpec};
use super::routines::Routine;
use crate::guest::CR4;
use crate::tables::{ACCESSED, DIRTY, LARGE, PRESENT, WRITE};
use crate::vendor::Begins;
use crate::vm::{CR0, EFER};

/// The guest's VMCB, the page for its own state, and the nested tables that it makes: below the data.
const VMCB: u64 = 24 << 20;
const HOST_STATE: u64 = VMCB + 0x1000;
const PML4: u64 = VMCB + 0x2000;
const PDPT: u64 = VMCB + 0x3000;
const PD: u64 = VMCB + 0x4000;
/// Pages in which the inner guest counts.
const PAGES: u64 = 64;
const SVME: u64 = 1 << 12;

/// A VMCB for the inner guest (AMD APM vol. 2, appendix B): 64-bit mode with its hypervisor's own tables.
fn vmcb(root: u64) -> Vec<u8> {
    let mut b = vec![0u8; 4096];
    let mut put = |at: usize, bytes: &[u8]| b[at..at + bytes.len()].copy_from_slice(bytes);
    // VMRUN, which must be intercepted, and VMMCALL.
    put(0x10, &0b11u32.to_le_bytes());
    put(0x58, &1u32.to_le_bytes());
    put(0x90, &1u64.to_le_bytes());
    put(0xb0, &PML4.to_le_bytes());
    for (segment, attributes) in [(0, 0xc93u16), (1, 0xa9b), (2, 0xc93), (3, 0xc93), (4, 0xc93), (5, 0xc93)] {
        put(0x400 + 16 * segment, &(if segment == 1 { 8u16 } else { 16 }).to_le_bytes());
        put(0x402 + 16 * segment, &attributes.to_le_bytes());
        put(0x404 + 16 * segment, &u32::MAX.to_le_bytes());
    }
    // TR: a busy 64-bit TSS.
    put(0x492, &0x8bu16.to_le_bytes());
    put(0x494, &0x67u32.to_le_bytes());
    let words = [
        (0x4d0, EFER | SVME),
        (0x548, CR4),
        (0x550, root),
        (0x558, CR0),
        (0x560, 0x400),
        (0x568, 0xffff_0ff0),
        (0x570, 2),
        (0x668, 0x0007_0406_0007_0406),
    ];
    for (at, word) in words {
        put(at, &u64::to_le_bytes(word));
    }
    b
}

/// Nested tables that map the machine's memory to itself, in pages of 2 MB.
fn nested_tables(m: &Machine) -> Result<()> {
    const TABLE: u64 = PRESENT | WRITE | 4 | ACCESSED;
    m.memory.write(PML4, &(PDPT | TABLE).to_le_bytes())?;
    m.memory.write(PDPT, &(PD | TABLE).to_le_bytes())?;
    for i in 0..m.memory.len().div_ceil(2 << 20) {
        m.memory.write(PD + 8 * i, &((i << 21) | TABLE | LARGE | DIRTY).to_le_bytes())?;
    }
    Ok(())
}

pub fn roots(n: &mut Notes) -> Result<()> {
    if crate::vm::vendor()?.hypervisor.begins == Begins::Vmxon {
        n.skip("the inner guest is written for SVM");
        return Ok(());
    }
    let m = Machine::new(MachineSpec { vcpus: 2, ..MachineSpec::default() })?;
    m.memory.write(VMCB, &vmcb(m.root))?;
    nested_tables(&m)?;
    m.spin(1)?;
    let rounds = if super::windows::widened() { 3 } else { 10 };
    for round in 0..rounds {
        for page in 0..PAGES {
            m.memory.write(DATA_GPA + (page << 12), &[0; 8])?;
        }
        m.switch("shadow")?;
        // The inner guest's addresses are its own: the hypervisor's tables map the data at this address, too.
        let times = 20 * PAGES;
        m.go(
            0,
            Routine::Vmrun,
            Args {
                rax: VMCB,
                r9: HOST_STATE,
                r10: CODE_GPA + Routine::Inner.offset(),
                r11: super::machine::DATA,
                rsi: times,
                ..Args::default()
            },
        )?;
        // A page that the host takes away meanwhile is gone from the inner guest's tables as well: it is
        // filled again.
        let taken = take_pages(&m)?;
        let left = m.end(0)?;
        n.same(&format!("round {round}: exit of the inner guest"), left.rbx, 0x81);
        n.same("times it ran", left.rbp, times);
        n.same("mode", m.mode()?.as_str(), "nested");
        let words: Vec<u64> =
            (0..PAGES).map(|p| m.memory.read(DATA_GPA + (p << 12))).collect::<Result<_>>()?;
        for (page, word) in (0..).zip(words) {
            // A page that was taken away in the last round stays empty, so this does not tell a stale entry
            // there.
            let lost = taken && page % 8 == 0;
            n.expect(word == 20 || (lost && word <= 20), || {
                format!("round {round}: the inner guest counted {word} in page {page}")
            });
        }
    }
    n.same("switches for the guest", m.switches_by_guest(rounds)?, rounds);
    m.stop(1)?;
    Ok(())
}

/// Takes every eighth page away when the inner guest has counted in it; whether that was in time for each.
fn take_pages(m: &Machine) -> Result<bool> {
    let until = Instant::now() + Duration::from_secs(30);
    let mut taken = false;
    for page in (0..PAGES).step_by(8) {
        let at = DATA_GPA + (page << 12);
        while m.memory.read(at)? == 0 {
            ensure!(Instant::now() < until, "the inner guest does not run: page {page} is empty");
            std::thread::sleep(Duration::from_micros(200));
        }
        // SAFETY: a page of the machine's memory, to which this program holds no reference.
        unsafe { madvise((m.memory.host_address() + at) as *mut _, 4096, Advice::LinuxDontNeed) }?;
        taken = true;
    }
    Ok(taken)
}

/// A guest in shadow paging makes RSM believe that the SMI came while the vCPU ran a guest of its own. RSM
/// would enter that guest (AMD APM vol. 2, 15.21.4 and table 10-1), which shadow paging cannot have: it
/// fails, as one of a bad state.
pub fn forged(n: &mut Notes) -> Result<()> {
    const SAVED: u64 = 0x3_8000;
    if crate::vm::vendor()?.hypervisor.begins == Begins::Vmxon {
        n.skip("on Intel, that state is not in the guest's memory");
        return Ok(());
    }
    let m = Machine::new(MachineSpec { nested: Some(false), ..MachineSpec::default() })?;
    m.memory.write(VMCB, &vmcb(m.root))?;
    nested_tables(&m)?;
    let handler = super::modes::smm_handler(&m)?;
    handler.enter(&m, 1)?;
    // EFER, whether a guest of the guest ran, and its VMCB.
    for (at, word) in [(0x7ed0, EFER | SVME), (0x7ed8, 1), (0x7ee0, VMCB)] {
        m.memory.write(SAVED + at, &u64::to_le_bytes(word))?;
    }
    handler.leave(&m)?;
    m.memory.write(super::machine::STOP, &1u64.to_le_bytes())?;
    let end = m.end(0).map_or_else(|e| format!("{e:#}"), |left| format!("it ran on: {left:?}"));
    n.expect(end.contains("Shutdown"), || format!("RSM was to fail: {end}"));
    n.same("mode", m.mode()?.as_str(), "shadow");
    n.same("a switch", m.try_switch("nested")?, Ok(()));
    Ok(())
}
