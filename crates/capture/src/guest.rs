// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The guest's initramfs: init, its configuration, the modules, and for
//! [`Root::Initramfs`] the command with its shared libraries and whatever else
//! the caller names. Nothing in it depends on when or where it was built.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpio::{Archive, Entry};
use crate::error::CaptureError;
use crate::kernel::Kernel;
use crate::modules::{self, Modules};
use crate::{GuestSpec, Root};

const INIT: &[u8] = include_bytes!(concat!(env!("OUT_DIR"), "/init"));
/// newc holds 32-bit sizes; no guest of ours has room for more anyway.
const MAX_FILE: u64 = 2 << 30;

/// The command's file, found as a shell would find it.
pub(crate) fn resolve(spec: &GuestSpec) -> Result<PathBuf, CaptureError> {
    let Some(name) = spec.command.first() else {
        return Err(CaptureError::Spec("no command given".into()));
    };
    let missing = || CaptureError::ProgramNotFound { program: name.to_string_lossy().into_owned() };
    if name.as_bytes().contains(&b'/') {
        let path = spec.cwd.join(name);
        return match fs::metadata(&path) {
            Err(_) => Err(missing()),
            Ok(_) if !executable(&path) => Err(CaptureError::NotExecutable { path }),
            Ok(_) => Ok(path),
        };
    }
    let path = spec.env.iter().rev().find(|(k, _)| k == "PATH").map(|(_, v)| v.as_os_str());
    let path = path.unwrap_or(OsStr::new("/usr/local/bin:/usr/bin:/bin"));
    let candidates = || std::env::split_paths(path).map(|d| spec.cwd.join(d).join(name));
    match candidates().find(|p| executable(p)) {
        Some(p) => Ok(p),
        None => match candidates().find(|p| p.exists()) {
            Some(path) => Err(CaptureError::NotExecutable { path }),
            None => Err(missing()),
        },
    }
}

fn executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

/// Builds the archive for this kernel and command.
pub(crate) fn initramfs(spec: &GuestSpec, kernel: &Kernel, program: &Path) -> Result<Vec<u8>, CaptureError> {
    let mut archive = Archive::default();
    archive.add(b"init", Entry::File { mode: 0o755, data: INIT.to_vec() });
    for dir in ["dev", "proc", "sys"] {
        archive.add(dir.as_bytes(), Entry::Dir { mode: 0o755 });
    }
    let mut config = Config::default();
    add_modules(spec, kernel, &mut archive, &mut config)?;
    match &spec.root {
        Root::Host => config.put("root", b"host"),
        Root::Initramfs { include } => {
            config.put("root", b"initramfs");
            archive.add(b"tmp", Entry::Dir { mode: 0o1777 });
            archive.add(b"root", Entry::Dir { mode: 0o700 });
            add_program(&mut archive, program)?;
            for path in include {
                add_tree(&mut archive, path)?;
            }
            archive.add(spec.cwd.as_os_str().as_bytes(), Entry::Dir { mode: 0o755 });
        }
    }
    config.put("thp", spec.thp.word().as_bytes());
    config.put("program", program.as_os_str().as_bytes());
    config.put("cwd", spec.cwd.as_os_str().as_bytes());
    config.number("uid", rustix::process::geteuid().as_raw());
    config.number("gid", rustix::process::getegid().as_raw());
    let groups = rustix::process::getgroups().map_err(CaptureError::os("reading the groups"))?;
    for g in groups {
        config.number("group", g.as_raw());
    }
    for arg in &spec.command {
        config.put("arg", arg.as_bytes());
    }
    for (k, v) in &spec.env {
        config.put("env", &[k.as_bytes(), b"=", v.as_bytes()].concat());
    }
    archive.add(b"config", Entry::File { mode: 0o600, data: config.0 });
    Ok(archive.bytes())
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
}

fn add_modules(
    spec: &GuestSpec,
    kernel: &Kernel,
    archive: &mut Archive,
    config: &mut Config,
) -> Result<(), CaptureError> {
    let wanted = match spec.root {
        Root::Host => modules::WANTED,
        Root::Initramfs { .. } => modules::PORTS,
    };
    // A kernel with all of it built in needs no modules directory.
    let Some(dir) = &kernel.modules else { return Ok(()) };
    let all = Modules::scan(dir)?;
    if let Some(missing) = wanted.iter().find(|m| !all.has(m)) {
        let module = if missing.starts_with("9p") { "9p" } else { missing };
        return Err(CaptureError::NoModule { version: kernel.version.clone(), module: module.to_owned() });
    }
    for path in all.with_dependencies(wanted) {
        let stem = path.file_name().unwrap_or_default().to_string_lossy().into_owned();
        let at = format!("/m/{}", stem.trim_end_matches(".xz").trim_end_matches(".zst"));
        archive.add(at.as_bytes(), Entry::File { mode: 0o600, data: modules::read(&path)? });
        config.put("module", at.as_bytes());
    }
    Ok(())
}

fn read_file(path: &Path) -> Result<(u32, Vec<u8>), CaptureError> {
    let meta = fs::metadata(path).map_err(CaptureError::file(path, "cannot read"))?;
    if meta.len() > MAX_FILE {
        return Err(CaptureError::Spec(format!("{}: too big for an initramfs", path.display())));
    }
    let data = fs::read(path).map_err(CaptureError::file(path, "cannot read"))?;
    Ok((meta.mode() & 0o7777, data))
}

fn add_file(archive: &mut Archive, path: &Path) -> Result<(), CaptureError> {
    if !archive.contains(path.as_os_str().as_bytes()) {
        let (mode, data) = read_file(path)?;
        archive.add(path.as_os_str().as_bytes(), Entry::File { mode, data });
    }
    Ok(())
}

/// A program with what the kernel and its loader will look for: a script's
/// interpreter, an ELF file's loader and libraries.
fn add_program(archive: &mut Archive, path: &Path) -> Result<(), CaptureError> {
    if archive.contains(path.as_os_str().as_bytes()) {
        return Ok(());
    }
    let (mode, data) = read_file(path)?;
    let interpreter = if data.starts_with(b"#!") {
        let line = data[2..].split(|b| *b == b'\n').next().unwrap_or_default();
        line.split(|b| b.is_ascii_whitespace()).find(|w| !w.is_empty()).map(<[u8]>::to_vec)
    } else {
        elf_loader(&data)
    };
    let elf = data.starts_with(b"\x7fELF");
    archive.add(path.as_os_str().as_bytes(), Entry::File { mode, data });
    let Some(interpreter) = interpreter else { return Ok(()) };
    let interpreter = PathBuf::from(OsStr::from_bytes(&interpreter));
    if !elf {
        return add_program(archive, &interpreter);
    }
    add_file(archive, &interpreter)?;
    for library in libraries(&interpreter, path)? {
        add_file(archive, &library)?;
    }
    Ok(())
}

/// The content of PT_INTERP.
fn elf_loader(data: &[u8]) -> Option<Vec<u8>> {
    use object::read::elf::{FileHeader, ProgramHeader};
    let header = object::elf::FileHeader64::<object::Endianness>::parse(data).ok()?;
    let endian = header.endian().ok()?;
    let interp = header
        .program_headers(endian, data)
        .ok()?
        .iter()
        .find_map(|p| p.interpreter(endian, data).ok().flatten())?;
    Some(interp.to_vec())
}

/// Asks the loader, which alone knows all its rules.
fn libraries(loader: &Path, program: &Path) -> Result<Vec<PathBuf>, CaptureError> {
    let out = Command::new(loader)
        .arg("--list")
        .arg(program)
        .output()
        .map_err(CaptureError::file(loader, "cannot run"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut found = Vec::new();
    for line in text.lines() {
        let target = line.split_once("=>").map_or(line, |(_, t)| t).trim();
        if target == "not found" {
            return Err(CaptureError::Spec(format!(
                "{}: needs a library that is not there: {}",
                program.display(),
                line.trim()
            )));
        }
        if let Some(path) = target.split_whitespace().next().filter(|p| p.starts_with('/')) {
            found.push(PathBuf::from(path));
        }
    }
    Ok(found)
}

/// A file, a symlink or a directory with all below it.
fn add_tree(archive: &mut Archive, path: &Path) -> Result<(), CaptureError> {
    let path = std::path::absolute(path).map_err(CaptureError::file(path, "cannot resolve"))?;
    let unread = |what| CaptureError::file(&path, what);
    let meta = fs::symlink_metadata(&path).map_err(unread("cannot read"))?;
    let name = path.as_os_str().as_bytes();
    if meta.is_symlink() {
        let to = fs::read_link(&path).map_err(unread("cannot read"))?;
        archive.add(name, Entry::Link { to: to.as_os_str().as_bytes().to_vec() });
    } else if meta.is_dir() {
        archive.add(name, Entry::Dir { mode: meta.mode() & 0o7777 });
        for entry in fs::read_dir(&path).map_err(unread("cannot read"))? {
            add_tree(archive, &entry.map_err(unread("cannot read"))?.path())?;
        }
    } else if meta.is_file() {
        if executable(&path) {
            add_program(archive, &path)?;
        } else {
            add_file(archive, &path)?;
        }
    }
    Ok(())
}
