// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The process of a concurrent round: one VM, and threads that run its vCPUs, make random calls, switch its
//! mode, read its files, and interrupt each other.

mod quiet;

use std::fs;
use std::io::Write;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::sync::{Arc, Mutex};
use std::thread::JoinHandle;
use std::time::{Duration, Instant};

use anyhow::{Result, anyhow};
use kvm_bindings::*;
use serde::{Deserialize, Serialize};

use super::calls;
use super::gen_ops::{Gen, Offered};
use super::kvm::{self, Kvm, Vcpu, Vm};
use super::layout::*;
use super::play::exit_name;
use super::steps::{self, draw_width};
use super::tally::{Tally, count};
use super::watch::{interrupt, stacks, thread, workers};
use crate::memory::{HostPages, Memory};
use crate::vm::TSS;
use quiet::last_words;

const VCPUS: usize = 4;

/// What the threads share.
pub struct Shared {
    // Dropped in this order.
    vcpus: Mutex<Vec<Arc<Vcpu>>>,
    pub vm: Vm,
    pub memory: Memory,
    pub kvm: Kvm,
    offered: Offered,
    /// Whether vCPUs come into system management mode.
    pub smm: bool,
    stop: AtomicBool,
    /// Threads that a signal interrupts.
    threads: Mutex<Vec<i32>>,
    joins: Mutex<Vec<JoinHandle<()>>>,
    tally: Mutex<Tally>,
    seeds: AtomicU64,
}

/// What the process prints at its end.
#[derive(Debug, Default, Serialize, Deserialize)]
pub struct Report {
    pub tally: Tally,
    pub wrong: Vec<String>,
}

impl Shared {
    fn vcpu(&self, g: &mut Gen) -> Option<Arc<Vcpu>> {
        let all = self.vcpus.lock().ok()?;
        let n = all.len() as u64;
        (n > 0).then(|| Arc::clone(&all[g.below(n) as usize]))
    }

    fn stops(&self) -> bool {
        self.stop.load(Ordering::Relaxed)
    }
}

/// Starts a thread that repeats an action until the end.
fn repeat(s: &Arc<Shared>, mut action: impl FnMut(&Arc<Shared>, &mut Gen, &mut Tally) + Send + 'static) {
    let seed = s.seeds.fetch_add(0x9e37_79b9_7f4a_7c15, Ordering::Relaxed);
    let shared = Arc::clone(s);
    let join = std::thread::spawn(move || {
        let mut g = Gen::new(seed, shared.offered, false);
        let mut t = Tally::default();
        if let Ok(mut threads) = shared.threads.lock() {
            threads.push(thread());
        }
        while !shared.stops() {
            action(&shared, &mut g, &mut t);
        }
        if let Ok(mut all) = shared.tally.lock() {
            all.merge(&t);
        }
    });
    if let Ok(mut joins) = s.joins.lock() {
        joins.push(join);
    }
}

fn pause(g: &mut Gen, most: u64) {
    std::thread::sleep(Duration::from_micros(g.below(most)));
}

/// Makes a vCPU and the thread that runs it.
fn add_vcpu(s: &Arc<Shared>, t: &mut Tally) -> Result<()> {
    let Ok(mut all) = s.vcpus.lock() else { return Ok(()) };
    if all.len() >= VCPUS {
        return Ok(());
    }
    let id = all.len();
    let end = s.vm.create_vcpu(id as u64)?;
    let Ok(v) = t.call(kvm::CREATE_VCPU, end) else { return Ok(()) };
    let _ = t.call(kvm::SET_CPUID2, v.entries(kvm::SET_CPUID2, &mut s.kvm.cpuid.clone()));
    let v = Arc::new(v);
    all.push(Arc::clone(&v));
    drop(all);
    let _ = calls::boot(&v, Width::Long, 0, t);
    repeat(s, move |s, g, t| run(s, &v, id as u64, g, t));
    Ok(())
}

/// Runs one slot of random code.
fn run(s: &Shared, v: &Vcpu, id: u64, g: &mut Gen, t: &mut Tally) {
    let Ok(mut r) = t.call(kvm::GET_SREGS, v.get::<kvm_sregs>(kvm::GET_SREGS)) else { return pause(g, 2000) };
    if g.chance(10) {
        let width = draw_width(g);
        let _ = calls::boot(v, width, g.below(2) as usize, t);
    }
    let width = Width::of(&r);
    let slot = id * 32 + g.below(32);
    let code = steps::draw_run(g, 0, width, slot, false);
    let _ = s.memory.write(code.at(), &code.code());
    if g.chance(80) {
        segments(&mut r, width, code.user);
        let _ = t.call(kvm::SET_SREGS, v.call(kvm::SET_SREGS, &mut r));
    }
    let x = code.registers;
    let rip = if width == Width::Real { code.at() - CODE } else { code.at() };
    let mut regs = kvm_regs {
        rax: x[0],
        rbx: x[1],
        rcx: x[2],
        rdx: x[3],
        rsi: x[4],
        rdi: x[5],
        rbp: x[6],
        rip,
        ..Default::default()
    };
    (regs.rsp, regs.rflags) = (STACK_TOP - 0x100 * id, 2 | if code.single { 0x100 } else { 0 });
    let _ = t.call(kvm::SET_REGS, v.call(kvm::SET_REGS, &mut regs));
    for _ in 0..g.below(12) {
        v.set_immediate_exit(g.chance(8));
        if t.call(kvm::RUN, v.number(kvm::RUN, 0)).is_err() {
            if s.stops() || g.chance(40) {
                break;
            }
            continue;
        }
        let reason = v.exit_reason();
        count(&mut t.exits, exit_name(reason));
        match reason {
            KVM_EXIT_IO | KVM_EXIT_MMIO => {}
            KVM_EXIT_SHUTDOWN | KVM_EXIT_INTERNAL_ERROR | KVM_EXIT_FAIL_ENTRY => {
                let _ = calls::settle(v, t);
                let width = draw_width(g);
                let _ = calls::boot(v, width, 0, t);
                break;
            }
            _ => break,
        }
        if reason == KVM_EXIT_IO && [PORT_END, PORT_FAULT].contains(&v.detail::<u16>(2)) {
            count(&mut t.guest, if v.detail::<u16>(2) == PORT_END { "ends" } else { "faults" });
            break;
        }
    }
}

fn write_mode(s: &Shared, g: &mut Gen, t: &mut Tally) {
    let word = g.pick(&["shadow", "nested", "shadow\n", "nested\n", "shadow", "nested", "neither"]);
    let end = fs::write(s.vm.debugfs.join("paging_mode"), word).map_err(|e| e.raw_os_error().unwrap_or(0));
    t.switch(word.trim(), end);
    pause(g, 4000);
}

fn read_files(s: &Shared, g: &mut Gen, t: &mut Tally) {
    // The last one is of newer modules.
    let name = g.pick(&["paging_mode", "paging_stats", "mmu_rmaps_stat", "paging_refusal"]);
    let end = fs::read(s.vm.debugfs.join(name));
    count(&mut t.notes, format!("{name} {}", if end.is_ok() { "read" } else { "not read" }));
    pause(g, 2000);
}

fn start(seed: u64) -> Result<Arc<Shared>> {
    let kvm = Kvm::new()?;
    let keys = kvm.leaf(7, 0).is_some_and(|l| l[2] & 1 << 3 != 0);
    let offered = Offered { amd: crate::vm::vendor()?.option == "amd", keys };
    let mut g = Gen::new(seed, offered, false);
    let vm = kvm.create_vm()?;
    let memory = memory(g.pick(&[HostPages::Small, HostPages::SmallShared]))?;
    let mut t = Tally::default();
    for n in 0..500 {
        let width = if n % 4 == 0 { Width::Legacy } else { Width::Long };
        let (at, value, _) = g.table_entry(width);
        let len = if width == Width::Legacy { 4 } else { 8 };
        memory.write(at, &value.to_le_bytes()[..len])?;
    }
    let _ = t.call(kvm::SET_TSS_ADDR, vm.number(kvm::SET_TSS_ADDR, TSS as u64));
    if g.chance(40) {
        let _ = t.call(kvm::ENABLE_CAP, vm.enable_mode(g.chance(50)));
    }
    let host = memory.host_address();
    for (slot, gpa, bytes, at) in [
        (0, 0, SYSTEM, 0),
        (1, DATA, DATA_SIZE, SYSTEM),
        (2, EXTRA, EXTRA_PAGES << 12, HOST_EXTRA),
        (1 << 16, 0, SYSTEM, 0),
    ] {
        let end = t.call(kvm::SET_USER_MEMORY_REGION, vm.slot(slot, gpa, bytes, host + at, 0));
        end.map_err(|e| anyhow!("slot {slot}: {}", kvm::errno_name(e)))?;
    }
    if g.chance(40) {
        let _ = t.call(kvm::CREATE_IRQCHIP, vm.number(kvm::CREATE_IRQCHIP, 0));
    }
    Ok(Arc::new(Shared {
        vcpus: Mutex::new(Vec::new()),
        vm,
        memory,
        kvm,
        offered,
        smm: g.chance(50),
        stop: AtomicBool::new(false),
        threads: Mutex::new(Vec::new()),
        joins: Mutex::new(Vec::new()),
        tally: Mutex::new(t),
        seeds: AtomicU64::new(seed),
    }))
}

fn kick(s: &Shared, all: bool, g: &mut Gen) {
    for v in s.vcpus.lock().iter().flat_map(|v| v.iter()) {
        if all {
            v.set_immediate_exit(true);
        }
    }
    let threads = s.threads.lock().map(|t| t.clone()).unwrap_or_default();
    for t in threads {
        if all || g.chance(30) {
            interrupt(t);
        }
    }
}

/// The process of a round. `close`: the VM's files are closed in the middle.
pub fn child(seed: u64, millis: u64, close: bool, limit: u64) -> Result<()> {
    super::watch::handle_signal()?;
    let s = start(seed)?;
    println!("{}", s.vm.debugfs.display());
    let mut g = Gen::new(seed ^ 1, s.offered, false);
    let mut t = Tally::default();
    for _ in 0..1 + g.below(3) {
        add_vcpu(&s, &mut t)?;
    }
    for _ in 0..2 {
        repeat(&s, |s, g, t| {
            if let Some(v) = s.vcpu(g) {
                calls::vcpu(s, &v, g, t);
            }
            pause(g, 500);
        });
    }
    repeat(&s, |s, g, t| {
        if calls::vm(s, g, t) {
            let _ = add_vcpu(s, t);
        }
        pause(g, 3000);
    });
    for _ in 0..1 + g.below(2) {
        repeat(&s, |s, g, t| write_mode(s, g, t));
    }
    repeat(&s, |s, g, t| read_files(s, g, t));
    let begun = Instant::now();
    let mut closed = false;
    while begun.elapsed() < Duration::from_millis(millis) {
        pause(&mut g, 5000);
        kick(&s, false, &mut g);
        if close && !closed && begun.elapsed() > Duration::from_millis(millis / 2) {
            closed = true;
            s.vm.close_early()?;
            for v in s.vcpus.lock().iter().flat_map(|v| v.iter()) {
                v.close_early()?;
            }
        }
    }
    s.stop.store(true, Ordering::Relaxed);
    let mut wrong = Vec::new();
    let end = Instant::now();
    loop {
        kick(&s, true, &mut g);
        let joins = s.joins.lock().map_err(|_| anyhow!("a thread died"))?;
        if joins.iter().all(JoinHandle::is_finished) {
            break;
        }
        drop(joins);
        if end.elapsed() > Duration::from_secs(limit) {
            wrong.push(format!("threads that do not stop within {limit} s"));
            wrong.extend(stacks(std::process::id()));
            wrong.extend(workers());
            return report(&s, t, wrong);
        }
        std::thread::sleep(Duration::from_millis(2));
    }
    let joins = s.joins.lock().map(|mut j| std::mem::take(&mut *j)).unwrap_or_default();
    for join in joins {
        if join.join().is_err() {
            wrong.push("a thread of the fuzzer died".into());
        }
    }
    if !closed {
        last_words(&s, &mut t, &mut wrong)?;
    }
    report(&s, t, wrong)
}

fn report(s: &Shared, mut t: Tally, wrong: Vec<String>) -> Result<()> {
    if let Ok(all) = s.tally.lock() {
        t.merge(&all);
    }
    let mut out = std::io::stdout().lock();
    serde_json::to_writer(&mut out, &Report { tally: t, wrong })?;
    out.write_all(b"\n")?;
    out.flush()?;
    // A thread that hangs would keep the process.
    std::process::exit(0);
}
