// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of what a VMM does beside a switch: it sets state that only nested paging has while signals come,
//! writes back what it read, plugs vCPUs in, assigns a device, or has no memory.

use std::fs;
use std::sync::atomic::{AtomicBool, Ordering};
use std::sync::{Arc, Mutex};
use std::time::Duration;

use anyhow::{Context, Result};
use kvm_ioctls::SyncReg;

use super::Notes;
use super::machine::{Args, DATA, Machine, MachineSpec};
use super::modes::smm_handler;
use super::needs::without_reverse_maps;
use super::routines::Routine;
use super::sound::Stuck;
use super::windows::{between_switches, widened};
use crate::vendor::Begins;

const ENOMEM: i32 = 12;
const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
const EOPNOTSUPP: i32 = 95;
const SVME: u64 = 1 << 12;

/// Whether a register bit makes a vCPU a hypervisor here; notes that the case needs that.
fn by_register(n: &mut Notes) -> Result<bool> {
    let so = crate::vm::vendor()?.hypervisor.begins != Begins::Vmxon;
    if !so {
        n.skip("no register that KVM_SET_SREGS sets makes a vCPU a hypervisor on this processor");
    }
    Ok(so)
}

/// KVM_SET_SREGS with EFER.SVME brings the VM back to nested paging, whatever signals the VMM's thread gets
/// meanwhile. A vCPU that waits for a page keeps the switch waiting for them.
pub fn signals(n: &mut Notes) -> Result<()> {
    if !by_register(n)? {
        return Ok(());
    }
    let m = Machine::new(MachineSpec { vcpus: 3, ..MachineSpec::default() })?;
    m.fill(1, DATA, 4096, 200, 3)?;
    let rounds = 5;
    // After each signal the call starts its switch again.
    let pause = between_switches(Duration::from_millis(2));
    for round in 0..rounds {
        m.switch("shadow")?;
        m.fill(1, DATA, 4096, 200, 3)?;
        let stuck = Stuck::new(&m, 0, 300 + round)?;
        m.begin_with(2, |v| {
            let mut s = v.get_sregs()?;
            s.efer |= SVME;
            Ok(v.set_sregs(&s)?)
        })?;
        // On a slow machine the call takes its time to begin.
        for sent in 1..2000 {
            m.signal(2)?;
            std::thread::sleep(pause);
            if sent >= 20 && m.mode()? != "shadow" {
                break;
            }
        }
        n.same("mode while the switch waits", m.mode()?.as_str(), "shadow -> nested");
        stuck.free(&m, 0)?;
        let set = m.end(2);
        n.expect(set.is_ok(), || format!("round {round}: KVM_SET_SREGS: {set:?}"));
        n.same("mode", m.mode()?.as_str(), "nested");
        m.set_hypervisor(2, false)?;
    }
    n.same("pages wrong", m.wrong(1, DATA, 4096, 200, 3)?, 0);
    Ok(())
}

/// A KVM_RUN that could not set EFER.SVME from its registers page does not make a later call bring the VM
/// back.
pub fn forgotten(n: &mut Notes) -> Result<()> {
    if !by_register(n)? {
        return Ok(());
    }
    let m = Machine::new(MachineSpec { vcpus: 2, nested: Some(false), ..MachineSpec::default() })?;
    m.with(1, |v| {
        let mut s = v.get_sregs()?;
        s.efer |= SVME;
        v.set_sync_dirty_reg(SyncReg::SystemRegister);
        v.sync_regs_mut().sregs = s;
        let run = v.run().map(|exit| format!("{exit:?}")).map_err(|e| e.errno());
        v.clear_sync_dirty_reg(SyncReg::SystemRegister);
        anyhow::ensure!(run == Err(EINVAL), "KVM_RUN with EFER.SVME in its page: {run:?}");
        let events = v.get_vcpu_events()?;
        Ok(v.set_vcpu_events(&events)?)
    })?;
    n.same("mode", m.mode()?.as_str(), "shadow");
    n.same("switches for the guest", m.stats()?["switches_by_guest"], 0);
    m.fill(1, DATA, 4096, 100, 2)?;
    n.same("pages wrong", m.wrong(1, DATA, 4096, 100, 2)?, 0);
    Ok(())
}

/// A VMM that reads and writes back the events of a vCPU in system management mode changes nothing.
pub fn events_in_smm(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { nested: Some(false), keys: true, ..MachineSpec::default() })?;
    let handler = smm_handler(&m)?;
    for round in 1..=5 {
        handler.enter(&m, round)?;
        m.interrupt(0)?;
        m.with(0, |v| {
            let events = v.get_vcpu_events()?;
            anyhow::ensure!(events.smi.smm == 1, "the vCPU is not in SMM");
            Ok(v.set_vcpu_events(&events)?)
        })?;
        n.same("mode", m.mode()?.as_str(), "shadow");
        m.resume(0)?;
        handler.leave(&m)?;
        m.stop(0)?;
        n.same("pages wrong", m.wrong(0, DATA, 4096, 64, round)?, 0);
    }
    n.same("switches for the guest", m.stats()?["switches_by_guest"], 0);
    Ok(())
}

/// A vCPU that is plugged in while the VM is switched has the VM's mode from the start.
pub fn hot_plugged(n: &mut Notes) -> Result<()> {
    let mut m = Machine::new(MachineSpec::default())?;
    let end = Arc::new(AtomicBool::new(false));
    let stay = between_switches(Duration::from_micros(300));
    let switcher = std::thread::spawn({
        let (end, path) = (Arc::clone(&end), m.mode_file());
        move || -> (u64, u64) {
            let (mut to_shadow, mut refused) = (0, 0);
            while !end.load(Ordering::Relaxed) {
                match fs::write(&path, "shadow") {
                    Ok(()) => to_shadow += 1,
                    Err(_) => refused += 1,
                }
                std::thread::sleep(stay);
                // The vCPU may have brought the VM back before.
                let _ = fs::write(&path, "nested");
                std::thread::sleep(stay);
            }
            (to_shadow, refused)
        }
    });
    let made = (|| -> Result<()> {
        for tag in 0..30 {
            let v = m.add_vcpu()?;
            if tag % 2 == 0 {
                m.set_hypervisor(v, true).with_context(|| format!("vCPU {v}, just plugged in"))?;
                m.set_hypervisor(v, false)?;
            }
            m.fill(v, DATA, 4096, 50, tag)?;
            n.same("pages wrong", m.wrong(v, DATA, 4096, 50, tag)?, 0);
        }
        Ok(())
    })();
    end.store(true, Ordering::Relaxed);
    let (to_shadow, refused) = switcher.join().map_err(|_| anyhow::anyhow!("the switcher died"))?;
    made?;
    n.number("switches_to_shadow", to_shadow);
    n.number("refused", refused);
    let least = if widened() { 1 } else { 10 };
    n.expect(to_shadow + refused >= least, || {
        format!("only {to_shadow} switches to shadow, and {refused} refused")
    });
    Ok(())
}

/// A device without coherent DMA comes to a VM in shadow paging. Only EPT gives the guest's memory types, so
/// on Intel the VM goes back, and stays. The device is one of the modules of `kernel/tests/windows`.
pub fn noncoherent_dma(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { vcpus: 2, nested: Some(false), ..MachineSpec::default() })?;
    let device = m.mode_file().with_file_name("test_noncoherent_dma");
    if !device.exists() {
        n.skip("only the modules of kernel/tests/windows have a device to try");
        return Ok(());
    }
    let on_intel = crate::vm::vendor()?.hypervisor.begins == Begins::Vmxon;
    m.spin(0)?;
    for round in 0..3 {
        m.switch("shadow")?;
        m.fill(1, DATA, 4096, 100, round)?;
        fs::write(&device, "1")?;
        n.same("mode with the device", m.mode()?.as_str(), if on_intel { "nested" } else { "shadow" });
        let again = m.try_switch("shadow")?;
        n.same("to shadow paging with it", again, if on_intel { Err(EOPNOTSUPP) } else { Ok(()) });
        n.same("refused for it", m.counter("refused_dma")?, if on_intel { round + 1 } else { 0 });
        n.same("pages wrong", m.wrong(1, DATA, 4096, 100, round)?, 0);
        fs::write(&device, "0")?;
    }
    n.same("without it", m.try_switch("shadow")?, Ok(()));
    m.stop(0)?;
    Ok(())
}

/// Segments that a processor of Intel's takes in one mode alone. Under EPT a data segment's privilege may be
/// less than its selector asks for; under shadow paging KVM would emulate the guest, and its emulator
/// delivers no exceptions. Under shadow paging KVM takes segments that are not marked as accessed, with which
/// an entry fails under EPT.
pub fn odd_segments(n: &mut Notes) -> Result<()> {
    const ACCESSED: u8 = 1;
    let m = Machine::new(MachineSpec { vcpus: 2, ..MachineSpec::default() })?;
    let on_intel = crate::vm::vendor()?.hypervisor.begins == Begins::Vmxon;
    let set = |exception: bool, odd: bool| {
        m.with(0, move |v| {
            let (mut s, mut e) = (v.get_sregs()?, v.get_vcpu_events()?);
            s.ds.selector = if odd { s.ds.selector | 3 } else { s.ds.selector & !3 };
            (e.exception.injected, e.exception.nr) = (exception.into(), 6);
            v.set_sregs(&s)?;
            Ok(v.set_vcpu_events(&e)?)
        })
    };
    let mut refusals = 0;
    for (exception, odd) in [(true, false), (false, true), (true, true)] {
        set(exception, odd)?;
        let refused = on_intel && odd;
        refusals += u64::from(refused);
        let what = format!("to shadow paging, exception {exception}, odd segments {odd}");
        n.same(&what, m.try_switch("shadow")?, if refused { Err(EBUSY) } else { Ok(()) });
        n.same("mode", m.mode()?.as_str(), if refused { "nested" } else { "shadow" });
        n.same("refused for it", m.counter("refused_real_mode")?, refusals);
        set(false, false)?;
        n.same("without them", m.try_switch("shadow")?, Ok(()));
        m.with(0, |v| {
            let mut s = v.get_sregs()?;
            (s.cs.type_, s.ds.type_) = (s.cs.type_ & !ACCESSED, s.ds.type_ & !ACCESSED);
            Ok(v.set_sregs(&s)?)
        })?;
        m.switch("nested")?;
        for vcpu in 0..2 {
            m.fill(vcpu, DATA, 4096, 50, 3)?;
            n.same("pages wrong", m.wrong(vcpu, DATA, 4096, 50, 3)?, 0);
        }
    }
    Ok(())
}

/// The kernel fails the Nth allocation of the thread that asks for it (Documentation/fault-injection).
struct Failing;

impl Failing {
    const NTH: &str = "/proc/thread-self/fail-nth";

    fn here() -> Result<bool> {
        if !std::path::Path::new(Failing::NTH).exists() {
            return Ok(false);
        }
        for kind in ["failslab", "fail_page_alloc"] {
            let dir = std::path::Path::new("/sys/kernel/debug").join(kind);
            // Allocations that may wait fail, too, and without a line in the log.
            fs::write(dir.join("ignore-gfp-wait"), "N")?;
            fs::write(dir.join("verbose"), "0")?;
            if kind == "fail_page_alloc" {
                fs::write(dir.join("min-order"), "0")?;
                fs::write(dir.join("ignore-gfp-highmem"), "N")?;
            }
        }
        Ok(true)
    }

    /// Calls `f` with the allocation `nth` failing: its result, and whether there was such an allocation.
    fn at<T>(nth: u64, f: impl FnOnce() -> T) -> Result<(T, bool)> {
        use std::os::fd::AsFd;
        let file = fs::OpenOptions::new().read(true).write(true).open(Failing::NTH)?;
        let (text, mut left) = (nth.to_string(), [0; 32]);
        rustix::io::pwrite(file.as_fd(), text.as_bytes(), 0)?;
        let result = f();
        let n = rustix::io::pread(file.as_fd(), &mut left, 0)?;
        rustix::io::pwrite(file.as_fd(), b"0", 0)?;
        Ok((result, left[..n].trim_ascii() == b"0"))
    }
}

/// Each allocation fails in turn, in a switch either way, in a vCPU's first faults after it, and while a VM
/// is made for shadow paging: the VM runs in one of its modes afterwards, or was not made.
pub fn no_memory(n: &mut Notes) -> Result<()> {
    if !Failing::here()? {
        n.skip("this kernel fails no allocations: kernel/debug-kernel builds one that does");
        return Ok(());
    }
    let [begins, ends] = super::FAILING.map(|text| format!("<4>{text}"));
    fs::write("/dev/kmsg", begins)?;
    let end = failures(n);
    fs::write("/dev/kmsg", ends)?;
    end
}

fn failures(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { vcpus: 3, ..MachineSpec::default() })?;
    m.spin(0)?;
    for (from, to) in [("nested", "shadow"), ("shadow", "nested")] {
        for nth in 1.. {
            m.switch(from)?;
            m.fill(1, DATA, 4096, 100, nth)?;
            let path = m.mode_file();
            let (end, failed) = Failing::at(nth, || fs::write(&path, to))?;
            let mode = m.mode()?;
            n.expect(end.is_ok() == (mode == to), || {
                format!("to {to}, allocation {nth}: {end:?} and {mode}")
            });
            n.same("pages wrong", m.wrong(1, DATA, 4096, 100, nth)?, 0);
            n.same("pages wrong of another vCPU", m.wrong(2, DATA, 4096, 100, nth)?, 0);
            if end.is_err() && to == "shadow" {
                without_reverse_maps(n, &m)?;
            }
            if !failed {
                n.expect(end.is_ok(), || format!("to {to}, without a failure: {end:?}"));
                n.number(format!("allocations_to_{to}"), nth - 1);
                break;
            }
        }
    }
    m.stop(0)?;
    m.prepare(1, Routine::Fill, Args { rdi: DATA, rsi: 64, rdx: 4096, ..Args::default() })?;
    // KVM_RUN itself, right after a switch.
    for nth in 1..500 {
        m.switch("nested")?;
        m.switch("shadow")?;
        let answer = Arc::new(Mutex::new(None));
        let told = Arc::clone(&answer);
        // The routine that ran before starts again.
        m.with(1, move |v| {
            let end = Failing::at(nth, || v.run().map(|exit| format!("{exit:?}")).map_err(|e| e.errno()))?;
            *told.lock().map_err(|_| anyhow::anyhow!("poisoned"))? = Some(end);
            Ok(())
        })?;
        let end = answer.lock().map_err(|_| anyhow::anyhow!("poisoned"))?.take();
        let (end, failed) = end.context("KVM_RUN did not end")?;
        n.expect(end.is_ok() || end == Err(ENOMEM), || format!("KVM_RUN, allocation {nth}: {end:?}"));
        m.fill(1, DATA, 4096, 64, nth)?;
        n.same("pages wrong", m.wrong(2, DATA, 4096, 64, nth)?, 0);
        m.prepare(1, Routine::Fill, Args { rax: nth, rdi: DATA, rsi: 64, rdx: 4096, ..Args::default() })?;
        if !failed && nth > 1 {
            n.number("allocations_of_kvm_run", nth - 1);
            break;
        }
    }
    drop(m);
    for nth in 1.. {
        let spec = MachineSpec { vcpus: 1, nested: Some(false), ..MachineSpec::default() };
        let (made, failed) = Failing::at(nth, || Machine::new(spec))?;
        if let Ok(m) = &made {
            m.fill(0, DATA, 4096, 20, nth)?;
            n.same("pages wrong of a new VM", m.wrong(0, DATA, 4096, 20, nth)?, 0);
        }
        if !failed {
            n.expect(made.is_ok(), || format!("a VM, without a failure: {:?}", made.err()));
            n.number("allocations_of_a_vm", nth - 1);
            break;
        }
    }
    Ok(())
}
