// SPDX-License-Identifier: Apache-2.0 OR MIT
//! Why hardware counters cannot be used, or not of a thread. Each message says what to do.

use rustix::io::Errno;
use std::io;

/// Why this machine's hardware counters cannot be used.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum NoPmu {
    /// The machine has no PMU, or its kernel has no perf events.
    #[error(
        "this machine has no hardware counters: a VM or cloud machine has them only if its hypervisor provides a virtual PMU"
    )]
    None,
    /// This user may not open hardware counters.
    #[error(
        "not permitted to use hardware counters: run as root, or with the capability CAP_PERFMON, or set /proc/sys/kernel/perf_event_paranoid{} to 1; in a container, its seccomp filter must allow perf_event_open, too",
        paranoid.map_or(String::new(), |p| format!(" (now {p})"))
    )]
    NotPermitted {
        /// The number in `/proc/sys/kernel/perf_event_paranoid`, if the file could be read.
        paranoid: Option<i64>,
    },
    /// Any other error.
    #[error("cannot open hardware counters")]
    Other(#[from] OpenError),
}

/// Why a thread's counters cannot be opened.
#[derive(Debug, thiserror::Error)]
#[non_exhaustive]
pub enum OpenError {
    /// There is no such thread (any more).
    #[error("thread {thread} has ended")]
    Ended {
        /// The thread.
        thread: u32,
    },
    /// This user may not count that thread.
    #[error(
        "not permitted to count thread {thread}: run as root, with the capability CAP_PERFMON, or as the user of the thread's process"
    )]
    NotPermitted {
        /// The thread.
        thread: u32,
    },
    /// This process has as many open files as it may.
    #[error(
        "too many open files: each event of each vCPU is one, and this process may have {}; raise the limit (ulimit -Hn, or LimitNOFILE= of a systemd unit)",
        limit.map_or("no more".into(), |n| n.to_string())
    )]
    Files {
        /// The limit, RLIMIT_NOFILE, in files; `None` if that is infinite.
        limit: Option<u64>,
    },
    /// Any other error.
    #[error("cannot open the counters of thread {thread}")]
    Other {
        /// The thread.
        thread: u32,
        /// The kernel's error.
        source: io::Error,
    },
}

impl OpenError {
    /// The meaning of an error of perf_event_open(2) for a thread.
    pub(super) fn of(thread: u32, source: io::Error) -> OpenError {
        match errno(&source) {
            // ENODEV: the thread ended while its group was opened (`perf_event_open`: PERF_EVENT_STATE_EXIT).
            Some(Errno::SRCH | Errno::NODEV) => OpenError::Ended { thread },
            Some(Errno::ACCESS | Errno::PERM) => OpenError::NotPermitted { thread },
            Some(Errno::MFILE) => OpenError::Files { limit: super::files::limit() },
            _ => OpenError::Other { thread, source },
        }
    }
}

impl NoPmu {
    /// The meaning of an error of perf_event_open(2) for this thread itself.
    pub(super) fn of(source: io::Error, paranoid: Option<i64>) -> NoPmu {
        match errno(&source) {
            // ENOENT: no driver took the event (`perf_init_event`). EOPNOTSUPP: the driver cannot count it.
            // ENOSYS: a kernel without perf events.
            Some(Errno::NOENT | Errno::OPNOTSUPP | Errno::NOSYS) => NoPmu::None,
            Some(Errno::ACCESS | Errno::PERM) => NoPmu::NotPermitted { paranoid },
            _ => NoPmu::Other(OpenError::of(std::process::id(), source)),
        }
    }
}

fn errno(e: &io::Error) -> Option<Errno> {
    Errno::from_io_error(e)
}

#[cfg(test)]
mod tests {
    use super::*;

    fn io(errno: Errno) -> io::Error {
        errno.into()
    }

    #[test]
    fn errors_say_what_is_missing_and_what_to_do() {
        for errno in [Errno::NOENT, Errno::OPNOTSUPP, Errno::NOSYS] {
            let text = NoPmu::of(io(errno), Some(4)).to_string();
            assert!(text.starts_with("this machine has no hardware counters"), "{text}");
            assert!(text.contains("virtual PMU"), "{text}");
        }
        for errno in [Errno::ACCESS, Errno::PERM] {
            let text = NoPmu::of(io(errno), Some(4)).to_string();
            assert!(text.contains("CAP_PERFMON"), "{text}");
            assert!(text.contains("/proc/sys/kernel/perf_event_paranoid (now 4) to 1"), "{text}");
            let unknown = NoPmu::of(io(errno), None).to_string();
            assert!(unknown.contains("/proc/sys/kernel/perf_event_paranoid to 1"), "{unknown}");
        }
        assert!(matches!(NoPmu::of(io(Errno::INVAL), None), NoPmu::Other(OpenError::Other { .. })));
    }

    #[test]
    fn errors_of_a_thread_name_it_and_too_many_files_name_the_limit() {
        assert_eq!(OpenError::of(7, io(Errno::SRCH)).to_string(), "thread 7 has ended");
        let denied = OpenError::of(7, io(Errno::ACCESS)).to_string();
        assert!(denied.starts_with("not permitted to count thread 7"), "{denied}");
        assert!(matches!(OpenError::of(7, io(Errno::MFILE)), OpenError::Files { .. }));
        let files = OpenError::Files { limit: Some(1024) }.to_string();
        assert!(files.contains("this process may have 1024; raise the limit"), "{files}");
        assert!(
            OpenError::of(7, io(Errno::INVAL))
                .to_string()
                .starts_with("cannot open the counters of thread 7")
        );
    }
}
