// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A guest whose vCPUs go from mode to mode, each in its own way, while the VM is switched.

use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use kvm_bindings::{KVM_MAX_CPUID_ENTRIES, kvm_segment};

use super::Notes;
use super::control::{EBUSY, ETIMEDOUT, with_limit};
use super::machine::{Args, DATA, DATA_GPA, Machine, MachineSpec};
use super::routines::Routine;
use crate::guest::CR4;
use crate::tables::{ACCESSED, DIRTY, LARGE, PRESENT, WRITE};
use crate::vendor::Begins;

const LA57: u64 = 1 << 12;
const VMXE: u64 = 1 << 13;
const PKE: u64 = 1 << 22;
/// Lets 32-bit paging have pages of 4 MB.
const PSE: u64 = 1 << 4;
const EFER_SVME: u64 = 1 << 12;

/// Tables of PAE and 32-bit paging, of five levels, the GDT, and the vCPUs' blocks, in the first MB.
const PDPT: u64 = 0x2_0000;
const PD: u64 = 0x2_1000;
const PT: u64 = 0x2_2000;
const PD32: u64 = 0x2_3000;
const PT32: u64 = 0x2_4000;
const PML5: u64 = 0x2_5000;
const GDT: u64 = 0x2_6000;
const BLOCK: u64 = 0x2_7000;
const BLOCK_SIZE: u64 = 0x100;
/// Where 32-bit modes have the data.
const DATA32: u64 = 1 << 30;

const VCPUS: usize = 4;

/// Bits that a vCPU changes in each round.
#[derive(Debug, Clone, Copy, Default)]
struct Bits {
    cr4: u64,
    efer: u64,
    /// Of CR4, without paging.
    unpaged: u64,
}

/// What the vCPUs may change here.
struct Offered {
    hypervisor: Bits,
    keys: bool,
    five_levels: bool,
}

fn offered() -> Result<Offered> {
    let kvm = kvm_ioctls::Kvm::new()?;
    let cpuid = kvm.get_supported_cpuid(KVM_MAX_CPUID_ENTRIES)?;
    let features = cpuid.as_slice().iter().find(|e| e.function == 7 && e.index == 0).map_or(0, |e| e.ecx);
    let hypervisor = match crate::vm::vendor()?.hypervisor.begins {
        Begins::Vmxon => Bits { cr4: VMXE, ..Bits::default() },
        Begins::Msr(..) => Bits { efer: EFER_SVME, ..Bits::default() },
    };
    Ok(Offered { hypervisor, keys: features & 1 << 3 != 0, five_levels: features & 1 << 16 != 0 })
}

fn tables(m: &Machine) -> Result<()> {
    const TABLE: u64 = PRESENT | WRITE | ACCESSED;
    const PAGE: u64 = TABLE | DIRTY;
    let set = |at: u64, entry: u64| m.memory.write(at, &entry.to_le_bytes());
    let set32 = |at: u64, entry: u64| m.memory.write(at, &entry.to_le_bytes()[..4]);
    // The first and the second GB under PAE paging are the same.
    set(PDPT, PD | PRESENT)?;
    set(PDPT + 8, PD | PRESENT)?;
    set(PD, PAGE | LARGE)?;
    set(PD + 8, PT | TABLE)?;
    set32(PD32, PAGE | LARGE)?;
    set32(PD32 + 4 * (DATA32 >> 22), PT32 | TABLE)?;
    for i in 0..VCPUS as u64 {
        let page = DATA_GPA + (i << 12);
        set(PT + 8 * i, page | PAGE)?;
        set32(PT32 + 4 * (512 + i), page | PAGE)?;
    }
    set(PML5, m.root | TABLE)?;
    for (i, segment) in [(1, 0x00af_9b00_0000_ffff), (2, 0x00cf_9b00_0000_ffff), (3, 0x00cf_9300_0000_ffff)] {
        set(GDT + 8 * i, segment)?;
    }
    Ok(())
}

fn start(m: &Machine, vcpu: usize, bits: Bits) -> Result<()> {
    let (i, block) = (vcpu as u64, BLOCK + BLOCK_SIZE * vcpu as u64);
    let words = [
        0,
        0,
        bits.cr4,
        bits.efer,
        DATA + (i << 12),
        bits.unpaged,
        DATA32 + (2 << 20) + (i << 12),
        0,
        PDPT | PD32 << 32,
        m.root | PML5 << 32,
        0x10 << 32,
        0x08 << 32,
    ];
    for (n, word) in (0..).zip(words) {
        m.memory.write(block + 8 * n, &word.to_le_bytes())?;
    }
    m.memory.write(DATA_GPA + (i << 12), &[0; 8])?;
    m.with(vcpu, move |v| {
        let mut s = v.get_sregs()?;
        (s.gdt.base, s.gdt.limit) = (GDT, 31);
        s.cs = kvm_segment { selector: 8, ..s.cs };
        let data = kvm_segment { selector: 24, ..s.ds };
        (s.ds, s.es, s.ss) = (data, data, data);
        s.cr4 = CR4 | PSE;
        Ok(v.set_sregs(&s)?)
    })?;
    m.go(vcpu, Routine::Toggle, Args { rdi: block, ..Args::default() })
}

fn rounds(m: &Machine, vcpu: usize) -> Result<u64> {
    m.memory.read(BLOCK + BLOCK_SIZE * vcpu as u64 + 8)
}

/// Lets vCPUs change these bits while two writers switch. Returns the rounds and the switches. A switch that
/// meets a vCPU with the hypervisor's bit is refused, on Intel also one that meets a vCPU without paging.
fn phase(n: &mut Notes, bits: [Bits; VCPUS]) -> Result<(u64, u64)> {
    let m = Machine::new(MachineSpec { vcpus: VCPUS, keys: true, ..MachineSpec::default() })?;
    tables(&m)?;
    for (vcpu, bits) in bits.into_iter().enumerate() {
        start(&m, vcpu, bits)?;
    }
    let end = Arc::new(AtomicBool::new(false));
    let writers = [1, 2].map(|seed| {
        let (end, path) = (Arc::clone(&end), m.mode_file());
        std::thread::spawn(move || -> (u64, Option<i32>) {
            let (mut rng, mut done) = (crate::guests::Rng(seed), 0);
            while !end.load(Ordering::Relaxed) {
                let word = if rng.below(2) == 0 { "shadow" } else { "nested" };
                match std::fs::write(&path, word).map_err(|e| e.raw_os_error().unwrap_or(0)) {
                    Ok(()) => done += 1,
                    Err(EBUSY | ETIMEDOUT) => {}
                    Err(e) => return (done, Some(e)),
                }
                std::thread::sleep(Duration::from_micros(rng.below(2000)));
            }
            (done, None)
        })
    });
    // Each vCPU makes at least this many rounds: emulated machines differ in speed.
    const ENOUGH: u64 = 300;
    let until = Instant::now() + Duration::from_secs(60);
    let mut behind = (0..VCPUS).collect::<Vec<_>>();
    while !behind.is_empty() && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(20));
        for vcpu in std::mem::take(&mut behind) {
            if rounds(&m, vcpu)? < ENOUGH {
                behind.push(vcpu);
            }
        }
    }
    end.store(true, Ordering::Relaxed);
    let mut switches = 0;
    for writer in writers {
        let (done, error) = writer.join().map_err(|_| anyhow::anyhow!("a writer died"))?;
        n.expect(error.is_none(), || format!("a switch ended with error {error:?}"));
        switches += done;
    }
    if let Some(&vcpu) = behind.first() {
        let made = rounds(&m, vcpu)?;
        m.interrupt(vcpu).with_context(|| format!("after {made} rounds"))?;
        bail!("vCPU {vcpu} made {made} rounds in 60 s, not {ENOUGH}");
    }
    let mut all = 0;
    for vcpu in 0..VCPUS {
        m.memory.write(BLOCK + BLOCK_SIZE * vcpu as u64, &1u64.to_le_bytes())?;
        let left = m.end(vcpu).context("after the writers ended")?;
        n.same(&format!("wrong sums of vCPU {vcpu}"), left.rbx, 0);
        all += left.rbp;
    }
    Ok((all, switches))
}

/// vCPUs that change the number of levels, PAE, long mode and paging in loops, with keys, and with the bit
/// that begins a hypervisor, while two writers switch their VM.
pub fn toggles(n: &mut Notes) -> Result<()> {
    with_limit(100, || {
        let o = offered()?;
        let keys = Bits { cr4: if o.keys { PKE } else { 0 }, ..Bits::default() };
        let levels = Bits { unpaged: if o.five_levels { LA57 } else { 0 }, ..Bits::default() };
        let all = Bits { cr4: keys.cr4 | o.hypervisor.cr4, efer: o.hypervisor.efer, unpaged: levels.unpaged };
        let without = Bits { cr4: keys.cr4, ..levels };
        n.number("five_levels", o.five_levels.into());
        let (rounds, switches) = phase(n, [Bits::default(), keys, levels, without])?;
        n.number("rounds", rounds);
        n.number("switches", switches);
        // To nested paging is a switch that succeeds also where the VM is there.
        n.expect(switches > 10, || format!("only {switches} switches"));
        let (rounds, switches) = phase(n, [o.hypervisor, keys, levels, all])?;
        n.number("rounds_with_hypervisors", rounds);
        n.number("switches_with_hypervisors", switches);
        Ok(())
    })
}
