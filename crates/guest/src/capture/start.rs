// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the guest of a capture: from a kept boot, from a boot for this run, or with its command from the
//! start.

use std::fs::{self, File};
use std::io::{ErrorKind, Write as _};
use std::os::fd::{AsFd as _, BorrowedFd};
use std::os::unix::net::UnixStream;
use std::path::{Path, PathBuf};
use std::sync::atomic::AtomicBool;
use std::time::SystemTime;

use super::boot::{self, Boots};
use super::command::{self, Engine, Inherited, Plugin, Stage};
use super::output::{Files, tail};
use super::ring::Ring;
use super::run::{Emulator, RunKind};
use super::{BootKind, CaptureProgress};
use crate::boots::Booted;
use crate::error::GuestError;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::looks::Looker;
use crate::memfd::memfd;
use crate::qemu::Qemu;
use crate::spec::{GuestSpec, Record, Root, Timing};

/// What is started.
#[derive(Clone, Copy)]
pub(super) struct Parts<'a> {
    pub(super) spec: &'a GuestSpec,
    pub(super) kind: RunKind,
    pub(super) program: &'a Path,
    pub(super) qemu: &'a Qemu,
    pub(super) kernel: &'a Kernel,
    pub(super) plugin: Option<&'a Path>,
    /// The plugin's arguments for the region, each after a comma.
    pub(super) region: &'a str,
}

/// A guest that has been started.
pub(super) struct Started {
    pub(super) child: Emulator,
    pub(super) control: UnixStream,
    pub(super) ring: Ring,
    pub(super) files: Files,
    pub(super) boot: BootKind,
    /// The guest's memory, if the run looks at that.
    pub(super) looker: Option<Looker>,
    /// The folder of the kept boot from which the guest went on.
    kept: Option<PathBuf>,
}

impl Started {
    /// Removes the kept boot, from which the guest did not come to its command.
    pub(super) fn forget(&self, note: &mut dyn FnMut(&str)) {
        if self.kept.as_ref().is_some_and(|dir| fs::remove_dir_all(dir).is_ok()) {
            note("the kept boot was removed: the guest did not start its command from there");
        }
    }
}

/// Standard input of which more goes into the initramfs, in bytes. A guest that goes on after a boot reads
/// its input byte by byte from a port, some 9 MB a second (by hand, STDIN= of examples/count.rs).
const MOST_STDIN: usize = 64 << 20;

/// Whether the guest boots without its command. With fast timing, a boot measures the host's clock and
/// depends on the host's load. Of several vCPUs, the others run on for some time when init has stopped the
/// machine. In 32-bit mode init has no register for the counter (`guest/resume.h`). Under KVM, and where a
/// boot is recorded, guests boot as they always do. A root of its own is read while booting.
fn boots_apart(spec: &GuestSpec, kind: RunKind) -> bool {
    !matches!(kind, RunKind::Kvm(_))
        && spec.timing == Timing::Exact
        && spec.root == Root::Host
        && spec.record == Record::Command
        && spec.vcpus == 1
        && spec.tables.is_long()
        && spec.stdin.len() <= MOST_STDIN
}

/// Starts the guest.
pub(super) fn start(
    parts: Parts,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CaptureProgress),
) -> Result<Started, GuestError> {
    let Parts { spec, kind, qemu, kernel, .. } = parts;
    if boots_apart(spec, kind) {
        let boots = Boots::of(boot::Parts { spec, qemu, kernel })?;
        if let Some(booted) = boots.kept(&mut |text| progress(CaptureProgress::Note(text))) {
            progress(CaptureProgress::Stage("going on from a kept boot"));
            match resumed(parts, booted) {
                Ok(started) => return Ok(Started { boot: BootKind::Kept, kept: boots.folder(), ..started }),
                Err(Unresumed::For(e)) => return Err(e),
                Err(Unresumed::Refused(why)) => {
                    boots.forget(&why, &mut |text| progress(CaptureProgress::Note(text)));
                }
            }
        }
        progress(CaptureProgress::Stage("booting the guest"));
        let began = match boots.boot(stop, &mut |text| progress(CaptureProgress::Note(text))) {
            Ok(booted) => resumed(parts, booted),
            Err(e @ (GuestError::InterruptedEarly | GuestError::BootTimeout { .. })) => return Err(e),
            Err(e) => Err(Unresumed::Refused(e.to_string())),
        };
        match began {
            Ok(started) => return Ok(Started { boot: BootKind::Saved, ..started }),
            Err(Unresumed::For(e)) => return Err(e),
            Err(Unresumed::Refused(why)) => progress(CaptureProgress::Note(&format!(
                "the guest boots as part of the run, because it could not boot before: {why}; figures differ \
                 a little from those of a kept boot"
            ))),
        }
    }
    progress(CaptureProgress::Stage("booting the guest"));
    let initrd = file_of("bifold-initrd", &initramfs::initramfs(spec, kernel, parts.program)?)?;
    let ram = memfd("bifold-ram", spec.memory_mib << 20)?;
    launch(parts, ram.as_fd(), Stage::Whole { initrd: initrd.as_fd() })
}

/// A file in memory with these bytes.
fn file_of(name: &str, bytes: &[u8]) -> Result<File, GuestError> {
    let mut file = File::from(memfd(name, 0)?);
    file.write_all(bytes).map_err(GuestError::os("writing a file in memory"))?;
    Ok(file)
}

/// Why a guest did not go on after a boot.
enum Unresumed {
    For(GuestError),
    /// QEMU did not load the state, for this reason.
    Refused(String),
}

impl From<GuestError> for Unresumed {
    fn from(e: GuestError) -> Unresumed {
        Unresumed::For(e)
    }
}

/// A guest that goes on after a boot.
fn resumed(parts: Parts, booted: Booted) -> Result<Started, Unresumed> {
    let Parts { spec, program, .. } = parts;
    let date = command::next_midnight(SystemTime::now());
    let config = file_of("bifold-config", &initramfs::command_config(spec, program, date)?)?;
    let stdin = file_of("bifold-stdin", &spec.stdin)?;
    let (qmp, its_qmp) = UnixStream::pair().map_err(GuestError::os("socketpair"))?;
    let stage = Stage::Resumed {
        qmp: its_qmp.as_fd(),
        state: booted.state.as_fd(),
        config: config.as_fd(),
        stdin: stdin.as_fd(),
        registers: booted.registers,
    };
    let mut started = launch(parts, booted.ram.as_fd(), stage)?;
    drop(its_qmp);
    boot::resume(&qmp, &booted.state).map_err(|e| {
        let why = if e.kind() == ErrorKind::UnexpectedEof { "QEMU has ended".into() } else { e.to_string() };
        Unresumed::Refused(format!("{why}\n{}", tail(&mut started.files.log)).trim().to_owned())
    })?;
    Ok(started)
}

fn launch(parts: Parts, ram: BorrowedFd, stage: Stage) -> Result<Started, GuestError> {
    let Parts { spec, kind, qemu, kernel, plugin, region, .. } = parts;
    let ring = Ring::new()?;
    let files = Files::new()?;
    let (control, its_control) = UnixStream::pair().map_err(GuestError::os("socketpair"))?;
    control.set_nonblocking(true).map_err(GuestError::os("socketpair"))?;
    // A machine goes on only as the machine that booted, which has all ports.
    let all = !matches!(stage, Stage::Whole { .. });
    let inherited = Inherited {
        stage,
        console: files.console.as_fd(),
        stdout: files.stdout.as_fd(),
        stderr: files.stderr.as_fd(),
        kept: (all || spec.keep).then(|| files.kept.as_fd()),
        control: its_control.as_fd(),
        places: (all || spec.attribute).then(|| files.places.as_fd()),
    };
    let log = files.log.try_clone().map_err(GuestError::os("dup"))?.into();
    let engine = match kind {
        RunKind::Kvm(page) => Engine::Kvm(page),
        _ => Engine::Tcg { ram, plugin: plugin.map(|path| Plugin { path, ring: ring.fd(), region }) },
    };
    let child = Emulator(command::spawn(qemu, engine, kernel, spec, &inherited, log)?);
    let looker = (spec.looks && kind == RunKind::Recorded)
        .then(|| ram.try_clone_to_owned().map(|fd| Looker::new(fd.into(), spec.memory_mib << 20)))
        .transpose()
        .map_err(GuestError::os("dup"))?;
    Ok(Started { child, control, ring, files, boot: BootKind::Whole, looker, kept: None })
}
