// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Checks what this machine has and lacks for a capture. The checks start no guest, and download and write
//! nothing.

use std::process::{Command, Stdio};

use bifold_host::Host;
use schemars::JsonSchema;
use serde::Serialize;

use crate::capture::plugin;
use crate::error::{GuestError, QEMU_PACKAGES};
use crate::{kernel, memfd, qemu};

/// One check of this machine.
#[derive(Debug, Clone, Serialize, JsonSchema)]
pub struct Check {
    /// What is checked.
    pub name: &'static str,
    /// Whether the check passed.
    pub ok: bool,
    /// What was found.
    pub detail: String,
    /// How to repair what is missing; empty if the check passed.
    pub remedy: String,
    /// The verbs that cannot work if the check fails.
    pub needed_by: &'static [&'static str],
}

const GUEST: &[&str] = &["compare -- CMD", "record -- CMD"];
const HOST_ROOT: &[&str] = &["compare -- CMD with --root host"];
/// Memory for the default guest (2 GiB), the ring and the model.
const MEMORY_MIB: u64 = 3 * 1024;

fn check(
    name: &'static str,
    needed_by: &'static [&'static str],
    found: Result<String, (String, String)>,
) -> Check {
    let ok = found.is_ok();
    let (detail, remedy) = match found {
        Ok(detail) => (detail, String::new()),
        Err(both) => both,
    };
    Check { name, ok, detail, remedy, needed_by }
}

/// Makes all checks.
pub fn checks() -> Vec<Check> {
    let qemu = qemu::find();
    vec![
        check("architecture", GUEST, architecture()),
        check("qemu", GUEST, emulator(&qemu)),
        check("qemu plugins", GUEST, plugins(&qemu)),
        check("qemu 9p", HOST_ROOT, ninep(&qemu)),
        check("capture plugin", GUEST, plugin_file()),
        check("guest kernel", GUEST, guest_kernel()),
        check("memory", GUEST, memory()),
        check("memfd", GUEST, memfd()),
    ]
}

fn architecture() -> Result<String, (String, String)> {
    match std::env::consts::ARCH {
        "x86_64" => Ok("x86_64".into()),
        other => Err((
            format!("{other}: the guest runs the host's programs and is x86-64"),
            "use an x86-64 machine; recordings can be read anywhere".into(),
        )),
    }
}

fn emulator(found: &Result<qemu::Qemu, GuestError>) -> Result<String, (String, String)> {
    let install = || format!("install qemu-system-x86 9.0 to 10.2 {}", QEMU_PACKAGES);
    match found {
        Ok(q) => Ok(format!("{} at {}", q.version, q.path.display())),
        Err(GuestError::NoPlugins { path }) => Ok(path.display().to_string()),
        Err(GuestError::QemuTooOld { found }) => Err((format!("{found} is older than 9.0"), install())),
        Err(GuestError::QemuTooNew { found }) => Err((format!("{found} is newer than 10.2"), install())),
        Err(GuestError::QemuMissing) => Err(("not found in PATH".into(), install())),
        Err(e) => Err((e.to_string(), install())),
    }
}

fn plugins(found: &Result<qemu::Qemu, GuestError>) -> Result<String, (String, String)> {
    match found {
        Ok(_) => Ok("supported".into()),
        Err(GuestError::NoPlugins { .. }) => Err((
            "this QEMU was built with --disable-plugins".into(),
            format!("use your distribution's {}", QEMU_PACKAGES),
        )),
        Err(_) => Err(("no QEMU to ask".into(), "install QEMU first".into())),
    }
}

fn ninep(found: &Result<qemu::Qemu, GuestError>) -> Result<String, (String, String)> {
    let Ok(q) = found else { return Err(("no QEMU to ask".into(), "install QEMU first".into())) };
    let out = Command::new(&q.path).args(["-device", "help"]).stdin(Stdio::null()).output();
    let text = out.map(|o| [o.stdout, o.stderr].concat()).unwrap_or_default();
    if String::from_utf8_lossy(&text).contains("virtio-9p-pci") {
        Ok("virtio-9p-pci".into())
    } else {
        Err((
            "this QEMU has no virtio-9p-pci device".into(),
            "use --root initramfs, or your distribution's QEMU".into(),
        ))
    }
}

fn plugin_file() -> Result<String, (String, String)> {
    plugin::find().map(|p| p.display().to_string()).map_err(|_| {
        (
            "libbifold_capture_plugin.so is neither beside the executable nor in ../lib/bifold".into(),
            "build the whole workspace, or set BIFOLD_PLUGIN to the file".into(),
        )
    })
}

fn guest_kernel() -> Result<String, (String, String)> {
    if let Some(dir) = kernel::cached() {
        return Ok(format!("cached in {}", dir.display()));
    }
    match kernel::default_package() {
        Ok(package) => Ok(format!("{package} will be downloaded at first use (70 MB; Ubuntu's: 190 MB)")),
        Err(e) => Err((e.to_string(), "run apt-get update, or give a kernel with --kernel".into())),
    }
}

fn memory() -> Result<String, (String, String)> {
    let available = Host::live().memory().ok().and_then(|m| m.available).unwrap_or(0);
    let mib = available >> 20;
    let detail = format!("{mib} MiB available");
    if mib >= MEMORY_MIB {
        return Ok(detail);
    }
    let remedy = format!("{MEMORY_MIB} MiB serve the default guest; give a smaller one with --memory");
    Err((detail, remedy))
}

fn memfd() -> Result<String, (String, String)> {
    // Guest memory and ring are memfds, to which no limit of /dev/shm applies.
    memfd::memfd("bifold-doctor", 4096)
        .map(|_| "available (/dev/shm is not used)".into())
        .map_err(|e| (e.to_string(), "needs Linux 3.17 or later, without a seccomp filter".into()))
}
