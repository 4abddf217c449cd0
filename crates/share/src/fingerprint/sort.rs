// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Sorts rows in a given amount of memory.
//!
//! Rows are collected until memory is full. Then they are sorted, and rows with the same content and guest
//! are joined. If that does not free half of the memory, the rows go to an unnamed file, which disappears
//! with the process. At the end, the files and the rows in memory are merged. If contents repeat often, no
//! file is written.

use super::FingerprintError;
use rayon::prelude::*;
use std::cmp::Reverse;
use std::collections::BinaryHeap;
use std::fs::File;
use std::io::{BufReader, BufWriter, Read as _, Seek as _, Write as _};
use std::path::{Path, PathBuf};
use zerocopy::{FromBytes, Immutable, IntoBytes, KnownLayout};

/// Most files merged at a time.
const FAN: usize = 128;
/// Largest buffer of a file, in bytes.
const BUFFER: usize = 1 << 20;
const ROW: usize = size_of::<ContentCount>();

/// The order of rows: fingerprint, page size, guest.
type Order = ([u64; 2], u32, u32);

/// Pages of one guest with one content.
#[derive(
    Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord, FromBytes, IntoBytes, Immutable, KnownLayout,
)]
#[repr(C)]
pub struct ContentCount {
    /// The fingerprint's halves; both are zero for zero pages.
    pub fingerprint: [u64; 2],
    /// Twice the guest's number, plus one for a 2 MB page.
    guest: u32,
    /// Pages.
    pub count: u32,
}

impl ContentCount {
    /// A row of 4 KB pages or of 2 MB pages.
    pub fn new(fingerprint: [u64; 2], huge: bool, guest: u32, count: u32) -> ContentCount {
        ContentCount { fingerprint, guest: guest << 1 | u32::from(huge), count }
    }

    /// The guest's number.
    pub fn guest(&self) -> usize {
        (self.guest >> 1) as usize
    }

    /// Whether the row counts 2 MB pages.
    pub fn huge(&self) -> bool {
        self.guest & 1 == 1
    }

    /// The order: by content and page size, then by guest.
    fn key(&self) -> Order {
        (self.fingerprint, self.guest & 1, self.guest >> 1)
    }

    /// Adds a row with the same content and guest, unless the sum overflows.
    fn take(&mut self, other: &ContentCount) -> bool {
        if self.key() != other.key() {
            return false;
        }
        let sum = self.count.checked_add(other.count);
        self.count = sum.unwrap_or(self.count);
        sum.is_some()
    }
}

/// Sorts rows.
#[derive(Debug)]
pub struct Sorter {
    rows: Vec<ContentCount>,
    most: usize,
    buffer: usize,
    dir: PathBuf,
    files: Vec<File>,
    spilled: u64,
}

impl Sorter {
    /// A sorter with this many bytes of memory (at least 1 MB), and a directory for files.
    pub fn new(memory: u64, dir: &Path) -> Sorter {
        let memory = memory.max(1 << 20) as usize;
        // An eighth is for the buffers of files that are merged.
        let buffer = (memory / 8 / FAN).clamp(ROW, BUFFER);
        let most = (memory - memory / 8) / ROW;
        Sorter { rows: Vec::new(), most, buffer, dir: dir.into(), files: Vec::new(), spilled: 0 }
    }

    #[cfg(test)]
    pub(super) fn with_room(most: usize, dir: &Path) -> Sorter {
        Sorter { most, ..Sorter::new(0, dir) }
    }

    /// Takes a row.
    ///
    /// # Errors
    /// If it does not fit into memory and cannot be written.
    pub fn push(&mut self, row: ContentCount) -> Result<(), FingerprintError> {
        if self.rows.len() == self.most {
            self.compact();
            if self.rows.len() > self.most / 2 {
                self.spill()?;
            }
        }
        if self.rows.len() == self.rows.capacity() {
            // Doubled, but never beyond what is allowed.
            let more = self.rows.len().max(1024).min(self.most - self.rows.len());
            self.rows.reserve_exact(more);
        }
        self.rows.push(row);
        Ok(())
    }

    /// Rows written to disk so far.
    pub fn spilled(&self) -> u64 {
        self.spilled
    }

    fn compact(&mut self) {
        self.rows.par_sort_unstable_by_key(ContentCount::key);
        self.rows.dedup_by(|later, first| first.take(later));
    }

    fn fail(&self) -> impl Fn(std::io::Error) -> FingerprintError + use<> {
        let dir = self.dir.clone();
        move |source| FingerprintError::Io {
            what: "keep rows beyond --memory in a file in",
            path: dir.clone(),
            source,
        }
    }

    fn spill(&mut self) -> Result<(), FingerprintError> {
        let fail = self.fail();
        let mut file = tempfile::tempfile_in(&self.dir).map_err(&fail)?;
        file.write_all(self.rows.as_bytes()).and_then(|()| file.rewind()).map_err(&fail)?;
        self.spilled += self.rows.len() as u64;
        self.rows.clear();
        self.files.push(file);
        if self.files.len() == FAN {
            let files = std::mem::take(&mut self.files);
            let mut merged = Merge::new(files, Vec::new(), self.buffer, self.fail())?;
            let file = tempfile::tempfile_in(&self.dir).map_err(&fail)?;
            let mut out = BufWriter::with_capacity(self.buffer, file);
            while let Some(row) = merged.next()? {
                out.write_all(row.as_bytes()).map_err(&fail)?;
            }
            let mut file = out.into_inner().map_err(|e| fail(e.into_error()))?;
            file.rewind().map_err(&fail)?;
            self.files.push(file);
        }
        Ok(())
    }

    /// All rows, in order.
    ///
    /// # Errors
    /// If what was written cannot be read.
    pub fn finish(mut self) -> Result<Merge, FingerprintError> {
        self.compact();
        let fail = self.fail();
        Merge::new(self.files, self.rows, self.buffer, fail)
    }
}

type Fail = Box<dyn Fn(std::io::Error) -> FingerprintError>;

/// Rows of several sources, in order, with those of the same content and guest made one.
pub struct Merge {
    files: Vec<BufReader<File>>,
    rows: std::vec::IntoIter<ContentCount>,
    /// The next row of each source. The last one is memory.
    heap: BinaryHeap<Reverse<(Order, usize, u32)>>,
    fail: Fail,
}

impl Merge {
    fn new(
        files: Vec<File>,
        rows: Vec<ContentCount>,
        buffer: usize,
        fail: impl Fn(std::io::Error) -> FingerprintError + 'static,
    ) -> Result<Merge, FingerprintError> {
        let files: Vec<_> = files.into_iter().map(|f| BufReader::with_capacity(buffer, f)).collect();
        let mut merge =
            Merge { files, rows: rows.into_iter(), heap: BinaryHeap::new(), fail: Box::new(fail) };
        for source in 0..=merge.files.len() {
            merge.refill(source)?;
        }
        Ok(merge)
    }

    fn refill(&mut self, source: usize) -> Result<(), FingerprintError> {
        let row = if source == self.files.len() { self.rows.next() } else { self.read(source)? };
        if let Some(row) = row {
            self.heap.push(Reverse((row.key(), source, row.count)));
        }
        Ok(())
    }

    fn read(&mut self, source: usize) -> Result<Option<ContentCount>, FingerprintError> {
        let mut bytes = [0; ROW];
        match self.files[source].read_exact(&mut bytes) {
            Ok(()) => Ok(Some(zerocopy::transmute!(bytes))),
            // Whole rows were written.
            Err(e) if e.kind() == std::io::ErrorKind::UnexpectedEof => Ok(None),
            Err(e) => Err((self.fail)(e)),
        }
    }

    fn pop(&mut self) -> Result<Option<ContentCount>, FingerprintError> {
        // Without files there is nothing to merge.
        if self.files.is_empty() && self.heap.len() <= 1 {
            let first = self.heap.pop().map(|Reverse((key, _, count))| row(key, count));
            return Ok(first.or_else(|| self.rows.next()));
        }
        let Some(Reverse((key, source, count))) = self.heap.pop() else { return Ok(None) };
        self.refill(source)?;
        Ok(Some(row(key, count)))
    }

    /// The next row.
    ///
    /// # Errors
    /// If what was written cannot be read.
    #[allow(clippy::should_implement_trait)] // an iterator of results would be no easier to use
    pub fn next(&mut self) -> Result<Option<ContentCount>, FingerprintError> {
        let Some(mut first) = self.pop()? else { return Ok(None) };
        while let Some(Reverse((key, ..))) = self.heap.peek() {
            if *key != first.key() {
                break;
            }
            let Some(more) = self.pop()? else { break };
            if !first.take(&more) {
                // A sum that does not fit stays two rows: the count adds them in 64 bits.
                self.heap.push(Reverse((more.key(), self.files.len(), more.count)));
                break;
            }
        }
        Ok(Some(first))
    }
}

fn row((fingerprint, huge, guest): Order, count: u32) -> ContentCount {
    ContentCount { fingerprint, guest: guest << 1 | huge, count }
}
