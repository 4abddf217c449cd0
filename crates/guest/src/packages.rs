// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Takes programs for a guest from Debian packages. The packages are downloaded and unpacked into a cache,
//! never installed.
//!
//! Library packages that a package depends on are fetched as well. A guest gets the files that the caller
//! names and, for programs, their loader and libraries (ELF's DT_NEEDED, searched in the unpacked tree).
//! Configuration scripts do not run. If a program runs other programs, the caller names those too.

use std::collections::{BTreeSet, VecDeque};
use std::fs;
use std::os::unix::ffi::OsStrExt as _;
use std::os::unix::fs::PermissionsExt as _;
use std::path::{Path, PathBuf};
use std::process::Command;

use object::read::elf::{Dyn as _, FileHeader as _, ProgramHeader as _};
use object::{Endianness, elf};

use crate::cpio::{Archive, Entry};
use crate::error::GuestError;
use crate::kernel::{cache_dir, tool};

/// The file that marks an unpacked tree as complete.
const COMPLETE: &str = ".bifold-complete";
/// Where Debian's loader looks for libraries.
const LIBRARY_DIRS: [&str; 4] = ["usr/lib/x86_64-linux-gnu", "lib/x86_64-linux-gnu", "usr/lib64", "lib64"];
/// Upper limit for a program's library packages.
const MOST: usize = 400;

/// Unpacked packages.
#[derive(Debug, Clone)]
pub struct Packages {
    tree: PathBuf,
    /// Names and versions of the requested packages.
    pub versions: Vec<String>,
}

impl Packages {
    /// Finds these packages and the libraries that they depend on in the cache, or fetches them. A name
    /// is an argument of `apt-get download`: `busybox-static`, or `name=version`.
    ///
    /// # Errors
    /// If apt does not know a package, or the packages are not in the cache and there is no network.
    pub fn fetch(names: &[String], stage: &mut dyn FnMut(&str)) -> Result<Packages, GuestError> {
        let bad = |n: &&String| n.is_empty() || n.starts_with('-') || n.contains('/');
        if let Some(name) = names.iter().find(bad) {
            return Err(GuestError::Spec(format!("`{}` is no package's name", name.escape_debug())));
        }
        let cache = cache_dir("packages")?;
        let tree = cache.join(names.join("+"));
        if tree.join(COMPLETE).exists() {
            return Packages::stored(tree);
        }
        fs::create_dir_all(&cache).map_err(GuestError::file(&cache, "cannot create"))?;
        let tmp = cache.join(format!(".new-{}", std::process::id()));
        let result = fetch_into(&tmp, &tree, names, stage);
        let _ = fs::remove_dir_all(&tmp);
        result.map_err(|e| match e {
            // `tool` is shared with the fetching of kernels, and its error names kernels.
            GuestError::KernelFetch { why } => GuestError::PackageFetch { why },
            other => other,
        })?;
        Packages::stored(tree)
    }

    fn stored(tree: PathBuf) -> Result<Packages, GuestError> {
        let at = tree.join(COMPLETE);
        let text = fs::read_to_string(&at).map_err(GuestError::file(&at, "cannot read"))?;
        Ok(Packages { tree, versions: text.lines().map(String::from).collect() })
    }

    /// Adds a file, or a directory with all below it, to an archive under its own path. A program comes with
    /// its loader and libraries.
    ///
    /// # Errors
    /// If no package has the file, or a library that it needs.
    pub fn add(&self, archive: &mut Archive, path: &str) -> Result<(), GuestError> {
        let path = path.trim_start_matches('/');
        let real = self
            .resolve(path)
            .ok_or_else(|| GuestError::Spec(format!("/{path}: in none of the packages")))?;
        if real.is_dir() {
            for entry in fs::read_dir(&real).map_err(GuestError::file(&real, "cannot read"))? {
                let entry = entry.map_err(GuestError::file(&real, "cannot read"))?;
                self.add(archive, &format!("{path}/{}", entry.file_name().to_string_lossy()))?;
            }
            return Ok(());
        }
        if archive.contains(path.as_bytes()) {
            return Ok(());
        }
        let data = fs::read(&real).map_err(GuestError::file(&real, "cannot read"))?;
        let mode = fs::metadata(&real).map_err(GuestError::file(&real, "cannot read"))?.permissions().mode();
        let (loader, needed) = needs(&data);
        archive.add(path.as_bytes(), Entry::File { mode: mode & 0o7777, data });
        if let Some(loader) = loader {
            self.add(archive, &loader)?;
        }
        for library in needed {
            let found =
                LIBRARY_DIRS.iter().map(|d| format!("{d}/{library}")).find(|p| self.resolve(p).is_some());
            let at = found.ok_or_else(|| {
                GuestError::Spec(format!("/{path}: needs {library}, which is in none of the packages"))
            })?;
            self.add(archive, &at)?;
        }
        Ok(())
    }

    /// The file behind a path of the tree. Symbolic links are followed within the tree.
    fn resolve(&self, path: &str) -> Option<PathBuf> {
        let mut at = PathBuf::new();
        let mut todo: VecDeque<String> = path.split('/').map(String::from).collect();
        let mut links = 0;
        while let Some(part) = todo.pop_front() {
            match part.as_str() {
                "" | "." => continue,
                ".." => {
                    at.pop();
                    continue;
                }
                _ => {}
            }
            let next = self.tree.join(&at).join(&part);
            let meta = fs::symlink_metadata(&next).ok()?;
            if meta.is_symlink() {
                links += 1;
                if links > 40 {
                    return None;
                }
                let to = fs::read_link(&next).ok()?;
                if to.is_absolute() {
                    at = PathBuf::new();
                }
                let to = String::from_utf8_lossy(to.as_os_str().as_bytes()).into_owned();
                for part in to.split('/').rev() {
                    todo.push_front(part.into());
                }
            } else {
                at.push(part);
            }
        }
        Some(self.tree.join(at))
    }
}

/// The loader of an ELF file, if it names one, and the libraries that the file names.
fn needs(data: &[u8]) -> (Option<String>, Vec<String>) {
    let parsed = || -> Option<(Option<String>, Vec<String>)> {
        let header = elf::FileHeader64::<Endianness>::parse(data).ok()?;
        let endian = header.endian().ok()?;
        let segments = header.program_headers(endian, data).ok()?;
        let loader = segments.iter().find_map(|p| p.interpreter(endian, data).ok().flatten());
        let loader = loader.map(|l| String::from_utf8_lossy(l).into_owned());
        let dynamic = segments.iter().find_map(|p| p.dynamic(endian, data).ok().flatten()).unwrap_or(&[]);
        let value = |tag: u32| dynamic.iter().find(|d| d.tag32(endian) == Some(tag)).map(|d| d.d_val(endian));
        let Some(strings) = value(elf::DT_STRTAB) else { return Some((loader, Vec::new())) };
        // DT_STRTAB is an address; the segment that holds it gives the place in the file.
        let strings = segments.iter().find_map(|p| {
            let (from, size) = (p.p_vaddr(endian), p.p_filesz(endian));
            let within = p.p_type(endian) == elf::PT_LOAD && strings >= from && strings - from < size;
            within.then(|| p.p_offset(endian) + (strings - from))
        })?;
        let name = |at: u64| {
            let bytes = data.get(usize::try_from(strings.checked_add(at)?).ok()?..)?;
            let end = bytes.iter().position(|b| *b == 0)?;
            Some(String::from_utf8_lossy(&bytes[..end]).into_owned())
        };
        let needed = dynamic.iter().filter(|d| d.tag32(endian) == Some(elf::DT_NEEDED));
        Some((loader, needed.filter_map(|d| name(d.d_val(endian))).collect()))
    };
    parsed().unwrap_or_default()
}

fn fetch_into(
    tmp: &Path,
    to: &Path,
    names: &[String],
    stage: &mut dyn FnMut(&str),
) -> Result<(), GuestError> {
    let lost = |what| GuestError::file(tmp, what);
    let tree = tmp.join("tree");
    fs::create_dir_all(&tree).map_err(lost("cannot create"))?;
    stage(&format!("downloading {}", names.join(", ")));
    let all = with_libraries(names)?;
    tool(
        Command::new("apt-get")
            .args(["-q", "-o", "APT::Sandbox::User=root", "download"])
            .args(&all)
            .current_dir(tmp),
        "apt-get download",
    )?;
    stage("unpacking packages");
    let mut versions = Vec::new();
    let debs = fs::read_dir(tmp).map_err(lost("cannot read"))?;
    let mut debs: Vec<PathBuf> = debs
        .filter_map(|e| Some(e.ok()?.path()))
        .filter(|p| p.extension().is_some_and(|e| e == "deb"))
        .collect();
    debs.sort();
    for deb in debs {
        tool(Command::new("dpkg-deb").arg("-x").arg(&deb).arg(&tree), "dpkg-deb -x")?;
        let says = tool(Command::new("dpkg-deb").arg("-W").arg(&deb), "dpkg-deb -W")?;
        let line = String::from_utf8_lossy(&says).trim().replace('\t', " ");
        let plain = |n: &String| n.split('=').next().unwrap_or_default().to_owned();
        if names.iter().any(|n| line.split(' ').next() == Some(&plain(n))) {
            versions.push(line);
        }
    }
    fs::write(tree.join(COMPLETE), versions.join("\n")).map_err(lost("cannot write"))?;
    match fs::rename(&tree, to) {
        Err(_) if to.join(COMPLETE).exists() => Ok(()), // another process fetched them meanwhile
        other => other.map_err(GuestError::file(to, "cannot create")),
    }
}

/// These packages and all library packages that they depend on, by apt.
fn with_libraries(names: &[String]) -> Result<Vec<String>, GuestError> {
    let mut all: BTreeSet<String> = names.iter().cloned().collect();
    let mut todo: Vec<String> = names.to_vec();
    while !todo.is_empty() {
        let out = tool(
            Command::new("apt-cache").args(["depends", "--important"]).args(&todo),
            "apt-cache depends",
        )?;
        todo.clear();
        for name in library_packages(&String::from_utf8_lossy(&out)) {
            if all.insert(name.clone()) {
                todo.push(name);
            }
        }
        if all.len() > MOST {
            return Err(GuestError::Spec(format!("{}: too many libraries", names.join(", "))));
        }
    }
    Ok(all.into_iter().collect())
}

/// The library packages in the output of `apt-cache depends`.
fn library_packages(text: &str) -> Vec<String> {
    let names = text.lines().filter_map(|l| l.trim().trim_start_matches('|').strip_prefix("Depends: "));
    names
        .filter(|n| (n.starts_with("lib") || *n == "zlib1g") && !n.ends_with("-perl") && !n.contains(':'))
        .map(String::from)
        .collect()
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn only_libraries_are_followed() {
        let text = "mariadb-client\n  Depends: debianutils\n  Depends: libconfig-inifiles-perl\n \
                    |Depends: libaio1\n  Depends: <perl:any>\n    perl\n  Depends: zlib1g\n";
        assert_eq!(library_packages(text), ["libaio1", "zlib1g"]);
    }

    #[test]
    fn a_program_names_its_loader_and_its_libraries() {
        let (loader, needed) = needs(&fs::read("/bin/ls").unwrap());
        assert!(loader.unwrap().contains("ld-linux-x86-64"));
        assert!(needed.iter().any(|n| n == "libc.so.6"), "{needed:?}");
        assert_eq!(needs(b"#!/bin/sh\n"), (None, Vec::new()));
    }

    #[test]
    fn links_stay_within_the_tree() {
        let dir = tempfile::tempdir().unwrap();
        let tree = dir.path();
        fs::create_dir_all(tree.join("usr/lib")).unwrap();
        fs::write(tree.join("usr/lib/real"), b"data").unwrap();
        std::os::unix::fs::symlink("usr/lib", tree.join("lib")).unwrap();
        std::os::unix::fs::symlink("/lib/real", tree.join("usr/lib/absolute")).unwrap();
        std::os::unix::fs::symlink("loop", tree.join("loop")).unwrap();
        let packages = Packages { tree: tree.into(), versions: Vec::new() };
        assert_eq!(packages.resolve("lib/absolute"), Some(tree.join("usr/lib/real")));
        assert_eq!(packages.resolve("loop"), None);
        assert_eq!(packages.resolve("../../etc/passwd"), None);
        let mut archive = Archive::default();
        packages.add(&mut archive, "/lib/absolute").unwrap();
        assert!(archive.contains(b"lib/absolute"));
        assert!(packages.add(&mut archive, "/no").unwrap_err().to_string().contains("/no"));
    }
}
