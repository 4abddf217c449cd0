// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The case of shadow pages that are dropped behind a switch, while the host takes pages away.

use std::os::fd::AsRawFd;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Barrier};
use std::time::{Duration, Instant};

use anyhow::{Result, ensure};
use rustix::mm::{Advice, madvise};

use super::Notes;
use super::machine::{Args, DATA_GPA, Machine, MachineSpec};
use super::routines::Routine;
use crate::tables::{ACCESSED, PRESENT, WRITE, index};

/// Thousands of shadow pages are dropped behind a switch: a notifier of the host's memory management waits no
/// longer than for a batch of them. The times are emulated, on a machine whose time counts instructions.
pub fn drop_wait(n: &mut Notes) -> Result<()> {
    const NUMBERS: [u64; 3] = [1000, 4000, 16_000];
    if crate::vm::pauses_at_random()? {
        n.skip("KCSAN pauses the kernel at random, so that its times say nothing");
        return Ok(());
    }
    let checks = crate::vm::has_checks()?;
    let limit = Duration::from_millis(if checks { 20 } else { 5 });
    let mut grown = Vec::new();
    for number in NUMBERS {
        let m = Machine::new(MachineSpec { pages: 2 * NUMBERS[2] + 512, ..MachineSpec::default() })?;
        // More than KVM keeps by itself for this much memory.
        // SAFETY: no memory is passed. _IO(KVMIO, 0x44)
        let end = unsafe { libc::ioctl(m.fd.as_raw_fd(), 0xae44, 2 * NUMBERS[2]) };
        ensure!(end == 0, "KVM_SET_NR_MMU_PAGES: {}", std::io::Error::last_os_error());
        let at = sparse(&m, number)?;
        let mut during = Waited::default();
        let mut took = Duration::ZERO;
        for _ in 0..3 {
            m.switch("shadow")?;
            m.run(0, Routine::Check, Args { rdi: at, rsi: number, rdx: 2 << 20, ..Args::default() })?;
            let pages = m.stats()?["shadow_pages"];
            n.expect(pages >= number, || format!("only {pages} shadow pages, not {number}"));
            let begun = Instant::now();
            let waited = notified(&m, || m.switch("nested"))?;
            took += begun.elapsed();
            if waited.worst > during.worst {
                during = waited;
            }
            n.number(format!("{number}_drop_us"), m.stats()?["drop_ns_last"] / 1000);
        }
        // As long as the drops took: on 6.12 the kernel itself keeps the CPU for 7 ms every few seconds,
        // which meets the longer drops only.
        let idle = notified(&m, || {
            std::thread::sleep(took);
            Ok(())
        })?;
        let us = |d: Duration| d.as_micros() as u64;
        n.number(format!("{number}_wait_us"), us(during.worst));
        n.number(format!("{number}_wait_late_us"), us(during.late));
        n.number(format!("{number}_wait_at_us"), us(during.at));
        let (during, idle) = (during.worst, idle.worst);
        grown.push(during.saturating_sub(idle));
        n.number(format!("{number}_wait_idle_us"), us(idle));
        n.expect(during < idle + limit, || {
            format!("{number} shadow pages: the notifier waited {during:?}, and {idle:?} without a switch")
        });
    }
    // Growing with the number, 16 times the pages would be 16 times the wait.
    n.expect(grown[2] < 2 * grown[0] + Duration::from_millis(2), || format!("it grows: {grown:?}"));
    Ok(())
}

/// Maps `number` leaf tables of one page each, 2 MB apart, and returns the address. The tables are in the
/// data. Each has a page of its own.
fn sparse(m: &Machine, number: u64) -> Result<u64> {
    const AT: u64 = 0x100_0000_0000;
    const TABLE: u64 = PRESENT | WRITE | ACCESSED;
    let page = |n: u64| DATA_GPA + (n << 12);
    let directories = number.div_ceil(512);
    let set = |at: u64, entry: u64| m.memory.write(at, &entry.to_le_bytes());
    set(m.root + 8 * index(AT, 4) as u64, page(0) | TABLE)?;
    for d in 0..directories {
        set(page(0) + 8 * d, page(1 + d) | TABLE)?;
    }
    for leaf in 0..number {
        let table = page(1 + directories + leaf);
        set(page(1 + leaf / 512) + 8 * (leaf % 512), table | TABLE)?;
        set(table, page(1 + directories + number + leaf) | TABLE)?;
    }
    Ok(AT)
}

/// The longest time from when a page was to be taken from the VM until it was.
#[derive(Debug, Clone, Copy, Default)]
struct Waited {
    worst: Duration,
    /// How much of that went by until the thread ran at all.
    late: Duration,
    /// When that was, from the begin.
    at: Duration,
}

/// Takes a page away again and again while something else goes on. On the laboratory's one CPU, the thread
/// that holds mmu_lock keeps the taker from its CPU, too, so a wait for the lock may be late time.
fn notified(m: &Machine, meanwhile: impl FnOnce() -> Result<()>) -> Result<Waited> {
    const EVERY: Duration = Duration::from_micros(300);
    let end = Arc::new(AtomicBool::new(false));
    // The last page of the data, which no table is in.
    let page = m.memory.host_address() + m.memory.len() - 4096;
    // A taker that begins after the other work has given up the lock finds nothing to wait for.
    let begin = Arc::new(Barrier::new(2));
    let taker = std::thread::spawn({
        let (end, begin) = (Arc::clone(&end), Arc::clone(&begin));
        move || -> Result<Waited> {
            // Before all others: its wait is for locks, not for a CPU.
            let realtime = libc::sched_param { sched_priority: 50 };
            // SAFETY: the structure lives as long as the call.
            let set = unsafe { libc::sched_setscheduler(0, libc::SCHED_FIFO, &realtime) };
            let error = std::io::Error::last_os_error();
            begin.wait();
            ensure!(set == 0, "SCHED_FIFO: {error}");
            let (begun, mut waited) = (Instant::now(), Waited::default());
            while !end.load(Ordering::Relaxed) {
                let due = Instant::now() + EVERY;
                std::thread::sleep(EVERY);
                let late = due.elapsed();
                // SAFETY: a page of the machine's memory, to which this program holds no reference.
                unsafe {
                    (page as *mut u64).write_volatile(1);
                    madvise(page as *mut _, 4096, Advice::LinuxDontNeed)?;
                }
                let worst = due.elapsed();
                if worst > waited.worst {
                    waited = Waited { worst, late, at: begun.elapsed() };
                }
            }
            Ok(waited)
        }
    });
    begin.wait();
    let done = meanwhile();
    end.store(true, Ordering::Relaxed);
    let waited = taker.join().map_err(|_| anyhow::anyhow!("the notifier's thread died"))?;
    done?;
    waited
}
