// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Cases of control: permissions, refused switches, and vCPUs in every state.

use std::fs::OpenOptions;
use std::io::Write;
use std::process::{Child, Command, Stdio};
use std::sync::Arc;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use anyhow::{Context, Result, ensure};
use kvm_bindings::kvm_mp_state;

use super::Notes;
use super::machine::{Args, DATA, Machine, MachineSpec, capability, enable};
use super::routines::Routine;
use super::windows::between_switches;
use crate::vendor::Begins;

pub(super) const EBUSY: i32 = 16;
const EINVAL: i32 = 22;
pub(super) const ETIMEDOUT: i32 = 110;
/// KVM_MP_STATE_UNINITIALIZED.
const WAITS_FOR_SIPI: u32 = 1;

pub fn cap(n: &mut Notes) -> Result<()> {
    n.same("KVM_CHECK_EXTENSION", capability()?, 3);
    for (nested, mode) in [(false, "shadow"), (true, "nested")] {
        let m = Machine::new(MachineSpec { nested: Some(nested), ..MachineSpec::default() })?;
        n.same("mode chosen before the first vCPU", m.mode()?.as_str(), mode);
        m.fill(0, DATA, 4096, 100, 7)?;
        n.same("pages wrong", m.wrong(0, DATA, 4096, 100, 7)?, 0);
        let shadow_pages = m.stats()?["shadow_pages"];
        n.expect((shadow_pages > 0) != nested, || format!("{shadow_pages} shadow pages in {mode}"));
        enable(&m.fd, !nested)?;
        n.expect(m.mode()? != mode, || format!("{mode} after the capability chose the other"));
        n.same("pages wrong after the switch", m.wrong(0, DATA, 4096, 100, 7)?, 0);
        enable(&m.fd, nested)?;
        n.same("pages wrong after both switches", m.wrong(0, DATA, 4096, 100, 7)?, 0);
    }
    let m = Machine::new(MachineSpec::default())?;
    for args in [[2, 0, 0, 0], [1, 1, 0, 0], [0, 0, 0, 1]] {
        let cap = kvm_bindings::kvm_enable_cap { cap: super::machine::CAP, args, ..Default::default() };
        n.same(&format!("arguments {args:?}"), m.fd.enable_cap(&cap).map_err(|e| e.errno()), Err(EINVAL));
    }
    Ok(())
}

pub fn words(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec::default())?;
    n.same("mode at first", m.mode()?.as_str(), "nested");
    for word in ["x", "npt", "nested shadow", "nestedshadownestedshadow"] {
        n.same(word, m.try_switch(word)?, Err(EINVAL));
    }
    n.same("the mode it has", m.try_switch("nested\n")?, Ok(()));
    let s = m.stats()?;
    n.same("switches", (s["switches_to_shadow"], s["switches_to_nested"]), (0, 0));
    n.same("with a newline", m.try_switch("shadow\n")?, Ok(()));
    n.same("mode", m.mode()?.as_str(), "shadow");
    // Another user: the file's mode keeps him out, and if he was handed the file, the kernel does.
    let path = m.mode_file();
    let open = OpenOptions::new().write(true).open(&path)?;
    let status = Command::new(std::env::current_exe()?)
        .args(["switch-as", "65534"])
        .arg(&path)
        .stdin(Stdio::null())
        .stdout(open)
        .output()?;
    n.same(
        "what another user meets",
        String::from_utf8_lossy(&status.stderr).trim(),
        "open EACCES, write EPERM",
    );
    n.same("mode after him", m.mode()?.as_str(), "shadow");
    Ok(())
}

/// The program that `words` starts as another user. It tries to open the file, and to write to its standard
/// output, which is the file.
pub fn as_other_user(user: u32, path: &std::path::Path) -> Result<()> {
    use rustix::thread::{set_thread_gid, set_thread_groups, set_thread_uid};
    set_thread_groups(&[])?;
    set_thread_gid(rustix::process::Gid::from_raw(user))?;
    set_thread_uid(rustix::process::Uid::from_raw(user))?;
    let name = |e: std::io::Error| match e.raw_os_error() {
        Some(1) => "EPERM".to_owned(),
        Some(13) => "EACCES".to_owned(),
        _ => e.to_string(),
    };
    let opened = OpenOptions::new().write(true).open(path).map_or_else(name, |_| "allowed".into());
    let mut out = std::io::stdout();
    let wrote =
        out.write_all(b"nested\n").and_then(|()| out.flush()).map_or_else(name, |()| "allowed".into());
    eprintln!("open {opened}, write {wrote}");
    Ok(())
}

pub fn refuse(n: &mut Notes) -> Result<()> {
    let bit = &crate::vm::vendor()?.hypervisor;
    let m = Machine::new(MachineSpec { vcpus: 3, ..MachineSpec::default() })?;
    m.spin(0)?;
    m.fill(1, DATA, 4096, 64, 1)?;
    m.set_hypervisor(2, true)?;
    for _ in 0..3 {
        n.same(&format!("with {}", bit.name), m.try_switch("shadow")?, Err(EBUSY));
        n.same("mode", m.mode()?.as_str(), "nested");
    }
    n.same("pages wrong", m.wrong(1, DATA, 4096, 64, 1)?, 0);
    let before = m.count(0)?;
    std::thread::sleep(Duration::from_millis(20));
    n.expect(m.count(0)? > before, || "the running vCPU does not run any more".into());
    let s = m.stats()?;
    n.same("refused", s["refused"], 3);
    n.same("switches", s["switches_to_shadow"], 0);
    m.set_hypervisor(2, false)?;
    n.same("without it", m.try_switch("shadow")?, Ok(()));
    n.same("pages wrong in shadow", m.wrong(1, DATA, 4096, 64, 1)?, 0);
    // A VMM that makes a vCPU a hypervisor now, as for a guest that migrates here, has the VM in nested
    // paging. A bit that only allows VMXON changes nothing.
    m.set_hypervisor(2, true)?;
    let mode = if bit.begins == Begins::Vmxon { "shadow" } else { "nested" };
    n.same(&format!("mode after KVM_SET_SREGS with {}", bit.name), m.mode()?.as_str(), mode);
    let expected = u64::from(mode == "nested");
    n.same("switches for it", m.switches_by_guest(expected)?, expected);
    n.same("pages wrong after it", m.wrong(1, DATA, 4096, 64, 1)?, 0);
    m.set_hypervisor(2, false)?;
    n.same("back after it", m.try_switch("nested")?, Ok(()));
    m.stop(0)?;
    Ok(())
}

/// Sets the limit of a switch while `f` runs.
pub(super) fn with_limit(ms: u64, f: impl FnOnce() -> Result<()>) -> Result<()> {
    const LIMIT: &str = "/sys/module/kvm/parameters/paging_timeout_ms";
    let old = std::fs::read_to_string(LIMIT).context(LIMIT)?;
    std::fs::write(LIMIT, ms.to_string())?;
    let result = f();
    std::fs::write(LIMIT, old.trim())?;
    result
}

pub fn timeout(n: &mut Notes) -> Result<()> {
    with_limit(100, || late(n))
}

/// A switch while a vCPU waits in the kernel for a page from user space.
fn late(n: &mut Notes) -> Result<()> {
    use rustix::mm::{UserfaultfdFlags, userfaultfd};
    let m = Machine::new(MachineSpec { vcpus: 3, ..MachineSpec::default() })?;
    m.spin(0)?;
    m.fill(1, DATA, 4096, 512, 5)?;
    // SAFETY: the descriptor is only used for memory of this machine.
    let fd = unsafe { userfaultfd(UserfaultfdFlags::CLOEXEC) }.context("userfaultfd")?;
    let page = m.memory.host_address() + super::machine::DATA_GPA + (1000 << 12);
    super::host::userfault(&fd, page, 4096)?;
    m.go(2, Routine::Fill, Args { rdi: DATA + (1000 << 12), rsi: 1, rdx: 4096, ..Args::default() })?;
    std::thread::sleep(Duration::from_millis(50));
    n.same("with a vCPU that waits for a page", m.try_switch("shadow")?, Err(ETIMEDOUT));
    n.same("mode", m.mode()?.as_str(), "nested");
    n.same("rolled back", m.stats()?["rolled_back"], 1);
    let before = m.count(0)?;
    std::thread::sleep(Duration::from_millis(20));
    n.expect(m.count(0)? > before, || "the running vCPU does not run any more".into());
    n.same("pages wrong", m.wrong(1, DATA, 4096, 512, 5)?, 0);
    super::host::supply(&fd, page)?;
    m.end(2)?;
    n.same("when it has come", m.try_switch("shadow")?, Ok(()));
    n.same("pages wrong in shadow", m.wrong(1, DATA, 4096, 512, 5)?, 0);
    m.stop(0)?;
    Ok(())
}

fn state(m: &Machine, vcpu: usize, state: u32) -> Result<()> {
    m.with(vcpu, move |v| Ok(v.set_mp_state(kvm_mp_state { mp_state: state })?))
}

pub fn vcpus(n: &mut Notes) -> Result<()> {
    // With interrupt controllers of KVM's: 0 and 1 run, 2 is halted, 3 waits for SIPI, 4 never ran,
    // 5 comes and goes.
    let m = Machine::new(MachineSpec { vcpus: 6, irqchip: true, ..MachineSpec::default() })?;
    for v in [1, 2, 5] {
        state(&m, v, 0)?;
    }
    m.spin(0)?;
    m.spin(1)?;
    m.go(2, Routine::Halt, Args::default())?;
    state(&m, 3, WAITS_FOR_SIPI)?;
    m.go(3, Routine::Halt, Args::default())?;
    std::thread::sleep(Duration::from_millis(20));
    let rounds = 50;
    for round in 0..rounds {
        for mode in ["shadow", "nested"] {
            m.fill(5, DATA, 4096, 200, round)?;
            m.switch(mode)?;
            n.same("pages wrong", m.wrong(5, DATA, 4096, 200, round)?, 0);
        }
    }
    for v in [0, 1] {
        let before = m.count(v)?;
        std::thread::sleep(Duration::from_millis(50));
        n.expect(m.count(v)? > before, || format!("vCPU {v} does not run any more"));
    }
    let s = m.stats()?;
    n.same("switches", s["switches_to_shadow"] + s["switches_to_nested"], 2 * rounds);
    n.number("quiesce_us_worst", s["quiesce_ns_worst"] / 1000);
    n.number("switch_us_worst", s["switch_ns_worst"] / 1000);
    n.number("resume_us_worst", s["resume_ns_worst"] / 1000);
    m.stop(0)?;
    m.stop(1)?;
    drop(m);
    // The halted vCPU must still be halted: a switch wakes it, and it halts again.
    let m = Machine::new(MachineSpec { vcpus: 1, irqchip: true, ..MachineSpec::default() })?;
    m.go(0, Routine::Halt, Args::default())?;
    std::thread::sleep(Duration::from_millis(20));
    let exits = m.kvm_stat("halt_exits")?;
    for mode in ["shadow", "nested", "shadow", "nested"] {
        m.switch(mode)?;
    }
    n.same("halts", m.kvm_stat("halt_exits")?, exits);
    Ok(())
}

pub fn created(n: &mut Notes) -> Result<()> {
    let mut m = Machine::new(MachineSpec::default())?;
    let end = Arc::new(AtomicBool::new(false));
    let path = m.mode_file();
    let stay = between_switches(Duration::from_millis(1));
    let switcher = {
        let end = Arc::clone(&end);
        std::thread::spawn(move || -> Result<u64> {
            let mut switches = 0;
            while !end.load(Ordering::Relaxed) {
                std::fs::write(&path, if switches % 2 == 0 { "shadow" } else { "nested" })?;
                switches += 1;
                std::thread::sleep(stay);
            }
            Ok(switches)
        })
    };
    let made = (|| -> Result<()> {
        for tag in 0..40 {
            let v = m.add_vcpu()?;
            m.fill(v, DATA, 4096, 50, tag)?;
            n.same("pages wrong", m.wrong(v, DATA, 4096, 50, tag)?, 0);
        }
        Ok(())
    })();
    end.store(true, Ordering::Relaxed);
    let switches = switcher.join().map_err(|_| anyhow::anyhow!("the switcher died"))?;
    made?;
    n.number("switches", switches?);
    for v in 0..m.len() {
        n.same("pages wrong at the end", m.wrong(v, DATA, 4096, 50, 39)?, 0);
    }
    Ok(())
}

pub fn two_writers(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec { vcpus: 2, ..MachineSpec::default() })?;
    m.spin(0)?;
    let path = m.mode_file();
    let until = Instant::now() + Duration::from_millis(1500);
    let writers: Vec<_> = ["shadow", "nested"]
        .into_iter()
        .map(|mode| {
            let path = path.clone();
            std::thread::spawn(move || -> Result<u64> {
                let mut writes = 0;
                while Instant::now() < until {
                    std::fs::write(&path, mode)?;
                    writes += 1;
                }
                Ok(writes)
            })
        })
        .collect();
    let mut tag = 0;
    while Instant::now() < until {
        tag += 1;
        m.fill(1, DATA, 4096, 20, tag)?;
        n.same("pages wrong", m.wrong(1, DATA, 4096, 20, tag)?, 0);
    }
    for w in writers {
        w.join().map_err(|_| anyhow::anyhow!("a writer died"))?.context("a write")?;
    }
    let s = m.stats()?;
    let (to, back) = (s["switches_to_shadow"], s["switches_to_nested"]);
    n.number("switches", to + back);
    n.expect(to > 0 && to - back <= 1, || format!("{to} switches to shadow and {back} back"));
    n.same("mode", m.mode()? == "shadow", to > back);
    m.stop(0)?;
    Ok(())
}

/// The program that `killed` and `closed` start and kill. It prints the path of its mode file and runs all
/// vCPUs.
pub fn victim(pages: u64) -> Result<()> {
    let m = Machine::new(MachineSpec { vcpus: 3, pages, large: pages > 100_000, ..MachineSpec::default() })?;
    for v in 0..m.len() {
        m.spin(v)?;
    }
    println!("{}", m.mode_file().display());
    std::thread::sleep(Duration::from_secs(3600));
    Ok(())
}

/// Starts a process with a VM, and waits for it. Returns the process, and the VM's file of the mode.
pub(super) fn start_victim(pages: u64) -> Result<(Child, String)> {
    use std::io::{BufRead, BufReader};
    let mut child = Command::new(std::env::current_exe()?)
        .args(["switch-victim", &pages.to_string()])
        .stdout(Stdio::piped())
        .spawn()?;
    let mut path = String::new();
    BufReader::new(child.stdout.take().context("no pipe")?).read_line(&mut path)?;
    Ok((child, path.trim().to_owned()))
}

pub fn killed(n: &mut Notes) -> Result<()> {
    let mut switched = 0;
    for round in 0..50u64 {
        let (mut child, path) = start_victim(1024)?;
        let switcher = std::thread::spawn({
            let path = path.clone();
            move || {
                let mut switches = 0u64;
                loop {
                    let mode = if switches % 2 == 0 { "shadow" } else { "nested" };
                    match std::fs::write(&path, mode) {
                        Ok(()) => switches += 1,
                        Err(e) => return (switches, e),
                    }
                }
            }
        });
        std::thread::sleep(Duration::from_micros(3000 + 777 * round));
        child.kill()?;
        child.wait()?;
        // The VM goes when the last switch has released it; the file is gone then.
        let (switches, error) = switcher.join().map_err(|_| anyhow::anyhow!("the switcher died"))?;
        switched += switches;
        let gone = error.kind() == std::io::ErrorKind::NotFound || error.raw_os_error() == Some(5);
        n.expect(gone, || format!("round {round}: {error}"));
        ensure!(!std::path::Path::new(&path).exists(), "{path} is still there");
    }
    n.number("switches", switched);
    n.expect(switched > 50, || format!("only {switched} switches before the kills"));
    Ok(())
}

pub fn closed(n: &mut Notes) -> Result<()> {
    let m = Machine::new(MachineSpec::default())?;
    m.fill(0, DATA, 4096, 100, 3)?;
    let path = m.mode_file();
    let mut held = OpenOptions::new().read(true).write(true).open(&path)?;
    drop(m);
    // An open file keeps the VM alive, without its process's descriptors.
    for mode in ["shadow", "nested"] {
        let end = held.write_all(mode.as_bytes());
        n.expect(end.is_ok(), || format!("{mode} of a VM that is closed: {end:?}"));
    }
    drop(held);
    n.expect(!path.exists(), || format!("{} is still there", path.display()));
    Ok(())
}
