// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The kernel's interfaces that measuring needs: memory with pages of one size, a CPU of one's own, counts of
//! preemptions, and the calls whose cost is measured.
//!
//! This file and `loops.rs` have all unsafe code of the crate.

use std::io;
use std::mem::MaybeUninit;
use std::ptr::{self, NonNull};

/// Bytes of a small and of a huge page.
pub const PAGE: usize = 4096;
/// Bytes of a huge page.
pub const HUGE: usize = 2 << 20;

/// Linux 6.1: gather pages into huge ones at once (madvise(2)); libc has no name for it on all targets.
const MADV_COLLAPSE: libc::c_int = 25;

/// Which pages a region is to have.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub enum Pages {
    /// 4 KB pages, all present.
    Small,
    /// 2 MB pages as far as the kernel gives them, all present.
    Huge,
    /// 4 KB pages, each present from its first write on.
    Sparse,
    /// As `Sparse`, with 2 MB pages.
    SparseHuge,
}

/// Private anonymous memory, aligned to 2 MB.
pub struct Region {
    /// What mmap(2) returned.
    map: NonNull<u8>,
    map_len: usize,
    base: NonNull<u8>,
    len: usize,
}

impl Region {
    /// Maps `len` bytes, rounded up to 2 MB.
    ///
    /// # Errors
    /// If the kernel refuses the mapping.
    pub fn new(len: usize, pages: Pages) -> io::Result<Region> {
        let len = len.max(1).next_multiple_of(HUGE);
        let map_len = len + HUGE;
        let flags = libc::MAP_PRIVATE | libc::MAP_ANONYMOUS | libc::MAP_NORESERVE;
        // SAFETY: a new mapping at an address of the kernel's choice replaces none.
        let map =
            unsafe { libc::mmap(ptr::null_mut(), map_len, libc::PROT_READ | libc::PROT_WRITE, flags, -1, 0) };
        if map == libc::MAP_FAILED {
            return Err(io::Error::last_os_error());
        }
        let map = NonNull::new(map.cast::<u8>()).ok_or(io::ErrorKind::OutOfMemory)?;
        let skipped = map.as_ptr().align_offset(HUGE);
        // SAFETY: at most HUGE - 1 bytes are skipped, and the mapping is HUGE longer than `len`.
        let base = unsafe { map.add(skipped) };
        let mut region = Region { map, map_len, base, len };
        let huge = matches!(pages, Pages::Huge | Pages::SparseHuge);
        // A kernel without huge pages knows neither advice; the pages are small then.
        let _ = region.advise(0, len, if huge { libc::MADV_HUGEPAGE } else { libc::MADV_NOHUGEPAGE });
        if matches!(pages, Pages::Small | Pages::Huge) {
            let step = PAGE / 8;
            region.words().iter_mut().step_by(step).for_each(|w| *w = 1);
            if pages == Pages::Huge {
                let _ = region.advise(0, len, MADV_COLLAPSE);
            }
        }
        Ok(region)
    }

    /// Address of the first byte.
    pub fn base(&self) -> *const u8 {
        self.base.as_ptr()
    }

    /// Bytes.
    pub fn len(&self) -> usize {
        self.len
    }

    /// The memory as words.
    pub fn words(&mut self) -> &mut [u64] {
        // SAFETY: the mapping is `len` bytes from `base` on, readable, writable, aligned, and this region's
        // alone.
        unsafe { std::slice::from_raw_parts_mut(self.base.as_ptr().cast(), self.len / 8) }
    }

    /// Gives pages back to the kernel: the next access finds zeros, after a page fault.
    pub fn discard(&mut self, from: usize, len: usize) -> io::Result<()> {
        self.advise(from, len, libc::MADV_DONTNEED)
    }

    fn advise(&mut self, from: usize, len: usize, advice: libc::c_int) -> io::Result<()> {
        assert!(from.checked_add(len).is_some_and(|end| end <= self.len), "the pages lie in the region");
        // SAFETY: the range lies in the mapping, which is private and this region's alone; the advices used
        // here keep it mapped, readable and writable.
        let done = unsafe { libc::madvise(self.base.as_ptr().add(from).cast(), len, advice) };
        if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
    }

    /// Takes the first page's write permission away and gives it back, `times` times, with a write in
    /// between: two calls of mprotect(2) a time.
    pub fn protect_and_back(&mut self, times: u64) -> io::Result<()> {
        for i in 0..times {
            for rights in [libc::PROT_READ, libc::PROT_READ | libc::PROT_WRITE] {
                // SAFETY: the page is this region's. There is no reference into it, and its rights are whole
                // again when the loop ends, as only a first call can fail (the page's own mapping splits
                // then).
                if unsafe { libc::mprotect(self.base.as_ptr().cast(), PAGE, rights) } != 0 {
                    return Err(io::Error::last_os_error());
                }
            }
            self.words()[0] = i;
        }
        Ok(())
    }
}

impl Drop for Region {
    fn drop(&mut self) {
        // SAFETY: the mapping is this region's, and nothing borrows from the region any more.
        unsafe { libc::munmap(self.map.as_ptr().cast(), self.map_len) };
    }
}

/// Calls getppid(2), `times` times: the cheapest system call that no library answers.
pub fn system_calls(times: u64) {
    for _ in 0..times {
        // SAFETY: the call has no arguments and changes nothing.
        unsafe { libc::syscall(libc::SYS_getppid) };
    }
}

/// CPUs that this process may run on, ascending.
pub fn allowed_cpus() -> Vec<usize> {
    // SAFETY: all zeros is an empty set.
    let mut set: libc::cpu_set_t = unsafe { MaybeUninit::zeroed().assume_init() };
    // SAFETY: the kernel writes at most the given size into the set.
    if unsafe { libc::sched_getaffinity(0, size_of_val(&set), &mut set) } != 0 {
        return Vec::new();
    }
    // SAFETY: the macro reads the bit of a CPU below CPU_SETSIZE.
    (0..libc::CPU_SETSIZE as usize).filter(|&cpu| unsafe { libc::CPU_ISSET(cpu, &set) }).collect()
}

/// Keeps the calling thread on one CPU.
///
/// # Errors
/// If the CPU is not there, or not allowed.
pub fn pin(cpu: usize) -> io::Result<()> {
    if cpu >= libc::CPU_SETSIZE as usize {
        return Err(io::ErrorKind::InvalidInput.into());
    }
    // SAFETY: all zeros is an empty set; the macro sets the bit of a CPU below CPU_SETSIZE.
    let set = unsafe {
        let mut set: libc::cpu_set_t = MaybeUninit::zeroed().assume_init();
        libc::CPU_SET(cpu, &mut set);
        set
    };
    // SAFETY: the kernel reads the set.
    let done = unsafe { libc::sched_setaffinity(0, size_of_val(&set), &set) };
    if done == 0 { Ok(()) } else { Err(io::Error::last_os_error()) }
}

/// How often the calling thread was preempted (getrusage(2), `ru_nivcsw`).
pub fn preemptions() -> i64 {
    let mut usage = MaybeUninit::<libc::rusage>::zeroed();
    // SAFETY: the kernel writes the structure; all zeros is a valid one if it does not.
    unsafe {
        libc::getrusage(libc::RUSAGE_THREAD, usage.as_mut_ptr());
        usage.assume_init().ru_nivcsw
    }
}

/// A byte through a pipe, within a process or to another process and back.
pub struct Pipes {
    /// Ends to read from and to write to.
    ends: [libc::c_int; 4],
    /// The other process.
    child: libc::pid_t,
}

impl Pipes {
    /// Makes two pipes and a process on this CPU that returns each byte.
    ///
    /// # Errors
    /// If the kernel refuses a pipe or the process.
    pub fn new() -> io::Result<Pipes> {
        let mut pipes = Pipes { ends: [-1; 4], child: 0 };
        for pair in pipes.ends.chunks_mut(2) {
            // SAFETY: the kernel writes two descriptors.
            if unsafe { libc::pipe2(pair.as_mut_ptr(), libc::O_CLOEXEC) } != 0 {
                return Err(io::Error::last_os_error());
            }
        }
        let [from_parent, to_child, from_child, to_parent] = pipes.ends;
        // SAFETY: the child calls only close, read, write and _exit, which are safe after a fork
        // (signal-safety(7)).
        let child = unsafe { libc::fork() };
        if child == 0 {
            let mut byte = 0_u8;
            // SAFETY: as above; read and write have one byte of the child's own.
            unsafe {
                libc::close(to_child);
                libc::close(from_child);
                while libc::read(from_parent, (&raw mut byte).cast(), 1) == 1
                    && libc::write(to_parent, (&raw const byte).cast(), 1) == 1
                {}
                libc::_exit(0);
            }
        }
        if child < 0 {
            return Err(io::Error::last_os_error());
        }
        pipes.child = child;
        Ok(pipes)
    }

    /// Sends a byte to the other process and waits for it, `times` times: two switches of the process a time.
    pub fn pass_to_the_other_and_back(&mut self, times: u64) -> io::Result<()> {
        let [_, to, from, _] = self.ends;
        (0..times).try_for_each(|_| pass(to, from))
    }

    /// Sends a byte through a pipe within this process, `times` times.
    pub fn pass_to_oneself(&mut self, times: u64) -> io::Result<()> {
        let [_, _, from, to] = self.ends;
        (0..times).try_for_each(|_| pass(to, from))
    }
}

fn pass(to: libc::c_int, from: libc::c_int) -> io::Result<()> {
    let mut byte = 1_u8;
    // SAFETY: both calls have one byte of this function's own.
    let both = unsafe {
        libc::write(to, (&raw const byte).cast(), 1) == 1 && libc::read(from, (&raw mut byte).cast(), 1) == 1
    };
    if both { Ok(()) } else { Err(io::Error::last_os_error()) }
}

impl Drop for Pipes {
    fn drop(&mut self) {
        // SAFETY: the descriptors are this value's own. With its pipe closed, the child ends.
        unsafe {
            self.ends.iter().filter(|e| **e >= 0).for_each(|e| _ = libc::close(*e));
            if self.child > 0 {
                libc::waitpid(self.child, ptr::null_mut(), 0);
            }
        }
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn a_region_is_aligned_and_zero_where_it_was_discarded() {
        let mut region = Region::new(HUGE + 1, Pages::Small).unwrap();
        assert_eq!((region.len(), region.base() as usize % HUGE), (2 * HUGE, 0));
        region.words().fill(7);
        region.discard(PAGE, PAGE).unwrap();
        assert_eq!((region.words()[0], region.words()[PAGE / 8]), (7, 0));
        region.protect_and_back(3).unwrap();
        assert_eq!(region.words()[0], 2);
    }

    #[test]
    fn a_byte_comes_back_from_the_other_process() {
        let mut pipes = Pipes::new().unwrap();
        pipes.pass_to_the_other_and_back(10).unwrap();
        pipes.pass_to_oneself(10).unwrap();
        let child = pipes.child;
        drop(pipes);
        // SAFETY: signal 0 only asks whether the process is there.
        let there = unsafe { libc::kill(child, 0) };
        assert_eq!(there, -1, "the child has ended");
    }

    #[test]
    fn a_cpu_that_is_not_there_is_refused() {
        assert!(pin(1 << 20).is_err());
        assert!(!allowed_cpus().is_empty());
    }
}
