// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Adds files of this machine to an initramfs. Programs come with their loader and libraries.

use std::ffi::OsStr;
use std::fs;
use std::os::unix::ffi::OsStrExt;
use std::os::unix::fs::{MetadataExt, PermissionsExt};
use std::path::{Path, PathBuf};
use std::process::Command;

use crate::cpio::{Archive, Entry};
use crate::error::GuestError;

/// Largest file in bytes: sizes in a newc archive have 32 bits.
const MAX_FILE: u64 = 2 << 30;

/// Whether this is a file that may be executed.
pub fn executable(path: &Path) -> bool {
    fs::metadata(path).is_ok_and(|m| m.is_file() && m.permissions().mode() & 0o111 != 0)
        && rustix::fs::access(path, rustix::fs::Access::EXEC_OK).is_ok()
}

fn read_file(path: &Path) -> Result<(u32, Vec<u8>), GuestError> {
    let meta = fs::metadata(path).map_err(GuestError::file(path, "cannot read"))?;
    if meta.len() > MAX_FILE {
        return Err(GuestError::Spec(format!("{}: too big for an initramfs", path.display())));
    }
    let data = fs::read(path).map_err(GuestError::file(path, "cannot read"))?;
    Ok((meta.mode() & 0o7777, data))
}

/// Adds a file under its own path.
fn add_file(archive: &mut Archive, path: &Path) -> Result<(), GuestError> {
    if !archive.contains(path.as_os_str().as_bytes()) {
        let (mode, data) = read_file(path)?;
        archive.add(path.as_os_str().as_bytes(), Entry::File { mode, data });
    }
    Ok(())
}

/// Adds a program and the files that it needs to start: a script's interpreter, an ELF file's loader and
/// libraries.
pub fn add_program(archive: &mut Archive, path: &Path) -> Result<(), GuestError> {
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

/// The loader of this architecture, for shared objects, which name none.
const LOADER: &str = "/lib64/ld-linux-x86-64.so.2";

/// Adds a shared object that a program loads by itself, and the libraries that the object needs.
///
/// # Errors
/// If a file cannot be read.
pub fn add_shared(archive: &mut Archive, path: &Path) -> Result<(), GuestError> {
    add_file(archive, path)?;
    for library in libraries(Path::new(LOADER), path)? {
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

/// The libraries of a program, as its loader finds them. With this environment variable, which ldd uses too,
/// the loader names missing libraries; with `--list` it would not.
fn libraries(loader: &Path, program: &Path) -> Result<Vec<PathBuf>, GuestError> {
    let out = Command::new(loader)
        .env("LD_TRACE_LOADED_OBJECTS", "1")
        .arg(program)
        .output()
        .map_err(GuestError::file(loader, "cannot run"))?;
    let text = String::from_utf8_lossy(&out.stdout).into_owned();
    let mut found = Vec::new();
    for line in text.lines() {
        let target = line.split_once("=>").map_or(line, |(_, t)| t).trim();
        if target == "not found" {
            return Err(GuestError::Spec(format!(
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

/// Adds a file, a symlink or a directory with all below it.
pub fn add_tree(archive: &mut Archive, path: &Path) -> Result<(), GuestError> {
    let path = std::path::absolute(path).map_err(GuestError::file(path, "cannot resolve"))?;
    let unread = |what| GuestError::file(&path, what);
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
