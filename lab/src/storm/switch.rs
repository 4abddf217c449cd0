// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The loop of switches: a stay, a switch, KVM's figures of it, as often as asked.
//!
//! A stay is measured twice, and both have to reach the least time: by the clock, which is the
//! guest's too (its TSC runs on while a vCPU waits), and by the time its vCPU threads ran, added up
//! (`/proc/PID/task/TID/schedstat`). The second keeps a stay from being over before the guest got to
//! run at all, on a busy host. It has KVM's own work for the exits in it. The kernel brings it up to
//! date at its ticks and when a thread stops running; a switch stops all of them, so what is read
//! right after one is exact, and what is read at a stay's end is too small if anything.

use std::fs::{self, File, OpenOptions};
use std::io::Write;
use std::os::unix::fs::FileExt;
use std::path::Path;
use std::sync::atomic::{AtomicBool, AtomicU64, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};

use super::{Figures, Mode, Random, Switch};

/// Where KVM has a directory per VM.
pub const DEBUGFS: &str = "/sys/kernel/debug/kvm";

/// A VM whose mode can be switched.
pub struct Vm {
    mode: File,
    stats: File,
}

/// Reads a small file of the kernel's from its beginning.
fn read(file: &File) -> std::io::Result<String> {
    let mut bytes = [0; 2048];
    let n = file.read_at(&mut bytes, 0)?;
    Ok(String::from_utf8_lossy(&bytes[..n]).into_owned())
}

impl Vm {
    /// The VM of this process, below [`DEBUGFS`] or what stands for it. `None` if KVM has no
    /// such file: its modes are fixed.
    pub fn of(debugfs: &Path, pid: u32) -> Result<Option<Vm>> {
        let prefix = format!("{pid}-");
        let entries = fs::read_dir(debugfs).with_context(|| debugfs.display().to_string())?;
        let dir = entries
            .flatten()
            .find(|e| e.file_name().to_string_lossy().starts_with(&prefix))
            .with_context(|| format!("{}: no VM of process {pid}", debugfs.display()))?
            .path();
        let open =
            |name: &str| OpenOptions::new().read(true).write(name == "paging_mode").open(dir.join(name));
        match open("paging_mode") {
            Err(e) if e.kind() == std::io::ErrorKind::NotFound => Ok(None),
            mode => Ok(Some(Vm {
                mode: mode.context("paging_mode")?,
                stats: open("paging_stats").context("paging_stats")?,
            })),
        }
    }

    /// The mode it is in.
    pub fn mode(&self) -> Result<Mode> {
        let text = read(&self.mode).context("paging_mode")?;
        Mode::named(text.trim()).with_context(|| format!("paging_mode says {:?}", text.trim()))
    }

    /// Switches, and returns when all vCPUs run in the other mode.
    pub fn switch(&self, to: Mode) -> std::io::Result<()> {
        let word = to.word().as_bytes();
        match self.mode.write_at(word, 0) {
            // Not every file of debugfs has positions.
            Err(e) if e.raw_os_error() == Some(rustix::io::Errno::SPIPE.raw_os_error()) => {
                (&self.mode).write(word).map(drop)
            }
            other => other.map(drop),
        }
    }

    /// KVM's figures.
    pub fn stats(&self) -> Result<Stats> {
        Stats::parse(&read(&self.stats).context("paging_stats")?)
    }
}

/// `paging_stats`, in its own order.
#[derive(Debug, Clone, Default, PartialEq, Eq)]
pub struct Stats(pub Vec<(String, u64)>);

impl Stats {
    fn parse(text: &str) -> Result<Stats> {
        let line = |l: &str| {
            let (name, value) = l.split_once(' ')?;
            Some((name.to_owned(), value.trim().parse().ok()?))
        };
        let all: Option<Vec<_>> = text.lines().map(line).collect();
        all.map(Stats).with_context(|| format!("paging_stats: {text:?}"))
    }

    fn get(&self, name: &str) -> u64 {
        self.0.iter().find(|(n, _)| n == name).map_or(0, |(_, v)| *v)
    }

    fn figures(&self) -> Figures {
        Figures {
            vcpus_in_guest: self.get("vcpus_in_guest_last"),
            quiesce_ns: self.get("quiesce_ns_last"),
            switch_ns: self.get("switch_ns_last"),
            resume_ns: self.get("resume_ns_last"),
            tables_kept: self.get("tables_kept"),
            shadow_pages_dropped: self.get("shadow_pages_dropped"),
        }
    }
}

/// What passes while a guest stays in a mode.
pub trait Time {
    /// The clock.
    fn now(&self) -> Duration;
    /// How long the vCPUs have run, together.
    fn ran(&self) -> Result<Duration>;
    /// Lets time pass.
    fn sleep(&self, time: Duration);
}

/// That of QEMU's vCPU threads.
pub struct VcpuTime {
    begun: Instant,
    threads: Vec<File>,
}

impl VcpuTime {
    /// The threads named `CPU n/KVM`, as QEMU names them if asked (`debug-threads`).
    /// The clock is 0 at `begun`.
    pub fn of(pid: u32, vcpus: u32, begun: Instant) -> Result<VcpuTime> {
        let mut threads = Vec::new();
        for task in fs::read_dir(format!("/proc/{pid}/task"))?.flatten() {
            let name = fs::read_to_string(task.path().join("comm")).unwrap_or_default();
            if name.starts_with("CPU ") {
                threads.push(File::open(task.path().join("schedstat"))?);
            }
        }
        if threads.len() != vcpus as usize {
            bail!("{} vCPU threads of {vcpus}", threads.len());
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

/// What the loop tells others while it runs.
#[derive(Default)]
pub struct Watch {
    /// Set to end it.
    pub stop: AtomicBool,
    /// Since when a switch is under way, in microseconds of its clock; 0 if none is.
    pub switching: AtomicU64,
}

fn micros(d: Duration) -> u64 {
    d.as_micros() as u64
}

/// The next stay: mostly up to twice the least, one in eight up to ten times.
fn stay(random: &mut Random, least: Duration) -> Duration {
    let percent = if random.below(8) == 0 { random.below(900) } else { random.below(100) };
    least + least.mul_f64(percent as f64 / 100.0)
}

/// Makes `count` switches, each after a stay of `least` or more, and passes each on.
pub fn storm(
    vm: &Vm,
    time: &dyn Time,
    (count, least, seed): (u64, Duration, u64),
    watch: &Watch,
    tell: &mut dyn FnMut(Switch),
) -> Result<()> {
    let mut random = Random(seed);
    let mut mode = vm.mode()?;
    for n in 0..=count {
        let (begun, before) = (time.now(), time.ran()?);
        let wanted = stay(&mut random, least);
        let (mut stayed, mut ran) = (Duration::ZERO, Duration::ZERO);
        while stayed < wanted || ran < wanted {
            if watch.stop.load(Ordering::Relaxed) {
                return Ok(());
            }
            // At least two CPUs can run vCPUs at a time, mostly.
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
        let mut record = Switch {
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
                record.figures = vm.stats()?.figures();
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

    fn made_up(with: bool) -> tempfile::TempDir {
        let root = tempfile::tempdir().unwrap();
        let dir = root.path().join("4711-12");
        fs::create_dir(&dir).unwrap();
        fs::create_dir(root.path().join("47111-9")).unwrap();
        if with {
            fs::write(dir.join("paging_mode"), "nested\n").unwrap();
            fs::write(dir.join("paging_stats"), STATS).unwrap();
        }
        root
    }

    #[test]
    fn a_vm_is_found_read_and_switched() {
        let root = made_up(true);
        let vm = Vm::of(root.path(), 4711).unwrap().unwrap();
        assert_eq!(vm.mode().unwrap(), Mode::Nested);
        vm.switch(Mode::Shadow).unwrap();
        assert_eq!(vm.mode().unwrap(), Mode::Shadow);
        assert_eq!(vm.stats().unwrap().figures().shadow_pages_dropped, 77);
        fs::write(root.path().join("4711-12/paging_mode"), "nested -> shadow\n").unwrap();
        assert!(vm.mode().is_err());
        assert!(Stats::parse("vcpus four\n").is_err());
    }

    #[test]
    fn without_its_files_modes_are_fixed() {
        let root = made_up(false);
        assert!(Vm::of(root.path(), 4711).unwrap().is_none());
        assert!(Vm::of(root.path(), 471).is_err());
        assert!(Vm::of(Path::new("/nonexistent"), 1).is_err());
    }

    #[test]
    fn no_stay_is_shorter_than_the_least_by_either_measure() {
        let root = made_up(true);
        let vm = Vm::of(root.path(), 4711).unwrap().unwrap();
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
        let root = made_up(true);
        let vm = Vm::of(root.path(), 4711).unwrap().unwrap();
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
