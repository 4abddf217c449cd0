// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Runs one capture from start to end: prepares the guest, starts QEMU, passes chunks to the consumer,
//! reads the lines of the guest's init, ends the command when asked, and reports. Dropping `Emulator` ends
//! QEMU's process in every case.

use std::io::{ErrorKind, Write};
use std::path::PathBuf;
use std::process::Child;
use std::sync::atomic::{AtomicBool, Ordering};
use std::time::{Duration, Instant};

use bifold_trace::event::kind::{MARKER, STATS};
use bifold_trace::event::{KIND_SHIFT, STATS_WORDS, head, marker};
use bifold_trace::{Clock, CommandExit, Event, Stats, decode};

use super::output::{InitReport, contents, printable, tail};
use super::pace::{Boot, ThreadTime, vcpu_thread};
use super::start::{Parts, Started, start};
use super::{CaptureProgress, CaptureReport, Sink, Written, places, plugin};
use crate::error::GuestError;
use crate::spec::{GuestSpec, HostPage, Record, Root, guest_frames};
use crate::{initramfs, kernel, looks, qemu, spec};

/// CPU time that a boot may take, in seconds; it takes 2 to 40.
pub(super) const BOOT_SECONDS: f64 = 300.0;
/// CPU time that a boot may take under a KVM that is itself emulated, in seconds.
const KVM_BOOT_SECONDS: f64 = 900.0;
/// Time that the guest may take to end the command on request.
const GRACE: Duration = Duration::from_secs(5);
/// Time of the host that the guest's own start may take, before the command's time limit counts in any case.
const START: Duration = Duration::from_secs(60);
/// Number of log lines in a message.
pub(super) const LOG_LINES: usize = 12;
/// Words of [`Event::Ticks`].
const TICKS_WORDS: usize = 2;

/// Ends the emulator when dropped.
pub(super) struct Emulator(pub(super) Child);

impl Drop for Emulator {
    fn drop(&mut self) {
        let _ = self.0.kill();
        let _ = self.0.wait();
    }
}

/// How a guest runs: recorded under TCG, under TCG without the plugin, or under KVM.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub(crate) enum RunKind {
    Recorded,
    Plain,
    Kvm(HostPage),
}

pub(crate) fn capture(
    spec: &GuestSpec,
    kind: RunKind,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CaptureProgress),
    sink: &mut Sink,
) -> Result<CaptureReport, GuestError> {
    spec::check(spec)?;
    let program = initramfs::resolve(spec)?;
    let qemu = qemu::find()?;
    let plugin = if kind == RunKind::Recorded { Some(plugin::find()?) } else { None };
    let region = spec.region.arguments(&program)?;
    let kernel = {
        let mut stage = |what: &str| progress(CaptureProgress::Stage(what));
        kernel::find(spec.kernel.as_deref(), spec.modules.as_deref(), spec.tables, &mut stage)?
    };
    if stop.load(Ordering::Relaxed) {
        return Err(GuestError::InterruptedEarly);
    }
    let begun = Instant::now();
    let parts = Parts {
        spec,
        kind,
        program: &program,
        qemu: &qemu,
        kernel: &kernel,
        plugin: plugin.as_deref(),
        region: &region,
    };
    let guest = start(parts, stop, progress)?;
    progress(CaptureProgress::Stage("starting the command"));
    let mut session = Session::new(spec, kind, program, guest, begun, kernel.modules.is_some());
    session.follow(stop, progress, sink)?;
    if !session.init.started && !stop.load(Ordering::Relaxed) {
        // No later run would fare better.
        session.guest.forget(&mut |text| progress(CaptureProgress::Note(text)));
    }
    if spec.attribute {
        let mut words = Vec::new();
        places::events(&contents(&mut session.guest.files.places), &mut words);
        sink(&words).map_err(GuestError::Sink)?;
    }
    session.report(qemu.version, kernel.version)
}

struct Session<'a> {
    spec: &'a GuestSpec,
    program: PathBuf,
    guest: Started,
    init: InitReport,
    begun: Instant,
    /// The limit of the boot.
    boot: Boot,
    started: Option<Instant>,
    /// The stream says where the command's own program begins.
    says_begin: bool,
    /// When the program began.
    program_began: Option<Instant>,
    ended: Option<Instant>,
    /// Why the command was asked to end (`asked` is when).
    ending: Option<CommandExit>,
    asked: Option<Instant>,
    /// Time of all looks, in which the guest stood still: no limit of its time counts that.
    looking: Duration,
    words: u64,
    stats: Option<Stats>,
    /// Numbers of timer ticks and of other interrupts.
    ticks: Option<(u64, u64)>,
    /// Whether the region ended before the command.
    region_ended: bool,
    region_missed: bool,
    has_modules: bool,
    /// The vCPU thread's times at the command's start and end.
    had: [Option<ThreadTime>; 2],
}

impl<'a> Session<'a> {
    fn new(
        spec: &'a GuestSpec,
        kind: RunKind,
        program: PathBuf,
        guest: Started,
        begun: Instant,
        has_modules: bool,
    ) -> Session<'a> {
        Session {
            spec,
            program,
            guest,
            init: InitReport::default(),
            begun,
            boot: Boot::new(if matches!(kind, RunKind::Kvm(_)) { KVM_BOOT_SECONDS } else { BOOT_SECONDS }),
            started: None,
            says_begin: kind == RunKind::Recorded && spec.record == Record::Command,
            program_began: None,
            ended: None,
            ending: None,
            asked: None,
            looking: Duration::ZERO,
            words: 0,
            stats: None,
            ticks: None,
            region_ended: false,
            region_missed: false,
            has_modules,
            had: [None; 2],
        }
    }
}

impl Session<'_> {
    /// Passes events to the sink until QEMU has ended, and ends the command when its time is over.
    fn follow(
        &mut self,
        stop: &AtomicBool,
        progress: &mut dyn FnMut(CaptureProgress),
        sink: &mut Sink,
    ) -> Result<(), GuestError> {
        let mut looked = Instant::now();
        loop {
            let more = self.guest.ring.wait(Duration::from_millis(20));
            if more {
                self.consume(progress, sink)?;
            }
            if more && looked.elapsed() < Duration::from_millis(20) {
                continue;
            }
            looked = Instant::now();
            self.init.listen(&mut self.guest.control);
            if self.init.started && self.started.is_none() {
                self.started = Some(looked);
                self.had[0] = vcpu_thread(self.guest.child.0.id());
                progress(CaptureProgress::Recording);
            }
            if self.init.ended && self.ended.is_none() {
                self.ended = Some(looked);
                self.had[1] = vcpu_thread(self.guest.child.0.id());
            }
            progress(CaptureProgress::Words(self.words));
            if self.guest.child.0.try_wait().map_err(GuestError::os("waiting for qemu"))?.is_some() {
                self.init.listen(&mut self.guest.control);
                while self.guest.ring.chunk().is_some() {
                    self.consume(progress, sink)?;
                }
                return Ok(());
            }
            self.end_if_due(stop)?;
            // A guest that reports `done` has sent everything, so its shutdown need not be awaited.
            if self.init.done || self.asked.is_some_and(|t| t.elapsed() > GRACE + self.looking) {
                // The next turn of the loop still reads what the plugin has published.
                self.guest.child.0.kill().map_err(GuestError::os("killing qemu"))?;
                self.guest.child.0.wait().map_err(GuestError::os("waiting for qemu"))?;
            }
        }
    }

    /// Passes the oldest chunk on.
    fn consume(
        &mut self,
        progress: &mut dyn FnMut(CaptureProgress),
        sink: &mut Sink,
    ) -> Result<(), GuestError> {
        if let Some(chunk) = self.guest.ring.chunk() {
            self.words += chunk.len() as u64;
            if chunk.last() == Some(&head(MARKER, marker::PROGRAM)) {
                self.program_began = Some(Instant::now());
            }
            // The plugin ends its stream with Ticks, Stats and the stop marker.
            let at = chunk.len().wrapping_sub(STATS_WORDS + 2);
            if chunk.get(at).is_some_and(|w| w >> KIND_SHIFT == STATS) {
                if let Ok((Event::Stats(stats), _)) = decode(&chunk[at..], at) {
                    self.stats = Some(stats);
                    self.region_ended = chunk.last() == Some(&head(MARKER, marker::REGION_END));
                    self.region_missed = chunk.last() == Some(&head(MARKER, marker::REGION_MISSED));
                }
                let at = at.wrapping_sub(TICKS_WORDS);
                if let Some(Ok((Event::Ticks { timer, others }, _))) = chunk.get(at..).map(|w| decode(w, at))
                {
                    self.ticks = Some((timer, others));
                }
            }
            // The plugin waits for the release, and the guest with it.
            let asked = self.spec.looks.then(|| looks::asked(chunk)).flatten();
            sink(&chunk[..asked.unwrap_or(chunk.len())]).map_err(GuestError::Sink)?;
            if let (Some(looker), Some(_)) = (&mut self.guest.looker, asked) {
                let (mut words, begun) = (Vec::new(), Instant::now());
                match looker.look(&mut words) {
                    Ok(()) => sink(&words).map_err(GuestError::Sink)?,
                    // At a boot's start, the kernel has not said yet where its pages are described.
                    Err(_) if self.spec.record == Record::Boot && !self.init.started => {}
                    Err(why) => {
                        progress(CaptureProgress::Note(&format!(
                            "what the guest uses its memory for cannot be seen: {why}"
                        )));
                        self.guest.looker = None;
                    }
                }
                self.looking += begun.elapsed();
            }
            self.guest.ring.release();
        }
        Ok(())
    }

    /// Ends the command if the caller, the time limit or the region's end asks for it.
    fn end_if_due(&mut self, stop: &AtomicBool) -> Result<(), GuestError> {
        let Some(started) = self.started else {
            if stop.load(Ordering::Relaxed) {
                return Err(GuestError::InterruptedEarly);
            }
            if !self.boot.goes_on(self.guest.child.0.id(), self.words) {
                let (ran, idle) = (self.boot.ran() as u64, self.boot.idle.as_secs());
                return Err(GuestError::BootTimeout {
                    ran,
                    idle,
                    console: tail(&mut self.guest.files.console),
                });
            }
            return Ok(());
        };
        if self.asked.is_some() || self.init.done {
            return Ok(());
        }
        let limited = if self.says_begin { self.program_began.unwrap_or(started + START) } else { started };
        let ending = if self.region_ended {
            CommandExit::AfterRegion
        } else if self.spec.enough.as_ref().is_some_and(|e| e.load(Ordering::Relaxed)) {
            CommandExit::AccurateEnough
        } else if stop.load(Ordering::Relaxed) {
            CommandExit::Interrupted
        } else if self.spec.timeout.is_some_and(|t| limited.elapsed() >= t + self.looking) && !self.init.ended
        {
            CommandExit::TimedOut
        } else {
            return Ok(());
        };
        self.asked = Some(Instant::now());
        if self.init.ended {
            return Ok(()); // the command has ended; only its output is missing
        }
        self.ending = Some(ending);
        match self.guest.control.write_all(b"!") {
            Err(e) if e.kind() == ErrorKind::BrokenPipe => Ok(()), // it has just ended
            other => other.map_err(GuestError::os("writing to the guest")),
        }
    }

    fn report(mut self, qemu_version: String, kernel_version: String) -> Result<CaptureReport, GuestError> {
        let exit = match (self.ending, self.init.exit, &self.init.error) {
            (Some(ending), _, _) => ending,
            // Init's message where execve(2) failed.
            (None, _, Some(e)) if e.starts_with("running ") => {
                return Err(GuestError::NotStarted(e.clone()));
            }
            (None, _, Some(e)) if e.starts_with("the working directory ") => {
                return Err(GuestError::WorkingDirectory(e.clone()));
            }
            (None, _, Some(e)) => return Err(GuestError::Guest(e.clone())),
            (None, Some(_), _) if self.init.oom => CommandExit::OutOfMemory,
            (None, Some(exit), _) => exit,
            (None, None, None) if self.asked.is_some() => CommandExit::Interrupted,
            (None, None, None) => return Err(self.death()),
        };
        let clock = self.clock();
        let full = self.init.full;
        if self.region_missed {
            let instructions = self.stats.unwrap_or_default().instructions;
            let why = self.spec.region.missed(&self.program, instructions);
            return Err(GuestError::RegionMissed { exit: exit.describe(), why });
        }
        Ok(CaptureReport {
            exit,
            stdout: contents(&mut self.guest.files.stdout),
            stderr: contents(&mut self.guest.files.stderr),
            qemu_version,
            kernel_version,
            guest_frames: guest_frames(self.spec),
            complete: self.stats.is_some(),
            stats: self.stats.unwrap_or_default(),
            boot_seconds: self.started.map_or(0.0, |t| (t - self.begun).as_secs_f64()),
            clock,
            written: self.init.written.map(|(files, bytes)| Written { files, bytes, full }),
            kept: self.spec.keep.then_some(self.guest.files.kept),
            boot: self.guest.boot,
        })
    }

    fn clock(&self) -> Clock {
        let wall = self.started.map_or(Duration::ZERO, |s| self.ended.unwrap_or_else(Instant::now) - s);
        let (ran, starved) = match self.had {
            [Some(begin), Some(end)] => (end.ran - begin.ran, end.waited - begin.waited),
            _ => (0.0, 0.0),
        };
        Clock {
            guest_ns: self.init.time.map(|(guest, _)| guest),
            idle_ns: self.init.time.map(|(_, idle)| idle),
            wall_seconds: wall.as_secs_f64(),
            vcpu_seconds: if self.stats.is_some() { self.guest.ring.cpu_seconds() } else { ran },
            starved_seconds: starved,
            in_step: self.spec.root != Root::Host || self.guest.ring.in_step(),
            timer_ticks: self.ticks.map(|(timer, _)| timer),
            other_interrupts: self.ticks.map(|(_, others)| others),
        }
    }

    /// The error for a guest that ended without a result.
    fn death(&mut self) -> GuestError {
        let lines = printable(&mut self.guest.files.console);
        let console = tail(&mut self.guest.files.console);
        if lines.iter().any(|l| l.contains("Out of memory") || l.contains("deadlocked on memory")) {
            return GuestError::GuestOutOfMemory { memory_mib: self.spec.memory_mib, console };
        }
        if let Some(at) = lines.iter().position(|l| l.contains("Kernel panic")) {
            let end = lines.len().min(at + LOG_LINES);
            return GuestError::Panic(lines[at..end].join("\n"));
        }
        // Without a control port, init writes its error to the console.
        if let Some(error) = lines.iter().find_map(|l| l.strip_prefix("error ")) {
            let hint = if self.has_modules {
                ""
            } else {
                "; no modules were found for this kernel: name their directory with --modules"
            };
            return GuestError::Guest(format!("{error}{hint}"));
        }
        let log = format!("{}\n{console}", tail(&mut self.guest.files.log)).trim().to_owned();
        match self.guest.child.0.wait() {
            Ok(status) if status.success() && self.init.started => {
                GuestError::Guest("the guest was shut down while the command ran".into())
            }
            Ok(status) => GuestError::QemuDied { status: status.to_string(), log },
            Err(e) => GuestError::QemuDied { status: e.to_string(), log },
        }
    }
}
