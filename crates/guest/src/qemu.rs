// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds QEMU, checks its version and abilities, holds the parts of a command line that all our machines
//! share, and starts the process.

use std::os::fd::{AsRawFd, BorrowedFd, OwnedFd};
use std::os::unix::process::CommandExt;
use std::path::{Path, PathBuf};
use std::process::{Child, Command, Stdio};

use crate::error::GuestError;

/// A minimal firmware. SeaBIOS takes 0.2 s under emulation.
const QBOOT: &str = "/usr/share/qemu/qboot.rom";
const OLDEST: (u32, u32) = (9, 0);
/// The first major version with API 7 of plugins, whose callbacks have other arguments.
const TOO_NEW: u32 = 11;
/// The machine of all guests, without unused devices. Its RAM is the object `ram`.
pub const MACHINE: &str = "q35,memory-backend=ram,smm=off,usb=off,sata=off,hpet=off";

/// No default devices or settings, no window, and exit instead of reboot.
pub const BARE: [&str; 5] = ["-nodefaults", "-no-user-config", "-display", "none", "-no-reboot"];

/// AMD's EPYC without the features that TCG lacks: QEMU warns of each at every start.
const EPYC: &str = "EPYC,-fxsr-opt,-misalignsse,-osvw,-topoext,-xsavec";
/// Features that KVM by itself adds to a guest's CPU or drops from it.
const KVM_DIFFERS: &str = "-svm,-vme,-monitor,-x2apic,-tsc-deadline";

/// `-cpu` of an EPYC under TCG, with further flags (`+svm`). This is the only list of the features
/// that TCG lacks.
pub fn cpu(flags: &[&str]) -> String {
    [&[EPYC], flags].concat().join(",")
}

/// `-cpu` of a guest that sees the same CPU under TCG and under KVM, where the flags name its vendor: under
/// KVM, QEMU otherwise takes the host's. Further flags say what the guest knows of its hypervisor.
pub fn guest_cpu(flags: &[&str]) -> String {
    cpu(&[&[KVM_DIFFERS], flags].concat())
}

/// A QEMU that can run captures.
#[derive(Debug, Clone)]
pub struct Qemu {
    /// The executable.
    pub path: PathBuf,
    /// The version that `--version` prints.
    pub version: String,
    /// The whole line with the version, which has the distribution's own.
    pub release: String,
}

fn search() -> Result<PathBuf, GuestError> {
    if let Some(path) = std::env::var_os("BIFOLD_QEMU").filter(|p| !p.is_empty()) {
        return Ok(PathBuf::from(path));
    }
    let path = std::env::var_os("PATH").unwrap_or_default();
    std::env::split_paths(&path)
        .map(|d| d.join("qemu-system-x86_64"))
        .find(|p| p.is_file())
        .ok_or(GuestError::QemuMissing)
}

/// Finds QEMU (`BIFOLD_QEMU`, then `PATH`) and checks its version and plugin support.
pub fn find() -> Result<Qemu, GuestError> {
    at(search()?)
}

/// The QEMU of this path, with the same checks.
///
/// # Errors
/// If it cannot be run, is too old or has no plugins.
pub fn at(path: PathBuf) -> Result<Qemu, GuestError> {
    let ask = |arg| {
        // A process group of its own: the terminal's Ctrl-C is for us, and we have not started yet.
        Command::new(&path).arg(arg).stdin(Stdio::null()).process_group(0).output().map_err(|e| {
            match e.kind() {
                std::io::ErrorKind::NotFound => GuestError::QemuMissing,
                _ => GuestError::file(&path, "cannot run")(e),
            }
        })
    };
    let text = String::from_utf8_lossy(&ask("--version")?.stdout).into_owned();
    let version = text
        .split_whitespace()
        .skip_while(|w| *w != "version")
        .nth(1)
        .unwrap_or("of unknown version")
        .to_owned();
    let mut parts = version.split('.').map_while(|p| p.parse().ok());
    let have = (parts.next().unwrap_or(0), parts.next().unwrap_or(0));
    if have < OLDEST {
        return Err(GuestError::QemuTooOld { found: version });
    }
    if have.0 >= TOO_NEW {
        return Err(GuestError::QemuTooNew { found: version });
    }
    let help = String::from_utf8_lossy(&ask("-help")?.stdout).into_owned();
    if !help.lines().any(|l| l.starts_with("-plugin ")) {
        return Err(GuestError::NoPlugins { path });
    }
    let release = text.lines().next().unwrap_or_default().to_owned();
    Ok(Qemu { path, version, release })
}

/// The path under which a child process opens an inherited descriptor.
pub fn path_of(fd: BorrowedFd) -> String {
    format!("/proc/self/fd/{}", fd.as_raw_fd())
}

/// A path as a value of QEMU's options, where commas are doubled.
pub fn quoted(path: &Path) -> String {
    path.to_string_lossy().replace(',', ",,")
}

/// `-bios` with the fast firmware, where it is installed.
pub fn firmware() -> Option<[String; 2]> {
    Path::new(QBOOT).exists().then(|| ["-bios".into(), QBOOT.into()])
}

/// Starts QEMU (or another emulator) with `arguments`. The process inherits `keep`, writes its messages to
/// `log`, and dies with the calling thread. It has a process group of its own: the terminal's Ctrl-C does not
/// reach it.
///
/// `small_pages` keeps the host from backing the process with huge pages, which QEMU requests for every
/// guest's memory. `group` is the open `cgroup.procs` of a cgroup in which the process starts.
///
/// # Errors
/// If the process cannot be started.
pub fn spawn(
    qemu: &Path,
    arguments: &[String],
    keep: &[BorrowedFd],
    (stdout, log): (Stdio, OwnedFd),
    small_pages: bool,
    group: Option<BorrowedFd>,
) -> Result<Child, GuestError> {
    let mut command = Command::new(qemu);
    command.args(arguments).stdin(Stdio::null()).stdout(stdout).stderr(log).process_group(0);
    let keep: Vec<i32> = keep.iter().map(|f| f.as_raw_fd()).collect();
    let group = group.map(|f| f.as_raw_fd());
    // SAFETY: between fork and exec only async-signal-safe calls are made: prctl, fcntl and write, on
    // descriptors that the borrows in `keep` and `group` hold open until `spawn` below returns.
    unsafe {
        command.pre_exec(move || {
            rustix::process::set_parent_process_death_signal(Some(rustix::process::Signal::KILL))?;
            if small_pages {
                rustix::thread::disable_transparent_huge_pages(true)?;
            }
            if let Some(group) = group {
                // In cgroup.procs, 0 is the writing process. What it takes from here on is the group's.
                rustix::io::write(BorrowedFd::borrow_raw(group), b"0")?;
            }
            for fd in &keep {
                let fd = BorrowedFd::borrow_raw(*fd);
                rustix::io::fcntl_setfd(fd, rustix::io::FdFlags::empty())?;
            }
            Ok(())
        });
    }
    command.spawn().map_err(GuestError::file(qemu, "cannot run"))
}
