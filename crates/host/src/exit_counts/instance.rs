// SPDX-License-Identifier: Apache-2.0 OR MIT
//! The triggers of a [`TracingInstance`] that count events.

use super::ExitCountersError;
use super::counter::Counter;
use crate::Host;
use crate::tracing::{TracingError, TracingInstance, write};
use rustix::io::Errno;
use std::fs::File;
use std::io;
use std::path::PathBuf;

/// An instance with triggers. Its files have to be closed before it is dropped.
#[derive(Debug)]
pub struct Instance {
    tracing: TracingInstance,
    /// Counters whose triggers are set.
    counting: Vec<Counter>,
}

impl Instance {
    /// Creates an instance of this process.
    pub fn create(host: &Host) -> Result<Instance, ExitCountersError> {
        Ok(Instance { tracing: TracingInstance::create(host)?, counting: Vec::new() })
    }

    /// A file of a counter's event.
    pub fn file(&self, counter: Counter, name: &str) -> PathBuf {
        self.tracing.path().join("events").join(counter.event()).join(name)
    }

    /// Gives the kernel back the buffers for recorded events, 1.4 MB for each CPU (`trace_buf_size`):
    /// counting records none. Only where buffers have several pages in a piece, since Linux 6.8: before 6.7,
    /// a change of one instance's size kept the main buffer from ever growing to its full size
    /// (`ring_buffer_expanded`).
    pub fn shrink_buffer(&self) {
        if self.tracing.path().join("buffer_subbuf_size_kb").exists() {
            // Without success, memory is spent and the counts are the same.
            let _ = write(&self.tracing.path().join("buffer_size_kb"), "1");
        }
    }

    /// Starts a counter; `None` if this kernel does not have the event, or lacks one of the fields.
    ///
    /// The histogram is opened first: until the file is closed, the instance cannot be removed.
    pub fn count(&mut self, host: &Host, counter: Counter) -> Result<Option<File>, ExitCountersError> {
        let path = self.file(counter, "hist");
        let histogram = match File::open(&path) {
            Ok(file) => file,
            Err(e) if e.kind() != io::ErrorKind::NotFound => {
                return Err(TracingError::io("open", &path, e).into());
            }
            Err(_) if self.file(counter, "trigger").exists() => {
                return Err(ExitCountersError::NoHistograms { path });
            }
            Err(_) if counter != Counter::Exits => return Ok(None),
            Err(_) => {
                let event = self.tracing.path().join("events").join(counter.event());
                let locked_down = TracingError::locked_down(host, &event).map(ExitCountersError::from);
                return Err(locked_down.unwrap_or(ExitCountersError::NoKvmEvents { path: event }));
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
            Err(e) => Err(TracingError::io("write", &path, e).into()),
        }
    }
}

impl Drop for Instance {
    fn drop(&mut self) {
        // Somebody may be reading a file of the instance. The directory then stays, but nothing is counted.
        for &counter in &self.counting {
            let _ = write(&self.file(counter, "trigger"), &format!("!{}", counter.trigger()));
        }
    }
}
