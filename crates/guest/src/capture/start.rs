// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Starts the guest of a capture: from a kept boot, from a boot for this run, or with its command from the start.

use std::fs::File;
use std::io::Write as _;
use std::os::fd::{AsFd as _, OwnedFd};
use std::os::unix::net::UnixStream;
use std::path::Path;
use std::sync::atomic::AtomicBool;

use super::boot::{self, Boots};
use super::command::{self, Engine, Inherited, Plugin, Stage};
use super::ring::Ring;
use super::run::{Emulator, Files, RunKind, tail};
use super::{BootKind, CaptureProgress};
use crate::boots::Booted;
use crate::error::GuestError;
use crate::initramfs;
use crate::kernel::Kernel;
use crate::memfd::memfd;
use crate::qemu::Qemu;
use crate::spec::{GuestSpec, Record, Root};

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
    pub(super) notes: Vec<String>,
}

/// Starts the guest.
pub(super) fn start(
    parts: Parts,
    stop: &AtomicBool,
    progress: &mut dyn FnMut(CaptureProgress),
) -> Result<Started, GuestError> {
    let Parts { spec, kind, qemu, kernel, .. } = parts;
    let mut notes = Vec::new();
    // Under KVM, and where a boot is recorded, the guest boots as it always does. A root of its own is read while booting.
    let separate =
        !matches!(kind, RunKind::Kvm(_)) && spec.root == Root::Host && spec.record == Record::Command;
    if separate {
        let boots = Boots::of(boot::Parts { spec, qemu, kernel }, &mut notes)?;
        if let Some(booted) = boots.kept(&mut notes) {
            progress(CaptureProgress::Stage("going on from a kept boot"));
            match resumed(parts, booted) {
                Ok(started) => return Ok(Started { boot: BootKind::Kept, notes, ..started }),
                Err(e) => {
                    boots.forget();
                    notes.push(format!("the kept boot was removed, because QEMU did not go on from it: {e}"));
                }
            }
        }
        progress(CaptureProgress::Stage("booting the guest"));
        let began = boots.boot(stop, &mut notes).and_then(|booted| resumed(parts, booted));
        match began {
            Ok(started) => return Ok(Started { boot: BootKind::Saved, notes, ..started }),
            Err(e @ (GuestError::InterruptedEarly | GuestError::BootTimeout { .. })) => return Err(e),
            Err(e) => {
                notes.push(format!("the guest booted with its command, because a separate boot failed: {e}"))
            }
        }
    }
    progress(CaptureProgress::Stage("booting the guest"));
    let initrd = file_of("bifold-initrd", &initramfs::initramfs(spec, kernel, parts.program)?)?;
    let ram = memfd("bifold-ram", spec.memory_mib << 20)?;
    let started = launch(parts, &ram, Stage::Whole { initrd: initrd.as_fd() })?;
    Ok(Started { boot: BootKind::Whole, notes, ..started })
}

/// A file in memory with these bytes.
fn file_of(name: &str, bytes: &[u8]) -> Result<File, GuestError> {
    let mut file = File::from(memfd(name, 0)?);
    file.write_all(bytes).map_err(GuestError::os("writing a file in memory"))?;
    Ok(file)
}

/// A guest that goes on after a boot.
fn resumed(parts: Parts, booted: Booted) -> Result<Started, GuestError> {
    let Parts { spec, program, .. } = parts;
    let config =
        file_of("bifold-config", &initramfs::command_config(spec, program, command::date(spec.timing))?)?;
    let stdin = file_of("bifold-stdin", &spec.stdin)?;
    let (qmp, its_qmp) = UnixStream::pair().map_err(GuestError::os("socketpair"))?;
    let stage = Stage::Resumed {
        qmp: its_qmp.as_fd(),
        state: booted.state.as_fd(),
        config: config.as_fd(),
        stdin: stdin.as_fd(),
        registers: &booted.registers,
    };
    let mut started = launch(parts, &booted.ram, stage)?;
    drop(its_qmp);
    boot::resume(&qmp, &booted.state).map_err(|e| {
        let _ = started.child.0.kill();
        let status = started.child.0.wait().map_or_else(|e| e.to_string(), |s| s.to_string());
        GuestError::QemuDied {
            status,
            log: format!("{e}\n{}", tail(&mut started.files.log)).trim().to_owned(),
        }
    })?;
    Ok(started)
}

fn launch(parts: Parts, ram: &OwnedFd, stage: Stage) -> Result<Started, GuestError> {
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
        _ => Engine::Tcg {
            ram: ram.as_fd(),
            plugin: plugin.map(|path| Plugin { path, ring: ring.fd(), region }),
        },
    };
    let child = Emulator(command::spawn(qemu, engine, kernel, spec, &inherited, log)?);
    Ok(Started { child, control, ring, files, boot: BootKind::Whole, notes: Vec::new() })
}
