// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Maps files read-only and turns the loss of a file's bytes into an error.
//!
//! If the file was truncated or the disk failed, reading a lost page raises SIGBUS. The handler here looks
//! the address up among the mappings of this module, replaces the rest of the mapping by zeros, and notes the
//! loss for [`Mapped::check`]. Any other SIGBUS goes to the previous handler.
//!
//! All unsafe code of reading images is in this file.

use super::ImageError;
use memmap2::Mmap;
use std::fs::File;
use std::io;
use std::path::{Path, PathBuf};
use std::ptr;
use std::sync::atomic::{AtomicBool, AtomicUsize, Ordering};
use std::sync::{Mutex, OnceLock, PoisonError};

/// Most mappings at a time. A process may have 65530 of all kinds (vm.max_map_count).
const MOST: usize = 4096;

/// A mapping's place for the signal handler, which may neither lock nor allocate.
struct Watched {
    start: AtomicUsize,
    /// 0: the entry is free.
    end: AtomicUsize,
    lost: AtomicBool,
}

static WATCHED: [Watched; MOST] = [const {
    Watched { start: AtomicUsize::new(0), end: AtomicUsize::new(0), lost: AtomicBool::new(false) }
}; MOST];
/// Entries beyond this one were never used.
static USED: AtomicUsize = AtomicUsize::new(0);
/// Held while entries are taken.
static TAKING: Mutex<()> = Mutex::new(());
/// The previous handler of SIGBUS.
static BEFORE: OnceLock<libc::sigaction> = OnceLock::new();
/// Bytes of a page of the system.
const SYSTEM_PAGE: usize = 4096;

/// A file's bytes.
#[derive(Debug)]
pub struct Mapped {
    path: PathBuf,
    map: Mmap,
    entry: usize,
}

impl Mapped {
    /// Maps the first `len` bytes.
    pub fn new(path: &Path, file: &File, len: u64) -> Result<Mapped, ImageError> {
        let fail = |source| ImageError::Read { path: path.into(), source };
        handle_sigbus().map_err(fail)?;
        let len = usize::try_from(len).map_err(|_| fail(io::ErrorKind::FileTooLarge.into()))?;
        // SAFETY: the mapping is read-only, and private to `Mapped`, which unmaps it last of all. The bytes
        // may change when another process writes to the file; readers (see the head of `image`) take them
        // for plain numbers of which every value is allowed, and take no length, index or pointer from
        // them. Pages that the file loses are replaced by zeros in `on_sigbus`.
        let map = unsafe { memmap2::MmapOptions::new().len(len).map(file) }.map_err(fail)?;
        let entry = watch(map.as_ptr() as usize, map.len())
            .ok_or_else(|| ImageError::TooMany { path: path.into(), most: MOST })?;
        Ok(Mapped { path: path.into(), map, entry })
    }

    /// The bytes; zeros where the file has lost them.
    pub fn bytes(&self) -> &[u8] {
        &self.map
    }

    /// Fails if a page was read that the file had lost.
    pub fn check(&self) -> Result<(), ImageError> {
        if WATCHED[self.entry].lost.load(Ordering::SeqCst) {
            return Err(ImageError::Lost { path: self.path.clone() });
        }
        Ok(())
    }
}

impl Drop for Mapped {
    fn drop(&mut self) {
        // Before the fields are dropped, after which the addresses may belong to another mapping.
        WATCHED[self.entry].end.store(0, Ordering::SeqCst);
    }
}

/// Takes a free entry for a mapping, if there is one.
fn watch(start: usize, len: usize) -> Option<usize> {
    let _taking = TAKING.lock().unwrap_or_else(PoisonError::into_inner);
    let entry = WATCHED.iter().position(|w| w.end.load(Ordering::SeqCst) == 0)?;
    USED.fetch_max(entry + 1, Ordering::SeqCst);
    let w = &WATCHED[entry];
    w.start.store(start, Ordering::SeqCst);
    w.lost.store(false, Ordering::SeqCst);
    w.end.store(start + len.next_multiple_of(SYSTEM_PAGE), Ordering::SeqCst);
    Some(entry)
}

/// Installs the handler, once.
fn handle_sigbus() -> io::Result<()> {
    static DONE: Mutex<bool> = Mutex::new(false);
    let mut done = DONE.lock().unwrap_or_else(PoisonError::into_inner);
    if *done {
        return Ok(());
    }
    let flags = libc::SA_SIGINFO | libc::SA_ONSTACK;
    // SAFETY: `sigaction` is plain data for which zeros are valid (no flags, an empty mask), and both calls
    // get pointers to such, or null, which asks for the present one. `on_sigbus` has the signature that
    // SA_SIGINFO asks for, and does only what a signal handler may.
    unsafe {
        let mut before: libc::sigaction = std::mem::zeroed();
        if libc::sigaction(libc::SIGBUS, ptr::null(), &mut before) != 0 {
            return Err(io::Error::last_os_error());
        }
        let _ = BEFORE.set(before);
        let mut ours: libc::sigaction = std::mem::zeroed();
        ours.sa_sigaction = on_sigbus as *const () as usize;
        ours.sa_flags = flags;
        if libc::sigaction(libc::SIGBUS, &ours, ptr::null_mut()) != 0 {
            return Err(io::Error::last_os_error());
        }
    }
    *done = true;
    Ok(())
}

/// Atomics, and system calls without a lock around them.
extern "C" fn on_sigbus(_: libc::c_int, info: *mut libc::siginfo_t, _: *mut libc::c_void) {
    // SAFETY: the kernel hands a handler with SA_SIGINFO a valid siginfo, that of SIGBUS has an address.
    let (address, code) = unsafe { ((*info).si_addr() as usize, (*info).si_code) };
    let used = &WATCHED[..USED.load(Ordering::SeqCst)];
    let ours = used.iter().find_map(|w| {
        let (start, end) = (w.start.load(Ordering::SeqCst), w.end.load(Ordering::SeqCst));
        (start..end).contains(&address).then_some((w, end))
    });
    // A signal that someone sent has no address, but numbers in its place.
    let sent = code <= 0;
    if let (Some((watched, end)), false) = (ours, sent) {
        watched.lost.store(true, Ordering::SeqCst);
        let page = address & !(SYSTEM_PAGE - 1);
        // SAFETY: from `page` to `end` is part of a live mapping of this module (its entry is freed before
        // it is unmapped, and whoever reads from it, as the interrupted code does, keeps it alive), and the
        // replacement is readable like it. The file is shorter than `page`, or not readable there.
        let zeros = unsafe {
            let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_FIXED | libc::MAP_NORESERVE;
            libc::mmap(page as *mut libc::c_void, end - page, libc::PROT_READ, flags, -1, 0)
        };
        if zeros != libc::MAP_FAILED {
            return;
        }
    }
    // Not ours: restore the previous handler. The instruction runs again and raises SIGBUS for that handler.
    let before = BEFORE.get().map_or(ptr::null(), ptr::from_ref);
    // SAFETY: `before` is null, which changes nothing, or what sigaction(2) gave.
    unsafe { libc::sigaction(libc::SIGBUS, before, ptr::null_mut()) };
    if sent {
        // A sent signal has no instruction that would raise it again.
        // SAFETY: raise(3) takes a number and may be called in a signal handler.
        unsafe { libc::raise(libc::SIGBUS) };
    }
}
