// SPDX-License-Identifier: Apache-2.0 OR MIT
//! KVM's calls by number, with error numbers as results. Several threads may use one vCPU's file at once,
//! which the types of `kvm_ioctls` do not allow.

use std::fs::File;
use std::os::fd::{AsRawFd, FromRawFd, OwnedFd, RawFd};
use std::path::PathBuf;
use std::sync::atomic::{AtomicU8, Ordering};

use anyhow::{Context, Result};
use kvm_bindings::*;
use rustix::mm::{MapFlags, ProtFlags, mmap, munmap};

use crate::vm::Unavailable;

/// A call: its name and its number.
#[derive(Debug, Clone, Copy, PartialEq, Eq)]
pub struct Op {
    /// Name in the kernel's header.
    pub name: &'static str,
    number: u64,
}

const KVMIO: u64 = 0xae;

const fn op(name: &'static str, direction: u64, number: u64, size: usize) -> Op {
    Op { name, number: direction << 30 | (size as u64) << 16 | KVMIO << 8 | number }
}
const fn none(name: &'static str, number: u64) -> Op {
    op(name, 0, number, 0)
}
const fn write<T>(name: &'static str, number: u64) -> Op {
    op(name, 1, number, size_of::<T>())
}
const fn read<T>(name: &'static str, number: u64) -> Op {
    op(name, 2, number, size_of::<T>())
}
const fn both<T>(name: &'static str, number: u64) -> Op {
    op(name, 3, number, size_of::<T>())
}

const CREATE_VM: Op = none("KVM_CREATE_VM", 0x01);
const GET_VCPU_MMAP_SIZE: Op = none("KVM_GET_VCPU_MMAP_SIZE", 0x04);
const GET_SUPPORTED_CPUID: Op = both::<[u32; 2]>("KVM_GET_SUPPORTED_CPUID", 0x05);
pub const CREATE_VCPU: Op = none("KVM_CREATE_VCPU", 0x41);
pub const GET_DIRTY_LOG: Op = write::<kvm_dirty_log>("KVM_GET_DIRTY_LOG", 0x42);
pub const CLEAR_DIRTY_LOG: Op = both::<kvm_clear_dirty_log>("KVM_CLEAR_DIRTY_LOG", 0xc0);
pub const SET_NR_MMU_PAGES: Op = none("KVM_SET_NR_MMU_PAGES", 0x44);
pub const SET_USER_MEMORY_REGION: Op =
    write::<kvm_userspace_memory_region>("KVM_SET_USER_MEMORY_REGION", 0x46);
pub const SET_TSS_ADDR: Op = none("KVM_SET_TSS_ADDR", 0x47);
pub const CREATE_IRQCHIP: Op = none("KVM_CREATE_IRQCHIP", 0x60);
pub const ENABLE_CAP: Op = write::<kvm_enable_cap>("KVM_ENABLE_CAP", 0xa3);
pub const RUN: Op = none("KVM_RUN", 0x80);
pub const GET_REGS: Op = read::<kvm_regs>("KVM_GET_REGS", 0x81);
pub const SET_REGS: Op = write::<kvm_regs>("KVM_SET_REGS", 0x82);
pub const GET_SREGS: Op = read::<kvm_sregs>("KVM_GET_SREGS", 0x83);
pub const SET_SREGS: Op = write::<kvm_sregs>("KVM_SET_SREGS", 0x84);
pub const TRANSLATE: Op = both::<kvm_translation>("KVM_TRANSLATE", 0x85);
pub const INTERRUPT: Op = write::<u32>("KVM_INTERRUPT", 0x86);
pub const GET_MSRS: Op = both::<[u32; 2]>("KVM_GET_MSRS", 0x88);
pub const SET_MSRS: Op = write::<[u32; 2]>("KVM_SET_MSRS", 0x89);
pub const GET_FPU: Op = read::<kvm_fpu>("KVM_GET_FPU", 0x8c);
pub const SET_CPUID2: Op = write::<[u32; 2]>("KVM_SET_CPUID2", 0x90);
pub const GET_MP_STATE: Op = read::<u32>("KVM_GET_MP_STATE", 0x98);
pub const SET_MP_STATE: Op = write::<u32>("KVM_SET_MP_STATE", 0x99);
pub const NMI: Op = none("KVM_NMI", 0x9a);
pub const SET_GUEST_DEBUG: Op = write::<kvm_guest_debug>("KVM_SET_GUEST_DEBUG", 0x9b);
pub const GET_VCPU_EVENTS: Op = read::<kvm_vcpu_events>("KVM_GET_VCPU_EVENTS", 0x9f);
pub const SET_VCPU_EVENTS: Op = write::<kvm_vcpu_events>("KVM_SET_VCPU_EVENTS", 0xa0);
pub const GET_DEBUGREGS: Op = read::<kvm_debugregs>("KVM_GET_DEBUGREGS", 0xa1);
pub const SET_DEBUGREGS: Op = write::<kvm_debugregs>("KVM_SET_DEBUGREGS", 0xa2);
pub const GET_XCRS: Op = read::<kvm_xcrs>("KVM_GET_XCRS", 0xa6);
pub const SMI: Op = none("KVM_SMI", 0xb7);
pub const GET_NESTED_STATE: Op = both::<[u64; 16]>("KVM_GET_NESTED_STATE", 0xbe);
pub const SET_NESTED_STATE: Op = write::<[u64; 16]>("KVM_SET_NESTED_STATE", 0xbf);
pub const GET_SREGS2: Op = read::<kvm_sregs2>("KVM_GET_SREGS2", 0xcc);
pub const SET_SREGS2: Op = write::<kvm_sregs2>("KVM_SET_SREGS2", 0xcd);

/// An error number.
pub type Errno = i32;
/// KVM's capability of the paging mode.
pub const CAP: u32 = 0x42464d;

fn raw(fd: RawFd, op: Op, argument: u64) -> Result<i32, Errno> {
    // SAFETY: each caller gives the argument that the call's number asks for, which lives until the call's
    // end. What the guest does stays within its memory.
    let end = unsafe { libc::ioctl(fd, op.number as _, argument) };
    if end < 0 { Err(std::io::Error::last_os_error().raw_os_error().unwrap_or(0)) } else { Ok(end) }
}

/// Names of error numbers that KVM's calls have.
pub fn errno_name(e: Errno) -> String {
    match e {
        libc::EPERM => "EPERM".into(),
        libc::ENOENT => "ENOENT".into(),
        libc::EINTR => "EINTR".into(),
        libc::EIO => "EIO".into(),
        libc::E2BIG => "E2BIG".into(),
        libc::EBADF => "EBADF".into(),
        libc::EAGAIN => "EAGAIN".into(),
        libc::ENOMEM => "ENOMEM".into(),
        libc::EFAULT => "EFAULT".into(),
        libc::EBUSY => "EBUSY".into(),
        libc::EEXIST => "EEXIST".into(),
        libc::EINVAL => "EINVAL".into(),
        libc::ENOTTY => "ENOTTY".into(),
        libc::ENXIO => "ENXIO".into(),
        libc::EOPNOTSUPP => "EOPNOTSUPP".into(),
        libc::ETIMEDOUT => "ETIMEDOUT".into(),
        other => format!("errno {other}"),
    }
}

/// Bytes of a structure with a length of its own: a header, and entries.
#[derive(Debug, Clone)]
pub struct Entries(Vec<u64>);

impl Entries {
    /// A header with the number of entries, and the entries' words.
    fn new(n: u32, words: Vec<u64>) -> Entries {
        Entries([vec![u64::from(n)], words].concat())
    }

    /// MSRs with their values.
    pub fn msrs(values: &[(u32, u64)]) -> Entries {
        let words = values.iter().flat_map(|(msr, value)| [u64::from(*msr), *value]).collect();
        Entries::new(values.len() as u32, words)
    }

    /// The values of MSRs.
    pub fn values(&self) -> impl Iterator<Item = u64> {
        self.0[1..].chunks_exact(2).map(|c| c[1])
    }
}

/// `/dev/kvm`.
#[derive(Debug)]
pub struct Kvm {
    fd: File,
    run_size: usize,
    /// What KVM offers to guests.
    pub cpuid: Entries,
}

impl Kvm {
    pub fn new() -> Result<Kvm> {
        let fd = File::options().read(true).write(true).open("/dev/kvm");
        let fd = fd.map_err(|e| Unavailable(format!("cannot open /dev/kvm: {e}")))?;
        let error = |op: Op| move |e| anyhow::anyhow!("{}: {}", op.name, errno_name(e));
        let run_size = raw(fd.as_raw_fd(), GET_VCPU_MMAP_SIZE, 0).map_err(error(GET_VCPU_MMAP_SIZE))?;
        const N: u32 = 128;
        let mut cpuid = Entries::new(N, vec![0; N as usize * 5]);
        raw(fd.as_raw_fd(), GET_SUPPORTED_CPUID, cpuid.0.as_mut_ptr() as u64)
            .map_err(error(GET_SUPPORTED_CPUID))?;
        Ok(Kvm { fd, run_size: run_size as usize, cpuid })
    }

    /// Words 3 to 6 of a CPUID leaf, EAX to EDX, if KVM offers it.
    pub fn leaf(&self, function: u32, index: u32) -> Option<[u32; 4]> {
        // An entry is ten words of 32 bits: function, index, flags, EAX, EBX, ECX, EDX, three of padding.
        let words: Vec<u32> = self.cpuid.0[1..].iter().flat_map(|w| [*w as u32, (*w >> 32) as u32]).collect();
        let n = self.cpuid.0[0] as u32 as usize;
        words
            .chunks_exact(10)
            .take(n)
            .find(|e| e[0] == function && e[1] == index)
            .map(|e| [e[3], e[4], e[5], e[6]])
    }

    pub fn create_vm(&self) -> Result<Vm> {
        let fd = raw(self.fd.as_raw_fd(), CREATE_VM, 0)
            .map_err(|e| Unavailable(format!("cannot create a VM: {}", errno_name(e))))?;
        let thread = rustix::thread::gettid().as_raw_nonzero();
        let debugfs = PathBuf::from(format!("/sys/kernel/debug/kvm/{thread}-{fd}"));
        // SAFETY: the kernel just gave this descriptor to us.
        Ok(Vm { fd: unsafe { OwnedFd::from_raw_fd(fd) }, run_size: self.run_size, debugfs })
    }
}

/// A VM's file.
#[derive(Debug)]
pub struct Vm {
    fd: OwnedFd,
    run_size: usize,
    /// KVM's directory of the VM.
    pub debugfs: PathBuf,
}

impl Vm {
    /// A call with a number as argument.
    pub fn number(&self, op: Op, argument: u64) -> Result<i32, Errno> {
        raw(self.fd.as_raw_fd(), op, argument)
    }

    /// A call with a structure as argument.
    pub fn call<T>(&self, op: Op, argument: &mut T) -> Result<i32, Errno> {
        raw(self.fd.as_raw_fd(), op, std::ptr::from_mut(argument) as u64)
    }

    pub fn create_vcpu(&self, id: u64) -> Result<Result<Vcpu, Errno>> {
        let fd = match self.number(CREATE_VCPU, id) {
            Ok(fd) => fd,
            Err(e) => return Ok(Err(e)),
        };
        // SAFETY: the kernel just gave this descriptor to us.
        let fd = unsafe { OwnedFd::from_raw_fd(fd) };
        let (rw, null) = (ProtFlags::READ | ProtFlags::WRITE, std::ptr::null_mut());
        // SAFETY: a new mapping at a place that the kernel chooses.
        let run = unsafe { mmap(null, self.run_size, rw, MapFlags::SHARED, &fd, 0) };
        let run = run.context("cannot map kvm_run")?.cast();
        Ok(Ok(Vcpu { fd, run, run_size: self.run_size }))
    }

    /// Sets the mode by the capability.
    pub fn enable_mode(&self, nested: bool) -> Result<i32, Errno> {
        let args = [u64::from(nested), 0, 0, 0];
        self.call(ENABLE_CAP, &mut kvm_enable_cap { cap: CAP, args, ..Default::default() })
    }

    /// Sets a memory slot. The memory has to outlive the VM.
    pub fn slot(&self, slot: u32, gpa: u64, size: u64, host: u64, flags: u32) -> Result<i32, Errno> {
        let mut region = kvm_userspace_memory_region {
            slot,
            flags,
            guest_phys_addr: gpa,
            memory_size: size,
            userspace_addr: host,
        };
        self.call(SET_USER_MEMORY_REGION, &mut region)
    }

    /// Puts another file at this descriptor, as a close that leaves no number free for others.
    pub fn close_early(&self) -> Result<()> {
        close_early(self.fd.as_raw_fd())
    }
}

fn close_early(fd: RawFd) -> Result<()> {
    let null = File::open("/dev/null")?;
    // SAFETY: both descriptors are open, and what the old one was is not used as such: its calls fail.
    let end = unsafe { libc::dup2(null.as_raw_fd(), fd) };
    anyhow::ensure!(end == fd, "dup2: {}", std::io::Error::last_os_error());
    Ok(())
}

/// A vCPU's file and its `kvm_run`.
#[derive(Debug)]
pub struct Vcpu {
    fd: OwnedFd,
    run: *mut u8,
    run_size: usize,
}

// SAFETY: the mapping lives as long as the vCPU, and it is accessed by volatile or atomic reads and writes
// only.
unsafe impl Send for Vcpu {}
// SAFETY: as above. KVM itself allows several threads to call one vCPU.
unsafe impl Sync for Vcpu {}

/// Offsets in `kvm_run`.
const IMMEDIATE_EXIT: usize = 1;
const EXIT_REASON: usize = 8;
const UNION: usize = 32;

impl Vcpu {
    pub fn number(&self, op: Op, argument: u64) -> Result<i32, Errno> {
        raw(self.fd.as_raw_fd(), op, argument)
    }

    pub fn call<T>(&self, op: Op, argument: &mut T) -> Result<i32, Errno> {
        raw(self.fd.as_raw_fd(), op, std::ptr::from_mut(argument) as u64)
    }

    /// A call that reads a structure.
    pub fn get<T: Default>(&self, op: Op) -> Result<T, Errno> {
        let mut out = T::default();
        self.call(op, &mut out).map(|_| out)
    }

    /// A call with entries.
    pub fn entries(&self, op: Op, entries: &mut Entries) -> Result<i32, Errno> {
        raw(self.fd.as_raw_fd(), op, entries.0.as_mut_ptr() as u64)
    }

    fn at<T>(&self, offset: usize) -> *mut T {
        assert!(offset + size_of::<T>() <= self.run_size);
        // SAFETY: within the mapping.
        unsafe { self.run.add(offset) }.cast()
    }

    /// Reads `T` at an offset of the exit's details.
    pub fn detail<T: Copy>(&self, offset: usize) -> T {
        // SAFETY: within the mapping; callers take numbers.
        unsafe { self.at::<T>(UNION + offset).read_unaligned() }
    }

    pub fn exit_reason(&self) -> u32 {
        // SAFETY: within the mapping, aligned.
        unsafe { self.at::<u32>(EXIT_REASON).read_volatile() }
    }

    /// Writes bytes into `kvm_run`: data for the guest's reads.
    pub fn put(&self, offset: usize, bytes: &[u8]) {
        for (i, b) in bytes.iter().enumerate().take(self.run_size - offset) {
            // SAFETY: within the mapping.
            unsafe { self.at::<u8>(offset + i).write_volatile(*b) };
        }
    }

    /// Offset of the exit's details, for [`Vcpu::put`].
    pub const DETAILS: usize = UNION;

    /// Whether KVM_RUN returns before it enters the guest.
    pub fn set_immediate_exit(&self, on: bool) {
        // SAFETY: within the mapping; KVM reads the byte at any time.
        unsafe { &*self.at::<AtomicU8>(IMMEDIATE_EXIT) }.store(u8::from(on), Ordering::Relaxed);
    }

    pub fn close_early(&self) -> Result<()> {
        close_early(self.fd.as_raw_fd())
    }
}

impl Drop for Vcpu {
    fn drop(&mut self) {
        // SAFETY: made by `create_vcpu`, and not used any more.
        let _ = unsafe { munmap(self.run.cast(), self.run_size) };
    }
}

#[cfg(test)]
mod tests {
    use super::*;

    #[test]
    fn numbers_are_those_of_the_header() {
        assert_eq!(SET_SREGS.number, 0x4138_ae84);
        assert_eq!(GET_REGS.number, 0x8090_ae81);
        assert_eq!(RUN.number, 0xae80);
        assert_eq!(GET_MSRS.number, 0xc008_ae88);
        assert_eq!(CLEAR_DIRTY_LOG.number, 0xc018_aec0);
        assert_eq!(SET_NESTED_STATE.number, 0x4080_aebf);
    }

    #[test]
    fn entries_have_a_header_and_two_words_each() {
        let e = Entries::msrs(&[(0x277, 5), (0xc000_0080, 7)]);
        assert_eq!(e.0, [2, 0x277, 5, 0xc000_0080, 7]);
        assert_eq!(e.values().collect::<Vec<_>>(), [5, 7]);
    }
}
