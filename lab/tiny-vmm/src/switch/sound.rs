// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of switches that cannot come about, and of locks: whoever is in the way, the VM runs on in a mode in
//! which it can, and every wait has a limit.

use std::os::fd::{AsRawFd, OwnedFd};
use std::path::Path;
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use rustix::mm::{Advice, MapFlags, ProtFlags, UserfaultfdFlags, mmap_anonymous, userfaultfd};

use super::Notes;
use super::control::{ETIMEDOUT, with_limit};
use super::machine::{Args, DATA, DATA_GPA, Machine, MachineSpec};
use super::needs::allow_vmxon;
use super::routines::Routine;
use super::windows::between_switches;
use crate::memory::{HostPages, Memory};
use crate::vendor::Begins;

const CR4_VMXE: u64 = 1 << 13;

fn userfault(start: u64, len: u64) -> Result<OwnedFd> {
    // SAFETY: the descriptor is only used for memory of this program that nothing else refers to.
    let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.context("userfaultfd")?;
    super::host::userfault(&fd, start, len)?;
    Ok(fd)
}

/// A vCPU that waits in the kernel for a page of data: no switch can stop it.
pub(super) struct Stuck {
    fd: OwnedFd,
    page: u64,
}

impl Stuck {
    /// `page` of the data was not touched yet.
    pub(super) fn new(m: &Machine, vcpu: usize, page: u64) -> Result<Stuck> {
        let (at, page) = (DATA + (page << 12), m.memory.host_address() + DATA_GPA + (page << 12));
        let fd = userfault(page, 4096)?;
        m.go(vcpu, Routine::Fill, Args { rdi: at, rsi: 1, rdx: 4096, ..Args::default() })?;
        std::thread::sleep(Duration::from_millis(50));
        Ok(Stuck { fd, page })
    }

    pub(super) fn free(self, m: &Machine, vcpu: usize) -> Result<()> {
        super::host::supply(&self.fd, self.page)?;
        m.end(vcpu).map(drop)
    }
}

fn runs(n: &mut Notes, m: &Machine, vcpu: usize, when: &str) -> Result<()> {
    let before = m.count(vcpu)?;
    let until = Instant::now() + Duration::from_secs(5);
    while m.count(vcpu)? == before && Instant::now() < until {
        std::thread::sleep(Duration::from_millis(5));
    }
    n.expect(m.count(vcpu)? > before, || format!("vCPU {vcpu} does not run any more {when}"));
    Ok(())
}

/// A switch back to nested paging that fails: each vCPU goes on in shadow paging, also one that could not
/// begin a stay there as it is now (CR4.VMXE on Intel).
pub fn way_back(n: &mut Notes) -> Result<()> {
    with_limit(100, || {
        let m = Machine::new(MachineSpec { vcpus: 4, nested: Some(false), ..MachineSpec::default() })?;
        if crate::vm::vendor()?.hypervisor.begins == Begins::Vmxon {
            for vcpu in [0, 3] {
                m.with(vcpu, |v| {
                    let mut s = v.get_sregs()?;
                    s.cr4 |= CR4_VMXE;
                    Ok(v.set_sregs(&s)?)
                })?;
            }
        }
        m.spin(0)?;
        m.fill(1, DATA, 4096, 64, 1)?;
        let stuck = Stuck::new(&m, 2, 1000)?;
        for _ in 0..3 {
            n.same("with a vCPU that waits", m.try_switch("nested")?, Err(ETIMEDOUT));
            n.same("mode", m.mode()?.as_str(), "shadow");
            runs(n, &m, 0, "after a switch that failed")?;
            // vCPU 3 was outside of KVM_RUN.
            m.fill(3, DATA, 4096, 64, 1)?;
            n.same("pages wrong", m.wrong(1, DATA, 4096, 64, 1)?, 0);
        }
        n.same("timed out", m.counter("timed_out")?, 3);
        stuck.free(&m, 2)?;
        n.same("when the page has come", m.try_switch("nested")?, Ok(()));
        m.stop(0)?;
        n.same("pages wrong", m.wrong(3, DATA, 4096, 64, 1)?, 0);
        Ok(())
    })
}

/// A guest in shadow paging needs nested paging, and its VM cannot go there: the instruction fails after some
/// tries, as where the firmware has turned the feature off. Without a handler for that the guest shuts down.
pub fn cannot_go(n: &mut Notes) -> Result<()> {
    with_limit(100, || {
        let m = Machine::new(MachineSpec { vcpus: 3, nested: Some(false), ..MachineSpec::default() })?;
        let stuck = Stuck::new(&m, 1, 1000)?;
        m.spin(0)?;
        let begun = Instant::now();
        let end = match crate::vm::vendor()?.hypervisor.begins {
            Begins::Msr(msr, bit) => {
                m.run(2, Routine::Msr, Args { rsi: 0x3300, r8: msr.into(), r9: bit, ..Args::default() })
            }
            Begins::Vmxon => {
                allow_vmxon(&m)?;
                m.run(2, Routine::Vmxon, Args { rdi: 0x3308, rsi: 0x3300, ..Args::default() })
            }
        };
        let text = end.map_or_else(|e| format!("{e:#}"), |left| format!("it succeeded: {left:?}"));
        n.expect(text.contains("Shutdown"), || format!("the instruction was to fail: {text}"));
        n.expect(begun.elapsed() < Duration::from_secs(30), || format!("it took {:?}", begun.elapsed()));
        n.same("given up", m.counter("by_guest_failed")?, 1);
        let tries = m.counter("timed_out")?;
        n.expect((2..=10).contains(&tries), || format!("{tries} tries"));
        n.same("mode", m.mode()?.as_str(), "shadow");
        runs(n, &m, 0, "after another's instruction failed")?;
        stuck.free(&m, 1)?;
        n.same("when the page has come", m.try_switch("nested")?, Ok(()));
        m.stop(0)?;
        Ok(())
    })
}

/// Somebody has slots_lock for long, here a reader of the dirty log whose buffer is not there: the standstill
/// has its limit all the same.
pub fn slots_held(n: &mut Notes) -> Result<()> {
    with_limit(200, || {
        let m = Machine::new(MachineSpec { vcpus: 2, nested: Some(false), ..MachineSpec::default() })?;
        m.fill(1, DATA, 4096, 64, 1)?;
        // KVM_MEM_LOG_DIRTY_PAGES.
        m.slot(0, 0, m.memory.len(), m.memory.host_address(), 1)?;
        m.spin(0)?;
        let len = 64 << 10;
        // SAFETY: a new mapping.
        let buffer = unsafe {
            mmap_anonymous(std::ptr::null_mut(), len, ProtFlags::READ | ProtFlags::WRITE, MapFlags::PRIVATE)?
        } as u64;
        let missing = userfault(buffer, len as u64)?;
        let fd = Arc::clone(&m.fd);
        let reader = std::thread::spawn(move || dirty_log(&fd, buffer));
        std::thread::sleep(Duration::from_millis(100));
        for _ in 0..2 {
            n.same("with slots_lock held", m.try_switch("nested")?, Err(ETIMEDOUT));
            let stood = m.stats()?["quiesce_ns_worst"];
            n.expect(stood < 250_000_000, || format!("it stood still for {stood} ns"));
            n.same("mode", m.mode()?.as_str(), "shadow");
            runs(n, &m, 0, "after a switch that waited for slots_lock")?;
        }
        super::host::supply(&missing, buffer)?;
        reader.join().map_err(|_| anyhow::anyhow!("the log's reader died"))?.context("the dirty log")?;
        n.same("without it", m.try_switch("nested")?, Ok(()));
        m.stop(0)?;
        n.same("pages wrong", m.wrong(1, DATA, 4096, 64, 1)?, 0);
        // SAFETY: the mapping made above, which is not used any more.
        unsafe { rustix::mm::munmap(buffer as *mut _, len) }?;
        Ok(())
    })
}

/// KVM_GET_DIRTY_LOG of slot 0 into a buffer.
fn dirty_log(vm: &impl AsRawFd, buffer: u64) -> Result<()> {
    // _IOW(KVMIO, 0x42, struct kvm_dirty_log)
    const KVM_GET_DIRTY_LOG: u64 = 0x4010_ae42;
    let log = kvm_bindings::kvm_dirty_log { slot: 0, ..Default::default() };
    let mut log = log;
    log.__bindgen_anon_1.dirty_bitmap = buffer as *mut _;
    // SAFETY: the buffer is larger than the bitmap of the slot, and lives until the reader has ended.
    let end = unsafe { libc::ioctl(vm.as_raw_fd(), KVM_GET_DIRTY_LOG, &log) };
    ensure!(end == 0, std::io::Error::last_os_error());
    Ok(())
}

/// 4 KB pages of data of a VM that is changed.
const PAGES: u64 = 64 << 8;

/// A change of a VM, which the spare memory is for.
type Change = fn(&Machine, &Memory) -> Result<()>;

/// What else changes a VM during switches: slots that come and go, a migration that begins (with it the
/// splitting of all large entries), huge pages of the host that are split.
const CHANGES: [(&str, Change); 4] = [
    ("nothing", |_, _| Ok(())),
    ("slots", |m, spare| {
        m.slot(1, m.memory.len(), spare.len(), spare.host_address(), 0)?;
        m.slot(1, m.memory.len(), 0, spare.host_address(), 0)
    }),
    ("migration", |m, _| {
        const LOG: u32 = 1;
        let (len, host) = (m.memory.len(), m.memory.host_address());
        m.slot(0, 0, len, host, LOG)?;
        m.slot(0, 0, len, host, 0)
    }),
    ("split", |m, _| {
        // The last page of each 2 MB.
        for page in (511..PAGES).step_by(512) {
            super::host::advise(m, page, 1, Advice::LinuxDontNeed)?;
        }
        super::host::advise(m, 0, PAGES, Advice::LinuxHugepage)?;
        super::host::collapse(m, PAGES);
        Ok(())
    }),
];

/// Switches a VM to and fro until `end`: the numbers of switches that came about and that were given up.
fn switch_until(end: &AtomicBool, path: &Path, stay: Duration) -> Result<(u64, u64)> {
    let (mut switches, mut given_up) = (0, 0);
    for mode in ["shadow", "nested"].into_iter().cycle() {
        if end.load(Ordering::Relaxed) {
            break;
        }
        match std::fs::write(path, mode) {
            Ok(()) => switches += 1,
            Err(e) if e.raw_os_error() == Some(ETIMEDOUT) => given_up += 1,
            Err(e) => return Err(e).context(mode),
        }
        std::thread::sleep(stay);
    }
    Ok((switches, given_up))
}

/// The VM stands still for no longer than `paging_timeout_ms`, whatever else changes it.
pub fn standstill(n: &mut Notes) -> Result<()> {
    const LIMIT_MS: u64 = 50;
    let _on = super::host::huge_pages()?;
    with_limit(LIMIT_MS, || {
        for (what, change) in CHANGES {
            let backing = HostPages::Transparent;
            let m = Machine::new(MachineSpec { pages: PAGES, vcpus: 2, backing, ..MachineSpec::default() })?;
            let spare = Memory::new(2 << 20, HostPages::Small)?;
            m.fill(1, DATA, 4096, PAGES, 1)?;
            m.spin(0)?;
            let end = Arc::new(AtomicBool::new(false));
            let stay = between_switches(Duration::ZERO);
            let switcher = std::thread::spawn({
                let (end, path) = (Arc::clone(&end), m.mode_file());
                move || switch_until(&end, &path, stay)
            });
            let until = Instant::now() + Duration::from_secs(2);
            let mut changes = 0;
            let changed = (|| -> Result<()> {
                while Instant::now() < until {
                    change(&m, &spare)?;
                    changes += 1;
                    m.fill(1, DATA, 1 << 20, PAGES >> 8, 1)?;
                }
                Ok(())
            })();
            end.store(true, Ordering::Relaxed);
            let switched = switcher.join().map_err(|_| anyhow::anyhow!("the switcher died"))?;
            changed.context(what)?;
            let (switches, given_up) = switched.context(what)?;
            let stats = m.stats()?;
            let stood = stats["quiesce_ns_worst"] + stats["switch_ns_worst"];
            n.number(format!("{what}_worst_us"), stood / 1000);
            n.number(format!("{what}_switches"), switches);
            n.number(format!("{what}_given_up"), given_up);
            n.number(format!("{what}_changes"), changes);
            let timed = !crate::vm::pauses_at_random()?;
            n.expect(!timed || stood < (LIMIT_MS + 10) * 1_000_000, || {
                format!("{what}: it stood still for {stood} ns")
            });
            n.expect(switches > 10, || format!("{what}: only {switches} switches"));
            runs(n, &m, 0, "afterwards")?;
            m.stop(0)?;
        }
        Ok(())
    })
}
