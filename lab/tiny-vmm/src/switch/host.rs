// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases with host activity during switches: KSM, swap, split huge pages, pages that are supplied late.

use std::fs;
use std::os::fd::{AsFd, OwnedFd};
use std::path::{Path, PathBuf};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, bail};
use rustix::ioctl::{self, Updater, opcode};
use rustix::mm::{Advice, madvise};

use super::Notes;
use super::machine::{DATA, DATA_GPA, Machine, MachineSpec};
use crate::memory::HostPages;

const KSM: &str = "/sys/kernel/mm/ksm";

/// Puts a file's contents back when dropped.
pub(super) struct Restored(String, String);

impl Restored {
    fn set(path: &str, to: &str) -> Result<Restored> {
        let old = fs::read_to_string(path).with_context(|| path.to_owned())?;
        // Of a choice such as `always [madvise] never`, the one in brackets.
        let old = old
            .split_once('[')
            .and_then(|(_, r)| r.split_once(']'))
            .map_or(old.trim(), |(w, _)| w)
            .to_owned();
        fs::write(path, to).with_context(|| format!("{path}: {to}"))?;
        Ok(Restored(path.into(), old))
    }
}

impl Drop for Restored {
    fn drop(&mut self) {
        let _ = fs::write(&self.0, &self.1);
    }
}

pub(super) fn advise(m: &Machine, page: u64, pages: u64, advice: Advice) -> rustix::io::Result<()> {
    let at = m.memory.host_address() + DATA_GPA + (page << 12);
    // SAFETY: a part of the machine's memory, to which this program holds no reference.
    unsafe { madvise(at as *mut _, (pages as usize) << 12, advice) }
}

/// MADV_COLLAPSE of the data, which does khugepaged's work at once, if the kernel has it.
pub(super) fn collapse(m: &Machine, pages: u64) {
    let at = m.memory.host_address() + DATA_GPA;
    // SAFETY: as in `advise`. 6.0 and later have it; rustix does not.
    unsafe { libc::madvise(at as *mut _, (pages as usize) << 12, libc::MADV_COLLAPSE) };
}

fn other(mode: &str) -> &'static str {
    if mode == "shadow" { "nested" } else { "shadow" }
}

pub fn ksm(n: &mut Notes) -> Result<()> {
    if !Path::new(KSM).exists() {
        n.number("no_ksm", 1);
        return Ok(());
    }
    let pages = 2048;
    let m = Machine::new(MachineSpec { pages, ..MachineSpec::default() })?;
    advise(&m, 0, pages, Advice::LinuxMergeable).context("MADV_MERGEABLE")?;
    let _scan = Restored::set(&format!("{KSM}/pages_to_scan"), "5000")?;
    let _sleep = Restored::set(&format!("{KSM}/sleep_millisecs"), "1")?;
    let run = Restored::set(&format!("{KSM}/run"), "1")?;
    let shared =
        || -> Result<u64> { Ok(fs::read_to_string(format!("{KSM}/pages_sharing"))?.trim().parse()?) };
    let mut mode = "nested";
    let mut most = 0;
    for round in 0..6u64 {
        // Equal pages: the same word in each, which the guest's own check cannot tell from its address.
        for page in 0..pages {
            m.memory.write(DATA_GPA + (page << 12), &(round % 3).to_le_bytes())?;
        }
        m.wrong(0, DATA, 4096, pages, 0)?;
        let until = Instant::now() + Duration::from_secs(20);
        while shared()? < pages / 2 && Instant::now() < until {
            mode = other(mode);
            m.switch(mode)?;
            m.wrong(0, DATA, 4096, 200, 0)?;
            std::thread::sleep(Duration::from_millis(20));
        }
        most = most.max(shared()?);
        // The merged pages are read-only in the tables of either mode: a write breaks them.
        mode = other(mode);
        m.switch(mode)?;
        m.fill(0, DATA, 8192, pages / 2, round)?;
        mode = other(mode);
        m.switch(mode)?;
        n.same("written pages wrong", m.wrong(0, DATA, 8192, pages / 2, round)?, 0);
        for page in (1..pages).step_by(2) {
            let word = m.memory.read(DATA_GPA + (page << 12))?;
            n.expect(word == round % 3, || {
                format!("round {round}: page {page} was not written and holds {word:#x}")
            });
        }
    }
    n.number("pages_sharing", most);
    n.expect(most >= pages / 2, || format!("KSM merged no more than {most} pages"));
    drop(run);
    Ok(())
}

pub fn pageout(n: &mut Notes) -> Result<()> {
    let pages = 2048;
    // Shared memory can be paged out without swap: it stays in its file and is only unmapped.
    for backing in [HostPages::Small, HostPages::SmallShared] {
        let m = Machine::new(MachineSpec { pages, backing, ..MachineSpec::default() })?;
        let mut mode = "nested";
        for round in 0..8 {
            m.fill(0, DATA, 4096, pages, round)?;
            mode = other(mode);
            m.switch(mode)?;
            advise(&m, 0, pages, if round % 2 == 0 { Advice::LinuxPageOut } else { Advice::LinuxCold })
                .context("madvise")?;
            n.same("pages wrong", m.wrong(0, DATA, 4096, pages, round)?, 0);
            mode = other(mode);
            m.switch(mode)?;
            n.same("pages wrong after another switch", m.wrong(0, DATA, 4096, pages, round)?, 0);
        }
    }
    let swap = fs::read_to_string("/proc/swaps")?.lines().count() > 1;
    n.number("swap", u64::from(swap));
    Ok(())
}

/// Lets the host have transparent huge pages until the result is dropped.
pub(super) fn huge_pages() -> Result<Restored> {
    Restored::set("/sys/kernel/mm/transparent_hugepage/enabled", "madvise")
}

pub fn split(n: &mut Notes) -> Result<()> {
    let _on = huge_pages()?;
    let pages = 8192;
    let m = Machine::new(MachineSpec { pages, backing: HostPages::Transparent, ..MachineSpec::default() })?;
    let huge = || -> Result<u64> {
        let text = fs::read_to_string("/proc/self/smaps_rollup")?;
        let line = text.lines().find_map(|l| l.strip_prefix("AnonHugePages:")).context("no AnonHugePages")?;
        Ok(line.trim().trim_end_matches(" kB").trim().parse()?)
    };
    let mut mode = "nested";
    let mut most = 0;
    for round in 0..6 {
        m.fill(0, DATA, 4096, pages, round)?;
        most = most.max(huge()?);
        mode = other(mode);
        m.switch(mode)?;
        m.fill(0, DATA, 4096, pages, round)?;
        // A hole in every huge page splits it: entries of 2 MB go from both kinds of table.
        for page in (100..pages).step_by(512) {
            advise(&m, page, 1, Advice::LinuxDontNeed)?;
        }
        mode = other(mode);
        m.switch(mode)?;
        n.same("pages wrong", m.wrong(0, DATA, 4096, pages, round)?, pages / 512);
        let _ = advise(&m, 0, pages, Advice::LinuxHugepage);
        m.fill(0, DATA, 4096, pages, round)?;
        collapse(&m, pages);
        n.same("pages wrong after collapse", m.wrong(0, DATA, 4096, pages, round)?, 0);
    }
    n.number("huge_kb", most);
    n.expect(most > 0, || "there never was a huge page".into());
    Ok(())
}

// --- userfaultfd (linux/userfaultfd.h), for a vCPU that waits ---------------------------------

#[repr(C)]
struct Api {
    api: u64,
    features: u64,
    ioctls: u64,
}

#[repr(C)]
struct Register {
    start: u64,
    len: u64,
    mode: u64,
    ioctls: u64,
}

#[repr(C)]
struct Zero {
    start: u64,
    len: u64,
    mode: u64,
    zeroed: i64,
}

fn uffd<const OP: ioctl::Opcode, T>(fd: &OwnedFd, what: &'static str, mut arg: T) -> Result<()> {
    // SAFETY: each number is used with the structure that the kernel's header gives it.
    let end = unsafe { ioctl::ioctl(fd.as_fd(), Updater::<OP, T>::new(&mut arg)) };
    match end {
        Ok(()) => Ok(()),
        Err(e) => bail!("{what}: {e}"),
    }
}

/// Makes the first access to each of these pages wait until the page is supplied.
pub fn userfault(fd: &OwnedFd, start: u64, len: u64) -> Result<()> {
    uffd::<{ opcode::read_write::<Api>(0xaa, 0x3f) }, _>(
        fd,
        "UFFDIO_API",
        Api { api: 0xaa, features: 0, ioctls: 0 },
    )?;
    const MISSING: u64 = 1;
    uffd::<{ opcode::read_write::<Register>(0xaa, 0) }, _>(
        fd,
        "UFFDIO_REGISTER",
        Register { start, len, mode: MISSING, ioctls: 0 },
    )
}

/// Supplies a page of zeros.
pub fn supply(fd: &OwnedFd, start: u64) -> Result<()> {
    uffd::<{ opcode::read_write::<Zero>(0xaa, 4) }, _>(
        fd,
        "UFFDIO_ZEROPAGE",
        Zero { start, len: 4096, mode: 0, zeroed: 0 },
    )
}

/// A cgroup of a case; it goes when it is dropped, if its processes have gone.
pub(super) struct Cgroup(PathBuf);

impl Cgroup {
    /// Where cgroups with a count of memory can be made, if this kernel has them.
    pub(super) fn memory_root() -> Result<Option<PathBuf>> {
        let root = PathBuf::from("/tmp/switch-cgroups");
        fs::create_dir_all(&root)?;
        let none = rustix::mount::MountFlags::empty();
        let mounted = root.join("cgroup.controllers").exists()
            || rustix::mount::mount("cgroup2", &root, "cgroup2", none, None).is_ok();
        let counts = mounted && fs::write(root.join("cgroup.subtree_control"), "+memory").is_ok();
        Ok(counts.then_some(root))
    }

    pub(super) fn new(root: &Path, name: &str) -> Result<Cgroup> {
        let dir = root.join(name);
        fs::create_dir_all(&dir).with_context(|| dir.display().to_string())?;
        Ok(Cgroup(dir))
    }

    pub(super) fn path(&self) -> &Path {
        &self.0
    }

    pub(super) fn take(&self, pid: u32) -> Result<()> {
        Ok(fs::write(self.0.join("cgroup.procs"), pid.to_string())?)
    }

    /// Bytes of kernel memory that were charged to it.
    fn kernel(&self) -> Result<u64> {
        let stat = fs::read_to_string(self.0.join("memory.stat"))?;
        let of = stat.lines().find_map(|l| l.strip_prefix("kernel "));
        Ok(of.context("memory.stat has no line of kernel memory")?.parse()?)
    }
}

impl Drop for Cgroup {
    fn drop(&mut self) {
        let _ = fs::remove_dir(&self.0);
    }
}

/// The reverse maps of a VM are allocated by the process that switches it, such as the daemon. They belong to
/// the VM: its cgroup pays for them, and the daemon's limit does not end the daemon.
pub fn charged(n: &mut Notes) -> Result<()> {
    const PAGES: u64 = 1 << 18;
    // An entry of 8 bytes for each page. The kernel charges in batches of 256 KB per CPU.
    const MAPS: u64 = 8 * PAGES;
    const BATCHES: u64 = 1 << 20;
    let Some(root) = Cgroup::memory_root()? else {
        n.skip("this kernel has no memory cgroups");
        return Ok(());
    };
    let (vm, switcher) = (Cgroup::new(&root, "vm")?, Cgroup::new(&root, "switcher")?);
    let (mut child, path) = super::control::start_victim(PAGES)?;
    let run = (|| {
        vm.take(child.id())?;
        switcher.take(std::process::id())?;
        let before = (vm.kernel()?, switcher.kernel()?);
        fs::write(&path, "shadow")?;
        let after = (vm.kernel()?, switcher.kernel()?);
        Ok::<_, anyhow::Error>((after.0.saturating_sub(before.0), after.1.saturating_sub(before.1)))
    })();
    fs::write(root.join("cgroup.procs"), std::process::id().to_string())?;
    child.kill()?;
    child.wait()?;
    let (of_vm, of_switcher) = run?;
    n.number("charged to the VM", of_vm);
    n.number("charged to the switcher", of_switcher);
    n.expect(of_vm + BATCHES >= MAPS, || format!("the VM's cgroup got {of_vm} bytes of {MAPS}"));
    n.expect(of_switcher <= BATCHES, || format!("the switcher's cgroup got {of_switcher} bytes"));
    Ok(())
}
