// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Swapping in the laboratory: the disk, a cgroup, and paging out of another process's memory.

use std::fs;
use std::os::fd::{AsRawFd, BorrowedFd};
use std::path::Path;
use std::process::{Command, Stdio};

use anyhow::{Context, Result, ensure};
use rustix::mount::{MountFlags, mount};

use crate::BUSYBOX;

const CGROUPS: &str = "/sys/fs/cgroup";
const DISKS: [&str; 2] = ["/dev/vda", "/dev/ram0"];

pub(crate) fn put(path: &str, text: &str) -> Result<()> {
    fs::write(path, text).with_context(|| format!("{path}: {text}"))
}

pub(crate) fn swap_on() -> Result<()> {
    // Debug kernels have a disk in memory instead.
    let disk =
        DISKS.iter().find(|d| Path::new(d).exists()).context("the laboratory has no disk to swap to")?;
    for applet in ["mkswap", "swapon"] {
        let status = Command::new(BUSYBOX).args([applet, disk]).stdout(Stdio::null()).status();
        ensure!(status.context(applet)?.success(), "{applet} {disk} failed");
    }
    Ok(())
}

/// Makes a cgroup with the memory controller, and returns its directory.
pub(crate) fn cgroup() -> Result<String> {
    mount("cgroup2", CGROUPS, "cgroup2", MountFlags::empty(), None).context("mounting cgroup2")?;
    put(&format!("{CGROUPS}/cgroup.subtree_control"), "+memory")?;
    let cgroup = format!("{CGROUPS}/vm");
    fs::create_dir(&cgroup).with_context(|| cgroup.clone())?;
    Ok(cgroup)
}

/// MADV_PAGEOUT for memory of another process. The error is the error number.
pub(crate) fn page_out(process: BorrowedFd, from: u64, bytes: u64) -> Result<(), i64> {
    const PROCESS_MADVISE: i64 = 440;
    const PAGEOUT: i64 = 21;
    let range = [from, bytes];
    let result: i64;
    // SAFETY: the call reads `range`, an iovec in memory that outlives it, and changes nothing of this
    // process; where the other process keeps its pages is not seen by what runs there.
    unsafe {
        std::arch::asm!(
            "syscall",
            inlateout("rax") PROCESS_MADVISE => result,
            in("rdi") i64::from(process.as_raw_fd()),
            in("rsi") range.as_ptr(),
            in("rdx") 1_i64,
            in("r10") PAGEOUT,
            in("r8") 0_i64,
            lateout("rcx") _,
            lateout("r11") _,
            options(nostack)
        );
    }
    if result < 0 { Err(-result) } else { Ok(()) }
}

/// The addresses of QEMU's mapping of guest memory, by its size.
pub(crate) fn guest_memory(pid: u32, bytes: u64) -> Result<(u64, u64)> {
    let maps = fs::read_to_string(format!("/proc/{pid}/maps"))?;
    let range = |l: &str| {
        let (from, to) = l.split(' ').next()?.split_once('-')?;
        Some((u64::from_str_radix(from, 16).ok()?, u64::from_str_radix(to, 16).ok()?))
    };
    // The kernel may have joined neighbouring mappings with it.
    maps.lines().filter_map(range).find(|(from, to)| to - from >= bytes).context("QEMU has no such mapping")
}
