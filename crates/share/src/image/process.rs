// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Finds and reads the guest memory of a running process through /proc.
//!
//! A VMM maps its guest's RAM as one large mapping, readable and writable. QEMU's buffer for translated code
//! may be larger, but it is executable, or has a second executable mapping with the same inode. Anonymous
//! memory can only be copied (/proc/PID/mem). A shared file is mapped through /proc/PID/map_files, which also
//! works for files without a name.

use super::{Image, ImageError, Memory, PAGE, Run};
use rustix::io::Errno;
use std::fs::File;
use std::io::{self, Read as _};
use std::os::unix::fs::FileExt as _;
use std::path::{Path, PathBuf};

/// Bytes per read. Reading page by page takes twice the time.
const CHUNK: usize = 1 << 20;
/// Bytes of an entry of /proc/PID/pagemap.
const ENTRY: usize = 8;
/// Bits of a pagemap entry (Documentation/admin-guide/mm/pagemap.rst): swapped out, and present.
const RESIDENT: u64 = 1 << 62 | 1 << 63;

/// A mapping of a process, from /proc/PID/maps.
#[derive(Debug, Clone, PartialEq, Eq)]
pub struct Mapping {
    start: u64,
    end: u64,
    shared: bool,
    inode: u64,
    /// The file's path, `[heap]`, or empty.
    name: String,
}

/// Upper limit for the file: by default a process has at most 65,530 mappings (vm.max_map_count).
const MOST_MAPS: u64 = 64 << 20;

/// All of the guest's memory.
pub fn whole(pid: u32) -> Result<Image, ImageError> {
    let guest = guest(pid)?;
    if guest.shared && guest.inode != 0 {
        if let Some(image) = shared(pid, &guest) {
            return image;
        }
    }
    let frames = (guest.end - guest.start) / PAGE as u64;
    copy(pid, &guest, &[(0, frames)])
}

/// The guest memory that the process has touched.
pub fn resident(pid: u32) -> Result<Image, ImageError> {
    let guest = guest(pid)?;
    // Before the copy, because reading a page makes it resident.
    let runs = touched(pid, &guest)?;
    copy(pid, &guest, &runs)
}

/// Maps a shared file, if this user may open it.
fn shared(pid: u32, guest: &Mapping) -> Option<Result<Image, ImageError>> {
    let link = PathBuf::from(format!("/proc/{pid}/map_files/{:x}-{:x}", guest.start, guest.end));
    let named = Path::new(&guest.name);
    let file = File::open(&link).or_else(|_| {
        // Not root: by its name, if that still is the same file.
        let file = File::open(named)?;
        let same = std::os::unix::fs::MetadataExt::ino(&file.metadata()?) == guest.inode;
        if same { Ok(file) } else { Err(io::Error::from(io::ErrorKind::NotFound)) }
    });
    Some(Image::of_file(name(pid), named, &file.ok()?))
}

/// The process's largest mapping that can be a guest's RAM.
fn guest(pid: u32) -> Result<Mapping, ImageError> {
    let mut maps = Vec::new();
    File::open(format!("/proc/{pid}/maps"))
        .and_then(|file| file.take(MOST_MAPS).read_to_end(&mut maps))
        .map_err(|e| of_io(pid, e))?;
    largest(&String::from_utf8_lossy(&maps)).ok_or(ImageError::NoGuest { pid })
}

/// The largest mapping of /proc/PID/maps that is read and written and holds no code.
fn largest(maps: &str) -> Option<Mapping> {
    let all: Vec<(Mapping, &str)> = maps.lines().filter_map(parse).collect();
    let code = |inode| inode != 0 && all.iter().any(|(m, mode)| m.inode == inode && mode.contains('x'));
    let fits =
        |(m, mode): &&(Mapping, &str)| mode.starts_with("rw-") && !code(m.inode) && !m.name.starts_with('[');
    let size = |(m, _): &&(Mapping, &str)| m.end - m.start;
    // Of equals, the first.
    all.iter().filter(fits).rev().max_by_key(size).map(|(m, _)| m.clone())
}

/// A line of /proc/PID/maps, and its mode.
fn parse(line: &str) -> Option<(Mapping, &str)> {
    let mut fields = line.splitn(6, ' ');
    let (start, end) = fields.next()?.split_once('-')?;
    let mode = fields.next()?;
    let (_offset, _device, inode) = (fields.next()?, fields.next()?, fields.next()?);
    let name = fields.next().unwrap_or("").trim_start().to_string();
    let (start, end) = (u64::from_str_radix(start, 16).ok()?, u64::from_str_radix(end, 16).ok()?);
    let whole = start < end && start % PAGE as u64 == 0 && end % PAGE as u64 == 0;
    let mapping = Mapping { start, end, shared: mode.ends_with('s'), inode: inode.parse().ok()?, name };
    whole.then_some((mapping, mode))
}

/// Runs of frames (start, end exclusive) that are present or swapped out.
fn touched(pid: u32, guest: &Mapping) -> Result<Vec<(u64, u64)>, ImageError> {
    let fail = |e| of_io(pid, e);
    let file = File::open(format!("/proc/{pid}/pagemap")).map_err(fail)?;
    let frames = (guest.end - guest.start) / PAGE as u64;
    let mut runs: Vec<(u64, u64)> = Vec::new();
    let mut entries = vec![0; CHUNK];
    let mut at = 0;
    while at < frames {
        let n = (frames - at).min((CHUNK / ENTRY) as u64);
        let part = &mut entries[..n as usize * ENTRY];
        file.read_exact_at(part, (guest.start / PAGE as u64 + at) * ENTRY as u64).map_err(fail)?;
        for (gfn, entry) in (at..).zip(part.chunks_exact(ENTRY)) {
            if u64::from_le_bytes(entry.try_into().expect("8 bytes")) & RESIDENT == 0 {
                continue;
            }
            match runs.last_mut() {
                Some((_, end)) if *end == gfn => *end += 1,
                _ => runs.push((gfn, gfn + 1)),
            }
        }
        at += n;
    }
    Ok(runs)
}

/// Copies runs of frames out of the process.
fn copy(pid: u32, guest: &Mapping, frames: &[(u64, u64)]) -> Result<Image, ImageError> {
    let fail = |e| of_io(pid, e);
    let file = File::open(format!("/proc/{pid}/mem")).map_err(fail)?;
    let pages: u64 = frames.iter().map(|(from, to)| to - from).sum();
    let mut bytes = vec![0; pages as usize * PAGE];
    let mut runs = Vec::with_capacity(frames.len());
    let mut filled = 0;
    for &(from, to) in frames {
        let place = filled..filled + (to - from) as usize * PAGE;
        let mut address = guest.start + from * PAGE as u64;
        for part in bytes[place.clone()].chunks_mut(CHUNK) {
            file.read_exact_at(part, address).map_err(fail)?;
            address += part.len() as u64;
        }
        filled = place.end;
        runs.push(Run { gfn: from, bytes: place });
    }
    Ok(Image { name: name(pid), memory: Memory::Owned(bytes), runs })
}

/// The image's name. The caller replaces it if it knows the guest's name.
fn name(pid: u32) -> String {
    format!("pid:{pid}")
}

fn of_io(pid: u32, source: io::Error) -> ImageError {
    match source.kind() {
        // A process that has just ended answers ESRCH (3), or has no memory any more.
        io::ErrorKind::NotFound | io::ErrorKind::UnexpectedEof => ImageError::NoProcess { pid },
        _ if Errno::from_io_error(&source) == Some(Errno::SRCH) => ImageError::NoProcess { pid },
        _ => ImageError::Process { pid, source },
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn the_guests_ram_is_the_largest_mapping_without_code() {
        let maps = "\
55d0c0000000-55d0c0400000 r-xp 00000000 fe:00 1234                       /usr/bin/qemu-system-x86_64
55d0c2000000-55d0c9000000 rw-p 00000000 00:00 0                          [heap]
7f0000000000-7f0040000000 rwxp 00000000 00:00 0
7f0050000000-7f0060000000 rw-p 00000000 00:00 0
7f0060000000-7f00a0000000 rw-s 00000000 00:01 77                         /memfd:tcg-jit (deleted)
7f00b0000000-7f00f0000000 r-xs 00000000 00:01 77                         /memfd:tcg-jit (deleted)
7f0100000000-7f0140000000 ---p 00000000 00:00 0
7f0150000000-7f0158000000 rw-s 00000000 00:19 9                          /dev/shm/a guest
";
        let ram = largest(maps).unwrap();
        assert_eq!((ram.start, ram.end, ram.shared), (0x7f00_5000_0000, 0x7f00_6000_0000, false));
        let shared = largest(maps.lines().last().unwrap()).unwrap();
        assert_eq!((shared.shared, shared.inode, shared.name.as_str()), (true, 9, "/dev/shm/a guest"));
        assert_eq!(largest("nonsense\n1-2 rw-p\n"), None);
    }

    #[test]
    fn a_process_that_is_gone_is_told_from_one_that_may_not_be_read() {
        let gone = of_io(7, Errno::SRCH.into());
        assert_eq!(gone.to_string(), "there is no process 7");
        let denied = of_io(7, Errno::ACCESS.into());
        assert!(denied.is_privilege(), "{denied}");
        assert!(!gone.is_privilege());
    }
}
