// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracing instance of our own: the directory `instances/bifold-PID-N` of tracefs.
//!
//! An instance has events, triggers and buffers of its own (`instance_mkdir` in Linux's
//! `kernel/trace/trace.c`), so several processes trace side by side. Removing an instance removes its
//! triggers (`event_trace_del_tracer`). The kernel refuses that with EBUSY while a file of the instance is
//! open (`__remove_instance`). A process that is killed leaves its instance behind; the next one removes it.

use crate::Host;
use crate::memory::text;
use rustix::io::Errno;
use std::fs::{self, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const PREFIX: &str = "bifold-";

/// Why this host cannot trace. Each message says what is wrong and what to do.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum TracingError {
    /// tracefs is not mounted.
    #[error(
        "tracefs is not mounted, or this kernel cannot trace (no {}): as root, mount -t tracefs none /sys/kernel/tracing",
        path.display()
    )]
    NotMounted {
        /// The missing directory.
        path: PathBuf,
    },
    /// Only root may use the file.
    #[error("cannot {doing} {}: only root may; run the command with sudo", path.display())]
    NotRoot {
        /// The refused operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
    },
    /// The kernel forbids tracing.
    #[error(
        "cannot use {}: this kernel is locked down and forbids tracing (/sys/kernel/security/lockdown): boot without lockdown=confidentiality",
        path.display()
    )]
    LockedDown {
        /// The file.
        path: PathBuf,
    },
    /// Any other error of a file.
    #[error("cannot {doing} {}", path.display())]
    Io {
        /// The operation.
        doing: &'static str,
        /// The file.
        path: PathBuf,
        /// The kernel's error.
        source: io::Error,
    },
}

impl TracingError {
    pub(crate) fn io(doing: &'static str, path: &Path, source: io::Error) -> TracingError {
        let path = path.into();
        match source.raw_os_error().map(Errno::from_raw_os_error) {
            Some(Errno::ACCESS) => TracingError::NotRoot { doing, path },
            // tracing_check_open_get_tr and event_trigger_regex_open, if the kernel is locked down.
            Some(Errno::PERM) => TracingError::LockedDown { path },
            _ => TracingError::Io { doing, path, source },
        }
    }

    /// The error for a missing file if the kernel was locked down at boot: tracefs has no files then
    /// (`tracefs_create_file`).
    pub(crate) fn locked_down(host: &Host, path: &Path) -> Option<TracingError> {
        let lockdown = text(&host.sys.join("kernel/security/lockdown"));
        lockdown.contains("[confidentiality]").then(|| TracingError::LockedDown { path: path.into() })
    }

    /// Whether this machine, or this user's rights, lack something (exit status 77).
    pub fn cannot_work_here(&self) -> bool {
        !matches!(self, TracingError::Io { .. })
    }
}

/// An instance, which is removed when this value is dropped. Its files have to be closed before.
#[derive(Debug)]
pub struct TracingInstance {
    path: PathBuf,
}

impl TracingInstance {
    /// Creates an instance of this process. Its events are off.
    ///
    /// # Errors
    /// If tracefs is not mounted, the user is not root, or the kernel is locked down.
    pub fn create(host: &Host) -> Result<TracingInstance, TracingError> {
        let all = host.tracing.join("instances");
        let mut number = 0;
        loop {
            let path = all.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(TracingInstance { path }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let not_mounted = |path| TracingError::NotMounted { path };
                    return Err(TracingError::locked_down(host, &all).unwrap_or_else(|| not_mounted(all)));
                }
                Err(e) => return Err(TracingError::io("create", &path, e)),
            }
        }
    }

    /// The directory.
    pub fn path(&self) -> &Path {
        &self.path
    }

    /// Writes a line to a file of the instance.
    ///
    /// # Errors
    /// If the kernel refuses the line.
    pub fn set(&self, file: &str, line: &str) -> Result<(), TracingError> {
        let path = self.path.join(file);
        write(&path, line).map_err(|e| TracingError::io("write", &path, e))
    }
}

impl Drop for TracingInstance {
    fn drop(&mut self) {
        // Somebody may be reading a file of the instance. The directory then stays.
        let _ = fs::remove_dir(&self.path);
    }
}

/// Writes a line to a file of tracefs. The file must not be truncated: that would remove triggers
/// (`event_trigger_regex_open`).
///
/// # Errors
/// If the kernel refuses the line.
pub fn write(path: &Path, line: &str) -> io::Result<()> {
    OpenOptions::new().append(true).open(path)?.write_all(format!("{line}\n").as_bytes())
}

/// Removes the instances of processes that no longer exist. A process in another PID namespace seems not to
/// exist; the kernel then refuses with EBUSY, because that process has its histograms open.
pub fn remove_leftovers(host: &Host) {
    let Ok(entries) = fs::read_dir(host.tracing.join("instances")) else { return };
    for entry in entries.flatten() {
        let pid = entry.file_name().to_str().and_then(owner);
        if pid.is_some_and(|pid| !host.proc.join(pid.to_string()).exists()) {
            let _ = fs::remove_dir(entry.path());
        }
    }
}

/// The process that an instance is of, by the instance's name.
fn owner(name: &str) -> Option<u32> {
    let (pid, number) = name.strip_prefix(PREFIX)?.split_once('-')?;
    number.parse::<u32>().ok()?;
    pid.parse().ok()
}
