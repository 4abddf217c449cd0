// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads recordings.

use super::{
    BLOCK_HEAD, END, EVENTS, FileError, Header, MAGIC, MAX_BLOCK_WORDS, MAX_JSON, StoredTrailer, Trailer,
    VERSION, VERSION_OF_PAGES, VERSION_OF_TABLES, checksum, version as version_of,
};
use crate::nodes::MOST_VCPUS;
use crate::{codec, nodes};
use std::fs::File;
use std::io::{self, BufReader, Read};
use std::path::{Path, PathBuf};
use xxhash_rust::xxh3::xxh3_64_with_seed;

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

    /// Reads a recording from any reader; `path` names the recording in errors.
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
            header: Header::default(),
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

    /// The header.
    pub fn header(&self) -> &Header {
        &self.header
    }

    /// The trailer; none before the last block has been read.
    pub fn trailer(&self) -> Option<&Trailer> {
        self.trailer.as_ref()
    }

    /// Bytes of the recording that were read so far.
    pub fn offset(&self) -> u64 {
        self.offset
    }

    /// Replaces `out` by the words of the next block, which are whole events; `false` at the end.
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
        if ![VERSION, VERSION_OF_TABLES, VERSION_OF_PAGES].contains(&version) {
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
        if version_of(&self.header) != version {
            return Err(self.corrupt(8, "a version that does not fit the header"));
        }
        let Header { guest_nodes, guest_frames, vcpus, .. } = &self.header;
        if *vcpus > MOST_VCPUS {
            return Err(FileError::Vcpus { path: self.path.clone(), found: *vcpus });
        }
        match nodes::problem(guest_nodes, *guest_frames, *vcpus) {
            Some(what) => Err(self.corrupt(json as u64, what)),
            None => Ok(()),
        }
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
