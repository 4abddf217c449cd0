// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The memory of a guest that stands still, by guest-physical address: the file that QEMU maps.

use std::fs::File;
use std::io;
use std::ops::Range;
use std::os::unix::fs::FileExt as _;

use rustix::fs::{SeekFrom, seek};
use rustix::io::Errno;

use crate::spec::LOW_MIB;

/// Bytes of a page.
pub(super) const PAGE: u64 = 4096;
/// End of the 32-bit address space, where the rest of a large guest's RAM begins.
const GIB4: u64 = 4 << 30;

/// A guest's memory.
#[derive(Clone, Copy)]
pub(super) struct Memory<'a> {
    file: &'a File,
    bytes: u64,
}

impl<'a> Memory<'a> {
    pub(super) fn of(file: &'a File, bytes: u64) -> Memory<'a> {
        Memory { file, bytes }
    }

    /// The place of a guest-physical address in the file. `None` outside of RAM.
    fn place(self, gpa: u64) -> Option<u64> {
        let low = (LOW_MIB << 20).min(self.bytes);
        let at = if gpa < low { gpa } else { low + gpa.checked_sub(GIB4)? };
        (at < self.bytes).then_some(at)
    }

    /// The guest-physical address of a place in the file.
    fn gpa(self, at: u64) -> u64 {
        let low = LOW_MIB << 20;
        if at < low { at } else { GIB4 + (at - low) }
    }

    /// Whether there is RAM at an address.
    pub(super) fn has(self, gpa: u64) -> bool {
        self.place(gpa).is_some()
    }

    /// Reads what lies at an address, all within one stretch of RAM.
    pub(super) fn read(self, gpa: u64, into: &mut [u8]) -> Option<()> {
        self.file.read_exact_at(into, self.place(gpa)?).ok()
    }

    /// The 8-byte word at an address.
    pub(super) fn word(self, gpa: u64) -> Option<u64> {
        let mut bytes = [0; 8];
        self.read(gpa, &mut bytes)?;
        Some(u64::from_le_bytes(bytes))
    }

    /// Calls `visit` with frame number and content of every page that was ever written, in order, up to where
    /// `visit` says that it has seen enough.
    pub(super) fn pages(self, mut visit: impl FnMut(u64, &[u8]) -> bool) -> io::Result<()> {
        const PIECE: u64 = 1 << 20;
        let (mut buffer, mut at) = (vec![0; PIECE as usize], 0);
        while let Some(Range { start, end }) = self.written(at)? {
            let mut place = start;
            while place < end {
                let n = PIECE.min(end - place);
                let piece = &mut buffer[..n as usize];
                self.file.read_exact_at(piece, place)?;
                for (i, page) in piece.chunks_exact(PAGE as usize).enumerate() {
                    if !visit(self.gpa(place + i as u64 * PAGE) / PAGE, page) {
                        return Ok(());
                    }
                }
                place += n;
            }
            at = end;
        }
        Ok(())
    }

    /// The next part of the file that is no hole, from `at` on, in whole pages.
    fn written(self, at: u64) -> io::Result<Option<Range<u64>>> {
        if at >= self.bytes {
            return Ok(None);
        }
        let start = match seek(self.file, SeekFrom::Data(at)) {
            Ok(start) => start / PAGE * PAGE,
            Err(Errno::NXIO) => return Ok(None),
            Err(e) => return Err(e.into()),
        };
        let end = seek(self.file, SeekFrom::Hole(start)).map_err(io::Error::from)?;
        Ok(Some(start..end.next_multiple_of(PAGE).min(self.bytes)))
    }
}
