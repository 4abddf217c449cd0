// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Builds the guest's initramfs: init, init's configuration, the modules, and for [`Root::Initramfs`] the
//! command with its shared libraries and the files that the caller names. The archive's bytes do not depend
//! on the time or place of the build.

use std::ffi::OsStr;
use std::fs;
use std::io::Read as _;
use std::os::unix::ffi::OsStrExt;
use std::path::{Path, PathBuf};

use crate::cpio::{Archive, Entry};
use crate::error::GuestError;
use crate::image::{add_program, add_tree, executable};
use crate::kernel::Kernel;
use crate::modules::{self, Modules};
use crate::spec::{GuestSpec, Root};

const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));
/// For guests in 32-bit mode; empty if the C compiler could not build it.
pub(crate) const INIT_32: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init32"));

/// The command's file, found as a shell would find it.
pub(crate) fn resolve(spec: &GuestSpec) -> Result<PathBuf, GuestError> {
    let program = found(spec)?;
    if !spec.tables.is_long() && is_long(&program) {
        return Err(GuestError::LongProgram { path: program, tables: spec.tables.name() });
    }
    Ok(program)
}

/// Whether a file is an ELF program of 64-bit mode.
fn is_long(path: &Path) -> bool {
    let mut head = [0; 5];
    let read = fs::File::open(path).and_then(|mut f| f.read_exact(&mut head));
    read.is_ok() && head == *b"\x7fELF\x02"
}

fn found(spec: &GuestSpec) -> Result<PathBuf, GuestError> {
    let Some(name) = spec.command.first() else {
        return Err(GuestError::Spec("no command given".into()));
    };
    let missing = || GuestError::ProgramNotFound { program: name.to_string_lossy().into_owned() };
    if name.is_empty() {
        return Err(GuestError::ProgramNotFound { program: "''".into() });
    }
    if name.as_bytes().contains(&b'/') {
        let path = spec.cwd.join(name);
        return match fs::metadata(&path) {
            Err(_) => Err(missing()),
            Ok(_) if !executable(&path) => Err(GuestError::NotExecutable { path }),
            Ok(_) => Ok(path),
        };
    }
    let path = spec.env.iter().rev().find(|(k, _)| k == "PATH").map(|(_, v)| v.as_os_str());
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let candidates = || std::env::split_paths(path).map(|d| spec.cwd.join(d).join(name));
    match candidates().find(|p| executable(p)) {
        Some(p) => Ok(p),
        None => match candidates().find(|p| p.exists()) {
            Some(path) => Err(GuestError::NotExecutable { path }),
            None => Err(missing()),
        },
    }
}

/// Builds the archive of a captured guest that boots and runs its command.
pub(crate) fn initramfs(spec: &GuestSpec, kernel: &Kernel, program: &Path) -> Result<Vec<u8>, GuestError> {
    let (mut archive, mut config) = boot(spec, kernel)?;
    if let Root::Initramfs { include } = &spec.root {
        archive.add(b"tmp", Entry::Dir { mode: 0o1777 });
        archive.add(b"root", Entry::Dir { mode: 0o700 });
        add_program(&mut archive, program)?;
        for path in include {
            add_tree(&mut archive, path)?;
        }
        archive.add(spec.cwd.as_os_str().as_bytes(), Entry::Dir { mode: 0o755 });
    }
    config.command(spec, program)?;
    archive.add(b"stdin", Entry::File { mode: 0o444, data: spec.stdin.clone() });
    archive.add(b"config", Entry::File { mode: 0o600, data: config.0 });
    Ok(archive.bytes())
}

/// Builds the archive of a guest that boots and then stops. [`command_config`] makes what comes after.
pub(crate) fn boot_initramfs(spec: &GuestSpec, kernel: &Kernel) -> Result<Vec<u8>, GuestError> {
    let (mut archive, mut config) = boot(spec, kernel)?;
    config.put("stop", b"yes");
    archive.add(b"config", Entry::File { mode: 0o600, data: config.0 });
    Ok(archive.bytes())
}

/// Init's configuration for the command, where the guest has booted already. `date` is the guest's, in
/// seconds since 1970.
pub(crate) fn command_config(spec: &GuestSpec, program: &Path, date: u64) -> Result<Vec<u8>, GuestError> {
    let mut config = Config::default();
    config.put("date", date.to_string().as_bytes());
    config.command(spec, program)?;
    Ok(config.0)
}

/// What every captured guest has: init, modules and mount points.
fn boot(spec: &GuestSpec, kernel: &Kernel) -> Result<(Archive, Config), GuestError> {
    let mut archive = Archive::default();
    let init = if spec.tables.is_long() { INIT } else { INIT_32 };
    archive.add(b"init", Entry::File { mode: 0o755, data: init.to_vec() });
    for dir in ["dev", "proc", "sys"] {
        archive.add(dir.as_bytes(), Entry::Dir { mode: 0o755 });
    }
    let mut config = Config::default();
    add_modules(spec, kernel, &mut archive, &mut config)?;
    Ok((archive, config))
}

/// Builds the archive of a guest that keeps running ([`crate::vm`]). Init runs `program`, one of `files`, as
/// root; the first of `arguments` is the program's name. The guest's root holds only `files`. Init loads the
/// modules `more` besides those for ports.
///
/// # Errors
/// If the kernel lacks one of these modules, or one for virtio-serial ports.
pub fn workload_initramfs(
    kernel: &Kernel,
    mut files: Archive,
    program: &str,
    arguments: &[String],
    more: &[&str],
) -> Result<Vec<u8>, GuestError> {
    files.add(b"init", Entry::File { mode: 0o755, data: INIT.to_vec() });
    for dir in ["dev", "proc", "sys", "run"] {
        files.add(dir.as_bytes(), Entry::Dir { mode: 0o755 });
    }
    files.add(b"tmp", Entry::Dir { mode: 0o1777 });
    let mut config = Config::default();
    put_modules(&[modules::PORTS, more].concat(), kernel, &mut files, &mut config)?;
    config.put("root", b"initramfs");
    config.put("resident", b"yes");
    // With huge pages of its own a guest would fill its memory in other places; the host's are
    // another matter.
    config.put("thp", b"never");
    config.put("program", program.as_bytes());
    config.put("cwd", b"/");
    config.number("uid", 0);
    config.number("gid", 0);
    for arg in arguments {
        config.put("arg", arg.as_bytes());
    }
    config.put("env", b"PATH=/usr/sbin:/usr/bin:/sbin:/bin");
    files.add(b"config", Entry::File { mode: 0o600, data: config.0 });
    Ok(files.bytes())
}

#[derive(Default)]
struct Config(Vec<u8>);

impl Config {
    fn put(&mut self, key: &str, value: &[u8]) {
        self.0.extend_from_slice(key.as_bytes());
        self.0.push(b'=');
        self.0.extend_from_slice(value);
        self.0.push(0);
    }

    fn number(&mut self, key: &str, value: u32) {
        self.put(key, value.to_string().as_bytes());
    }

    /// The command and what it runs in.
    fn command(&mut self, spec: &GuestSpec, program: &Path) -> Result<(), GuestError> {
        let root: &[u8] = if spec.root == Root::Host { b"host" } else { b"initramfs" };
        self.put("root", root);
        self.put("thp", spec.thp.word().as_bytes());
        if spec.attribute {
            self.number("where", spec.vcpus);
        }
        self.put("program", program.as_os_str().as_bytes());
        self.put("cwd", spec.cwd.as_os_str().as_bytes());
        self.number("uid", rustix::process::geteuid().as_raw());
        self.number("gid", rustix::process::getegid().as_raw());
        let groups = rustix::process::getgroups().map_err(GuestError::os("reading the groups"))?;
        for g in groups {
            self.number("group", g.as_raw());
        }
        for arg in &spec.command {
            self.put("arg", arg.as_bytes());
        }
        for (k, v) in &spec.env {
            self.put("env", &[k.as_bytes(), b"=", v.as_bytes()].concat());
        }
        if spec.keep {
            self.put("keep", b"yes");
        }
        Ok(())
    }
}

fn add_modules(
    spec: &GuestSpec,
    kernel: &Kernel,
    archive: &mut Archive,
    config: &mut Config,
) -> Result<(), GuestError> {
    let wanted = match spec.root {
        Root::Host => modules::WANTED,
        Root::Initramfs { .. } => modules::PORTS,
    };
    put_modules(wanted, kernel, archive, config)
}

fn put_modules(
    wanted: &[&str],
    kernel: &Kernel,
    archive: &mut Archive,
    config: &mut Config,
) -> Result<(), GuestError> {
    // A kernel with all of it built in needs no modules directory.
    let Some(dir) = &kernel.modules else { return Ok(()) };
    let all = Modules::scan(dir)?;
    if let Some(missing) = wanted.iter().find(|m| !all.has(m)) {
        let module = if missing.starts_with("9p") { "9p" } else { missing };
        return Err(GuestError::NoModule { version: kernel.version.clone(), module: module.to_owned() });
    }
    for path in all.with_dependencies(wanted) {
        let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let at = format!("/m/{}", stem.trim_end_matches(".xz").trim_end_matches(".zst"));
        archive.add(at.as_bytes(), Entry::File { mode: 0o600, data: modules::read(&path)? });
        config.put("module", at.as_bytes());
    }
    Ok(())
}
