// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What one file or group of counters costs: those of the fixture, and real ones.

use crate::fixture::Fleet;
use crate::{cpu, median};
use bifold_host::Host;
use bifold_live::hardware::Pmu;
use std::fs::File;
use std::hint::black_box;
use std::io::Read as _;
use std::path::Path;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::mpsc::channel;
use std::time::Instant;

/// A number of KVM of all VMs, which is a simple attribute as those of a VM are. A kernel that is locked down
/// lets root read this one too, because its mode allows no writes (`debugfs_locked_down`).
const OF_KVM: &str = "/sys/kernel/debug/kvm/pages_4k";

/// Reads of a file whose time is taken together, and how often that is done.
const READS: u32 = 2000;
const ROUNDS: u32 = 9;

/// CPU time of a statistic: open, read, close.
pub struct Costs {
    fixture: Option<f64>,
    of_kvm: Option<f64>,
}

impl Costs {
    /// What a statistic of the real KVM takes beyond the fixture's, in seconds.
    pub fn of_kvm(&self) -> Option<f64> {
        self.of_kvm.zip(self.fixture).map(|(real, fixture)| real - fixture)
    }
}

/// CPU time of one `work`, in seconds: the median of several rounds.
fn each<T>(reads: u32, work: impl Fn() -> T) -> f64 {
    let round = |_| {
        let start = cpu();
        (0..reads).for_each(|_| drop(black_box(work())));
        (cpu() - start).as_secs_f64() / f64::from(reads)
    };
    median((0..ROUNDS).map(round).collect())
}

fn opened(path: &Path) -> Option<f64> {
    let once = || File::open(path)?.read(&mut [0; 32]);
    once().ok()?;
    Some(each(READS, once))
}

/// Prints the costs. `thread` is one that waits.
pub fn measure(fleet: &Fleet, pmu: Option<Pmu>, thread: u32) -> Costs {
    let line = |name: &str, seconds: Option<f64>| {
        println!("| {name} | {} |", seconds.map_or("-".into(), |s| format!("{:.2}", 1e6 * s)));
    };
    println!("| file, or group of counters | CPU time, µs |");
    println!("|---|--:|");
    let costs = Costs { fixture: opened(&fleet.a_statistic()), of_kvm: opened(Path::new(OF_KVM)) };
    line("a statistic of the fixture: open, read, close", costs.fixture);
    line("one of the real KVM, in debugfs: open, read, close", costs.of_kvm);
    let times = Host::live().thread_times(std::process::id(), thread).ok();
    line("a thread's times: read", times.map(|t| each(READS, || t.read())));
    if let Some(pmu) = pmu {
        let counters = pmu.open(thread).expect("it worked before");
        let waits = each(READS, || counters.read().is_ok()) / pmu.groups() as f64;
        line("a group of counters of a thread that waits: read", Some(waits));
        // Where other programs run too, some try finds a CPU free.
        let runs = (0..20).find_map(|_| of_a_running_thread(&pmu));
        line("of a thread that runs on another CPU: read", runs);
    }
    line("a GiB of guest memory in 4 KB pages: smaps and numa_maps", look_at_memory());
    costs
}

/// CPU time of a read of a group whose thread runs all the time; `None` if other programs had its CPU.
fn of_a_running_thread(pmu: &Pmu) -> Option<f64> {
    let (send, id) = channel();
    let stop = AtomicBool::new(false);
    std::thread::scope(|scope| {
        scope.spawn(|| {
            send.send(rustix::thread::gettid().as_raw_nonzero().get() as u32).expect("somebody listens");
            while !stop.load(Ordering::Relaxed) {
                std::hint::spin_loop();
            }
        });
        let thread = id.recv().expect("the thread has started");
        let times = Host::live().thread_times(std::process::id(), thread).expect("the thread runs");
        let counters = pmu.open(thread).expect("it worked before");
        let (start, before) = (Instant::now(), times.read());
        let seconds = each(READS / 10, || counters.read().is_ok()) / pmu.groups() as f64;
        let (wall, after) = (start.elapsed(), times.read());
        stop.store(true, Ordering::Relaxed);
        let ran = (after?.ran_ns - before?.ran_ns) as f64;
        (ran > 0.8 * wall.as_nanos() as f64).then_some(seconds)
    })
}

/// CPU time of a look at a GiB of memory, by one at a quarter; `None` where memory is in huge pages.
fn look_at_memory() -> Option<f64> {
    const BYTES: usize = 256 << 20;
    let (host, pid) = (Host::live(), std::process::id());
    let look = || each(1, || host.backing(pid));
    let without = look();
    let guest = black_box(vec![1_u8; BYTES]);
    let with = look();
    let small = host.backing(pid)?.small;
    drop(guest);
    (small >= BYTES as u64).then_some(((1 << 30) / BYTES) as f64 * (with - without))
}
