// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The laboratory under Bochs, which emulates Intel's virtualization: the emulator's configuration.
//!
//! Bochs executes one instruction after the other in one thread, and its clock counts them. The same boot
//! therefore always does the same. `lab/bochs/build` makes the emulator with a few corrections.

use std::fs::File;
use std::io::Write;
use std::os::fd::{AsFd, OwnedFd};
use std::path::PathBuf;
use std::process::{Command, Stdio};

use bifold_guest::qemu::{path_of, spawn};

use super::boot::{COMMAND_LINE, Files, memfd};
use super::error::{LabError, os};
use super::pc::{self, Pc};
use super::session::Emulator;
use super::{Lab, Plan};

/// Emulated instructions per emulated second, and the frequency of the time-stamp counter.
const HZ: u64 = 100_000_000;

/// Names the caller's emulator.
const VARIABLE: &str = "BIFOLD_BOCHS";

/// The emulator.
#[derive(Debug, Clone)]
pub(super) struct Bochs {
    path: PathBuf,
    /// The version that it prints.
    pub(super) version: String,
}

/// The caller's Bochs (`BIFOLD_BOCHS`), or that of `lab/bochs/build` in target/bochs.
pub(super) fn find() -> Result<Bochs, LabError> {
    let path = match std::env::var_os(VARIABLE).filter(|p| !p.is_empty()) {
        Some(path) => PathBuf::from(path),
        None => super::in_target("bochs/bochs").unwrap_or_else(|| "target/bochs/bochs".into()),
    };
    let run = Command::new(&path).args(["--help", "cpu"]).stdin(Stdio::null()).output();
    let text = run.map(|o| String::from_utf8_lossy(&o.stdout).into_owned()).unwrap_or_default();
    let version = text.split_once("Bochs x86 Emulator ").and_then(|(_, t)| t.split_whitespace().next());
    match version {
        Some(version) => Ok(Bochs { version: version.to_owned(), path }),
        None => Err(LabError::NoBochs { at: path }),
    }
}

impl Lab {
    /// Starts Bochs. Init's messages come out of its standard output, which is `port`.
    pub(super) fn start_bochs(
        &self,
        plan: &Plan,
        model: &str,
        files: &Files,
        port: OwnedFd,
        log: OwnedFd,
    ) -> Result<Emulator, LabError> {
        let bochs = self.bochs.as_ref().expect("Lab::of found it for this vendor");
        if plan.swap_mib > 0 {
            return Err(LabError::NoSwap);
        }
        let model = self.model.as_deref().unwrap_or(model);
        let image = &self.kernel.image;
        let kernel = std::fs::read(image).map_err(os("reading the kernel"))?;
        // The kernel would otherwise take the frequency that CPUID states.
        let command_line = format!(
            "{COMMAND_LINE} acpi=off pci=off reboot=k tsc_early_khz={} {}",
            HZ / 1000,
            self.environment()
        );
        let spec = pc::Spec {
            kernel: &kernel,
            command_line: &command_line,
            initrd: files.initrd.metadata().map_err(os("reading the image's size"))?.len(),
            memory: plan.memory_mib << 20,
            cpus: plan.cpus as u8,
        };
        let pc = Pc::new(&spec).map_err(|why| LabError::Kernel { path: image.clone(), why })?;
        let file = |name: &str, bytes: &[u8]| -> Result<File, LabError> {
            let mut file = memfd(name, 0)?;
            file.write_all(bytes).map_err(os("writing what the emulator loads"))?;
            Ok(file)
        };
        let (memory, rom) = (file("bifold-lab-memory", &pc.memory)?, file("bifold-lab-rom", &pc.rom)?);
        // Bochs insists on a ROM of its display.
        let vga = file("bifold-lab-vga", &[0; 512])?;
        let at = |file: &File| path_of(file.as_fd());
        let settings = [
            "config_interface: textconfig".into(),
            "display_library: nogui".into(),
            // Bochs holds no more than 2 GiB at a time, the rest in a file.
            format!("memory: guest={}, host={}", plan.memory_mib, plan.memory_mib.min(2048)),
            format!("romimage: file={}, address={:#x}", at(&rom), pc::ROM),
            format!("vgaromimage: file={}", at(&vga)),
            format!("optramimage1: file={}, address=0x0", at(&memory)),
            format!("optramimage2: file={}, address={:#x}", at(&files.initrd), pc.initrd_at),
            format!("cpu: model={model}, count={}, ips={HZ}, quantum=16, reset_on_triple_fault=1", plan.cpus),
            "cpu: ignore_bad_msrs=1".into(),
            // Time goes by executed instructions, from 2026-01-01.
            "clock: sync=none, time0=1767225600".into(),
            "pci: enabled=0".into(),
            format!("com1: enabled=1, mode=file, dev={}", at(&files.console)),
            "port_e9_hack: enabled=1".into(),
            "log: /tmp/bochs.log".into(),
            "panic: action=fatal".into(),
            "error: action=report".into(),
            "info: action=ignore".into(),
            "ata0: enabled=0".into(),
            "speaker: enabled=0".into(),
        ];
        let settings = file("bifold-lab-bochs", (settings.join("\n") + "\n").as_bytes())?;
        let arguments = ["-q".into(), "-f".into(), at(&settings)];
        let keep = [&files.initrd, &files.console, &memory, &rom, &vga, &settings].map(AsFd::as_fd);
        Ok(Emulator(spawn(&bochs.path, &arguments, &keep, (port.into(), log), false, None)?))
    }
}
