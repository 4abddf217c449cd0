// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Switches a VM in a loop: a stay in a mode, a switch, KVM's figures of the switch.
//!
//! A stay is measured in two ways, and both must reach the shortest length: by the clock, which the guest
//! reads too (its TSC continues while a vCPU waits), and by the run time of all vCPU threads
//! (`/proc/PID/task/TID/schedstat`). The run time ensures on a busy host that the guest runs at all during a
//! stay. It includes KVM's work for exits. The kernel updates it at ticks and when a thread stops running. A
//! switch stops all threads, so the value right after a switch is exact; the value at the end of a stay may
//! be too small.

use std::fs::{self, File};
use std::os::unix::fs::FileExt;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use bifold_host::{Host, PagingFiles, PagingStats, State};
use bifold_mmu::Mode;

use super::{Figures, Random, SwitchRecord};

/// The paging files of a process's VM. `None` if KVM cannot switch VMs.
pub fn paging_files(host: &Host, pid: u32) -> Result<Option<PagingFiles>> {
    let vms = host.vms()?;
    let vm =
        vms.iter().find(|vm| vm.pid == pid).with_context(|| format!("KVM has no VM of process {pid}"))?;
    host.paging_files(vm.id).context("the VM's paging files")
}

/// The mode of a VM that no one else switches.
pub fn mode(vm: &PagingFiles) -> Result<Mode> {
    match vm.state()? {
        State::In(mode) => Ok(mode),
        under_way => bail!("paging_mode says that a switch is under way: {under_way}"),
    }
}

/// KVM's figures of the last switch.
fn figures(stats: &PagingStats) -> Result<Figures> {
    let figures = || {
        Some(Figures {
            vcpus_in_guest: stats.vcpus_in_guest_last?,
            quiesce_ns: stats.quiesce_ns_last?,
            switch_ns: stats.switch_ns_last?,
            resume_ns: stats.resume_ns_last?,
            tables_kept: stats.tables_kept?,
            shadow_pages_dropped: stats.shadow_pages_dropped?,
        })
    };
    figures().with_context(|| format!("paging_stats lacks a figure of the last switch: {stats:?}"))
}

/// Reads a small kernel file from its beginning.
fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = [0; 2048];
    let n = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
}

/// Clocks of a stay.
pub trait Time {
    /// Time by the clock.
    fn now(&self) -> Duration;
    /// Run time of all vCPUs.
    fn ran(&self) -> Result<Duration>;
    /// Waits.
    fn sleep(&self, time: Duration);
}

/// The clocks of QEMU's vCPU threads.
pub struct VcpuTime {
    begun: Instant,
    threads: Vec<File>,
}

impl VcpuTime {
    /// Finds the threads with names `CPU n/KVM`, which QEMU gives with `debug-threads`. The clock is 0 at
    /// `begun`.
    pub fn of(pid: u32, vcpus: u32, begun: Instant) -> Result<VcpuTime> {
        let mut threads = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("CPU ") {
                threads.push(File::open(task.path().join("schedstat"))?);
            }
        }
        if threads.len() != vcpus as usize {
            bail!("QEMU has {} vCPU threads, not {vcpus}", threads.len());
        }
        Ok(VcpuTime { begun, threads })
    }
}

impl Time for VcpuTime {
    fn now(&self) -> Duration {
        self.begun.elapsed()
    }

    fn ran(&self) -> Result<Duration> {
        let mut sum = 0;
        for file in &self.threads {
            let text = read(file).context("schedstat")?;
            let ns = text.split(' ').next().unwrap_or_default();
            sum += ns.parse::<u64>().with_context(|| format!("schedstat: {text:?}"))?;
        }
        Ok(Duration::from_nanos(sum))
    }

    fn sleep(&self, time: Duration) {
        std::thread::sleep(time);
    }
}

/// How other threads follow and stop the loop.
#[derive(Default)]
pub struct Watch {
    /// Set this to end the loop.
    pub stop: AtomicBool,
    /// Start of the switch under way, in microseconds of the clock; 0 if there is none.
    pub switching: AtomicU64,
}

fn micros(d: Duration) -> u64 {
    d.as_micros() as u64
}

/// Length of the next stay: usually up to twice the shortest, one in eight up to ten times.
fn stay(random: &mut Random, least: Duration) -> Duration {
    let percent = if random.below(8) == 0 { random.below(900) } else { random.below(100) };
    least + least.mul_f64(percent as f64 / 100.0)
}

/// Makes `count` switches, each after a stay of at least `least`, and passes their records to `tell`.
pub fn storm(
    vm: &PagingFiles,
    time: &dyn Time,
    (count, least, seed): (u64, Duration, u64),
    watch: &Watch,
    tell: &mut dyn FnMut(SwitchRecord),
) -> Result<()> {
    let mut random = Random(seed);
    let mut mode = mode(vm)?;
    for n in 0..=count {
        let (begun, before) = (time.now(), time.ran()?);
        let wanted = stay(&mut random, least);
        let (mut stayed, mut ran) = (Duration::ZERO, Duration::ZERO);
        while stayed < wanted || ran < wanted {
            if watch.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            // Usually at least two vCPUs run at a time.
            let left = wanted.saturating_sub(stayed).max(wanted.saturating_sub(ran) / 2);
            time.sleep(left.max(Duration::from_micros(500)));
            stayed = time.now() - begun;
            ran = time.ran()?.saturating_sub(before);
        }
        if n == count {
            break; // the last stay is as long as the others
        }
        let asked = time.now();
        watch.switching.store(micros(asked).max(1), Ordering::Relaxed);
        let end = vm.switch(mode.other());
        watch.switching.store(0, Ordering::Relaxed);
        let took = time.now() - asked;
        let mut record = SwitchRecord {
            at_us: micros(asked),
            to: mode.other(),
            took_us: micros(took),
            stay_us: micros(stayed),
            ran_us: micros(ran),
            errno: 0,
            figures: Figures::default(),
        };
        match end {
            Ok(()) => {
                mode = mode.other();
                record.figures = figures(&vm.stats()?)?;
            }
            Err(e) => record.errno = e.raw_os_error().unwrap_or(-1),
        }
        tell(record);
    }
    Ok(())
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::cell::Cell;

    const STATS: &str = "switches_to_shadow 3\nswitches_to_nested 2\nrefused 0\nrolled_back 0\nvcpus 4\n\
        vcpus_in_guest_last 3\nquiesce_ns_last 250000\nquiesce_ns_worst 5100000\nswitch_ns_last 700000\n\
        switch_ns_worst 800000\nresume_ns_last 90000\nresume_ns_worst 95000\ntables_kept 120\n\
        tables_dropped 0\nshadow_pages 40\nshadow_pages_dropped 77\n";

    /// Its vCPUs get a quarter of the clock's time, on steps of 4 ms, as schedstat has them.
    struct Fake(Cell<Duration>);

    impl Time for Fake {
        fn now(&self) -> Duration {
            self.0.get()
        }
        fn ran(&self) -> Result<Duration> {
            Ok(Duration::from_millis(self.0.get().as_millis() as u64 / 4 / 4 * 4))
        }
        fn sleep(&self, time: Duration) {
            self.0.set(self.0.get() + time);
        }
    }

    /// A host that is a tree of files, with the VM of process 4711.
    fn made_up(with: bool) -> (tempfile::TempDir, Host) {
        let root = tempfile::tempdir().unwrap();
        let host = Host {
            sys: root.path().join("sys"),
            proc: root.path().join("proc"),
            debug: root.path().join("debug"),
            tracing: root.path().join("tracing"),
        };
        let dir = host.debug.join("kvm/4711-12");
        fs::create_dir_all(&dir).unwrap();
        fs::create_dir(host.debug.join("kvm/47111-9")).unwrap();
        if with {
            fs::write(dir.join("paging_mode"), "nested\n").unwrap();
            fs::write(dir.join("paging_stats"), STATS).unwrap();
        }
        (root, host)
    }

    #[test]
    fn a_vm_is_found_read_and_switched() {
        let (_root, host) = made_up(true);
        let vm = paging_files(&host, 4711).unwrap().unwrap();
        assert_eq!(mode(&vm).unwrap(), Mode::Nested);
        vm.switch(Mode::Shadow).unwrap();
        assert_eq!(mode(&vm).unwrap(), Mode::Shadow);
        assert_eq!(figures(&vm.stats().unwrap()).unwrap().shadow_pages_dropped, 77);
        fs::write(host.debug.join("kvm/4711-12/paging_mode"), "nested -> shadow\n").unwrap();
        assert!(mode(&vm).is_err());
        fs::write(host.debug.join("kvm/4711-12/paging_stats"), "vcpus four\n").unwrap();
        assert!(figures(&vm.stats().unwrap()).is_err());
    }

    #[test]
    fn without_its_files_modes_are_fixed() {
        let (_root, host) = made_up(false);
        assert!(paging_files(&host, 4711).unwrap().is_none());
        assert!(paging_files(&host, 471).is_err());
        fs::remove_dir_all(&host.debug).unwrap();
        assert!(paging_files(&host, 4711).is_err());
    }

    #[test]
    fn no_stay_is_shorter_than_the_least_by_either_measure() {
        let (_root, host) = made_up(true);
        let vm = paging_files(&host, 4711).unwrap().unwrap();
        let run = |seed| {
            let mut all = Vec::new();
            let time = Fake(Cell::new(Duration::from_secs(1)));
            let least = Duration::from_millis(10);
            let tell = &mut |s| all.push(s);
            storm(&vm, &time, (41, least, seed), &Watch::default(), tell).unwrap();
            all
        };
        let all = run(7);
        assert_eq!(all.len(), 41);
        assert!(all.iter().all(|s| s.stay_us >= 10_000 && s.ran_us >= 10_000 && s.errno == 0));
        assert!(all.windows(2).all(|w| w[0].to == w[1].to.other()));
        assert_eq!(all[0].figures.vcpus_in_guest, 3);
        // An odd number of them: it begins in the other mode now.
        let again: Vec<u64> = run(7).iter().map(|s| s.ran_us).collect();
        assert_eq!(again, all.iter().map(|s| s.ran_us).collect::<Vec<_>>());
        assert_ne!(again, run(8).iter().map(|s| s.ran_us).collect::<Vec<_>>());
    }

    #[test]
    fn it_ends_when_told() {
        let (_root, host) = made_up(true);
        let vm = paging_files(&host, 4711).unwrap().unwrap();
        let watch = Watch::default();
        let mut count = 0;
        let time = Fake(Cell::new(Duration::ZERO));
        storm(&vm, &time, (1000, Duration::from_millis(1), 1), &watch, &mut |_| {
            count += 1;
            watch.stop.store(count == 5, Ordering::Relaxed);
        })
        .unwrap();
        assert_eq!(count, 5);
    }
}
