// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Two system calls that no library of ours has: move_pages(2), which also tells where pages are, and
//! sched_setaffinity(2) for more CPUs than `cpu_set_t` holds.
//!
//! This file has all unsafe code of the crate.
#![allow(unsafe_code)]

use bifold_host::topology::NumberSet;
use std::io;

/// Where a page is.
#[derive(Debug, Clone, Copy, PartialEq, Eq, PartialOrd, Ord)]
pub enum Where {
    /// On this node.
    Node(u32),
    /// Nowhere: never touched, swapped out, or the shared page of zeros.
    Absent,
}

/// The nodes of a process's pages at these addresses. Moves nothing.
///
/// # Errors
/// If the process has ended (ESRCH), this user may not look (EPERM), or the kernel lacks the call (ENOSYS).
pub fn nodes_of_pages(pid: u32, addresses: &[u64]) -> io::Result<Vec<Where>> {
    let pid = libc::pid_t::try_from(pid).map_err(|_| io::ErrorKind::InvalidInput)?;
    let mut states = vec![0 as libc::c_int; addresses.len()];
    // SAFETY: the kernel reads `len` addresses, does not follow them in this process, and writes `len`
    // states. Without a list of nodes the call only looks. Both vectors live until the call returns. u64 is
    // as wide as a pointer on x86-64, the only architecture that is supported.
    let done = unsafe {
        libc::syscall(
            libc::SYS_move_pages,
            pid,
            addresses.len(),
            addresses.as_ptr(),
            std::ptr::null::<libc::c_int>(),
            states.as_mut_ptr(),
            0,
        )
    };
    if done < 0 {
        return Err(io::Error::last_os_error());
    }
    Ok(states.into_iter().map(|s| u32::try_from(s).map_or(Where::Absent, Where::Node)).collect())
}

/// Pins a thread to CPUs.
///
/// # Errors
/// If the thread has ended (ESRCH), this user may not (EPERM), or none of the CPUs is online and within the
/// thread's cpuset (EINVAL).
pub fn pin(thread: u32, cpus: &NumberSet) -> io::Result<()> {
    const BITS: usize = libc::c_ulong::BITS as usize;
    let thread = libc::pid_t::try_from(thread).map_err(|_| io::ErrorKind::InvalidInput)?;
    let last = cpus.iter().next_back().ok_or(io::ErrorKind::InvalidInput)? as usize;
    let mut mask: Vec<libc::c_ulong> = vec![0; last / BITS + 1];
    cpus.iter().for_each(|cpu| mask[cpu as usize / BITS] |= 1 << (cpu as usize % BITS));
    // SAFETY: the kernel reads the mask, whose length in bytes is given, and writes nothing.
    let done = unsafe {
        libc::syscall(
            libc::SYS_sched_setaffinity,
            thread,
            mask.len() * size_of::<libc::c_ulong>(),
            mask.as_ptr(),
        )
    };
    if done < 0 { Err(io::Error::last_os_error()) } else { Ok(()) }
}

#[cfg(test)]
mod tests {
    use super::*;
    use bifold_host::Host;

    #[test]
    fn a_touched_page_has_a_node_and_an_untouched_one_has_none() {
        const PAGES: usize = 64;
        let mut memory = vec![0_u8; (PAGES + 1) * 4096];
        let first = (memory.as_ptr() as u64).next_multiple_of(4096);
        memory.fill(1);
        let addresses: Vec<u64> = (0..PAGES as u64).map(|n| first + n * 4096).collect();
        let at = nodes_of_pages(std::process::id(), &addresses).unwrap();
        assert!(at.iter().all(|w| matches!(w, Where::Node(_))), "{at:?}");
        assert_eq!(nodes_of_pages(std::process::id(), &[4096]).unwrap(), [Where::Absent]);
        assert_eq!(nodes_of_pages(u32::MAX >> 1, &[4096]).unwrap_err().raw_os_error(), Some(libc::ESRCH));
    }

    #[test]
    fn a_thread_runs_where_it_was_pinned() {
        let test = || {
            let host = Host::live();
            let this = rustix::thread::gettid().as_raw_nonzero().get() as u32;
            let allowed = || host.allowed_cpus(std::process::id(), this).unwrap();
            let one: NumberSet = allowed().iter().take(1).collect();
            pin(this, &one).unwrap();
            assert_eq!(allowed(), one);
            let none: NumberSet = [8191].into_iter().collect();
            assert_eq!(pin(this, &none).unwrap_err().raw_os_error(), Some(libc::EINVAL));
            assert!(pin(this, &NumberSet::default()).is_err());
        };
        // A thread of its own: the test's threads are shared.
        std::thread::spawn(test).join().unwrap();
    }
}
