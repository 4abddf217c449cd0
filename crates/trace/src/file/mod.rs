// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The recording: events in a file. `docs/reference/recording-format.md` has the layout.
//!
//! Magic, version and a JSON header; then blocks of whole events, each with its
//! length and checksum; then a trailer that says how the recording ended. The
//! checksum of a block is seeded with its place in the file, so a block that
//! was moved, doubled or left out is refused like one with a flipped bit.
//!
//! A writer works on a file of another name beside the target and renames it
//! when finished: under the target's name there is a whole recording or none.
//! Left out: seeking. Every consumer replays from the start.

mod error;

pub use error::FileError;

use crate::{Clock, Windows, codec, event::Stats};
use serde::{Deserialize, Serialize};
use std::fs::{self, File};
use std::io::{self, BufReader, Read, Write};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

/// First bytes of every recording; the high bit and the line end show transfers that mangle.
pub const MAGIC: [u8; 8] = *b"\x89BIFOLD\n";
/// Version of the layout and of the events in it.
pub const VERSION: u32 = 1;
/// Words after which a block ends (with the event that holds the last of them).
const BLOCK_WORDS: usize = 1 << 16;
/// Most words in a block that a reader accepts.
const MAX_BLOCK_WORDS: usize = 1 << 17;
/// Most bytes of JSON in header or trailer.
const MAX_JSON: usize = 1 << 20;
const EVENTS: [u8; 4] = *b"EVTS";
const END: [u8; 4] = *b"ENDS";
const BLOCK_HEAD: usize = 24;
const ZSTD_LEVEL: i32 = 1;

/// What a consumer must know before the first event.
#[derive(Debug, Clone, PartialEq, Eq, Serialize, Deserialize)]
pub struct Header {
    /// Guest-physical memory, in 4 KB frames.
    pub guest_frames: u64,
    /// Number of vCPUs.
    pub vcpus: u32,
    /// Where the events come from.
    pub source: Source,
}

/// Where events come from; for people and reports, not for the model.
#[derive(Debug, Clone, Default, PartialEq, Eq, Serialize, Deserialize)]
#[serde(default)]
pub struct Source {
    /// Version of Bifold that recorded.
    pub bifold_version: String,
    /// Built-in generator, as given to `--generate`; `None` for a guest.
    pub generator: Option<String>,
    /// The command that ran in the guest.
    pub command: Vec<String>,
    /// `exact` or `fast`.
    pub timing: Option<String>,
    /// Whether the guest kernel isolated its page tables from user mode.
    pub kpti: Option<bool>,
    /// Guest transparent huge pages: `always`, `madvise` or `never`.
    pub thp: Option<String>,
    /// Guest memory.
    pub memory_mib: Option<u64>,
    /// Release of the guest kernel.
    pub kernel_version: Option<String>,
    /// Version of QEMU.
    pub qemu_version: Option<String>,
    /// The guest's root: `initramfs` or `9p`.
    pub root: Option<String>,
    /// The events say who ran and what was mapped ([`Event::Log`](crate::Event::Log)).
    #[serde(skip_serializing_if = "std::ops::Not::not")]
    pub attributed: bool,
    /// Which part of the command was recorded, in words; `None` for all of it.
    pub region: Option<String>,
    /// The windows in which accesses were recorded; `None`: everywhere.
    pub sample: Option<Windows>,
}

/// How a recording ended.
#[derive(Debug, Clone, Default, PartialEq, Serialize, Deserialize)]
pub struct Trailer {
    /// Exit status of the command; `None` if it was killed or there was none.
    pub exit: Option<i32>,
    /// The signal that killed the command.
    #[serde(default)]
    pub signal: Option<i32>,
    /// Recording was stopped before the command ended.
    pub partial: bool,
    /// The region to be recorded ended before the command, which was ended then.
    #[serde(default)]
    pub region_ended: bool,
    /// The capture's own counters and checks; `None` without a guest.
    pub stats: Option<Stats>,
    /// Release of the guest kernel, where it became known by running it.
    #[serde(default)]
    pub kernel_version: Option<String>,
    /// Version of QEMU, likewise.
    #[serde(default)]
    pub qemu_version: Option<String>,
    /// How time passed for the command; `None` without a guest.
    #[serde(default)]
    pub clock: Option<Clock>,
}

/// The trailer as stored: with what proves that all blocks are there.
#[derive(Serialize, Deserialize)]
struct StoredTrailer {
    words: u64,
    blocks: u64,
    #[serde(flatten)]
    trailer: Trailer,
}

/// Writes a recording.
#[derive(Debug)]
pub struct Writer {
    target: PathBuf,
    /// The file's present name; `None` when it is written in place or has been renamed.
    temporary: Option<PathBuf>,
    file: File,
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
    /// Starts a recording that will be at `path` once it is [finished](Writer::finish).
    /// A `path` that exists and is no regular file (a pipe, `/dev/null`) is written directly.
    pub fn create(path: impl AsRef<Path>, header: &Header) -> Result<Writer, FileError> {
        let path = path.as_ref();
        let io = |source| FileError::Io { what: "create", path: path.into(), source };
        // Through a symbolic link, so that the rename replaces the file and not the link.
        let target = fs::canonicalize(path).unwrap_or_else(|_| path.into());
        let mut options = File::options();
        let in_place = fs::metadata(&target).is_ok_and(|m| !m.is_file() && !m.is_dir());
        let temporary = if in_place { None } else { Some(temporary_name(&target).map_err(io)?) };
        let file = match &temporary {
            Some(name) => options.write(true).create_new(true).open(name),
            None => options.write(true).open(&target),
        }
        .map_err(io)?;
        let mut writer = Writer {
            target,
            temporary,
            file,
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
        bytes.extend(VERSION.to_le_bytes());
        bytes.extend((json.len() as u32).to_le_bytes());
        bytes.extend(json);
        bytes.extend(xxh3_64_with_seed(&bytes, 0).to_le_bytes());
        writer.put(&bytes)?;
        Ok(writer)
    }

    /// Appends whole events.
    pub fn write(&mut self, words: &[u64]) -> Result<(), FileError> {
        let mut rest = words;
        while self.pending.len() + rest.len() >= BLOCK_WORDS {
            if self.pending.is_empty() {
                // Long pieces are encoded from where they are.
                rest = &rest[self.write_block(rest)?..];
                continue;
            }
            // Filling up the pending words with all that may belong to the block keeps it whole.
            let n = rest.len().min(BLOCK_WORDS + crate::event::MAX_WORDS - self.pending.len());
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

    /// Writes the trailer and gives the recording its name.
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
            // Nothing can be done about a failure here; the name says what it is.
            let _ = fs::remove_file(name);
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
    hidden.push(format!(".{}.unfinished", std::process::id()));
    Ok(target.with_file_name(hidden))
}

fn checksum(head: &[u8], payload: &[u8], offset: u64) -> u64 {
    xxh3_64_with_seed(payload, xxh3_64_with_seed(head, offset))
}

/// Reads a recording from its start to its end.
pub struct Reader {
    path: PathBuf,
    file: BufReader<Box<dyn Read + Send>>,
    header: Header,
    trailer: Option<Trailer>,
    offset: u64,
    words: u64,
    blocks: u64,
    packed: Vec<u8>,
    plain: Vec<u8>,
    zstd: zstd::bulk::Decompressor<'static>,
}

impl std::fmt::Debug for Reader {
    fn fmt(&self, f: &mut std::fmt::Formatter<'_>) -> std::fmt::Result {
        f.debug_struct("Reader").field("path", &self.path).field("offset", &self.offset).finish()
    }
}

impl Reader {
    /// Opens a recording and reads its header.
    pub fn open(path: impl AsRef<Path>) -> Result<Reader, FileError> {
        let path = path.as_ref();
        let file =
            File::open(path).map_err(|source| FileError::Io { what: "open", path: path.into(), source })?;
        Reader::from_read(path, file)
    }

    /// Reads a recording from elsewhere; `path` is its name in errors.
    pub fn from_read(
        path: impl Into<PathBuf>,
        read: impl Read + Send + 'static,
    ) -> Result<Reader, FileError> {
        let path = path.into();
        let zstd = zstd::bulk::Decompressor::new().map_err(|source| FileError::Io {
            what: "read",
            path: path.clone(),
            source,
        })?;
        let mut reader = Reader {
            path,
            file: BufReader::with_capacity(1 << 18, Box::new(read)),
            header: Header { guest_frames: 0, vcpus: 0, source: Source::default() },
            trailer: None,
            offset: 0,
            words: 0,
            blocks: 0,
            packed: Vec::new(),
            plain: Vec::new(),
            zstd,
        };
        reader.read_header()?;
        Ok(reader)
    }

    /// What was known before the first event.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// How the recording ended; known after the last block.
    pub fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// Replaces `out` by the next block's words, whole events all; `false` at the end.
    pub fn next_block(&mut self, out: &mut Vec<u64>) -> Result<bool, FileError> {
        out.clear();
        if self.trailer.is_some() {
            return Ok(false);
        }
        let start = self.offset;
        let mut head = [0; BLOCK_HEAD];
        self.read(&mut head, "a block's head")?;
        let field = |i: usize| u32::from_le_bytes([head[i], head[i + 1], head[i + 2], head[i + 3]]) as usize;
        let (words, length, plain) = (field(4), field(8), field(12));
        let sum = u64::from_le_bytes(head[16..].try_into().expect("8 bytes"));
        let (is_end, fits) = match head[..4].try_into().expect("4 bytes") {
            EVENTS => (
                false,
                words <= MAX_BLOCK_WORDS
                    && plain <= codec::bound(words)
                    && length <= zstd::zstd_safe::compress_bound(plain),
            ),
            END => (true, words == 0 && plain == 0 && length <= MAX_JSON),
            _ => return Err(self.corrupt(start, "no block")),
        };
        if !fits {
            return Err(self.corrupt(start, "an impossible block length"));
        }
        let mut packed = std::mem::take(&mut self.packed);
        packed.resize(length, 0);
        let read = self.read(&mut packed, if is_end { "the trailer" } else { "a block" });
        self.packed = packed;
        read?;
        if checksum(&head[..16], &self.packed, start) != sum {
            return Err(self.corrupt(start, "a block with a wrong checksum"));
        }
        if is_end {
            return self.read_trailer(start).map(|()| false);
        }
        self.plain.resize(plain, 0);
        let unpacked = self.zstd.decompress_to_buffer(&self.packed, &mut self.plain[..]);
        if !unpacked.is_ok_and(|n| n == plain) {
            return Err(self.corrupt(start, "a block that cannot be unpacked"));
        }
        codec::decode(&self.plain, words, out).map_err(|e| self.corrupt(start, e.0))?;
        self.words += words as u64;
        self.blocks += 1;
        Ok(true)
    }

    fn read_header(&mut self) -> Result<(), FileError> {
        let mut first = [0; MAGIC.len()];
        let n = self.read_some(&mut first)?;
        if first[..n] != MAGIC[..n] {
            return Err(FileError::NotARecording { path: self.path.clone() });
        }
        let mut lengths = [0; 8];
        if n == first.len() {
            self.read(&mut lengths, "the header")?;
        } else {
            return Err(self.truncated("the header"));
        }
        let (version, length) = lengths.split_at(4);
        let version = u32::from_le_bytes(version.try_into().expect("4 bytes"));
        let length = u32::from_le_bytes(length.try_into().expect("4 bytes")) as usize;
        if version != VERSION {
            return Err(FileError::Version { path: self.path.clone(), found: version });
        }
        if length > MAX_JSON {
            return Err(self.corrupt(12, "an impossible header length"));
        }
        let mut bytes = [&first[..], &lengths].concat();
        let json = bytes.len();
        bytes.resize(json + length, 0);
        self.read(&mut bytes[json..], "the header")?;
        let mut sum = [0; 8];
        self.read(&mut sum, "the header")?;
        if xxh3_64_with_seed(&bytes, 0) != u64::from_le_bytes(sum) {
            return Err(self.corrupt(0, "a header with a wrong checksum"));
        }
        self.header = serde_json::from_slice(&bytes[json..])
            .map_err(|_| self.corrupt(json as u64, "an unknown header"))?;
        Ok(())
    }

    fn read_trailer(&mut self, start: u64) -> Result<(), FileError> {
        let stored: StoredTrailer =
            serde_json::from_slice(&self.packed).map_err(|_| self.corrupt(start, "an unknown trailer"))?;
        if (stored.words, stored.blocks) != (self.words, self.blocks) {
            return Err(self.corrupt(start, "a trailer for other blocks"));
        }
        let end = self.offset;
        if self.read_some(&mut [0])? != 0 {
            return Err(self.corrupt(end, "data after the end"));
        }
        self.trailer = Some(stored.trailer);
        Ok(())
    }

    fn read(&mut self, buffer: &mut [u8], within: &'static str) -> Result<(), FileError> {
        if self.read_some(buffer)? < buffer.len() { Err(self.truncated(within)) } else { Ok(()) }
    }

    /// Fills `buffer` as far as the file goes.
    fn read_some(&mut self, buffer: &mut [u8]) -> Result<usize, FileError> {
        let mut n = 0;
        while n < buffer.len() {
            match self.file.read(&mut buffer[n..]) {
                Ok(0) => break,
                Ok(got) => n += got,
                Err(e) if e.kind() == io::ErrorKind::Interrupted => {}
                Err(source) => return Err(FileError::Io { what: "read", path: self.path.clone(), source }),
            }
        }
        self.offset += n as u64;
        Ok(n)
    }

    fn truncated(&self, within: &'static str) -> FileError {
        FileError::Truncated { path: self.path.clone(), offset: self.offset, within }
    }

    fn corrupt(&self, offset: u64, what: &'static str) -> FileError {
        FileError::Corrupt { path: self.path.clone(), offset, what }
    }
}
