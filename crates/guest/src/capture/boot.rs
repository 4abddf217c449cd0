// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Boots a guest up to the instruction at which init stops the machine, and goes on from there in another
//! machine.
//!
//! A run without a kept boot does both as well: the machine that boots is saved and ended, and the run goes
//! on in a new one. All runs therefore begin from a loaded state, and a run from a kept boot equals one that
//! has booted.
//!
//! QEMU saves devices and vCPUs by its migration. The guest's memory is a shared file, which the migration
//! leaves out (`x-ignore-shared`). QEMU does not migrate a mounted 9p file system; init stops before it
//! mounts one.

use std::fs::File;
use std::io::{self, Read as _, Seek as _, Write as _};
use std::os::fd::AsFd as _;
use std::os::unix::fs::FileExt as _;
use std::os::unix::net::UnixStream;
use std::path::PathBuf;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bifold_host::qmp::Qmp;
use serde_json::{Value, json};

use super::command::{self, Engine, Inherited, Stage};
use super::output::tail;
use super::pace::Boot;
use super::run::{BOOT_SECONDS, Emulator};
use crate::boots::{Booted, Found, Key, KeyParts, Store, interrupted, parse_registers, set_clock};
use crate::error::GuestError;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::memfd::memfd;
use crate::qemu::{Qemu, firmware, path_of};
use crate::spec::GuestSpec;

/// Time limit of each of QEMU's answers, and of loading and saving. QEMU answers at once, but may wait for a
/// CPU.
const PATIENCE: Duration = Duration::from_secs(30);
/// Time between two questions.
const PAUSE: Duration = Duration::from_millis(5);
/// What init executes between reading the counter and stopping, 1 ns each. QEMU stops a machine in two steps
/// on two threads. Between them a machine whose clock counts instructions may look idle, and QEMU then moves
/// the clock to the next timer (`icount_start_warp_timer`), depending on the host's load. The saved clock is
/// therefore set to the stop.
const STOP_NS: u64 = 6;
/// Boots of which each is given up because the stopped machine's timer has expired. It is rare: QEMU's vCPU
/// thread must wake several times at certain moments while the machine stops and is saved.
const TRIES: usize = 5;
/// QEMU's word for a machine whose guest has written to the pvpanic device.
const STOPPED: &str = "guest-panicked";

/// What a machine is made of.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) spec: &'a GuestSpec,
    pub(super) qemu: &'a Qemu,
    pub(super) kernel: &'a Kernel,
}

/// The boots of one kind of guest: kept ones and a new one.
pub(super) struct Boots<'a> {
    parts: Parts<'a>,
    initrd: File,
    key: Key,
    /// `None` if no boot is to be kept.
    store: Option<Store>,
}

impl<'a> Boots<'a> {
    pub(super) fn of(parts: Parts<'a>) -> Result<Boots<'a>, GuestError> {
        let Parts { spec, qemu, kernel } = parts;
        let archive = initramfs::boot_initramfs(spec, kernel)?;
        let mut initrd = File::from(memfd("bifold-initrd", 0)?);
        initrd.write_all(&archive).map_err(GuestError::os("writing the initramfs"))?;
        // Any descriptor will do: the key has none.
        let fd = initrd.as_fd();
        let stage = Stage::Boot { initrd: fd, qmp: fd, state: fd };
        let all = Inherited {
            stage,
            console: fd,
            stdout: fd,
            stderr: fd,
            kept: Some(fd),
            control: fd,
            places: Some(fd),
        };
        let engine = Engine::Tcg { ram: fd, plugin: None };
        let arguments = command::arguments(engine, kernel, spec, &all);
        let key = Key::new(&KeyParts {
            spec,
            qemu,
            arguments: &arguments,
            kernel_version: &kernel.version,
            kernel: &kernel.image,
            initramfs: &archive,
        })?;
        // Without qboot, QEMU chooses a firmware whose file the key does not know.
        let store = spec.kept_boots.as_deref().filter(|_| firmware().is_some()).map(Store::at);
        Ok(Boots { parts, initrd, key, store })
    }

    /// The kept boot, if there is one that can be used.
    pub(super) fn kept(&self, note: &mut dyn FnMut(&str)) -> Option<Booted> {
        match self.store.as_ref()?.find(&self.key) {
            Found::Boot(booted) => return Some(booted),
            Found::Nothing => {}
            Found::Damaged(why) => self.forget(&why, note),
            Found::Unread(why) => note(&format!("the kept boot cannot be read: {why}")),
        }
        None
    }

    /// The folder of the kept boot.
    pub(super) fn folder(&self) -> Option<PathBuf> {
        Some(self.store.as_ref()?.folder(&self.key))
    }

    /// Removes the kept boot for this reason.
    pub(super) fn forget(&self, why: &str, note: &mut dyn FnMut(&str)) {
        let Some(store) = &self.store else { return };
        match store.remove(&self.key) {
            Ok(()) => note(&format!("the kept boot was removed: {why}")),
            Err(e) => note(&format!("the kept boot cannot be used ({why}), nor removed: {e}")),
        }
    }

    /// Boots, and keeps the boot.
    pub(super) fn boot(&self, stop: &AtomicBool, note: &mut dyn FnMut(&str)) -> Result<Booted, GuestError> {
        let booted = boot(self.parts, &self.initrd, stop)?;
        if let Some(store) = &self.store {
            if let Err(why) = store.keep(&self.key, &booted) {
                note(&format!("the guest's boot was not kept: {why}"));
            }
        }
        Ok(booted)
    }
}

/// A machine that stopped as it should.
fn boot(parts: Parts, initrd: &File, stop: &AtomicBool) -> Result<Booted, GuestError> {
    for _ in 0..TRIES {
        if let Some(booted) = boot_once(parts, initrd, stop)? {
            return Ok(booted);
        }
    }
    Err(GuestError::Guest(format!("the guest's timer expired at its stop in {TRIES} boots of {TRIES}")))
}

/// `None` if an interrupt came to the stopped machine: QEMU moved the clock to the next timer, as it may, and
/// then ran the timer too. The tick would come at the start of every run from this boot, some milliseconds
/// early.
fn boot_once(parts: Parts, initrd: &File, stop: &AtomicBool) -> Result<Option<Booted>, GuestError> {
    let Parts { spec, qemu, kernel } = parts;
    let ram = File::from(memfd("bifold-ram", spec.memory_mib << 20)?);
    let pair = || UnixStream::pair().map_err(GuestError::os("socketpair"));
    let ((control, its_control), (qmp, its_qmp)) = (pair()?, pair()?);
    control.set_nonblocking(true).map_err(GuestError::os("socketpair"))?;
    let file = |name| memfd(name, 0).map(File::from);
    let (console, log, unused) = (file("bifold-console")?, file("bifold-log")?, file("bifold-unused")?);
    let mut state = file("bifold-state")?;
    let inherited = Inherited {
        stage: Stage::Boot { initrd: initrd.as_fd(), qmp: its_qmp.as_fd(), state: state.as_fd() },
        console: console.as_fd(),
        stdout: unused.as_fd(),
        stderr: unused.as_fd(),
        kept: Some(unused.as_fd()),
        control: its_control.as_fd(),
        places: Some(unused.as_fd()),
    };
    let engine = Engine::Tcg { ram: ram.as_fd(), plugin: None };
    let to_log = log.try_clone().map_err(GuestError::os("dup"))?.into();
    let child = Emulator(command::spawn(qemu, engine, kernel, spec, &inherited, to_log)?);
    drop((its_control, its_qmp));
    let mut machine = Booting { child, control, said: String::new(), console, log };
    let said = match machine.stopped(&qmp, &state, stop) {
        Ok(said) => said,
        Err(Stopped::For(e)) => return Err(e),
        Err(Stopped::Qmp(e)) => return Err(machine.died(&e)),
    };
    let unknown = |what: &str| GuestError::Guest(format!("QEMU {}: {what} not understood", qemu.version));
    let stopped = parse_registers(&said.registers).ok_or_else(|| unknown("registers are"))?;
    if interrupted(&said.interrupts).ok_or_else(|| unknown("interrupts are"))? {
        return Ok(None);
    }
    let mut bytes = Vec::new();
    let known = state.rewind().and_then(|()| state.read_to_end(&mut bytes));
    known.map_err(GuestError::os("reading the machine's state"))?;
    set_clock(&mut bytes, stopped.counter + STOP_NS).ok_or_else(|| unknown("the machine's clock is"))?;
    state.write_all_at(&bytes, 0).map_err(GuestError::os("writing the machine's state"))?;
    state.rewind().map_err(GuestError::os("reading the machine's state"))?;
    Ok(Some(Booted { ram, state, registers: stopped.registers }))
}

/// What QEMU's monitor says of a machine that init has stopped.
struct Monitor {
    registers: String,
    /// Of the interrupt controller, after the machine was saved.
    interrupts: String,
}

/// A machine that boots.
struct Booting {
    child: Emulator,
    control: UnixStream,
    /// What init has said over the control port.
    said: String,
    console: File,
    log: File,
}

/// Why a machine did not come to its stop.
enum Stopped {
    For(GuestError),
    /// QEMU does not answer as it should.
    Qmp(io::Error),
}

impl From<io::Error> for Stopped {
    fn from(e: io::Error) -> Stopped {
        Stopped::Qmp(e)
    }
}

impl Booting {
    /// Waits until init has stopped the machine, and saves the machine.
    fn stopped(&mut self, qmp: &UnixStream, state: &File, stop: &AtomicBool) -> Result<Monitor, Stopped> {
        let mut limit = Boot::new(BOOT_SECONDS);
        let mut qmp = Qmp::greet(qmp, PATIENCE)?;
        while !self.has_stopped(&mut qmp)? {
            if stop.load(Ordering::Relaxed) {
                return Err(Stopped::For(GuestError::InterruptedEarly));
            }
            if !limit.goes_on(self.child.0.id(), 0) {
                let (ran, idle) = (limit.ran() as u64, limit.idle.as_secs());
                let console = tail(&mut self.console);
                return Err(Stopped::For(GuestError::BootTimeout { ran, idle, console }));
            }
            std::thread::sleep(PAUSE);
        }
        let registers = ask_monitor(&mut qmp, "info registers -a")?;
        save(&mut qmp, state)?;
        // An interrupt that came before the saving or meanwhile still waits, because no vCPU runs.
        let interrupts = ask_monitor(&mut qmp, "info lapic")?;
        Ok(Monitor { registers, interrupts })
    }

    fn has_stopped(&mut self, qmp: &mut Qmp) -> io::Result<bool> {
        let stopped = qmp.ask("query-status", json!({}))?["status"] == STOPPED;
        // Init says so before it stops the machine, so the words are there by now.
        let mut bytes = [0; 256];
        while let Ok(n @ 1..) = self.control.read(&mut bytes) {
            self.said += &String::from_utf8_lossy(&bytes[..n]);
        }
        // A kernel with a driver of the device writes to it when it panics.
        if stopped && !self.said.contains("booted\n") {
            return Err(io::Error::other("the guest's kernel panicked"));
        }
        Ok(stopped)
    }

    fn died(&mut self, e: &io::Error) -> GuestError {
        let lines = format!("{e}\n{}{}\n{}", self.said, tail(&mut self.log), tail(&mut self.console));
        let _ = self.child.0.kill();
        let status = self.child.0.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        GuestError::QemuDied { status, log: lines.trim().to_owned() }
    }
}

fn ask_monitor(qmp: &mut Qmp, question: &str) -> io::Result<String> {
    let answer = qmp.ask("human-monitor-command", json!({ "command-line": question }))?;
    Ok(answer.as_str().unwrap_or_default().to_owned())
}

/// Writes the stopped machine's state. The machine has nothing to do afterwards.
fn save(qmp: &mut Qmp, state: &File) -> io::Result<()> {
    without_memory(qmp)?;
    qmp.ask("migrate", json!({ "uri": uri(state) }))?;
    until(qmp, "query-migrate", |answer| match answer["status"].as_str() {
        Some("completed") => Ok(true),
        Some("failed") => Err(io::Error::other(format!("QEMU could not save the machine: {answer}"))),
        _ => Ok(false),
    })
}

/// Loads a state into a machine that waits for one, and lets the machine go on.
///
/// # Errors
/// If QEMU has ended, is silent for too long, or refuses the state.
pub(super) fn resume(qmp: &UnixStream, state: &File) -> io::Result<()> {
    let mut qmp = Qmp::greet(qmp, PATIENCE)?;
    without_memory(&mut qmp)?;
    qmp.ask("migrate-incoming", json!({ "uri": uri(state) }))?;
    until(&mut qmp, "query-status", |answer| Ok(answer["status"] == STOPPED))?;
    qmp.ask("cont", json!({}))?;
    Ok(())
}

/// QEMU has inherited the file under the same number.
fn uri(state: &File) -> String {
    format!("file:{}", path_of(state.as_fd()))
}

fn without_memory(qmp: &mut Qmp) -> io::Result<Value> {
    let shared = json!({ "capability": "x-ignore-shared", "state": true });
    qmp.ask("migrate-set-capabilities", json!({ "capabilities": [shared] }))
}

fn until(qmp: &mut Qmp, question: &str, mut done: impl FnMut(&Value) -> io::Result<bool>) -> io::Result<()> {
    let begun = Instant::now();
    while begun.elapsed() < PATIENCE {
        if done(&qmp.ask(question, json!({}))?)? {
            return Ok(());
        }
        std::thread::sleep(PAUSE);
    }
    Err(io::ErrorKind::TimedOut.into())
}
