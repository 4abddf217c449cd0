// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes an initramfs: a cpio archive in `newc` format, as the kernel's
//! `Documentation/driver-api/early-userspace/buffer-format.rst` describes it.
//!
//! The archive depends only on its entries' names, modes and contents: entries are sorted, inodes are
//! numbered in order, owners and times are 0. The same guest therefore gives the same bytes, which exact
//! runs need.

use std::collections::BTreeMap;

/// An entry of the archive.
#[allow(missing_docs)] // permission bits, contents and target are what they say
pub enum Entry {
    Dir { mode: u32 },
    File { mode: u32, data: Vec<u8> },
    Link { to: Vec<u8> },
}

/// The archive's entries.
#[derive(Default)]
pub struct Archive {
    /// By path without a leading slash. Sorted order puts parents first.
    entries: BTreeMap<Vec<u8>, Entry>,
}

impl Archive {
    /// Adds an entry and the directories above it. If the path has an entry already, that one stays.
    pub fn add(&mut self, path: &[u8], entry: Entry) {
        let path = path.strip_prefix(b"/").unwrap_or(path);
        if path.is_empty() {
            return;
        }
        for (i, _) in path.iter().enumerate().filter(|(_, b)| **b == b'/') {
            self.entries.entry(path[..i].to_vec()).or_insert(Entry::Dir { mode: 0o755 });
        }
        self.entries.entry(path.to_vec()).or_insert(entry);
    }

    /// Whether the path has an entry.
    pub fn contains(&self, path: &[u8]) -> bool {
        self.entries.contains_key(path.strip_prefix(b"/").unwrap_or(path))
    }

    /// The archive as the kernel reads it.
    pub fn bytes(&self) -> Vec<u8> {
        let mut out = Vec::new();
        for (ino, (name, entry)) in self.entries.iter().enumerate() {
            let (mode, data): (u32, &[u8]) = match entry {
                Entry::Dir { mode } => (0o040_000 | mode, &[]),
                Entry::File { mode, data } => (0o100_000 | mode, data),
                Entry::Link { to } => (0o120_777, to),
            };
            put(&mut out, ino as u32 + 1, mode, name, data);
        }
        put(&mut out, 0, 0, b"TRAILER!!!", &[]);
        out
    }
}

fn put(out: &mut Vec<u8>, ino: u32, mode: u32, name: &[u8], data: &[u8]) {
    out.extend_from_slice(b"070701");
    let fields = [
        ino,
        mode,
        0, // uid
        0, // gid
        1, // links
        0, // time
        data.len() as u32,
        0,
        0,
        0, // device
        0,
        name.len() as u32 + 1,
        0, // checksum
    ];
    for f in fields {
        out.extend_from_slice(format!("{f:08x}").as_bytes());
    }
    out.extend_from_slice(name);
    out.push(0);
    out.resize(out.len().next_multiple_of(4), 0);
    out.extend_from_slice(data);
    out.resize(out.len().next_multiple_of(4), 0);
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn parents_come_first_and_order_of_adding_does_not_matter() {
        let file = || Entry::File { mode: 0o644, data: b"x".to_vec() };
        let (mut a, mut b) = (Archive::default(), Archive::default());
        a.add(b"/usr/lib/x", file());
        a.add(b"/a", file());
        b.add(b"/a", file());
        b.add(b"usr/lib/x", file());
        assert_eq!(a.bytes(), b.bytes());
        let names: Vec<_> = a.entries.keys().cloned().collect();
        assert_eq!(names, [&b"a"[..], b"usr", b"usr/lib", b"usr/lib/x"]);
        assert_eq!(a.bytes().len() % 4, 0);
    }
}
