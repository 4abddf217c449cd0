// SPDX-License-Identifier: Apache-2.0 OR MIT
//! What the state of a booted guest depends on.

use std::fs;
use std::path::Path;

use xxhash_rust::xxh3::xxh3_128;

use crate::error::GuestError;
use crate::qemu::{self, Qemu};
use crate::spec::GuestSpec;

/// Everything that a boot reads: a boot with an equal key gives the same state.
#[derive(Debug, Clone, PartialEq, Eq)]
pub(crate) struct Key {
    /// The guest in words, for lists. Not part of the hash.
    pub(crate) guest: String,
    lines: Vec<String>,
}

/// The parts that the key is made of.
pub(crate) struct Parts<'a> {
    pub(crate) spec: &'a GuestSpec,
    pub(crate) qemu: &'a Qemu,
    /// QEMU's command line for the boot.
    pub(crate) arguments: &'a [String],
    pub(crate) kernel_version: &'a str,
    pub(crate) kernel: &'a Path,
    pub(crate) initramfs: &'a [u8],
}

impl Key {
    pub(crate) fn new(parts: &Parts) -> Result<Key, GuestError> {
        let Parts { spec, qemu, arguments, kernel_version, kernel, initramfs } = parts;
        let mut lines = vec![format!("qemu {}", qemu.release), format!("file {}", identity(&qemu.path)?)];
        lines.extend(arguments.iter().map(|a| format!("argument {}", without_descriptors(a))));
        lines.push(format!("kernel {:032x}", contents(kernel)?));
        if let Some([_, image]) = qemu::firmware() {
            lines.push(format!("firmware {:032x}", contents(Path::new(&image))?));
        }
        // Init and the modules.
        lines.push(format!("initramfs {:032x}", xxh3_128(initramfs)));
        let guest = format!("Linux {kernel_version}, {} MiB, QEMU {}", spec.memory_mib, qemu.version);
        Ok(Key { guest, lines })
    }

    /// The name of the boot's folder.
    pub(crate) fn name(&self) -> String {
        format!("{:032x}", xxh3_128(self.lines.join("\n").as_bytes()))
    }

    #[cfg(test)]
    pub(super) fn of(guest: &str) -> Key {
        Key { guest: guest.into(), lines: vec![guest.into()] }
    }
}

/// A program that is too large to read for every run: its path, length and time of change.
fn identity(path: &Path) -> Result<String, GuestError> {
    let problem = || GuestError::file(path, "cannot read");
    let real = path.canonicalize().map_err(problem())?;
    let meta = real.metadata().map_err(problem())?;
    let changed = meta.modified().ok().and_then(|t| t.duration_since(std::time::UNIX_EPOCH).ok());
    Ok(format!("{} {} {}", real.display(), meta.len(), changed.map_or(0, |t| t.as_nanos())))
}

fn contents(path: &Path) -> Result<u128, GuestError> {
    fs::read(path).map(|b| xxh3_128(&b)).map_err(GuestError::file(path, "cannot read"))
}

/// An argument without the numbers of inherited descriptors, which differ from run to run.
fn without_descriptors(argument: &str) -> String {
    let mut out = argument.to_owned();
    for before in ["/proc/self/fd/", "fd="] {
        let mut from = 0;
        while let Some(at) = out[from..].find(before) {
            from += at + before.len();
            let digits = out[from..].bytes().take_while(u8::is_ascii_digit).count();
            out.replace_range(from..from + digits, "");
        }
    }
    out
}

#[cfg(test)]
mod tests {
    use super::*;
    use std::path::PathBuf;

    #[test]
    fn descriptors_are_no_part_of_an_argument() {
        let of = without_descriptors;
        assert_eq!(of("file,id=console,path=/proc/self/fd/12"), "file,id=console,path=/proc/self/fd/");
        assert_eq!(of("socket,id=control,fd=7"), "socket,id=control,fd=");
        assert_eq!(of("mem-path=/proc/self/fd/3,share=on"), "mem-path=/proc/self/fd/,share=on");
        assert_eq!(of("2048M"), "2048M");
    }

    #[test]
    fn every_part_changes_the_name() {
        let dir = tempfile::tempdir().unwrap();
        let file = |name: &str, text: &str| -> PathBuf {
            let at = dir.path().join(name);
            fs::write(&at, text).unwrap();
            at
        };
        let (a, b) = (file("a", "kernel"), file("b", "another"));
        let spec = GuestSpec::new(vec!["true".into()]);
        let qemu = Qemu { path: a.clone(), version: "10.0.2".into(), release: "10.0.2 (1)".into() };
        let (other, newer) =
            (Qemu { path: b.clone(), ..qemu.clone() }, Qemu { release: "10.0.2 (2)".into(), ..qemu.clone() });
        let (one, two) = (["-m".to_owned(), "1M".into()], ["-m".to_owned(), "2M".into()]);
        let name = |spec: &GuestSpec, qemu: &Qemu, arguments: &[String], kernel: &Path, initramfs: &[u8]| {
            Key::new(&Parts { spec, qemu, arguments, kernel_version: "6.1", kernel, initramfs })
                .unwrap()
                .name()
        };
        let names = [
            name(&spec, &qemu, &one, &a, b"i"),
            name(&spec, &other, &one, &a, b"i"),
            name(&spec, &newer, &one, &a, b"i"),
            name(&spec, &qemu, &two, &a, b"i"),
            name(&spec, &qemu, &one, &b, b"i"),
            name(&spec, &qemu, &one, &a, b"j"),
        ];
        let different: std::collections::BTreeSet<_> = names.iter().collect();
        assert_eq!(different.len(), names.len());
        assert_eq!(names[0], name(&spec, &qemu, &one, &a, b"i"));
    }
}
