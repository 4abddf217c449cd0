// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds kernel modules by name below a directory and orders them by their dependencies (`.modinfo`), so
//! that depmod need not have run. Compressed modules (Debian 13 has .ko.xz) are unpacked here, because the
//! guest's init only passes them to the kernel.

use std::collections::HashMap;
use std::fs;
use std::io::Read;
use std::path::{Path, PathBuf};

use object::{Object, ObjectSection};

use crate::error::GuestError;

/// Modules that any guest may need: for the control ports, and for the host's root.
pub const WANTED: &[&str] = &["virtio_pci", "virtio_console", "9pnet_virtio", "9p", "overlay"];
/// Modules that the laboratory needs as well. The disk is for swapping.
pub(crate) const KVM: &[&str] = &["kvm_amd", "kvm_intel", "virtio_blk"];
/// For guests whose memory the host takes back.
pub(crate) const RECLAIM: &[&str] = &["virtio_balloon", "virtio_mem"];
/// Modules that a guest without the host's root needs.
pub(crate) const PORTS: &[&str] = &["virtio_pci", "virtio_console"];

/// The modules below a directory.
pub struct Modules {
    files: HashMap<String, PathBuf>,
    builtin: Vec<String>,
}

fn canonical(name: &str) -> String {
    name.replace('-', "_")
}

/// The module's name, if this is the name of a module's file.
fn module_name(path: &Path) -> Option<String> {
    let name = path.file_name()?.to_str()?;
    let at = name.find(".ko")?;
    matches!(&name[at..], ".ko" | ".ko.xz" | ".ko.zst").then(|| canonical(&name[..at]))
}

impl Modules {
    /// Searches a directory and all below it.
    pub fn scan(dir: &Path) -> Result<Self, GuestError> {
        let mut found = Modules { files: HashMap::new(), builtin: Vec::new() };
        let mut todo = vec![dir.to_path_buf()];
        while let Some(d) = todo.pop() {
            for entry in fs::read_dir(&d).map_err(GuestError::file(&d, "cannot read"))? {
                let entry = entry.map_err(GuestError::file(&d, "cannot read"))?;
                let path = entry.path();
                // Not through symlinks: `build` and `source` lead out of the tree.
                if entry.file_type().is_ok_and(|t| t.is_dir()) {
                    todo.push(path);
                } else if let Some(name) = module_name(&path) {
                    found.files.insert(name, path);
                } else if path.ends_with("modules.builtin") {
                    let text = fs::read_to_string(&path).map_err(GuestError::file(&path, "cannot read"))?;
                    found.builtin = text.lines().filter_map(|l| module_name(Path::new(l))).collect();
                }
            }
        }
        Ok(found)
    }

    /// Adds the modules below another directory, which replace modules of the same name.
    pub fn with(mut self, dir: &Path) -> Result<Self, GuestError> {
        self.files.extend(Self::scan(dir)?.files);
        Ok(self)
    }

    /// Whether the module exists or is part of the kernel.
    pub fn has(&self, name: &str) -> bool {
        let name = canonical(name);
        self.files.contains_key(&name) || self.builtin.contains(&name)
    }

    /// The files of these modules and of their dependencies, each after its dependencies.
    pub fn with_dependencies(&self, names: &[&str]) -> Vec<PathBuf> {
        let mut order = Vec::new();
        for name in names {
            self.visit(&canonical(name), &mut order);
        }
        order
    }

    fn visit(&self, name: &str, order: &mut Vec<PathBuf>) {
        let Some(path) = self.files.get(name) else { return };
        if order.contains(path) {
            return;
        }
        let depends = read(path).map(|data| depends(&data)).unwrap_or_default();
        for d in depends {
            // A cycle cannot be built, so the recursion ends.
            self.visit(&d, order);
        }
        order.push(path.clone());
    }
}

/// A module's bytes, unpacked.
pub fn read(path: &Path) -> Result<Vec<u8>, GuestError> {
    let data = fs::read(path).map_err(GuestError::file(path, "cannot read"))?;
    let mut out = Vec::new();
    let done = if data.starts_with(b"\xfd7zXZ") {
        liblzma::read::XzDecoder::new(&data[..]).read_to_end(&mut out)
    } else if data.starts_with(&[0x28, 0xb5, 0x2f, 0xfd]) {
        zstd::Decoder::new(&data[..]).and_then(|mut d| d.read_to_end(&mut out))
    } else {
        return Ok(data);
    };
    done.map_err(GuestError::file(path, "cannot unpack"))?;
    Ok(out)
}

/// The values of a key in a module's `.modinfo` (`modinfo -F`).
pub fn info(module: &[u8], key: &str) -> Vec<String> {
    let Ok(file) = object::File::parse(module) else { return Vec::new() };
    let info = file.section_by_name(".modinfo").and_then(|s| s.data().ok()).unwrap_or(&[]);
    info.split(|b| *b == 0)
        .filter_map(|s| s.strip_prefix(key.as_bytes())?.strip_prefix(b"="))
        .map(|s| String::from_utf8_lossy(s).into_owned())
        .collect()
}

fn depends(module: &[u8]) -> Vec<String> {
    let lists = info(module, "depends");
    lists.iter().flat_map(|list| list.split(',')).filter(|n| !n.is_empty()).map(canonical).collect()
}
