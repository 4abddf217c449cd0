// SPDX-License-Identifier: Apache-2.0 OR MIT
//! A tracing instance of our own: the directory `instances/bifold-PID-N` of tracefs.
//!
//! An instance has events, triggers and buffers of its own (`instance_mkdir` in Linux's `kernel/trace/trace.c`), so
//! several processes count side by side. Removing an instance removes its triggers (`event_trace_del_tracer`).
//! The kernel refuses that with EBUSY while a file of the instance is open (`__remove_instance`).

use super::ExitCountersError;
use super::counter::Counter;
use crate::Host;
use rustix::io::Errno;
use std::fs::{self, File, OpenOptions};
use std::io::{self, Write as _};
use std::path::{Path, PathBuf};

const PREFIX: &str = "bifold-";

/// An instance, which is removed when this value is dropped. Its files have to be closed before.
#[derive(Debug)]
pub struct Instance {
    path: PathBuf,
    /// Counters whose triggers are set.
    counting: Vec<Counter>,
}

impl Instance {
    /// Creates an instance of this process.
    pub fn create(host: &Host) -> Result<Instance, ExitCountersError> {
        let all = host.tracing.join("instances");
        let mut number = 0;
        loop {
            let path = all.join(format!("{PREFIX}{}-{number}", std::process::id()));
            match fs::create_dir(&path) {
                Ok(()) => return Ok(Instance { path, counting: Vec::new() }),
                Err(e) if e.kind() == io::ErrorKind::AlreadyExists => number += 1,
                Err(e) if e.kind() == io::ErrorKind::NotFound => {
                    let not_mounted = |path| ExitCountersError::NotMounted { path };
                    return Err(ExitCountersError::missing(host, all, not_mounted));
                }
                Err(e) => return Err(ExitCountersError::io("create", &path, e)),
            }
        }
    }

    /// A file of a counter's event.
    pub fn file(&self, counter: Counter, name: &str) -> PathBuf {
        self.path.join("events").join(counter.event()).join(name)
    }

    /// Gives the kernel back the buffers for recorded events, 1.4 MB for each CPU (`trace_buf_size`): counting
    /// records none. Only where buffers have several pages in a piece, since Linux 6.8: before 6.7, a change of one
    /// instance's size kept the main buffer from ever growing to its full size (`ring_buffer_expanded`).
    pub fn shrink_buffer(&self) {
        if self.path.join("buffer_subbuf_size_kb").exists() {
            // Without success, memory is spent and the counts are the same.
            let _ = write(&self.path.join("buffer_size_kb"), "1");
        }
    }

    /// Starts a counter; `None` if this kernel does not have the event, or lacks one of the fields.
    ///
    /// The histogram is opened first: until the file is closed, nobody can remove the instance.
    pub fn count(&mut self, host: &Host, counter: Counter) -> Result<Option<File>, ExitCountersError> {
        let path = self.file(counter, "hist");
        let histogram = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(ExitCountersError::io("open", &path, e));
            }
            Err(_) if self.file(counter, "trigger").exists() => {
                return Err(ExitCountersError::NoHistograms { path });
            }
            Err(_) if counter != Counter::Exits => return Ok(None),
            Err(_) => {
                let event = self.path.join("events").join(counter.event());
                let no_events = |path| ExitCountersError::NoKvmEvents { path };
                return Err(ExitCountersError::missing(host, event, no_events));
            }
        };
        let path = self.file(counter, "trigger");
        match write(&path, &counter.trigger()) {
            Ok(()) => {
                self.counting.push(counter);
                Ok(Some(histogram))
            }
            // A field of the keys or the filter does not exist (parse_field, parse_pred).
            Err(e) if e.raw_os_error() == Some(Errno::INVAL.raw_os_error()) => Ok(None),
            Err(e) => Err(ExitCountersError::io("write", &path, e)),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Somebody may be reading a file of the instance. The directory then stays, but nothing is counted.
        for &counter in &self.counting {
            let _ = write(&self.file(counter, "trigger"), &format!("!{}", counter.trigger()));
        }
        let _ = fs::remove_dir(&self.path);
    }
}

/// Writes a line. The file must not be truncated: that would remove triggers (`event_trigger_regex_open`).
fn write(path: &Path, line: &str) -> io::Result<()> {
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
