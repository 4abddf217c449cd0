// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Reads the ring in shared memory that the plugin fills.
//!
//! One memfd holds a header page and a number of chunks of 64-bit words. `head` counts published chunks,
//! `tail` counts released chunks; each side sleeps on a futex in the other side's counter.
//! `qemu-plugin/ring.c` is the producer's side and has the same offsets.
//!
//! All unsafe code of this crate is here, apart from the `pre_exec` of `qemu.rs`.

use std::os::fd::{AsFd, BorrowedFd, OwnedFd};
use std::sync::atomic::{AtomicU32, AtomicU64, Ordering};
use std::time::Duration;

use memmap2::{MmapOptions, MmapRaw};
use rustix::thread::futex;

use crate::error::GuestError;
use crate::memfd::memfd;

pub(crate) const MAGIC: u64 = 0x676e_6972_646c_6f66;
pub(crate) const HEADER_BYTES: usize = 4096;
const CHUNK_WORDS: usize = 32 * 1024;
const CHUNKS: usize = 64;

// Offsets in words; struct header of ring.c.
const AT_CHUNKS: usize = 1;
const AT_CHUNK_WORDS: usize = 2;
const AT_CPU_NS: usize = 3;
const AT_IN_STEP: usize = 4;
const AT_HEAD: usize = 8;
const AT_TAIL: usize = 16;
const AT_LENGTHS: usize = 24;

pub(crate) struct Ring {
    fd: OwnedFd,
    map: MmapRaw,
    tail: u64,
}

impl Ring {
    pub(crate) fn new() -> Result<Self, GuestError> {
        let bytes = HEADER_BYTES + CHUNKS * CHUNK_WORDS * 8;
        let fd = memfd("bifold-ring", bytes as u64)?;
        let map = MmapOptions::new().len(bytes).map_raw(&fd).map_err(GuestError::os("mapping the ring"))?;
        let ring = Ring { fd, map, tail: 0 };
        for (at, value) in [(AT_CHUNKS, CHUNKS as u64), (AT_CHUNK_WORDS, CHUNK_WORDS as u64), (0, MAGIC)] {
            ring.word(at).store(value, Ordering::Release);
        }
        Ok(ring)
    }

    pub(crate) fn fd(&self) -> BorrowedFd<'_> {
        self.fd.as_fd()
    }

    fn word(&self, at: usize) -> &AtomicU64 {
        assert!(at < HEADER_BYTES / 8);
        // SAFETY: the map is page-aligned and at least HEADER_BYTES long (`new`), `at` lies in
        // the header (asserted), and the other process accesses these words atomically too.
        unsafe { AtomicU64::from_ptr(self.map.as_mut_ptr().cast::<u64>().add(at)) }
    }

    /// Waits for a chunk. False if no chunk was published within `patience`.
    pub(crate) fn wait(&self, patience: Duration) -> bool {
        let head = self.word(AT_HEAD).load(Ordering::Acquire);
        if head != self.tail {
            return true;
        }
        let timeout = futex::Timespec {
            tv_sec: patience.as_secs() as i64,
            tv_nsec: i64::from(patience.subsec_nanos()),
        };
        // SAFETY: x86-64 is little-endian, so the low half of the aligned 64-bit counter lies
        // at its address; the reference lives no longer than the map.
        let low = unsafe { AtomicU32::from_ptr(self.word(AT_HEAD).as_ptr().cast()) };
        let _ = futex::wait(low, futex::Flags::empty(), head as u32, Some(&timeout));
        self.word(AT_HEAD).load(Ordering::Acquire) != self.tail
    }

    /// The oldest chunk that was not released, if there is one.
    pub(crate) fn chunk(&self) -> Option<&[u64]> {
        if self.word(AT_HEAD).load(Ordering::Acquire) == self.tail {
            return None;
        }
        let slot = (self.tail % CHUNKS as u64) as usize;
        let words = self.word(AT_LENGTHS + slot).load(Ordering::Relaxed) as usize;
        let at = HEADER_BYTES / 8 + slot * CHUNK_WORDS;
        // SAFETY: slot < CHUNKS and the length is capped, so the range lies in the map. The
        // producer published this chunk (head was loaded with Acquire) and does not write to it
        // before `release` advances tail, which needs `&mut self` and so ends this borrow.
        Some(unsafe {
            std::slice::from_raw_parts(self.map.as_ptr().cast::<u64>().add(at), words.min(CHUNK_WORDS))
        })
    }

    /// Releases the oldest chunk to the producer.
    pub(crate) fn release(&mut self) {
        self.tail += 1;
        self.word(AT_TAIL).store(self.tail, Ordering::Release);
        // SAFETY: as in `wait`.
        let low = unsafe { AtomicU32::from_ptr(self.word(AT_TAIL).as_ptr().cast()) };
        let _ = futex::wake(low, futex::Flags::empty(), 1);
    }

    /// Whether the plugin makes the guest wait for the host's files (`qemu-plugin/files.c`).
    pub(crate) fn in_step(&self) -> bool {
        self.word(AT_IN_STEP).load(Ordering::Acquire) == 1
    }

    /// CPU time of the vCPUs' thread between the start and stop markers.
    pub(crate) fn cpu_seconds(&self) -> f64 {
        self.word(AT_CPU_NS).load(Ordering::Acquire) as f64 / 1e9
    }
}
