// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Writes recordings.

use super::{
    BLOCK_HEAD, BLOCK_WORDS, END, EVENTS, FileError, Header, MAGIC, MAX_JSON, StoredTrailer, Trailer,
    checksum, version,
};
use crate::compact::compact;
use crate::{Granularity, codec, event};
use rustix::fs::{FlockOperation, flock};
use std::fs::{self, File};
use std::io::{self, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

const ZSTD_LEVEL: i32 = 1;

/// Writes a recording.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    /// Name of the temporary file; `None` if the target is written in place or the file has been renamed.
    temporary: Option<PathBuf>,
    file: File,
    /// Whether the recording is compact, and whether it is attributed.
    compact: Option<bool>,
    /// Events as a compact recording has them.
    compacted: Vec<u64>,
    pending: Vec<u64>,
    plain: Vec<u8>,
    block: Vec<u8>,
    offset: u64,
    words: u64,
    blocks: u64,
    zstd: Zstd,
}

struct Zstd(zstd::bulk::Compressor<'static>);

impl std::fmt::Debug for Zstd {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.write_str("Zstd")
    }
}

impl Writer {
    /// Starts a recording that is at `path` once [`finish`](Writer::finish) has returned.
    /// A `path` that exists and is no regular file (a pipe, `/dev/null`) is written directly.
    pub fn create(path: impl AsRef<Path>, header: &Header) -> Result<Writer, FileError> {
        let path = path.as_ref();
        let io = |source| FileError::Io { what: "create", path: path.into(), source };
        // Through a symbolic link, so that the rename replaces the file and not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let mut options = File::options();
        let in_place = fs::metadata(&target).is_ok_and(|m| !m.is_file() && !m.is_dir());
        let temporary = if in_place { None } else { Some(temporary_name(&target).map_err(io)?) };
        if temporary.is_some() {
            remove_abandoned(&target);
        }
        let file = match &temporary {
            Some(name) => options.write(true).create_new(true).open(name),
            None => options.write(true).open(&target),
        }
        .map_err(io)?;
        if temporary.is_some() {
            // Another process knows by the lock that this one writes. Some file systems have no locks.
            let _ = flock(&file, FlockOperation::NonBlockingLockExclusive);
            if let Ok(old) = fs::metadata(&target) {
                file.set_permissions(old.permissions()).map_err(io)?;
            }
        }
        let mut writer = Writer {
            target,
            temporary,
            file,
            compact: (header.granularity == Granularity::Page).then_some(header.source.attributed),
            compacted: Vec::new(),
            pending: Vec::new(),
            plain: Vec::new(),
            block: Vec::new(),
            offset: 0,
            words: 0,
            blocks: 0,
            zstd: Zstd(zstd::bulk::Compressor::new(ZSTD_LEVEL).map_err(io)?),
        };
        let json = serde_json::to_vec(header).map_err(|e| io(e.into()))?;
        if json.len() > MAX_JSON {
            return Err(io(io::Error::other(format!("its header is longer than {MAX_JSON} bytes"))));
        }
        let mut bytes = MAGIC.to_vec();
        bytes.extend(version(header).to_le_bytes());
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(json);
        bytes.extend(xxh3_64_with_seed(&bytes, 0).to_le_bytes());
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Appends whole events.
    pub fn write(&mut self, words: &[u64]) -> Result<(), FileError> {
        let Some(attributed) = self.compact else { return self.append(words) };
        let mut compacted = std::mem::take(&mut self.compacted);
        compacted.clear();
        let made = compact(words, attributed, &mut compacted);
        let result = match made {
            Ok(()) => self.append(&compacted),
            Err(source) => Err(FileError::Events { path: self.target.clone(), source }),
        };
        self.compacted = compacted;
        result
    }

    fn append(&mut self, words: &[u64]) -> Result<(), FileError> {
        let mut rest = words;
        while self.pending.len() + rest.len() >= BLOCK_WORDS {
            if self.pending.is_empty() {
                // Long pieces are encoded in place, without a copy.
                rest = &rest[self.write_block(rest)?..];
                continue;
            }
            // The pending words and all words that may belong to their block keep the block whole.
            let n = rest.len().min(BLOCK_WORDS + event::MAX_WORDS - self.pending.len());
            let mut pending = std::mem::take(&mut self.pending);
            let before = pending.len();
            pending.extend_from_slice(&rest[..n]);
            let used = self.write_block(&pending)?;
            pending.clear();
            self.pending = pending;
            rest = &rest[used - before..];
        }
        self.pending.extend_from_slice(rest);
        Ok(())
    }

    /// Writes the trailer and renames the file to the target.
    pub fn finish(mut self, trailer: &Trailer) -> Result<(), FileError> {
        let pending = std::mem::take(&mut self.pending);
        let mut rest = &pending[..];
        while !rest.is_empty() {
            rest = &rest[self.write_block(rest)?..];
        }
        let stored = StoredTrailer { words: self.words, blocks: self.blocks, trailer: trailer.clone() };
        let json = serde_json::to_vec(&stored).map_err(|e| self.io("write", e.into()))?;
        self.block.clear();
        self.block.resize(BLOCK_HEAD, 0);
        self.block.extend(json);
        self.put_block(END, 0, 0)?;
        if let Some(name) = &self.temporary {
            fs::rename(name, &self.target).map_err(|e| self.io("finish", e))?;
            self.temporary = None;
        }
        Ok(())
    }

    /// Writes one block from the start of `words`; returns how many words went into it.
    fn write_block(&mut self, words: &[u64]) -> Result<usize, FileError> {
        let n = codec::encode(words, BLOCK_WORDS, &mut self.plain)
            .map_err(|source| FileError::Events { path: self.target.clone(), source })?;
        self.block.clear();
        self.block.resize(BLOCK_HEAD + zstd::zstd_safe::compress_bound(self.plain.len()), 0);
        let length = self
            .zstd
            .0
            .compress_to_buffer(&self.plain, &mut self.block[BLOCK_HEAD..])
            .map_err(|e| self.io("compress", e))?;
        self.block.truncate(BLOCK_HEAD + length);
        self.put_block(EVENTS, n, self.plain.len())?;
        self.words += n as u64;
        self.blocks += 1;
        Ok(n)
    }

    /// Completes the head of `self.block` and writes it.
    fn put_block(&mut self, tag: [u8; 4], words: usize, plain: usize) -> Result<(), FileError> {
        let mut block = std::mem::take(&mut self.block);
        let (head, payload) = block.split_at_mut(BLOCK_HEAD);
        head[..4].copy_from_slice(&tag);
        head[4..8].copy_from_slice(&(words as u32).to_le_bytes());
        head[8..12].copy_from_slice(&(payload.len() as u32).to_le_bytes());
        head[12..16].copy_from_slice(&(plain as u32).to_le_bytes());
        let sum = checksum(&head[..16], payload, self.offset);
        head[16..].copy_from_slice(&sum.to_le_bytes());
        let result = self.put(&block);
        self.block = block;
        result
    }

    fn put(&mut self, bytes: &[u8]) -> Result<(), FileError> {
        self.file.write_all(bytes).map_err(|e| self.io("write", e))?;
        self.offset += bytes.len() as u64;
        Ok(())
    }

    fn io(&self, what: &'static str, source: io::Error) -> FileError {
        FileError::Io { what, path: self.target.clone(), source }
    }
}

impl Drop for Writer {
    fn drop(&mut self) {
        if let Some(name) = &self.temporary {
            // A failure leaves a file whose name says that it is unfinished.
            let _ = fs::remove_file(name);
        }
    }
}

/// What stands behind the process's number in the name of a temporary file.
const UNFINISHED: &str = ".unfinished";

/// Removes the temporary files of writers of `target` that were killed: their process is gone, and none holds
/// the lock.
fn remove_abandoned(target: &Path) {
    let (Some(name), Some(dir)) = (target.file_name(), target.parent()) else { return };
    let dir = if dir.as_os_str().is_empty() { Path::new(".") } else { dir };
    let before = format!(".{}.", name.to_string_lossy());
    for entry in fs::read_dir(dir).into_iter().flatten().flatten() {
        let found = entry.file_name();
        let process = found.to_str().and_then(|f| f.strip_prefix(&before)?.strip_suffix(UNFINISHED));
        let Some(process) = process.and_then(|p| p.parse::<u32>().ok()) else { continue };
        if process != std::process::id() && Path::new("/proc").join(process.to_string()).exists() {
            continue;
        }
        let path = entry.path();
        let free = |file: File| flock(&file, FlockOperation::NonBlockingLockExclusive).is_ok();
        if File::open(&path).is_ok_and(free) {
            let _ = fs::remove_file(path);
        }
    }
}

fn temporary_name(target: &Path) -> io::Result<PathBuf> {
    if target.is_dir() {
        return Err(io::Error::from(io::ErrorKind::IsADirectory));
    }
    let Some(name) = target.file_name() else {
        return Err(io::Error::new(io::ErrorKind::InvalidInput, "the path names no file"));
    };
    let mut hidden = std::ffi::OsString::from(".");
    hidden.push(name);
    hidden.push(format!(".{}{UNFINISHED}", std::process::id()));
    Ok(target.with_file_name(hidden))
}
